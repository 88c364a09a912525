"""A sick node is taken out, repaired, proven well and put back; whoever trained there trains again."""

from typing import Literal

import pytest
from msgspec.structs import replace
from tests.support.wards import HOUR, OpenWard, cluster_without, policy_with

from sickbay.model.fault import Remedy
from sickbay.model.incident import Phase
from sickbay.model.job import JobState
from sickbay.sim.chaos import Odds

HEALED = ["SUSPECT", "QUARANTINED", "DRAINING", "DRAINED", "REPAIRING", "VERIFYING", "RELEASED"]
AGAIN = ["DRAINED", "REPAIRING", "VERIFYING"]


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
@pytest.mark.parametrize(
    ("code", "cure", "rungs"),
    [
        ("xid.48", Remedy.RESET_GPU, ["reset_gpu"]),
        ("xid.79", Remedy.REBOOT, ["reboot"]),
        ("xid.48", Remedy.REBOOT, ["reset_gpu", "reset_gpu", "reboot"]),
        ("xid.48", Remedy.REPLACE, ["reset_gpu", "reset_gpu", "reboot", "replace"]),
        ("xid.79", Remedy.REPLACE, ["reboot", "replace"]),
    ],
)
def test_a_node_climbs_the_ladder_until_it_is_cured(
    ward: OpenWard, code: str, cure: Remedy, rungs: list[str], cold: bool
) -> None:
    w = ward(cold=cold)
    job = w.running()
    node = w.nodes[0]
    w.sick(node, code, cure)
    w.rests()
    assert w.rungs(node) == rungs
    assert w.phases(node) == HEALED[:4] + ["REPAIRING", "VERIFYING"] + AGAIN * (len(rungs) - 1) + ["RELEASED"]
    assert w.job(job).state is JobState.COMPLETE
    assert w.job(job).attempt == 2
    assert w.told() == []
    assert w.node(node).claimable
    assert w.ledger().out == w.ledger().repairing == 0


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
def test_a_node_that_nothing_cures_is_held_and_its_job_completes_elsewhere(ward: OpenWard, cold: bool) -> None:
    w = ward(cold=cold, cluster=cluster_without("replace"))
    job = w.running()
    node = w.nodes[0]
    w.sick(node, "xid.79", None)
    w.rests()
    held = w.incident(node)
    assert held.phase is Phase.HELD
    assert w.rungs(node) == ["reboot"]
    assert "no repair is left to try" in held.stages[-1].because
    assert w.job(job).state is JobState.COMPLETE
    assert len(w.told("held")) == len(w.told()) == 1
    assert w.job(job).attempt == 2
    assert (w.ledger().out, w.ledger().held) == (1, 1)


@pytest.mark.parametrize("seed", range(4))
def test_a_rough_world_changes_the_way_but_not_the_end(ward: OpenWard, seed: int) -> None:
    w = ward(seed=seed, odds=Odds.rough(), nodes=5)
    job = w.running()
    node = min(w.job(job).claim)
    w.sick(node, "xid.79", Remedy.REBOOT)
    w.rests()
    assert w.job(job).state is JobState.COMPLETE
    assert w.phase(node) in {"RELEASED", "HELD"}


# --- a second fault


def test_a_second_fault_joins_the_open_incident_and_raises_its_remedy(ward: OpenWard) -> None:
    w = ward()
    w.running()
    node = w.nodes[0]
    w.sick(node, "xid.48", Remedy.REBOOT)
    w.reaches(node, Phase.QUARANTINED)
    w.says(node, 79)
    w.rests()
    assert len(w.incidents(node)) == 1
    assert w.rungs(node) == ["reboot"]
    assert any(line.startswith("xid.79") for line in w.incident(node).evidence)


@pytest.mark.parametrize("during", [Phase.REPAIRING, Phase.VERIFYING])
def test_a_fault_of_the_new_boot_fails_the_rung(ward: OpenWard, during: Phase) -> None:
    w = ward()
    node = w.nodes[0]
    recurs = 5.0 if during is Phase.REPAIRING else 60.0
    w.sick(node, "xid.79", Remedy.REPLACE, recurs_after_boot=recurs, found_at=4)
    w.rests()
    assert w.rungs(node) == ["reboot", "replace"]
    assert w.phase(node) == "RELEASED"
    assert "it is back" in "".join(stage.because for stage in w.incident(node).stages)
    assert w.happened("check.fail", node) == []


def test_a_fault_that_our_own_check_provokes_belongs_to_its_verdict(ward: OpenWard) -> None:
    w = ward()
    node = w.nodes[0]
    w.sick(node, "xid.79", Remedy.REPLACE)
    w.rests()
    assert len(w.incidents(node)) == 1
    because = [stage.because for stage in w.incident(node).stages]
    assert any("check level 2 failed" in why for why in because)
    assert not any("it is back" in why for why in because)


