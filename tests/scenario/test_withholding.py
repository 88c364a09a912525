"""What is withheld is recorded and shown; when it ends, the present state is judged afresh."""

from datetime import UTC, datetime

import pytest
from tests.support.wards import DAY, HOUR, OpenWard, in_phase, policy_with

from sickbay.model.fault import Remedy
from sickbay.model.fleet import Withhold, Withholding
from sickbay.model.incident import Phase
from sickbay.model.job import JobState
from sickbay.model.policy import FaultRule, Match, Mode, Window
from sickbay.model.rows import WITHHOLDING
from sickbay.sim.simulation import CLUSTER

XID_79 = Match(fault="xid.79")


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
@pytest.mark.parametrize(("mode", "notices"), [(Mode.OBSERVE, 0), (Mode.RECOMMEND, 1)])
def test_observe_tells_nobody_and_recommend_tells_once(ward: OpenWard, mode: Mode, notices: int, cold: bool) -> None:
    w = ward(policy=policy_with(faults=(FaultRule(match=XID_79, mode=mode),)), cold=cold)
    job = w.running(steps=600)
    node = w.nodes[0]
    w.says(node, 79)
    w.run(HOUR)
    assert w.phase(node) == "SUSPECT"
    assert w.incident(node).wait.would.startswith(f"cordon {node}, move its jobs off, ")
    assert w.happened("cordon") == []
    assert len(w.told()) == notices
    assert w.job(job).state is JobState.COMPLETE
    assert w.job(job).interruptions == ()


def test_a_closed_window_withholds_the_repair_only(ward: OpenWard) -> None:
    w = ward(policy=policy_with(windows=(Window(start="02:00"),)))
    job = w.running()
    node = w.nodes[0]
    w.sick(node)
    w.run(HOUR)
    assert w.phase(node) == "DRAINED"
    assert "window" in w.incident(node).wait.because
    assert w.incident(node).wait.would
    assert w.job(job).attempt == 2
    w.rests()
    assert w.phase(node) == "RELEASED"
    assert w.told() == []


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
def test_a_pause_ends_and_the_node_is_judged_afresh(ward: OpenWard, cold: bool) -> None:
    w = ward(cold=cold)
    node = w.nodes[0]
    w.order("pause", "")
    w.sick(node)
    w.run(HOUR)
    assert w.phase(node) == "SUSPECT"
    assert w.incident(node).wait.would
    assert len(w.told("withheld")) == len(w.told()) == 1
    w.order("unpause", "")
    w.rests()
    assert w.phase(node) == "RELEASED"
    assert len(w.told()) == 1


def test_a_pause_with_an_end_needs_nobody_to_end_it(ward: OpenWard) -> None:
    w = ward()
    node = w.nodes[0]
    w.order("pause", "", seconds="1800")
    w.sick(node)
    w.run(1700)
    assert w.phase(node) == "SUSPECT"
    w.run(300)
    assert w.phase(node) != "SUSPECT"
    w.rests()
    assert w.phase(node) == "RELEASED"


def test_an_excluded_fault_does_not_keep_its_seat_from_being_claimed(ward: OpenWard) -> None:
    w = ward(nodes=1)
    node = w.nodes[0]
    w.order("exclude", "", node=node, fault="xid.79", seconds="7200")
    w.says(node, 79)
    w.run(60)
    assert w.phase(node) == "SUSPECT"
    assert w.node(node).claimable
    job = w.running(nodes=1, steps=300)
    w.until(lambda: w.job(job).state is JobState.COMPLETE)
    w.run(7200)
    assert w.phase(node) != "SUSPECT", "the exclusion has ended"
    w.rests()
    assert w.phase(node) == "DISMISSED", "its check passed"


def test_an_exclusion_is_of_one_fault_and_one_node(ward: OpenWard) -> None:
    w = ward(nodes=20)
    w.order("exclude", "", node=w.nodes[0], fault="xid.79")
    for node in w.nodes[:2]:
        w.says(node, 79)
    w.says(w.nodes[2], 48)
    w.run(60)
    assert w.phase(w.nodes[0]) == "SUSPECT"
    w.run(HOUR)
    assert w.phase(w.nodes[1]) == w.phase(w.nodes[2]) == "RELEASED"


def test_a_row_of_the_policy_withholds_until_its_end(ward: OpenWard) -> None:
    until = datetime(2026, 1, 1, 1, tzinfo=UTC)
    row = Withhold(id="freeze", because="a release freeze", by="policy", until=until)
    w = ward(policy=policy_with(withhold=(row,)))
    node = w.nodes[0]
    w.sick(node)
    w.run(HOUR / 2)
    assert w.phase(node) == "SUSPECT"
    assert w.incident(node).wait.because == "a release freeze"
    w.run(HOUR)
    w.rests()
    assert w.phase(node) == "RELEASED"


