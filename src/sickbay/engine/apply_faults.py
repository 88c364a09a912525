"""Observations and verdicts: faults join an open incident or open one."""

from msgspec.structs import replace

from sickbay.brain.admit import brake_scopes, press
from sickbay.brain.correlate import KEEP_EVIDENCE, absorb, correlate, judge
from sickbay.brain.identity import NewsAge, age_of, ended_too
from sickbay.brain.storage import to_blame
from sickbay.engine import patrol
from sickbay.engine.checkups import answered
from sickbay.engine.early_agents import cut_short, keep_early
from sickbay.engine.errands import link_fault
from sickbay.engine.transitions import blames, due_now
from sickbay.engine.view import Draft
from sickbay.model.checkup import Verdict
from sickbay.model.clock import INGEST, Deadline
from sickbay.model.facts import AGENT_ANSWERED, Checked, Fact, Observed
from sickbay.model.fault import RUNGS, SILENCE, Fault, Proof, Remedy, signature
from sickbay.model.fleet import Brake, IncidentId, Node, NodeId
from sickbay.model.incident import Incident, IncidentKind, Phase, Proven, Stage
from sickbay.model.intent import Intent, OwnerKind, Verify, nodes_of
from sickbay.model.job import Job, JobState
from sickbay.model.rows import DUE_NOW, WaitMark, key_of
from sickbay.signs.classify import classify

ANNOUNCED = 120.0  # seconds that an announced end takes, where nothing else was said
GOING_DOWN = "node.going_down"
REMARKS = ("agent.", "probe.")  # what an agent says of itself: no fault of the node, and a person must read it
PAST = frozenset({NewsAge.ENDED, NewsAge.LAST_WORDS})
UNHEARD_OF = frozenset({NewsAge.SUCCESSOR, NewsAge.UNKNOWN_HOLDER})  # kept until their cluster has spoken of them
SAME_AGAIN = 5.0  # seconds within which a line that is known already is not written again


def observed(draft: Draft, fact: Fact, news: Observed) -> None:
    node = draft.node(news.node)
    if node is not None:
        node = _with_ended_boot(draft, node, news)
    age = age_of(node, news)
    for_now = news.kind in {GOING_DOWN, AGENT_ANSWERED}  # worth nothing later
    if age in UNHEARD_OF and news.incarnation is not None and not for_now:
        keep_early(draft, fact, cut_short(news), news.incarnation)
        return
    if node is None:
        return
    if news.unconfirmed:
        _unconfirmed(draft, node, news, ended=age in PAST)
        return
    if news.kind == GOING_DOWN:
        if age not in PAST and age is not NewsAge.UNKNOWN_HOLDER:
            _announced(draft, node, news)
        return
    if news.kind == AGENT_ANSWERED:
        draft.tell(f"its agent: {news.fields.get('result')}: {news.text}", key_of(node), event="agent")
        return
    found = classify(news, draft.rules.tables)
    if found is None:
        if news.kind.startswith(REMARKS):
            draft.tell(f"its agent: {news.text or news.kind}", key_of(node), event="agent")
        return
    if past := _past(draft, fact, node, age):
        draft.tell(f"{found.code} {past}: history only", key_of(node), event="stale")
        return
    raise_fault(draft, fact, node, found, own_check="check" in news.fields, count=news.count)
    _dated_by_boot(draft, news, age)


def _past(draft: Draft, fact: Fact, node: Node, age: NewsAge) -> str:
    """Why it is nothing that the node shows now; empty: it is news."""
    if age is NewsAge.ENDED or (age is NewsAge.LAST_WORDS and _treated(draft, node)):
        return "of an older boot or instance"
    if node.dismissed_at is not None and fact.at <= node.dismissed_at <= draft.now:
        # An operator vouched for it since; one in the future is that of a clock that has jumped.
        return "from before it was dismissed"
    if node.proven_at is not None and fact.at <= node.proven_at <= draft.now:
        # What an agent reads comes in order, so this is an old line that was read again: a log file tells no boot.
        return "from before the last check passed"
    return ""


def _unconfirmed(draft: Draft, node: Node, news: Observed, *, ended: bool) -> None:
    """Any program of the machine could have written it. Whoever looks for the cause is shown it; nothing is decided."""
    found = classify(news, draft.rules.tables)
    if found is None:
        return
    undated = f"; undated: {news.fields['undated']}" if news.fields.get("undated") else ""
    times = f" ({news.count} times)" if news.count > 1 else ""
    by = news.fields.get("said_by", "a text log")
    line = f"unconfirmed: {found.code}: {by} says {news.text!r}{times}, and no witness does{undated}"
    incident = draft.incident(node.incident) if node.incident else None
    if incident is None or ended:
        draft.tell(line, key_of(node), event="unconfirmed")
        return
    draft.tell(line, key_of(incident), key_of(node), event="unconfirmed")
    if line not in incident.evidence and len(incident.evidence) < KEEP_EVIDENCE:  # in the place of none that is proven
        draft.put(replace(incident, evidence=(*incident.evidence, line)))


