"""Operators' commands. Each is audited in the story with who and why; what makes no sense changes nothing."""

from collections.abc import Iterator, Mapping
from datetime import timedelta

from msgspec.json import encode
from msgspec.structs import replace

from sickbay.brain.admit import released
from sickbay.brain.decision import OrderReply
from sickbay.brain.orders import NODE_VERBS, begun, wished
from sickbay.engine import checkups
from sickbay.engine.apply_faults import open_incident
from sickbay.engine.notices import post_test
from sickbay.engine.order_records import answer, done, goes_to, note, take_up
from sickbay.engine.view import Draft
from sickbay.model.clock import INGEST
from sickbay.model.facts import Fact, Ordered
from sickbay.model.fleet import Brake, IncidentId, JobId, NodeId, Withhold, Withholding
from sickbay.model.incident import ORDERS_MOST, Incident, IncidentKind, OperatorRequest, Verb, enqueue
from sickbay.model.job import Job
from sickbay.model.order import OrderVerdict
from sickbay.model.rows import AUDIT, WITHHOLDING, AuditEntry, key_of

KEEP_PAUSES = 20
WITHHELD = 200_000  # bytes of all exclusions: every admission reads them
RESET_AT_ONCE = 8  # brakes; each has its line in a unit that has room for few
INCIDENT_VERBS = ("confirm", "hold", "dismiss", "escalate")


def ordered(draft: Draft, fact: Fact, news: Ordered) -> None:
    ident = note(draft, fact, news).id
    match news.verb:
        case "stop":
            _stop(draft, ident, news)
        case "uncordon":
            _uncordon(draft, ident, news)
        case verb if verb in NODE_VERBS:
            _treat(draft, fact, ident, news)
        case verb if verb in INCIDENT_VERBS:
            _order(draft, ident, news, draft.incident(IncidentId(news.target)))
        case "pause" | "unpause" | "exclude" | "include":
            _withhold(draft, fact, ident, news)
        case "brake_reset":
            _reset_brake(draft, ident, news)
        case "inject" | "collect":  # carried out by the node's agent, which is asked by whoever took the order
            node = draft.node(NodeId(news.target))
            if node is not None:
                _audit(draft, news, key_of(node))
                done(draft, ident, "its agent is asked")
        case "notify_test":
            _audit(draft, news)
            text = f"a test by {news.by}: nothing is wrong"
            post_test(draft, text, news.args["channels"].split(","), key=f"test.{news.args['id']}")
            done(draft, ident, "it is on its way")
        case "check":
            checkups.ordered(draft, fact, news)
            done(draft, ident, "the check is begun")
        case _:
            _refuse(draft, ident, news, "there is no such order")


def entry_of(news: Ordered, refused: str = "") -> AuditEntry:
    verb = f"{news.verb} now" if news.now else news.verb
    reason = f"{news.reason} (refused: {refused})" if refused else news.reason
    return AuditEntry(by=news.by, verb=verb, target=news.target, reason=reason)


def _audit(draft: Draft, news: Ordered, *subjects: str) -> None:
    now = " now" if news.now else ""
    draft.tell(f"{news.by}: {news.verb}{now}: {news.reason}", *subjects, event="order", audit=entry_of(news))


def _stop(draft: Draft, ident: str, news: Ordered) -> None:
    job = draft.read(Job, f"job:{JobId(news.target)}")
    if job is not None and job.open:
        asked = f"stopped by {news.by}: {news.reason}"
        draft.put(replace(job, stop_asked=asked, stop_now=job.stop_now or news.now))
        _audit(draft, news, key_of(job))
        goes_to(draft, ident, job=job.id)
    else:
        _refuse(
            draft, ident, news, f"{news.target} is {job.state}" if job is not None else f"there is no job {news.target}"
        )


def _uncordon(draft: Draft, ident: str, news: Ordered) -> None:
    node = draft.node(NodeId(news.target))
    if node is not None and node.incarnation is None:  # a seat that nobody will fill is given up
        draft.drop(key_of(node))
        draft.waits[key_of(node)] = None
        _audit(draft, news, key_of(node))
        done(draft, ident, "the seat is given up")
    else:
        _order(draft, ident, news, draft.incident(node.incident) if node is not None and node.incident else None)


def _order(draft: Draft, ident: str, news: Ordered, incident: Incident | None) -> None:
    if incident is None:
        _refuse(
            draft,
            ident,
            news,
            f"there is nothing to {news.verb}: {news.target} has no incident",
        )
        return
    _audit(draft, news, key_of(incident))
    _queue(draft, ident, news, incident)


