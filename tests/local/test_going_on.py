"""Jobs that go on: from a stopped, failed or complete one, in its directory, and never beside a living one."""

import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.up_rig import SAMPLE, NotNowError, Sickbay

from sickbay import train

pytestmark = pytest.mark.slow


def trained(rig: Sickbay, steps: int, directory: Path, **more: Any) -> str:
    return rig.train(steps, nodes=1, checkpoint=str(directory), precheck=0, **more)


def sample(steps: int) -> list[str]:
    return [*SAMPLE, "--steps", str(steps), "--every", "10", "--step-seconds", "0.05"]


def restart(rig: Sickbay, job: str, **body: Any) -> str:
    return str(rig.post(f"/v1/jobs/{job}/restart", **body)["id"])


def stopped(rig: Sickbay, job: str, directory: Path) -> int:
    """The step that it has saved last."""
    rig.post(f"/v1/jobs/{job}/stop", reason="the learning rate is wrong")
    rig.ends(job, "STOPPED")
    newest = train.latest_valid(directory)
    return newest.step if newest is not None else 0


def lose(rig: Sickbay, job: str, attempt: int) -> None:
    rig.until(lambda: rig.job(job)["attempt"] == attempt and rig.job(job)["saved"], 60, "it saves")
    node = rig.job(job)["nodes"][0]
    (rank,) = rig.until(lambda: rig.ranks(node, job), 60, "its rank runs")
    rig.signal(rank.pid, signal.SIGKILL)


def test_a_stopped_job_goes_on_where_it_was_after_attempts_that_were_lost(four: Sickbay, tmp_path: Path) -> None:
    old = trained(four, 5000, tmp_path / "ck", max_restarts=10)
    for attempt in (1, 2):
        lose(four, old, attempt)
    four.until(lambda: four.job(old)["attempt"] == 3 and four.job(old)["resumed_from"], 60, "it trains again")
    with pytest.raises(NotNowError, match=f"{old} is RUNNING, and only what is over is continued: sickbay stop {old}"):
        restart(four, old)
    saved = stopped(four, old, tmp_path / "ck")

    steps = saved // 10 * 10 + 20  # it saves every tenth one, and another when it is asked to
    new = restart(four, old, nodes=2, command=sample(steps), reason="smaller steps")
    done = four.ends(new)
    assert (done["attempt"], done["restarts"], done["interruptions"]) == (1, 0, [])
    assert (done["continues"], done["resumed_of"], done["resumed_from"]) == (old, old, saved)
    assert four.job(old)["continued_by"] == new
    assert f"attempt 1 resumes at step {saved} of job {old}" in four.story(new)
    assert f"continued by {new}: smaller steps" in four.story(old)
    assert (tmp_path / "ck" / "attempt-4" / "LINEAGE").exists()

    once_more = four.ends(restart(four, new, command=sample(steps + 10)))
    assert once_more["resumed_from"] == steps, "a complete one may be given more steps"
    back = four.ends(restart(four, once_more["id"], step=saved, command=sample(steps)))
    assert (back["resumed_from"], back["resumed_of"]) == (saved, old)
    assert (tmp_path / "ck" / "attempt-5" / f"step-{steps + 10}" / "manifest.json").exists(), "it stays"


def test_a_new_submission_on_the_directory_goes_on_too_and_says_from_whose(four: Sickbay, tmp_path: Path) -> None:
    old = trained(four, 5000, tmp_path / "ck")
    four.until(lambda: four.job(old)["saved"], 60, "it saves")
    for directory in (tmp_path / "ck", f"{tmp_path}/x/../ck/"):
        with pytest.raises(NotNowError, match=f"{old} is RUNNING and saves into .* another --checkpoint"):
            trained(four, 10, directory)  # type: ignore[arg-type]
    saved = stopped(four, old, tmp_path / "ck")
    new = trained(four, saved + 10, tmp_path / "ck")
    done = four.ends(new)
    assert (done["continues"], done["resumed_from"], done["resumed_of"]) == (old, saved, old)
    anew = four.ends(trained(four, 10, tmp_path / "ck", anew=True))
    assert anew["resumed_from"] is None
    four.reaches(anew["id"], 10)