def _with_ended_boot(draft: Draft, node: Node, news: Observed) -> Node:
    """The seat with a boot that its own agent calls ended: a late sign of life of it is not taken for a new one."""
    boots = node.ended_boots
    if (news.ended or news.last_words) and news.incarnation is not None:
        boots = ended_too(node, news.incarnation)
    if boots == node.ended_boots:
        return node
    after = replace(node, ended_boots=boots)
    draft.put(after)
    return after


def _announced(draft: Draft, node: Node, news: Observed) -> None:
    said = _seconds(news.fields.get("seconds", ANNOUNCED))
    most = draft.rules.policy.silence.announced_most.total_seconds()
    until = Deadline(clock=INGEST, at=draft.reading(INGEST) + min(said, most))
    draft.put(replace(node, going_down=until))
    draft.waits[key_of(node)] = WaitMark(until=until, urgency=4)
    over = f"; for longer than {most / 60:.0f} min, after which its silence counts" if said > most else ""
    draft.tell(f"going down: {news.text}{over}", key_of(node), event="going_down")


def _seconds(said: str | float) -> float:
    """A duration as an agent put it. What is none counts as none given."""
    try:
        seconds = float(said)
    except (ValueError, OverflowError):
        return ANNOUNCED
    return seconds if seconds >= 0 else ANNOUNCED  # neither is a NaN


def _treated(draft: Draft, node: Node) -> bool:
    """An incident that only watches (the silence between two boots, mostly) does not treat what the last words tell."""
    incident = draft.incident(node.incident) if node.incident else None
    return incident is not None and incident.remedy.disrupts


def _dated_by_boot(draft: Draft, news: Observed, age: NewsAge) -> None:
    """Last words: the boot ended with them, so a reboot has been done. Of a newer boot: nothing has healed it."""
    node = draft.node(news.node)
    incident = draft.incident(node.incident) if node is not None and node.incident else None
    if node is None or incident is None:
        return
    if age is NewsAge.LAST_WORDS:
        draft.put(replace(incident, healed=Remedy.REBOOT))
    elif age is NewsAge.NEWER and news.incarnation is not None:
        known = node.incarnation or news.incarnation
        draft.put(replace(incident, incarnation=known.told(news.incarnation), healed=None))


def raise_fault(
    draft: Draft, fact: Fact | None, node: Node, found: Fault, *, own_check: bool = False, count: int = 1
) -> None:
    """A fault of the node's present holder: correlate it, then let it join or open an incident.

    `fact` tells it; None: nobody does, time alone has brought it.
    """
    policy, reading = draft.rules.policy, draft.reading(INGEST)
    known = draft.incident(node.incident) if node.incident else None
    if known is not None and reading - known.seen_at < SAME_AGAIN and _says_nothing_new(known, found):
        return
    job = next((job.id for job in draft.holders(node, readable=True)), "")
    fault, recent = correlate(judge(found, node, policy), node, policy, reading, job, count)
    draft.count(f"fault/{fault.code}")
    if recent != node.recent and (fault.remedy is not Remedy.NONE or fault.follows):
        node = replace(node, recent=recent)
        draft.put(node)
    if known is not None:
        excused = own_check or _from_before_the_repair(draft, fact, known)
        _join(draft, known, fault, node, own_check=own_check, excused=excused)
        _link_ended(draft, fact, draft.incident(known.id) or known, fault)
        return
    if fault.follows and any(s.code == fault.follows for s in node.recent):
        return
    if fault.advice is not None and fault.advice.disrupts:
        fault = judge(replace(fault, remedy=fault.advice), node, policy)
    if fault.remedy is Remedy.NONE:
        return
    open_incident(draft, fact, node, fault, IncidentKind.FAULT)


def _says_nothing_new(incident: Incident, found: Fault) -> bool:
    line = f"{found.code}: {found.evidence or found.because}"
    busy = incident.phase in {Phase.REPAIRING, Phase.VERIFYING}
    return line in incident.evidence and not busy and found.advice is None and not incident.as_good_as_over


def _from_before_the_repair(draft: Draft, fact: Fact | None, incident: Incident) -> bool:
    """The boot that a repair is to end goes on talking until it ends; only the next one can say that it did not help.

    A second witness often comes later than the decision: NVML finds the GPU lost whose Xid has just led to a reboot.
    """
    ends_the_boot = incident.rung is not None and RUNGS[incident.rung].proof in {Proof.NEW_BOOT, Proof.NEW_INSTANCE}
    news = fact.news if fact is not None else None
    if incident.phase is not Phase.REPAIRING or not ends_the_boot or not isinstance(news, Observed):
        return False
    intent = draft.intent(incident.intent) if incident.intent else None
    return intent is not None and intent.expect is not None and intent.expect.agrees(news.incarnation)