@pytest.mark.parametrize("phase", [Phase.REPAIRING, Phase.VERIFYING])
def test_a_pause_stops_neither_proof_nor_release(ward: OpenWard, phase: Phase) -> None:
    w, node = in_phase(ward, phase)
    w.order("pause", "")
    w.run(1200)
    assert w.phase(node) == "RELEASED"
    assert w.node(node).claimable


def test_a_pause_stops_no_job_from_starting(ward: OpenWard) -> None:
    w = ward()
    w.order("pause", "")
    job = w.running(steps=300)
    w.until(lambda: w.job(job).state is JobState.COMPLETE, HOUR)


def test_a_pause_leaves_the_job_of_a_sick_node_alone(ward: OpenWard) -> None:
    w = ward()
    w.order("pause", "")
    job = w.running(steps=600)
    w.says(w.nodes[0], 79)
    w.until(lambda: w.job(job).state is JobState.COMPLETE, HOUR)
    assert w.job(job).interruptions == ()


@pytest.mark.parametrize("phase", [Phase.QUARANTINED, Phase.DRAINING, Phase.DRAINED])
def test_what_is_paused_half_way_runs_out_of_no_time(ward: OpenWard, phase: Phase) -> None:
    w, node = in_phase(ward, phase)
    w.order("pause", "")
    w.run(3 * HOUR)
    assert w.phase(node) in {"QUARANTINED", "DRAINED"}, w.why()
    assert w.told("held") == []
    w.order("unpause", "")
    w.rests()
    assert w.phase(node) == "RELEASED"
    assert w.rungs(node) == ["reboot"]


def test_a_fault_that_heals_while_it_is_withheld_is_not_repaired_afterwards(ward: OpenWard) -> None:
    w = ward()
    node = w.nodes[0]
    w.order("pause", "")
    w.sick(node, "xid.79", Remedy.REBOOT)
    w.reaches(node, Phase.SUSPECT)
    w.world.operator_reboots(node)
    w.run(HOUR)
    w.order("unpause", "")
    w.rests()
    assert w.phase(node) == "DISMISSED", "its check passed"
    assert len(w.happened("reboot", node)) == 1


@pytest.mark.slow
def test_a_stop_that_is_withheld_for_long_is_told_and_reminded_of(ward: OpenWard) -> None:
    w = ward(nodes=4)
    job = w.running(nodes=2, steps=10**6)
    node = next(iter(w.job(job).claim))
    now = w.sim.scheduler.now
    w.sim.mischief.outage(f"writes:{CLUSTER}", now, now + 90.0)
    w.says(node, 79)
    w.until(lambda: w.job(job).state is JobState.STOPPING, HOUR)
    w.order("pause", "")
    w.run(10 * 60)
    assert w.job(job).state is JobState.STOPPING
    assert "pause" in (w.job(job).wait.because if w.job(job).wait else "")
    assert w.job(job).wait.until is not None
    assert [text for text in w.told("job_stuck") if "pause" in text] == w.told("job_stuck")
    assert len(w.told("job_stuck")) == 1
    w.run(DAY)
    assert len(w.told("job_stuck")) == 3, "reminded every twelve hours"
    w.order("unpause", "")
    w.until(lambda: w.job(job).state is JobState.RUNNING and w.job(job).attempt == 2, HOUR)
    assert w.job(job).remind is None


def test_an_exclusion_is_no_proof_of_a_newcomer(ward: OpenWard) -> None:
    w = ward(nodes=2)
    w.order("exclude", "", pool="train")
    w.run(5)
    new = w.world.add_nodes("sim", 1, names=lambda _: "new-0000")[0]
    w.run(120)
    assert not w.node(new).claimable
    assert w.told("withheld")
    stored = w.sim.store.load([WITHHOLDING])[WITHHOLDING].row
    assert isinstance(stored, Withholding)
    w.order("include", stored.rows[0].id)
    w.until(lambda: w.node(new).claimable, HOUR)
    assert w.happened("check.pass", new)


@pytest.mark.parametrize("before", ["observe", "pause"])
def test_an_exclusion_frees_a_seat_whatever_else_withholds(ward: OpenWard, before: str) -> None:
    observed = policy_with(faults=(FaultRule(match=Match(), mode=Mode.OBSERVE),))
    w = ward(nodes=2, policy=observed if before == "observe" else None)
    node = w.nodes[0]
    if before == "pause":
        w.order("pause", "")
    w.run(2)
    w.says(node, 79)
    w.run(30)
    assert not w.node(node).claimable
    w.order("exclude", "", node=node)
    w.run(30)
    assert w.node(node).claimable
    assert w.phase(node) == Phase.SUSPECT
