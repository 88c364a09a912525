"""Diagnostics of a running controller (`sickbay doctor`): agents, clusters, clocks, tokens, and what withholds acts.

Read from rows, and from what the replica that is asked has heard itself.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta

from sickbay.engine.oddities import Oddity
from sickbay.hosts.backend import Backend
from sickbay.model.clock import WatchedClock
from sickbay.model.facts import EarlyAgent
from sickbay.model.finding import Finding, missing, ok, warning
from sickbay.model.fleet import AgentState, Brake, Node, Role, Token, Withholding
from sickbay.model.notice import NoticeChannel
from sickbay.model.protocol import PROTO
from sickbay.model.rows import WITHHOLDING, AnyRow

NAMED = 3  # nodes that a line names; of more it has the number
EXPIRES_SOON = timedelta(days=14)
BEHIND = timedelta(seconds=10)
UNREAD = 5  # periods of a cluster without a read that succeeded


def fleet_findings(backend: Backend, *, leads: bool | None, trouble: str, admin: bool) -> Iterator[Finding]:
    """`admin`: also what only those who give out tokens may see."""
    nodes = [row for row in _rows(backend, "node") if isinstance(row, Node)]
    tokens = [row for row in _rows(backend, "token") if isinstance(row, Token)]
    yield from _controller(backend, leads=leads, trouble=trouble)
    for cluster in sorted(backend.clusters):
        yield from _cluster(backend, cluster)
        yield from _agents(cluster, [node for node in nodes if node.cluster == cluster], tokens)
    yield from _left_out(backend, nodes)
    yield from _strangers([row for row in _rows(backend, "voice") if isinstance(row, EarlyAgent)])
    yield from _oddities(backend.oddities())
    if admin:
        yield from _tokens(backend, tokens)
    yield from _withheld(backend)
    yield from _channels([row for row in _rows(backend, "channel") if isinstance(row, NoticeChannel)])


def _rows(backend: Backend, kind: str) -> Iterator[AnyRow]:
    after = ""
    while page := backend.store.keys(kind, after=after):
        yield from (found.row for found in backend.store.load(page).values() if found.row is not None)
        after = page[-1]


def _controller(backend: Backend, *, leads: bool | None, trouble: str) -> Iterator[Finding]:
    yield ok("controller", "this one leads" if leads else "stands by: another one leads, or is about to")
    if trouble:
        yield missing("controller", f"is in trouble: {trouble}", "its log says more (controller.log in its state)")
    if (lag := backend.lag()) > BEHIND:
        yield missing(
            "controller", f"what was told {lag.total_seconds():.0f} s ago has not been read by any engine",
            "see that a controller leads, and that its disk is quick enough",
        )  # fmt: skip


def _cluster(backend: Backend, cluster: str) -> Iterator[Finding]:
    key = f"clock:{cluster}"
    clock = backend.store.load([key])[key].row
    if not isinstance(clock, WatchedClock) or clock.last is None:
        yield missing(f"cluster {cluster}", "has never been read", "look at the controller's trouble, and at its log")
        return
    ago = backend.now().timestamp() - clock.last
    if ago > max(UNREAD * clock.period, BEHIND.total_seconds()) + clock.took:
        yield missing(
            f"cluster {cluster}", f"was last read {ago:.0f} s ago: nothing there goes on", "see that it can be reached"
        )
    else:
        yield ok(f"cluster {cluster}", "is read")


def _left_out(backend: Backend, nodes: Sequence[Node]) -> Iterator[Finding]:
    """Clusters that are known from before and that this controller's file does not name."""
    for cluster in sorted({node.cluster for node in nodes if node.incarnation is not None} - set(backend.clusters)):
        count = sum(node.cluster == cluster for node in nodes)
        yield missing(
            f"cluster {cluster}",
            f"is not in the controller's file: nobody looks after its {count} nodes, nor after jobs there",
            "add it to 'clusters' again, and restart the controller",
        )  # fmt: skip


