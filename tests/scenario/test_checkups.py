"""Checks of idle nodes: on a person's word, on the schedule, and of a node whose fault is only watched."""

from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.wards import DAY, HOUR, MINUTE, Ward, cluster_without, warm_and_cold

from sickbay.model.checkup import Checkup, Tested, Verdict
from sickbay.model.facts import Checked
from sickbay.model.fault import Remedy
from sickbay.model.fleet import Capability, NodeId
from sickbay.model.intent import Intent
from sickbay.model.job import JobState
from sickbay.model.policy import Examine, Limit, Policy, Trigger
from sickbay.policy.load import load_policy
from sickbay.sim.chaos import Odds
from sickbay.sim.context import ClusterRules
from sickbay.sim.hardware import SimDefect
from sickbay.sim.simulation import CLUSTER, Quarter


def scheduled(every: timedelta = timedelta(hours=12), level: int = 2, **more: object) -> Policy:
    policy = load_policy("default")
    rule = Examine(on=Trigger.SCHEDULE, level=level, every=every, deadline=timedelta(minutes=20))
    return replace(policy, examine=(*policy.examine, rule), **more)


def idle_hall(**plan: Any) -> Ward:
    """What ran when we connected has left."""
    w = Ward(**plan)
    w.run(MINUTE)
    return w


def checkups(w: Ward) -> list[Checkup]:
    found = [row for row in w.sim._all("checkup") if isinstance(row, Checkup)]
    return sorted(found, key=lambda c: c.asked_at)


def only_checkup(w: Ward, most: float = HOUR) -> Checkup:
    w.until(lambda: bool(checkups(w)) and not checkups(w)[0].open, most)
    (checkup,) = checkups(w)
    return checkup


def verdicts(w: Ward, checkup: Checkup) -> dict[NodeId, str]:
    """As a face reads them: from the checkup's intents."""
    rows = [v.row for v in w.sim.store.load(checkup.intents).values()]
    return {node: f.verdict for row in rows if isinstance(row, Intent) for node, f in row.found.items()}


def story(w: Ward, subject: str) -> list[str]:
    return [line.text for line in w.sim.store.story(subject)]


# --- a person's word


@warm_and_cold
def test_all_idle_nodes_are_checked_at_once(cold: bool) -> None:
    w = idle_hall(nodes=45, cold=cold)
    w.order("check", "", all="1", level="2")
    checkup = only_checkup(w)
    assert verdicts(w, checkup) == dict.fromkeys(w.nodes, "pass")
    assert (checkup.nodes, checkup.passed, checkup.skipped) == (45, 45, {})
    starts = [e.at for e in w.events("check")]
    assert max(starts) - min(starts) < 30.0, "none waits for another"
    w.rests()
    assert w.notices() == []


def test_busy_cordoned_and_unready_nodes_are_skipped_and_the_story_says_why() -> None:
    w = idle_hall(nodes=6)
    job = w.training(nodes=2)
    w.world.operator_cordons(w.nodes[2], "other:maintenance")
    w.order("cordon", w.nodes[3])
    w.run(MINUTE)
    w.order("check", "", all="1", level="1")
    checkup = only_checkup(w)
    assert set(verdicts(w, checkup)) == set(w.nodes[4:])
    assert checkup.skipped.keys() == set(w.nodes[:4])
    assert checkup.skipped[w.nodes[0]] == f"job {job} has it"
    assert checkup.skipped[w.nodes[2]] == "cordoned by other:maintenance"
    assert any(str(w.nodes[2]) in text and "maintenance" in text for text in story(w, "operator:"))


def test_a_pool_that_is_not_known_a_level_that_is_none_and_no_target_are_refused_in_one_line() -> None:
    w = idle_hall(nodes=2)
    w.order("check", "", pool="nowhere")
    w.order("check", "", all="1", level="7")
    w.order("check", "")
    w.run(MINUTE)
    refused = [text for text in story(w, "operator:") if "refused" in text]
    assert len(refused) == 3
    assert "no pool 'nowhere' is known" in refused[0]
    assert "level 1 to 4, not '7'" in refused[1]
    assert all(not checkup.open and checkup.nodes == 0 for checkup in checkups(w))
    assert w.events("check.start") == []


