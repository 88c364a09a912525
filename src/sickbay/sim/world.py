"""The simulated world: nodes with defects, agents, jobs, operators and foreigners.

Three things are kept apart. *Told*: what was asked of the world (`chronicle.told`). *Happened*: its true state and its
own log (`chronicle.events`, `chronicle.violations`). *Seen*: what reads return, later (`views`) or not at all.
"""

from collections.abc import Callable, Mapping
from random import Random

from msgspec.structs import replace

from sickbay.model.facts import Checked, JobVanished, Observed, Ordered
from sickbay.model.fault import Remedy
from sickbay.model.fleet import DrainHow, Incarnation, JobId, NodeId
from sickbay.model.intent import Notify
from sickbay.model.job import EndReason, JobSpec
from sickbay.ports.cluster import Accepted, Told
from sickbay.sim.agents import Agents, Deliver
from sickbay.sim.chaos import Mischief
from sickbay.sim.context import ClusterRules, SimContext, Timings
from sickbay.sim.examine import Examinations
from sickbay.sim.hardware import SimDefect, SimSeat
from sickbay.sim.job_behaviour import TRACEBACK, Programme
from sickbay.sim.placing import Placing
from sickbay.sim.plant import Plant
from sickbay.sim.schedule import Scheduler
from sickbay.sim.workload import Workload


