"""What a user is told of his job: which rank, where, how it ended; hangs, logs, and the environment of a rank."""

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.up_rig import Sickbay, running

pytestmark = pytest.mark.slow

PY = (sys.executable, "-c")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sickbay]:
    yield from running(tmp_path_factory.mktemp("telling") / "state", nodes=3)


def explained(lab: Sickbay, job: str) -> dict[str, Any]:
    found: dict[str, Any] = lab.get("/v1/explain", name=job)
    return found


def test_an_exit_code_is_told_with_its_rank_node_and_last_lines(lab: Sickbay) -> None:
    job = lab.submit(*PY, 'import sys; print("bye"); sys.exit(7)', nodes=1, max_restarts=1)
    failed = lab.ends(job, "FAILED")
    assert len(failed["attempts"]) == 2
    for number, attempt in enumerate(failed["attempts"], 1):
        (node,) = attempt["names"]
        assert (attempt["number"], attempt["nodes"], attempt["reason"]) == (number, 1, "failed")
        first = attempt["first_failed"]
        assert (first["rank"], first["node"], first["exit_code"], first["signal"]) == (0, node, 7, None)
        assert attempt["last_lines"] == ["bye"]
        assert attempt["began_at"] <= attempt["started_at"] <= attempt["ended_at"]
        assert f"rank 0 on {node} ended with exit code 7" in attempt["because"]
    assert f"rank 0 on {node} ended with exit code 7" in failed["diagnosis"]
    assert any("ended with exit code 7" in line for line in lab.story(job))
    assert explained(lab, job)["attempts"] == failed["attempts"]


def test_a_killed_rank_is_named_with_its_node_and_signal_and_a_complete_job_has_no_diagnosis(lab: Sickbay) -> None:
    job = lab.train(60)
    nodes = lab.reaches(job, 15)["nodes"]
    (rank,) = lab.ranks(nodes[1], job)
    lab.signal(rank.pid, signal.SIGKILL)
    done = lab.ends(job)
    first, second = done["attempts"]
    ended = first["first_failed"]
    assert (ended["rank"], ended["node"], ended["exit_code"], ended["signal"]) == (rank.rank, nodes[1], -9, "SIGKILL")
    assert f"rank {rank.rank} on {nodes[1]} was killed by SIGKILL" in done["interruptions"][0]["cause"]
    assert (second["reason"], second["first_failed"]) == ("completed", None)
    assert len(second["names"]) == 2
    assert done["diagnosis"] == ""
    assert done["command"][1:3] == ["-m", "sickbay.train.sample"]
    assert done["submitted_at"] < second["ended_at"] <= done["ended_at"]
    assert done["checkpoint"].endswith(job)
    assert done["saved"] == 60


# --- hangs before the first heartbeat


@pytest.mark.parametrize(
    "script",
    [
        "import time; time.sleep(600)",  # as at a rendezvous, before anything of ours is imported
        "import time; from sickbay.train import Checkpoints; Checkpoints().load(); time.sleep(600)",
    ],
)
def test_a_job_that_asks_for_it_is_hung_without_a_first_heartbeat(lab: Sickbay, script: str) -> None:
    job = lab.submit(*PY, script, nodes=1, start_within=1.5, max_restarts=0)
    failed = lab.ends(job, "FAILED")
    (node,) = failed["attempts"][0]["names"]
    assert (
        f"hung: rank 0 on {node}: no first heartbeat within 1.5 s of its start" in failed["interruptions"][0]["cause"]
    )


def test_a_job_that_never_promised_heartbeats_is_left_alone_and_explain_promises_nothing(lab: Sickbay) -> None:
    job = lab.submit("sleep", "3600", nodes=1)
    lab.until(lambda: lab.job(job)["state"] == "RUNNING", 60)
    waits = explained(lab, job)["waits_for"]
    assert waits["changed_by"] == ["it ends", "a fault is found under it", "you stop it for good"]
    assert any("a hang would not be noticed" in note for note in waits["notes"])
    lab.post(f"/v1/jobs/{job}/stop", reason="enough", now=True)
    stopped = lab.ends(job, "STOPPED")
    assert [one["reason"] for one in stopped["attempts"]] in [["failed"], [None]]
    assert stopped["attempts"][0]["ended_at"]