def test_a_check_of_one_pool_leaves_the_others_alone() -> None:
    w = idle_hall(nodes=3)
    others = w.world.add_nodes("sim", 2, pool="other")
    w.run(HOUR)
    before = len(w.events("check"))
    w.order("check", "", pool="train")
    w.run(HOUR)
    checked = {e.subject for e in w.events("check")[before:]}
    assert checked == set(w.nodes)
    assert not checked & set(others)


@warm_and_cold
def test_a_check_of_one_busy_node_is_refused(cold: bool) -> None:
    w = idle_hall(nodes=2, cold=cold)
    job = w.training()
    w.order("check", w.nodes[0])
    checkup = only_checkup(w)
    assert checkup.skipped == {w.nodes[0]: f"job {job} has it"}
    assert any("refused" in text and str(job) in text for text in story(w, f"node:{w.nodes[0]}"))
    w.order("check", "sim/nobody")
    w.run(MINUTE)
    assert "no such node" in str([c.skipped for c in checkups(w)])
    w.ends(job)


@warm_and_cold
def test_a_node_that_fails_opens_an_incident_and_a_human_is_told(cold: bool) -> None:
    w = idle_hall(nodes=3, cold=cold)
    w.spoil(w.nodes[1])
    w.order("check", "", all="1", level="2")
    checkup = only_checkup(w)
    assert verdicts(w, checkup)[w.nodes[1]] == "fail"
    assert checkup.failed == (w.nodes[1],)
    (incident,) = w.incidents()
    assert (incident.node, incident.fault.code) == (w.nodes[1], "check.failed")
    w.run(MINUTE)
    (notice,) = w.notices("check_failed")
    assert str(w.nodes[1]) in notice.text
    w.rests()
    assert incident_phase(w, w.nodes[1]) == "RELEASED"


def incident_phase(w: Ward, node: NodeId) -> str:
    return w.incidents(node)[-1].phase


@pytest.mark.parametrize("silent", [0.0, 1.0], ids=["said", "silent"])
def test_a_check_that_could_not_run_is_no_pass_frees_its_node_and_is_told(silent: float) -> None:
    w = idle_hall(nodes=2, odds=Odds(check_could_not_run=1.0, check_silent=silent))
    w.order("check", "", all="1", level="1")
    checkup = only_checkup(w)
    assert verdicts(w, checkup) == dict.fromkeys(w.nodes, "could_not_run")
    assert set(checkup.unrun) == set(w.nodes)
    w.run(MINUTE)
    (notice,) = w.notices("check_could_not_run")
    assert "could not be checked" in notice.text
    assert all(w.sim.node(node).claimable for node in w.nodes)


@warm_and_cold
def test_nobody_starts_on_a_node_while_it_is_checked(cold: bool) -> None:
    w = idle_hall(nodes=2, cold=cold)
    w.order("check", "", all="1", level="3")
    w.run(MINUTE)
    assert not any(w.sim.node(node).claimable for node in w.nodes)
    job = w.submit(nodes=1, on=(w.nodes[0],))
    w.run(MINUTE)
    assert "is being checked" in w.because(job)
    w.ends(job)
    assert w.events("start")[0].at > w.passed_checks(w.nodes[0])[0]
    w.rests()


def test_a_node_is_free_as_soon_as_its_own_verdict_is_in() -> None:
    w = idle_hall(nodes=20)
    w.order("check", "", all="1", level="2")
    w.until(lambda: any(w.sim.node(node).checking for node in w.nodes))
    w.until(lambda: any(w.sim.node(node).claimable for node in w.nodes), HOUR)
    assert any(w.sim.node(node).checking for node in w.nodes)
    only_checkup(w)


def test_a_node_that_reboots_while_it_is_checked_is_not_held_by_the_check() -> None:
    w = idle_hall(nodes=2)
    w.order("check", w.nodes[0], level="3")
    w.run(MINUTE)
    assert w.sim.node(w.nodes[0]).checking
    w.world.operator_reboots(w.nodes[0])
    w.until(lambda: w.sim.node(w.nodes[0]).claimable, HOUR)
    checkup = only_checkup(w, DAY)
    assert checkup.unrun == (w.nodes[0],)


