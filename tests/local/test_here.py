"""`sickbay up --here` on real processes: a machine with one GPU, whose log, tree and nvidia-smi are made up."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.here_rig import NODE, WorkstationRig, foreign_process
from tests.support.up_rig import running_rig

pytestmark = pytest.mark.slow

HANGS = """
import time
from sickbay import train
def waits_for_nobody():
    time.sleep(3600)
checkpoints = train.Checkpoints()
train.heartbeat(3)
if checkpoints.resumed is None:
    checkpoints.save(3, b"x")
    checkpoints.wait()
    waits_for_nobody()
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkstationRig]:
    yield from running_rig(WorkstationRig(tmp_path_factory.mktemp("here") / "state"))


@pytest.fixture
def here(machine: WorkstationRig) -> Iterator[WorkstationRig]:
    """In service before each test, and after it."""
    machine.ready()
    machine.called.unlink(missing_ok=True)
    yield machine
    machine.ready()


def test_an_xid_stops_the_job_resets_its_gpu_once_and_the_job_goes_on_from_its_checkpoint(here: WorkstationRig) -> None:
    boot = here.node(NODE)["boot_id"]
    job = here.train(60, nodes=1)
    here.reaches(job, 22)
    here.xid(95)
    incident = here.reaches_phase("xid.95", "RELEASED")
    assert (incident["fault"]["code"], incident["jobs"]) == ("xid.95", [job])
    assert here.resets == ["--gpu-reset -i 0", "done"]
    assert [stage["phase"] for stage in incident["stages"]][-3:] == ["REPAIRING", "VERIFYING", "RELEASED"]
    done = here.ends(job)
    (lost,) = done["interruptions"]
    assert lost["stages"]["first_step"]
    assert done["resumed_from"] >= 20
    node = here.node(NODE)
    assert (node["boot_id"], node["boot_id"]) == (boot, here.boot)  # the machine's own, and no reboot
    assert [device["serial"] for device in node["devices"]] == ["1650000000001"]


def test_a_rank_that_is_killed_is_started_again(here: WorkstationRig) -> None:
    job = here.train(60, nodes=1)
    here.reaches(job, 12)
    (rank,) = here.ranks(NODE, job)
    here.signal(rank.pid, signal.SIGKILL)
    done = here.ends(job)
    assert done["restarts"] == 1
    assert done["resumed_from"] >= 10
    assert not here.resets


def test_a_hang_is_found_by_its_heartbeat_and_its_stacks_are_kept(here: WorkstationRig) -> None:
    job = here.submit(sys.executable, "-c", HANGS, nodes=1, stall_after=2.0)
    here.ends(job)
    kept = list(here.state.glob(f"clusters/here/seats/*/instances/*/ranks/{job}.1.*/stacks.txt"))
    assert kept
    assert "waits_for_nobody" in kept[0].read_text()
    assert any("no step after 3" in line for line in here.story(job))
    assert not here.resets


def test_what_asks_for_a_reboot_is_held_with_what_a_person_is_to_do(here: WorkstationRig) -> None:
    here.xid(79, "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
    held = here.reaches_phase("xid.79", "HELD")
    assert not here.resets
    assert "the cluster cannot do reboot" in held["because"]
    assert "by hand" in held["because"]
    here.post(f"/v1/incidents/{held['id']}/confirm", reason="it was rebooted")
    here.reaches_phase("xid.79", "RELEASED")


def test_a_process_of_somebody_else_on_the_gpu_keeps_it_from_its_reset_and_is_named(here: WorkstationRig) -> None:
    here.holds_gpu(77, "jupyter")
    here.xid(48)
    held = here.reaches_phase("xid.48", "HELD")
    assert not here.resets
    assert "held by jupyter (pid 77) has /dev/nvidia0" in held["because"]
    here.lets_go(77)
    here.post(f"/v1/nodes/here/{NODE.rpartition('/')[2]}/reset", reason="the notebook is closed")
    here.reaches_phase("xid.48", "RELEASED")
    assert here.resets == ["--gpu-reset -i 0", "done"]


def test_each_of_our_processes_may_be_killed_and_the_job_goes_on_in_the_same_boot(here: WorkstationRig) -> None:
    job = here.train(200, nodes=1)
    here.reaches(job, 12)
    agent = here.agent()
    here.signal(agent, signal.SIGKILL)
    here.until(lambda: here.agent() not in {0, agent}, 20, "the agent is started again")
    here.kill()
    here.up()
    assert here.job(job)["restarts"] == 0
    supervisor = here.supervisor()
    os.killpg(supervisor, signal.SIGKILL)
    here.until(lambda: here.supervisor() != supervisor, 20, "the supervisor is started again")
    done = here.ends(job)
    assert done["attempt"] == 2
    assert done["resumed_from"] >= 10
    assert here.node(NODE)["boot_id"] == here.boot
    assert not here.resets


def test_a_reset_that_has_begun_is_never_cut_off_by_the_death_of_ours(here: WorkstationRig) -> None:
    here.slow.touch()
    here.xid(95)
    here.until(lambda: here.resets, 30, "the reset has begun")
    supervisor = here.supervisor()
    os.killpg(supervisor, signal.SIGKILL)
    here.until(lambda: here.supervisor() != supervisor and here.agent(), 30, "both are started again")
    before = here.commands_begun()
    here.until(lambda: here.commands_begun() - before, 60, "a reset is asked for again")
    assert len(here.resets) == 1  # the second waits for the first
    here.slow.unlink()
    here.reaches_phase("xid.95", "RELEASED", 120)
    assert here.resets[1::2] == ["done", "done"]


def test_where_it_may_it_reboots_and_goes_on_in_the_next_boot_and_others_processes_outlive_all(tmp_path: Path) -> None:
    rig = WorkstationRig(tmp_path / "state")
    for theirs in foreign_process():
        for _ in running_rig(rig):
            rig.kill()
            rig.up("--allow-reboot")
            rig.until(lambda: "it reboots this machine" in rig.said(), 20, "it says so")
            job = rig.train(120, nodes=1)
            rig.reaches(job, 12)
            rig.xid(79, "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
            rig.until(rig.rebooted.exists, 30, "it is rebooted")
            rig.power_off()
            rig.boots(f"next-{rig.boot[5:]}")
            rig.up("--allow-reboot")
            incident = rig.reaches_phase("xid.79", "RELEASED")
            assert incident["jobs"] == [job]
            done = rig.ends(job)
            assert (done["attempt"], rig.node(NODE)["boot_id"]) == (2, rig.boot)
            assert done["resumed_from"] >= 10
            assert rig.rebooted.read_text() == "now\n"
            virtual = [sys.executable, "-m", "sickbay", "up", "--state", str(rig.state)]
            refused = subprocess.run(virtual, env=rig.environment(), capture_output=True, text=True, check=False)
            assert refused.returncode == 2
            assert "go on with 'sickbay up --here'" in refused.stderr
            assert "Traceback" not in refused.stderr
        assert theirs.poll() is None
