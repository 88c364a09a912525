"""What a cluster says besides nodes and ranks: checks of its own, requests by label, jobs that it has no more."""

from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.wards import HOUR, MINUTE, OpenWard, Ward, cluster_without, policy_of, policy_with, warm_and_cold

from sickbay.faces.explain import explain
from sickbay.model.checkup import Verdict
from sickbay.model.facts import Checked, Fact, Hung, Observed, Ordered, RankEnded, RankWaits, Wrote
from sickbay.model.fleet import Capability, Incarnation, JobId, NodeId
from sickbay.model.incident import Phase
from sickbay.model.intent import Drain, Intent
from sickbay.model.job import JobState
from sickbay.model.policy import Examine, Trigger
from sickbay.policy.load import load_policy
from sickbay.sim.context import ClusterRules, Timings
from sickbay.sim.simulation import CLUSTER


def facts(hall: Ward) -> list[Fact]:
    """All that was ever learned."""
    found: list[Fact] = []
    while page := list(hall.sim.store.facts(after=found[-1].seq if found else 0, limit=1000)):
        found += page
    return found


def relist(hall: Ward) -> None:
    """The stream is lost: what is there is listed again."""
    hall.run(20)
    hall.world.ground.views[CLUSTER].cut()
    hall.run(20)


# --- checks, conditions and requests


def prolog_fails(w: Ward, node: NodeId, check: str = "prolog/17") -> None:
    seen = w.node(node).incarnation
    assert seen is not None
    w.world.operator_cordons(node, "other:Prolog error")
    w.world.says(CLUSTER, f"{node}/{check}", Checked(check=check, node=node, verdict=Verdict.FAIL, incarnation=seen))


def test_a_check_that_failed_on_the_cluster_opens_an_incident(ward: OpenWard) -> None:
    w = ward(nodes=4)
    prolog_fails(w, w.nodes[0])
    w.until(lambda: w.incidents(w.nodes[0]) != [], MINUTE)
    assert w.incident(w.nodes[0]).fault.code == "check.failed"


def test_a_check_that_failed_counts_though_whoever_ran_it_cannot_tell_the_boot(ward: OpenWard) -> None:
    w = ward(nodes=4)
    w.world.says(
        CLUSTER, "task/1", Checked(check="task/1", node=w.nodes[0], verdict=Verdict.FAIL, incarnation=Incarnation())
    )
    w.until(lambda: w.incidents(w.nodes[0]) != [], MINUTE)
    other = Incarnation(instance_id="a machine that never was")
    w.world.says(CLUSTER, "task/2", Checked(check="task/2", node=w.nodes[1], verdict=Verdict.FAIL, incarnation=other))
    w.run(MINUTE)
    assert w.incidents(w.nodes[1]) == []


def test_a_check_that_passed_on_the_cluster_opens_nothing(ward: OpenWard) -> None:
    w = ward(nodes=4)
    seen = w.node(w.nodes[0]).incarnation
    assert seen is not None
    passed = Checked(check="prolog/18", node=w.nodes[0], verdict=Verdict.PASS, incarnation=seen)
    w.world.says(CLUSTER, "prolog/18", passed)
    w.run(HOUR)
    assert w.incidents() == []


def test_a_condition_that_the_cluster_tells_is_a_fault_like_any(ward: OpenWard) -> None:
    w = ward(nodes=4)
    w.world.says(CLUSTER, "event-1", Observed(node=w.nodes[0], kind="xid", fields={"number": 79, "device": 0}))
    assert w.reaches(w.nodes[0], Phase.RELEASED).fault.code == "xid.79"


def test_a_persons_request_by_label_is_an_operators_order(ward: OpenWard) -> None:
    w = ward(nodes=4)
    wish = Ordered(verb="reboot", target=w.nodes[1], by="alice (label)", reason="Action:Reboot")
    w.world.says(CLUSTER, f"{w.nodes[1]}/Action:Reboot/1700000000", wish)
    done = w.reaches(w.nodes[1], Phase.RELEASED)
    assert done.fault.code == "operator.reboot"
    assert len(w.happened("reboot", w.nodes[1])) == 1
    assert any("alice (label): reboot" in line.text for line in w.sim.store.story("operator:"))