def test_a_fault_on_a_node_while_it_is_checked_is_treated_at_once() -> None:
    w = idle_hall(nodes=10)
    w.order("check", "", all="1", level="4")
    w.run(MINUTE)
    w.sick(w.nodes[0])
    w.until(lambda: bool(w.events("cordon", w.nodes[0])), 5 * MINUTE)
    w.rests()
    only_checkup(w, DAY)
    assert w.incidents(w.nodes[0])[0].phase == "RELEASED"


def test_where_nothing_can_check_every_node_is_skipped_with_the_reason() -> None:
    w = idle_hall(nodes=2, cluster=cluster_without(Capability.CHECK, Capability.CHECK_CORDONED))
    w.order("check", "", all="1")
    checkup = only_checkup(w)
    assert set(checkup.skipped.values()) == {"nothing in sim can check it"}


@pytest.mark.parametrize("seed", range(12))
def test_wherever_the_engine_dies_every_node_is_checked_and_free_again(seed: int) -> None:
    w = idle_hall(nodes=25, seed=seed, cold=seed % 2 == 1, engines=1 + seed % 2, odds=Odds.rough())
    fates = ("crash_before", "crash_after", "lost_answer", "unavailable")
    here = w.sim.points
    w.sim.fates.update({here + 2 + seed + 7 * n: fates[(seed + n) % 4] for n in range(8)})
    w.order("check", "", all="1", level="1")
    checkup = only_checkup(w, DAY)
    assert verdicts(w, checkup).keys() | checkup.skipped.keys() == set(w.nodes)
    w.rests()
    assert all(not w.sim.node(node).checking for node in w.nodes)


def test_the_same_order_twice_is_one_check() -> None:
    w = idle_hall(nodes=2)
    w.order("check", w.nodes[0], level="1")
    w.sim.orders -= 1  # a second sending has the same key
    w.order("check", w.nodes[0], level="1")
    w.run(HOUR)
    assert len(checkups(w)) == 1
    assert len(w.events("check", w.nodes[0])) == 1


def test_what_each_test_of_a_check_found_is_kept_with_its_reason() -> None:
    w = idle_hall(nodes=1, odds=Odds(check_could_not_run=1.0, check_silent=1.0))
    w.order("check", w.nodes[0], level="1")
    w.until(lambda: bool(w.sim.node(w.nodes[0]).checking))
    seat = w.world.seat(w.nodes[0])
    tests = (
        Tested(name="memory", verdict=Verdict.FAIL, seconds=1.5, because="x" * 1000),
        *[Tested(name="n", verdict=Verdict.PASS)] * 99,
    )
    news = Checked(
        check=w.sim.node(seat.id).checking,
        node=seat.id,
        verdict=Verdict.FAIL,
        incarnation=seat.incarnation,
        level=1,
        because="memory is bad",
        tests=tests,
    )
    w.sim._say("by hand", news)
    checkup = only_checkup(w)
    (row,) = (v.row for v in w.sim.store.load(checkup.intents).values())
    assert isinstance(row, Intent)
    found = row.found[seat.id]
    assert (found.verdict, found.because) == ("fail", "memory is bad")
    assert (found.tests[0].name, found.tests[0].seconds) == ("memory", 1.5)
    assert len(found.tests) < 30, "a row has room for those of all its nodes"
    assert len(found.tests[0].because) < 300
    assert w.incidents(seat.id)[0].fault.code == "check.failed"


# --- the schedule


@pytest.mark.slow
@warm_and_cold
def test_idle_nodes_are_checked_on_schedule_and_not_all_at_one_moment(cold: bool) -> None:
    every = timedelta(hours=4)
    w = idle_hall(nodes=8, cold=cold, policy=scheduled(every))
    w.run(2.5 * every.total_seconds())
    for node in w.nodes:
        times = w.passed_checks(node)
        assert len(times) >= 2, f"{node} was checked at {times}"
        assert all(every.total_seconds() <= b - a <= 1.2 * every.total_seconds() for a, b in pairwise(times))
    first = sorted(w.passed_checks(node)[0] for node in w.nodes)
    assert first[-1] - first[0] > 0.3 * every.total_seconds()
    assert all(e.detail == "level 2" for e in w.events("check.start"))
    w.rests()


