"""A GPU breaks under a training job on real processes: the job trains again, the node is cured, proven and released."""

from typing import Any

import pytest
from tests.support.up_rig import Sickbay

pytestmark = pytest.mark.slow

# Besides DRAINING: where the ranks are gone before the cordon is seen, nothing is left to drain.
WAY = ["SUSPECT", "QUARANTINED", "DRAINED", "REPAIRING", "VERIFYING", "RELEASED"]


def phases(incident: dict[str, Any]) -> list[str]:
    return [stage["phase"] for stage in incident["stages"]]


def checkpoint_before(step: int, every: int = 10) -> int:
    return step - step % every


def test_a_job_goes_on_without_the_sick_node_which_is_rebooted_and_proven(four: Sickbay) -> None:
    job = four.train(400)
    before = four.reaches(job, 25)
    sick = before["nodes"][-1]
    boot = four.node(sick)["boot_id"]
    four.inject(sick, xid=79, cured_by="reboot")
    incident = four.phase(sick, "RELEASED")
    assert [phase for phase in phases(incident) if phase != "DRAINING"] == WAY
    assert incident["fault"]["code"] == "xid.79"
    assert incident["jobs"] == [job]
    after = four.node(sick)
    assert after["schedulable"]
    assert after["boot_id"] != boot
    done = four.ends(job)
    (lost,) = done["interruptions"]
    assert lost["incidents"] == [incident["id"]]
    assert all(lost["stages"][name] for name in ("detected", "stopped", "diagnosed", "placed", "started", "first_step"))
    four.until(lambda: four.job(job)["step"] == 400, 10, "its last step is told")
    assert done["resumed_from"] is not None
    assert 20 <= done["resumed_from"] <= 60  # the last checkpoint before the fault: not 0, and not past it
    assert done["resumed_from"] % 10 == 0


def test_the_node_is_not_used_before_its_boot_is_new_and_its_check_has_passed(four: Sickbay) -> None:
    job = four.train(150)
    sick = four.reaches(job, 15)["nodes"][-1]
    boot = four.node(sick)["boot_id"]
    four.inject(sick, xid=79, cured_by="reboot")
    seen: list[tuple[bool, str, str]] = []

    def released() -> bool:
        node = four.node(sick)  # one answer, so that what it says belongs together
        proven = "our cordon" in node["because"]  # the check has passed: what is left is to take our cordon back
        phase = "RELEASED" if proven else node["because"].partition(":")[0]
        seen.append((node["schedulable"], node["boot_id"], phase))
        return [i["phase"] for i in four.incidents(sick)] == ["RELEASED"]

    four.until(released, 60, "released")
    assert "VERIFYING" in [phase for _, _, phase in seen]
    for schedulable, then, phase in seen:
        if phase in {"DRAINING", "DRAINED", "REPAIRING", "VERIFYING"}:
            assert not schedulable
        if phase == "VERIFYING":
            assert then != boot
    story = four.story(four.incidents(sick)[-1]["id"])
    assert any("check" in line for line in story)
    four.ends(job)


def test_with_no_spare_the_job_waits_for_its_node_and_says_so(two: Sickbay) -> None:
    job = two.train(200)
    sick = two.reaches(job, 15)["nodes"][-1]
    two.inject(sick, xid=79, cured_by="reboot")
    two.until(lambda: "can be claimed" in two.job(job)["because"], 30, "the job says what it waits for")
    two.phase(sick, "RELEASED")
    done = two.ends(job)
    assert done["resumed_from"] % 10 == 0
    assert done["resumed_from"] >= 10
    assert done["restarts"] == 0  # the hardware's fault, and waiting costs nothing


def test_what_only_a_new_machine_cures_goes_up_the_ladder(four: Sickbay) -> None:
    job = four.train(300)
    sick = four.reaches(job, 15)["nodes"][-1]
    instance = four.node(sick)["instance_id"]
    four.inject(sick, xid=79, cured_by="replace")
    incident = four.phase(sick, "RELEASED", 120)
    assert [one["rung"] for one in incident["tries"]][-2:] == ["reboot", "replace"]
    assert phases(incident).count("VERIFYING") >= 2
    assert four.node(sick)["instance_id"] != instance
    four.ends(job)


def test_what_nothing_cures_is_held_and_told_once_while_the_job_goes_on(four: Sickbay) -> None:
    job = four.train(300)
    sick = four.reaches(job, 15)["nodes"][-1]
    four.inject(sick, xid=79, cured_by="nothing")
    four.phase(sick, "HELD", 180)
    done = four.ends(job)
    assert sick not in done["nodes"]
    told = [notice for notice in four.notices() if notice["event"] == "held"]
    assert len(told) == 1
    assert four.node(sick)["state"] == "HELD"
    assert not four.node(sick)["schedulable"]
