"""What rank 0 says of its checkpoints, as the engine shows it: what is saved, what fails, what it is busy with."""

from typing import Any

import msgspec
from tests.support.wards import HOUR, MINUTE, Ward

from sickbay.faces.explain import explain
from sickbay.model.facts import Checkpointed, Hung
from sickbay.model.fleet import JobId
from sickbay.sim.hardware import SimDefect


def says(w: Ward, job: JobId, **what: Any) -> None:
    """Rank 0 says it, and the engine has heard."""
    row = w.job(job)
    seat = w.world.seat(min(row.claim))
    news = Checkpointed(**{"job": job, "attempt": row.attempt, "node": seat.id, **what})
    w.world.agents.say(seat, news, f"said:{w.world.ground.number()}")
    w.run(10.0)


def hangs(w: Ward, job: JobId, why: str) -> None:
    row = w.job(job)
    seat = w.world.seat(max(row.claim))
    w.world.agents.say(seat, Hung(job=job, attempt=row.attempt, because=why, node=seat.id), f"hung:{why}")
    w.run(10.0)


def texts(w: Ward, event: str) -> list[str]:
    return [notice.text for notice in w.notices(event)]


def test_the_newest_saved_step_is_shown_with_its_time() -> None:
    w = Ward()
    job = w.training(steps=100_000)
    assert explained(w, job)["saved"] is None
    says(w, job, saved=40)
    first = explained(w, job)
    assert first["saved"] == 40
    says(w, job, saved=40, busy="saving attempt-1/step-50", done=1, of=2)
    assert explained(w, job)["saved_at"] == first["saved_at"]
    says(w, job, saved=50)
    assert (explained(w, job)["saved"], explained(w, job)["saved_at"] > first["saved_at"]) == (50, True)


def test_a_save_that_fails_is_told_when_it_begins_and_when_it_is_mended_and_not_in_between() -> None:
    w = Ward()
    job = w.training(steps=100_000)
    says(w, job, saved=40)
    for step in (50, 60, 70):
        says(w, job, saved=40, failed=f"step {step}: No space left on device")
    assert texts(w, "save_failed") == [
        "train: not saved: step 50: No space left on device; the training goes on, the newest that is saved is step 40"
    ]
    assert explained(w, job)["save_failed"] == "step 70: No space left on device"
    says(w, job, saved=80)
    assert texts(w, "save_mended") == ["train: saves again: step 80"]
    assert explained(w, job)["save_failed"] == ""
    says(w, job, saved=80, failed="step 90: No space left on device")
    assert len(texts(w, "save_failed")) == 2


def test_saves_that_fail_by_turns_are_told_of_a_few_times_an_hour_and_what_lasts_is_told() -> None:
    w = Ward()
    job = w.training(steps=1_000_000)
    for step in range(0, 2000, 20):
        says(w, job, saved=step, failed=f"step {step + 10}: No space left on device")
        says(w, job, saved=step + 20)
    assert len(texts(w, "save_failed")) == len(texts(w, "save_mended")) <= 6
    said = len(texts(w, "save_failed"))
    says(w, job, saved=2000, failed="step 2010: No space left on device")
    w.run(HOUR)
    says(w, job, saved=2000, failed="step 2020: No space left on device")
    assert len(texts(w, "save_failed")) == said + 1
    assert explained(w, job)["save_failed"] == "step 2020: No space left on device"


def test_the_next_attempt_mends_what_failed_by_a_save_of_its_own_and_not_by_its_silence() -> None:
    w = Ward(nodes=4)
    job = w.training(steps=100_000)
    says(w, job, saved=40, failed="step 50: No space left on device")
    w.world.strike(min(w.job(job).claim), SimDefect(code="xid.79", cured_by=None))
    w.until(lambda: w.job(job).attempt == 2 and w.trains(job), HOUR)
    says(w, job, listens=True)
    assert (texts(w, "save_mended"), w.job(job).save_failed) == ([], "step 50: No space left on device")
    says(w, job, saved=60)
    assert texts(w, "save_mended") == ["train: saves again: step 60"]


def test_what_it_is_busy_with_is_shown_while_it_is_and_no_longer() -> None:
    w = Ward()
    job = w.training(steps=100_000)
    says(w, job, busy="verifying attempt-1/step-40", done=412 * 10**9, of=990 * 10**9)
    assert explained(w, job)["doing"] == "verifying attempt-1/step-40: 412 of 990 GB"
    assert explained(w, job)["waits_for"]["because"] == "training: verifying attempt-1/step-40: 412 of 990 GB"
    says(w, job)
    assert explained(w, job)["doing"] == ""


def test_nobody_of_a_job_hangs_while_its_rank_0_advances_in_a_long_piece_of_work() -> None:
    w = Ward()
    job = w.training(steps=100_000, stall_after=10 * MINUTE)
    says(w, job, busy="verifying attempt-1/step-40", done=1, of=9)
    hangs(w, job, "rank 1 on n: no heartbeat within 3600 s")
    assert (w.job(job).state, w.job(job).calls) == ("RUNNING", ())
    w.run(4 * MINUTE)
    says(w, job, busy="verifying attempt-1/step-40", done=1, of=9)  # said again, and no further than before
    w.run(4 * MINUTE)
    hangs(w, job, "rank 0 on n: verifying has stood still")
    w.until(lambda: w.job(job).attempt == 2, HOUR)
    assert "stood still" in w.job(job).interruptions[0].cause


def test_what_an_old_attempt_or_a_strange_node_says_changes_nothing() -> None:
    w = Ward()
    job = w.training(steps=100_000)
    before = w.job(job)
    says(w, job, saved=40, attempt=7)
    stranger = next(node for node in w.nodes if node not in before.claim)
    seat = w.world.seat(stranger)
    news = Checkpointed(job=job, attempt=before.attempt, saved=99, node=stranger)
    w.world.agents.say(seat, news, "stranger")
    w.run(10.0)
    assert w.job(job).saved is None


def explained(w: Ward, job: JobId) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(explain(w.sim.store, job)))
    return shown
