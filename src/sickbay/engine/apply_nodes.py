"""What clusters and pulses say of nodes: incarnations, readiness, cordons, newcomers, silence."""

from msgspec.structs import replace

from sickbay.brain.drift import drift
from sickbay.brain.identity import (
    MOST_DEVICES,
    Standing,
    back_again,
    boots_of,
    devices_found,
    devices_of_another,
    devices_with,
    held_by,
    standing_of,
    with_holder,
)
from sickbay.brain.seat import returned, silence_of
from sickbay.engine import patrol
from sickbay.engine.apply_faults import observed, open_incident, raise_fault
from sickbay.engine.early_agents import hear_early, keep_early
from sickbay.engine.errands import end_ranks
from sickbay.engine.lost_store import adopt_cordon
from sickbay.engine.transitions import hear_again, step_incident, subjects_of
from sickbay.engine.view import Draft
from sickbay.model.clock import Deadline
from sickbay.model.cordon import cordon_of
from sickbay.model.facts import (
    AgentHeard,
    AgentSilent,
    Booted,
    EarlyAgent,
    Fact,
    Inventory,
    NodeSeen,
    NodeVanished,
    Observed,
)
from sickbay.model.fault import Remedy
from sickbay.model.fleet import (
    MANY_SILENCES,
    AgentState,
    FormerSeat,
    Incarnation,
    IncidentId,
    KnownMachine,
    Node,
    NodeId,
    pool_of,
)
from sickbay.model.incident import Incident, IncidentKind, OperatorRequest, Phase, Verb, enqueue
from sickbay.model.intent import Verify
from sickbay.model.policy import Trigger
from sickbay.model.rows import AUDIT, WaitMark, key_of
from sickbay.signs.classify import classify

NAMED_WITHIN = 1800.0  # seconds: an agent that starts with its machine has spoken by then


def seen(draft: Draft, fact: Fact, news: NodeSeen) -> None:
    known = draft.node(news.node)
    if known is not None and news.as_of < known.as_of:
        return
    if known is None:
        _newcomer(draft, fact, news)
        _adopt(draft, fact, news)
        return
    standing = standing_of(known, news.incarnation, by_agent=False)
    before = devices_of_another(known.devices) if standing is Standing.SUCCEEDED else known.devices
    after = replace(
        known,
        pool=pool_of(news.cluster, news.pool),
        domain=news.domain,
        devices=devices_with(before, news.devices),
        linked=known.linked if news.linked is None else news.linked,
        ready=news.ready,
        cordons=tuple(sorted(news.cordons)),
        unmanaged=news.unmanaged,
        as_of=news.as_of,
    )
    anew = True
    if known.incarnation is None:
        after = replace(after, vacant_until=None, counted=True)  # the pool is as large again as it was
        anew = _booted_since(_take_former(draft, known.id), news.incarnation)  # its boots are in the row, too
        draft.waits[key_of(after)] = None
    after = _hold_seat(draft, fact, after, news.incarnation, standing, anew=anew)
    unconfirmed = after.unconfirmed and not (news.ready and standing is Standing.PRESENT)
    after = replace(after, registered=news.incarnation, unconfirmed=unconfirmed)
    if after.pool != known.pool:
        _moved(draft, known, after)
    voice = _voice(draft, after)
    after = returned(known, _heard_as(after, voice))
    if after.incarnation != known.incarnation:
        after = _make_known(draft, fact, after)
    draft.put(after)
    _compare(draft, after)
    same = after.incarnation is not None and after.incarnation.same_boot(known.incarnation)
    if known.ready != after.ready or not same:
        _witness(draft, fact, after, fell=known.ready and same)
    _learn_early(draft, fact, voice)
    _adopt(draft, fact, news)


def _adopt(draft: Draft, fact: Fact, news: NodeSeen) -> None:
    if news.cordons and (now := draft.node(news.node)) is not None:
        adopt_cordon(draft, fact, now)


