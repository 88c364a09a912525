"""An operator's command: what was asked becomes a fact, and the answer waits until the engine knows of it."""

from sickbay.faces.api.refusal import ApiRefusal
from sickbay.faces.api.requests import reasoned
from sickbay.faces.api.route import ApiRequest
from sickbay.model.facts import Ordered
from sickbay.model.fleet import Cursor
from sickbay.model.rows import CURSOR

MOST = 500  # unread facts that are looked through: an engine that is further behind has not read this one


def order(
    ask: ApiRequest, verb: str, target: str, reason: str, *, now: bool = False, args: dict[str, str] | None = None
) -> str:
    """The order's id. Raises Refused(503) if it is stored, but the engine is away: it will be done all the same."""
    news = Ordered(verb=verb, target=target, by=ask.by, reason=reasoned(reason), now=now, args=args or {})
    ident = ask.desk.order(news, key=ask.key)
    row = ask.desk.store.load([CURSOR])[CURSOR].row
    unread = ask.desk.store.facts(after=row.at if isinstance(row, Cursor) else 0, limit=MOST)
    if len(unread) == MOST or any(fact.id == ident for fact in unread):
        raise ApiRefusal(503, f"{verb} is noted, but the engine has not taken it up yet: it will as soon as it is back")
    return ident