def test_what_a_list_says_again_is_no_second_fact(ward: OpenWard) -> None:
    w = ward(nodes=4)
    wish = Ordered(verb="reboot", target=w.nodes[1], by="alice", reason="Action:Reboot")
    w.world.says(CLUSTER, "label/1", wish)
    w.reaches(w.nodes[1], Phase.RELEASED)
    relist(w)
    w.run(HOUR)
    assert len([fact for fact in facts(w) if isinstance(fact.news, Ordered)]) == 1
    assert len(w.happened("reboot", w.nodes[1])) == 1


# --- jobs that a cluster has no more


@warm_and_cold
def test_an_adopted_job_that_was_purged_while_nobody_read_is_stopped(cold: bool) -> None:
    hall = Ward(nodes=3, cold=cold)
    job = hall.submitted_elsewhere(steps=10**6)
    hall.run(MINUTE)
    hall.world.forget_job(job)
    done = hall.ends(job, JobState.STOPPED, HOUR)
    assert done.claim == {}
    hall.rests()


@warm_and_cold
def test_an_owned_job_that_was_purged_is_diagnosed_and_started_again(cold: bool) -> None:
    hall = Ward(nodes=3, cold=cold, policy=policy_of(on_no_fault="restart"))
    job = hall.training(steps=1000)
    hall.world.forget_job(job)
    hall.job_reaches(job, JobState.DIAGNOSING, JobState.QUEUED, JobState.GATING, most=HOUR)
    assert hall.job(job).interruptions[-1].cause
    done = hall.ends(job)
    assert [attempt for attempt, _ in hall.starts(job)] == [1, 2]
    assert len(done.restarts) == 1
    hall.rests()


def test_a_cluster_that_says_that_a_job_is_gone_is_believed_at_once() -> None:
    hall = Ward(nodes=3)
    job = hall.submitted_elsewhere(steps=10**6)
    hall.run(MINUTE)
    hall.world.forget_job(job, told=True)
    hall.ends(job, JobState.STOPPED, MINUTE)


def test_a_job_that_one_list_did_not_have_is_not_gone() -> None:
    hall = Ward(nodes=3)
    job = hall.submitted_elsewhere(steps=10**5)
    hall.run(MINUTE)
    hall.world.ground.views[CLUSTER].hide_once(job)
    relist(hall)
    hall.run(10 * MINUTE)
    row = hall.job(job)
    assert (row.state, row.missing_as_of) == (JobState.RUNNING, None)


def test_a_list_in_which_nothing_changed_brings_no_facts() -> None:
    hall = Ward(nodes=4)
    hall.submitted_elsewhere(steps=10**6)
    hall.training(steps=10**6)
    hall.run(MINUTE)
    before = len(facts(hall))
    for _ in range(5):
        relist(hall)
    brought = [fact.news for fact in facts(hall)[before:]]
    assert not [news for news in brought if type(news).__name__ in {"JobSeen", "NodeSeen", "JobVanished"}]


def test_a_job_that_waits_for_its_nodes_has_not_vanished() -> None:
    hall = Ward(nodes=2, cluster=cluster_without(Capability.PLACE))
    hall.training("first", steps=int(3 * HOUR))
    second = hall.submit("second", steps=100)
    hall.job_reaches(second, JobState.GATING)
    for _ in range(5):
        relist(hall)
    assert hall.job(second).state is JobState.GATING
    hall.ends(second)


def test_a_cluster_that_has_forgotten_a_job_proves_nothing_about_a_node_that_nobody_reaches() -> None:
    hall = Ward(nodes=4, cluster=cluster_without(Capability.FENCE, Capability.REBOOT, Capability.REPLACE))
    job = hall.training(steps=10**5)
    lost = hall.starts(job)[0][1][0]
    hall.world.lose_node(lost, zombie=True)
    hall.job_reaches(job, JobState.STOPPING, most=HOUR)
    hall.world.forget_job(job)
    hall.run(HOUR)
    assert hall.job(job).state is JobState.STOPPING
    assert len(hall.starts(job)) == 1, "its ranks on the lost node may still write"


def test_a_job_that_is_purged_just_when_a_node_is_cut_off_waits_for_its_ranks_there() -> None:
    """The cluster takes a while to miss a node: until then it looks as if its purge had ended everything."""
    hall = Ward(nodes=4, policy=policy_of(on_no_fault="restart"))
    job = hall.training(nodes=2, steps=10**5)
    kept, cut = hall.starts(job)[0][1]
    hall.world.partition(cut)
    hall.world.forget_job(job)
    hall.until(lambda: hall.job(job).state is JobState.RUNNING and hall.job(job).attempt > 1, HOUR)
    assert cut not in hall.job(job).claim
    assert kept in hall.job(job).claim, "what ran there is gone: its cluster reaches it"