def test_a_fault_of_an_older_boot_is_history_only(ward: OpenWard) -> None:
    w = ward()
    node = w.nodes[0]
    w.world.cut_path(node)  # what the agent reads now it can tell only later
    w.says(node, 79)
    w.world.open_path(node)
    old = w.world.seat(node).outbox[0].fact
    w.world.agents.wipe(w.world.seat(node))
    w.world.operator_reboots(node)
    w.run(600)
    w.sim.hosts[0].hear([old], {})  # a copy that the network kept
    w.run(600)
    assert [i for i in w.incidents(node) if i.fault.code == "xid.79"] == []
    assert "history only" in w.story(node)
    w.rests()


# --- several


def test_two_sick_nodes_of_one_job_are_repaired_one_interruption_later(ward: OpenWard) -> None:
    w = ward(nodes=20)
    job = w.running(nodes=4)
    first, second = w.nodes[0], w.nodes[1]
    w.sick(first)
    w.sick(second)
    w.rests()
    assert [w.phase(n) for n in (first, second)] == ["RELEASED", "RELEASED"]
    assert w.job(job).state is JobState.COMPLETE
    assert len(w.job(job).interruptions) == 1
    assert set(w.job(job).interruptions[0].incidents) == {w.incident(first).id, w.incident(second).id}
    assert w.told() == []


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
def test_a_reset_of_one_untied_gpu_interrupts_only_its_holder(ward: OpenWard, cold: bool) -> None:
    w = ward(nodes=1, linked=False, cold=cold)
    jobs = [w.running(f"j{n}", nodes=1, gpus_per_node=2, steps=4000) for n in range(3)]
    node = w.nodes[0]
    sick = next(job for job in jobs if 0 in w.job(job).claim[node])
    w.sick(node, "xid.48", Remedy.RESET_GPU)
    w.rests()
    assert w.rungs(node) == ["reset_gpu"]
    assert w.phase(node) == "RELEASED"
    for job in jobs:
        assert w.job(job).state is JobState.COMPLETE
        assert len(w.job(job).interruptions) == (1 if job == sick else 0), job


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
def test_a_second_sick_gpu_of_the_node_interrupts_its_own_holder_and_is_reset_with_the_first(
    ward: OpenWard, cold: bool
) -> None:
    w = ward(nodes=1, linked=False, cold=cold)
    jobs = [w.running(f"j{n}", nodes=1, gpus_per_node=2, steps=4000) for n in range(3)]
    node = w.nodes[0]
    for device in (0, 2):
        w.sick(node, "xid.48", Remedy.RESET_GPU, device=device, kills_ranks=False)
    w.rests()
    assert w.rungs(node) == ["reset_gpu"]
    assert w.phase(node) == "RELEASED"
    for job in jobs:
        assert w.job(job).state is JobState.COMPLETE
        assert len(w.job(job).interruptions) == (0 if job == jobs[2] else 1), job


def test_a_further_fault_of_the_whole_node_interrupts_whoever_runs_there(ward: OpenWard) -> None:
    w = ward(nodes=1, linked=False, policy=policy_with(pace=replace(policy_with().pace, bystanders="wait")))
    jobs = [w.running(f"j{n}", nodes=1, gpus_per_node=2, steps=4000) for n in range(3)]
    node = w.nodes[0]
    w.sick(node, "xid.48", Remedy.RESET_GPU, kills_ranks=False)
    w.until(lambda: bool(w.incidents(node)), 60)
    w.world.observe(node, "fs.read_only", {}, "remounted read-only")
    w.run(60)
    assert w.incident(node).fault.code == "xid.48"
    assert set(w.incident(node).jobs) == set(jobs)


@pytest.mark.parametrize("bystanders", ["wait", "stop"])
def test_a_reboot_for_one_gpu_needs_the_whole_node(ward: OpenWard, bystanders: Literal["wait", "stop"]) -> None:
    policy = policy_with(pace=replace(policy_with().pace, bystanders=bystanders))
    w = ward(nodes=1, linked=False, policy=policy)
    jobs = [w.running(f"j{n}", nodes=1, gpus_per_node=2, steps=600) for n in range(3)]
    node = w.nodes[0]
    sick = next(job for job in jobs if 0 in w.job(job).claim[node])
    w.sick(node, "xid.79", Remedy.REBOOT)
    w.rests()
    assert w.phase(node) == "RELEASED"
    for job in jobs:
        assert w.job(job).state is JobState.COMPLETE
        interrupted = job == sick or bystanders == "stop"
        assert len(w.job(job).interruptions) == int(interrupted), job


# --- what the driver says of its own words


def test_xid_162_takes_163_back(ward: OpenWard) -> None:
    w = ward()
    node = w.nodes[0]
    w.says(node, 163)
    watched = w.reaches(node, Phase.WATCHED)
    w.says(node, 162)
    w.run(60)
    assert w.phases(node) == ["SUSPECT", "WATCHED", "DISMISSED"]
    assert "xid.162" in w.incident(node).stages[-1].because
    assert w.incident(node).id == watched.id
    assert w.happened("cordon") == []
    w.rests()


