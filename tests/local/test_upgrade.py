"""A controller that ends and comes back: an upgrade, Ctrl-C, kill -9 and down. Nodes and jobs are found again."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.up_rig import QUICK, Sickbay

from sickbay.clusters.local.files import Paths

pytestmark = pytest.mark.slow

# What the second controller does otherwise: a pool of two may lose both nodes, so its limits are another digest.
OTHER = f"""{QUICK}
limits:
  - {{pool: "*", out_at_least: 2, why: the new policy}}
"""


def boots(rig: Sickbay) -> dict[str, list[str]]:
    """Every boot that every seat has had."""
    root = rig.state / "local"
    found = {seat.name: Paths(root, seat.name).seat.glob("instances/*/boots/*") for seat in (root / "seats").iterdir()}
    return {name: sorted(boot.name for boot in some) for name, some in sorted(found.items())}


def trees(rig: Sickbay, job: str) -> set[int]:
    """The processes of the job and of the nodes, by number."""
    nodes = [node["id"] for node in rig.nodes()]
    below = {status.pid for node in nodes if (status := rig.status(node)) is not None}
    return below | {rank.pid for node in nodes for rank in rig.ranks(node, job)}


def end(rig: Sickbay, how: signal.Signals) -> int:
    """Tell the controller to end; its exit code."""
    rig.signal(rig.pid, how)
    assert rig._controller is not None
    return rig._controller.wait(timeout=60)


def nobody_was_ill(rig: Sickbay) -> None:
    """Whoever switches the room off and on again harms no node, and nobody wonders about one."""
    assert not rig.incidents()
    assert not rig.notices()


def test_an_upgrade_finds_jobs_and_incidents_again_and_starts_nothing_twice(four: Sickbay) -> None:
    job = four.train(400)
    other = four.train(2000, name="other", nodes=1)
    sick = four.reaches(job, 12)["nodes"][-1]
    four.reaches(other, 5)
    had, living = boots(four), trees(four, other)
    four.inject(sick, xid=79, cured_by="reboot")
    four.phase(sick, "REPAIRING")
    assert end(four, signal.SIGTERM) == 0
    assert not (four.state / "controller.json").exists()
    assert "the controller ends; the nodes go on" in (four.state / "up.out").read_text()

    (four.state / "policy.yaml").write_text(OTHER)
    four.up()
    incident = four.phase(sick, "RELEASED", 120)
    done = four.ends(job)
    name = sick.rpartition("/")[2]
    now = boots(four)
    assert {**now, name: now[name][:0]} == {**had, name: []}
    assert len(now[name]) == len(had[name]) + 1
    assert len(four.incidents()) == 1
    assert [one["rung"] for one in incident["tries"]] == ["reboot"]
    assert (done["attempt"], len(done["interruptions"])) == (2, 1)
    still = four.job(other)
    assert (still["state"], still["attempt"], still["interruptions"]) == ("RUNNING", 1, [])
    ranks = {rank.pid for node in still["nodes"] for rank in four.ranks(node, other)}
    assert ranks
    assert ranks <= living  # the very processes that ran before


def test_ctrl_c_ends_everything_and_the_next_up_puts_the_job_back_to_work(two: Sickbay) -> None:
    job = two.train(150)
    two.reaches(job, 25)
    had = boots(two)
    assert end(two, signal.SIGINT) == 0
    assert not two.processes()
    assert "ending the nodes and the controller" in (two.state / "up.out").read_text()

    two.up()
    done = two.ends(job)
    assert done["attempt"] == 2
    assert done["resumed_from"] >= 20
    nobody_was_ill(two)
    assert {name: len(some) for name, some in boots(two).items()} == {name: len(some) + 1 for name, some in had.items()}


def test_down_after_kill_9_leaves_nothing_and_up_goes_on_from_the_checkpoint(two: Sickbay) -> None:
    job = two.train(150)
    two.reaches(job, 25)
    two.kill()
    assert len([p for p in two.processes() if p.pid != two.pid]) >= 6  # two supervisors, agents and ranks go on
    two.down()
    assert not two.processes()

    two.up()
    done = two.ends(job)
    assert done["attempt"] == 2
    assert done["resumed_from"] >= 20
    nobody_was_ill(two)


def test_down_ends_a_controller_that_ctrl_z_put_to_sleep(tmp_path: Path) -> None:
    """Else it would wake up one day and take the end of its nodes for an illness."""
    rig = Sickbay(tmp_path / "state", nodes=1, gpus=1)
    command = [sys.executable, "-m", "sickbay", "down", "--state", str(rig.state)]
    try:
        rig.up()
        rig.ready()
        rig.signal(rig.pid, signal.SIGSTOP)
        done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
        assert (done.returncode, done.stderr) == (0, ""), done
        assert "down: the controller and 1 node ended" in done.stdout
        assert not rig.processes()
    finally:
        rig.down()