@pytest.mark.parametrize("shared", [False, True], ids=["alone", "shared"])
def test_a_cluster_that_has_forgotten_a_job_proves_nothing_about_a_node_that_it_cannot_reach(shared: bool) -> None:
    """Its agent is heard, so it is not lost; but the cluster could not end what runs there."""
    hall = Ward(nodes=4, policy=policy_of(on_no_fault="restart"))
    job = hall.training(steps=10**5, gpus_per_node=2)
    away = hall.starts(job)[0][1][0]
    if shared:
        hall.training("beside", nodes=1, steps=10**5, gpus_per_node=2, on=(away,))
    hall.world.partition(away)
    hall.run(90)
    hall.world.forget_job(job)
    if shared:
        hall.run(HOUR)
        assert hall.job(job).state is JobState.STOPPING
        assert len(hall.starts(job)) == 1, "a fence would end the other job, which its own node still trains"
        assert hall.notices("job_stuck")
    else:
        hall.until(lambda: len(hall.starts(job)) == 2, HOUR)
        assert hall.events("fenced", away)


def test_a_cluster_is_not_listed_for_as_long_as_a_job_that_it_has_forgotten_is_open() -> None:
    hall = Ward(nodes=4, cluster=cluster_without(Capability.FENCE, Capability.REBOOT, Capability.REPLACE))
    job = hall.training(steps=10**5)
    hall.world.lose_node(hall.starts(job)[0][1][0], zombie=True)
    hall.job_reaches(job, JobState.STOPPING, most=HOUR)
    lists = []
    cluster = hall.sim.hands.sites[CLUSTER].cluster
    whole = cluster.snapshot
    cluster.snapshot = lambda: lists.append(whole()) or lists[-1]  # type: ignore[func-returns-value,method-assign]
    hall.world.forget_job(job)
    hall.run(HOUR)
    assert hall.job(job).state is JobState.STOPPING
    assert len(lists) <= 3, "one that lacks it, and one more to be sure"


# --- work that Sickbay does not manage


def clinging(ward: OpenWard, seconds: float, **pace: Any) -> tuple[Ward, NodeId]:
    """A sick node with others' work, which a disruption budget keeps there for so long."""
    policy = policy_with(pace=replace(load_policy("default").pace, **pace))
    w = ward(nodes=4, policy=policy, rules=Timings(work_lasts=10 * HOUR))
    node = w.nodes[0]
    assert w.world.other_scheduler_starts_work(node)
    w.world.keep_work(node, seconds)
    w.run(10)
    w.sick(node)
    w.reaches(node, Phase.DRAINING, HOUR)
    return w, node


def test_work_that_is_kept_there_is_asked_to_leave_again_until_it_does(ward: OpenWard) -> None:
    w, node = clinging(ward, 600)
    w.reaches(node, Phase.RELEASED)
    assert len(w.happened("drain", node)) > 10
    lines = [line.text for line in w.sim.store.story(f"incident:{w.incident(node).id}") if "Drain" in line.text]
    assert len(lines) < 4, "asking again is no news"


def test_work_that_never_leaves_is_held_at_the_deadline(ward: OpenWard) -> None:
    w, node = clinging(ward, 9 * HOUR)
    held = w.reaches(node, Phase.HELD, HOUR)
    assert "still there" in held.stages[-1].because
    assert set(w.happened("drain", node)) == {"evict"}


def test_a_policy_may_have_such_work_ended_at_the_deadline(ward: OpenWard) -> None:
    w, node = clinging(ward, 9 * HOUR, drain_then="force")
    w.reaches(node, Phase.RELEASED)
    assert w.happened("drain", node)[-1] == "force"


def test_a_drain_is_meant_for_the_machine_that_was_sick(ward: OpenWard) -> None:
    w, node = clinging(ward, 9 * HOUR)
    w.run(60)
    key = f"intent:{w.incident(node).intent}"
    intent = w.sim.store.load([key])[key].row
    assert isinstance(intent, Intent)
    assert isinstance(intent.act, Drain)
    assert intent.expect == w.node(node).incarnation


# --- our cordon


