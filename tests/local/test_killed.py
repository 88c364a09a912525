"""kill -9 of everything that can be killed: each ends as designed, nothing is done twice, nothing is left behind."""

import os
import signal
from collections import Counter
from pathlib import Path

import pytest
from tests.support.thorough import THOROUGH
from tests.support.up_rig import Sickbay

from sickbay.clusters.local.files import Paths

pytestmark = pytest.mark.slow

PHASES = ["SUSPECT", "QUARANTINED", "DRAINING", "DRAINED", "REPAIRING", "VERIFYING"]


def boots(rig: Sickbay, node: str) -> int:
    """How many boots this seat has had, by the directories that they left."""
    seat = Paths(rig.state / "local", node.rpartition("/")[2]).seat
    return len(list(seat.glob("instances/*/boots/*")))


def _phase(rig: Sickbay, node: str) -> str:
    found = rig.incidents(node)
    return str(found[-1]["phase"]) if found else "none yet"


# Those between are met by the one that is killed again and again, and each commit by tests/chaos/test_killed_engine.py.
@pytest.mark.parametrize("phase", PHASES if THOROUGH else PHASES[1::2])
def test_the_controller_killed_in_any_phase_is_followed_by_one_that_goes_on(four: Sickbay, phase: str) -> None:
    job = four.train(250)
    sick = four.reaches(job, 12)["nodes"][-1]
    had = boots(four, sick)
    four.inject(sick, xid=79, cured_by="reboot")
    later = PHASES[
        PHASES.index(phase) :
    ]  # where the ranks are gone before the cordon is seen, nothing is left to drain
    four.until(lambda: _phase(four, sick) in later, 60, f"{sick} reaches {phase}")
    four.kill()
    four.up()
    incident = four.phase(sick, "RELEASED", 120)
    done = four.ends(job)
    assert len(four.incidents(sick)) == 1
    assert [one["rung"] for one in incident["tries"]] == ["reboot"]
    assert boots(four, sick) == had + 1
    assert done["attempt"] == 2
    assert done["resumed_from"] >= 10


def test_a_controller_that_is_killed_again_and_again_still_gets_there(four: Sickbay) -> None:
    job = four.train(400)
    sick = four.reaches(job, 12)["nodes"][-1]
    had = boots(four, sick)
    four.inject(sick, xid=79, cured_by="reboot")
    met: set[str] = set()
    while (phase := _phase(four, sick)) != "RELEASED":
        if phase in met:
            four.until(lambda: _phase(four, sick) not in met, 120, f"it leaves {phase}")
            continue
        met.add(phase)
        four.kill()
        four.up()
    four.ends(job)
    assert boots(four, sick) == had + 1
    assert four.killed >= 3


def test_a_job_goes_on_while_no_controller_is_there_and_is_not_started_twice(four: Sickbay) -> None:
    job = four.train(200, step=0.02)
    where = four.reaches(job, 12)["nodes"]
    pids = {rank.pid for node in where for rank in four.ranks(node, job)}
    four.kill()
    four.until(lambda: not any(four.ranks(node, job) for node in where), 60, "the job ends with nobody watching")
    four.up()
    done = four.ends(job)
    assert done["attempt"] == 1
    four.until(lambda: four.job(job)["step"] == 200, 15, "its last step is told")
    assert not done["interruptions"]
    assert pids


def test_an_agent_that_is_killed_is_restarted_and_its_job_is_left_alone(four: Sickbay) -> None:
    job = four.train(600, step=0.03)
    node = four.reaches(job, 10)["nodes"][0]
    status = four.status(node)
    assert status is not None
    four.signal(status.agent_pid, signal.SIGKILL)
    four.until(lambda: four.node(node)["state"] == "UNKNOWN" or four.incidents(node), 30, "its silence is noticed")

    def another() -> bool:
        now = four.status(node)
        return now is not None and now.agent_pid not in {0, status.agent_pid}

    four.until(another, 60, "the agent is restarted")
    four.until(lambda: four.node(node)["state"] == "READY", 60, "the node is known again")
    done = four.ends(job)
    assert done["attempt"] == 1
    assert not done["interruptions"]


def test_a_lost_node_is_rebooted_and_its_job_trains_elsewhere(four: Sickbay) -> None:
    job = four.train(300)
    lost = four.reaches(job, 12)["nodes"][-1]
    status = four.status(lost)
    assert status is not None
    os.killpg(os.getpgid(status.pid), signal.SIGKILL)
    incident = four.phase(lost, "RELEASED", 120)
    assert incident["fault"]["code"] == "node.lost"
    assert [one["rung"] for one in incident["tries"]] == ["reboot"]
    done = four.ends(job)
    assert done["resumed_from"] >= 10


def test_a_rank_that_is_killed_costs_a_restart_and_no_node(four: Sickbay) -> None:
    job = four.train(200)
    node = four.reaches(job, 12)["nodes"][0]
    four.signal(four.ranks(node, job)[0].pid, signal.SIGKILL)
    done = four.ends(job)
    assert done["attempt"] == 2
    assert done["restarts"] == 1
    assert done["resumed_from"] >= 10
    assert not four.incidents()


def test_a_second_controller_on_the_same_state_is_refused_in_one_line(four: Sickbay, tmp_path: Path) -> None:
    import subprocess
    import sys

    words = [sys.executable, "-m", "sickbay", "up", "--state", str(four.state), "--port", "0"]
    second = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert second.returncode == 2, second
    assert len(second.stderr.strip().splitlines()) == 1
    assert Counter(n["state"] for n in four.nodes()) == {"READY": 4}
    del tmp_path
