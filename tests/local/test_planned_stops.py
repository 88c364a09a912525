"""A planned stop on real processes: a job that listens is asked to save, and goes on from there."""

import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.up_rig import QUICK, Sickbay, running

pytestmark = pytest.mark.slow

NEVER_SAVES = """
import time
from sickbay import train
for step in range(1, 100_000):
    train.heartbeat(step)
    train.should_save(term=False)
    time.sleep(0.05)
"""


LEAVES = """
import sys, time
from sickbay import train
with train.Checkpoints() as checkpoints:
    state = checkpoints.load() or {"step": 0}
    for step in range(state["step"] + 1, 100_000):
        train.heartbeat(step)
        if train.should_save():
            checkpoints.save(step, {"step": step})
        if train.should_end():
            break
        time.sleep(0.05)
if train.should_end():
    sys.exit(143)
"""


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[Sickbay]:
    yield from running(tmp_path / "state", nodes=2, policy=f"{QUICK}resume:\n  save_within: 3s\n")


def drain(rig: Sickbay, node: str, *, now: bool = False) -> None:
    rig.post(f"/v1/nodes/-/{node.rpartition('/')[2]}/drain", reason="maintenance", now=now)


def test_a_job_that_never_saves_by_itself_loses_no_step_to_a_drain(two: Sickbay) -> None:
    job = two.train(100_000, nodes=1, every=1_000_000)
    before = two.reaches(job, 30)
    (node,) = before["nodes"]
    assert before["saved"] is None
    ordered, step = time.monotonic(), two.job(job)["step"]
    drain(two, node)
    two.until(lambda: two.job(job)["attempt"] == 2 and two.job(job)["resumed_from"], 60, "it goes on elsewhere")
    took = time.monotonic() - ordered
    after = two.job(job)
    assert after["resumed_from"] == after["saved"] >= step
    assert after["nodes"] != [node]
    assert after["restarts"] == 0
    assert took < 30
    story = "\n".join(two.story(job))
    assert f"asks the job to save: before {node} is drained (attempt 1, step " in story
    assert f"has saved step {after['resumed_from']}, as it was asked to" in story


def test_ranks_that_cannot_agree_in_between_answer_with_their_next_round_step(four: Sickbay) -> None:
    job = four.train(100_000, nodes=2, every=20)
    node = four.reaches(job, 25)["nodes"][-1]
    step = four.job(job)["step"]
    drain(four, node)
    four.until(lambda: four.job(job)["attempt"] == 2 and four.job(job)["resumed_from"], 60, "it goes on elsewhere")
    assert four.job(job)["resumed_from"] >= step


def test_who_is_stopped_saves_first_and_now_means_now(two: Sickbay) -> None:
    job = two.train(100_000, nodes=1, every=1_000_000)
    step = two.reaches(job, 20)["step"]
    two.post(f"/v1/jobs/{job}/stop", reason="enough")
    assert two.ends(job, "STOPPED")["saved"] >= step
    job = two.train(100_000, nodes=1, every=1_000_000)
    two.reaches(job, 20)
    two.post(f"/v1/jobs/{job}/stop", reason="enough", now=True)
    assert two.ends(job, "STOPPED")["saved"] is None
    assert "asks the job to save" not in "\n".join(two.story(job))


def test_a_script_that_leaves_its_loop_loses_no_step_to_a_stop_and_goes_on_after_a_signal_from_elsewhere(
    two: Sickbay, tmp_path: Path
) -> None:
    job = two.submit(sys.executable, "-c", LEAVES, nodes=1, checkpoint=str(tmp_path / "kept"))
    (node,) = two.reaches(job, 5)["nodes"]
    (rank,) = two.ranks(node, job)
    assert rank.pid is not None
    step = two.job(job)["step"]
    two.signal(rank.pid, signal.SIGTERM)
    two.until(lambda: two.job(job)["attempt"] == 2 and two.job(job)["resumed_from"], 30, "it goes on")
    assert two.job(job)["resumed_from"] >= step
    before = two.reaches(job, two.job(job)["resumed_from"] + 3)
    drain(two, before["nodes"][0])
    two.until(lambda: two.job(job)["attempt"] == 3 and two.job(job)["resumed_from"], 30, "it goes on elsewhere")
    assert two.job(job)["resumed_from"] >= before["step"]
    assert "has not saved" not in "\n".join(two.story(job))


def test_a_save_that_does_not_come_is_waited_for_until_its_time_is_over(hasty: Sickbay) -> None:
    job = hasty.submit(sys.executable, "-c", NEVER_SAVES, nodes=1)
    hasty.reaches(job, 5)
    (node,) = hasty.job(job)["nodes"]
    ordered = time.monotonic()
    drain(hasty, node)
    hasty.until(lambda: "asked to save before" in hasty.job(job)["because"], 10, "it waits")
    assert hasty.job(job)["state"] == "RUNNING"
    hasty.until(lambda: hasty.job(job)["attempt"] == 2, 30, "it is stopped all the same")
    assert 3 <= time.monotonic() - ordered < 20
    assert "it has not saved within 0:00:03" in "\n".join(hasty.story(job))


def test_a_fault_under_the_job_does_not_wait_for_a_save(hasty: Sickbay) -> None:
    job = hasty.submit(sys.executable, "-c", NEVER_SAVES, nodes=1)
    (node,) = hasty.reaches(job, 5)["nodes"]
    hasty.inject(node, xid=79, cured_by="reboot")
    hasty.until(lambda: hasty.job(job)["attempt"] == 2, 60, "it goes on elsewhere")
    assert "asks the job to save" not in "\n".join(hasty.story(job))


def test_an_agent_that_stands_still_when_the_ask_comes_hands_it_on_later(two: Sickbay) -> None:
    """The ask waits in the store until an agent has answered it."""
    job = two.train(100_000, nodes=1, every=1_000_000)
    before = two.reaches(job, 20)
    (node,) = before["nodes"]
    status = two.status(node)
    assert status is not None
    two.signal(status.agent_pid, signal.SIGSTOP)
    drain(two, node)
    two.until(lambda: "asked to save" in two.job(job)["because"], 10, "it waits")
    two.signal(status.agent_pid, signal.SIGCONT)
    two.until(lambda: two.job(job)["attempt"] == 2 and two.job(job)["resumed_from"], 60, "it goes on elsewhere")
    assert two.job(job)["resumed_from"] >= before["step"]
