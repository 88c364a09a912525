"""Checks of idle nodes: on a person's word, on the schedule, and of a node whose fault is only watched."""

from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.jobs_vocabulary import DAY, HOUR, MINUTE, Hall, cluster_without, warm_and_cold

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


def idle_hall(**plan: Any) -> Hall:
    """What ran when we connected has left."""
    hall = Hall(**plan)
    hall.run(MINUTE)
    return hall


def checkups(hall: Hall) -> list[Checkup]:
    found = [row for row in hall.sim._all("checkup") if isinstance(row, Checkup)]
    return sorted(found, key=lambda c: c.asked_at)


def only_checkup(hall: Hall, most: float = HOUR) -> Checkup:
    hall.until(lambda: bool(checkups(hall)) and not checkups(hall)[0].open, most)
    (checkup,) = checkups(hall)
    return checkup


def verdicts(hall: Hall, checkup: Checkup) -> dict[NodeId, str]:
    """As a face reads them: from the checkup's intents."""
    rows = [v.row for v in hall.sim.store.load(checkup.intents).values()]
    return {node: f.verdict for row in rows if isinstance(row, Intent) for node, f in row.found.items()}


def story(hall: Hall, subject: str) -> list[str]:
    return [line.text for line in hall.sim.store.story(subject)]


# --- a person's word


@warm_and_cold
def test_all_idle_nodes_are_checked_at_once(cold: bool) -> None:
    hall = idle_hall(nodes=45, cold=cold)
    hall.order("check", "", all="1", level="2")
    checkup = only_checkup(hall)
    assert verdicts(hall, checkup) == dict.fromkeys(hall.nodes, "pass")
    assert (checkup.nodes, checkup.passed, checkup.skipped) == (45, 45, {})
    starts = [e.at for e in hall.happened("check")]
    assert max(starts) - min(starts) < 30.0, "none waits for another"
    hall.rests()
    assert hall.told() == []


def test_busy_cordoned_and_unready_nodes_are_skipped_and_the_story_says_why() -> None:
    hall = idle_hall(nodes=6)
    job = hall.training(nodes=2)
    hall.world.operator_cordons(hall.nodes[2], "other:maintenance")
    hall.order("cordon", hall.nodes[3])
    hall.run(MINUTE)
    hall.order("check", "", all="1", level="1")
    checkup = only_checkup(hall)
    assert set(verdicts(hall, checkup)) == set(hall.nodes[4:])
    assert checkup.skipped.keys() == set(hall.nodes[:4])
    assert checkup.skipped[hall.nodes[0]] == f"job {job} has it"
    assert checkup.skipped[hall.nodes[2]] == "cordoned by other:maintenance"
    assert any(str(hall.nodes[2]) in text and "maintenance" in text for text in story(hall, "operator:"))


def test_a_pool_that_is_not_known_a_level_that_is_none_and_no_target_are_refused_in_one_line() -> None:
    hall = idle_hall(nodes=2)
    hall.order("check", "", pool="nowhere")
    hall.order("check", "", all="1", level="7")
    hall.order("check", "")
    hall.run(MINUTE)
    refused = [text for text in story(hall, "operator:") if "refused" in text]
    assert len(refused) == 3
    assert "no pool 'nowhere' is known" in refused[0]
    assert "level 1 to 4, not '7'" in refused[1]
    assert all(not checkup.open and checkup.nodes == 0 for checkup in checkups(hall))
    assert hall.happened("check.start") == []


def test_a_check_of_one_pool_leaves_the_others_alone() -> None:
    hall = idle_hall(nodes=3)
    others = hall.world.add_nodes("sim", 2, pool="other")
    hall.run(HOUR)
    before = len(hall.happened("check"))
    hall.order("check", "", pool="train")
    hall.run(HOUR)
    checked = {e.subject for e in hall.happened("check")[before:]}
    assert checked == set(hall.nodes)
    assert not checked & set(others)


