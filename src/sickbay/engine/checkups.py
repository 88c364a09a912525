"""Checks of idle nodes, on request: which nodes, one slice after the other, and what came of them.

All nodes of a request are checked at once, but written down slice by slice: a unit has room for few rows, and a fleet
has many. Whoever is checked is held from being claimed by its own row, until its verdict is in or its check is over.
"""

from collections.abc import Sequence
from datetime import timedelta

from msgspec.json import encode
from msgspec.structs import replace

from sickbay.brain.gate import CHECKS_TAKE
from sickbay.brain.idle_checks import why_not_idle
from sickbay.brain.job_input import listing
from sickbay.brain.storage import add_to_tally, verdict_of
from sickbay.engine.notices import post
from sickbay.engine.view import Draft
from sickbay.model.checkup import CheckFinding, Checkup, Verdict, checkup_id
from sickbay.model.clock import INGEST
from sickbay.model.facts import Checked, Fact, Ordered
from sickbay.model.fleet import Node, NodeId, pool_word
from sickbay.model.incident import Incident
from sickbay.model.intent import Intent, Notify, Verify, nodes_of
from sickbay.model.rows import AUDIT, DUE_NOW, AuditEntry, WaitMark, key_of

SLICE = 12  # nodes of one intent: each may bring its incident along and moves its tag, and a unit has 100 actions
CONSIDERED = 500  # nodes in one unit, most of them not asked for or not idle
NAMED = 200  # skipped or failed nodes that a row names
DETAILED = SLICE  # nodes of a check whose findings are kept with their reasons
TESTS, FIGURES, WORDS = 24, 12, 200  # of one finding
FINDINGS = 200_000  # bytes of all findings of one check: a row has room for them and for what goes with them
LEVELS = ("1", "2", "3", "4")


# --- the order


def ordered(draft: Draft, fact: Fact, news: Ordered) -> None:
    """An operator's check of one node, of a pool, or of all. What it skips and why is in its row and its story."""
    level = news.args.get("level", "2")
    pools = _pools(draft, news)
    checkup = Checkup(
        id=checkup_id(fact.id),
        level=int(level) if level in LEVELS else 0,
        by=news.by,
        reason=news.reason,
        asked_at=fact.at,
        target=NodeId(news.target) if news.target else None,
        pools=pools,
    )
    if draft.read(Checkup, key_of(checkup), watch=False) is not None:
        return
    wrong = "" if level in LEVELS else f"a check has level 1 to 4, not {level!r}"
    if not news.target and not pools:
        pool = news.args.get("pool")
        wrong = wrong or (f"no pool {pool!r} is known" if pool else "name a node, a pool, or all of them")
    what = f"check {checkup.id} at level {level} of {_scope(news)}"
    if wrong:
        draft.put(replace(checkup, listed=True, closed_at=draft.now))
        audit = _entry(news, level, f" (refused: {wrong})")
        draft.tell(f"{news.by}: {what}: refused: {wrong}", key_of(checkup), event="refused", audit=audit)
        return
    draft.put(checkup)
    draft.waits[key_of(checkup)] = DUE_NOW
    subjects = [f"node:{news.target}"] if news.target else []
    audit = _entry(news, level)
    draft.tell(f"{news.by}: {what}: {news.reason}", key_of(checkup), *subjects, event="order", audit=audit)


def _entry(news: Ordered, level: object, more: str = "") -> AuditEntry:
    return AuditEntry(by=news.by, verb=f"check level {level}", target=_scope(news), reason=f"{news.reason}{more}")


def _scope(news: Ordered) -> str:
    pool = news.args.get("pool")
    return news.target or (f"the pool {pool}" if pool else "all idle nodes")


def _pools(draft: Draft, news: Ordered) -> tuple[str, ...]:
    if news.target:
        return ()
    known = [key.removeprefix("ledger:") for key in draft.keys("ledger")]
    wanted = news.args.get("pool")
    if wanted:
        return tuple(pool for pool in known if wanted in {pool, pool_word(pool)})
    return tuple(known) if news.args.get("all") == "1" else ()


