"""The frame: a world, one or two hosts with the real engine, a store, and everything that is checked meanwhile."""

from collections.abc import Callable
from functools import partial
from random import Random

from sickbay.adapters.stores.memory import MemoryStore
from sickbay.engine.execute import Effects, Site
from sickbay.engine.view import Rules as EngineRules
from sickbay.knowledge.load import load_tables
from sickbay.model.facts import AnyNews, Fact, Ordered, Submitted
from sickbay.model.fleet import Brake, Incarnation, JobId, Node, NodeId
from sickbay.model.incident import Incident, IncidentKind
from sickbay.model.job import Job, JobSpec
from sickbay.model.notice import LOG, ChannelTraits
from sickbay.model.noun import Noun
from sickbay.model.parts import whole
from sickbay.model.policy import Policy
from sickbay.policy.load import digest, load_policy
from sickbay.ports.store import Store
from sickbay.sim.adapters import SimChecks, SimCluster, SimMachines, SimNotifier
from sickbay.sim.chaos import Mischief, Odds
from sickbay.sim.context import ClusterRules, Timings
from sickbay.sim.flaky import Crashed
from sickbay.sim.host import SimHost
from sickbay.sim.invariants import Invariants
from sickbay.sim.job_behaviour import Programme
from sickbay.sim.schedule import EPOCH, Scheduler, SkewedClock
from sickbay.sim.world import World

CLUSTER = "sim"
POOL = "train"
LAW_EVERY = 25  # steps: the law holds at any moment, but asking plans the whole fleet


class Quarter(Noun):
    """Seats of one pool of one cluster. `names` makes a name of a number; none: `<pool>-0000`."""

    cluster: ClusterRules
    pool: str = POOL
    nodes: int = 4
    gpus: int = 8
    linked: bool = True
    names: Callable[[int], str] | None = None
    agentless: int = 0  # every so many-th has no agent; 0: all have one


class Plan(Noun):
    """What is simulated."""

    nodes: int = 4
    gpus: int = 8
    linked: bool = True
    cluster: ClusterRules = ClusterRules(id=CLUSTER)
    rules: Timings = Timings()
    odds: Odds = Odds()
    cold: bool = False
    engines: int = 1
    limits: bool = True  # of the store: DynamoDB's
    strict: bool = True  # check invariants after every step
    forgiving: bool = False  # as in production: what cannot be planned is set aside, not raised
    intake: bool = False  # the nodes join after we have connected (if not `trusted`): they are new to us
    names: Callable[[int], str] | None = None
    agentless: int = 0
    also: tuple[Quarter, ...] = ()  # further clusters and pools
    connect_after: float = 0.0  # seconds: what runs by then was there when we first connected
    one_name: bool = False  # engines are called alike: each process has to find a name of its own
    skew: float = 0.0  # seconds by which the second engine's wall clock differs
    trusted: bool = False  # assert that nobody who was there at first is taken in
    channels: dict[str, ChannelTraits] = {}  # notifiers besides the log

    @property
    def quarters(self) -> tuple[Quarter, ...]:
        first = Quarter(
            cluster=self.cluster,
            nodes=self.nodes,
            gpus=self.gpus,
            linked=self.linked,
            names=self.names,
            agentless=self.agentless,
        )
        return first, *self.also


