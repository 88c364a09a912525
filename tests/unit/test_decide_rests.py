"""Every incident comes to rest by legal steps, whatever its fields are."""

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from sickbay.brain.decide import decide
from sickbay.brain.decision import Change, Do, Move, Stay
from sickbay.brain.incident_input import IncidentInput
from sickbay.model.checkup import Verdict
from sickbay.model.clock import Deadline
from sickbay.model.fault import Fault, Remedy, Scope, Severity
from sickbay.model.fleet import (
    AgentState,
    Capability,
    DrainHow,
    Incarnation,
    IncidentId,
    JobId,
    Node,
    NodeId,
    PastIncident,
)
from sickbay.model.incident import TRANSITIONS, Incident, IncidentKind, OperatorRequest, Phase, Proven, Stage, Try, Verb
from sickbay.model.intent import AnyAct, Drain, Intent, IntentState, Look, Quarantine, Release, Repair, Verify
from sickbay.policy.load import load_policy, shipped

POLICIES = {name: load_policy(name) for name in shipped()}
NOW = datetime(2026, 3, 1, tzinfo=UTC)
SEAT = NodeId("sim/a")
OURS = "sickbay:i1"
ROUNDS = 12

BOOTS = st.sampled_from(
    [Incarnation(uid="u", instance_id="i", boot_id=boot) for boot in ("b1", "b2")]
    + [Incarnation(uid="v", instance_id="j", boot_id="b3")]
)
DEADLINES = st.none() | st.builds(
    Deadline, clock=st.sampled_from(["sim", "ingest"]), at=st.sampled_from([0.0, 500.0, 5000.0])
)
FAULTS = st.builds(
    Fault, code=st.sampled_from(
        ["xid.79", "node.lost", "agent.lost", "cluster.partition", "operator.cordon", "operator.drain"]
    ),
    component=st.just("gpu"), severity=st.sampled_from(Severity), scope=st.sampled_from(Scope),
    remedy=st.sampled_from(Remedy), because=st.just("why"), device=st.none() | st.integers(0, 1),
    needs_human=st.booleans(),
)  # fmt: skip
TRIES = st.lists(
    st.builds(Try, rung=st.sampled_from(Remedy), result=st.just("done"), at=st.just(NOW)), max_size=3
).map(tuple)  # fmt: skip
INCIDENTS = st.builds(
    Incident, id=st.just(IncidentId("i1")), node=st.just(SEAT), cluster=st.just("sim"), pool=st.just("train"),
    kind=st.sampled_from(IncidentKind), incarnation=st.none() | BOOTS, fault=FAULTS, opened_at=st.just(NOW),
    phase=st.sampled_from(Phase), remedy=st.sampled_from(Remedy), needs_human=st.booleans(), tries=TRIES,
    healed=st.none() | st.sampled_from(Remedy), relapse=st.sampled_from(["", "xid.79: again"]),
    proof=st.none() | st.builds(Proven, check=st.just("i1.1"), incarnation=BOOTS, repairs=st.integers(0, 2)),
    cordon_as_of=st.none() | st.just(10.0), acts=st.integers(0, 4), now=st.booleans(), deadline=DEADLINES,
    orders=st.lists(st.builds(
        OperatorRequest,
        verb=st.sampled_from(["confirm", "hold", "dismiss", "escalate", "uncordon", "uncordoned", "cancel"]),
        by=st.just("me"), reason=st.just("why"),
    ), max_size=3).map(tuple),
    closing=st.none() | st.sampled_from([Phase.RELEASED, Phase.DISMISSED]),
    stages=st.just((Stage(phase=Phase.SUSPECT, entered_at=NOW, because="why"),)),
)  # fmt: skip
SEATS = st.none() | st.builds(
    Node, id=st.just(SEAT), cluster=st.just("sim"), pool=st.just("train"), incarnation=st.none() | BOOTS,
    linked=st.booleans(), ready=st.booleans(), agent=st.sampled_from(AgentState), unmanaged=st.integers(0, 2),
    cordons=st.sampled_from([(), (OURS,), ("other:x",), (OURS, "other:x")]), as_of=st.just(20.0),
)  # fmt: skip
ACTS = st.sampled_from(
    [
        Quarantine(node=SEAT, owner=OURS, reason=""), Release(node=SEAT, owner=OURS),
        Drain(node=SEAT, how=DrainHow.EVICT),
        Repair(node=SEAT, rung=Remedy.REBOOT), Repair(node=SEAT, rung=Remedy.RESTART_SERVICE),
        Verify(nodes=(SEAT,), level=2), Look(nodes=(SEAT,)),
    ]
)  # fmt: skip


