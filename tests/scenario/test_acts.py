"""From an intent that is written down to its end: what was decided before is asked again, withdrawn, or answered."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.scenario.wards import DAY, HOUR, OpenWard, Ward, cluster_without, policy_with

from sickbay.engine.ingest import Ingest
from sickbay.model.errors import Rejected, Transient, Unknown
from sickbay.model.facts import Outcome
from sickbay.model.incident import Phase
from sickbay.model.intent import Intent, IntentState
from sickbay.model.job import JobState


def intent_of(w: Ward, key: str) -> Intent:
    row = w.sim.store.load([f"intent:{key}"])[f"intent:{key}"].row
    assert isinstance(row, Intent)
    return row


class Channel:
    """One method of a simulated adapter, which answers as it is told and counts its calls."""

    def __init__(self, adapter: Any, name: str, answer: Callable[[int], Exception | None]) -> None:
        self.calls = 0
        self._real = getattr(adapter, name)
        self.answer = answer
        setattr(adapter, name, self)

    def __call__(self, *args: Any, **more: Any) -> Any:
        self.calls += 1
        error = self.answer(self.calls)
        if error is not None:
            raise error
        return self._real(*args, **more)

    def works(self) -> None:
        self.answer = lambda _: None


def down(_: int) -> Exception:
    return Transient("connection refused")


# --- what an answer means


@pytest.mark.parametrize("first", [None, "transient"], ids=["refused at once", "after a refused connection"])
def test_a_refused_start_fails_the_job_whatever_the_connection_did_before(ward: OpenWard, first: str | None) -> None:
    w = ward(cluster=cluster_without("place"))
    start = Channel(
        w.sim.hands.sites["sim"].cluster,
        "start",
        lambda n: Transient("connection refused") if first and n == 1 else Rejected("invalid partition"),
    )
    job = w.sim.submit("train", nodes=2)
    w.until(lambda: w.state(job) == JobState.FAILED, HOUR)
    assert "invalid partition" in w.job(job).diagnosis
    assert start.calls <= 6


def test_a_start_refused_after_one_in_doubt_is_not_a_year_in_the_clusters_queue(ward: OpenWard) -> None:
    w = ward(cluster=cluster_without("place"))
    Channel(
        w.sim.hands.sites["sim"].cluster,
        "start",
        lambda n: Unknown("no answer") if n == 1 else Rejected("invalid partition"),
    )
    job = w.sim.submit("train", nodes=2)
    w.until(lambda: w.state(job) != "", HOUR)
    w.until(lambda: w.job(job).wait is not None and "invalid partition" in str(w.job(job).wait), HOUR)
    w.until(lambda: w.state(job) == JobState.FAILED, DAY)
    w.run(5)
    assert w.told("job_failed")


def test_a_late_refusal_of_a_repair_whose_sendings_failed_ends_it(ward: OpenWard) -> None:
    w = ward()
    node = w.nodes[0]
    reset = Channel(
        w.sim.hands.sites["sim"].machines,
        "reset",
        lambda n: Unknown("the command may be posted") if n == 1 else Transient("could not be posted"),
    )
    w.says(node, 48)
    w.until(lambda: reset.calls == 2, HOUR)
    w.run(1)
    key = w.incident(node).intent
    late = Outcome(key=key, result="rejected", sends=0, text="the device is busy")
    Ingest(w.sim.store, w.sim.clock).tell(f"answered/{key}", late)
    w.sim.hosts[0].wake()
    w.run(5)
    assert intent_of(w, key).state is IntentState.REJECTED
    reset.works()
    w.rests()
    assert w.phase(node) == "RELEASED"


def test_what_is_in_doubt_has_a_deadline_however_often_it_was_sent(ward: OpenWard) -> None:
    w = ward()
    node = w.nodes[0]
    answers = {1: Unknown("no answer"), 2: Transient("connection refused"), 3: Rejected("the device is busy")}
    Channel(w.sim.hands.sites["sim"].machines, "reset", lambda n: answers.get(n, Rejected("busy")))
    w.says(node, 48)
    w.reaches(node, Phase.REPAIRING)
    w.until(lambda: w.incident(node).intent != "" and intent_of(w, w.incident(node).intent).refused, HOUR)
    assert intent_of(w, w.incident(node).intent).seen_by is not None
    w.rests()
    assert w.phase(node) in {"RELEASED", "HELD"}