def _join(draft: Draft, incident: Incident, fault: Fault, node: Node, *, own_check: bool, excused: bool) -> None:
    reading = draft.reading(INGEST)
    if incident.as_good_as_over and fault.remedy.disrupts and not fault.follows and not own_check:
        if incident.sequel is None:
            draft.tell(f"{fault.code} again while it closes", key_of(incident), key_of(node), event="joined")
        waits = incident.sequel
        worse = waits is None or fault.remedy.rank > waits.remedy.rank
        draft.put(replace(incident, sequel=fault if worse else incident.sequel, seen_at=reading))
        count_brakes(draft, replace(incident, fault=fault, remedy=fault.remedy), node)
        return
    after = absorb(incident, fault, node, draft.rules.policy, reading)
    if excused:  # and what our own check provokes belongs to its verdict
        after = replace(after, relapse=incident.relapse)
    if len(after.evidence) > len(incident.evidence):
        draft.tell(f"also {fault.code}: {fault.evidence or fault.because}", key_of(incident), key_of(node))
    draft.put(after)
    if not fault.follows and not own_check:  # whatever the node's incident is about, it shows this signature too
        count_brakes(draft, replace(after, fault=fault, remedy=fault.remedy), node)


def _unused(draft: Draft, node: Node, prefix: str) -> str:
    """An id for what no fact has led to. Two clusters may have a node of one name, and one node two within a second."""
    stem = f"{prefix}-{node.cluster}-{node.name}-{draft.reading(INGEST):.0f}"
    tries = (stem if n == 1 else f"{stem}-{n}" for n in range(1, 1000))
    return next(id_ for id_ in tries if draft.peek(Incident, f"incident:{id_}") is None)


def open_incident(
    draft: Draft, fact: Fact | None, node: Node, fault: Fault, kind: IncidentKind, *, now: bool = False, name: str = ""
) -> Incident:
    prefix = {IncidentKind.FAULT: "i", IncidentKind.INTAKE: "n", IncidentKind.OPERATOR: "o"}[kind]
    seq = fact.seq if fact is not None else 0
    ident = name or (f"{prefix}{seq}" if seq else _unused(draft, node, prefix))
    incident = Incident(
        id=IncidentId(ident),
        node=node.id,
        cluster=node.cluster,
        pool=node.pool,
        kind=kind,
        incarnation=node.incarnation,
        fault=fault,
        opened_at=fact.at if fact is not None else draft.now,
        evidence=(f"{fault.code}: {fault.evidence or fault.because}",),
        began=draft.reading(INGEST),
        seen_at=draft.reading(INGEST),
        shown_at=draft.reading(INGEST),
        remedy=fault.remedy,
        least=fault.remedy if kind is IncidentKind.OPERATOR else Remedy.NONE,
        needs_human=fault.needs_human,
        kept=fault.needs_human and kind is IncidentKind.OPERATOR,
        stages=(Stage(phase=Phase.SUSPECT, entered_at=draft.now, because=fault.because),),
        now=now,
    )
    if seq and not name:
        draft.create(incident)
    due_now(draft, incident)
    draft.put(replace(node, incident=incident.id))
    draft.tell(f"SUSPECT: {fault.code}: {fault.because}", key_of(incident), key_of(node), event="opened")
    if kind is IncidentKind.FAULT:
        count_brakes(draft, incident, node)
        _link_ended(draft, fact, incident, fault)
    return incident


def count_brakes(draft: Draft, incident: Incident, node: Node) -> None:
    """Counted before anything is admitted, so that the incident that trips a brake is held by it."""
    if not incident.remedy.disrupts:
        return
    reading = draft.reading(INGEST)
    for rule, scope in brake_scopes(incident, node, draft.rules.policy):
        key = f"brake:{scope}:{signature(incident.fault)}"
        brake = draft.read(Brake, key, watch=False) or Brake(scope=scope, signature=signature(incident.fault))
        size = draft.ledger(node.pool).size
        brake = still_silent(draft, brake, reading - rule.within.total_seconds(), reading)
        pressed = press(brake, rule, node.id, reading, draft.now, size)
        draft.put(pressed)
        draft.waits[key] = WaitMark(until=Deadline(clock=INGEST, at=reading + rule.within.total_seconds()), urgency=3)
        if pressed.tripped_at is not None and brake.tripped_at is None:
            draft.waits[key] = DUE_NOW  # a human is told
            draft.tell(f"brake on: {len(pressed.seen)} nodes show {brake.signature} in {scope}", key, event="brake")