class World:
    """Puts the parts together. Scenarios call these methods; engines reach it through the adapters only."""

    def __init__(
        self,
        scheduler: Scheduler,
        rng: Random,
        mischief: Mischief,
        deliver: Deliver,
        rules: Timings | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.mischief = mischief
        self.ground = SimContext(scheduler, Random(rng.random()), rules or Timings())
        self.chronicle = self.ground.chronicle
        self.clock = self.ground.clock
        # Streams of their own: a change of the odds does not change what breaks.
        mischief.bind(scheduler, Random(rng.random()), self.chronicle)
        self.agents = Agents(self.ground, mischief, deliver)
        self.workload = Workload(self.ground, self.agents)
        self.plant = Plant(self.ground, self.agents, self.workload, mischief)
        self.placing = Placing(self.ground, self.workload)
        self.examinations = Examinations(self.ground, self.agents, self.workload, mischief)
        self.notices: list[tuple[str, Notify]] = []
        self._done: dict[tuple[str, str, str], Accepted] = {}

    # --- building
    def add_cluster(self, rules: ClusterRules) -> None:
        self.ground.add_cluster(rules)

    def add_nodes(
        self,
        cluster: str,
        count: int,
        *,
        pool: str = "train",
        gpus: int = 8,
        linked: bool = True,
        per_domain: int = 16,
        names: Callable[[int], str] | None = None,
        agentless: Callable[[int], bool] = lambda _index: False,
    ) -> list[NodeId]:
        nodes = []
        for index in range(count):
            node = NodeId(f"{cluster}/{names(index) if names else f'{pool}-{index:04d}'}")
            seat = self.ground.add_seat(
                node,
                pool=pool,
                domain=f"{pool}-rack-{index // per_domain}",
                gpus=gpus,
                linked=linked,
                agentless=agentless(index),
            )
            self.agents.refresh(seat)
            self.plant.cluster_hears(seat)
            nodes.append(node)
        return nodes

    def once(self, act: str, key: str, target: str, effect: Callable[[], Accepted]) -> Accepted:
        """The far side's guard: one key has one effect on one target."""
        name = (act, key, target)
        if name not in self._done:
            self._done[name] = effect()
        return self._done[name]

    def drain(self, seat: SimSeat, how: DrainHow) -> None:
        """Moves work off that Sickbay does not manage: `wait` waits for its end, `evict` asks, `force` does not."""
        self.chronicle.note("drain", seat.id, how)
        turn = seat.turn

        def empty() -> None:
            guarded = how is DrainHow.EVICT and self.scheduler.now < seat.worked_at + self.ground.rules.budget_holds
            if guarded:
                self.chronicle.note("drain.refused", seat.id, "disruption budget")
            elif seat.turn == turn and seat.unmanaged:
                seat.unmanaged = 0
                self.ground.show(seat)
                self.placing.wake()

        if how is DrainHow.EVICT and self.scheduler.now < seat.kept_until:
            return
        if how is DrainHow.EVICT:
            self.scheduler.after(self.ground.spread(self.ground.rules.evict_takes), empty)
        elif how is DrainHow.FORCE:
            empty()

    # --- reading the truth
    @property
    def seats(self) -> dict[NodeId, SimSeat]:
        return self.ground.seats

    @property
    def voices(self) -> Mapping[NodeId, Incarnation]:
        """Agents that could be heard now, with their incarnations: what a pulse delivers. Live; copy to keep."""
        return self.agents.voices

    def seat(self, node: NodeId) -> SimSeat:
        return self.ground.seat(node)

    def running(self, job: JobId) -> list[tuple[int, list[NodeId]]]:
        """Attempts of the job that truly run, and where."""
        found = self.workload.jobs.get(job)
        attempts = found.attempts.values() if found else ()
        return [(attempt.number, list(attempt.alive)) for attempt in attempts if attempt.alive]

    # --- what befalls nodes
    def strike(self, node: NodeId, defect: SimDefect) -> None:
        self.plant.strike(self.seat(node), defect)

    def write_line(self, node: NodeId, code: str, device: int = 0) -> None:
        """A line without a defect behind it."""
        self.plant.write_line(self.seat(node), code, device)

    def observe(self, node: NodeId, kind: str, fields: dict[str, str | int], text: str = "", ago: float = 0.0) -> None:
        self.agents.observe(self.seat(node), kind, fields, text, "agent", ago)

    def lose_node(self, node: NodeId, *, zombie: bool = False, back_by: Remedy = Remedy.REBOOT) -> None:
        self.plant.lose_node(self.seat(node), zombie=zombie, back_by=back_by)

    def lose_agent(self, node: NodeId) -> None:
        self.plant.set_agent(self.seat(node), alive=False)

    def restore_agent(self, node: NodeId) -> None:
        self.plant.set_agent(self.seat(node), alive=True)

    def cut_path(self, node: NodeId) -> None:
        self.plant.set_path(self.seat(node), path_open=False)

    def open_path(self, node: NodeId) -> None:
        self.plant.set_path(self.seat(node), path_open=True)

    def partition(self, node: NodeId) -> None:
        """The cluster loses the node; its agent does not lose us."""
        self.plant.set_link(self.seat(node), link_open=False)

    def heal_partition(self, node: NodeId) -> None:
        self.plant.set_link(self.seat(node), link_open=True)

    def go_deaf(self, seconds: float) -> None:
        """For a while we hear no agent."""
        self.agents.close_ear()
        self.scheduler.after(seconds, self.agents.open_ear)

    def announce(self, node: NodeId, why: str, seconds: int) -> None:
        """The node says that it will be away for a while."""
        self.observe(node, "node.going_down", {"seconds": seconds}, why)

    # --- what befalls jobs
    def programme(self, job: JobId, programme: Programme) -> None:
        """How a job that we shall start will train."""
        self.workload.programmes[job] = programme

    def crash(self, job: JobId, *, exit_code: int = 1, tail: str = TRACEBACK) -> None:
        self.workload.crash(job, exit_code=exit_code, tail=tail)

    def complete(self, job: JobId) -> None:
        self.workload.complete(job)

    def hang(self, job: JobId) -> None:
        self.workload.hang(job)

    def preempt(self, job: JobId) -> None:
        self.workload.finish(job, EndReason.PREEMPTED, "preempted")

    def owner_cancels(self, job: JobId) -> None:
        self.workload.finish(job, EndReason.CANCELLED_BY_OTHER, "cancelled")

    def owner_resumes(self, job: JobId) -> None:
        """Its owner has the cluster run it again, whatever anybody wanted before."""
        self.placing.resume(job)

    def submit_to_cluster(
        self,
        job: JobId,
        spec: JobSpec,
        programme: Programme | None = None,
        *,
        native_delay: float | None = None,
        native_after_stop: bool = False,
    ) -> None:
        """Somebody submits a job to the cluster, not to us; `native_delay`: its own controller restarts it."""
        self.placing.submit(
            job,
            spec,
            programme or self.workload.default,
            native_delay=native_delay,
            native_after_stop=native_after_stop,
        )

    def forget_job(self, job: JobId, *, told: bool = False) -> None:
        """The cluster has the job no more: it says so, or it was purged while nobody read. Its ranks are killed."""
        found = self.workload.job(job)
        self.workload.finish(job, EndReason.CANCELLED_BY_OTHER, "purged")
        self.chronicle.note("purged", job)
        found.purged = True
        view = self.ground.views[found.spec.cluster]
        view.put(JobVanished(job=job, as_of=self.scheduler.now, sure=told))

    def says(self, cluster: str, id: str, news: Observed | Checked | Ordered) -> None:  # noqa: A002 - the port's word
        """The cluster itself tells something: a check of its own, a condition, a person's request by label."""
        now = self.scheduler.now
        self.ground.views[cluster].say(Told(id=id, at=self.ground.stamp(now), news=news), now)

    # --- operators and foreigners
    def operator_cordons(self, node: NodeId, owner: str = "other:maintenance") -> None:
        seat = self.seat(node)
        seat.cordons[owner] = "by hand"
        self.chronicle.note("operator.cordon", node, owner)
        self.ground.show(seat)

    def operator_uncordons(self, node: NodeId) -> None:
        """Removes every cordon, ours too."""
        seat = self.seat(node)
        self.chronicle.note("operator.uncordon", node, ",".join(sorted(seat.cordons)))
        seat.cordons.clear()
        self.ground.show(seat)
        self.placing.wake()

    def operator_reboots(self, node: NodeId) -> None:
        self.plant.reboot(self.seat(node), key=f"operator:{self.ground.number()}", by="operator")

    def operator_replaces(self, node: NodeId) -> None:
        self.plant.replace(self.seat(node), key=f"operator:{self.ground.number()}", by="operator")

    def operator_deletes(self, node: NodeId) -> None:
        self.plant.delete(self.seat(node), cause="operator")

    def operator_moves(self, node: NodeId, pool: str) -> None:
        """Puts the node into another pool: a label, a partition."""
        seat = self.seat(node)
        self.chronicle.note("operator.move", node, f"{seat.pool} to {pool}")
        seat.pool, seat.pooled_at = pool, self.scheduler.now
        self.ground.show(seat)
        self.placing.wake()

    def operator_registers_anew(self, node: NodeId) -> None:
        """Deletes the node's object; the same machine, under the same boot, makes a new one without cordons.

        Only a machine that is up and in touch with its cluster makes one.
        """
        seat = self.seat(node)
        if not seat.reachable:
            return
        uid = f"uid-{self.ground.number():06d}"
        seat.incarnation = replace(seat.incarnation, uid=uid)
        seat.shown = replace(seat.shown, uid=uid) if seat.shown is not None else None
        seat.cordons.clear()
        self.chronicle.note("registered.anew", node, uid)
        self.agents.refresh(seat)
        self.ground.show(seat)
        self.placing.wake()

    def operator_forgets(self, node: NodeId) -> None:
        """Deletes the object of a node that its cluster does not reach; the machine may run on."""
        seat = self.seat(node)
        if not seat.reachable and not seat.forgotten:
            self.ground.forget(seat)

    def operator_returns(self, node: NodeId, after: float, *, same_machine: bool) -> None:
        """Deletes the seat and brings it back under its name: with the same machine (a new object), or another one."""
        old = self.seat(node)
        self.plant.delete(old, cause="operator")

        def come() -> None:
            seat = self.ground.add_seat(
                node,
                pool=old.pool,
                domain=old.domain,
                gpus=len(old.devices),
                linked=old.linked,
                agentless=old.agentless,
            )
            if same_machine:
                seat.devices = old.devices
                seat.incarnation = replace(old.incarnation, uid=seat.incarnation.uid, boot_id=seat.incarnation.boot_id)
                seat.defects = old.defects
            self.chronicle.note("joined", node, "again")
            self.agents.refresh(seat)
            self.plant.cluster_hears(seat)

        self.scheduler.after(after, come)

    def operator_drains(self, node: NodeId) -> None:
        """Cordons and evicts everything, managed or not."""
        self.operator_cordons(node, "other:drain")
        seat = self.seat(node)
        for attempt in self.workload.on(seat):
            self.workload.rank_dies(seat, attempt, exit_code=143, cause="operator", tail="evicted")
        seat.unmanaged = 0
        self.ground.show(seat)

    def keep_work(self, node: NodeId, seconds: float) -> None:
        """A disruption budget keeps others' work there for a while, whoever asks."""
        self.seat(node).kept_until = self.scheduler.now + seconds

    def other_scheduler_starts_work(self, node: NodeId) -> bool:
        """A piece of work that we do not manage; a cordon or a node that is not ready keeps it off."""
        seat = self.seat(node)
        if seat.cordons or not seat.ready or not seat.reachable:
            return False
        seat.unmanaged += 1
        seat.worked_at = self.scheduler.now
        self.chronicle.note("work", node)
        self.ground.show(seat)
        turn = seat.turn

        def leave() -> None:
            if seat.turn == turn and seat.unmanaged:
                seat.unmanaged -= 1
                self.ground.show(seat)
                self.placing.wake()

        self.scheduler.after(self.ground.spread(self.ground.rules.work_lasts), leave)
        return True