def test_explain_says_by_when_a_first_heartbeat_is_awaited(lab: Sickbay) -> None:
    job = lab.submit("sleep", "3600", nodes=1, start_within=900)
    limit = "no first heartbeat comes within 15m of its start"
    lab.until(lambda: limit in explained(lab, job)["waits_for"]["changed_by"], 60, "it runs, and its start is over")
    lab.post(f"/v1/jobs/{job}/stop", reason="enough", now=True)


def test_a_log_rule_that_is_too_slow_is_told(lab: Sickbay) -> None:
    rule = {"name": "steps", "pattern": "(a+)+$", "starts_within": 300}
    script = f"import time; print({40 * 'a' + '!'!r}, flush=True); time.sleep(600)"
    job = lab.submit(*PY, script, nodes=1, log_rules=[rule])
    lab.until(lambda: any(n["event"] == "log_rule_off" for n in lab.notices()), 60, "a person is told")
    waits = explained(lab, job)["waits_for"]
    assert "its log rule steps is broken" not in waits["changed_by"]
    assert any("log rule steps is switched off" in note for note in waits["notes"])
    assert any("log rule 'steps' is switched off" in line for line in lab.story(job))
    lab.post(f"/v1/jobs/{job}/stop", reason="enough", now=True)


# --- what cannot come right by another try


def test_a_checkpoint_directory_that_cannot_be_ends_the_job_at_once(lab: Sickbay) -> None:
    job = lab.train(5, checkpoint="/proc/nope")
    failed = lab.ends(job, "FAILED", 30)
    assert "its checkpoint directory /proc/nope cannot be made: No such file or directory" in failed["diagnosis"]
    assert "no other try can put it right" in failed["diagnosis"]
    assert len([line for line in lab.story(job) if "no rank starts before" in line]) == 1


def test_no_room_is_told_with_the_directory_of_the_checkpoints(lab: Sickbay) -> None:
    script = "from sickbay.train import Checkpoints; Checkpoints(); raise OSError(28, 'No space left on device')"
    job = lab.submit(*PY, script, nodes=1)
    failed = lab.ends(job, "FAILED")
    assert "there is no room to write" in failed["diagnosis"]
    assert f"its checkpoints are in {failed['checkpoint']}" in failed["diagnosis"]
    assert failed["checkpoint"].endswith(job)


# --- logs


def cli(lab: Sickbay, *args: str) -> str:
    """What the command line prints into a pipe."""
    token = (lab.state / "operator.token").read_text()
    env = {**os.environ, "SICKBAY_URL": lab.url, "SICKBAY_TOKEN": token, "XDG_CONFIG_HOME": str(lab.state / "config")}
    command = [sys.executable, "-m", "sickbay", *args]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=True).stdout


def test_logs_keep_head_and_tail_and_say_what_was_left_out(lab: Sickbay) -> None:
    script = "for n in range(600_000): print(f'line {n:07d}', 'x' * 60)\nprint('the end')"
    job = lab.submit(*PY, script, nodes=1)
    lab.ends(job)
    lines = cli(lab, "logs", job).splitlines()
    assert lines[0].startswith("line 0000000 x")
    assert lines[-1] == "the end"
    (gap,) = [n for n, line in enumerate(lines) if "left out here" in line]
    assert lines[gap].startswith("… ")
    assert lines[gap].endswith(" MB left out here …")
    assert {len(line) for n, line in enumerate(lines[:-1]) if n != gap} == {73}


def test_what_a_job_writes_never_reaches_a_terminal_as_a_command(lab: Sickbay) -> None:
    wild = "\x1b]0;owned\x07\x1b]52;c;aGk=\x1b\\\x1b[2Jboom\x1b[0m"
    script = (
        f"import sys; print({wild!r}, flush=True); print({'RuntimeError: ' + wild!r}, file=sys.stderr); sys.exit(3)"
    )
    job = lab.submit(*PY, script, nodes=1, max_restarts=0)
    failed = lab.ends(job, "FAILED")
    assert cli(lab, "logs", job) == "boom\nRuntimeError: boom\n"
    assert cli(lab, "logs", job, "--raw").startswith(wild)
    assert "\x1b" not in "".join(lab.story(job)) + failed["diagnosis"] + "".join(failed["attempts"][0]["last_lines"])
    assert any("RuntimeError: boom" in n["text"] for n in lab.notices())
    assert "\x1b" not in (lab.state / "controller.log").read_text()


