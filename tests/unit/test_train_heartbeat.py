"""The heartbeat and the stacks, in processes of their own as ranks are."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.waiting import until

pytestmark = pytest.mark.slow

PATIENCE = 20.0


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SICKBAY_")}
    return {**clean, "SICKBAY_HEARTBEAT": str(tmp_path / "heartbeat.json"), **more}


def script(tmp_path: Path, code: str, **more: str) -> dict[str, Any]:
    """Run it to its end; what its last heartbeat says."""
    subprocess.run(
        [sys.executable, "-c", f"from sickbay import train\n{code}"],
        env=environment(tmp_path, **more), check=True, timeout=60,
    )  # fmt: skip
    told: dict[str, Any] = json.loads((tmp_path / "heartbeat.json").read_bytes())
    return told


def test_it_says_how_far_the_rank_is(tmp_path: Path) -> None:
    told = script(tmp_path, "train.heartbeat(7, 0.5, tokens=4096)", RANK="3", SICKBAY_ATTEMPT="2")
    assert told.pop("pid") > 0
    assert told == {
        "step": 7, "loss": 0.5, "rank": 3, "attempt": 2, "resumed_from": None, "skipped": [], "tokens": 4096,
    }  # fmt: skip


def test_it_says_where_training_went_on_and_what_was_skipped(tmp_path: Path) -> None:
    code = f"""
import os
with train.Checkpoints({str(tmp_path / "ck")!r}) as first:
    first.save(30, bytes(4096))
    first.save(40, bytes(4096))
os.truncate(first.directory / "attempt-1" / "step-40" / "rank-0.shard", 120)
with train.Checkpoints({str(tmp_path / "ck")!r}) as second:
    train.heartbeat(31)
"""
    told = script(tmp_path, code)
    assert (told["attempt"], told["resumed_from"]) == (2, 30)
    assert told["fenced"] is True
    assert told["skipped"] == ["attempt-1/step-40: rank-0.shard is torn (120 of 4096 bytes)"]


@pytest.mark.parametrize("order", ["own, other", "other, own"])
def test_it_tells_of_the_directory_of_the_job_and_not_of_another_that_the_script_keeps(
    order: str, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    code = f"""
with train.Checkpoints(attempt=1) as first:
    first.save(40, b"x")
made = {{name: train.Checkpoints({str(tmp_path)!r} + "/" + name) for name in {order!r}.split(", ")}}
train.heartbeat(41)
made["other"].save(3, b"best")
made["other"].wait()
made["other"].leave_out(4, "no time")
"""
    told = script(tmp_path, code, SICKBAY_CHECKPOINT_DIR=str(own), SICKBAY_ATTEMPT="2")
    assert (told["attempt"], told["resumed_from"], told["saved"]) == (2, 40, 40)
    assert "save_failed" not in told


def test_a_directory_in_that_of_the_job_is_told_of_if_it_is_the_only_one(tmp_path: Path) -> None:
    code = f"train.Checkpoints({str(tmp_path / 'own' / 'run-1')!r}); train.heartbeat(1)"
    told = script(tmp_path, code, SICKBAY_CHECKPOINT_DIR=str(tmp_path / "own"), SICKBAY_ATTEMPT="1")
    assert told["fenced"] is True


def test_a_script_with_checkpoints_of_its_own_says_where_it_went_on(tmp_path: Path) -> None:
    assert script(tmp_path, "train.heartbeat(41, resumed_from=40)")["resumed_from"] == 40


def test_it_says_what_was_saved_and_what_was_not(tmp_path: Path) -> None:
    code = f"""
from sickbay.train import saves as module
module.AGAIN = ()
def broken(directory):
    raise OSError(28, "No space left on device")
with train.Checkpoints({str(tmp_path / "ck")!r}, failures=9) as held:
    held.save(30, b"x")
    held.wait()
    held.put(40, broken)
    held.ready(41)
    train.heartbeat(41)
    held._saves.error = None
"""
    told = script(tmp_path, code)
    assert told["saved"] == 30
    assert told["save_failed"] == "step 40: attempt-1/step-40 was not saved: No space left on device"


def test_what_is_saved_after_the_last_step_is_told_without_another_heartbeat(tmp_path: Path) -> None:
    code = f"""
with train.Checkpoints({str(tmp_path / "ck")!r}) as held:
    train.heartbeat(30, 0.5)
    held.save(30, b"x")
"""
    told = script(tmp_path, code)
    assert (told["step"], told["loss"], told["saved"]) == (30, 0.5, 30)


def test_a_long_save_says_how_far_it_is_beside_the_step(tmp_path: Path) -> None:
    code = f"""
from sickbay.train import beats, disk
beats.EVERY, disk.CHUNK = 0.0, 1000
written, told = beats._write, []
beats._write = lambda text: (told.append(text), written(text))
train.heartbeat(7)
with train.Checkpoints({str(tmp_path / "ck")!r}) as held:
    held.save(7, bytes(5000))