@pytest.mark.parametrize(
    ("number", "advice", "rungs"),
    [(48, "reboot", ["reboot"]), (79, "reset_gpu", ["reset_gpu"]), (31, "reboot", ["reboot"])],
)
def test_the_drivers_advice_wins_in_both_directions(ward: OpenWard, number: int, advice: str, rungs: list[str]) -> None:
    w = ward()
    node = w.nodes[0]
    w.says(node, number)
    w.says(node, 154, advice=advice)
    w.rests()
    assert w.rungs(node) == rungs
    assert w.phase(node) == "RELEASED"


def test_the_drivers_advice_comes_too_late_once_a_repair_has_begun(ward: OpenWard) -> None:
    w = ward()
    node = w.nodes[0]
    w.sick(node, "xid.48", Remedy.RESET_GPU)
    w.reaches(node, Phase.REPAIRING)
    w.says(node, 154, advice="replace")
    w.rests()
    assert w.rungs(node) == ["reset_gpu"]


def test_what_follows_an_earlier_xid_is_not_a_second_illness(ward: OpenWard) -> None:
    w = ward()
    node = w.nodes[0]
    w.says(node, 48)
    w.says(node, 79, follows=48)
    w.rests()
    assert len(w.incidents(node)) == 1
    assert w.rungs(node) == ["reset_gpu"]


def test_repeats_on_one_gpu_blame_the_gpu_and_on_others_they_do_not(ward: OpenWard) -> None:
    w = ward()
    for device in range(3):
        w.says(w.nodes[1], 94, device=device)
        w.run(30)
    for _ in range(3):
        w.says(w.nodes[0], 94)
        w.run(30)
    w.rests()
    assert [i.phase for i in w.incidents(w.nodes[1])] == ["DISMISSED"]
    assert w.rungs(w.nodes[0]) == ["reset_gpu"]
    assert w.phase(w.nodes[0]) == "RELEASED"


def test_repeats_count_for_as_long_as_the_policy_says_also_after_each_was_let_go(ward: OpenWard) -> None:
    w = ward()
    node = w.nodes[0]
    for _ in range(2):
        w.says(node, 94)
        w.run(2 * HOUR)
        assert w.phase(node) == "DISMISSED"
    w.says(node, 94)
    w.rests()
    assert w.rungs(node) == ["reset_gpu"]


def test_one_programs_bug_is_never_blamed_on_the_gpu(ward: OpenWard) -> None:
    w = ward()
    for _ in range(5):
        w.says(w.nodes[0], 31)
        w.run(30)
    w.rests()
    assert w.rungs(w.nodes[0]) == []


def test_a_sighting_says_under_which_job_it_was(ward: OpenWard) -> None:
    w = ward()
    job = w.running()
    node = next(iter(w.job(job).claim))
    w.says(node, 31)
    w.until(lambda: bool(w.node(node).recent))
    assert [seen.job for seen in w.node(node).recent] == [job]


def test_a_line_from_before_the_check_that_ended_the_last_incident_does_nothing(ward: OpenWard) -> None:
    w = ward()
    node = w.nodes[0]
    w.sick(node)
    w.rests()
    proven = w.node(node).proven_at
    assert proven is not None
    w.run(2 * HOUR)
    w.world.observe(node, "xid", {"number": 79, "device": 0}, "read again", ago=3 * HOUR)
    w.rests()
    assert len(w.incidents(node)) == 1
    assert "history only" in w.story(node)
    w.world.observe(node, "xid", {"number": 79, "device": 0}, "new", ago=HOUR)
    w.rests()
    assert len(w.incidents(node)) == 2


# --- history follows the hardware


def test_a_lemon_is_replaced_and_its_seat_starts_clean(ward: OpenWard) -> None:
    w = ward()
    node = w.nodes[0]
    for _ in range(2):
        w.sick(node)
        w.rests()
        assert w.rungs(node) == ["reboot"]
    w.sick(node)
    w.rests()
    assert w.rungs(node) == ["replace"]
    w.sick(node)
    w.rests()
    assert w.rungs(node) == ["reboot"], "the newcomer in that seat has no history"


def test_a_bad_gpu_keeps_its_history_when_it_moves_to_another_seat(ward: OpenWard) -> None:
    w = ward()
    first, second = w.nodes[0], w.nodes[1]
    for _ in range(2):
        w.sick(first)
        w.rests()
    serials = w.world.seat(first).devices
    w.world.seat(second).devices = (serials[0], *w.world.seat(second).devices[1:])
    w.world.ground.show(w.world.seat(second))
    w.run(60)
    w.sick(second)
    w.rests()
    assert w.rungs(second) == ["replace"]