def still_silent(draft: Draft, brake: Brake, before: float, reading: float) -> Brake:
    """Silence is a state, not an event: whoever was counted before then and is still lost shows it now."""
    if brake.signature != SILENCE or brake.tripped_at is None:
        return brake
    old = (node for node, at in brake.seen.items() if at < before)
    gone = [node for node in old if (row := draft.peek(Node, f"node:{node}")) is not None and row.lost]
    return replace(brake, seen={**brake.seen, **dict.fromkeys(gone, reading)}) if gone else brake


def _link_ended(draft: Draft, fact: Fact | None, incident: Incident, fault: Fault) -> None:
    if blames(fault.remedy):
        link_fault(draft, incident, fault, fact.at if fact is not None else draft.now)


def checked(draft: Draft, fact: Fact, news: Checked) -> None:
    """A verdict, and once all nodes of a gate have answered, what follows from their answers together."""
    _take_verdict(draft, fact, news)
    intent = draft.intent(news.check)
    if intent is None or intent.state.over:
        return
    for node, why in to_blame(intent).items():
        seat = draft.node(node)
        found = classify(Observed(node=node, kind="fs.missing", text=why), draft.rules.tables)
        if seat is not None and seat.incarnation is not None and found is not None:
            raise_fault(draft, fact, seat, found, own_check=True)


def _take_verdict(draft: Draft, fact: Fact, news: Checked) -> None:
    """Of one node: proof for the incident that asked, an answer for the gate, a fault for whoever did not ask."""
    node = draft.node(news.node)
    holder = node.incarnation if node is not None else None
    if node is None or holder is None or not news.incarnation.agrees(holder):
        return
    intent = draft.intent(news.check)
    if intent is not None and intent.expect is not None and not intent.expect.agrees(holder):
        return  # asked of a boot that has ended since
    answers = intent is not None and isinstance(intent.act, Verify) and not intent.state.over
    answers = answers and intent is not None and node.id in nodes_of(intent.act)  # one agent speaks for no other
    if intent is not None and answers and news.node not in intent.verdicts:
        draft.put(answered(intent, news))
    node = _seat_checked(draft, node, news, intent)
    incident = draft.incident(node.incident) if node.incident else None
    if incident is not None and intent is not None and incident.intent == news.check:
        if news.verdict is Verdict.PASS and answers:
            who = holder.told(news.incarnation)
            proof = Proven(check=news.check, incarnation=who, repairs=len(incident.tries), at=fact.at)
            draft.put(replace(incident, proof=proof))
        elif news.verdict is Verdict.FAIL and not incident.remedy.disrupts:
            _raise_by_verdict(draft, fact, node, news)
        elif news.verdict is Verdict.FAIL and incident.phase is Phase.SUSPECT:
            line = f"check.failed: {news.because}"
            draft.put(replace(incident, evidence=(*incident.evidence, line)[-KEEP_EVIDENCE:]))
            draft.tell(f"its check failed: {news.because}", key_of(incident), key_of(node), event="joined")
        return
    storage_only = intent is not None and isinstance(intent.act, Verify) and intent.act.level == 0
    if news.verdict is not Verdict.PASS and not storage_only:
        _raise_by_verdict(draft, fact, node, news)
    if news.verdict is Verdict.FAIL:
        _link_examined(draft, intent, node.id)


def _seat_checked(draft: Draft, node: Node, news: Checked, intent: Intent | None) -> Node:
    """The node after its verdict: free again if it was held for this check, and due for the next one later."""
    after = replace(node, checking="" if node.checking == news.check else node.checking)
    level = intent.act.level if intent is not None and isinstance(intent.act, Verify) else news.level
    if news.verdict is Verdict.PASS and level:  # level 0 exercises nothing
        after = patrol.passed(draft, after, level)
    if after != node:
        draft.put(after)
    return after


def _link_examined(draft: Draft, intent: Intent | None, node: NodeId) -> None:
    """What the check at a job's end has found is why the job was interrupted."""
    job = draft.read(Job, intent.owner) if intent is not None and intent.done_for is OwnerKind.JOB else None
    seat = draft.node(node)
    found = seat.incident if seat is not None else None
    last = job.interruptions[-1] if job is not None and job.interruptions else None
    if job is None or last is None or found is None or job.state is not JobState.DIAGNOSING or found in last.incidents:
        return
    linked = replace(last, incidents=(*last.incidents, found))
    draft.put(replace(job, interruptions=(*job.interruptions[:-1], linked)))


def _raise_by_verdict(draft: Draft, fact: Fact, node: Node, news: Checked) -> None:
    kind = "check.failed" if news.verdict is Verdict.FAIL else "check.could_not_run"
    found = classify(Observed(node=node.id, kind=kind, text=news.because), draft.rules.tables)
    if found is not None:
        raise_fault(draft, fact, node, found, own_check=True)
