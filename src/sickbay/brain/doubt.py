"""Confirm or clear a suspect that was withheld: by a check of its fault's level, never by silence.

A GPU that is off the bus says so once: that no new line has come clears nobody. A check never runs under work.
"""

from datetime import timedelta

from msgspec.structs import replace

from sickbay.brain.decision import Change, Do, IncidentChanges, IncidentDecision, Move, Stay, Tell
from sickbay.brain.incident_input import REMINDED, IncidentInput, remind
from sickbay.brain.ladder import ladder_for, rung_rule
from sickbay.model.checkup import Verdict
from sickbay.model.clock import INGEST
from sickbay.model.fault import NODE_LOST
from sickbay.model.fleet import AgentState, Capability, Node
from sickbay.model.incident import Doubt, Incident, Wait
from sickbay.model.intent import Intent, IntentState, Notify, Verify
from sickbay.model.policy import Policy

EVENT = "unconfirmed"
TURN = "its turn for a check will come"
# How long after each check that could not run the next one is tried; from the last of them on a person is told.
AGAIN = tuple(timedelta(minutes=m) for m in (1, 5, 15, 30, 60))


def checking(s: IncidentInput) -> bool:
    """Whether the check that is to confirm or clear it is under way."""
    return s.intent is not None and isinstance(s.intent.act, Verify) and not s.intent.state.over


def confirm(s: IncidentInput, node: Node, doubt: Doubt, policy: Policy) -> IncidentDecision | None:
    """The next step of a suspect that must be confirmed. None: it must be given its turn first."""
    incident, intent = s.incident, s.intent
    if intent is not None and isinstance(intent.act, Verify):
        return _verdict(s, node, doubt, intent, policy)
    if incident.fault.code != NODE_LOST:  # nobody is there to ask: that it is still lost confirms it
        obstacle = _obstacle(s, node)
        if obstacle:
            return _reminded(s, policy, f"its check waits until {obstacle}")
        if Capability.CHECK not in s.can:
            why = "nothing here can check it"
            return remind(s, policy, EVENT, _text(s, why), why, _ends(incident))
    if doubt.turn is None:
        return None
    if not s.passed(doubt.turn):
        why = f"{doubt.unrun} checks could not run, the next is tried later" if doubt.unrun else TURN
        return Stay(Wait(because=why, until=doubt.turn, ends=_ends(incident), then="it is checked"))
    if incident.fault.code == NODE_LOST:
        return Change("it is still lost", {"shown_at": s.readings.get(INGEST, 0.0), "doubt": None})
    rule = rung_rule(ladder_for(incident, node, policy), incident.remedy)
    act = Verify(nodes=(node.id,), level=rule.verify, profile=rule.profile or incident.fault.component)
    also: IncidentChanges = {"doubt": replace(doubt, turn=None)}
    return Do(act, "a check must confirm or clear it", rule.verify_deadline, INGEST, also=also)


def _verdict(s: IncidentInput, node: Node, doubt: Doubt, intent: Intent, policy: Policy) -> IncidentDecision:
    if not intent.state.over:
        return Stay(Wait(because="a check is to confirm or clear it", until=intent.seen_by))
    answered = intent.state is IntentState.SEEN and intent.expect is not None and intent.expect.agrees(node.incarnation)
    told = intent.verdicts.get(node.id) if answered else ""
    reading = s.readings.get(INGEST, 0.0)
    if told is Verdict.PASS:
        level = intent.act.level if isinstance(intent.act, Verify) else 0
        return Move("dismiss", f"its check passed: level {level}")
    if told is Verdict.FAIL:
        return Change("its check failed", {"shown_at": reading, "doubt": None, "intent": "", "deadline": None})
    unrun = doubt.unrun + 1
    pause = AGAIN[unrun - 1] if unrun <= len(AGAIN) else policy.pace.held_reminder
    after = replace(doubt, unrun=unrun, turn=s.within(INGEST, pause))
    also: IncidentChanges = {"doubt": after, "intent": "", "deadline": None}
    if unrun < len(AGAIN):
        return Change("its check could not run", also)
    why = f"{unrun} checks could not run: {intent.answer or 'no answer in time'}"
    return Change("its check could not run", also, _tell(s, why))


def _obstacle(s: IncidentInput, node: Node) -> str:
    """What must end before it can be checked; empty: nothing."""
    jobs = (*s.scoped, *s.bystanders)
    if jobs:
        return f"{jobs[0]} has left"
    if node.unmanaged:
        return f"{node.unmanaged} pieces of unmanaged work have left"
    if node.checking:
        return f"{node.checking} is over"
    if not node.ready:
        return "the cluster calls it ready"
    if node.going_down is not None:
        return "its announced end is over"
    if node.agent is not AgentState.HEARD and Capability.LOOK in s.can:
        return "its agent is heard"
    return ""


def _reminded(s: IncidentInput, policy: Policy, because: str) -> IncidentDecision:
    """Wait for others, without a word at first; a person hears of it at each reminder."""
    incident = s.incident
    if incident.deadline is None:
        return Change(because, {"deadline": s.within(INGEST, policy.pace.held_reminder)})
    if s.passed(incident.deadline):
        return Change(because, {"deadline": s.within(INGEST, policy.pace.held_reminder)}, _tell(s, because))
    return Stay(Wait(because=because, until=incident.deadline, ends=_ends(incident), then=REMINDED))


def _ends(incident: Incident) -> tuple[str, ...]:
    return "a check confirms or clears it", f"{incident.fault.code} shows itself again"


def _tell(s: IncidentInput, why: str) -> Tell:
    notice = Notify(event=EVENT, subject=f"incident:{s.incident.id}", text=_text(s, why))
    return Tell(notice, f"{EVENT}:{s.readings.get(INGEST, 0.0):.0f}")


def _text(s: IncidentInput, why: str) -> str:
    return f"{s.incident.node}: {s.incident.fault.code} can be neither confirmed nor cleared: {why}"
