"""Notices: what people were told, through which channel, what came of it; and a test of channels."""

from sickbay.faces.api import requests
from sickbay.faces.api.refusal import ApiRefusal
from sickbay.faces.api.route import ApiRequest, Route
from sickbay.faces.archive import iso
from sickbay.faces.fleet_answers import Notice, NoticeOutcome
from sickbay.knowledge.yaml_places import unknown
from sickbay.model.intent import Intent, IntentState, Notify

FAILED = {NoticeOutcome.REFUSED, NoticeOutcome.GIVEN_UP}
EXAMPLE = {
    "key": "i12.tell.held:310.oncall", "at": "2026-01-01T00:10:00.000Z", "event": "held", "severity": "critical",
    "subject": "incident:i12", "node": "lab/train-0000", "job": "", "incident": "i12", "pool": "lab/train",
    "text": "lab/train-0000 is held: replace failed", "to": "oncall", "state": "SEEN", "outcome": "delivered",
    "tries": 1, "answer": "200 OK", "settled_at": "2026-01-01T00:10:01.000Z",
}  # fmt: skip


def notices(ask: ApiRequest, query: requests.WhichNotices) -> list[Notice]:
    if query.key:
        rows = ask.backend.store.load([f"intent:{query.key}"]).values()
        intents = [v.row for v in rows if isinstance(v.row, Intent)]
    else:
        intents = ask.all_of(Intent, "intent")
    found = [(intent.planned_at, intent.key, notice_of(intent, act)) for intent, act in _notices(intents)]
    wanted = [one for one in found if _fits(one[2], query.which)]
    return [notice for _, _, notice in sorted(wanted, key=lambda one: one[:2], reverse=True)[: query.limit]]


def _notices(intents: list[Intent]) -> list[tuple[Intent, Notify]]:
    return [(intent, intent.act) for intent in intents if isinstance(intent.act, Notify)]


def _fits(notice: Notice, which: str | None) -> bool:
    if which == "open":
        return notice.outcome is NoticeOutcome.OPEN
    return which != "failed" or notice.outcome in FAILED


def notice_of(intent: Intent, act: Notify) -> Notice:
    return Notice(
        key=intent.key,
        at=iso(intent.planned_at),
        event=act.event,
        severity=act.severity,
        subject=act.subject,
        node=act.node,
        job=act.job,
        incident=act.incident,
        pool=act.pool,
        text=act.text,
        to=act.to,
        state=intent.state,
        outcome=outcome_of(intent),
        tries=intent.sends,
        answer=intent.answer,
        settled_at=iso(act.settled_at) if act.settled_at is not None else None,
    )


def outcome_of(intent: Intent) -> NoticeOutcome:
    if intent.withheld:
        return NoticeOutcome.LEFT_OUT
    over = {
        IntentState.SEEN: NoticeOutcome.DELIVERED,
        IntentState.REJECTED: NoticeOutcome.REFUSED,
        IntentState.EXPIRED: NoticeOutcome.GIVEN_UP,
    }
    return over.get(intent.state, NoticeOutcome.OPEN)


def test(ask: ApiRequest, body: requests.ChannelsToTry) -> list[Notice]:
    """They go the way of every notice; whoever asks looks at their keys until each is settled."""
    there = ask.backend.notifiers
    wanted = tuple(dict.fromkeys(body.channels)) or there
    for name in wanted:
        if name not in there:
            raise ApiRefusal(404, unknown("notifier", name, there))
    reason = f"a test of {', '.join(wanted)}"
    ask.order("notify_test", "", reason, args={"id": ask.key, "channels": ",".join(wanted)})
    rows = ask.backend.store.load([f"intent:test.{ask.key}.{name}" for name in wanted]).values()
    intents = [v.row for v in rows if isinstance(v.row, Intent)]
    return [notice_of(intent, act) for intent, act in _notices(intents)]


ROUTES = (
    Route(
        "GET", "/v1/notices", notices, "What people were told, newest first; those under way, or that failed",
        query_example={"limit": "20"}, answer_example=[EXAMPLE],
    ),
    Route(
        "POST", "/v1/notices/test", test, "Send a marked test through channels; empty: through all of them",
        role="operator", ask_example={"channels": ["log"]},
        answer_example=[
            {
                **EXAMPLE, "key": "test.9d1c.log", "event": "notify_test", "severity": "info", "subject": "channel:log",
                "node": "", "incident": "", "pool": "", "text": "a test by ann: nothing is wrong", "to": "log",
                "answer": "",
            }
        ],
    ),
)  # fmt: skip
