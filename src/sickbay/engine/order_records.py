"""Records of orders: written down when a person's command is learned, and again when it is taken up or turned down."""

from msgspec.structs import replace

from sickbay.brain.decision import OrderReply
from sickbay.engine.view import Draft
from sickbay.model.facts import Fact, Ordered
from sickbay.model.fleet import IncidentId, JobId
from sickbay.model.order import OrderRecord, OrderVerdict, order_id
from sickbay.model.rows import AUDIT, AuditEntry

WORDS = {
    OrderVerdict.DONE: "done",
    OrderVerdict.UNDER_WAY: "taken up",
    OrderVerdict.WAITS: "waits",
    OrderVerdict.REFUSED: "not possible",
}


def note(draft: Draft, fact: Fact, news: Ordered) -> OrderRecord:
    """What was asked for, before anybody has looked at it."""
    record = OrderRecord(
        id=order_id(fact.id),
        verb=news.verb,
        target=news.target,
        by=news.by,
        reason=news.reason,
        at=fact.at,
        now=news.now,
        because="it is about to be planned",
    )
    draft.put(record)
    return record


def goes_to(draft: Draft, ident: str, *, incident: IncidentId | None = None, job: JobId | None = None) -> None:
    """Whose it is now."""
    record = _record(draft, ident)
    if record is not None:
        draft.put(replace(record, incident=incident or record.incident, job=job or record.job))


def answer(
    draft: Draft, ident: str, by: str, verb: str, said: OrderReply, *subjects: str, audit: AuditEntry | None = None
) -> None:
    """Tell whoever ordered it, in the audit log and in the order's own record. `audit`: where that has no entry yet."""
    text = f"{by}: {verb}: {WORDS[said.verdict]}: {said.because}"
    if audit is None:
        draft.tell(text, *subjects, AUDIT, event="answer")
    else:
        draft.tell(text, *subjects, event="answer", audit=audit)
    take_up(draft, ident, said)


def take_up(draft: Draft, ident: str, said: OrderReply) -> None:
    """What is said of it at once, in its own record: the audit log has the order already."""
    record = _record(draft, ident)
    if record is not None:
        draft.put(replace(record, verdict=said.verdict, because=said.because, rung=said.rung or record.rung))


def done(draft: Draft, ident: str, because: str) -> None:
    """Done as soon as it is written down."""
    take_up(draft, ident, OrderReply(OrderVerdict.DONE, because))


def refuse(draft: Draft, ident: str, by: str, verb: str, why: str, *subjects: str) -> None:
    answer(draft, ident, by, verb, OrderReply(OrderVerdict.REFUSED, why), *subjects)


def _record(draft: Draft, ident: str) -> OrderRecord | None:
    """None: nobody has ordered it, or it was stored before orders had records."""
    return draft.read(OrderRecord, f"order:{ident}", watch=False) if ident else None