def _moved(draft: Draft, known: Node, after: Node) -> None:
    """Its incident moves with it, and with the incident the repair that its pool counts."""
    incident = draft.incident(after.incident) if after.incident else None
    if incident is not None:
        draft.put(replace(incident, pool=after.pool))
    draft.tell(f"moved from pool {known.pool} to {after.pool}", key_of(after), event="moved")


def _newcomer(draft: Draft, fact: Fact, news: NodeSeen) -> None:
    """A seat never seen. It fills a vacancy of its pool if there is one."""
    node = Node(
        id=news.node,
        cluster=news.cluster,
        pool=pool_of(news.cluster, news.pool),
        domain=news.domain,
        incarnation=news.incarnation,
        registered=news.incarnation,
        devices=news.devices,
        linked=news.linked is not False,
        ready=news.ready,
        cordons=tuple(sorted(news.cordons)),
        unmanaged=news.unmanaged,
        as_of=news.as_of,
    )
    former = _take_former(draft, node.id)
    node = back_again(node, former.boots if former is not None else ())
    voice = _voice(draft, node)
    node = _heard_as(node, voice)
    draft.put(node)
    if _booted_since(former, node.incarnation):
        end_ranks(draft, node, f"{node.name} restarted under it")
    patrol.wake(draft, node)
    draft.tell(f"seen first as {_called(news.incarnation)}", key_of(node), event="joined")
    if news.first_connection and node.incarnation is not None:  # whoever was there before us is no newcomer
        _remember(draft, node.incarnation)
        patrol.check_first(draft, node)
        _learn_early(draft, fact, voice)
        return
    vacancies = draft.find(Node, f"vacant:{node.pool}")
    if vacancies:
        old = vacancies[0]
        draft.drop(key_of(old))
        draft.waits[key_of(old)] = None
        draft.tell(f"fills the vacancy of {old.name}", key_of(node), key_of(old), event="filled")
    _intake(draft, fact, node, filled=bool(vacancies) and vacancies[0].counted)
    _learn_early(draft, fact, voice)


def _take_former(draft: Draft, node: NodeId) -> FormerSeat | None:
    """What is remembered of a seat that was gone. Now that it is back its row remembers the boots."""
    key = f"record:seat/{node}"
    former = draft.read(FormerSeat, key, watch=False)
    if former is not None:
        draft.drop(key)
    return former


def _booted_since(former: FormerSeat | None, now: Incarnation | None) -> bool:
    """Whether the machine that held a seat is back in it under another boot: what ran there is over.

    Under the same boot it may run on; so may it on a machine whose place another has taken while nobody had either.
    """
    was = former.holder if former is not None else None
    return was is not None and now is not None and now.same_holder(was) and now.new_boot(was)


def _voice(draft: Draft, node: Node) -> EarlyAgent | None:
    """Its agent may have been heard before anybody else spoke of it; then what was kept is used up."""
    voice = draft.read(EarlyAgent, f"voice:{node.id}", watch=False)
    if voice is None or standing_of(node, voice.incarnation, by_agent=True) is not Standing.PRESENT:
        return None
    draft.drop(key_of(voice))
    return voice if voice.heard else None


def _heard_as(node: Node, voice: EarlyAgent | None) -> Node:
    if voice is None or node.incarnation is None:
        return node
    return replace(with_holder(node, node.incarnation.told(voice.incarnation)), agent=AgentState.HEARD)


def _learn_early(draft: Draft, fact: Fact, voice: EarlyAgent | None) -> None:
    """What it said before it was known counts now, dated as it was."""
    for early in voice.said if voice is not None else ():
        if isinstance(early.news, Observed):
            observed(draft, replace(early, seq=fact.seq), early.news)
        elif isinstance(early.news, Inventory):
            inventory(draft, early, early.news)