import json
said = [json.loads(text) for text in told]
busy = [one for one in said if one.get("busy") == "saving attempt-1/step-7"]
assert [one["step"] for one in busy] == [7] * len(busy)
assert [one["done"] for one in busy] == sorted({{one["done"] for one in busy}}) and len(busy) >= 5, busy
assert busy[-1]["done"] == busy[-1]["of"]
assert "busy" not in said[-1], said[-1]
"""
    assert script(tmp_path, code)["saved"] == 7


def test_keys_that_are_no_text_end_no_training(tmp_path: Path) -> None:
    assert script(tmp_path, "train.heartbeat(1, sizes={(1, 2): 3})")["sizes"] == "{(1, 2): 3}"


@pytest.mark.parametrize("loss", ["nan", "inf", "-inf"])
def test_a_loss_that_is_no_number_is_still_json_that_every_reader_understands(loss: str, tmp_path: Path) -> None:
    told = script(tmp_path, f"train.heartbeat(1, float({loss!r}), grad=float('nan'), model=object)")
    assert (told["loss"], told["loss_is"], told["grad"]) == (None, loss, "nan")
    assert "NaN" not in (tmp_path / "heartbeat.json").read_text(encoding="ascii")


def test_without_the_variable_it_does_nothing(tmp_path: Path) -> None:
    code = "from sickbay import train; train.heartbeat(1, 2.0)"
    subprocess.run([sys.executable, "-c", code], env=environment(tmp_path, SICKBAY_HEARTBEAT=""), cwd=tmp_path,
                   check=True, timeout=60)  # fmt: skip
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("where", ["/dev/full/heartbeat.json", "{tmp}/gone/heartbeat.json"])
def test_a_disk_that_takes_nothing_does_not_end_a_training(where: str, tmp_path: Path) -> None:
    code = "from sickbay import train\nfor step in range(100): train.heartbeat(step)"
    path = where.format(tmp=tmp_path)
    subprocess.run([sys.executable, "-c", code], env=environment(tmp_path, SICKBAY_HEARTBEAT=path), check=True,
                   timeout=60)  # fmt: skip


def test_a_full_disk_leaves_the_last_heartbeat_whole(tmp_path: Path) -> None:
    code = """
import resource
train.heartbeat(1)
resource.setrlimit(resource.RLIMIT_FSIZE, (50, 50))
train.heartbeat(2)
"""
    assert script(tmp_path, code)["step"] == 1


def test_a_reader_never_sees_half_a_heartbeat_and_sees_every_step_of_a_slow_caller(tmp_path: Path) -> None:
    code = "import sys\nfor line in sys.stdin: train.heartbeat(int(line), 0.1)\n"
    rank = subprocess.Popen(
        [sys.executable, "-uc", f"from sickbay import train\n{code}"],
        env=environment(tmp_path), stdin=subprocess.PIPE, text=True,
    )  # fmt: skip
    path = tmp_path / "heartbeat.json"
    with rank:
        for step in range(1, 30):
            rank.stdin.write(f"{step}\n")
            rank.stdin.flush()
            assert until(lambda: path.exists() and json.loads(path.read_bytes())["step"] == step)  # noqa: B023
        rank.stdin.write("".join(f"{step}\n" for step in range(30, 3000)))
        rank.stdin.close()
        while rank.poll() is None:
            json.loads(path.read_bytes())
    assert json.loads(path.read_bytes())["step"] == 2999


def test_a_step_must_be_a_number(tmp_path: Path) -> None:
    code = "from sickbay import train; train.heartbeat('seven')"
    ran = subprocess.run([sys.executable, "-c", code], env=environment(tmp_path), capture_output=True, text=True,
                         check=False, timeout=60)  # fmt: skip
    assert ran.stderr.splitlines()[-1] == "TypeError: a step is a whole number, not 'seven'"


def test_below_a_launcher_only_the_first_worker_of_a_node_writes(tmp_path: Path) -> None:
    told = script(tmp_path, "train.heartbeat(1)", TORCHELASTIC_RUN_ID="r", LOCAL_RANK="0")
    assert told["step"] == 1
    told = script(tmp_path, "train.heartbeat(2)", TORCHELASTIC_RUN_ID="r", LOCAL_RANK="1")
    assert told["step"] == 1


# Stacks


@contextmanager
def rank(tmp_path: Path, command: list[str], **more: str) -> Iterator[subprocess.Popen[str]]:
    """A rank as a supervisor starts it: a session of its own, killed as a group."""
    process = subprocess.Popen(command, env=environment(tmp_path, **more), stdout=subprocess.PIPE, text=True,
                               start_new_session=True)  # fmt: skip
    with process:
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)


HANGS = """
import threading
from sickbay import train
def stuck_in_a_collective():
    print("hangs", flush=True)
    threading.Event().wait()
stuck_in_a_collective()
"""


def test_a_hung_rank_shows_its_stacks_on_the_signal_that_it_names_and_lives_on(tmp_path: Path) -> None:
    with rank(tmp_path, [sys.executable, "-c", HANGS]) as process:
        assert process.stdout.readline() == "hangs\n"
        number = int((tmp_path / "stacks.signal").read_text(encoding="ascii"))
        process.send_signal(number)
        stacks = tmp_path / "stacks.txt"
        assert until(lambda: "stuck_in_a_collective" in stacks.read_text(encoding="utf-8"))
        assert process.poll() is None


def test_a_worker_below_the_rank_names_no_signal_because_the_rank_would_die_of_it(tmp_path: Path) -> None:
    wrapped = ["/bin/sh", "-c", '"$0" -c "$1"; true', sys.executable, HANGS]
    with rank(tmp_path, wrapped) as process:
        assert process.stdout.readline() == "hangs\n"
        assert not (tmp_path / "stacks.signal").exists()


def test_a_script_that_uses_the_signal_itself_keeps_it(tmp_path: Path) -> None:
    code = "import signal; signal.signal(signal.SIGUSR1, lambda *_: None)\n" + HANGS
    with rank(tmp_path, [sys.executable, "-c", code]) as process:
        assert process.stdout.readline() == "hangs\n"
        assert not (tmp_path / "stacks.signal").exists()
