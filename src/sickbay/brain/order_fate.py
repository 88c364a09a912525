"""The status of an order: done, under way, waiting or refused, read off the incident or job that carries it out."""

from dataclasses import dataclass

from sickbay.model.cordon import cordon_of
from sickbay.model.fleet import Node
from sickbay.model.incident import Incident, Phase, Verb, Wait, proven
from sickbay.model.job import Job, JobState
from sickbay.model.order import OrderRecord, OrderVerdict

BACK = frozenset({Phase.RELEASED, Phase.REPLACED})
BEFORE_EMPTY = frozenset({Phase.SUSPECT, Phase.WATCHED, Phase.QUARANTINED, Phase.DRAINING})
OUT_OF_SERVICE = frozenset({Verb.CORDON, Verb.DRAIN})
VOUCHES = frozenset({Verb.DISMISS, Verb.UNCORDON})


@dataclass(frozen=True, slots=True)
class OrderFate:
    verdict: OrderVerdict
    because: str
    wait: Wait | None = None  # until when, and what then


def fate(
    record: OrderRecord, incident: Incident | None, node: Node | None, job: Job | None, *, busy: bool
) -> OrderFate:
    """`busy`: whether work is on the node."""
    if record.verdict in {OrderVerdict.DONE, OrderVerdict.REFUSED}:
        return OrderFate(record.verdict, record.because)
    if job is not None:
        return _of_job(job)
    if incident is None or queued(record, incident):
        return OrderFate(record.verdict, record.because)
    done = _done(record, incident, node, busy=busy)
    if done:
        return OrderFate(OrderVerdict.DONE, done)
    if not incident.open:
        return OrderFate(OrderVerdict.REFUSED, f"{incident.id} ended {incident.phase} before it was done")
    last = incident.stages[-1].because if incident.stages else incident.fault.because
    if incident.phase is Phase.HELD and incident.closing is None and record.verb not in OUT_OF_SERVICE | VOUCHES:
        return OrderFate(OrderVerdict.REFUSED, f"{incident.id} is HELD: {last}")
    wait = incident.wait
    if wait is None:
        return OrderFate(OrderVerdict.UNDER_WAY, f"{incident.phase}: {last}")
    return OrderFate(_waits(incident, wait), f"{incident.phase}: {wait.because}", wait)


def settled(record: OrderRecord | None, incident: Incident | None, job: Job | None) -> bool:
    """Whether the engine has planned what follows from it."""
    if record is None:
        return False
    if record.verdict in {OrderVerdict.DONE, OrderVerdict.REFUSED}:
        return True
    if job is not None:
        return not job.open or job.save_by is not None or job.state is JobState.STOPPING
    if incident is None or any(order.id == record.id for order in incident.orders):
        return False
    return not incident.open or incident.wait is not None


def queued(record: OrderRecord, incident: Incident) -> bool:
    return any(order.id == record.id for order in (*incident.orders, *incident.later))


def _of_job(job: Job) -> OrderFate:
    if not job.open:
        return OrderFate(OrderVerdict.DONE, f"it is {job.state}")
    why = f": {job.wait.because}" if job.wait is not None else ""
    return OrderFate(OrderVerdict.UNDER_WAY, f"it is {job.state}{why}", job.wait)


def _waits(incident: Incident, wait: Wait) -> OrderVerdict:
    held_back = bool(wait.would) or wait.room is not None
    still = incident.closing is None and incident.phase in {Phase.SUSPECT, Phase.WATCHED, Phase.HELD}
    return OrderVerdict.WAITS if held_back or still else OrderVerdict.UNDER_WAY


def _done(record: OrderRecord, incident: Incident, node: Node | None, *, busy: bool) -> str:
    """What has been done, in words. Empty: it is not done."""
    cordoned = node is not None and cordon_of(incident.id) in node.cordons and incident.phase.out
    back = f"it returns when a person says so: sickbay uncordon {incident.node}"
    match record.verb:
        case Verb.CORDON if cordoned and incident.closing is None:
            runs = "what runs there goes on; " if busy else ""
            treated = incident.phase is not Phase.HELD and incident.remedy.disrupts
            first = f"its treatment goes on ({incident.phase}); " if treated else ""
            return f"new work is kept off; {first}{runs}{back}"
        case Verb.DRAIN if cordoned and not busy and incident.phase not in BEFORE_EMPTY and incident.closing is None:
            return f"nothing runs there; {back}"
        case Verb.DISMISS | Verb.UNCORDON if not incident.open:
            others = "; another cordon is still on it" if node is not None and node.others_cordon else ""
            return f"our cordon is gone, {incident.id} is {incident.phase}{others}"
        case Verb.HOLD if incident.phase is Phase.HELD:
            return "it is held until a person decides"
        case Verb.CONFIRM if incident.phase in BACK:
            return f"its check passed: {incident.id} is {incident.phase}"
        case Verb.RESET | Verb.REBOOT | Verb.REPLACE | Verb.ESCALATE if incident.phase in BACK:
            return f"{record.rung or record.verb} is done: {incident.id} is {incident.phase}"
        case Verb.RESET | Verb.REBOOT | Verb.REPLACE | Verb.ESCALATE if _repaired(record, incident):
            stays = incident.open and incident.phase is Phase.HELD
            return f"{record.rung} is done, and its check passed{f'; {back}' if stays else ''}"
        case _:
            return ""


def _repaired(record: OrderRecord, incident: Incident) -> bool:
    """Whether what he asked for, or more, was done and proven; the node may stay out for another reason."""
    made = [one.rung.rank for one in incident.tries[incident.spent :]]
    if incident.healed is not None:
        made.append(incident.healed.rank)
    over = incident.phase is Phase.HELD or not incident.open
    return record.rung is not None and over and proven(incident) and max(made, default=-1) >= record.rung.rank