def inventory(draft: Draft, fact: Fact, news: Inventory) -> None:
    """Serial numbers, by which a lemon is known wherever it is put; how many devices there are, if nobody else says."""
    if news.incarnation is None:
        return
    node = draft.node(news.node)
    standing = standing_of(node, news.incarnation, by_agent=True) if node is not None else Standing.AHEAD
    if node is None or standing in {Standing.AHEAD, Standing.SUCCEEDED}:
        keep_early(draft, fact, news, news.incarnation)
    elif standing is not Standing.ENDED:
        linked = node.linked if news.linked is None else news.linked
        after = replace(node, devices=devices_found(node.devices, news.devices), linked=linked)
        if len(after.devices) == MOST_DEVICES > len(node.devices):
            text = f"its agent has named {MOST_DEVICES} devices by now, as many as a node can have: no more are kept"
            draft.tell(text, key_of(node), AUDIT, event="inventory")
        if after != node:
            draft.put(after)


def _intake(draft: Draft, fact: Fact, node: Node, *, filled: bool) -> None:
    if node.incarnation is not None and not holder_key(node.incarnation):
        draft.put(replace(node, unnamed_since=draft.reading(node.cluster)))  # its agent will name it
        return
    left = _left_with(draft, node.incarnation)
    new = node.incarnation is not None and _remember(draft, node.incarnation)
    if left is not None and node.incident is None:
        was = replace(left.fault, remedy=left.remedy)
        if left.kept:
            again = open_incident(draft, fact, node, replace(was, needs_human=True), IncidentKind.OPERATOR)
            draft.put(replace(again, ordered=True))
        else:
            raise_fault(draft, fact, node, was)
        return
    if not new:
        return
    if not _takes_in(draft) or node.incident is not None:
        return
    fault = classify(Observed(node=node.id, kind="intake"), draft.rules.tables)
    if fault is None:
        return
    node = replace(node, counted=filled)
    draft.put(node)
    open_incident(draft, fact, node, fault, IncidentKind.INTAKE)


def _takes_in(draft: Draft) -> bool:
    """Whether newcomers are checked."""
    return any(examine.on is Trigger.JOIN for examine in draft.rules.policy.examine)


def _names_of(incarnation: Incarnation) -> list[str]:
    """Under which names a machine may have been remembered."""
    names = (incarnation.instance_id, f"uid/{incarnation.uid}" if incarnation.uid else "")
    return [f"record:holder/{name}" for name in names if name]


def holder_key(incarnation: Incarnation) -> str:
    """Under which name a machine is remembered: its own, else that of its registration; empty: it has none."""
    return next(iter(_names_of(incarnation)), "")


def _remember(draft: Draft, incarnation: Incarnation) -> bool:
    """Whether this machine had never been seen before."""
    key = holder_key(incarnation)
    if not key:
        return False
    record = draft.read(KnownMachine, key, watch=False)
    if record is None or record.gone_at is not None:
        draft.put(KnownMachine(subject=key.removeprefix("record:")))
    return record is None


def _make_known(draft: Draft, fact: Fact, node: Node) -> Node:
    """Its machine has another name than before, or its first one: then it may turn out to be a newcomer.

    One that has served for long without a name is not taken out for it: it is checked once, when it is idle.
    """
    holder, since = node.incarnation, node.unnamed_since
    if holder is None or not holder_key(holder):
        return node
    if since is None:
        _remember(draft, holder)
        return node
    node = replace(node, unnamed_since=None)
    draft.put(node)
    soon = draft.reading(node.cluster) <= since + NAMED_WITHIN
    if node.incident is None and (soon or _left_with(draft, holder) is not None):
        _intake(draft, fact, node, filled=False)
    elif _remember(draft, holder):
        patrol.check_once(draft, node)
    return draft.node(node.id) or node


def _left_with(draft: Draft, incarnation: Incarnation | None) -> Incident | None:
    """What a machine that is seen again had shown, and no check had cleared, when it left; or who had held it."""
    keys = _names_of(incarnation) if incarnation is not None else []
    records = [draft.read(KnownMachine, key, watch=False) for key in keys]
    left = next((record.left for record in records if record is not None and record.left is not None), None)
    return draft.incident(left) if left is not None else None