# --- which nodes


def plan_checkup(draft: Draft, subject: str) -> None:
    """Consider some more nodes, and begin the check of those that are idle."""
    checkup = draft.read(Checkup, subject)
    draft.waits[subject] = None
    if checkup is None or not checkup.open:
        return
    if not checkup.listed:
        checkup = _consider_target(draft, checkup) if checkup.target else _consider_some(draft, checkup)
    if not checkup.listed:
        draft.waits[subject] = DUE_NOW
    draft.put(_closed_if_done(draft, checkup))


def _consider_target(draft: Draft, checkup: Checkup) -> Checkup:
    target = checkup.target or NodeId("")
    node = draft.node(target)
    busy = why_not(draft, node)
    checkup = replace(checkup, listed=True)
    if node is None or busy:
        draft.tell(
            f"check {checkup.id} of {target}: refused: {busy}",
            key_of(checkup),
            f"node:{target}",
            AUDIT,
            event="refused",
        )
        return _skipped(checkup, {target: busy})
    return begin(draft, checkup, [node])


def _consider_some(draft: Draft, checkup: Checkup) -> Checkup:
    """The next slice of one pool and one cluster, and whom it skips on the way."""
    pool = checkup.pools[0]
    draft.ledger(pool)  # claims come with its version: who is idle now is idle when this is committed
    keys = draft.keys("node", after=checkup.after, limit=CONSIDERED)
    chosen: list[Node] = []
    skipped: dict[NodeId, str] = {}
    last = checkup.after
    for key in keys:
        node = draft.peek(Node, key)
        if node is not None and node.pool == pool:
            why = why_not(draft, node)
            if not why and (len(chosen) == SLICE or (chosen and chosen[0].cluster != node.cluster)):
                break
            if why:
                skipped[node.id] = why
            else:
                chosen.append(node)
        last = key
    checkup = _skipped(replace(checkup, after=last), skipped)
    if not keys or (len(keys) < CONSIDERED and last == keys[-1]):
        rest = checkup.pools[1:]
        checkup = replace(checkup, pools=rest, after="", listed=not rest)
    if skipped:
        named = [f"{node} ({why})" for node, why in skipped.items()]
        text = f"check {checkup.id} skips {listing(named)}"
        draft.tell(text, key_of(checkup), AUDIT, event="skipped")
    return begin(draft, checkup, chosen) if chosen else checkup


def _skipped(checkup: Checkup, skipped: dict[NodeId, str]) -> Checkup:
    named = {**checkup.skipped, **skipped}
    kept = dict(list(named.items())[:NAMED])
    return replace(checkup, skipped=kept, more_skipped=checkup.more_skipped + len(named) - len(kept))


def why_not(draft: Draft, node: Node | None) -> str:
    """Why this node cannot be checked now; empty: it is idle."""
    if node is None:
        return "no such node"
    incident = draft.peek(Incident, f"incident:{node.incident}") if node.incident else None
    return why_not_idle(node, incident, draft.holders(node), draft.can(node.cluster))


def begin(draft: Draft, checkup: Checkup, nodes: Sequence[Node], patience: timedelta | None = None) -> Checkup:
    """Write one check down and hold its nodes with it."""
    key = f"{checkup.id}.{checkup.slices}"
    patience = patience or CHECKS_TAKE[checkup.level]
    names = tuple(node.id for node in nodes)
    intent = Intent(
        key=key,
        owner=key_of(checkup),
        cluster=nodes[0].cluster,
        pool=nodes[0].pool,
        act=Verify(nodes=names, level=checkup.level),
        because=f"{checkup.by}: {checkup.reason}",
        planned_at=draft.now,
        clock=INGEST,
        call_timeout=min(draft.rules.policy.pace.call_timeout, patience).total_seconds(),
        patience=patience.total_seconds(),
        expect=nodes[0].incarnation if len(nodes) == 1 else None,
        digest=draft.rules.digest,
    )
    draft.put(intent)
    draft.waits[f"intent:{key}"] = WaitMark(on={f"intent:{key}": 0}, urgency=6)
    for node in nodes:
        draft.put(replace(node, checking=key))
    text = f"check {key} at level {checkup.level}, asked for by {checkup.by}: {listing(names)}"
    draft.tell(text, key_of(checkup), *(f"node:{name}" for name in names), event="check")
    return replace(checkup, slices=checkup.slices + 1, nodes=checkup.nodes + len(nodes))


