"""What broke others, one test for each: facts from their issue threads and post-mortems."""

import pytest
from msgspec.structs import replace
from tests.support.wards import HOUR, OpenWard, cluster_without, policy_with

from sickbay.model.fault import Remedy
from sickbay.model.fleet import JobId
from sickbay.model.incident import Phase
from sickbay.model.job import JobSpec, JobState
from sickbay.model.policy import OnCouldNotRun
from sickbay.sim.chaos import Odds
from sickbay.sim.context import ClusterRules

# --- sessions


def test_reports_of_an_ended_session_that_come_again_cordon_nobody(ward: OpenWard) -> None:
    w = ward()
    node = w.nodes[0]
    w.sick(node)
    w.reaches(node, Phase.QUARANTINED)
    facts = list(w.sim.store.facts(after=0, limit=1000))
    w.rests()
    cordons = len(w.happened("cordon"))
    w.sim.hosts[0].hear(facts, {})
    w.run(HOUR)
    assert len(w.happened("cordon")) == cordons
    assert len(w.incidents(node)) == 1


def test_a_late_cordon_of_an_ended_session_does_not_stay(ward: OpenWard) -> None:
    for seed in range(6):
        w = ward(seed=seed, odds=Odds(late=0.5, doubled=0.3))
        w.sick(w.nodes[0])
        w.reaches(w.nodes[0], Phase.QUARANTINED)
        w.order("dismiss", w.incident(w.nodes[0]).id)
        w.rests()
        assert w.phase(w.nodes[0]) == "DISMISSED"
        assert not w.world.seat(w.nodes[0]).cordons


# --- streams


def test_a_lost_change_stream_is_noticed_and_compared(ward: OpenWard) -> None:
    w = ward(nodes=6, cluster=ClusterRules(id="sim", keep=2))
    now = w.sim.scheduler.now
    w.sim.mischief.outage("cluster:sim", now, now + HOUR)
    w.run(60)
    w.world.operator_deletes(w.nodes[5])
    for node in w.nodes[:4]:
        w.world.operator_cordons(node)
    w.run(HOUR)
    assert not [row for row in w.sim.store.keys("node") if row.endswith(w.nodes[5])]
    assert all(w.node(node).others_cordon for node in w.nodes[:4])
    w.rests()
    assert w.ledger().seats == 5


def test_many_copies_of_few_lines_make_one_incident(ward: OpenWard) -> None:
    w = ward()
    node = w.nodes[0]
    for _ in range(100):
        for number in (48, 63, 74, 79, 94):
            w.says(node, number)
    w.run(5)
    assert len(w.incidents(node)) == 1
    assert len(w.incident(node).evidence) <= 12
    w.rests()
    assert w.phase(node) == "RELEASED"


@pytest.mark.slow
def test_a_gpu_that_leaves_the_bus_without_a_line_is_found_before_a_start(ward: OpenWard) -> None:
    w = ward()
    node = w.nodes[0]
    w.sick(node, "xid.79", Remedy.REBOOT, silent=True, kills_ranks=False)
    job = w.sim.submit("train", None, nodes=2)
    w.until(lambda: w.state(job) == JobState.RUNNING)
    assert node not in w.job(job).claim
    w.reaches(node, Phase.RELEASED)


# --- calls that never come to anything


def test_a_provider_that_fails_for_ever_is_not_in_progress_for_ever(ward: OpenWard) -> None:
    w = ward()
    node = w.nodes[0]
    now = w.sim.scheduler.now
    w.sim.mischief.outage("machines:sim", now, now + 1e9)
    w.sick(node)
    held = w.reaches(node, Phase.HELD, 6 * HOUR)
    assert "could not be carried out" in held.stages[-1].because
    assert "refuses connections" in held.stages[-1].because
    w.rests()
    assert len(w.told()) == 1
    w.sim.mischief._outages.clear()
    w.order("escalate", held.id)
    w.rests()
    assert w.happened("reboot", node), "a rung that was never carried out was not tried"
    assert w.phase(node) == "RELEASED"