def test_a_cordon_that_went_with_our_own_repair_is_put_back_before_the_check(ward: OpenWard) -> None:
    w = ward(nodes=4, cluster=ClusterRules(id=CLUSTER, reboots_uncordon=True))
    node = w.nodes[0]
    w.sick(node)
    w.reaches(node, Phase.VERIFYING)
    w.until(lambda: w.node(node).ready and f"sickbay:{w.incident(node).id}" in w.node(node).cordons, HOUR)
    assert w.happened("check.start") == [] or w.phase(node) == Phase.VERIFYING
    done = w.reaches(node, Phase.RELEASED)
    assert Phase.DISMISSED not in w.phases(node)
    assert len(w.happened("cordon", node)) == 2
    assert done.proof is not None
    assert w.world.seat(node).cordons == {}


def test_an_operator_who_takes_our_cordon_off_while_nothing_is_repaired_has_spoken(ward: OpenWard) -> None:
    w = ward(nodes=4, cluster=ClusterRules(id=CLUSTER, machines=frozenset()))
    node = w.nodes[0]
    w.sick(node)
    w.reaches(node, Phase.HELD)
    w.run(60)
    w.world.operator_uncordons(node)
    w.reaches(node, Phase.DISMISSED, HOUR)


# --- what was written last


EXAMINED = policy_with(examine=(Examine(on=Trigger.JOB_END, level=1),))  # a check keeps the diagnosis under way
OOM = "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB"


@warm_and_cold
def test_a_tail_that_comes_after_the_end_is_what_the_diagnosis_reads(cold: bool) -> None:
    hall = Ward(nodes=3, cold=cold, policy=EXAMINED)
    job = hall.training(steps=2000, does={"tail_late": 20.0})
    hall.world.crash(job, tail=OOM)
    hall.job_reaches(job, JobState.DIAGNOSING)
    end = hall.job(job).end
    assert end is not None
    assert end.tail == ""
    done = hall.ends(job, JobState.FAILED)
    assert "out of memory" in done.diagnosis


def test_a_tail_that_an_agent_tells_is_as_good() -> None:
    hall = Ward(nodes=3, policy=EXAMINED)
    job = hall.training(steps=2000, does={"tail_late": 1e9})
    node = hall.starts(job)[0][1][0]
    hall.world.crash(job, tail="nobody reads this")
    hall.job_reaches(job, JobState.DIAGNOSING)
    hall.world.agents.say(hall.world.seat(node), Wrote(job=job, attempt=1, text=OOM, node=node), "wrote")
    done = hall.ends(job, JobState.FAILED)
    assert "out of memory" in done.diagnosis


def test_a_tail_fills_only_an_empty_one_of_its_own_attempt() -> None:
    hall = Ward(nodes=3)
    job = hall.training(steps=10**5)
    node = hall.starts(job)[0][1][0]
    hall.world.crash(job, tail=OOM)
    hall.ends(job, JobState.FAILED)
    said = [Wrote(job=job, attempt=1, text="another", node=node), Wrote(job=job, attempt=9, text="another", node=node)]
    for number, news in enumerate(said):
        hall.world.agents.say(hall.world.seat(node), news, f"wrote-{number}")
    hall.run(MINUTE)
    end = hall.job(job).end
    assert end is not None
    assert end.tail == OOM


# --- how ranks ended, where the cluster cannot tell


def tells_end(hall: Ward, job: JobId, node: NodeId, code: int | None, ago: float = 0.0, **more: Any) -> None:
    """The node's agent says how a rank of the first attempt ended there."""
    news = RankEnded(**{"job": job, "attempt": 1, "rank": 0, "exit_code": code, "node": node, **more})
    hall.world.agents.say(hall.world.seat(node), news, f"ended/{node}/{more.get('rank', 0)}", ago)


def without_words(steps: int = 2000) -> tuple[Ward, JobId, tuple[NodeId, ...]]:
    """A job on a cluster that says that it failed and nothing else; a check keeps its diagnosis under way."""
    hall = Ward(nodes=3, policy=EXAMINED)
    job = hall.training(steps=steps, nodes=2, does={"tail_late": 1e9, "codes_untold": True})
    return hall, job, tuple(hall.starts(job)[0][1])


