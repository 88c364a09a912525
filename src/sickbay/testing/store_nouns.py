"""Small nouns for the store's contract: as little in each as the noun allows."""

from datetime import UTC, datetime, timedelta

from sickbay.model.checkup import Checkup
from sickbay.model.facts import Fact, Observed
from sickbay.model.fault import Fault, Remedy, Scope, Severity
from sickbay.model.fleet import Incarnation, IncidentId, JobId, Node, NodeId
from sickbay.model.incident import Incident, IncidentKind, Phase
from sickbay.model.intent import Intent, IntentState, Notify
from sickbay.model.job import Job, JobSpec, JobState
from sickbay.model.protocol import Command, RunLook
from sickbay.model.rows import AnyRow, Line, Unit, key_of
from sickbay.ports.store import Pulse

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(days=1)


def node(name: str, **fields: object) -> Node:
    known = {"id": NodeId(f"c/{name}"), "cluster": "c", "pool": "p"}
    return Node(**{**known, **fields})  # type: ignore[arg-type]


def incarnation(boot: str = "1") -> Incarnation:
    return Incarnation(uid="u", instance_id="i", boot_id=boot)


def incident(name: str, phase: Phase = Phase.SUSPECT, *, closed_at: datetime | None = None) -> Incident:
    return Incident(
        id=IncidentId(name),
        node=NodeId("c/a"),
        cluster="c",
        pool="p",
        kind=IncidentKind.FAULT,
        incarnation=incarnation(),
        fault=Fault(
            code="xid.79",
            component="gpu",
            severity=Severity.FATAL,
            scope=Scope.DEVICE,
            remedy=Remedy.REBOOT,
            because="fell off the bus",
        ),
        opened_at=NOON,
        phase=phase,
        closed_at=closed_at,
    )


def job(name: str, state: JobState = JobState.QUEUED, *, closed_at: datetime | None = None) -> Job:
    return Job(
        id=JobId(name),
        spec=JobSpec(name=name, cluster="c", pool="p"),
        submitted_at=NOON,
        state=state,
        claim={NodeId("c/a"): (0, 1)},
        closed_at=closed_at,
    )


def checkup(name: str, *, closed_at: datetime | None = None) -> Checkup:
    return Checkup(id=name, level=2, by="b", reason="r", asked_at=NOON, closed_at=closed_at)


def intent(key: str, state: IntentState = IntentState.PLANNED, *, owner: str = "") -> Intent:
    return Intent(
        key=key,
        owner=owner,
        cluster="c",
        pool="p",
        act=Notify(event="e", subject="s", text="t"),
        because="b",
        planned_at=NOON,
        clock="ingest",
        call_timeout=1.0,
        patience=1.0,
        state=state,
    )


def fact(name: str, *, at: datetime = NOON, text: str = "") -> Fact:
    return Fact(id=name, at=at, news=Observed(node=NodeId("c/a"), kind="xid", fields={"xid": 79}, text=text))


def command(name: str, node_name: str = "a", *, at: datetime = NOON) -> Command:
    return Command(
        id=name,
        node=NodeId(f"c/{node_name}"),
        order=RunLook(look=name),
        posted_at=at,
        expires_after=5.0,
        expect=incarnation(),
    )


def line(text: str, *subjects: str, at: datetime = NOON) -> Line:
    return Line(subjects=subjects, at=at, text=text)


def pulse(reading: float, boot: str = "1") -> Pulse:
    return Pulse(reading=reading, incarnation=incarnation(boot))


def writes(*rows: AnyRow) -> Unit:
    """A unit that writes these rows and expects nothing."""
    return Unit(writes={key_of(row): row for row in rows})