def _uncleared(incident: Incident | None) -> IncidentId | None:
    if incident is None or not incident.open or incident.as_good_as_over:
        return None
    sick = incident.kind is IncidentKind.FAULT and incident.remedy.disrupts and incident.phase is not Phase.WATCHED
    return incident.id if sick or incident.kept else None


def _called(incarnation: Incarnation) -> str:
    return incarnation.instance_id or incarnation.uid or incarnation.boot_id or "a machine that nobody can name"


def _hold_seat(
    draft: Draft, fact: Fact, node: Node, said: Incarnation, standing: Standing, *, anew: bool = True
) -> Node:
    """The seat after a statement about its holder. A new boot ends what ran there; a new holder is taken in.

    `anew`: unless what ran there may run on, though the seat was vacant.
    """
    was, now = node.incarnation, held_by(node, said, standing)
    if now is None or now == was:
        return node
    if standing is Standing.PRESENT and was is not None:
        return _fill_in(draft, fact, node, was, now)
    same = standing is not Standing.SUCCEEDED
    spoke = was is not None and was.boot_id == now.boot_id != ""  # it spoke before its cluster did
    known = draft.node(node.id) or node  # with the devices that it had
    incident = draft.incident(node.incident) if node.incident else None
    ours = incident is not None and incident.phase is Phase.REPAIRING
    after = replace(
        with_holder(node, now),
        boot_ended_by_us=ours,
        unconfirmed=standing is Standing.REBOOTED and not (node.ready or said.instance_id or said.uid),
        agent=node.agent if spoke else AgentState.NONE,  # else not heard yet under this boot
        silent_at=node.silent_at if spoke else None,
        recent=node.recent if same else (),
        checking="",  # it ended with the boot
        check_due=node.check_due if same else None,
        unproven=node.unproven and same,
    )
    what = "rebooted" if same else f"now held by {_called(now)}"
    draft.tell(f"{what} (boot {now.boot_id or 'not known yet'})", key_of(node), event="incarnation")
    draft.put(after)
    if node.agent is AgentState.SILENT and node.going_down is None:  # that it is silent is not said a second time
        hear_again(draft, after)
    if anew:  # the new incarnation is the proof
        since = node.dated_boot[1] if node.dated_boot and node.dated_boot[0] == now.boot_id else None
        end_ranks(draft, after, f"{node.name} restarted under it", since=since)
    return after if same else _succeed(draft, fact, after, known)


def _succeed(draft: Draft, fact: Fact, node: Node, known: Node) -> Node:
    """Another machine holds the seat: what was wrong has left with the one before, and the newcomer is taken in."""
    incident = draft.incident(node.incident) if node.incident else None
    _leave_history(draft, known, incident)
    _part_with(draft, known.incarnation, incident)
    patrol.wake(draft, node)
    if incident is not None and incident.phase in {Phase.SUSPECT, Phase.WATCHED} and node.incarnation is not None:
        step_incident(draft, incident, "dismiss", f"the seat is now held by {_called(node.incarnation)}", {})
        node = draft.node(node.id) or node
    _intake(draft, fact, node, filled=True)
    return draft.node(node.id) or node


def _leave_history(draft: Draft, node: Node, incident: Incident | None) -> None:
    """The machine that fell ill leaves its seat: what the incident comes to is its history, not its successor's."""
    incident = draft.incident(incident.id) if incident is not None else None
    if incident is not None and incident.phase.out and incident.whose is None:
        whose = subjects_of(node.incarnation, node, incident.fault.device)
        draft.put(replace(incident, whose=tuple(whose)))


def _part_with(draft: Draft, holder: Incarnation | None, incident: Incident | None) -> None:
    """Another holds its seat: it is remembered for a while, and if it is seen again it is known.

    One that left while it was out of service is a newcomer wherever it is put, where newcomers are checked.
    """
    unproven = incident is not None and incident.phase.out and not incident.as_good_as_over
    for key in _names_of(holder) if holder is not None else ():
        record = draft.read(KnownMachine, key, watch=False)
        if record is None:
            continue
        if unproven and _takes_in(draft):
            draft.drop(key)  # whatever becomes of the incident is about the machine that holds the seat now
        elif record.gone_at is None:
            draft.put(replace(record, gone_at=draft.now, left=_uncleared(incident)))