@warm_and_cold
def test_a_check_of_one_busy_node_is_refused(cold: bool) -> None:
    hall = idle_hall(nodes=2, cold=cold)
    job = hall.training()
    hall.order("check", hall.nodes[0])
    checkup = only_checkup(hall)
    assert checkup.skipped == {hall.nodes[0]: f"job {job} has it"}
    assert any("refused" in text and str(job) in text for text in story(hall, f"node:{hall.nodes[0]}"))
    hall.order("check", "sim/nobody")
    hall.run(MINUTE)
    assert "no such node" in str([c.skipped for c in checkups(hall)])
    hall.ends(job)


@warm_and_cold
def test_a_node_that_fails_opens_an_incident_and_a_human_is_told(cold: bool) -> None:
    hall = idle_hall(nodes=3, cold=cold)
    hall.spoil(hall.nodes[1])
    hall.order("check", "", all="1", level="2")
    checkup = only_checkup(hall)
    assert verdicts(hall, checkup)[hall.nodes[1]] == "fail"
    assert checkup.failed == (hall.nodes[1],)
    (incident,) = hall.incidents()
    assert (incident.node, incident.fault.code) == (hall.nodes[1], "check.failed")
    hall.run(MINUTE)
    (notice,) = hall.told("check_failed")
    assert str(hall.nodes[1]) in notice.text
    hall.rests()
    assert incident_phase(hall, hall.nodes[1]) == "RELEASED"


def incident_phase(hall: Hall, node: NodeId) -> str:
    return hall.incidents(node)[-1].phase


@pytest.mark.parametrize("silent", [0.0, 1.0], ids=["said", "silent"])
def test_a_check_that_could_not_run_is_no_pass_frees_its_node_and_is_told(silent: float) -> None:
    hall = idle_hall(nodes=2, odds=Odds(check_could_not_run=1.0, check_silent=silent))
    hall.order("check", "", all="1", level="1")
    checkup = only_checkup(hall)
    assert verdicts(hall, checkup) == dict.fromkeys(hall.nodes, "could_not_run")
    assert set(checkup.unrun) == set(hall.nodes)
    hall.run(MINUTE)
    (notice,) = hall.told("check_could_not_run")
    assert "could not be checked" in notice.text
    assert all(hall.sim.node(node).claimable for node in hall.nodes)


@warm_and_cold
def test_nobody_starts_on_a_node_while_it_is_checked(cold: bool) -> None:
    hall = idle_hall(nodes=2, cold=cold)
    hall.order("check", "", all="1", level="3")
    hall.run(MINUTE)
    assert not any(hall.sim.node(node).claimable for node in hall.nodes)
    job = hall.submit(nodes=1, on=(hall.nodes[0],))
    hall.run(MINUTE)
    assert "is being checked" in hall.because(job)
    hall.ends(job)
    assert hall.happened("start")[0].at > hall.passed_checks(hall.nodes[0])[0]
    hall.rests()


def test_a_node_is_free_as_soon_as_its_own_verdict_is_in() -> None:
    hall = idle_hall(nodes=20)
    hall.order("check", "", all="1", level="2")
    hall.until(lambda: any(hall.sim.node(node).checking for node in hall.nodes))
    hall.until(lambda: any(hall.sim.node(node).claimable for node in hall.nodes), HOUR)
    assert any(hall.sim.node(node).checking for node in hall.nodes)
    only_checkup(hall)


def test_a_node_that_reboots_while_it_is_checked_is_not_held_by_the_check() -> None:
    hall = idle_hall(nodes=2)
    hall.order("check", hall.nodes[0], level="3")
    hall.run(MINUTE)
    assert hall.sim.node(hall.nodes[0]).checking
    hall.world.operator_reboots(hall.nodes[0])
    hall.until(lambda: hall.sim.node(hall.nodes[0]).claimable, HOUR)
    checkup = only_checkup(hall, DAY)
    assert checkup.unrun == (hall.nodes[0],)


def test_a_fault_on_a_node_while_it_is_checked_is_treated_at_once() -> None:
    hall = idle_hall(nodes=10)
    hall.order("check", "", all="1", level="4")
    hall.run(MINUTE)
    hall.strike(hall.nodes[0])
    hall.until(lambda: bool(hall.happened("cordon", hall.nodes[0])), 5 * MINUTE)
    hall.rests()
    only_checkup(hall, DAY)
    assert hall.incidents(hall.nodes[0])[0].phase == "RELEASED"