# --- verdicts


def answered(intent: Intent, news: Checked) -> Intent:
    """A check with one more verdict, and with its reasons where there is room for them."""
    verdict, because = news.verdict, news.because
    if isinstance(intent.act, Verify) and intent.act.storage and verdict is Verdict.PASS:
        verdict, because = verdict_of(news.storage, intent.act.storage)
        intent = add_to_tally(intent, news.node, news.storage, because)
    intent = replace(intent, verdicts={**intent.verdicts, news.node: verdict})
    if not isinstance(intent.act, Verify) or len(intent.act.nodes) > DETAILED:
        return intent
    tests = tuple(
        replace(test, because=test.because[:WORDS], figures=dict(list(test.figures.items())[:FIGURES]))
        for test in news.tests[:TESTS]
    )
    finding = CheckFinding(verdict=verdict, because=because[: 2 * WORDS], tests=tests)
    found = {**intent.found, news.node: finding}
    if len(encode(found)) > FINDINGS:
        found[news.node] = replace(finding, tests=())
    return replace(intent, found=found)


def free(draft: Draft, intent: Intent) -> None:
    """Nodes that a check has kept from being claimed, once it is over."""
    for name in nodes_of(intent.act):
        node = draft.peek(Node, f"node:{name}")
        if node is not None and node.checking == intent.key:
            draft.put(replace(node, checking=""))


def ended(draft: Draft, intent: Intent) -> None:
    """One check of a checkup is over, whatever the reason: its nodes are free, and the checkup counts it, once."""
    checkup = draft.read(Checkup, intent.owner, watch=False)
    if checkup is None or not isinstance(intent.act, Verify):
        return
    number = checkup.intents.index(key_of(intent))
    if number in checkup.ended:
        return
    nodes = intent.act.nodes
    free(draft, intent)
    silent = {name: _silence(intent) for name in nodes if name not in intent.verdicts}
    if silent:
        draft.put(replace(intent, found={**intent.found, **silent}))
    failed = [name for name in nodes if intent.verdicts.get(name) is Verdict.FAIL]
    passed = [name for name in nodes if intent.verdicts.get(name) is Verdict.PASS]
    unrun = [name for name in nodes if name not in failed and name not in passed]
    checkup = replace(
        checkup,
        ended=(*checkup.ended, number),
        passed=checkup.passed + len(passed),
        failed=(*checkup.failed, *failed)[:NAMED],
        unrun=(*checkup.unrun, *unrun)[:NAMED],
    )
    draft.put(_closed_if_done(draft, checkup))


def _silence(intent: Intent) -> CheckFinding:
    return CheckFinding(verdict=Verdict.COULD_NOT_RUN, because=intent.answer or "no answer in time")


def _closed_if_done(draft: Draft, checkup: Checkup) -> Checkup:
    if not checkup.listed or len(checkup.ended) < checkup.slices:
        return checkup
    bad = []
    if checkup.failed:
        bad.append(f"{listing(checkup.failed)} failed")
    if checkup.unrun:
        bad.append(f"{listing(checkup.unrun)} could not be checked")
    text = f"check {checkup.id} at level {checkup.level}: {checkup.passed} of {checkup.nodes} passed"
    text = "; ".join([text, *bad])
    draft.tell(text, key_of(checkup), event="checked")
    if bad:
        event = "check_failed" if checkup.failed else "check_could_not_run"
        notice = Notify(event=event, subject=key_of(checkup), text=text)
        post(draft, notice, key=f"{checkup.id}.tell", cluster="", pool="")
    return replace(checkup, closed_at=draft.now)