@pytest.mark.slow
def test_a_provider_that_hangs_for_ever_is_given_up_with_a_reason(ward: OpenWard) -> None:
    w = ward()
    node = w.nodes[0]
    now = w.sim.scheduler.now
    w.sim.mischief.outage("machines:sim", now, now + 1e9, hangs=True)
    w.sick(node)
    w.reaches(node, Phase.HELD, 12 * HOUR)
    w.rests()
    assert len(w.told()) == 1


def test_a_reboot_that_was_only_promised_is_not_believed(ward: OpenWard) -> None:
    w = ward()
    node = w.nodes[0]
    w.sick(node, "xid.79", Remedy.REPLACE)
    w.world.seat(node).stuck = Remedy.REPLACE  # it accepts the reboot and never comes up
    w.rests()
    assert w.rungs(node) == ["reboot", "replace"]
    assert "not seen within its deadline" in w.incident(node).tries[0].result


def test_a_reset_that_a_client_of_the_device_refuses_is_tried_again_a_little_later(ward: OpenWard) -> None:
    w = ward(linked=False)
    node = w.nodes[0]
    foreign = JobId("somebody's shell")  # no job that anybody told us of
    spec = JobSpec(name=foreign, cluster="sim", pool="train")
    w.world.placing.start(foreign, 1, spec=spec, nodes={node: (0,)}, avoid=(), key="theirs")
    w.run(40)
    w.sick(node, "xid.48", Remedy.RESET_GPU, kills_ranks=False)
    w.until(lambda: bool(w.happened("reset.refused", node)), HOUR)
    w.world.owner_cancels(foreign)
    w.rests()
    assert len(w.happened("reset.refused", node)) == 1
    assert w.rungs(node) == ["reset_gpu", "reset_gpu"]
    assert w.phase(node) == "RELEASED"


# --- checks that prove nothing


@pytest.mark.parametrize("silent", [0.0, 1.0], ids=["says so", "says nothing"])
def test_a_check_that_could_not_run_is_never_a_pass(ward: OpenWard, silent: float) -> None:
    w = ward(odds=Odds(check_could_not_run=1.0, check_silent=silent))
    node = w.nodes[0]
    w.sick(node)
    w.rests()
    assert w.phase(node) == "HELD"
    assert w.rungs(node) == ["reboot"], "a checker that is broken is no reason to replace machines"
    assert "could not run" in w.incident(node).stages[-1].because
    assert w.happened("uncordon", node) == []
    assert len(w.told()) == 1


def test_where_the_policy_says_so_a_check_that_could_not_run_fails_the_rung(ward: OpenWard) -> None:
    ladders = tuple(
        replace(ladder, rungs=tuple(replace(rung, on_could_not_run=OnCouldNotRun.FAIL) for rung in ladder.rungs))
        for ladder in policy_with().ladders
    )
    w = ward(odds=Odds(check_could_not_run=1.0), policy=policy_with(ladders=ladders))
    node = w.nodes[0]
    w.sick(node)
    w.rests()
    assert w.phase(node) == "HELD"
    assert w.rungs(node) == ["reboot", "replace", "replace"]


def test_nothing_that_can_check_a_cordoned_node_means_held_not_released(ward: OpenWard) -> None:
    w = ward(cluster=cluster_without("check_cordoned"))
    node = w.nodes[0]
    w.sick(node)
    w.rests()
    assert w.phase(node) == "HELD"
    assert "no check can run on a cordoned node" in w.incident(node).stages[-1].because


def test_a_replacement_job_does_not_land_on_the_same_bad_host(ward: OpenWard) -> None:
    w = ward(nodes=3)
    job = w.running()
    node = min(w.job(job).claim)
    w.sick(node, "xid.79", None)
    w.until(lambda: w.job(job).attempt == 2 and w.job(job).state is JobState.RUNNING)
    assert node not in w.job(job).claim
