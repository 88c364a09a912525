"""What must hold after every step, asserted on what happened, not on the journal."""

from typing import TYPE_CHECKING

from sickbay.brain.admit import limit_for
from sickbay.engine.plan import plan
from sickbay.engine.view import Draft, View, moment
from sickbay.model.clock import INGEST, WatchedClock
from sickbay.model.fleet import Capability, Ledger, Node, NodeId, pool_of
from sickbay.model.incident import Incident, Phase
from sickbay.model.intent import Intent
from sickbay.model.job import Job
from sickbay.model.rows import BACKING_OFF, TO_SEND
from sickbay.sim.chronicle import Event, Violation

if TYPE_CHECKING:
    from sickbay.sim.simulation import Simulation


class Broken(AssertionError):  # noqa: N818 - the report says it in this word
    """An invariant does not hold."""


class Invariants:
    """Reads the chronicle as it grows; costs what happened, not the fleet's size."""

    def __init__(self, sim: "Simulation") -> None:
        self._sim = sim
        self._read = 0
        self._violations = 0
        self._ours: dict[NodeId, str] = {}  # seats that we cordoned while they were in service, by incident
        self._proof: dict[NodeId, tuple[str, float]] = {}  # incarnation that passed a check, and when
        self._repaired: dict[NodeId, float] = {}
        self._size: dict[str, int] = {}

    def check(self) -> None:
        chronicle = self._sim.world.chronicle
        while self._violations < len(chronicle.violations):
            violation = chronicle.violations[self._violations]
            self._violations += 1
            if not self._crossed(violation):
                raise self._broken(str(violation))
        while self._read < len(chronicle.events):
            event = chronicle.events[self._read]
            self._read += 1
            self._happened(event)

    def _crossed(self, violation: Violation) -> bool:
        """A start and a cordon that were on their way at the same time: nobody could have known."""
        if violation.kind != "start_on_cordoned":
            return False
        cordons = self._sim.world.chronicle.of("cordon", violation.subject)
        return bool(cordons) and violation.at - cordons[-1].at <= self._sim.mischief.call_timeout

    def _broken(self, what: str) -> Broken:
        return Broken(f"{what} (seed {self._sim.seed}, t={self._sim.scheduler.now:.1f})")

    def _happened(self, event: Event) -> None:
        node = NodeId(event.subject)
        match event.what:
            case "cordon":
                self._cordoned(node, event.detail)
            case "uncordon":
                self._ours.pop(node, None)
                self._released(node, event.detail)
            case "operator.uncordon" | "deleted":
                self._ours.pop(node, None)
            case "check.pass":
                seat = self._sim.world.seats.get(node)
                if seat is not None:
                    self._proof[node] = (seat.incarnation.boot_id, event.at)
            case "reset_gpu" | "reboot" | "replace":
                self._repaired[node] = event.at
            case _:
                pass

    def _cordoned(self, node: NodeId, owner: str) -> None:
        """No act of ours takes a pool over its limit. Newcomers are not part of it yet."""
        seat = self._sim.world.seats.get(node)
        incident = owner.removeprefix("sickbay:")
        if seat is None or not owner.startswith("sickbay:") or incident.startswith("n"):
            return
        others = any(not o.startswith("sickbay:") for o in seat.cordons)
        believed = self._node(node)
        if others or not seat.ready or (believed is not None and (believed.lost or believed.others_cordon)):
            return  # it was out of service before we touched it
        self._ours[node] = incident
        pool = pool_of(seat.cluster, seat.pool)
        size = max(self._size.get(pool, 0), self._ledger(pool).size)
        limit = limit_for(pool, self._sim.policy)
        most = limit.out(limit.size or size)
        seats = (self._sim.world.seats.get(n) for n in self._ours)
        mine = [s.id for s in seats if s is not None and (s.cluster, s.pool) == (seat.cluster, seat.pool)]
        if len(mine) > most:
            raise self._broken(f"{len(mine)} seats of {pool} are out by our hand, {most} are allowed: {mine}")

    def _released(self, node: NodeId, owner: str) -> None:
        """No release without proof newer than the repair, from the present incarnation."""
        incident = self._incident(owner.removeprefix("sickbay:"))
        if incident is None or incident.closing is Phase.DISMISSED or incident.phase is Phase.DISMISSED:
            return  # an operator's own proof
        boot, at = self._proof.get(node, ("", -1.0))
        seat = self._sim.world.seats[node]
        if at < self._repaired.get(node, -1.0) or not boot:
            raise self._broken(f"{node} was released without proof newer than its repair")
        if boot != seat.incarnation.boot_id and incident.proof is not None:
            rebooted_since = incident.proof.incarnation.boot_id == boot
            if not rebooted_since:
                raise self._broken(f"{node} was released on the proof of another incarnation")

    # --- at rest
    def at_rest(self) -> None:
        """What must hold when nothing is due: reasons, deadlines, the ledger, and the incremental law."""
        self.check()
        self._reasons()
        self._books()
        self.incremental_law()

    def _reasons(self) -> None:
        if self._planned():
            return  # something is about to be sent
        for incident in self._sim.incidents(intake=True):
            if incident.open and (incident.wait is None or incident.wait.until is None):
                raise self._broken(f"{incident.id} in {incident.phase} waits for nothing: {incident.wait}")
        for job in self._sim.jobs():
            if job.open and job.wait is None:
                raise self._broken(f"{job.id} in {job.state} waits for nothing")

    def _books(self) -> None:
        """Ledgers say what the rows say; no device is claimed twice."""
        rows = [r for r in self._sim._all("node") if isinstance(r, Node)]  # noqa: SLF001 - the frame's own
        for pool in {row.pool for row in rows}:
            mine = [row for row in rows if row.pool == pool]
            ledger = self._ledger(pool)
            mending = [i for i in self._sim.incidents(intake=True) if i.phase is Phase.REPAIRING and i.pool == pool]
            sums = [sum(getattr(r, what) for r in mine) for what in ("counted", "out", "ours", "held")]
            counts = (*sums, len(mending))
            if counts != (ledger.seats, ledger.out, ledger.ours, ledger.held, ledger.repairing):
                raise self._broken(f"the ledger of {pool} says {ledger}, the rows say {counts}")
        self._checks(rows)
        claimed: dict[tuple[str, int], str] = {}
        for job in self._sim.jobs():
            for node, devices in job.claim.items() if job.open else ():
                for device in devices or range(self._sim.plan.gpus):
                    if claimed.setdefault((node, device), job.id) != job.id:
                        raise self._broken(f"{node} device {device} is claimed twice")

    def _checks(self, rows: list[Node]) -> None:
        """Whoever is held by a check is held by one that runs, and by nobody else."""
        held = {row.id: row.checking for row in rows if row.checking}
        intents = self._sim.store.load(f"intent:{key}" for key in held.values())
        for node, key in held.items():
            intent = intents[f"intent:{key}"].row
            if not isinstance(intent, Intent) or intent.state.over:
                raise self._broken(f"{node} is held by {key}, which is over")
        # What others place is claimed as it is, wherever that may be.
        ours = [job for job in self._sim.jobs() if job.open and not job.adopted]
        claims = {node: job.id for job in ours for node in job.claim}
        places = Capability.PLACE in self._sim.plan.cluster.capabilities
        for node in held.keys() & claims.keys() if places else ():
            raise self._broken(f"{node} is checked by {held[node]} while {claims[node]} has it")

    def incremental_law(self) -> None:
        """Forgetting what is dirty and planning the whole fleet yields no intent that was not taken or scheduled."""
        store = self._sim.store
        sources = (INGEST, *self._sim.hands.sites)
        loaded = store.load(f"clock:{source}" for source in sources).values()
        clocks = {v.row.source: v.row for v in loaded if isinstance(v.row, WatchedClock)}
        readings = {source: clock.reading for source, clock in clocks.items()}
        if store.due(readings, 1) or self._planned():
            return  # it has not come to rest
        now = moment(self._sim.clock.wall())
        open_things: list[Incident | Job] = [i for i in self._sim.incidents(intake=True) if i.open]
        open_things += [j for j in self._sim.jobs() if j.open]
        for thing in open_things:
            kind = "incident" if isinstance(thing, Incident) else "job"
            draft = Draft(View(store), self._sim.rules, clocks, now)
            plan(draft, f"{kind}:{thing.id}")
            fresh = [k for k, row in draft.writes.items() if isinstance(row, Intent) and draft.expect.get(k) == 0]
            if fresh:
                raise self._broken(f"the whole fleet's plan has {fresh}, which nothing had woken")

    def _planned(self) -> bool:
        """Whether something is about to be sent, now or after a pause."""
        return any(self._sim.store.tags(prefix) for prefix in (TO_SEND, BACKING_OFF))

    def _ledger(self, pool: str) -> Ledger:
        row = self._sim.store.load([f"ledger:{pool}"])[f"ledger:{pool}"].row
        return row if isinstance(row, Ledger) else Ledger(pool=pool)

    def _node(self, node: NodeId) -> Node | None:
        row = self._sim.store.load([f"node:{node}"])[f"node:{node}"].row
        return row if isinstance(row, Node) else None

    def _incident(self, incident: str) -> Incident | None:
        row = self._sim.store.load([f"incident:{incident}"])[f"incident:{incident}"].row
        return row if isinstance(row, Incident) else None
