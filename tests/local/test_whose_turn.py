"""The queue of a real local cluster: an interrupted job keeps its place, the order is by age, nobody starves."""

import signal
import sys
from typing import Any

import pytest
from tests.support.up_rig import Sickbay

pytestmark = pytest.mark.slow

PY = (sys.executable, "-c")


def training(rig: Sickbay, steps: int, **more: Any) -> str:
    job = rig.train(steps, every=5, **more)
    rig.reaches(job, 5)
    return job


def sleeping(rig: Sickbay, seconds: float, **more: Any) -> str:
    return rig.submit(*PY, f"import time; time.sleep({seconds})", **more)


def began(rig: Sickbay, *jobs: str) -> list[str]:
    """Jobs in the order in which their first attempts began."""
    return sorted(jobs, key=lambda job: str(rig.job(job)["attempts"][0]["started_at"]))


def test_an_interrupted_job_runs_again_before_those_that_wait(four: Sickbay) -> None:
    big = training(four, 400, name="wbig", nodes=4)
    waiting = [sleeping(four, 1, name=f"q{n}", nodes=1) for n in range(3)]
    four.until(lambda: all(four.job(job)["state"] == "QUEUED" for job in waiting), 60)
    status = four.status(four.nodes()[0]["id"])
    assert status is not None
    four.signal(status.ranks[0].pid, signal.SIGKILL)
    four.until(lambda: four.job(big)["attempt"] == 2 and four.job(big)["state"] == "RUNNING", 60)
    assert [four.job(job)["state"] for job in waiting] == ["QUEUED"] * 3
    place = four.job(waiting[2])["queue"]
    assert (place["position"], place["of"], place["behind"]) == (3, 3, waiting[0])
    said = four.job(waiting[2])["because"]
    assert said.startswith(f"3rd of 3 in the queue of local/default, behind {waiting[0]} (needs 1 node, priority 0)")
    four.ends(big)
    for job in waiting:
        four.ends(job)


def test_the_queue_is_in_order_of_submission_and_priority(four: Sickbay) -> None:
    hog = training(four, 60, name="hog", nodes=4)
    jobs = [sleeping(four, 0.2, name=name, nodes=4) for name in ("zeta", "yam", "m", "a")]
    urgent = sleeping(four, 0.2, name="urgent", nodes=4, priority=5)
    four.ends(hog)
    for job in (urgent, *jobs):
        four.ends(job)
    assert began(four, *jobs, urgent) == [urgent, *jobs]


def test_a_large_job_is_not_overtaken_by_small_ones_that_come_later(four: Sickbay) -> None:
    # A node whose agent was not heard yet cannot be checked: the large one cannot have it, and reserves nothing.
    four.ends(sleeping(four, 0.1, name="all-are-heard", nodes=4))
    hog = sleeping(four, 6, name="hog", nodes=1)
    four.until(lambda: four.job(hog)["state"] == "RUNNING", 60)
    big = sleeping(four, 1, name="aabig", nodes=4)
    small = [sleeping(four, 1, name=f"s{n}", nodes=1) for n in range(6)]
    four.ends(big)
    for job in small:
        four.ends(job)
    assert began(four, big, *small)[0] == big, "\n".join(four.story(big))


def test_at_its_limit_a_job_is_stopped_and_says_why(four: Sickbay) -> None:
    job = training(four, 100_000, name="long", nodes=2, time_limit=4.0)
    done = four.ends(job, "STOPPED")
    assert done["attempt"] == 1
    assert "its time limit of 0:00:04 is over" in done["because"]
