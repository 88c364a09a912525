"""The ports over the simulated world. A method's effect happens when it is called, unless mischief has its way."""

from collections.abc import Callable, Collection, Mapping

from sickbay.model.errors import EffectError, Gone, Rejected, Transient, Unknown
from sickbay.model.fleet import Capability, DrainHow, Incarnation, JobId, NodeId
from sickbay.model.intent import Notify
from sickbay.model.job import JobSpec
from sickbay.ports.cluster import Accepted, Deltas, Log, Lost, Snapshot
from sickbay.sim.chaos import Mutation
from sickbay.sim.context import ClusterRules
from sickbay.sim.hardware import MachinePower, SimSeat
from sickbay.sim.view import ClusterView
from sickbay.sim.world import World


class _Channel:
    """One way into the world: every mutation goes through `_mutate`."""

    def __init__(self, world: World, cluster: str, channel: str) -> None:
        self._world = world
        self._rules: ClusterRules = world.ground.clusters[cluster]
        self.channel = f"{channel}:{cluster}"

    def _mutate(
        self,
        act: str,
        key: str,
        target: str,
        effect: Callable[[], None],
        *,
        blind: bool = False,
        certain: bool = False,
        shows_after: float = 0.0,
        partial: Callable[[], None] | None = None,
    ) -> Accepted:
        def happen() -> Accepted:
            effect()
            return Accepted(visible_from=self._world.scheduler.now + shows_after, done=certain)

        def guarded() -> Accepted:
            return self._world.once(act, key, target, happen)

        return self._world.mischief.around(
            Mutation(
                channel=self.channel,
                act=act,
                key=key,
                target=target,
                effect=happen if blind else guarded,
                partial=partial,
                blind=blind,
                certain=certain,
                shows_after=shows_after,
            )
        )

    def _expected(self, node: NodeId, expect: Incarnation | None) -> SimSeat:
        """The seat, if its holder is the one that was meant. Of a machine that is down nobody knows the boot."""
        seat = self._world.ground.seat(node)
        now = seat.incarnation
        same = now.agrees(expect) or (seat.power is MachinePower.DOWN and now.same_holder(expect))
        if expect is not None and not same:
            raise Rejected(f"node {node} is held by {seat.incarnation.boot_id}, not by {expect.boot_id}")
        return seat