def _fill_in(draft: Draft, fact: Fact, node: Node, was: Incarnation, now: Incarnation) -> Node:
    """More is known of the same boot, or its machine has registered anew: whatever is under way is about this one."""
    after = with_holder(node, now)
    draft.put(after)
    if now.instance_id != was.instance_id:
        after = _make_known(draft, fact, after)
    incident = draft.incident(node.incident) if node.incident else None
    if incident is None or incident.incarnation is None or not incident.incarnation.same_boot(now):
        return after
    known = replace(incident, incarnation=incident.incarnation.told(now))
    if was.uid and now.uid != was.uid and incident.cordon_as_of is not None:
        known = replace(known, cordon_as_of=None, cordon_from=0.0)  # a new object: our cordon was on the old one
    draft.put(known)
    intent = draft.intent(incident.intent)
    # Not that of a repair: what is learned while it is under way may be the boot that it led to.
    if intent is not None and isinstance(intent.act, Verify) and intent.expect is not None:
        draft.put(replace(intent, expect=intent.expect.told(now)))
    return after


def _compare(draft: Draft, node: Node) -> None:
    """What others did to a node that we treat."""
    incident = draft.incident(node.incident) if node.incident else None
    if incident is None or node.incarnation is None:
        return
    clock = draft.clocks.get(node.cluster)
    horizon = clock.as_of + 2 * clock.period if clock is not None else node.as_of
    found = drift(incident, node, horizon, draft.intent(incident.intent))
    after = replace(incident, **found.cordon)
    if found.uncordoned:
        order = OperatorRequest(verb=Verb.UNCORDONED, by="another", reason=found.uncordoned)
        after = enqueue(after, order)
    if found.bared:
        draft.tell("our cordon went with what it was on: it will be put back", key_of(incident), key_of(node))
    elif incident.bared and cordon_of(incident.id) in node.cordons:
        after = replace(after, bared=False, cordon_as_of=node.as_of)
    if found.healed is not None:
        # What was asked for beyond that (a person's order, a further fault) still follows.
        enough = found.healed.rank >= incident.remedy.rank
        relapse = "" if enough else incident.relapse
        after = replace(after, healed=found.healed, incarnation=node.incarnation, proof=None, relapse=relapse)
    if after != incident:
        draft.put(after)


def vanished(draft: Draft, news: NodeVanished) -> None:
    node = draft.node(news.node)
    if node is None or news.as_of < node.as_of or node.incarnation is None:
        return
    end_ranks(draft, node, f"{node.name} was deleted", lost=True)
    boots = boots_of(node)
    if any(boots) or node.incarnation != Incarnation():
        draft.put(FormerSeat(subject=f"seat/{node.id}", boots=boots, holder=node.incarnation, gone_at=draft.now))
    incident = draft.incident(node.incident) if node.incident else None
    if incident is not None and incident.phase is Phase.REPAIRING and incident.rung is Remedy.REPLACE:
        _leave_history(draft, node, incident)
        patience = draft.rules.policy.pace.vacancy.total_seconds()
        until = Deadline(clock=node.cluster, at=draft.reading(node.cluster) + patience)
        gone = replace(node, incarnation=None, registered=None, left_boot=boots[-1], checking="", check_due=None)
        draft.put(replace(gone, vacant_until=until, as_of=news.as_of, cordons=(), ready=False))
        draft.waits[key_of(node)] = WaitMark(until=until, urgency=4)
        draft.tell("its seat is vacant", key_of(node), event="vacant")
        # Its object is gone: that its machine was replaced is not said.
        _forget(draft, node, node.incarnation, incident)
        return
    draft.drop(key_of(node))
    draft.tell("deleted", key_of(node), event="deleted")
    _forget(draft, node, node.incarnation, incident)
    if incident is not None:
        draft.put(replace(incident, closing=None))


