"""What tables about incidents are made of: one seat, what befell it, and what is decided then."""

from datetime import UTC, datetime
from typing import Any

from sickbay.brain.decide import decide
from sickbay.brain.decision import Change, Do, IncidentDecision, Move, Stay
from sickbay.brain.incident_input import IncidentInput
from sickbay.model.clock import INGEST, Deadline
from sickbay.model.fault import Fault, Remedy, Scope, Severity
from sickbay.model.fleet import AgentState, Capability, Incarnation, IncidentId, Node, NodeId
from sickbay.model.incident import Incident, IncidentKind, Phase, Stage, Try
from sickbay.model.intent import AnyAct, Intent, IntentState
from sickbay.policy.load import load_policy

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SEAT = NodeId("sim/a")
OURS = "sickbay:i1"
BOOT = Incarnation(uid="u", instance_id="i", boot_id="b1")
NEXT = Incarnation(uid="u", instance_id="i", boot_id="b2")
POLICY = load_policy("default")
READINGS = {INGEST: 1000.0, "sim": 1000.0}
PAST, AHEAD = Deadline(clock="sim", at=999.0), Deadline(clock="sim", at=1001.0)
CAN = frozenset(Capability)


def fault(code: str = "xid.79", remedy: Remedy = Remedy.REBOOT, **more: Any) -> Fault:
    whole: dict[str, Any] = {
        "code": code, "component": "gpu", "severity": Severity.FATAL, "scope": Scope.DEVICE, "remedy": remedy,
        "because": "sick", "device": 0,
    }  # fmt: skip
    return Fault(**{**whole, **more})


def incident(phase: Phase, found: Fault | None = None, **more: Any) -> Incident:
    found = found or fault()
    stages = (Stage(phase=phase, entered_at=NOW, because="so it is"),)
    whole: dict[str, Any] = {
        "id": IncidentId("i1"), "node": SEAT, "cluster": "sim", "pool": "train", "kind": IncidentKind.FAULT,
        "incarnation": BOOT, "fault": found, "opened_at": NOW, "phase": phase, "remedy": found.remedy,
        "stages": stages, "cordon_as_of": 5.0, "deadline": AHEAD,
    }  # fmt: skip
    return Incident(**{**whole, **more})


def tries(*rungs: Remedy) -> tuple[Try, ...]:
    return tuple(Try(rung=rung, result="failed", at=NOW) for rung in rungs)


def node(**more: Any) -> Node:
    whole: dict[str, Any] = {
        "id": SEAT, "cluster": "sim", "pool": "train", "incarnation": BOOT, "agent": AgentState.HEARD,
        "cordons": (OURS,), "as_of": 10.0,
    }  # fmt: skip
    return Node(**{**whole, **more})


def intent(act: AnyAct, state: IntentState, **more: Any) -> Intent:
    whole: dict[str, Any] = {
        "key": "i1.1", "owner": "incident:i1", "cluster": "sim", "pool": "train", "act": act, "because": "",
        "planned_at": NOW, "clock": "sim", "call_timeout": 30.0, "patience": 120.0, "expect": BOOT, "state": state,
        "sends": 1, "sent_at": 1.0, "seen_by": AHEAD,
    }  # fmt: skip
    return Intent(**{**whole, **more})


def sight(of: Incident, seat: Node | None = None, **more: Any) -> IncidentInput:
    whole: dict[str, Any] = {
        "incident": of, "node": seat or node(), "intent": None, "scoped": (), "bystanders": (),
        "called": frozenset(), "asked": frozenset(), "training": frozenset(), "gating": frozenset(),
        "past": (), "readings": READINGS, "can": CAN,
        "blind": frozenset(),
    }  # fmt: skip
    return IncidentInput(**{**whole, **more})


def said(decision: IncidentDecision) -> str:
    """A decision in one word: the event of a move, the act of a do."""
    match decision:
        case Move(event=event):
            return event
        case Do(act=act):
            return type(act).__name__
        case Change(call=call):
            return "call" if call else "change"
        case Stay():
            return "wait"


def ask(s: IncidentInput) -> str:
    return said(decide(s, POLICY))
