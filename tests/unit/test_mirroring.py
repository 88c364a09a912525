"""Mirroring: coalesced, only while leading, all of it at the start of a term, and never in anybody's way."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from threading import Event, Thread

import pytest
from msgspec.structs import replace
from tests.support.memory_mirror import MemoryMirror
from tests.support.waiting import until

from sickbay.adapters.stores.memory import MemoryStore
from sickbay.hosts import mirroring
from sickbay.hosts.changes import KEPT, Changes
from sickbay.hosts.mirroring import RECONCILE, Mirroring
from sickbay.model.errors import Gone, Rejected, Transient, Unknown
from sickbay.model.fault import Fault, Remedy, Scope, Severity
from sickbay.model.fleet import Incarnation, IncidentId, JobId, Node, NodeId
from sickbay.model.incident import Incident, IncidentKind, Phase, Stage
from sickbay.model.job import Job, JobSpec, JobState
from sickbay.model.rows import AnyRow, Line, Unit, key_of
from sickbay.model.shown import SHOWN_LINES, JobShown, NodeShown

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def node(name: str = "n0", cluster: str = "c") -> Node:
    made = Incarnation(uid="u", instance_id="i", boot_id="b")
    return Node(
        id=NodeId(f"{cluster}/{name}"), cluster=cluster, pool=f"{cluster}/train", incarnation=made, claimable=True
    )


def cordoned(by: str, name: str = "n0") -> Node:
    return replace(node(name), cordons=(by,), claimable=False)


def job(name: str = "llama-1", cluster: str = "c", *on: str) -> Job:
    spec = JobSpec(name="llama", cluster=cluster, pool="train")
    claim: dict[NodeId, tuple[int, ...]] = {NodeId(f"{cluster}/{each}"): () for each in on}
    return Job(id=JobId(name), spec=spec, submitted_at=AT, state=JobState.RUNNING, attempt=1, claim=claim)


def incident(of: Node, phase: Phase = Phase.QUARANTINED) -> Incident:
    fault = Fault(
        code="xid.79",
        component="pcie",
        severity=Severity.FATAL,
        scope=Scope.NODE,
        remedy=Remedy.REBOOT,
        because="fell off",
    )
    return Incident(
        id=IncidentId("i1"), node=of.id, cluster=of.cluster, pool=of.pool, kind=IncidentKind.FAULT,
        incarnation=of.incarnation, fault=fault, opened_at=AT, phase=phase, remedy=Remedy.REBOOT,
        stages=(Stage(phase=phase, entered_at=AT, because="it is fatal"),),
    )  # fmt: skip


class Lab:
    """Rows, their feed, a mirror, and hands on the clock and on who leads."""

    def __init__(self, trouble: Callable[[str], None] = lambda _: None) -> None:
        self.store = MemoryStore()
        self.changes = Changes()
        self.mirror = MemoryMirror(trouble)
        self.now = 0.0
        self.term = 1
        self._lease = self.store.lease("me", 1e9)
        self.mirroring = Mirroring(self.store, self.changes, "c", self.mirror, lambda: self.term, lambda: self.now)

    def write(self, *rows: AnyRow, gone: str = "", told: str = "") -> None:
        writes: dict[str, AnyRow | None] = {key_of(row): row for row in rows}
        if gone:
            writes[gone] = None
        story = (Line(subjects=(key_of(rows[0]),), at=AT, text=told),) if told else ()
        unit = Unit(writes=writes, story=story)
        assert self._lease is not None
        self.store.commit(unit, self._lease.epoch)
        self.changes.committed(unit)

    def rest(self) -> None:
        for _ in range(10_000):
            if not self.mirroring.step():
                return
        raise AssertionError("it never comes to rest")

    def of(self, name: str = "n0") -> NodeShown:
        value = self.mirror.values[f"node:c/{name}"]
        assert isinstance(value, NodeShown)
        return value

    def of_job(self, name: str = "llama-1") -> JobShown:
        value = self.mirror.values[f"job:{name}"]
        assert isinstance(value, JobShown)
        return value


def test_a_node_is_shown_with_its_incident_and_without_it_once_that_is_over() -> None:
    lab = Lab()
    ill = incident(node())
    lab.write(replace(node(), incident=ill.id, claimable=False), ill)
    lab.rest()
    shown = lab.of()
    assert (shown.state, shown.phase, shown.fault, shown.remedy) == ("OUT", Phase.QUARANTINED, "xid.79", Remedy.REBOOT)
    assert shown.since == AT
    assert "it is fatal" in shown.because
    lab.write(replace(ill, phase=Phase.RELEASED, closed_at=AT))
    lab.rest()
    assert lab.of().incident is None


def test_a_change_of_the_incident_alone_is_shown_on_its_node() -> None:
    lab = Lab()
    ill = incident(node())
    lab.write(replace(node(), incident=ill.id), ill)
    lab.rest()
    lab.write(replace(ill, phase=Phase.HELD))
    lab.rest()
    assert (lab.of().state, lab.of().phase) == ("HELD", Phase.HELD)


def test_ten_thousand_changes_of_one_node_are_one_show() -> None:
    lab = Lab()
    lab.write(node())
    lab.rest()
    lab.mirror.calls.clear()
    for _ in range(10_000):
        lab.changes.committed(Unit(writes={"node:c/n0": cordoned("other:ada")}))
    lab.write(cordoned("other:bob"))
    lab.rest()
    assert lab.mirror.calls == ["node:c/n0"]
    assert "bob" in lab.of().because


def test_what_does_not_change_what_is_shown_is_not_shown_again() -> None:
    lab = Lab()
    lab.write(node())
    lab.rest()
    lab.write(replace(node(), as_of=5.0))
    lab.rest()
    assert lab.mirror.calls == ["node:c/n0"]


def test_more_changes_than_the_feed_keeps_are_met_all_the_same() -> None:
    lab = Lab()
    lab.write(node())
    lab.rest()
    lab.write(cordoned("other:ada"))
    for _ in range(KEPT + 10):
        lab.changes.committed(Unit(writes={"node:d/n1": node("n1", "d")}))
    lab.rest()
    assert lab.of().state == "OUT"


def test_a_feed_that_runs_over_again_and_again_keeps_no_pass_from_its_end() -> None:
    lab = Lab()
    for number in range(350):
        lab.write(node(f"n{number}"))
    for _ in range(8):
        for _ in range(KEPT + 10):
            lab.changes.committed(Unit(writes={"node:d/n1": node("n1", "d")}))
        lab.mirroring.step()
    assert len(lab.mirror.values) == 350
    lab.write(cordoned("other:ada"))
    for _ in range(KEPT + 10):
        lab.changes.committed(Unit(writes={"node:d/n1": node("n1", "d")}))
    lab.rest()
    assert lab.of().state == "OUT", "what was missed while a pass went on is met by the next"


def test_the_nodes_that_a_job_comes_to_and_leaves_say_so() -> None:
    lab = Lab()
    lab.write(node("n0"), node("n1"), job("llama-1", "c", "n0"))
    lab.rest()
    assert [lab.of(name).jobs for name in ("n0", "n1")] == [("llama-1",), ()]
    lab.write(job("llama-1", "c", "n1"))
    lab.rest()
    assert [lab.of(name).jobs for name in ("n0", "n1")] == [(), ("llama-1",)]
    lab.write(replace(job("llama-1", "c", "n1"), state=JobState.COMPLETE, closed_at=AT))
    lab.rest()
    assert lab.of("n1").jobs == ()
    assert lab.of_job().state is JobState.COMPLETE


def test_a_job_has_the_newest_lines_of_its_story_and_no_more() -> None:
    lab = Lab()
    for number in range(9):
        lab.write(job(), told=f"line {number}")
    lab.rest()
    assert [line.text for line in lab.of_job().lines] == [f"line {n}" for n in range(9 - SHOWN_LINES, 9)]


def test_all_is_shown_at_the_start_of_a_term_and_leftovers_of_forgotten_rows_go() -> None:
    lab = Lab()
    for number in range(250):
        lab.write(node(f"n{number}"))
    lab.write(job())
    lab.mirror.values["node:c/left-long-ago"] = NodeShown(node=NodeId("c/left-long-ago"), pool="c/train", state="OUT")
    lab.mirror.values["job:forgotten"] = JobShown(job=JobId("forgotten"), name="x", state=JobState.RUNNING)
    lab.rest()
    assert set(lab.mirror.values) == {*(f"node:c/n{number}" for number in range(250)), "job:llama-1"}


def test_a_row_that_is_deleted_is_not_shown_any_more() -> None:
    lab = Lab()
    lab.write(node(), node("n1"))
    lab.rest()
    lab.write(gone="node:c/n0")
    lab.rest()
    assert list(lab.mirror.values) == ["node:c/n1"]


def test_another_clusters_rows_are_not_its_business() -> None:
    lab = Lab()
    lab.write(node("n0", "d"), job("theirs", "d", "n0"), node())
    lab.rest()
    lab.write(replace(node("n0", "d"), ready=False))
    lab.rest()
    assert lab.mirror.calls == ["node:c/n0"]


def test_who_does_not_lead_shows_nothing() -> None:
    lab = Lab()
    lab.term = 0
    lab.write(node())
    lab.rest()
    assert lab.mirror.calls == []
    lab.term = 2
    lab.rest()
    assert lab.mirror.calls == ["node:c/n0"]


def test_who_stops_leading_stops_between_two_shows() -> None:
    def resign(_: str) -> None:
        lab.term = 0

    lab = Lab()
    lab.write(*(node(f"n{number}") for number in range(5)))
    lab.mirror.trouble = lambda subject: resign(subject) if subject else None
    lab.rest()
    assert len(lab.mirror.calls) == 1


def test_what_others_have_changed_on_the_far_side_is_mended_by_the_next_pass() -> None:
    lab = Lab()
    lab.write(node())
    lab.rest()
    lab.mirror.values.clear()
    lab.now += RECONCILE + 1
    lab.rest()
    assert "node:c/n0" in lab.mirror.values


@pytest.mark.parametrize("error", [Transient("away"), Unknown("cut off"), RuntimeError("a mistake of its author")])
def test_a_mirror_that_fails_is_tried_again_with_the_newest_value_and_says_so(error: Exception) -> None:
    def fails(_: str) -> None:
        raise error

    lab = Lab()
    lab.write(node(), job())
    lab.rest()
    lab.mirror.trouble = fails
    lab.mirror.values.clear()
    lab.mirror.calls.clear()
    lab.write(cordoned("other:ada"))
    for _ in range(50):
        lab.mirroring.step()
    assert len(lab.mirror.calls) == 1, "it is let alone for a while"
    assert str(error) in lab.mirroring.trouble
    lab.write(cordoned("other:bob"))
    lab.mirror.trouble = lambda _: None
    lab.now += 2.0
    lab.rest()
    assert "bob" in lab.of().because
    assert lab.mirroring.trouble == ""
    assert lab.of_job().state is JobState.RUNNING, "whatever it lost meanwhile is shown again"


def test_tries_become_rarer_and_never_end() -> None:
    def fails(subject: str) -> None:
        if subject:
            raise Transient("away")

    lab = Lab(fails)
    lab.write(node())
    for _ in range(3600):
        lab.now += 1.0
        lab.mirroring.step()
    assert 60 <= len(lab.mirror.calls) <= 70


def test_one_subject_that_always_fails_keeps_none_of_the_others_waiting() -> None:
    def poisoned(subject: str) -> None:
        if subject == "node:c/n0":
            raise Unknown("a bad name")

    lab = Lab(poisoned)
    for number in range(300):
        lab.write(node(f"n{number}"))
    for _ in range(60):
        lab.now += 1.0
        lab.mirroring.step()
    assert len(lab.mirror.values) == 299
    assert "node:c/n0" in lab.mirroring.trouble


def test_what_is_refused_is_not_tried_before_it_changes_and_a_target_that_is_gone_is_no_trouble() -> None:
    def refuses(subject: str) -> None:
        match subject:
            case "node:c/n0":
                raise Rejected("labels may have 63 characters")
            case "job:llama-1":
                raise Gone("the job object was deleted")

    lab = Lab(refuses)
    lab.write(node(), job(), node("n1"))
    for _ in range(100):
        lab.now += 10.0
        lab.mirroring.step()
    assert sorted(lab.mirror.calls) == ["job:llama-1", "node:c/n0", "node:c/n1"]
    assert "refuses 1, such as node:c/n0: labels" in lab.mirroring.trouble
    lab.mirror.trouble = lambda _: None
    lab.write(cordoned("other:ada"))
    lab.rest()
    assert lab.mirroring.trouble == ""


def test_a_mirror_that_hangs_holds_up_nothing_but_itself_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirroring, "SLICE_EVERY", 0.001)
    released, stopping = Event(), Event()

    def hangs(subject: str) -> None:
        if subject:
            released.wait(60.0)

    lab = Lab(hangs)
    lab.mirror.period = 0.001
    lab.write(node())
    thread = Thread(target=lab.mirroring.run, args=(stopping,), daemon=True)
    thread.start()
    until(lambda: lab.mirror.calls)
    lab.now += 60.0
    lab.write(cordoned("other:ada"))
    assert "has not answered for 60 s about node:c/n0" in lab.mirroring.trouble
    released.set()
    until(lambda: lab.mirror.values.get("node:c/n0") and lab.of().state == "OUT")
    assert lab.mirroring.trouble == ""
    stopping.set()
    thread.join(10.0)
    assert not thread.is_alive()


def test_a_mirror_that_yields_what_it_shows_is_waited_for_while_it_does() -> None:
    """`shown` may be a generator: what takes its time is the walk over it, not the call."""
    lab = Lab()
    said: list[str] = []

    def yields() -> Iterator[str]:
        lab.now += 60.0
        said.append(lab.mirroring.trouble)
        yield "node:c/forgotten"

    lab.mirror.shown = yields  # type: ignore[method-assign, assignment]
    lab.write(node())
    lab.rest()
    assert said == ["the mirror of c has not answered for 60 s about what it shows: it shows what was"]