def test_where_nothing_can_check_every_node_is_skipped_with_the_reason() -> None:
    hall = idle_hall(nodes=2, cluster=cluster_without(Capability.CHECK, Capability.CHECK_CORDONED))
    hall.order("check", "", all="1")
    checkup = only_checkup(hall)
    assert set(checkup.skipped.values()) == {"nothing in sim can check it"}


@pytest.mark.parametrize("seed", range(12))
def test_wherever_the_engine_dies_every_node_is_checked_and_free_again(seed: int) -> None:
    hall = idle_hall(nodes=25, seed=seed, cold=seed % 2 == 1, engines=1 + seed % 2, odds=Odds.rough())
    fates = ("crash_before", "crash_after", "lost_answer", "unavailable")
    here = hall.sim.points
    hall.sim.fates.update({here + 2 + seed + 7 * n: fates[(seed + n) % 4] for n in range(8)})
    hall.order("check", "", all="1", level="1")
    checkup = only_checkup(hall, DAY)
    assert verdicts(hall, checkup).keys() | checkup.skipped.keys() == set(hall.nodes)
    hall.rests()
    assert all(not hall.sim.node(node).checking for node in hall.nodes)


def test_the_same_order_twice_is_one_check() -> None:
    hall = idle_hall(nodes=2)
    hall.order("check", hall.nodes[0], level="1")
    hall.sim._orders -= 1  # a second sending has the same key
    hall.order("check", hall.nodes[0], level="1")
    hall.run(HOUR)
    assert len(checkups(hall)) == 1
    assert len(hall.happened("check", hall.nodes[0])) == 1


def test_what_each_test_of_a_check_found_is_kept_with_its_reason() -> None:
    hall = idle_hall(nodes=1, odds=Odds(check_could_not_run=1.0, check_silent=1.0))
    hall.order("check", hall.nodes[0], level="1")
    hall.until(lambda: bool(hall.sim.node(hall.nodes[0]).checking))
    seat = hall.world.seat(hall.nodes[0])
    tests = (
        Tested(name="memory", verdict=Verdict.FAIL, seconds=1.5, because="x" * 1000),
        *[Tested(name="n", verdict=Verdict.PASS)] * 99,
    )
    news = Checked(
        check=hall.sim.node(seat.id).checking,
        node=seat.id,
        verdict=Verdict.FAIL,
        incarnation=seat.incarnation,
        level=1,
        because="memory is bad",
        tests=tests,
    )
    hall.sim._say("by hand", news)
    checkup = only_checkup(hall)
    (row,) = (v.row for v in hall.sim.store.load(checkup.intents).values())
    assert isinstance(row, Intent)
    found = row.found[seat.id]
    assert (found.verdict, found.because) == ("fail", "memory is bad")
    assert (found.tests[0].name, found.tests[0].seconds) == ("memory", 1.5)
    assert len(found.tests) < 30, "a row has room for those of all its nodes"
    assert len(found.tests[0].because) < 300
    assert hall.incidents(seat.id)[0].fault.code == "check.failed"


# --- the schedule


@pytest.mark.slow
@warm_and_cold
def test_idle_nodes_are_checked_on_schedule_and_not_all_at_one_moment(cold: bool) -> None:
    every = timedelta(hours=4)
    hall = idle_hall(nodes=8, cold=cold, policy=scheduled(every))
    hall.run(2.5 * every.total_seconds())
    for node in hall.nodes:
        times = hall.passed_checks(node)
        assert len(times) >= 2, f"{node} was checked at {times}"
        assert all(every.total_seconds() <= b - a <= 1.2 * every.total_seconds() for a, b in pairwise(times))
    first = sorted(hall.passed_checks(node)[0] for node in hall.nodes)
    assert first[-1] - first[0] > 0.3 * every.total_seconds()
    assert all(e.detail == "level 2" for e in hall.happened("check.start"))
    hall.rests()


