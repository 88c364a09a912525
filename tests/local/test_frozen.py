"""A rank that nobody could end, frozen in the middle of a save and thawed when the job has long gone on without it.

No signal can be escaped for good, so the rank of the first attempt lets its work be done by a process that the node
cannot find: another session, and none of the marks in its environment.
"""

import json
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest
from tests.support.up_rig import SAMPLE, Sickbay

pytestmark = pytest.mark.slow

FAR = 100_000  # the step of the save that is frozen: whoever looked only for the highest number would take it

RANK = """
import os, pathlib, subprocess, sys
ghost, *sample = sys.argv[1:]
if os.environ["SICKBAY_ATTEMPT"] != "1":
    os.execv(sample[0], sample)
env = {k: v for k, v in os.environ.items() if k not in ("SICKBAY_BOOT", "SICKBAY_RANK")}
with open(ghost + ".out", "wb") as out:
    child = subprocess.Popen([sys.executable, ghost], env=env, start_new_session=True, stdout=out, stderr=out)
sys.exit(child.wait())
"""

GHOST = f"""
import json, os, pathlib, time
from sickbay import train
from sickbay.train import disk
from sickbay.train.layout import RankPart

here = pathlib.Path(__file__).parent
(here / "pid").write_text(str(os.getpid()))
state = {{"step": 0, "slope": 0.0, "offset": 0.0}}
checkpoints = train.Checkpoints()
for step in (10, 20):
    checkpoints.save(step, json.dumps(state | {{"step": step}}).encode())
    train.heartbeat(step)
checkpoints.wait()

def slowly(directory):
    whole = json.dumps(state | {{"step": {FAR}}}).encode()
    def pieces():
        yield whole[:7]
        (here / "middle").touch()
        while not (here / "go").exists():
            time.sleep(0.01)
        yield whole[7:]
    return RankPart({{"rank-0.shard": disk.write(directory / "rank-0.shard", pieces())}}, "bytes")

checkpoints.put({FAR}, slowly)
checkpoints.wait()
train.heartbeat({FAR})
(here / "late").touch()
checkpoints.save({FAR} + 10, b"later still")
checkpoints.wait()
"""


def parent_of(checkpoints: Path, attempt: int) -> dict[str, int]:
    parent: dict[str, int] = json.loads((checkpoints / f"attempt-{attempt}" / "LINEAGE").read_text())["parent"]
    return parent


@pytest.mark.parametrize("saves", [True, False], ids=["the next attempt saves", "the next attempt saves nothing"])
def test_what_a_thawed_rank_still_writes_is_never_chosen(four: Sickbay, tmp_path: Path, *, saves: bool) -> None:
    checkpoints, ghost = tmp_path / "checkpoints", tmp_path / "ghost.py"
    ghost.write_text(GHOST)
    sample = (*SAMPLE, "--steps", "300", "--every", "10" if saves else "1000", "--step-seconds", "0.05")
    job = four.submit(sys.executable, "-c", RANK, str(ghost), *sample, nodes=1, checkpoint=str(checkpoints))
    four.until((tmp_path / "middle").exists, 60, "a save of the first attempt is half done")
    old = psutil.Process(int((tmp_path / "pid").read_text()))
    late = checkpoints / f"attempt-1/step-{FAR}/manifest.json"
    try:
        old.suspend()
        four.until(lambda: four.job(job)["step"] == 20, 30, "it is heard")
        (first,) = four.job(job)["nodes"]
        four.inject(first, xid=79, cured_by="reboot")
        four.until(lambda: four.job(job)["attempt"] == 2, 60, "a second attempt")
        second = four.reaches(job, 45)
        assert second["resumed_from"] == 20
        assert second["nodes"] != [first]
        assert old.status() == psutil.STATUS_STOPPED  # nobody could end it
        assert not late.exists()
        (tmp_path / "go").touch()
        old.resume()
        four.until(lambda: ended(old), 30, "it ends by itself")
    finally:
        if old.is_running():
            os.kill(old.pid, signal.SIGKILL)
    # Its unfinished save was cleared away when attempt 2 began, and it hears the truth.
    assert not late.exists()
    assert "attempt 2 has begun" in (tmp_path / "ghost.py.out").read_text()
    assert (checkpoints / "attempt-1/step-20/manifest.json").exists()  # the parent of attempt 2

    four.phase(first, "RELEASED", 90)
    reached = four.job(job)
    assert reached["attempt"] == 2
    four.inject(reached["nodes"][0], xid=79, cured_by="reboot")
    done = four.ends(job)
    assert done["attempt"] == 3
    # Attempt 2 has all its own checkpoints, or, without any, hands on the one that it began from.
    assert parent_of(checkpoints, 3) == {"attempt": 2 if saves else 1, "step": done["resumed_from"]}
    assert done["resumed_from"] >= reached["step"] - 10 if saves else done["resumed_from"] == 20
    said = four.get(f"/v1/jobs/{job}/logs", rank=0, attempt=3)["text"]
    assert f"resuming at step {done['resumed_from']}\n" in said
    four.until(lambda: four.job(job)["step"] == 300, 10, "its last step is heard")


def ended(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
