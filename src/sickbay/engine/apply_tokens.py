"""Credentials as facts: tokens come and go, agents get theirs by joining, controllers are started; each is audited."""

from datetime import timedelta

from msgspec.structs import replace

from sickbay.brain.joining import SILENT_BY, JoinAnswer, JoinInput, JoinVerdict, judge_join
from sickbay.engine.notices import post
from sickbay.engine.view import Draft
from sickbay.model.facts import (
    ControllerStarted,
    EarlyAgent,
    Fact,
    JoinRefused,
    TokenIssued,
    TokenRevoked,
    TokensUsed,
)
from sickbay.model.fleet import Node, Token, cluster_of
from sickbay.model.intent import Notify
from sickbay.model.rows import IN_FORCE, AuditEntry, key_of

AdminNews = TokenIssued | JoinRefused | TokenRevoked | TokensUsed | ControllerStarted


def administered(draft: Draft, fact: Fact, news: AdminNews) -> None:
    """Tokens come and go as facts: any replica can ask for one, and the story says who did; so do controllers."""
    match news:
        case TokenIssued():
            _issue(draft, fact, news)
        case JoinRefused():
            _tell_refused(draft, fact, news)
        case TokenRevoked():
            _revoke(draft, fact, news)
        case TokensUsed():
            for digest in news.hashes:
                row = draft.read(Token, f"token:{digest}", watch=False)
                if row is not None and (row.used_at is None or row.used_at < fact.at):
                    draft.put(replace(row, used_at=fact.at))
        case ControllerStarted():
            _started(draft, news)


def _issue(draft: Draft, fact: Fact, news: TokenIssued) -> None:
    named = _tokens_named(draft, news.name)
    others = [row for row in named if row.hash != news.hash]
    audit = AuditEntry(by=news.by, verb="token create", target=news.name, reason=news.reason)
    if news.instance_id and news.node is not None:
        audit = AuditEntry(by=news.by, verb="join", target=news.node, reason=news.reason)
        answer = _judged(draft, fact, news, named)
        if answer.verdict is not JoinVerdict.GRANTED:  # since it was asked for: of two at once the second one
            draft.tell(f"{news.by}: join: not possible: {answer.because}", event="refused", audit=audit)
            return
    if others and not news.anew:
        draft.tell(f"{news.by}: token {news.name!r}: not possible: there is one", event="refused", audit=audit)
        return
    for row in others:
        draft.drop(key_of(row))
    until = None if news.seconds is None else fact.at + timedelta(seconds=news.seconds)
    draft.put(
        Token(
            hash=news.hash, name=news.name, role=news.role, by=news.by, issued_at=fact.at, node=news.node,
            cluster=news.cluster, instance_id=news.instance_id, expires_at=until,
        )
    )  # fmt: skip
    what = f"{news.node} has joined, from {news.instance_id}" if news.instance_id else ""
    draft.tell(f"{news.by}: {what or f'token {news.name!r} for the role {news.role}'}", event="order", audit=audit)


def _judged(draft: Draft, fact: Fact, news: TokenIssued, named: list[Token]) -> JoinAnswer:
    """Whether the name may be given out, as things stand now: who asked read rows that may have changed."""
    assert news.node is not None
    return judge_join(
        JoinInput(
            node=news.node,
            instance_id=news.instance_id,
            now=fact.at,
            seat=draft.read(Node, f"node:{news.node}", watch=False),
            voice=draft.read(EarlyAgent, f"voice:{news.node}", watch=False),
            tokens=named,
        )
    )


def _tell_refused(draft: Draft, fact: Fact, news: JoinRefused) -> None:
    text = f"{news.node}: {news.instance_id} asks to join under this name, with join token {news.by!r}: {news.because}"
    notice = Notify(event="join_refused", subject=f"node:{news.node}", text=text)
    post(draft, notice, key=fact.id.replace("/", "."), cluster=cluster_of(news.node), pool="")
    audit = AuditEntry(by=news.by, verb="join", target=news.node, reason=f"refused: {news.because}")
    draft.tell(text, f"node:{news.node}", event="refused", audit=audit)


def _revoke(draft: Draft, fact: Fact, news: TokenRevoked) -> None:
    mine = _tokens_named(draft, news.name)
    audit = AuditEntry(by=news.by, verb="token revoke", target=news.name, reason=news.reason)
    if any(row.governs for row in mine) and not _governed_without(draft, news.name):
        text = f"{news.by}: token {news.name!r}: not revoked: it is the last admin's"
        draft.tell(text, event="refused", audit=audit)
        return
    for row in mine:
        if row.instance_id and not row.over(fact.at - SILENT_BY):
            # That it was revoked is why its agent may join anew while it is still heard.
            draft.put(replace(row, expires_at=min(fact.at, row.expires_at or fact.at)))
        else:
            draft.drop(key_of(row))
        draft.tell(f"{news.by}: token {news.name!r} revoked", event="order", audit=audit)


def _tokens_named(draft: Draft, name: str) -> list[Token]:
    """With those of this very unit: the index does not know them yet."""
    found = {key_of(row): row for row in draft.find(Token, f"token:{name}")}
    ours = {key: row for key, row in draft.writes.items() if isinstance(row, Token) and row.name == name}
    return list({**found, **ours}.values())


def _governed_without(draft: Draft, name: str) -> bool:
    """Whether somebody else's token lets its owner give out others, for good."""
    ours = (row for row in draft.writes.values() if isinstance(row, Token))
    if any(row.governs and row.name != name for row in ours):
        return True
    after = ""
    while page := draft.keys("token", after=after):
        rows = (draft.peek(Token, key) for key in page if draft.readable(key))
        if any(row is not None and row.governs and row.name != name for row in rows):
            return True
        after = page[-1]
    return False


def _started(draft: Draft, news: ControllerStarted) -> None:
    source = f" from {news.source}" if news.source not in {"", news.name} else ""
    text = f"{news.by}: started a controller with policy {news.name}{source} ({news.policy})"
    audit = AuditEntry(by=news.by, verb="start", target=news.name, reason=f"policy {news.policy}{source}")
    draft.tell(text, IN_FORCE, event="started", audit=audit)