def test_stacks_of_a_hung_rank_stay_on_their_lines(lab: Sickbay) -> None:
    script = "import time, sickbay.train\ndef waits_for_peers():\n    time.sleep(600)\nwaits_for_peers()"
    job = lab.submit(*PY, script, nodes=1, start_within=2, max_restarts=0)
    lab.ends(job, "FAILED")
    shown = cli(lab, "explain", job, "--all").splitlines()
    assert any("waits_for_peers (" in line and "rank 0" not in line for line in shown), shown


# --- the environment of a rank


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture
def secretive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sickbay]:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "0perat0rs")  # of the shell that starts the controller
    yield from running(tmp_path / "state", nodes=1)


def test_a_rank_has_what_its_submitter_gave_and_nothing_of_the_controllers_shell(
    secretive: Sickbay, tmp_path: Path
) -> None:
    file = tmp_path / "wandb.env"
    file.write_text("WANDB_API_KEY=f1le0nly\n")
    file.chmod(0o600)
    show = "import os, hashlib; [print(n, hashlib.sha256(v.encode()).hexdigest()) for n, v in os.environ.items()]"
    words = ("--nodes", "1", "--env", "PLAIN=1nclear", "--env-file", str(file), "--json", "--", *PY, show)
    job = json.loads(cli(secretive, "submit", "--name", "shows", *words))["id"]
    done = secretive.ends(job)
    seen = dict(line.split() for line in cli(secretive, "logs", job).splitlines())
    assert (seen["PLAIN"], seen["WANDB_API_KEY"]) == (sha("1nclear"), sha("f1le0nly"))
    assert seen["PATH"] == sha(os.environ["PATH"])
    assert "AWS_SECRET_ACCESS_KEY" not in seen
    assert "SICKBAY_TOKEN" not in seen
    assert "PLAIN" in done["env"]
    assert done["env_files"] == [str(file)]
    assert "1nclear" not in json.dumps([done, explained(secretive, job)])
    kept = [path for path in secretive.state.rglob("*") if path.is_file()]
    assert any("sickbay.db" in path.name for path in kept)
    assert [path for path in kept if b"f1le0nly" in path.read_bytes()] == []


def test_an_env_file_that_is_gone_ends_the_job_and_says_which(secretive: Sickbay, tmp_path: Path) -> None:
    job = secretive.submit("true", nodes=1, env_files=[str(tmp_path / "gone.env")])
    failed = secretive.ends(job, "FAILED")
    assert failed["attempt"] == 1
    assert "its environment file cannot be used" in failed["diagnosis"]
    assert f"env file {tmp_path / 'gone.env'}: No such file or directory" in failed["diagnosis"]


# --- an agent that is dead


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Sickbay]:
    yield from running(tmp_path / "state", nodes=3)


def test_a_fault_that_is_read_late_is_the_cause_after_all_and_the_look_named_who_did_not_answer(alone: Sickbay) -> None:
    job = alone.train(1000)
    node = alone.reaches(job, 15)["nodes"][-1]
    status = alone.status(node)
    assert status is not None
    alone.signal(status.agent_pid, signal.SIGKILL)
    alone.inject(node, xid=79, cured_by="reboot")
    alone.until(lambda: any(f"given up: {node} did not answer" in line for line in alone.story(job)), 60)
    ended = alone.job(job)["attempts"][0]["first_failed"]
    assert (ended["node"], ended["signal"], ended["why"]) == (node, "SIGKILL", "GPU 0 is broken: xid 79")
    alone.until(
        lambda: alone.job(job)["interruptions"][0]["cause"] == f"xid.79 on {node}", 45, "the cause is corrected"
    )
    found = alone.job(job)
    assert found["restarts"] == 0
    assert found["attempts"][0]["because"] == f"xid.79 on {node}"
    alone.post(f"/v1/jobs/{job}/stop", reason="enough", now=True)
