"""What rank 0 says of its checkpoints, as the engine shows it: what is saved, what fails, what it is busy with."""

from typing import Any

import msgspec
from tests.support.jobs_vocabulary import HOUR, MINUTE, Hall

from sickbay.faces.explain import explain
from sickbay.model.facts import Checkpointed, Hung
from sickbay.model.fleet import JobId
from sickbay.sim.hardware import SimDefect


def says(hall: Hall, job: JobId, **what: Any) -> None:
    """Rank 0 says it, and the engine has heard."""
    row = hall.job(job)
    seat = hall.world.seat(min(row.claim))
    news = Checkpointed(**{"job": job, "attempt": row.attempt, "node": seat.id, **what})
    hall.world.agents.say(seat, news, f"said:{hall.world.ground.number()}")
    hall.run(10.0)


def hangs(hall: Hall, job: JobId, why: str) -> None:
    row = hall.job(job)
    seat = hall.world.seat(max(row.claim))
    hall.world.agents.say(seat, Hung(job=job, attempt=row.attempt, because=why, node=seat.id), f"hung:{why}")
    hall.run(10.0)


def texts(hall: Hall, event: str) -> list[str]:
    return [notice.text for notice in hall.told(event)]


def test_the_newest_saved_step_is_shown_with_its_time() -> None:
    hall = Hall()
    job = hall.training(steps=100_000)
    assert explained(hall, job)["saved"] is None
    says(hall, job, saved=40)
    first = explained(hall, job)
    assert first["saved"] == 40
    says(hall, job, saved=40, busy="saving attempt-1/step-50", done=1, of=2)
    assert explained(hall, job)["saved_at"] == first["saved_at"]
    says(hall, job, saved=50)
    assert (explained(hall, job)["saved"], explained(hall, job)["saved_at"] > first["saved_at"]) == (50, True)


def test_a_save_that_fails_is_told_when_it_begins_and_when_it_is_mended_and_not_in_between() -> None:
    hall = Hall()
    job = hall.training(steps=100_000)
    says(hall, job, saved=40)
    for step in (50, 60, 70):
        says(hall, job, saved=40, failed=f"step {step}: No space left on device")
    assert texts(hall, "save_failed") == [
        "train: not saved: step 50: No space left on device; the training goes on, the newest that is saved is step 40"
    ]
    assert explained(hall, job)["save_failed"] == "step 70: No space left on device"
    says(hall, job, saved=80)
    assert texts(hall, "save_mended") == ["train: saves again: step 80"]
    assert explained(hall, job)["save_failed"] == ""
    says(hall, job, saved=80, failed="step 90: No space left on device")
    assert len(texts(hall, "save_failed")) == 2


def test_saves_that_fail_by_turns_are_told_of_a_few_times_an_hour_and_what_lasts_is_told() -> None:
    hall = Hall()
    job = hall.training(steps=1_000_000)
    for step in range(0, 2000, 20):
        says(hall, job, saved=step, failed=f"step {step + 10}: No space left on device")
        says(hall, job, saved=step + 20)
    assert len(texts(hall, "save_failed")) == len(texts(hall, "save_mended")) <= 6
    said = len(texts(hall, "save_failed"))
    says(hall, job, saved=2000, failed="step 2010: No space left on device")
    hall.run(HOUR)
    says(hall, job, saved=2000, failed="step 2020: No space left on device")
    assert len(texts(hall, "save_failed")) == said + 1
    assert explained(hall, job)["save_failed"] == "step 2020: No space left on device"


def test_the_next_attempt_mends_what_failed_by_a_save_of_its_own_and_not_by_its_silence() -> None:
    hall = Hall(nodes=4)
    job = hall.training(steps=100_000)
    says(hall, job, saved=40, failed="step 50: No space left on device")
    hall.world.strike(min(hall.job(job).claim), SimDefect(code="xid.79", cured_by=None))
    hall.until(lambda: hall.job(job).attempt == 2 and hall.trains(job), HOUR)
    says(hall, job, listens=True)
    assert (texts(hall, "save_mended"), hall.job(job).save_failed) == ([], "step 50: No space left on device")
    says(hall, job, saved=60)
    assert texts(hall, "save_mended") == ["train: saves again: step 60"]


def test_what_it_is_busy_with_is_shown_while_it_is_and_no_longer() -> None:
    hall = Hall()
    job = hall.training(steps=100_000)
    says(hall, job, busy="verifying attempt-1/step-40", done=412 * 10**9, of=990 * 10**9)
    assert explained(hall, job)["doing"] == "verifying attempt-1/step-40: 412 of 990 GB"
    assert explained(hall, job)["waits_for"]["because"] == "training: verifying attempt-1/step-40: 412 of 990 GB"
    says(hall, job)
    assert explained(hall, job)["doing"] == ""


def test_nobody_of_a_job_hangs_while_its_rank_0_advances_in_a_long_piece_of_work() -> None:
    hall = Hall()
    job = hall.training(steps=100_000, stall_after=10 * MINUTE)
    says(hall, job, busy="verifying attempt-1/step-40", done=1, of=9)
    hangs(hall, job, "rank 1 on n: no heartbeat within 3600 s")
    assert (hall.job(job).state, hall.job(job).calls) == ("RUNNING", ())
    hall.run(4 * MINUTE)
    says(hall, job, busy="verifying attempt-1/step-40", done=1, of=9)  # said again, and no further than before
    hall.run(4 * MINUTE)
    hangs(hall, job, "rank 0 on n: verifying has stood still")
    hall.until(lambda: hall.job(job).attempt == 2, HOUR)
    assert "stood still" in hall.job(job).interruptions[0].cause


def test_what_an_old_attempt_or_a_strange_node_says_changes_nothing() -> None:
    hall = Hall()
    job = hall.training(steps=100_000)
    before = hall.job(job)
    says(hall, job, saved=40, attempt=7)
    stranger = next(node for node in hall.nodes if node not in before.claim)
    seat = hall.world.seat(stranger)
    news = Checkpointed(job=job, attempt=before.attempt, saved=99, node=stranger)
    hall.world.agents.say(seat, news, "stranger")
    hall.run(10.0)
    assert hall.job(job).saved is None


def explained(hall: Hall, job: JobId) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(explain(hall.sim.store, job)))
    return shown