def test_a_deep_enough_check_of_any_kind_puts_the_next_one_off_and_a_shallow_one_does_not() -> None:
    hall = idle_hall(nodes=2, policy=scheduled(timedelta(hours=10)))
    hall.run(HOUR / 10)
    due = {node: hall.sim.node(node).check_due for node in hall.nodes}
    hall.ends(hall.submit("shallow", nodes=2, steps=10, precheck=1))
    assert {node: hall.sim.node(node).check_due for node in hall.nodes} == due
    hall.ends(hall.submit("deep", nodes=2, steps=10, precheck=2))
    assert all((hall.sim.node(node).check_due or 0.0) > 36_000 for node in hall.nodes)


def test_no_more_nodes_are_checked_at_once_than_the_pool_may_lack() -> None:
    limits = (Limit(out_percent=10.0, out_at_least=2),)
    hall = idle_hall(nodes=10, policy=scheduled(timedelta(minutes=30), level=3, limits=limits))
    seen = 0

    def count() -> bool:
        nonlocal seen
        seen = max(seen, sum(1 for node in hall.nodes if hall.sim.node(node).checking))
        return False

    hall.sim.run_until(count, 1.5 * HOUR)
    assert seen == 2


def test_a_job_that_waits_for_nodes_comes_before_the_schedule() -> None:
    hall = idle_hall(nodes=4, policy=scheduled(timedelta(hours=1), level=1))
    hall.training("long", nodes=2, steps=40_000)
    large = hall.submit("large", nodes=4, steps=10)
    hall.run(10 * MINUTE)
    begun = len(hall.happened("check.start"))
    hall.run(3 * HOUR)
    assert hall.job(large).state is JobState.QUEUED
    later = [e for e in hall.happened("check.start")[begun:] if e.subject.startswith("check/")]
    assert later == []


def test_a_scheduled_check_that_fails_opens_an_incident_and_tells() -> None:
    hall = idle_hall(nodes=4, policy=scheduled(timedelta(hours=4)))
    hall.spoil(hall.nodes[2])
    hall.until(lambda: bool(hall.incidents(hall.nodes[2])), DAY)
    assert hall.incidents(hall.nodes[2])[0].fault.code == "check.failed"
    hall.run(MINUTE)
    assert len(hall.told("check_failed")) == 1


@pytest.mark.slow
def test_a_scheduled_check_that_could_not_run_is_tried_again_later_not_at_once() -> None:
    hall = idle_hall(
        nodes=1, policy=scheduled(timedelta(hours=4)), odds=Odds(check_could_not_run=1.0, check_silent=0.0)
    )
    hall.run(8 * HOUR)
    times = [e.at for e in hall.happened("check", hall.nodes[0])]
    assert len(times) > 3
    assert all(b - a > 0.1 * 4 * HOUR - 1 for a, b in pairwise(times))


@pytest.mark.slow
def test_newcomers_have_their_place_in_the_schedule() -> None:
    hall = idle_hall(nodes=2, policy=scheduled(timedelta(hours=6)))
    hall.run(HOUR)
    (new,) = hall.world.add_nodes("sim", 1, pool="train")
    hall.run(20 * HOUR)
    assert [e for e in hall.happened("check.start") if e.subject.startswith(f"check/{new}/")]


# --- a watched fault


def watching() -> Policy:
    policy = load_policy("default")
    return replace(policy, examine=(*policy.examine, Examine(on=Trigger.FAULT, level=2)))


def test_a_node_whose_fault_is_only_watched_is_checked_once_when_it_is_idle() -> None:
    hall = idle_hall(nodes=3, policy=watching())
    job = hall.training(nodes=1, steps=600)
    node = hall.starts(job)[0][1][0]
    harmless = SimDefect(code="xid.63", cured_by=Remedy.REBOOT, kills_ranks=False, found_at=5)
    hall.world.strike(node, harmless)
    hall.run(MINUTE)
    assert incident_phase(hall, node) == "WATCHED", hall.why()
    assert [c.target for c in checkups(hall)] == []
    hall.ends(job)
    hall.until(lambda: bool(checkups(hall)), 10 * MINUTE)
    hall.run(HOUR)
    (checkup,) = checkups(hall)
    assert (checkup.target, checkup.passed) == (node, 1)
    assert "xid.63 is watched" in checkup.reason
    hall.rests()


