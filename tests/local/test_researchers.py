"""What researchers meet: bugs of their own, hangs, stops, logs, and checkpoints that are torn."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.up_rig import Sickbay, running

pytestmark = pytest.mark.slow

PY = (sys.executable, "-c")


def test_an_application_bug_fails_with_its_diagnosis_and_touches_no_node(four: Sickbay) -> None:
    job = four.submit(*PY, "import no_such_module_at_all")
    failed = four.ends(job, "FAILED")
    assert "no_such_module_at_all" in failed["diagnosis"]
    assert "not installed" in failed["diagnosis"]
    assert failed["attempt"] == 1
    assert not four.incidents()
    assert all(node["state"] == "READY" and node["schedulable"] for node in four.nodes())


def test_a_command_that_does_not_exist_fails_and_says_so(four: Sickbay) -> None:
    failed = four.ends(four.submit("no-such-command-here"), "FAILED")
    assert "no-such-command-here" in failed["diagnosis"]
    assert "not found" in failed["diagnosis"]


def test_what_may_come_right_is_restarted_until_its_restarts_are_spent(four: Sickbay) -> None:
    job = four.submit(*PY, "import sys; sys.exit(3)", max_restarts=2)
    failed = four.ends(job, "FAILED")
    assert failed["attempt"] == 3
    assert "2 of 2 restarts" in failed["diagnosis"]


def test_a_job_without_our_library_runs_and_restarts(four: Sickbay) -> None:
    flag = four.state / "flag"
    script = f"import os,sys,pathlib; p=pathlib.Path({str(flag)!r}); ok=p.exists(); p.touch(); sys.exit(0 if ok else 9)"
    done = four.ends(four.submit(*PY, script, nodes=1))
    assert done["attempt"] == 2
    assert done["step"] is None


def test_a_rank_sees_what_torchrun_would_tell_it(four: Sickbay) -> None:
    names = "SICKBAY_JOB_ID SICKBAY_ATTEMPT SICKBAY_CHECKPOINT_DIR SICKBAY_HEARTBEAT MASTER_ADDR MASTER_PORT RANK "
    names += "WORLD_SIZE LOCAL_RANK NODE_RANK"
    script = f"import os; print(*(f'{{n}}={{os.environ[n]}}' for n in {names.split()!r}), sep=chr(10))"
    job = four.submit(*PY, script, nodes=2, ranks_per_node=2)
    four.ends(job)
    said = [
        dict(line.split("=", 1) for line in four.get(f"/v1/jobs/{job}/logs", rank=r)["text"].split()) for r in range(4)
    ]
    assert [one["RANK"] for one in said] == ["0", "1", "2", "3"]
    assert [one["LOCAL_RANK"] for one in said] == ["0", "1", "0", "1"]
    assert [one["NODE_RANK"] for one in said] == ["0", "0", "1", "1"]
    assert {one["WORLD_SIZE"] for one in said} == {"4"}
    assert len({(one["MASTER_ADDR"], one["MASTER_PORT"]) for one in said}) == 1
    assert {one["SICKBAY_JOB_ID"] for one in said} == {job}


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[Sickbay]:
    yield from running(tmp_path / "state", nodes=3)


def test_a_frozen_rank_is_a_hang_its_stacks_are_kept_and_the_job_goes_on(impatient: Sickbay) -> None:
    job = impatient.train(150, stall_after=2.0)
    node = impatient.reaches(job, 15)["nodes"][0]
    (rank,) = impatient.ranks(node, job)
    impatient.signal(rank.pid, signal.SIGSTOP)
    done = impatient.ends(job)
    assert done["attempt"] == 2
    assert "hung" in done["interruptions"][0]["cause"]
    assert done["resumed_from"] >= 10
    assert list((impatient.state / "local").glob(f"seats/*/instances/*/ranks/{job}.1.*/stacks.txt"))
    assert not impatient.incidents()


def test_a_job_whose_log_falls_silent_is_hung_by_its_own_rule(impatient: Sickbay) -> None:
    script = "import time; print('epoch 1 done', flush=True); time.sleep(600)"
    rule = {"name": "epochs", "pattern": "epoch .* done", "starts_within": 20, "recurs_within": 1.5}
    job = impatient.submit(*PY, script, nodes=1, max_restarts=0, log_rules=[rule])
    failed = impatient.ends(job, "FAILED")
    assert "epochs" in failed["interruptions"][0]["cause"]


def test_a_torn_checkpoint_is_passed_over_and_the_story_says_so(four: Sickbay) -> None:
    checkpoints = four.state / "checkpoints"
    job = four.train(200, every=50, checkpoint=str(checkpoints))
    newest = checkpoints / "attempt-1" / "step-100"
    four.until((newest / "manifest.json").exists, 60, "its second checkpoint is there")
    shard = newest / "rank-0.shard"  # 50 steps are left until the next one
    shard.write_bytes(shard.read_bytes()[:3])
    four.inject(four.job(job)["nodes"][-1], xid=79, cured_by="reboot")
    done = four.ends(job)
    assert done["resumed_from"] == 50
    (told,) = [line for line in four.story(job) if "skipped" in line]
    assert "attempt-1/step-100" in told
    assert "torn" in told


def test_a_person_stops_a_job_at_any_moment(four: Sickbay) -> None:
    waiting = four.submit(*PY, "pass", name="waits", nodes=4)
    training = four.train(10_000, nodes=2)
    four.reaches(training, 5)
    queued = four.submit(*PY, "pass", name="queued", nodes=4)
    for job in (queued, training):
        four.post(f"/v1/jobs/{job}/stop", reason="changed my mind")
        stopped = four.ends(job, "STOPPED", 30)
        assert "changed my mind" in stopped["because"]
    four.ends(waiting)
    four.until(lambda: not any(node["job"] for node in four.nodes()), 20, "all nodes are free")


def test_a_smaller_gang_will_do_where_the_job_says_so(two: Sickbay) -> None:
    job = two.train(200, min_nodes=1)
    sick = two.reaches(job, 15)["nodes"][-1]
    two.inject(sick, xid=79, cured_by="nothing")
    done = two.ends(job)
    assert done["attempt"] >= 2
    assert done["interruptions"]


def test_logs_follow_a_rank_to_its_end(four: Sickbay) -> None:
    script = "import time\nfor n in range(50): print('line', n, flush=True); time.sleep(0.02)"
    job = four.submit(*PY, script, nodes=1)
    four.until(lambda: four.job(job)["attempt"] == 1 and four.job(job)["state"] != "GATING", 30)
    text, after, over = "", 0, False
    while not over:
        piece = four.get(f"/v1/jobs/{job}/logs", rank=0, after=after, wait=5)
        text, after, over = text + piece["text"], piece["next"], piece["over"]
    assert text.splitlines() == [f"line {n}" for n in range(50)]
