"""What a newcomer runs first."""

import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.slow


def test_the_demo_heals_tells_its_story_in_order_and_leaves_nothing_behind(tmp_path: Path) -> None:
    env = {**os.environ, "HOME": str(tmp_path), "TMPDIR": str(tmp_path), "XDG_CONFIG_HOME": "", "XDG_STATE_HOME": ""}
    command = [sys.executable, "-m", "sickbay", "demo"]
    told = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert told.returncode == 0, told.stdout + told.stderr
    assert told.stderr == ""
    said = [
        "falls off the bus",
        "SUSPECT: xid.79",
        "QUARANTINED",
        "REPAIRING: xid.79 asks for reboot",
        "VERIFYING: reboot is proven",
        "RELEASED: proven well",
        "training again after",
    ]
    lines = told.stdout.splitlines()
    places = [next(n for n, line in enumerate(lines) if text in line) for text in said]
    assert places == sorted(places)
    assert "COMPLETE" in told.stdout
    released = next(n for n, line in enumerate(lines) if "RELEASED: proven well" in line)
    complete = next(n for n, line in enumerate(lines) if "COMPLETE" in line)
    trains = [line for line in lines[released:complete] if re.search(r"trains: step \d+ of \d+$", line)]
    assert len(trains) >= 2, "it is silent while the job trains to its end"
    assert "STOPPING" in told.stdout  # before or after the first symptom: the rank dies of it at the same moment
    assert re.search(r"^training again after \d+\.\d s, resumed from step \d+$", told.stdout, re.MULTILINE)
    assert "\x1b[" not in told.stdout
    assert not list(tmp_path.glob("sickbay-demo-*"))
    left = [p.pid for p in psutil.process_iter() if str(tmp_path) in _words(p)]
    assert not left


def _words(process: psutil.Process) -> str:
    try:
        return "" if process.pid == os.getpid() else " ".join([*process.cmdline(), process.environ().get("TMPDIR", "")])
    except psutil.Error:
        return ""