@pytest.mark.parametrize("early", [True, False])
def test_what_agents_tell_of_ranks_is_what_blame_and_diagnosis_read(early: bool) -> None:
    hall, job, (here, there) = without_words()
    if early:
        tells_end(hall, job, here, -11, ago=2.0, rank=5, why="its GPU fell silent", tail=OOM)
        tells_end(hall, job, there, 1, rank=9, tail="only torn down with it")
        hall.until(lambda: bool((heard := hall.job(job).heard) and len(heard.exit_codes) == 2), MINUTE)
    hall.world.crash(job, tail="nobody reads this")
    hall.job_reaches(job, JobState.DIAGNOSING)
    if not early:
        tells_end(hall, job, here, -11, rank=5, why="its GPU fell silent", tail=OOM)
    hall.until(lambda: bool((end := hall.job(job).end) and end.tail), MINUTE)
    end = hall.job(job).end
    assert end is not None
    assert (end.first.rank, end.first.node, end.first.exit_code, end.first.why) == (5, here, -11, "its GPU fell silent")
    assert end.exit_codes[here] == -11
    assert "out of memory" in hall.ends(job, JobState.FAILED).diagnosis


def test_the_clusters_own_word_of_an_end_stays_and_a_rank_that_was_stopped_says_nothing() -> None:
    hall = Ward(nodes=3, policy=EXAMINED)
    job = hall.training(steps=2000, nodes=2)
    here, there = hall.starts(job)[0][1]
    tells_end(hall, job, here, 143, rank=0, stopped=True, tail=OOM)
    hall.run(10)
    assert hall.job(job).heard is None
    tells_end(hall, job, there, 99, rank=1, tail="what the agent read")
    hall.until(lambda: hall.job(job).heard is not None, MINUTE)
    assert hall.job(job).heard.exit_codes == {there: 99}
    hall.world.crash(job, exit_code=7, tail="what the cluster read")
    hall.job_reaches(job, JobState.DIAGNOSING)
    end = hall.job(job).end
    assert end is not None
    assert 7 in end.exit_codes.values()
    assert 99 not in end.exit_codes.values()
    assert end.tail == "what the cluster read"


def test_an_agent_says_nothing_of_ranks_on_other_nodes_and_its_word_ends_no_job() -> None:
    hall, job, nodes = without_words(steps=10**5)
    (elsewhere,) = set(hall.nodes) - set(nodes)
    tells_end(hall, job, elsewhere, 1, tail=OOM)
    tells_end(hall, job, nodes[0], 1, tail=OOM)
    hall.until(lambda: hall.job(job).heard is not None, MINUTE)
    hall.run(MINUTE)
    assert (hall.job(job).state, list(hall.job(job).heard.exit_codes)) == (JobState.RUNNING, [nodes[0]])


def test_late_news_of_an_attempt_that_is_over_says_nothing_of_the_next() -> None:
    hall = Ward(nodes=3)
    job = hall.training(steps=10**5, nodes=2)
    hall.starts(job)
    hall.world.crash(job, tail="what the cluster read")
    hall.until(lambda: (hall.job(job).attempt, hall.job(job).state) == (2, JobState.RUNNING), HOUR)
    node = min(hall.job(job).claim)
    tells_end(hall, job, node, 1, tail=OOM)
    late: tuple[Hung | RankWaits, ...] = (
        Hung(job=job, attempt=1, because="no step", node=node),
        RankWaits(job=job, attempt=1, seconds=600.0, node=node),
    )
    for number, news in enumerate(late):
        hall.world.agents.say(hall.world.seat(node), news, f"late/{number}")
    hall.run(MINUTE)
    after = hall.job(job)
    assert (after.attempt, after.state, after.heard, after.calls, after.waits) == (2, JobState.RUNNING, None, (), None)


def test_how_a_hung_jobs_ranks_end_when_it_is_stopped_is_no_cause_of_its_end() -> None:
    hall, job, (here, _) = without_words(steps=10**5)
    hall.world.agents.say(hall.world.seat(here), Hung(job=job, attempt=1, because="no step", node=here), "hung")
    hall.job_reaches(job, JobState.DIAGNOSING)
    tells_end(hall, job, here, 1, tail=OOM)
    hall.until(lambda: (hall.job(job).attempt, hall.job(job).state) == (2, JobState.RUNNING), HOUR)
    assert "hung: no step" in hall.job(job).diagnosis


def test_a_launcher_that_waits_too_short_is_a_line_of_explain() -> None:
    hall = Ward(nodes=3)
    job = hall.training(steps=10**5, nodes=2)
    node = hall.starts(job)[0][1][0]
    short = RankWaits(job=job, attempt=1, seconds=600.0, node=node)
    hall.world.agents.say(hall.world.seat(node), short, "waits")
    hall.until(lambda: hall.job(job).waits is not None, MINUTE)
    waits_for = explain(hall.sim.store, job).waits_for
    assert waits_for is not None
    assert [note for note in waits_for.notes if "waits 600 s for the other nodes" in note]