def _forget(draft: Draft, node: Node, holder: Incarnation, incident: Incident | None) -> None:
    """A machine that registers again is known and its agent heard, and with it what no check had cleared.

    One that left while it was out of service is a newcomer, where newcomers are checked; but not if a person keeps it.
    """
    if node.agent is AgentState.HEARD:
        # Its agent tells its inventory again only when that changes.
        who = replace(holder, uid="")  # how it is registered no agent knows
        had = Inventory(devices=node.devices, linked=node.linked, node=node.id, incarnation=who)
        said = (Fact(id=f"inventory/{node.id}", at=draft.now, news=had),) if node.devices else ()
        draft.put(EarlyAgent(node=node.id, incarnation=who, said=said, at=draft.now))
    unproven = incident is not None and incident.phase.out and not incident.kept
    for key in _names_of(holder):
        record = draft.read(KnownMachine, key, watch=False)
        if record is not None and unproven and _takes_in(draft):
            draft.drop(key)  # nobody has proven it well: it is taken in like a newcomer
        elif record is not None:
            draft.put(replace(record, gone_at=draft.now, left=_uncleared(incident)))


# --- witnesses of silence


def agent_silent(draft: Draft, fact: Fact, news: AgentSilent) -> None:
    node = draft.node(news.node)
    voice = draft.read(EarlyAgent, f"voice:{news.node}", watch=False)
    if voice is not None and voice.told:
        draft.put(replace(voice, said=(), heard=False))
    elif voice is not None:
        draft.drop(key_of(voice))
    if node is None or node.incarnation is None or (voice is not None and node.agent is not AgentState.HEARD):
        return  # whoever fell silent was never heard for the machine that holds the seat
    silences = (*node.silences, news.since)[-MANY_SILENCES:]
    node = replace(node, agent=AgentState.SILENT, silent_at=news.since, silences=silences)
    draft.put(node)
    draft.tell("the agent is silent", key_of(node), event="silent")
    _witness(draft, fact, node)


def agent_heard(draft: Draft, fact: Fact, news: AgentHeard) -> None:
    node = draft.node(news.node)
    standing = standing_of(node, news.incarnation, by_agent=True) if node is not None else Standing.AHEAD
    if standing is Standing.ENDED:
        return  # a late word
    if node is None or standing is Standing.AHEAD:
        hear_early(draft, news.node, news.incarnation)
        return  # the cluster's word is awaited
    known = node
    if standing is Standing.SUCCEEDED:
        node = replace(node, devices=devices_of_another(node.devices))
    node = _hold_seat(draft, fact, node, news.incarnation, standing)
    node = returned(known, replace(node, agent=AgentState.HEARD, silent_at=None))
    draft.put(node)
    _compare(draft, node)
    _witness(draft, fact, node)
    _learn_early(draft, fact, _voice(draft, node))


def booted(draft: Draft, fact: Fact, news: Booted) -> None:
    """When a boot began that its agent speaks of: told before the boot itself, which ends what is older."""
    node = draft.node(news.node)
    if node is not None and standing_of(node, news.incarnation, by_agent=True) is Standing.REBOOTED:
        draft.put(replace(node, dated_boot=(news.incarnation.boot_id, fact.at)))


def look_again(draft: Draft, node: Node) -> None:
    """An announced end has not come, or nothing came after it."""
    node = replace(node, going_down=None)
    draft.put(node)
    _witness(draft, None, node, fell=True)


def _witness(draft: Draft, fact: Fact | None, node: Node, *, fell: bool = False) -> None:
    """Who is silent decides what it is. `fell`: the cluster saw it ready before, under the same incarnation."""
    incident = draft.peek(Incident, f"incident:{node.incident}") if node.incident else None
    code = silence_of(node, incident, draft.readings, fell=fell)
    found = classify(Observed(node=node.id, kind=code), draft.rules.tables) if code is not None else None
    if found is not None:
        raise_fault(draft, fact, node, found)
