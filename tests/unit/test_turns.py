"""What people are told of a job's place in the queue: as it is now, whoever came since."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sickbay.faces.turns import Turns, ordinal
from sickbay.model.clock import Deadline
from sickbay.model.fleet import JobId
from sickbay.model.incident import Wait
from sickbay.model.job import Job, JobSpec

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def waiting(name: str, after: int, *, pool: str = "p", priority: int = 0, nodes: int = 1, **more: Any) -> Job:
    spec = JobSpec(name=name, cluster="c", pool=pool, nodes=nodes, priority=priority)
    wait = Wait(because=f"needs {nodes} nodes", queued=True)
    return Job(id=JobId(name), spec=spec, submitted_at=NOON + timedelta(seconds=after), wait=wait, **more)


def test_by_rank_then_by_age_then_by_name_and_each_pool_by_itself() -> None:
    jobs = [
        waiting("old", 0),
        waiting("young", 5),
        waiting("urgent", 9, priority=3, nodes=4),
        waiting("elsewhere", 1, pool="q"),
    ]
    turns = Turns(jobs)
    places = {job.id: turns.of(job) for job in jobs}
    assert [(name, place.position, place.of) for name, place in places.items() if place] == [
        ("old", 2, 3),
        ("young", 3, 3),
        ("urgent", 1, 3),
        ("elsewhere", 1, 1),
    ]
    said = "3rd of 3 in the queue of c/p, behind urgent (needs 4 nodes, priority 3): needs 1 nodes"
    assert turns.because(jobs[1]) == said
    assert turns.because(jobs[3]) == "needs 1 nodes"


def test_an_interrupted_job_whose_place_is_kept_stands_in_front() -> None:
    kept = waiting("kept", 9, priority=-5, place_until=Deadline(clock="c", at=1.0))
    other = waiting("other", 0, priority=9)
    turns = Turns([other, kept])
    place = turns.of(kept)
    assert place is not None
    assert (place.position, place.place_kept, place.behind) == (1, True, None)
    assert turns.because(kept).startswith("1st of 2 in the queue of c/p; the place of its interrupted attempt is kept")
    assert "behind kept (needs 1 node, priority -5, its place is kept)" in turns.because(other)


def test_a_job_that_waits_for_something_else_stands_in_no_queue() -> None:
    spec = JobSpec(name="theirs", cluster="slurm", pool="p")
    theirs = Job(id=JobId("theirs"), spec=spec, submitted_at=NOON, wait=Wait(because="in the cluster's own queue"))
    assert Turns([theirs]).of(theirs) is None
    assert Turns([theirs]).because(theirs) == "in the cluster's own queue"


@pytest.mark.parametrize(
    ("number", "said"), [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (12, "12th"), (21, "21st")]
)
def test_ordinals(number: int, said: str) -> None:
    assert ordinal(number) == said