def intent(act: AnyAct, state: IntentState, **more: Any) -> Intent:
    return Intent(
        key="i1.1", owner="incident:i1", cluster="sim", pool="train", act=act, because="", planned_at=NOW,
        clock="sim", call_timeout=30.0, patience=60.0, state=state, **more,
    )  # fmt: skip


INTENTS = st.none() | st.builds(
    intent, ACTS, st.sampled_from(IntentState), seen_by=DEADLINES, expect=st.none() | BOOTS,
    sent_at=st.sampled_from([0.0, 900.0]),
    verdicts=st.dictionaries(st.just(SEAT), st.sampled_from([Verdict.PASS, Verdict.FAIL, Verdict.COULD_NOT_RUN])),
)  # fmt: skip
JOBS = st.lists(st.sampled_from([JobId("j1"), JobId("j2")]), unique=True).map(tuple)
PAST = st.lists(
    st.builds(
        PastIncident, incident=st.just(IncidentId("i0")), code=st.just("xid.79"), at=st.floats(0, 1000),
        ended=st.sampled_from(["RELEASED", "REPLACED"]), rung=st.just("reboot"),
    ), max_size=3,
).map(tuple)  # fmt: skip


@given(
    start=INCIDENTS, node=SEATS, last=INTENTS, scoped=JOBS, bystanders=JOBS, called=JOBS, saving=JOBS, past=PAST,
    can=st.sets(st.sampled_from(Capability)).map(frozenset) | st.just(frozenset(Capability)),
    policy=st.sampled_from(sorted(POLICIES)),
)  # fmt: skip
def test_every_incident_comes_to_rest_by_legal_steps(
    start: Incident, node: Node | None, last: Intent | None, scoped: Any, bystanders: Any, called: Any, saving: Any,
    past: Any, can: frozenset[Capability], policy: str,
) -> None:  # fmt: skip
    assume(start.closing is not Phase.RELEASED or start.phase is Phase.VERIFYING)  # nothing else decides to release
    current, doing, asked, waits = start, last, frozenset(called), frozenset(called) & frozenset(saving)
    for _ in range(ROUNDS + len(start.orders)):
        if current.phase.terminal:
            return
        s = IncidentInput(
            incident=current, node=node, intent=doing, scoped=scoped, bystanders=bystanders, called=asked,
            asked=waits, training=frozenset(scoped) - asked, gating=frozenset(),
            past=past, readings={"sim": 1000.0, "ingest": 1000.0}, can=can,
            blind=frozenset(),
        )  # fmt: skip
        decision = decide(s, POLICIES[policy])
        match decision:
            case Stay(wait=wait):
                assert wait.because
                return
            case Do(act=act, event=event, because=because, also=also, patience=patience):
                assert because
                assert patience > timedelta()
                if event:
                    TRANSITIONS.target(replace(current, **also), current.phase, event)
                assert not isinstance(act, Repair) or act.rung.rank >= Remedy.RESTART_SERVICE.rank
                return
            case Move(event=event, because=because, also=also):
                assert because
                changed = replace(current, **{"deadline": None, **also})
                phase = TRANSITIONS.target(changed, current.phase, event)
                stage = Stage(phase=phase, entered_at=NOW, because=because)
                current = replace(changed, phase=phase, stages=(*current.stages, stage))
                doing = None
            case Change(also=also, call=call, before=before, tell=tell):
                waits = waits | frozenset(call) if before else waits - frozenset(call)
                said = (*current.told, tell.once) if tell is not None else current.told
                current, asked = replace(current, **{"told": said, **also}), asked | frozenset(call)
    raise AssertionError(f"it does not come to rest in {current.phase}")


def test_who_asks_to_hold_a_node_that_is_being_released_is_too_late() -> None:
    boot = Incarnation(uid="u", instance_id="i", boot_id="b1")
    fault = Fault(
        code="xid.79", component="gpu", severity=Severity.FATAL, scope=Scope.NODE, remedy=Remedy.REBOOT, because="why"
    )
    closing = Incident(
        id=IncidentId("i1"), node=SEAT, cluster="sim", pool="train", kind=IncidentKind.FAULT, incarnation=boot,
        fault=fault, opened_at=NOW, phase=Phase.VERIFYING, closing=Phase.RELEASED,
        orders=(OperatorRequest(verb=Verb.HOLD, by="me", reason="why"),),
    )  # fmt: skip
    s = IncidentInput(
        incident=closing, node=Node(id=SEAT, cluster="sim", pool="train", incarnation=boot), intent=None, scoped=(),
        bystanders=(), called=frozenset(), asked=frozenset(), training=frozenset(), gating=frozenset(),
        past=(), readings={}, can=frozenset(Capability),
        blind=frozenset(),
    )  # fmt: skip
    decision = decide(s, POLICIES["default"])
    assert isinstance(decision, Change)
    assert decision.also == {"orders": ()}
    assert decision.answer is not None
    assert "being closed" in decision.answer.because
