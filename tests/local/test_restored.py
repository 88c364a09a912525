"""A lost store and its backup put back: the controller looks at what has happened since, and does nothing twice."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.up_rig import Sickbay

from sickbay.clusters.local.files import Paths

pytestmark = pytest.mark.slow


def backed_up(rig: Sickbay, file: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "sickbay", "backup", str(file), "--state", str(rig.state), "--json"]
    ran = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    told: dict[str, Any] = json.loads(ran.stdout)
    return told


def put_back(rig: Sickbay, file: Path) -> None:
    """The store is gone, with all that was in it since; its copy takes its place."""
    rig.kill()
    for rest in ("", "-wal", "-shm"):
        (rig.state / f"sickbay.db{rest}").unlink(missing_ok=True)
    shutil.copy(file, rig.state / "sickbay.db")
    rig.up()


def boots(rig: Sickbay, node: str) -> int:
    seat = Paths(rig.state / "local", node.rpartition("/")[2]).seat
    return len(list(seat.glob("instances/*/boots/*")))


def heals(rig: Sickbay, node: str) -> None:
    had, count = boots(rig, node), len(rig.incidents(node))
    rig.inject(node, xid=79, cured_by="reboot")
    rig.until(lambda: len(rig.incidents(node)) > count, 60, f"{node} is found sick")
    rig.phase(node, "RELEASED", 120)
    rig.until(lambda: rig.node(node)["state"] == "READY", 60)
    assert boots(rig, node) == had + 1


def test_a_repair_that_happened_since_is_not_done_again_and_its_job_goes_on(four: Sickbay, tmp_path: Path) -> None:
    job = four.train(400)
    sick = four.reaches(job, 12)["nodes"][-1]
    told = backed_up(four, copy := tmp_path / "copy.db")
    assert (told["nodes"], told["jobs"]) == (4, 1)
    heals(four, sick)
    four.until(lambda: four.job(job)["attempt"] == 2 and (four.job(job)["step"] or 0) > 30, 60)
    had = boots(four, sick)
    put_back(four, copy)
    done = four.ends(job)
    assert boots(four, sick) == had, "it was repaired before the store was lost"
    assert done["attempt"] == 2
    assert "is a backup of" in (four.state / "controller.log").read_text()
    heals(four, sick)  # under names that were not given before


@pytest.mark.parametrize("phase", ["QUARANTINED", "DRAINED", "REPAIRING"])
def test_a_repair_amid_which_the_copy_was_made_is_done_once(four: Sickbay, tmp_path: Path, phase: str) -> None:
    sick = "local/node-1"
    had = boots(four, sick)
    four.inject(sick, xid=79, cured_by="reboot")
    four.phase(sick, phase)
    backed_up(four, copy := tmp_path / "copy.db")
    four.phase(sick, "RELEASED", 120)
    put_back(four, copy)
    four.until(lambda: four.node(sick)["state"] == "READY", 120)
    assert boots(four, sick) == had + 1
    heals(four, sick)


def test_a_node_that_was_taken_out_since_is_not_forgotten_out_of_service(four: Sickbay, tmp_path: Path) -> None:
    sick = "local/node-2"
    backed_up(four, copy := tmp_path / "copy.db")
    four.post("/v1/nodes/-/node-2/cordon", reason="a cable")
    four.phase(sick, "HELD")
    put_back(four, copy)
    held = four.phase(sick, "HELD")
    assert held["fault"]["code"] == "operator.cordon"
    assert "why is not known here" in held["because"]
    assert any(notice["event"] == "held" for notice in four.notices())
    four.post("/v1/nodes/-/node-2/uncordon", reason="the cable is in place")
    four.until(lambda: four.node(sick)["state"] == "READY" and not four.node(sick)["cordons"], 60)