class Simulation:
    """Drives the real engine. Same plan, policy and seed: same run, to the last step."""

    def __init__(
        self, plan: Plan | None = None, *, seed: int = 0, policy: Policy | None = None, store: Store | None = None
    ) -> None:
        self.plan = plan or Plan()
        self.seed = seed
        self.policy = policy or load_policy("default")
        self.scheduler = Scheduler()
        rng = Random(seed)
        timeout = self.policy.pace.call_timeout.total_seconds()
        self.mischief = Mischief(self.plan.odds, call_timeout=timeout)
        self.world = World(self.scheduler, Random(rng.random()), self.mischief, self._deliver, self.plan.rules)
        self.clock = self.world.clock
        late = self.plan.intake and not self.plan.trusted
        self.nodes = [] if late else self._furnish_all()
        for quarter in self.plan.quarters:
            self._found(quarter.cluster)
        self.store: Store = store or self._memory()
        self.hands = self._hands()
        self.rules = self._rules()
        self.points = 0  # places where a crash is possible, so far
        self.fates: dict[int, str] = {}  # by number of the place
        self.invariants = Invariants(self)
        self._processes = 0
        self.hosts = [self._host(f"engine-{n}", Random(rng.random())) for n in range(self.plan.engines)]
        self._unheard: list[tuple[list[Fact], dict[NodeId, Incarnation]]] = []
        self._unsaid: list[tuple[str, AnyNews]] = []
        self.orders = 0
        self._steps = 0
        self.mischief.on_call = self._on_call
        self._connect()
        if late or not self.plan.intake:
            self._settle_in()
        if late:
            self.nodes = self._furnish_all()

    def _memory(self) -> Store:
        """Several engines share a store only where it has a time of its own: theirs may differ."""
        wall = (lambda: EPOCH.timestamp() + self.scheduler.now) if self.plan.engines > 1 else None
        return MemoryStore(limits=self.plan.limits, now=lambda: self.scheduler.now, wall=wall)

    def _found(self, cluster: ClusterRules) -> None:
        if cluster.id not in self.world.ground.clusters:
            self.world.add_cluster(cluster)

    def _furnish_all(self) -> list[NodeId]:
        return [node for quarter in self.plan.quarters for node in self._furnish(quarter)]

    def _furnish(self, quarter: Quarter) -> list[NodeId]:
        self._found(quarter.cluster)
        return self.world.add_nodes(
            quarter.cluster.id,
            quarter.nodes,
            pool=quarter.pool,
            gpus=quarter.gpus,
            linked=quarter.linked,
            names=quarter.names,
            agentless=lambda index: bool(quarter.agentless) and index % quarter.agentless == quarter.agentless - 1,
        )

    def _connect(self) -> None:
        """Each cluster is read in its own rhythm: a slow read delays the next one."""

        def begin() -> None:
            for cluster in self.world.ground.clusters.values():
                rhythm = cluster.period + cluster.read_takes
                mine = self._tick if cluster.id == self.plan.cluster.id else partial(self._watch, cluster.id)
                self.scheduler.every(rhythm, mine)

        if self.plan.connect_after:
            self.scheduler.after(self.plan.connect_after, begin)
        else:
            begin()

    def _hands(self) -> Effects:
        world = self.world
        sites = {
            c: Site(SimCluster(world, c), SimMachines(world, c), SimChecks(world, c)) for c in world.ground.clusters
        }
        return Effects(sites=sites, notifiers={name: SimNotifier(world) for name in (LOG, *self.plan.channels)})

    def _rules(self) -> EngineRules:
        return EngineRules(
            policy=self.policy,
            tables=load_tables(),
            policy_digest=digest(self.policy),
            can={cluster: site.capabilities for cluster, site in self.hands.sites.items()},
            blind={cluster: site.blind for cluster, site in self.hands.sites.items()},
            channels=self.plan.channels,
            checks_first=frozenset(c.id for c in self.world.ground.clusters.values() if c.checks_first),
        )

    def _host(self, name: str, rng: Random) -> SimHost:
        host = SimHost(
            name,
            store=self.store,
            hands=self.hands,
            rules=self.rules,
            scheduler=self.scheduler,
            clock=SkewedClock(self.clock, 0.0 if name.endswith("0") else self.plan.skew),
            rng=rng,
            fate=self._fate,
            cold=self.plan.cold,
            forgiving=self.plan.forgiving,
            lease_ttl=2 * self.policy.pace.call_timeout.total_seconds() + 10.0,
            written=self.invariants.written,
            led=partial(self.invariants.led, name),
            holder=self._replica_name if self.plan.one_name else None,
            slices={c: rules.slice_size for c, rules in self.world.ground.clusters.items()},
        )
        host.period(max(self.plan.rules.pulse, self.plan.cluster.period))
        return host

    def _replica_name(self) -> str:
        """Whatever its operator calls it, a process takes a name that no other has: `controller.replica_name`."""
        self._processes += 1
        return f"engine-{self._processes}"

    def _settle_in(self) -> None:
        """We connect: whoever is there then counts as known."""
        slowest = max(self.world.ground.clusters.values(), key=lambda c: c.period + c.read_takes + c.lag * 2)
        slices = 3 + sum(2 * q.nodes // (q.cluster.slice_size or 500) for q in self.plan.quarters)
        self.run(slices * max(slowest.period + slowest.read_takes, slowest.lag * 2) + self.plan.connect_after)

    # --- what can go wrong on our side
    def _fate(self, what: str) -> str:
        del what
        self.points += 1
        return self.fates.pop(self.points, "")

    def _on_call(self, moment: str, act: str, key: str) -> None:
        del act, key
        self.points += 1
        fate = self.fates.get(self.points, "")
        if fate == "crash_before" or (fate == "crash_after" and moment == "after"):
            del self.fates[self.points]
            raise Crashed(moment)

    # --- the flow
    def _deliver(self, facts: list[Fact], pulses: object) -> None:
        self._unheard.append((list(facts), dict(pulses)))  # type: ignore[call-overload]
        self._pour()

    def _pour(self) -> None:
        """Agents and people keep what nobody acknowledged, and say it again."""
        while self._unheard:
            facts, pulses = self._unheard[0]
            if not any(host.hear(facts, pulses) for host in self.hosts):
                break
            self._unheard.pop(0)
        while self._unsaid and any(host.tell(*self._unsaid[0]) for host in self.hosts):
            self._unsaid.pop(0)

    def _tick(self) -> None:
        self._pour()
        if not self.world.agents.deaf and not self._unheard:
            for host in self.hosts:
                host.hear([], {})  # its own canary: that it can be reached at all
        self._watch(self.plan.cluster.id)

    def _watch(self, cluster: str) -> None:
        takes = self.world.ground.clusters[cluster].read_takes
        for host in self.hosts:
            # Until it is answered: a slow read began so long ago.
            self.clock.behind = 0.0 if host.midway(cluster) else takes
            host.watch(cluster)
            self.clock.behind = 0.0

    def run(self, seconds: float) -> None:
        self.run_until(lambda: False, seconds)

    def run_until(self, done: Callable[[], bool], most: float = 86_400.0) -> bool:
        """Step by step, every invariant after every step. Whether it came true in time."""
        end = self.scheduler.now + most
        while not done():
            ahead = self.scheduler.next_at()
            if ahead is None or ahead > end:
                self.scheduler.now = max(self.scheduler.now, end)
                return done()
            self.scheduler.step()
            if self.plan.strict:
                self.invariants.check()
                self._steps += 1
                if self._steps % LAW_EVERY == 0:
                    self.invariants.incremental_law()
        return True

    def damage(self, key: str, seconds: float) -> None:
        """A row cannot be read for a while, and comes back from a backup; engines start anew and have to read it."""
        assert self.invariants.poisoned is not None, "only an engine that sets things aside lives with it"
        self.invariants.poisoned.add(key)
        for host in self.hosts:
            host.store.damaged.add(key)
            host.crash()
        self.scheduler.after(seconds, lambda: self.mend_row(key))

    def mend_row(self, key: str) -> None:
        for host in self.hosts:
            host.store.damaged.discard(key)
            host.crash()

    def jump(self, seconds: float) -> None:
        """Our wall clocks are set, all of them."""
        self.clock.jump(seconds)
        self.invariants.acts.clock_jumped()

    # --- what people do
    def submit(self, name: str = "job", programme: Programme | None = None, **spec: object) -> JobId:
        job = JobId(name)
        if programme is not None:
            self.world.programme(job, programme)
        where = {"cluster": self.plan.cluster.id, "pool": POOL}
        full = JobSpec(name=name, **where | spec)  # type: ignore[arg-type]
        self._say(f"submit/{name}", Submitted(job=job, spec=full))
        return job

    def order(self, verb: str, target: str, *, now: bool = False, **args: str) -> None:
        news = Ordered(verb=verb, target=target, by="operator", reason="by hand", now=now, args=args)
        self.orders += 1
        self.invariants.acts.ordered(verb, target)
        self._say(f"order/{self.orders}", news)

    def _say(self, key: str, news: AnyNews) -> None:
        self._unsaid.append((key, news))
        self._pour()

    # --- what the engine believes
    def job(self, job: JobId) -> Job:
        row = whole(self.store.load([f"job:{job}"]), self.store.load)[f"job:{job}"].row
        assert isinstance(row, Job), f"no job {job}"
        return row

    def node(self, node: NodeId) -> Node:
        row = self.store.load([f"node:{node}"])[f"node:{node}"].row
        assert isinstance(row, Node), f"no node {node}"
        return row

    def incidents(self, node: NodeId | None = None, *, intake: bool = False) -> list[Incident]:
        found = [r for r in self._all("incident") if isinstance(r, Incident)]
        mine = [i for i in found if (node is None or i.node == node) and (intake or i.kind is not IncidentKind.INTAKE)]
        return sorted(mine, key=lambda i: i.opened_at)

    def vacancies(self) -> list[NodeId]:
        return [r.id for r in self._all("node") if isinstance(r, Node) and r.incarnation is None]

    def jobs(self) -> list[Job]:
        return [r for r in self._all("job") if isinstance(r, Job)]

    def brakes(self) -> list[Brake]:
        return [r for r in self._all("brake") if isinstance(r, Brake)]

    def _all(self, kind: str) -> list[object]:
        found: list[object] = []
        after = ""
        while page := self.store.keys(kind, after=after):
            rows = whole(self.store.load(page), self.store.load)
            found += [rows[key].row for key in page]
            after = page[-1]
        return found

    def calm(self) -> bool:
        """Nothing is open that will move by itself: incidents ended or held, jobs ended, and no engine is behind."""
        if any(host.behind for host in self.hosts):
            return False
        return all(not i.open or i.phase == "HELD" for i in self.incidents(intake=True)) and all(
            not j.open for j in self.jobs()
        )
