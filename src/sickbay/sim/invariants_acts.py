"""Each act that happened, judged by what was true and by what the engine could have known when it sent it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sickbay.brain.admit import brake_scopes, fits, limit_for, next_opening
from sickbay.brain.correlate import rule_for
from sickbay.engine.view import moment
from sickbay.model.cordon import cordon_of, incident_of, others_of
from sickbay.model.fault import signature
from sickbay.model.fleet import Incarnation, Ledger, Node, NodeId, WithheldActs, pool_of
from sickbay.model.incident import Incident, IncidentKind, Phase
from sickbay.model.policy import Mode
from sickbay.sim.chronicle import TrueEvent, Wrong
from sickbay.sim.hardware import MachinePower, SimSeat
from sickbay.sim.witness import Witness

if TYPE_CHECKING:
    from sickbay.sim.simulation import Simulation

REPAIRS = frozenset({"reset_gpu", "reboot", "replace"})
INCARNATES = frozenset({"reboot", "replace", "up", "joined", "registered.anew"})
BARES = frozenset({"deleted", "cordons.lost", "registered.anew"})
UNCORDONS = frozenset({"uncordon", "operator.uncordon", "deleted", "cordons.lost", "registered.anew"})
FIELDS = ("uid", "instance_id", "boot_id")
NEVER = -1e9  # before any moment of a run


class Acts:
    """Keeps of the past what the next act is judged by; returns what is wrong."""

    def __init__(self, sim: "Simulation", witness: Witness) -> None:
        self._sim = sim
        self._witness = witness
        self._ours: dict[NodeId, str] = {}  # seats that we cordoned while they were in service, by incident
        self._proof: dict[NodeId, tuple[Incarnation, float]] = {}  # who passed a check, and when
        self._repaired: dict[NodeId, tuple[float, int, str]] = {}  # when, under which turn, for which incident
        self._vouched: dict[str, float] = {}  # nodes and incidents that a person answers for
        self._freed: dict[NodeId, float] = {}  # when others last took their cordons away
        self._holders: dict[NodeId, list[Incarnation]] = {}
        self._at: dict[tuple[NodeId, str], int] = {}  # how far a row has come in the seat's true history
        self._first: dict[NodeId, str] = {}  # instances that were there when we connected
        self._bared: dict[NodeId, float] = {}  # when its cordons went with its object
        self._jumped = NEVER

    # --- what happened
    def happened(self, event: TrueEvent) -> list[Wrong]:
        node = NodeId(event.subject)
        if not self._holders:
            self._begin()
        if event.what in INCARNATES:
            self._remember(node)
        if event.what in UNCORDONS:
            self._ours.pop(node, None)
        if event.what in BARES:
            self._bared[node] = event.at
            self._first.pop(node, None)  # whoever comes back has been away
        match event.what:
            case "cordon":
                return [*self._cordoned(node, event), *self._withheld("quarantine", node, event)]
            case "drain":
                return self._withheld("drain", node, event)
            case "uncordon":
                return self._released(node, event.detail)
            case "operator.uncordon":
                self._vouched[node] = self._freed[node] = event.at
            case "operator.cordon":
                self._vouched[node] = event.at  # our cordon may have become his
            case "check.pass":
                seat = self._sim.world.seats.get(node)
                if seat is not None:
                    self._proof[node] = (seat.incarnation, event.at)
            case what if what in REPAIRS and not event.detail.startswith("operator"):
                return self._repairs(node, event)
            case _:
                pass
        return []

    def _begin(self) -> None:
        for node, seat in self._sim.world.seats.items():
            self._remember(node)
            if seat.ready:
                self._first[node] = seat.incarnation.instance_id

    def ordered(self, verb: str, target: str) -> None:
        if verb in {"dismiss", "uncordon", "release"}:
            self._vouched[target] = self._sim.scheduler.now

    def clock_jumped(self) -> None:
        self._jumped = self._sim.scheduler.now

    # --- cordons
    def _cordoned(self, node: NodeId, event: TrueEvent) -> list[Wrong]:
        """No act of ours takes a pool over its limit. Newcomers are not part of it yet."""
        seat = self._sim.world.seats.get(node)
        incident = incident_of(event.detail)
        if seat is None or incident is None:
            return []
        if incident in self._witness.newcomers:
            return self._newcomer(node, seat)
        known = self._known(incident, event.at)
        others = bool(others_of(seat.cordons))
        if others or not seat.ready:
            return []  # it was out of service before we touched it
        self._ours[node] = incident
        sent = self._sent(incident, event.at)
        if self._witness.kept_by_a_person(incident, sent):
            return []  # he may take out what he wants; of ours as many may be out besides as the limit says at least
        if max(seat.ready_at, self._freed.get(node, -1.0), seat.pooled_at) > known:
            return []  # it came into service, or into this pool, after we had read about it
        size, limit = self._ledger(seat).size, limit_for(self.pool(seat), self._sim.policy)
        most = limit.out(limit.size or size)
        seats = self._sim.world.seats
        here = [n for n in self._ours if n in seats and _together(seats[n], seat) and seats[n].pooled_at <= known]
        # A seat that we took out may have become a person's since, and his ours: judged as of the sending.
        mine = [n for n in here if not self._witness.kept_by_a_person(self._ours[n], sent)]
        if len(mine) > most:
            text = f"{len(mine)} seats of {self.pool(seat)} are out by our hand, {most} are allowed: {mine}"
            return [Wrong("out_limit", text)]
        return []

    def _sent(self, incident: str, at: float) -> float:
        """When the incident's last act was sent."""
        mine = [s.at for s in self._witness.sent.values() if s.incident is not None and s.incident.id == incident]
        return mine[-1] if mine else at

    def _newcomer(self, node: NodeId, seat: SimSeat) -> list[Wrong]:
        if self._sim.plan.trusted and self._first.get(node) == seat.incarnation.instance_id:
            return [Wrong("first_connection", f"{node} was there when we connected, and was taken out to be taken in")]
        return []

    def _known(self, incident: str, at: float) -> float:
        """Up to when the engine had read the cluster when it sent the incident's last act."""
        mine = [s.known for s in self._witness.sent.values() if s.incident is not None and s.incident.id == incident]
        return mine[-1] if mine else at

    # --- repairs
    def _repairs(self, node: NodeId, event: TrueEvent) -> list[Wrong]:
        seat = self._sim.world.seats.get(node)
        sent = self._witness.sent.get(event.detail)
        incident = sent.incident.id if sent is not None and sent.incident is not None else ""
        if seat is not None:
            self._repaired[node] = (event.at, seat.turn, incident)  # under way until the seat has another turn
        wrong = self._withheld("repair", node, event)
        if seat is None or sent is None:
            return wrong
        size, limit = self._ledger(seat).size, limit_for(self.pool(seat), self._sim.policy)
        most = limit.repairing(limit.size or size)
        under_way = [n for n in self._under_repair() if n == node or self._same_pool(n, seat, sent.known)]
        if len(under_way) > most:
            text = f"{len(under_way)} repairs in {self.pool(seat)}, {most} are allowed: {under_way}"
            wrong.append(Wrong("repair_limit", text))
        return wrong

    def _under_repair(self) -> Iterator[NodeId]:
        for node, (_, turn, incident) in list(self._repaired.items()):
            row = self._witness.rows.get(f"incident:{incident}")
            phase = row.phase if isinstance(row, Incident) else None
            seat = self._sim.world.seats.get(node)
            busy = seat is not None and seat.turn == turn and (seat.power is MachinePower.BOOTING or seat.resetting)
            if phase is Phase.REPAIRING or (busy and phase is not None and not phase.terminal):
                yield node

    def _same_pool(self, node: NodeId, seat: SimSeat, known: float) -> bool:
        other = self._sim.world.seats.get(node)
        return other is not None and _together(other, seat) and max(other.pooled_at, seat.pooled_at) <= known

    # --- what is withheld
    def _withheld(self, act: str, node: NodeId, event: TrueEvent) -> list[Wrong]:
        """Nothing that is withheld is carried out, but for what was on its way when the engine learned of it."""
        key = event.detail if act == "repair" else self._key_of(act, node)
        sent = self._witness.sent.get(key)
        if sent is None or sent.incident is None:
            return []
        incident = self._witness.rows.get(f"incident:{sent.incident.id}")
        row = self._witness.rows.get(f"node:{node}")
        if not isinstance(incident, Incident) or not isinstance(row, Node):
            return []
        grace = 2 * self._sim.mischief.call_timeout + 10.0  # a lease: a worker may stand still before it calls
        return [
            Wrong(
                "withheld",
                f"{act} of {node} for {incident.id}, sent at {sent.at:.1f}, withheld since {since:.1f}: {why}",
            )
            for since, why in self._reasons(act, incident, row, event.at)
            if since < event.at - grace and since <= sent.at
        ]

    def _key_of(self, act: str, node: NodeId) -> str:
        for key, sent in reversed(self._witness.sent.items()):
            told = type(sent.intent.act).__struct_config__.tag
            if told == act and getattr(sent.intent.act, "node", None) == node:
                return key
        return ""

    def _reasons(self, act: str, incident: Incident, node: Node, at: float) -> Iterator[tuple[float, str]]:
        """Since when, and why."""
        policy, now = self._sim.policy, moment(self._sim.clock.wall())
        steady = at - self._jumped > 120.0  # else nobody can say which wall time the engine went by
        fault = incident.kind is IncidentKind.FAULT and not incident.ordered  # a person's order passes both
        if fault and rule_for(incident.fault, node, policy).mode is not Mode.ACT:
            yield NEVER, f"the policy does not act on {incident.fault.code}"
        for since, row in self._witness.withheld.values():
            alive = row.until is None or (steady and now < row.until)
            if alive and fits(row, incident, node) and (row.acts is WithheldActs.ALL or act == "repair"):
                yield since, row.because
        bound = act == "repair" and steady and not incident.now
        if bound and next_opening(policy.windows, node.pool, now) is not None:
            yield NEVER, "the window is closed"
        if fault:
            for _, scope in brake_scopes(incident, node, policy):
                since_on = self._witness.tripped.get(f"{scope}:{signature(incident.fault)}")
                if since_on is not None:
                    yield since_on, f"the brake for {signature(incident.fault)} is on"

    # --- release
    def _released(self, node: NodeId, owner: str) -> list[Wrong]:
        """No release but with a check that the present incarnation passed after its last repair, or a person's word."""
        incident = self._witness.rows.get(f"incident:{incident_of(owner)}")
        if not isinstance(incident, Incident):
            return []
        if incident.closing is Phase.DISMISSED or incident.phase is Phase.DISMISSED:
            return self.dismissed(incident)
        seat = self._sim.world.seats[node]
        who, at = self._proof.get(node, (None, -1.0))
        if who is None or at < self._repaired.get(node, (-1.0, 0, ""))[0]:
            return [Wrong("release", f"{node} was released without proof newer than its repair")]
        # A boot that failed never ran: whoever is down is still known by the boot before.
        down = seat.power is MachinePower.DOWN and who.same_holder(seat.incarnation)
        if who.boot_id != seat.incarnation.boot_id and not down:
            return [Wrong("release", f"{node} was released on the proof of another incarnation")]
        return []

    def dismissed(self, incident: Incident) -> list[Wrong]:
        """A node that is out by our hand is let go without proof only if a person answers for it."""
        since = self._opened(incident)
        if max(self._vouched.get(incident.node, NEVER), self._vouched.get(incident.id, NEVER)) >= since:
            return []
        tells = self._sim.world.ground.clusters[incident.cluster].tells
        if len(tells) < len(FIELDS) and self._bared.get(incident.node, NEVER) >= since:
            return []  # its object was made anew, and its cluster does not tell enough for anybody to see that
        taken = self._sim.world.chronicle.of("cordon", incident.node)
        if not incident.ordered and all(event.detail != cordon_of(incident.id) for event in taken):
            return []  # our cordon was never taken: it has been in service all the time
        return [Wrong("dismissal", f"{incident.id} on {incident.node} was dismissed, and no person had asked for it")]

    def _opened(self, incident: Incident) -> float:
        """An order may be given before the report that opens it is learned."""
        return self._witness.opened.get(incident.id, 0.0) - 120.0

    # --- who holds a seat
    def _remember(self, node: NodeId) -> None:
        seat = self._sim.world.seats.get(node)
        held = self._holders.setdefault(node, [])
        if seat is not None and (not held or held[-1] != seat.incarnation):
            held.append(seat.incarnation)

    def held_by(self, row: Node) -> list[Wrong]:
        """A row never says of a seat what was never true of it, and never goes back to what was true earlier."""
        self._remember(row.id)
        held = self._holders[row.id]
        for name in FIELDS:
            value = getattr(row.incarnation, name, "")
            if not value:
                continue
            came = max((n for n, who in enumerate(held) if getattr(who, name) == value), default=None)
            if came is None:
                return [Wrong("incarnation", f"{row.id} is said to be held by {name} {value}, which never held it")]
            if came < self._at.get((row.id, name), 0):
                return [Wrong("incarnation", f"{row.id} is said to be held by {name} {value} again")]
            # The first place counts: a value may come again with the next holder.
            self._at[row.id, name] = next(n for n, who in enumerate(held) if getattr(who, name) == value)
        return []

    # --- pools
    def pool(self, seat: SimSeat) -> str:
        return pool_of(seat.cluster, seat.pool)

    def _ledger(self, seat: SimSeat) -> Ledger:
        key = f"ledger:{self.pool(seat)}"
        row = self._sim.store.load([key])[key].row
        return row if isinstance(row, Ledger) else Ledger(pool=self.pool(seat))


def _together(one: SimSeat, other: SimSeat) -> bool:
    return (one.cluster, one.pool) == (other.cluster, other.pool)