def test_a_deep_enough_check_of_any_kind_puts_the_next_one_off_and_a_shallow_one_does_not() -> None:
    w = idle_hall(nodes=2, policy=scheduled(timedelta(hours=10)))
    w.run(HOUR / 10)
    due = {node: w.sim.node(node).check_due for node in w.nodes}
    w.ends(w.submit("shallow", nodes=2, steps=10, precheck=1))
    assert {node: w.sim.node(node).check_due for node in w.nodes} == due
    w.ends(w.submit("deep", nodes=2, steps=10, precheck=2))
    assert all((w.sim.node(node).check_due or 0.0) > 36_000 for node in w.nodes)


def test_no_more_nodes_are_checked_at_once_than_the_pool_may_lack() -> None:
    limits = (Limit(out_percent=10.0, out_at_least=2),)
    w = idle_hall(nodes=10, policy=scheduled(timedelta(minutes=30), level=3, limits=limits))
    seen = 0

    def count() -> bool:
        nonlocal seen
        seen = max(seen, sum(1 for node in w.nodes if w.sim.node(node).checking))
        return False

    w.sim.run_until(count, 1.5 * HOUR)
    assert seen == 2


def test_a_job_that_waits_for_nodes_comes_before_the_schedule() -> None:
    w = idle_hall(nodes=4, policy=scheduled(timedelta(hours=1), level=1))
    w.training("long", nodes=2, steps=40_000)
    large = w.submit("large", nodes=4, steps=10)
    w.run(10 * MINUTE)
    begun = len(w.events("check.start"))
    w.run(3 * HOUR)
    assert w.job(large).state is JobState.QUEUED
    later = [e for e in w.events("check.start")[begun:] if e.subject.startswith("check/")]
    assert later == []


def test_a_scheduled_check_that_fails_opens_an_incident_and_tells() -> None:
    w = idle_hall(nodes=4, policy=scheduled(timedelta(hours=4)))
    w.spoil(w.nodes[2])
    w.until(lambda: bool(w.incidents(w.nodes[2])), DAY)
    assert w.incidents(w.nodes[2])[0].fault.code == "check.failed"
    w.run(MINUTE)
    assert len(w.notices("check_failed")) == 1


@pytest.mark.slow
def test_a_scheduled_check_that_could_not_run_is_tried_again_later_not_at_once() -> None:
    w = idle_hall(nodes=1, policy=scheduled(timedelta(hours=4)), odds=Odds(check_could_not_run=1.0, check_silent=0.0))
    w.run(8 * HOUR)
    times = [e.at for e in w.events("check", w.nodes[0])]
    assert len(times) > 3
    assert all(b - a > 0.1 * 4 * HOUR - 1 for a, b in pairwise(times))


@pytest.mark.slow
def test_newcomers_have_their_place_in_the_schedule() -> None:
    w = idle_hall(nodes=2, policy=scheduled(timedelta(hours=6)))
    w.run(HOUR)
    (new,) = w.world.add_nodes("sim", 1, pool="train")
    w.run(20 * HOUR)
    assert [e for e in w.events("check.start") if e.subject.startswith(f"check/{new}/")]


# --- a watched fault


def watching() -> Policy:
    policy = load_policy("default")
    return replace(policy, examine=(*policy.examine, Examine(on=Trigger.FAULT, level=2)))


