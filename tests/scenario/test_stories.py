"""What a researcher finds in the story of a job: where it took up, what it was doing when it hung, why it failed."""

import pytest
from tests.support.wards import DAY, HOUR, Ward, policy_of, warm_and_cold

from sickbay.model.facts import Looked, Stepped
from sickbay.model.fleet import JobId
from sickbay.model.job import JobState

BUG = """Traceback (most recent call last):
  File "train.py", line 61, in main
    loss = step(batch[key])
KeyError: 'labels'
"""


def story(w: Ward, job: JobId) -> list[str]:
    return [line.text for line in w.sim.store.story(f"job:{job}")]


def refused(w: Ward, job: JobId) -> str:
    done = w.ends(job, JobState.FAILED, most=HOUR)
    assert done.claim == {}
    assert done.attempt == 0
    assert w.events("start") == []
    w.run(10)
    assert [notice.text for notice in w.notices("job_failed")] == [f"{job}: {done.diagnosis}"]
    told = [f"is being told through log: {job}: {done.diagnosis}", "told through log"]
    assert story(w, job)[-3:] == [f"FAILED: {done.diagnosis}", *told]
    return done.diagnosis


@warm_and_cold
def test_a_job_that_makes_no_sense_fails_at_once_with_one_line(cold: bool) -> None:
    w = Ward(nodes=2, cold=cold)
    assert "min_nodes is 3: write 1 to 2" in refused(w, w.submit(nodes=2, min_nodes=3))
    w.rests()


def test_a_job_on_nodes_of_another_cluster_fails_at_once_with_one_line() -> None:
    w = Ward(nodes=2)
    assert "elsewhere/a is not a node of sim" in refused(w, w.submit(on=("elsewhere/a",)))


@warm_and_cold
def test_where_an_attempt_took_up_and_what_it_skipped_is_told_once(cold: bool) -> None:
    w = Ward(nodes=3, cold=cold)
    job = w.training(steps=20_000, does={"tell_every": 600.0})
    w.run(HOUR)
    w.sick(w.starts(job)[0][1][0])
    w.until(lambda: len(w.starts(job)) == 2, HOUR)
    torn = "attempt-1/step-300: its manifest is missing"
    for number, step in enumerate((201, 202)):
        news = Stepped(job=job, attempt=2, step=step, resumed_from=200, skipped=(torn,))
        w.sim._say(f"step/{number}", news)
    w.run(HOUR)
    told = [text for text in story(w, job) if text.startswith("attempt 2 resumes")]
    assert told == [f"attempt 2 resumes at step 200; newer checkpoints were skipped: {torn}"]
    assert not any(text.startswith("attempt 1 resumes") for text in story(w, job)), "it began at step 0"


def test_an_attempt_that_could_use_no_checkpoint_says_so() -> None:
    w = Ward(nodes=2)
    job = w.training()
    w.sim._say("step", Stepped(job=job, attempt=1, step=1, skipped=("step-9: corrupt",)))
    w.run(60)
    assert "attempt 1 begins anew; newer checkpoints were skipped: step-9: corrupt" in story(w, job)


@warm_and_cold
def test_what_a_hung_job_was_doing_is_in_its_story(cold: bool) -> None:
    w = Ward(nodes=2, cold=cold)
    job = w.training(steps=20_000)
    w.world.hang(job)
    w.until(lambda: any(e.detail == job for e in w.events("look")), HOUR)
    look = next(e.subject for e in w.events("look") if e.detail == job)
    seat = w.world.seat(w.nodes[0])
    stacks = "rank 0: all_reduce (nccl.py:88)"
    news = Looked(look=look, node=seat.id, incarnation=seat.incarnation, text=stacks)
    w.sim._say("stacks", news)
    w.until(lambda: len(w.starts(job)) == 2, HOUR)
    (told,) = [text for text in story(w, job) if "were doing" in text]
    assert stacks in told
    assert str(seat.id) in told


@pytest.mark.parametrize(
    ("tail", "diagnosis", "attempts"),
    [
        ("ModuleNotFoundError: No module named 'apex'", "ModuleNotFoundError: No module named 'apex'", 1),
        ("OSError: [Errno 28] No space left on device", "No space left on device", 1),
        (BUG, "(a rank on sim/train-0000 ended with exit code 1); 2 of 2 restarts are spent", 3),
    ],
)
def test_a_bug_ends_the_job_with_its_line_and_no_node_is_touched(tail: str, diagnosis: str, attempts: int) -> None:
    w = Ward(nodes=3, policy=policy_of(max_restarts=2))
    job = w.submit(steps=20_000)
    for _ in range(attempts):
        w.until(lambda: w.trains(job), HOUR)
        w.world.crash(job, tail=tail)
        w.run(30)
    done = w.ends(job, JobState.FAILED, most=DAY)
    assert diagnosis in done.diagnosis
    assert done.attempt == attempts
    assert w.incidents() == []
    assert w.events("cordon") == []
    w.rests()


def test_a_rank_that_a_signal_ended_is_diagnosed_by_its_name() -> None:
    w = Ward(nodes=2, policy=policy_of(max_restarts=0))
    job = w.training(steps=20_000)
    w.world.crash(job, exit_code=-9, tail="")
    done = w.ends(job, JobState.FAILED)
    assert "killed by SIGKILL" in done.diagnosis
    assert w.incidents() == []