def _queue(draft: Draft, ident: str, news: Ordered, incident: Incident) -> None:
    goes_to(draft, ident, incident=incident.id)
    if not incident.open:
        _refuse(draft, ident, news, f"{incident.id} is over: it is {incident.phase}", key_of(incident))
    elif len(incident.orders) >= ORDERS_MOST:
        _refuse(draft, ident, news, f"{len(incident.orders)} orders wait already", key_of(incident))
    else:
        asked = OperatorRequest(verb=Verb(news.verb), by=news.by, reason=news.reason, now=news.now, id=ident)
        draft.put(enqueue(incident, asked))


def _refuse(draft: Draft, ident: str, news: Ordered, why: str, *subjects: str) -> None:
    said = OrderReply(OrderVerdict.REFUSED, why)
    answer(draft, ident, news.by, news.verb, said, *subjects, audit=entry_of(news, why))


def _treat(draft: Draft, fact: Fact, ident: str, news: Ordered) -> None:
    """Of a node that is being treated already it is one more order to its incident."""
    node = draft.node(NodeId(news.target))
    if node is None or node.incarnation is None:
        _refuse(draft, ident, news, f"no machine is known as {news.target}")
        return
    _audit(draft, news, key_of(node))
    incident = draft.incident(node.incident) if node.incident else None
    if incident is None:
        fault = wished(Verb(news.verb), news.by, news.reason)
        opened = open_incident(draft, fact, node, fault, IncidentKind.OPERATOR, now=news.now)
        goes_to(draft, ident, incident=opened.id)
        take_up(draft, ident, begun(Verb(news.verb)))
    else:
        _queue(draft, ident, news, incident)


def _withhold(draft: Draft, fact: Fact, ident: str, news: Ordered) -> None:
    before = draft.read(Withholding, WITHHOLDING) or Withholding()
    rows = before.rows
    if news.verb in {"unpause", "include"}:
        kept = tuple(r for r in rows if (r.id != news.target if news.target else not r.pauses))
        _audit(draft, news, WITHHOLDING)
        draft.put(_withholding(kept, before.orders))
        done(draft, ident, "the present state is judged afresh")
        return
    until = draft.now + timedelta(seconds=float(news.args["seconds"])) if "seconds" in news.args else None
    row = Withhold(
        id=f"{news.verb}-{fact.seq}",
        because=f"{news.verb} by {news.by}: {news.reason}",
        by=news.by,
        fault=news.args.get("fault", "*"),
        pool=news.args.get("pool", "*"),
        node=news.args.get("node", "*"),
        until=until,
        excuse=news.verb == "exclude",
    )
    alive = tuple(r for r in rows if r.until is None or r.until > draft.now)
    if news.verb == "pause":  # each withholds everything: of many, those that last longest are enough
        pauses = sorted((r for r in alive if r.pauses), key=lambda r: (r.until is None, r.until or fact.at))
        alive = tuple(r for r in alive if r not in pauses[:-KEEP_PAUSES])
    elif len(encode(alive)) > WITHHELD:
        why = f"{len(alive)} exclusions are in force and there is no room for more: remove some"
        _refuse(draft, ident, news, why, WITHHOLDING)
        return
    draft.put(_withholding((*alive, row), {**before.orders, row.id: fact.id}))
    _audit(draft, news, WITHHOLDING)
    done(draft, ident, f"{row.id} is in force")


def _withholding(rows: tuple[Withhold, ...], orders: Mapping[str, str]) -> Withholding:
    return Withholding(rows=rows, orders={row.id: orders[row.id] for row in rows if row.id in orders})


def _brakes(draft: Draft) -> Iterator[Brake]:
    after = ""
    while page := draft.keys("brake", after=after):
        able = [key for key in page if draft.readable(key)]  # one that is damaged keeps nobody from resetting others
        yield from (brake for key in able if (brake := draft.peek(Brake, key)) is not None)
        after = page[-1]


def _reset_brake(draft: Draft, ident: str, news: Ordered) -> None:
    """One brake by its name; all of a signature, since a storm trips its pool's and its cluster's; or all."""
    on = [brake for brake in _brakes(draft) if brake.tripped_at is not None]
    wanted = [b for b in on if news.target in {"", b.signature, key_of(b).removeprefix("brake:")}]
    for brake in wanted[:RESET_AT_ONCE]:
        draft.put(released(brake, draft.reading(INGEST)))
        _audit(draft, news, key_of(brake))
    if wanted:
        done(draft, ident, "it is off; a check confirms or clears each suspect")
    if len(wanted) > RESET_AT_ONCE:
        text = f"{len(wanted) - RESET_AT_ONCE} more brakes are on: reset them again"
        draft.tell(text, AUDIT, event="refused")
    if not wanted:
        what = f"no brake {news.target!r} is on" if news.target else "no brake is on"
        _refuse(draft, ident, news, what)