def _agents(cluster: str, nodes: Sequence[Node], tokens: Iterable[Token]) -> Iterator[Finding]:
    subject = f"agents of {cluster}"
    held = [node for node in nodes if node.incarnation is not None]
    never = [node for node in held if node.agent is AgentState.NONE and not node.agent_known]
    silent = [node for node in held if node.unheard]
    if never:
        join = any(token.role is Role.JOIN and token.cluster == cluster for token in tokens)
        first = "" if join else f"make a join token: sickbay token create NAME --role join --cluster {cluster}; then "
        yield missing(
            subject, f"{_some(never, len(held))} no agent was ever heard: it can be neither watched nor proven well",
            f"{first}install the agent there, and ask it: sickbay doctor --agent",
        )  # fmt: skip
    if silent:
        yield missing(
            subject, f"{_some(silent, len(held))} the agent is silent", "systemctl status sickbay-agent says why"
        )
    if held and not never and not silent:
        yield ok(subject, f"all {len(held)} are heard")
    if not held:
        yield warning(f"cluster {cluster}", "shows no nodes", "look at 'select' in the controller's file")


def _some(nodes: Sequence[Node], of: int) -> str:
    names = ", ".join(node.name for node in nodes[:NAMED])
    return f"on {len(nodes)} of {of} nodes ({names}{' …' if len(nodes) > NAMED else ''})"


def _strangers(voices: Sequence[EarlyAgent]) -> Iterator[Finding]:
    for voice in voices[:NAMED]:
        who = voice.incarnation.instance_id or "a machine that does not name itself"
        yield warning(
            f"node {voice.node}", f"its agent is heard, from {who}, but its cluster knows no such machine",
            "correct 'node' or 'instance_id' in that agent's settings (docs/runbooks/agent_unknown.md)",
        )  # fmt: skip
    if len(voices) > NAMED:
        yield warning("agents", f"{len(voices) - NAMED} more are heard for machines that no cluster knows")


def _oddities(found: Sequence[Oddity]) -> Iterator[Finding]:
    old = [one for one in found if one.proto != PROTO]
    skewed = [one for one in found if one.proto == PROTO]
    for one in old[:NAMED]:
        yield missing(
            f"node {one.node}", f"its agent speaks protocol {one.proto}, and here {PROTO} is spoken",
            "update the older one of the two; the controller first",
        )  # fmt: skip
    for one in sorted(skewed, key=lambda one: -abs(one.ahead))[:NAMED]:
        way = "ahead of" if one.ahead > 0 else "behind"
        yield warning(
            f"node {one.node}", f"its clock is {abs(one.ahead):.0f} s {way} the controller's",
            "set it (chronyc makestep): its logs are dated by it",
        )  # fmt: skip
    if not old and not skewed:
        yield ok(
            "agents", f"all that are heard here speak protocol {PROTO}, and their clocks agree with the controller's"
        )


def _tokens(backend: Backend, tokens: Sequence[Token]) -> Iterator[Finding]:
    now = backend.now()
    for token in sorted(tokens, key=lambda token: token.name):
        if token.expires_at is None or token.instance_id or now - token.expires_at > EXPIRES_SOON:
            continue
        left = token.expires_at - now
        what = f"join token of {token.cluster}" if token.role is Role.JOIN else token.role
        if left <= timedelta(0):
            yield warning(f"token {token.name}", f"({what}) has expired", "make another, or revoke it")
        elif left < EXPIRES_SOON:
            when = f"{token.expires_at:%Y-%m-%d %H:%M}"
            yield warning(f"token {token.name}", f"({what}) expires at {when} UTC", "make another in time")
    joins = [token for token in tokens if token.role is Role.JOIN and not token.over(now)]
    if joins:
        yield ok("join tokens", ", ".join(f"{token.name} (of {token.cluster})" for token in joins[: 2 * NAMED]))


def _withheld(backend: Backend) -> Iterator[Finding]:
    row = backend.store.load([WITHHOLDING])[WITHHOLDING].row
    now = backend.now()
    for one in row.rows if isinstance(row, Withholding) else ():
        if one.until is None or one.until > now:
            until = f"until {one.until:%Y-%m-%d %H:%M} UTC" if one.until is not None else "for ever"
            undo = "sickbay unpause" if one.pauses else f"sickbay exclude remove {one.id}"
            yield warning(one.id, f"is in force {until}: {one.because}", undo)
    for brake in _rows(backend, "brake"):
        if isinstance(brake, Brake) and brake.tripped_at is not None:
            yield warning(
                f"brake {brake.scope}:{brake.signature}", f"is on since {brake.tripped_at:%Y-%m-%d %H:%M} UTC: nothing "
                "with this fault is repaired there", "sickbay brake list (docs/runbooks/brake.md)",
            )  # fmt: skip


def _channels(channels: Iterable[NoticeChannel]) -> Iterator[Finding]:
    for channel in channels:
        if channel.failing:
            yield missing(
                f"notifier {channel.name}", f"takes nothing: {channel.failing}", "sickbay notify test tries it again"
            )