class SimCluster(_Channel):
    def __init__(self, world: World, cluster: str) -> None:
        super().__init__(world, cluster, "cluster")

    @property
    def id(self) -> str:
        return self._rules.id

    @property
    def period(self) -> float:
        return self._rules.period

    @property
    def capabilities(self) -> frozenset[Capability]:
        return self._rules.capabilities

    @property
    def blind(self) -> frozenset[str]:
        return self._rules.blind

    # --- reads
    def watch(self, cursor: str | None) -> Deltas | Lost:
        view = self._read()
        if cursor is None:
            return Lost()
        news = view.since(cursor)
        return Lost() if news is None else Deltas(cursor=view.cursor, as_of=view.as_of, news=news)

    def snapshot(self) -> Snapshot:
        return self._read().snapshot()

    def _read(self) -> ClusterView:
        if self._world.mischief.out(self.channel, f"reads:{self.id}") is not None:
            self._world.clock.behind = 0.0
            raise Transient(f"{self.channel} cannot be read")
        view = self._world.ground.views[self.id]
        self._world.clock.behind = 0.0
        # What a slow read shows was true when it began.
        lag = self._rules.lag + self._rules.read_takes
        view.reach(self._world.scheduler.now - self._world.mischief.lag(lag))
        return view

    # --- nodes
    def _expected(self, node: NodeId, expect: Incarnation | None) -> SimSeat:
        seat = super()._expected(node, expect)
        if seat.forgotten:
            raise Gone(f"there is no node {node}")
        return seat

    def cordon(self, node: NodeId, *, owner: str, reason: str, key: str, expect: Incarnation | None) -> Accepted:
        def effect() -> None:
            seat = self._expected(node, expect)
            seat.cordons[owner] = reason
            self._world.chronicle.note("cordon", node, owner)
            self._world.ground.show(seat)

        return self._mutate("quarantine", key, node, effect, blind="quarantine" in self.blind)

    def uncordon(self, node: NodeId, *, owner: str, key: str, expect: Incarnation | None) -> Accepted:
        def effect() -> None:
            seat = self._expected(node, expect)
            if seat.cordons.pop(owner, None) is not None:
                self._world.chronicle.note("uncordon", node, owner)
                self._world.ground.show(seat)
                self._world.placing.wake()

        # A cluster that promises less than it shows: a read may show the effect before it must.
        return self._mutate("release", key, node, effect, blind="release" in self.blind, shows_after=self.period)

    def drain(self, node: NodeId, *, how: DrainHow, key: str, expect: Incarnation | None) -> Accepted:
        def effect() -> None:
            self._world.drain(self._expected(node, expect), how)

        return self._mutate("drain", key, node, effect, blind="drain" in self.blind)

    # --- jobs
    def wrong(self, spec: JobSpec) -> str:
        if self._world.mischief.out(self.channel, f"reads:{self.id}") is not None:
            raise Transient(f"{self.channel} cannot be read")
        if spec.image and not self._rules.images:
            return f"image: {self.id} runs no images: leave image out"
        if unknown := sorted(spec.native.keys() - {"metadata", "spec"}):
            return f"native: {self.id} knows no {unknown[0]!r}: write metadata or spec"
        return ""

    def start(
        self,
        job: JobId,
        attempt: int,
        *,
        spec: JobSpec,
        nodes: Mapping[NodeId, tuple[int, ...]],
        avoid: tuple[NodeId, ...],
        key: str,
    ) -> Accepted:
        placing, target = self._world.placing, f"{job}#{attempt}"

        def effect(only: int | None = None) -> None:
            placing.start(job, attempt, spec=spec, nodes=nodes, avoid=avoid, key=key, only=only)

        partial = (lambda: effect(len(nodes) // 2)) if len(nodes) > 1 else None
        return self._mutate(
            "start_job",
            key,
            target,
            effect,
            blind="start_job" in self.blind,
            # Ranks are seen when they run; the spread of that is a third.
            shows_after=self._world.ground.rules.start_takes * 4 / 3,
            partial=partial,
        )

    def rerun(self, job: JobId, attempt: int, *, avoid: tuple[NodeId, ...], key: str) -> Accepted:
        def effect() -> None:
            self._world.placing.rerun(job, attempt, avoid=avoid, key=key)

        return self._mutate("rerun_job", key, job, effect, blind="rerun_job" in self.blind)

    def stop(self, job: JobId, attempt: int, *, final: bool, key: str) -> Accepted:
        def effect() -> None:
            self._world.workload.stop(job, attempt, final=final)

        return self._mutate(
            "stop_job",
            key,
            f"{job}#{attempt}",
            effect,
            blind="stop_job" in self.blind,
            shows_after=self._world.ground.rules.stop_takes * 4 / 3,
        )

    def logs(self, job: JobId, attempt: int, rank: int, *, after: str = "", last: int = 0, limit: int = 65_536) -> Log:
        raise Rejected("simulated ranks write nothing: the cluster has no logs")


class SimMachines(_Channel):
    def __init__(self, world: World, cluster: str) -> None:
        super().__init__(world, cluster, "machines")

    @property
    def capabilities(self) -> frozenset[Capability]:
        return self._rules.machines

    @property
    def blind(self) -> frozenset[str]:
        return self._rules.blind_repairs

    def restart_service(self, node: NodeId, *, key: str, expect: Incarnation) -> Accepted:
        return self._repair("restart_service", key, node, expect, self._world.plant.restart_service)

    def reset(self, node: NodeId, devices: tuple[int, ...], *, key: str, expect: Incarnation) -> Accepted:
        return self._repair("reset_gpu", key, node, expect, lambda seat: self._world.plant.reset(seat, devices, key))

    def reboot(self, node: NodeId, *, key: str, expect: Incarnation) -> Accepted:
        return self._repair("reboot", key, node, expect, lambda seat: self._world.plant.reboot(seat, key=key))

    def replace(self, node: NodeId, *, key: str, expect: Incarnation) -> Accepted:
        return self._repair("replace", key, node, expect, lambda seat: self._world.plant.replace(seat, key=key))

    def fence(self, node: NodeId, *, key: str, expect: Incarnation | None) -> Accepted:
        def effect() -> None:
            self._world.plant.fence(node, key=key, expect=expect)

        return self._mutate("fence", key, node, effect, certain=True)

    def _repair(
        self, act: str, key: str, node: NodeId, expect: Incarnation, repair: Callable[[SimSeat], object]
    ) -> Accepted:
        def begin() -> None:
            try:
                repair(self._expected(node, expect))
            except EffectError as error:
                self._world.chronicle.note(f"late_refusal.{act}", node, str(error))

        def effect() -> None:
            posted = self._rules.begins_within if act in {"reset_gpu", "reboot"} else 0.0
            if posted:
                self._expected(node, expect)
                self._world.scheduler.after(self._world.ground.rng.uniform(0.0, posted), begin)
            else:
                repair(self._expected(node, expect))

        return self._mutate(act, key, node, effect, blind=act in self.blind)


class SimChecks(_Channel):
    def __init__(self, world: World, cluster: str) -> None:
        super().__init__(world, cluster, "checks")

    @property
    def capabilities(self) -> frozenset[Capability]:
        return self._rules.checks

    def start(
        self,
        check: str,
        nodes: Mapping[NodeId, Incarnation | None],
        *,
        level: int,
        profile: str,
        storage: tuple[str, ...] = (),
    ) -> Accepted:
        def effect() -> None:
            self._world.chronicle.note("check.start", check, f"level {level} {profile}".strip())
            self._world.examinations.check(check, nodes, level=level, storage=storage)

        return self._mutate("verify", check, _few(nodes), effect)

    def look(self, look: str, nodes: tuple[NodeId, ...], *, stacks_of: JobId | None) -> Accepted:
        def effect() -> None:
            self._world.chronicle.note("look", look, stacks_of or "")
            self._world.examinations.look(look, nodes)

        return self._mutate("look", look, _few(nodes), effect)

    def ask_to_save(self, ask: str, nodes: tuple[NodeId, ...], *, job: JobId, attempt: int) -> Accepted:
        world = self._world

        def effect() -> None:
            world.chronicle.note("ask", f"{job}#{attempt}", ask)
            takes = world.ground.spread(world.ground.rules.report_takes)
            world.scheduler.after(takes, lambda: world.workload.ask_to_save(job, attempt, ask))

        return self._mutate("ask_to_save", ask, _few(nodes), effect)


def _few(nodes: Collection[NodeId]) -> str:
    return ",".join(nodes) if len(nodes) <= 4 else f"{len(nodes)} nodes"


class SimNotifier:
    def __init__(self, world: World) -> None:
        self._world = world

    def tell(self, notice: Notify, *, key: str) -> str:
        def effect() -> Accepted:
            self._world.notices.append((key, notice))
            return Accepted(done=True)

        mischief = self._world.mischief
        try:
            mischief.around(
                Mutation(
                    channel="notifier",
                    act="notify",
                    key=key,
                    target=notice.subject,
                    effect=lambda: self._world.once("notify", key, notice.subject, effect),
                )
            )
        except Unknown as doubt:
            # At least once: in doubt it is told again.
            raise Transient(str(doubt)) from doubt
        return ""
