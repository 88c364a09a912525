"""Submitting a job, waiting for it, and reading what it writes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.support.canned import CUT, Answer, Asked, Canned, interruption, job, serving

from sickbay.faces.cli.job_name import free_name, name_of
from sickbay.faces.cli.main import main
from sickbay.faces.cli.stages import ProgressLine
from sickbay.faces.cli.submit import PASSED_ON, log_rule_of
from sickbay.model.errors import BadInput

pytestmark = pytest.mark.slow

JOB = "/v1/jobs/train-1a2b3"
OWN = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
STREAM = Answer(b": hello\n\n", media="text/event-stream")


@pytest.fixture(autouse=True)
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Canned]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("SICKBAY_TOKEN", "secret")
    monkeypatch.chdir(tmp_path)
    with serving() as canned:
        monkeypatch.setenv("SICKBAY_URL", canned.url)
        canned.says("POST /v1/jobs", Answer(job(state="QUEUED", attempt=0, nodes=[], step=None), 201))
        canned.says("GET /v1/events", STREAM)
        yield canned


def sickbay(*args: str) -> Result:
    return CliRunner().invoke(main, list(args))


def submit(*args: str) -> Result:
    return sickbay("submit", "--name", "train", *args)


# --- what is asked for


def test_an_image_and_the_clusters_own_words_come_from_options_and_a_file(server: Canned, tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text("spec:\n  tolerations: [{key: gpu}]\n  on: yes\n  priority: 3\n")
    (tmp_path / "pod.json").write_text('{"spec": {"tolerations": [{"key": "gpu"}], "on": "yes", "priority": 3}}')
    for file in ("pod.yaml", "pod.json"):
        result = submit("--nodes", "1", "--image", "lab/train:1", "--native", file, "--", "true")
        assert result.exit_code == 0, result.output
        body = server.asked[-1].body
        assert body["image"] == "lab/train:1"
        assert body["native"] == {"spec": {"tolerations": [{"key": "gpu"}], "on": "yes", "priority": 3}}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "own.yaml: no such file: write --native FILE, a YAML or JSON file that is there"),
        ("- a\n", "own.yaml:1:1: expected 'key: value' lines at the top, got a list"),
        ("spec:\n  a: 1\n  a: 2\n", "own.yaml:3:3: spec: 'a' is given twice"),
    ],
)
def test_a_file_that_is_no_object_is_refused_with_its_place(
    server: Canned, tmp_path: Path, text: str | None, says: str
) -> None:
    if text is not None:
        (tmp_path / "own.yaml").write_text(text)
    result = submit("--nodes", "1", "--native", "own.yaml", "--", "true")
    assert result.exit_code == 2
    assert result.stderr.startswith(says), result.stderr
    assert not server.asked


def test_a_plain_submit_sends_only_what_was_said_and_where_it_was_said(server: Canned, tmp_path: Path) -> None:
    result = submit("--nodes", "2", "--", "python", "train.py", "--lr", "3")
    assert result.exit_code == 0, result.output
    assert result.stdout == "train-1a2b3 submitted: 2 nodes, QUEUED\n"
    assert server.asked[0].body == {
        "name": "train", "nodes": 2, "command": ["python", "train.py", "--lr", "3"], "cwd": str(tmp_path),
        "env": OWN,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "before", "name", "nodes", "says"),
    [
        ((), [], "train", 1, "called train, on 1 node: --name and --nodes say otherwise"),
        (("--nodes", "2"), [], "train", 2, "called train: --name says otherwise"),
        (("--name", "mine"), [], "mine", 1, "on 1 node: --nodes says otherwise"),
        (("--on", "n0"), [], "train", None, "called train: --name says otherwise"),
        ((), ["train", "train-3"], "train-2", 1, "called train-2, on 1 node"),
    ],
)
def test_what_is_not_said_of_a_job_is_chosen_and_told(
    server: Canned, words: tuple[str, ...], before: list[str], name: str, nodes: int | None, says: str
) -> None:
    server.says("GET /v1/jobs", Answer([{**job(), "id": f"{each}-1a2b3", "name": each} for each in before]))
    for wait in ((), ("--wait",)):
        server.says(f"GET {JOB}", Answer(job(state="COMPLETE")))
        result = sickbay("submit", *words, *wait, "--", "python", "src/train.py", "--lr", "3")
        assert result.exit_code == 0, result.output
        assert f"  {says}" in (result.stderr if wait else result.stdout)
        sent = next(one for one in reversed(server.asked) if one.method == "POST").body
        assert (sent["name"], sent.get("nodes")) == (name, nodes)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python train.py", "train"),
        ("python -u -m lab.train_gpt --config other.py", "train_gpt"),
        ("torchrun --nproc-per-node=8 ./src/run.v2.py", "run.v2"),
        ("python3.11 -m torch.distributed.run --nproc-per-node 2 pre_train.py", "pre_train"),
        ("torchrun -m lab.main", "main"),
        ("/opt/lab/train --config other.py", "train"),
        ("./night.sh", "night"),
        ("bash -c true", "bash"),
        ("env LR=1 python _x.py", "x"),
        ("mein\u00fc.py a.py", "mein"),
        ("...", "job"),
        ("", "job"),
        ("x" * 200, "x" * 63),
    ],
)
def test_a_job_is_called_as_the_script_that_its_command_runs(command: str, name: str) -> None:
    assert name_of(command.split(" ")) == name


def test_a_name_that_is_taken_gets_a_number_and_stays_one() -> None:
    assert free_name("train", ["train-2"]) == "train"
    assert free_name("train", ["train", "train-2"]) == "train-3"
    assert free_name("x" * 63, ["x" * 63]) == "x" * 61 + "-2"


def test_everything_that_can_be_said_is_sent(server: Canned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", "passed on")
    result = submit(
        "--on", "n0,local/n1", "--gpus-per-node", "1", "--min-nodes", "1", "--ranks-per-node", "2", "--checkpoint",
        "ckpt/../c", "--max-restarts", "0", "--precheck", "none", "--pool", "gpu", "--env", "A=b=c", "--env", "MINE",
        "--stall-after", "5m", "--log-rule", "loss=loss: .*;start=60s;every=5m", "--json", "python", "x.py", "--nodes",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["id"] == "train-1a2b3"
    assert server.asked[0].body == {
        "name": "train", "on": ["n0", "local/n1"], "gpus_per_node": 1, "min_nodes": 1, "ranks_per_node": 2,
        "checkpoint": str(tmp_path / "c"), "max_restarts": 0, "precheck": 0, "pool": "gpu",
        "env": {**OWN, "A": "b=c", "MINE": "passed on"}, "stall_after": 300.0, "cwd": str(tmp_path),
        "log_rules": [{"name": "loss", "pattern": "loss: .*", "starts_within": 60.0, "recurs_within": 300.0}],
        "command": ["python", "x.py", "--nodes"],
    }  # fmt: skip


def test_env_files_are_named_by_their_paths_and_what_is_in_them_is_not_sent(server: Canned, tmp_path: Path) -> None:
    (tmp_path / "secret.env").write_text("TOKEN=s3cret\n")
    (tmp_path / "secret.env").chmod(0o600)
    assert submit("--nodes", "1", "--env-file", "secret.env", "true").exit_code == 0
    assert server.asked[0].body["env_files"] == [str(tmp_path / "secret.env")]
    assert "s3cret" not in json.dumps(server.asked[0].body)


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [
        ("TOKEN=x\n", 0o644, "can be read or written by everybody: chmod o-rw"),
        ("no such line\n", 0o600, "line 1 is no NAME=value"),
        ("SICKBAY_TOKEN=x\n", 0o600, "SICKBAY_TOKEN is set by Sickbay itself"),
    ],
)
def test_an_env_file_that_would_not_do_is_refused_here(
    server: Canned, tmp_path: Path, text: str, mode: int, why: str
) -> None:
    (tmp_path / "secret.env").write_text(text)
    (tmp_path / "secret.env").chmod(mode)
    result = submit("--nodes", "1", "--env-file", "secret.env", "true")
    assert result.exit_code == 2
    assert why in result.output
    assert not server.asked


def test_stalling_can_be_turned_off(server: Canned) -> None:
    submit("--nodes", "1", "--stall-after", "none", "true")
    assert server.asked[0].body["stall_after"] == 0.0


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--nodes", "1"), "write it after --"),
        (("--min-nodes", "2", "true"), "write --nodes N as well"),
        (("python train.py",), "leave out the quotes"),
        (("--storage", "", "true"), "--storage '' is no directory: write --storage DIR (is a variable not set?)"),
        (("--checkpoint", "", "true"), "--checkpoint '' is no directory"),
        (("--nodes", "1", "--on", "n0", "true"), "one of them"),
        (("--nodes", "-1", "true"), "--nodes"),
        (("--nodes", "0", "true"), "--nodes"),
        (("--on", "n0,,n1", "true"), "empty"),
        (("--nodes", "1", "--precheck", "5", "true"), "--precheck"),
        (("--nodes", "1", "--env", "=x", "true"), "NAME=VALUE"),
        (("--nodes", "1", "--env", "NOT_SET_ANYWHERE", "true"), "it is not set here"),
        (("--nodes", "1", "--stall-after", "soon", "true"), "--stall-after"),
        (("--nodes", "1", "--stall-after", "5", "true"), "--stall-after: '5' is not a duration: write a number with"),
        (("--nodes", "1", "--time-limit", "2", "true"), "--time-limit: '2' is not a duration: write a number with"),
        (("--nodes", "1", "--log-rule", "x", "true"), "NAME=REGEX"),
    ],
)
def test_what_could_never_run_is_refused_before_it_is_sent(server: Canned, args: tuple[str, ...], says: str) -> None:
    result = submit(*args)
    assert result.exit_code == 2, result.output
    assert result.stderr.count("\n") == 1
    assert says in result.stderr
    assert server.asked == []


@pytest.mark.parametrize(
    ("text", "pattern", "start", "every"),
    [
        ("a=x;start=5m", "x", 300.0, None),
        ("a=x;every=1h30m;start=5s", "x", 5.0, 5400.0),
        ("a=k=v;w;every=5s", "k=v;w", None, 5.0),
        ("a=;start=1s;start=2s", ";start=1s", 2.0, None),
    ],
)
def test_a_log_rules_limits_are_read_from_its_end(
    text: str, pattern: str, start: float | None, every: float | None
) -> None:
    assert log_rule_of(text) == {"name": "a", "pattern": pattern, "starts_within": start, "recurs_within": every}


@pytest.mark.parametrize(
    "text", ["", "a", "=x;start=1s", "a=;start=1s", "a=x;start=5", "a=x", "a=x;start=", "a=x;start=-1"]
)
def test_a_log_rule_that_says_nothing_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        log_rule_of(text)


def test_a_submit_whose_answer_was_lost_is_one_job(server: Canned) -> None:
    server.says("POST /v1/jobs", CUT, Answer(job(), 201))
    assert submit("--nodes", "1", "true").exit_code == 0
    assert len({one.headers["idempotency-key"] for one in server.of("POST", "/v1/jobs")}) == 1


def test_two_submits_are_two_jobs(server: Canned) -> None:
    submit("--nodes", "1", "true")
    submit("--nodes", "1", "true")
    assert len({one.headers["idempotency-key"] for one in server.of("POST", "/v1/jobs")}) == 2


# --- waiting


@pytest.mark.parametrize(("state", "code"), [("COMPLETE", 0), ("FAILED", 1), ("STOPPED", 1)])
def test_waiting_ends_with_the_job_and_its_exit_code(server: Canned, state: str, code: int) -> None:
    back = interruption("detected", "stopped", "diagnosed", "placed", "gated", "started", "first_step")
    server.says(
        f"GET {JOB}",
        job(),
        job(state="STOPPING", interruptions=[interruption("detected")]),
        job(attempt=2, interruptions=[back], resumed_from=30),
        job(state=state, attempt=2, interruptions=[back], diagnosis="its own end"),
    )
    result = submit("--nodes", "2", "--wait", "--json", "true")
    assert result.exit_code == code, result.output
    assert json.loads(result.stdout)["state"] == state
    for text in ("QUEUED", "RUNNING, attempt 1 on local/n0, local/n1", "interrupted, attempt 1: xid.79 on local/n0",
                 "stopped after 1.0 s", "training again after 6.0 s", "RUNNING, attempt 2", state):  # fmt: skip
        assert text in result.stderr
    assert result.stderr.count("interrupted") == 1


def test_waiting_outlives_a_controller_that_restarts(server: Canned) -> None:
    server.says(f"GET {JOB}", job(), CUT, CUT, Answer({"error": "starting"}, 503), job(state="COMPLETE"))
    result = submit("--nodes", "2", "--wait", "true")
    assert result.exit_code == 0, result.output
    assert result.stdout == "train-1a2b3 COMPLETE\n"
    assert result.stderr.count("waiting for it") == 1
    assert result.stderr.count("the controller is back") == 1


def test_a_token_that_is_revoked_meanwhile_ends_the_waiting(server: Canned) -> None:
    server.says(f"GET {JOB}", job(), Answer({"error": "unknown"}, 401))
    assert submit("--nodes", "2", "--wait", "true").exit_code == 2


def test_an_interrupted_wait_says_that_the_job_goes_on(server: Canned) -> None:
    server.says(f"GET {JOB}", job())
    command = [str(Path(sys.executable).with_name("sickbay")), "submit", "--name=x", "--nodes=1", "--wait", "true"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as waiting:
        try:
            until = time.monotonic() + 60
            while not server.of("GET", JOB) and time.monotonic() < until:
                time.sleep(0.01)
            waiting.send_signal(signal.SIGINT)
            said, trouble = waiting.communicate(timeout=60)
        finally:
            waiting.kill()
    assert waiting.returncode == 130
    assert said == ""
    assert "train-1a2b3 goes on without you" in trouble
    assert "Traceback" not in trouble
    assert not [one for one in server.asked if one.path.endswith("/stop")]


def test_steps_are_told_now_and_then_and_each_state_once() -> None:
    now, told = [0.0], list[str]()
    progress = ProgressLine(told.append, lambda: now[0])
    for second in range(31):
        now[0] = float(second)
        progress.show(job(step=second))
    assert told == [
        "00:00:00  RUNNING, attempt 1 on local/n0, local/n1",
        "00:00:10    step 10", "00:00:20    step 20", "00:00:30    step 30",
    ]  # fmt: skip


def test_how_a_job_ended_is_the_last_that_is_told() -> None:
    now, told = [0.0], list[str]()
    progress = ProgressLine(told.append, lambda: now[0])
    progress.show(job(step=90))
    now[0] = 20.0
    progress.show(job(step=100, state="COMPLETE"))
    assert [line.partition("  ")[2] for line in told][-2:] == ["  step 100", "COMPLETE, attempt 1"]


def test_a_queued_job_tells_each_new_reason() -> None:
    told = list[str]()
    progress = ProgressLine(told.append, lambda: 0.0)
    for because in ("no node is free", "no node is free", "n0 is checked"):
        progress.show(job(state="QUEUED", attempt=0, step=None, because=because))
    assert [line.partition("  ")[2] for line in told] == ["QUEUED: no node is free", "QUEUED: n0 is checked"]


# --- logs


def _log(server: Canned, attempts: dict[int, str], piece: int = 4, over: bool = True) -> None:
    def answer(asked: Asked) -> dict[str, Any]:
        text, after = attempts[int(asked.query["attempt"])], int(asked.query.get("after", "at 0")[3:])
        part = text[after : after + piece]
        end = over and after + len(part) >= len(text)
        return {"rank": 0, "attempt": 1, "text": part, "next": f"at {after + len(part)}", "over": end}

    server.says(f"GET {JOB}/logs", answer)


def test_a_log_is_read_to_its_end_byte_by_byte_as_it_was_written(server: Canned) -> None:
    server.says(f"GET {JOB}", job())
    _log(server, {1: "step 1\nno line end"})
    result = sickbay("logs", "train-1a2b3", "--rank", "1")
    assert result.exit_code == 0
    assert result.stdout == "step 1\nno line end"
    assert {one.query["rank"] for one in server.of("GET", f"{JOB}/logs")} == {"1"}


def test_a_log_that_goes_on_is_not_waited_for(server: Canned) -> None:
    server.says(f"GET {JOB}", job())
    _log(server, {1: "step 1\n"}, over=False)
    assert sickbay("logs", "train-1a2b3").stdout == "step 1\n"
    assert all("wait" not in one.query for one in server.of("GET", f"{JOB}/logs"))


def test_an_older_attempt_can_be_read(server: Canned) -> None:
    server.says(f"GET {JOB}", job(attempt=3))
    _log(server, {1: "one", 3: "three"})
    assert sickbay("logs", "train-1a2b3", "--attempt", "1").stdout == "one"
    assert sickbay("logs", "train-1a2b3").stdout == "three"


def test_following_goes_on_with_the_next_attempt_and_ends_with_the_job(server: Canned) -> None:
    server.says(
        f"GET {JOB}",
        job(state="QUEUED", attempt=0),
        job(),
        job(state="DIAGNOSING"),
        job(attempt=2),
        job(state="COMPLETE", attempt=2),
    )
    _log(server, {1: "first\n", 2: "second\n"})
    result = sickbay("logs", "train-1a2b3", "--follow")
    assert result.exit_code == 0, result.output
    assert result.stdout == "first\nsecond\n"
    assert "— attempt 2 —" in result.stderr
    assert "train-1a2b3 is over: COMPLETE" in result.stderr


def test_a_job_that_has_not_begun_has_no_log_and_says_why(server: Canned) -> None:
    server.says(f"GET {JOB}", job(state="QUEUED", attempt=0, because="no node is free"))
    result = sickbay("logs", "train-1a2b3")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "has not begun: no node is free" in result.stderr


def test_following_outlives_a_controller_that_restarts(server: Canned) -> None:
    server.says(f"GET {JOB}", job(), job(state="COMPLETE"))
    end = {"rank": 0, "attempt": 1, "text": "", "next": "at 6", "over": True}
    server.says(f"GET {JOB}/logs", {**end, "text": "first\n", "over": False}, CUT, CUT, end)
    result = sickbay("logs", "train-1a2b3", "-f")
    assert result.exit_code == 0, result.output
    assert result.stdout == "first\n"
    assert "the controller is back" in result.stderr


def test_a_rank_that_does_not_exist_is_the_servers_own_line(server: Canned) -> None:
    server.says(f"GET {JOB}", job())
    server.refuses(f"GET {JOB}/logs", 404, "train-1a2b3 has no rank 9: its ranks are 0 to 1")
    for follow in ((), ("-f",)):
        result = sickbay("logs", "train-1a2b3", "--rank", "9", *follow)
        assert result.exit_code == 2
        assert result.stderr == "train-1a2b3 has no rank 9: its ranks are 0 to 1\n"