def test_a_watched_node_that_fails_its_check_is_treated() -> None:
    hall = idle_hall(nodes=3, policy=watching())
    hall.world.strike(hall.nodes[0], SimDefect(code="xid.63", cured_by=Remedy.REBOOT, kills_ranks=False, found_at=1))
    hall.until(lambda: bool(hall.happened("reboot", hall.nodes[0])), HOUR)
    hall.rests()
    assert incident_phase(hall, hall.nodes[0]) == "RELEASED"


# --- nodes that were there before us, where they are to be checked first


def checks_first(**plan: Any) -> Hall:
    return Hall(cluster=ClusterRules(id=CLUSTER, checks_first=True), **plan)


@pytest.mark.slow
@warm_and_cold
def test_who_was_there_before_us_is_checked_once_at_a_pace_within_the_limits_and_cordoned_by_nobody(cold: bool) -> None:
    limits = (Limit(out_percent=0.0, out_at_least=2),)
    hall = checks_first(nodes=8, cold=cold, policy=replace(load_policy("default"), limits=limits))
    seen = 0

    def count() -> bool:
        nonlocal seen
        seen = max(seen, sum(1 for node in hall.nodes if hall.sim.node(node).checking))
        return all(hall.passed_checks(node) for node in hall.nodes)

    hall.run(MINUTE)
    hall.until(count, 6 * HOUR)
    hall.run(6 * HOUR)
    assert seen == 2
    assert {len(hall.passed_checks(node)) for node in hall.nodes} == {1}
    assert all(e.detail == "level 2" for e in hall.happened("check.start"))
    assert hall.happened("cordon") == []
    assert hall.sim.incidents(intake=True) == []
    assert hall.told() == []


@pytest.mark.parametrize("way", ["first", "schedule"])
def test_nodes_of_two_clusters_whose_names_run_into_each_other_are_all_checked(way: str) -> None:
    first = way == "first"
    far = ClusterRules(id="sim-eu", checks_first=first)
    hall = idle_hall(
        nodes=2,
        cluster=ClusterRules(id=CLUSTER, checks_first=first),
        names=lambda n: f"eu-gpu-{n}",
        also=(Quarter(cluster=far, nodes=2, names=lambda n: f"gpu-{n}"),),
        policy=load_policy("default") if first else scheduled(timedelta(hours=4)),
    )
    hall.run(6 * HOUR)
    nodes = {"sim/eu-gpu-0", "sim/eu-gpu-1", "sim-eu/gpu-0", "sim-eu/gpu-1"}
    assert {e.subject for e in hall.happened("check")} == nodes
    assert {checkup.target for checkup in checkups(hall)} >= nodes
    hall.rests()


def test_who_was_there_before_us_and_fails_its_first_check_is_treated() -> None:
    hall = checks_first(nodes=4)
    hall.spoil(hall.nodes[2])
    hall.until(lambda: bool(hall.incidents(hall.nodes[2])), 6 * HOUR)
    assert hall.incidents(hall.nodes[2])[0].fault.code == "check.failed"


@pytest.mark.slow
def test_a_first_check_waits_until_nothing_runs_there_and_a_gate_of_its_level_takes_its_place() -> None:
    hall = checks_first(nodes=2)
    hall.ends(hall.submit("deep", nodes=2, steps=4000, precheck=2), most=6 * HOUR)
    hall.run(6 * HOUR)
    times = sorted(len(hall.passed_checks(node)) for node in hall.nodes)
    assert times == [1, 2], "one was checked before the job came, the other by its gate alone"


@pytest.mark.slow
def test_where_who_was_there_is_trusted_nobody_is_checked_for_it() -> None:
    hall = Hall(nodes=4)
    hall.run(6 * HOUR)
    assert hall.happened("check") == []
