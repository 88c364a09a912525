"""What every part of the world stands on: time, chance, rules, seats and the clusters' views of them."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from random import Random

from msgspec.structs import replace

from sickbay.model.errors import BadInput, Gone
from sickbay.model.facts import NodeVanished
from sickbay.model.fleet import Capability, Device, Incarnation, NodeId
from sickbay.model.noun import Noun
from sickbay.sim.chronicle import Chronicle
from sickbay.sim.hardware import SimSeat
from sickbay.sim.schedule import EPOCH, Scheduler, SimClock
from sickbay.sim.view import ClusterView

CLUSTER_CAN = frozenset({Capability.DRAIN, Capability.PLACE, Capability.RERUN, Capability.SEAT_KEPT})
MACHINES_CAN = frozenset(
    {
        Capability.RESTART_SERVICE,
        Capability.RESET_GPU,
        Capability.REBOOT,
        Capability.REPLACE,
        Capability.FENCE,
    }
)
CHECKS_CAN = frozenset(
    {
        Capability.CHECK,
        Capability.CHECK_CORDONED,
        Capability.CHECK_BY_AGENT,
        Capability.LOOK,
        Capability.ASK_TO_SAVE,
    }
)


class Timings(Noun):
    """How long things take, in seconds; each is a middle that chance spreads by a third."""

    pulse: float = 30.0  # 0: nobody is told; read `World.voices`
    report_takes: float = 0.3
    look_takes: float = 0.3
    agent_starts: float = 5.0
    notice: float = 40.0  # until a cluster calls a silent node not ready
    reset_takes: float = 15.0
    boot_takes: float = 240.0
    replace_takes: float = 600.0
    start_takes: float = 20.0
    stop_takes: float = 5.0
    siblings_fail: float = 5.0  # from one rank's death to that of the others
    node_lost_end: float | None = 300.0  # until a cluster gives up an attempt on a node that is not ready; None: never
    check_takes: tuple[float, ...] = (60.0, 150.0, 900.0, 3600.0)  # levels 1 to 4
    evict_takes: float = 30.0
    fence_takes: float = 0.0  # until a machine that is being fenced is surely down
    work_lasts: float = 1800.0  # a piece of work that we do not manage
    budget_holds: float = 0.0  # so long after it began, a disruption budget lets nobody evict such work


class ClusterRules(Noun):
    """One cluster. Without PLACE its own scheduler chooses nodes; without SEAT_KEPT newcomers have new names."""

    id: str
    capabilities: frozenset[Capability] = CLUSTER_CAN
    machines: frozenset[Capability] = MACHINES_CAN
    checks: frozenset[Capability] = CHECKS_CAN
    period: float = 5.0
    lag: float = 2.0
    reboots_uncordon: bool = False  # a reboot takes cordons along (`scontrol reboot nextstate=DOWN` does)
    read_takes: float = 0.0  # each read, beside its period
    slice_size: int = 0  # seats that are compared at once after the cursor was lost; 0: as many as always
    keep: int = 50_000
    retain: float = 86_400.0
    blind: frozenset[str] = frozenset()
    blind_repairs: frozenset[str] = frozenset()
    tells: frozenset[str] = frozenset({"uid", "instance", "boot"})  # what it knows of a node's incarnation
    lists: bool = True  # a node's devices; if not, agents tell their inventory
    keeps_cordons: bool = True  # over a replacement; else the seat's object is made anew, without them
    mixes_pools: bool = False  # its own scheduler does not ask for a job's pool
    checks_first: bool = False  # nodes that were there before us are checked once
    images: bool = True  # it runs images, and its objects take what a job says in its words
    begins_within: float = 0.0  # seconds: a reset or reboot is accepted when it is posted, and begins some time later


class SimContext:
    """Shared by the parts of the world; knows nothing of them."""

    def __init__(self, scheduler: Scheduler, rng: Random, rules: Timings) -> None:
        self.scheduler = scheduler
        self.rng = rng
        self.rules = rules
        self.clock = SimClock(scheduler)
        self.chronicle = Chronicle(scheduler)
        self.clusters: dict[str, ClusterRules] = {}
        self.views: dict[str, ClusterView] = {}
        self.seats: dict[NodeId, SimSeat] = {}
        self.storage_down: set[str] = set()  # shared directories whose server is down
        self._serial = 0

    @property
    def now(self) -> float:
        return self.scheduler.now

    def spread(self, middle: float) -> float:
        """A duration near the middle one: rarely do two things take equally long."""
        return middle * self.rng.uniform(2 / 3, 4 / 3)

    def stamp(self, moment: float) -> datetime:
        """When it truly was."""
        return EPOCH + timedelta(seconds=moment)

    def dated(self, moment: float) -> datetime:
        """When a host with our clock believes it was: received minus age."""
        return datetime.fromtimestamp(self.clock.wall() - (self.now - moment), tz=UTC)

    def seat(self, node: NodeId) -> SimSeat:
        seat = self.seats.get(node)
        if seat is None:
            raise Gone(f"there is no node {node}")
        return seat

    def seats_of(self, cluster: str, pool: str | None = None) -> Iterator[SimSeat]:
        return (seat for seat in self.seats.values() if seat.cluster == cluster and pool in {None, seat.pool})

    # --- making machines
    def number(self) -> int:
        self._serial += 1
        return self._serial

    def machine(self) -> Incarnation:
        number = self.number()
        return Incarnation(uid=f"uid-{number:06d}", instance_id=f"i-{number:08x}", boot_id=self.boot())

    def boot(self) -> str:
        return f"boot-{self.number():08d}"

    def gpus(self, count: int) -> tuple[Device, ...]:
        return tuple(Device(index=index, serial=f"SN{self.number():09d}") for index in range(count))

    def add_cluster(self, rules: ClusterRules) -> None:
        if rules.id in self.clusters:
            raise BadInput(f"there is a cluster {rules.id!r} already; give the second another id")
        self.clusters[rules.id] = rules
        self.views[rules.id] = ClusterView(keep=rules.keep, retain=rules.retain)

    def add_seat(
        self, node: NodeId, *, pool: str, domain: str, gpus: int, linked: bool, agentless: bool = False
    ) -> SimSeat:
        cluster = node.split("/", 1)[0]
        if cluster not in self.clusters:
            raise BadInput(f"node {node!r}: there is no cluster {cluster!r}; add_cluster comes first")
        seat = SimSeat(
            id=node,
            cluster=cluster,
            pool=pool,
            domain=domain,
            incarnation=self.machine(),
            devices=self.gpus(gpus),
            linked=linked,
            agentless=agentless,
            ready_at=self.now,
        )
        self.seats[node] = seat
        return seat

    # --- what the cluster shows
    def show(self, seat: SimSeat) -> None:
        if seat.forgotten and seat.reachable:
            seat.forgotten = False
            seat.incarnation = seat.shown = replace(seat.incarnation, uid=f"uid-{self.number():06d}")
            self.chronicle.note("registered.anew", seat.id, seat.incarnation.uid)
        if seat.id in self.seats and not seat.forgotten:
            rules = self.clusters[seat.cluster]
            seen = seat.seen(self.now, rules.tells)
            self.views[seat.cluster].put(seen if rules.lists else replace(seen, devices=(), linked=None))

    def forget(self, seat: SimSeat) -> None:
        """The cluster has its object no more; the machine knows nothing of it."""
        seat.forgotten = True
        seat.cordons.clear()
        self.chronicle.note("deleted", seat.id, "its object")
        self.views[seat.cluster].put(NodeVanished(node=seat.id, as_of=self.now))

    def vanish(self, seat: SimSeat) -> None:
        del self.seats[seat.id]
        self.views[seat.cluster].put(NodeVanished(node=seat.id, as_of=self.now))