def test_a_node_whose_fault_is_only_watched_is_checked_once_when_it_is_idle() -> None:
    w = idle_hall(nodes=3, policy=watching())
    job = w.training(nodes=1, steps=600)
    node = w.starts(job)[0][1][0]
    harmless = SimDefect(code="xid.63", cured_by=Remedy.REBOOT, kills_ranks=False, found_at=5)
    w.world.strike(node, harmless)
    w.run(MINUTE)
    assert incident_phase(w, node) == "WATCHED", w.why()
    assert [c.target for c in checkups(w)] == []
    w.ends(job)
    w.until(lambda: bool(checkups(w)), 10 * MINUTE)
    w.run(HOUR)
    (checkup,) = checkups(w)
    assert (checkup.target, checkup.passed) == (node, 1)
    assert "xid.63 is watched" in checkup.reason
    w.rests()


def test_a_watched_node_that_fails_its_check_is_treated() -> None:
    w = idle_hall(nodes=3, policy=watching())
    w.world.strike(w.nodes[0], SimDefect(code="xid.63", cured_by=Remedy.REBOOT, kills_ranks=False, found_at=1))
    w.until(lambda: bool(w.events("reboot", w.nodes[0])), HOUR)
    w.rests()
    assert incident_phase(w, w.nodes[0]) == "RELEASED"


# --- nodes that were there before us, where they are to be checked first


def checks_first(**plan: Any) -> Ward:
    return Ward(cluster=ClusterRules(id=CLUSTER, checks_first=True), **plan)


@pytest.mark.slow
@warm_and_cold
def test_who_was_there_before_us_is_checked_once_at_a_pace_within_the_limits_and_cordoned_by_nobody(cold: bool) -> None:
    limits = (Limit(out_percent=0.0, out_at_least=2),)
    w = checks_first(nodes=8, cold=cold, policy=replace(load_policy("default"), limits=limits))
    seen = 0

    def count() -> bool:
        nonlocal seen
        seen = max(seen, sum(1 for node in w.nodes if w.sim.node(node).checking))
        return all(w.passed_checks(node) for node in w.nodes)

    w.run(MINUTE)
    w.until(count, 6 * HOUR)
    w.run(6 * HOUR)
    assert seen == 2
    assert {len(w.passed_checks(node)) for node in w.nodes} == {1}
    assert all(e.detail == "level 2" for e in w.events("check.start"))
    assert w.events("cordon") == []
    assert w.sim.incidents(intake=True) == []
    assert w.notices() == []


@pytest.mark.parametrize("way", ["first", "schedule"])
def test_nodes_of_two_clusters_whose_names_run_into_each_other_are_all_checked(way: str) -> None:
    first = way == "first"
    far = ClusterRules(id="sim-eu", checks_first=first)
    w = idle_hall(
        nodes=2,
        cluster=ClusterRules(id=CLUSTER, checks_first=first),
        names=lambda n: f"eu-gpu-{n}",
        also=(Quarter(cluster=far, nodes=2, names=lambda n: f"gpu-{n}"),),
        policy=load_policy("default") if first else scheduled(timedelta(hours=4)),
    )
    w.run(6 * HOUR)
    nodes = {"sim/eu-gpu-0", "sim/eu-gpu-1", "sim-eu/gpu-0", "sim-eu/gpu-1"}
    assert {e.subject for e in w.events("check")} == nodes
    assert {checkup.target for checkup in checkups(w)} >= nodes
    w.rests()


def test_who_was_there_before_us_and_fails_its_first_check_is_treated() -> None:
    w = checks_first(nodes=4)
    w.spoil(w.nodes[2])
    w.until(lambda: bool(w.incidents(w.nodes[2])), 6 * HOUR)
    assert w.incidents(w.nodes[2])[0].fault.code == "check.failed"


@pytest.mark.slow
def test_a_first_check_waits_until_nothing_runs_there_and_a_gate_of_its_level_takes_its_place() -> None:
    w = checks_first(nodes=2)
    w.ends(w.submit("deep", nodes=2, steps=4000, precheck=2), most=6 * HOUR)
    w.run(6 * HOUR)
    times = sorted(len(w.passed_checks(node)) for node in w.nodes)
    assert times == [1, 2], "one was checked before the job came, the other by its gate alone"


@pytest.mark.slow
def test_where_who_was_there_is_trusted_nobody_is_checked_for_it() -> None:
    w = Ward(nodes=4)
    w.run(6 * HOUR)
    assert w.events("check") == []