def test_a_link_to_the_directory_of_a_living_job_is_refused_by_rank_0(four: Sickbay, tmp_path: Path) -> None:
    old = trained(four, 5000, tmp_path / "ck")
    four.until(lambda: four.job(old)["saved"], 60, "it saves")
    (tmp_path / "link").symlink_to(tmp_path / "ck")
    failed = four.ends(trained(four, 10, tmp_path / "link"), "FAILED")
    assert f"holds checkpoints of job {old}" in failed["diagnosis"]
    assert (failed["attempt"], failed["restarts"]) == (1, 0), "no restart makes it right"
    assert not (tmp_path / "ck" / "attempt-2").exists()
    assert four.job(old)["attempt"] == 1, "the one that was there first never noticed"
    stopped(four, old, tmp_path / "ck")


def test_a_job_that_failed_goes_on_when_what_was_wrong_is_mended(four: Sickbay, tmp_path: Path) -> None:
    flag, script = tmp_path / "full", "import os,sys,runpy; sys.argv[0]='sample'\n"
    script += f"if os.path.exists({str(flag)!r}): sys.exit('OSError: [Errno 28] No space left on device')\n"
    script += "runpy.run_module('sickbay.train.sample', run_name='__main__')"
    old = trained(four, 20, tmp_path / "ck")
    four.ends(old)
    flag.touch()
    words = [sys.executable, "-c", script, "--steps", "30", "--step-seconds", "0.05"]
    full = restart(four, old, command=words)
    assert "no room to write" in four.ends(full, "FAILED")["diagnosis"]
    flag.unlink()
    done = four.ends(restart(four, full))
    assert (done["resumed_from"], done["resumed_of"]) == (20, old)
    four.reaches(done["id"], 30)


def test_an_empty_directory_and_a_step_that_is_not_there_are_refused(four: Sickbay, tmp_path: Path) -> None:
    old = trained(four, 20, tmp_path / "ck")
    four.ends(old)
    missing = four.ends(restart(four, old, step=15), "FAILED")
    assert "cannot go on from step 15" in missing["diagnosis"]
    assert "there are 10, 20" in missing["diagnosis"]
    shutil.rmtree(tmp_path / "ck")
    lost = restart(four, missing["id"])
    assert "this job has been at step 20" in four.ends(lost, "FAILED")["diagnosis"]
    anew = four.ends(restart(four, lost, anew=True))
    assert anew["resumed_from"] is None
    four.reaches(anew["id"], 20)


def test_without_a_directory_of_its_own_it_goes_on_in_that_of_the_first_one(four: Sickbay) -> None:
    first = four.train(20, nodes=1, precheck=0)
    four.ends(first)
    second = restart(four, first, command=sample(30))
    assert four.ends(second)["resumed_from"] == 20
    assert four.ends(restart(four, second, command=sample(40)))["resumed_from"] == 30
    assert not (four.state / "local" / "checkpoints" / second).exists()


def test_one_key_restarts_a_job_once(four: Sickbay, tmp_path: Path) -> None:
    old = trained(four, 10, tmp_path / "ck")
    four.ends(old)
    token = (four.state / "operator.token").read_text()
    headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": f"again-{old}"}
    body = {"command": sample(5000)}
    with httpx.Client(base_url=four.url, headers=headers, timeout=30) as client:
        made = [client.post(f"/v1/jobs/{old}/restart", json=body) for _ in range(2)]
    assert [answer.status_code for answer in made] == [201, 201]
    assert made[0].json()["id"] == made[1].json()["id"]
    with pytest.raises(NotNowError, match=f"{old} is continued already, by {made[0].json()['id']}"):
        restart(four, old)
    stopped(four, made[0].json()["id"], tmp_path / "ck")
