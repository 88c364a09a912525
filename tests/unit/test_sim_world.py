"""The simulated world does what it claims, and sees what must never happen."""

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import pytest

from sickbay.model.errors import Gone, Rejected, Transient, Unknown
from sickbay.model.facts import Checked, Fact, Hung, JobSeen, Looked, NodeSeen, Observed, ResetDone, Stepped
from sickbay.model.fault import Remedy
from sickbay.model.fleet import Capability, DrainHow, Incarnation, JobId, NodeId
from sickbay.model.intent import Notify
from sickbay.model.job import EndReason, JobSpec
from sickbay.ports.cluster import Deltas
from sickbay.sim.adapters import SimChecks, SimCluster, SimMachines, SimNotifier
from sickbay.sim.chaos import FATES, Mischief, Odds
from sickbay.sim.context import CLUSTER_CAN, ClusterRules, Timings
from sickbay.sim.hardware import MachinePower, SimDefect
from sickbay.sim.job_behaviour import OnDeath, Programme
from sickbay.sim.schedule import EPOCH, Scheduler, SimClock
from sickbay.sim.world import World

JOB = JobId("j")


class Bench:
    """A world of six nodes with all its adapters, and everything that it delivers."""

    def __init__(
        self, odds: Odds | None = None, *, seed: int = 7, rules: Timings | None = None, **cluster: Any
    ) -> None:
        self.facts: list[Fact] = []
        self.pulses: list[dict[NodeId, Incarnation]] = []
        self.scheduler = Scheduler()
        self.mischief = Mischief(odds)
        self.world = World(self.scheduler, Random(seed), self.mischief, self._deliver, rules)
        self.world.add_cluster(ClusterRules(id="c", **cluster))
        self.nodes = self.world.add_nodes("c", 6)
        self.a, self.b = self.nodes[:2]
        self.cluster = SimCluster(self.world, "c")
        self.machines = SimMachines(self.world, "c")
        self.checks = SimChecks(self.world, "c")
        self.run(10)

    def _deliver(self, facts: list[Fact], pulses: Mapping[NodeId, Incarnation]) -> None:
        self.facts.extend(facts)
        self.pulses.append(dict(pulses))

    def run(self, seconds: float) -> None:
        self.scheduler.run(self.scheduler.now + seconds)

    def news(self, kind: type) -> list[Any]:
        return [fact.news for fact in self.facts if isinstance(fact.news, kind)]

    def holder(self, node: NodeId) -> Incarnation:
        return self.world.seat(node).incarnation

    def voice(self, node: NodeId) -> Incarnation:
        return self.world.seat(node).voice

    def seen(self, node: NodeId) -> NodeSeen:
        return next(found for found in self.cluster.snapshot().nodes if found.node == node)

    def job(self, attempt: int = 1) -> JobSeen:
        return next(j for j in self.cluster.snapshot().jobs if (j.job, j.attempt) == (JOB, attempt))

    def spec(self, nodes: int = 2) -> JobSpec:
        return JobSpec(name="j", cluster="c", pool="train", nodes=nodes)

    def start(self, attempt: int = 1, key: str = "s", nodes: int = 2, *, wait: float = 200.0) -> None:
        chosen: dict[NodeId, tuple[int, ...]] = dict.fromkeys(self.nodes[:nodes], ())
        self.cluster.start(JOB, attempt, spec=self.spec(nodes), nodes=chosen, avoid=(), key=key)
        self.run(wait)

    def violations(self) -> list[str]:
        return [violation.kind for violation in self.world.chronicle.violations]


# --- time


def test_things_of_one_moment_are_done_in_the_order_in_which_they_were_asked_for() -> None:
    scheduler, done = Scheduler(), list[str]()
    scheduler.at(2.0, lambda: done.append("c"))
    scheduler.at(1.0, lambda: done.append("a"))
    scheduler.at(1.0, lambda: done.append("b"))
    scheduler.at(1.5, lambda: done.append("never")).cancel()
    assert scheduler.run(2.0) == 3
    assert done == ["a", "b", "c"]


def test_the_wall_may_jump_and_the_monotonic_clock_never_does() -> None:
    scheduler = Scheduler()
    clock = SimClock(scheduler)
    scheduler.run(5.0)
    clock.jump(-86_400.0)
    assert clock.wall() == EPOCH.timestamp() + 5.0 - 86_400.0
    assert clock.mono() == 5.0


# --- agents


def test_a_defect_is_told_with_its_number_its_device_and_its_incarnation() -> None:
    bench = Bench()
    bench.world.strike(bench.a, SimDefect(code="xid.79", device=3, cured_by=Remedy.REBOOT))
    bench.run(5)
    (told,) = bench.news(Observed)
    assert (told.kind, told.fields) == ("xid", {"number": 79, "device": 3})
    assert told.incarnation == bench.voice(bench.a)
    assert "Xid (PCI:" in told.text
    assert "fallen off the bus" in told.text
    assert not told.last_words


def test_pulses_of_all_agents_come_as_one_batch() -> None:
    bench = Bench()
    bench.world.lose_agent(bench.a)
    bench.pulses.clear()
    bench.run(30)
    assert [set(batch) for batch in bench.pulses] == [set(bench.nodes[1:])]


def test_a_report_delivered_twice_keeps_its_id() -> None:
    bench = Bench(Odds(report_twice=1.0))
    bench.world.write_line(bench.a, "xid.13")
    bench.run(600)
    assert len(bench.news(Observed)) == 2
    assert len({fact.id for fact in bench.facts}) == 1


def test_what_was_not_sent_before_a_boot_ended_comes_as_last_words_of_that_boot() -> None:
    bench = Bench()
    old = bench.voice(bench.a)
    bench.world.cut_path(bench.a)
    bench.world.write_line(bench.a, "xid.79")
    bench.run(60)
    assert bench.news(Observed) == []
    bench.world.operator_reboots(bench.a)
    bench.run(600)
    (told,) = [news for news in bench.news(Observed) if news.kind == "xid"]
    assert told.last_words
    assert told.incarnation == old != bench.voice(bench.a)


def test_what_waits_while_the_path_is_cut_is_no_last_word() -> None:
    bench = Bench()
    bench.world.cut_path(bench.a)
    bench.world.write_line(bench.a, "xid.79")
    bench.run(60)
    bench.world.open_path(bench.a)
    bench.run(5)
    (told,) = bench.news(Observed)
    assert not told.last_words


def test_a_report_may_arrive_after_its_boot_has_ended_and_is_no_last_word_then() -> None:
    bench = Bench(Odds(report_late=1.0, report_late_by=3000.0, spool_lost=1.0), seed=3)
    old = bench.voice(bench.a)
    bench.world.write_line(bench.a, "xid.79")
    bench.world.operator_reboots(bench.a)
    bench.facts.clear()
    bench.run(6000)
    late = [news for news in bench.news(Observed) if news.kind == "xid"]
    assert [(news.incarnation, news.last_words) for news in late] == [(old, False)]


def test_while_we_are_deaf_nothing_arrives_and_nothing_is_lost() -> None:
    bench = Bench()
    bench.world.go_deaf(7200)
    bench.world.write_line(bench.a, "xid.79")
    bench.pulses.clear()
    bench.run(7100)
    assert bench.facts == []
    assert bench.pulses == []
    bench.run(200)
    assert [news.kind for news in bench.news(Observed)] == ["xid"]


def test_a_look_is_answered_after_all_that_happened_before_it() -> None:
    bench = Bench(Odds(report_late=1.0, report_late_by=3000.0))
    bench.world.write_line(bench.a, "xid.79")
    bench.checks.look("l", (bench.a, bench.b), stacks_of=None)
    bench.run(5)
    of_a = [fact.news for fact in bench.facts if fact.news.node == bench.a]
    assert [type(news) for news in of_a] == [Observed, Looked]


def test_a_dead_agent_does_not_answer_a_look() -> None:
    bench = Bench()
    bench.world.lose_agent(bench.a)
    bench.checks.look("l", (bench.a, bench.b), stacks_of=None)
    bench.run(600)
    assert [news.node for news in bench.news(Looked)] == [bench.b]


def test_facts_are_dated_by_our_clock_even_after_it_jumped() -> None:
    bench = Bench()
    bench.world.clock.jump(86_400.0)
    at = bench.scheduler.now
    bench.world.write_line(bench.a, "xid.79")
    bench.run(5)
    assert bench.facts[0].at.timestamp() == pytest.approx(EPOCH.timestamp() + at + 86_400.0)


# --- witnesses


def test_the_witnesses_of_silence_are_independent() -> None:
    bench = Bench()
    bench.world.lose_agent(bench.nodes[0])
    bench.world.partition(bench.nodes[1])
    bench.world.lose_node(bench.nodes[2])
    bench.run(120)
    ready = [bench.seen(node).ready for node in bench.nodes[:3]]
    heard = [node in bench.world.voices for node in bench.nodes[:3]]
    assert ready == [True, False, False]
    assert heard == [False, True, False]


def test_a_lost_agent_comes_back_through_the_cluster() -> None:
    bench = Bench()
    bench.world.lose_agent(bench.a)
    bench.machines.restart_service(bench.a, key="k", expect=bench.holder(bench.a))
    bench.run(30)
    assert bench.a in bench.world.voices


def test_a_node_that_only_a_replacement_brings_back_does_not_return_from_a_reboot() -> None:
    bench = Bench()
    bench.world.lose_node(bench.a, back_by=Remedy.REPLACE)
    bench.machines.reboot(bench.a, key="k1", expect=bench.holder(bench.a))
    bench.run(3600)
    assert bench.world.seat(bench.a).power is MachinePower.DOWN
    bench.machines.replace(bench.a, key="k2", expect=bench.holder(bench.a))
    bench.run(3600)
    assert bench.seen(bench.a).ready


# --- repairs


@pytest.mark.parametrize(
    ("cured_by", "cures"),
    [
        (Remedy.RESET_GPU, {"reset", "reboot", "replace"}),
        (Remedy.REBOOT, {"reboot", "replace"}),
        (Remedy.REPLACE, {"replace"}),
        (None, {"replace"}),
    ],
)
@pytest.mark.parametrize("repair", ["reset", "reboot", "replace"])
def test_a_repair_cures_what_it_can_and_nothing_more(cured_by: Remedy | None, cures: set[str], repair: str) -> None:
    bench = Bench()
    bench.world.strike(bench.a, SimDefect(code="xid.79", cured_by=cured_by))
    bench.run(10)
    holder = bench.holder(bench.a)
    if repair == "reset":
        bench.machines.reset(bench.a, (0,), key="k", expect=holder)
    elif repair == "reboot":
        bench.machines.reboot(bench.a, key="k", expect=holder)
    else:
        bench.machines.replace(bench.a, key="k", expect=holder)
    bench.run(3600)
    bench.facts.clear()
    bench.checks.start("v", {bench.a: bench.holder(bench.a)}, level=2, profile="")
    bench.run(3600)
    (verdict,) = bench.news(Checked)
    assert verdict.verdict == ("pass" if repair in cures else "fail")
    # A check on what is still broken makes it show itself again.
    assert bool(bench.news(Observed)) is (repair not in cures)


def test_only_a_check_of_enough_depth_finds_a_silent_defect() -> None:
    bench = Bench()
    bench.world.strike(bench.a, SimDefect(code="gpu.slow", silent=True, kills_ranks=False, found_at=3))
    for level in (2, 3):
        bench.checks.start(f"v{level}", {bench.a: None}, level=level, profile="")
    bench.run(7200)
    assert {news.check: news.verdict for news in bench.news(Checked)} == {"v2": "pass", "v3": "fail"}
    assert bench.news(Observed) == []


def test_a_defect_that_a_reboot_did_not_cure_returns_by_itself_under_the_new_boot() -> None:
    bench = Bench()
    bench.world.strike(bench.a, SimDefect(code="xid.79", recurs_after_boot=30.0))
    bench.run(10)
    bench.machines.reboot(bench.a, key="k", expect=bench.holder(bench.a))
    bench.run(3600)
    boots = [news.incarnation.boot_id for news in bench.news(Observed) if news.kind == "xid"]
    assert len(boots) == 2
    assert boots[1] == bench.holder(bench.a).boot_id != boots[0]


def test_a_reboot_announces_itself() -> None:
    bench = Bench()
    bench.machines.reboot(bench.a, key="k", expect=bench.holder(bench.a))
    assert [news.kind for news in bench.news(Observed)] == ["node.going_down"]


def test_a_reset_is_confirmed_once_and_only_under_the_same_boot() -> None:
    bench = Bench(Odds(doubled=1.0))
    bench.machines.reset(bench.a, (), key="k1", expect=bench.holder(bench.a))
    bench.machines.reset(bench.b, (), key="k2", expect=bench.holder(bench.b))
    bench.world.operator_reboots(bench.b)
    bench.run(3600)
    assert [(news.key, news.node) for news in bench.news(ResetDone)] == [("k1", bench.a)]
    assert bench.world.chronicle.counts["reset_gpu"] == 2


def test_a_replaced_machine_keeps_its_seat_or_a_newcomer_joins() -> None:
    for capabilities in (CLUSTER_CAN, CLUSTER_CAN - {Capability.SEAT_KEPT}):
        bench = Bench(capabilities=capabilities)
        old = bench.seen(bench.a)
        bench.machines.replace(bench.a, key="k", expect=old.incarnation)
        bench.run(30)
        during = {found.node for found in bench.cluster.snapshot().nodes}
        assert (bench.a in during) is (Capability.SEAT_KEPT in capabilities)
        bench.run(3600)
        new = next(n for n in bench.cluster.snapshot().nodes if n.node not in bench.nodes or n.node == bench.a)
        assert not new.incarnation.same_holder(old.incarnation)
        assert {d.serial for d in new.devices}.isdisjoint(d.serial for d in old.devices)


# --- jobs


def test_a_job_trains_steps_and_completes() -> None:
    bench = Bench()
    bench.world.programme(JOB, Programme(steps=1000, rate=1.0))
    bench.start(wait=1500)
    assert bench.news(Stepped)[0] == Stepped(job=JOB, attempt=1, step=1, resumed_from=0)
    end = bench.job().end
    assert end is not None
    assert (end.reason, end.exit_codes) == (EndReason.COMPLETED, {})
    assert bench.world.workload.jobs[JOB].tally.useful == pytest.approx(1000.0)


def test_the_next_attempt_resumes_from_the_last_checkpoint() -> None:
    bench = Bench()
    bench.world.programme(JOB, Programme(steps=100_000, checkpoint_every=500))
    bench.start(wait=1400)
    bench.world.strike(bench.a, SimDefect(code="xid.79", cured_by=Remedy.RESTART_JOB))
    bench.run(60)
    end = bench.job().end
    assert end is not None
    assert end.reason is EndReason.FAILED
    assert end.exit_codes[bench.a] == 134
    bench.start(2, "s2", wait=300)
    assert bench.news(Stepped)[-1] == Stepped(job=JOB, attempt=2, step=1001, resumed_from=1000)
    tally = bench.world.workload.jobs[JOB].tally
    assert tally.useful == pytest.approx(1000.0)
    assert tally.lost["xid.79"] > 0
    assert bench.violations() == []


@pytest.mark.parametrize(("kill_after", "first"), [(0.1, "rank"), (30.0, "line")])
def test_a_rank_dies_before_or_after_its_fault_is_told(kill_after: float, first: str) -> None:
    bench = Bench()
    bench.start()
    bench.world.strike(bench.a, SimDefect(code="xid.79", kill_after=kill_after, observe_after=5.0))
    bench.run(8)
    assert (bench.a in dict(bench.world.running(JOB)).get(1, [])) is (first == "line")
    assert [news.kind for news in bench.news(Observed)] == ["xid"]


def test_a_job_on_a_node_that_is_still_broken_dies_again() -> None:
    bench = Bench()
    bench.world.strike(bench.a, SimDefect(code="xid.79"))
    bench.run(10)
    bench.start(wait=400)
    end = bench.job().end
    assert end is not None
    assert end.exit_codes[bench.a] == 134
    assert len(bench.news(Observed)) == 2


def test_siblings_of_a_dead_rank_may_hang_until_they_give_up() -> None:
    bench = Bench()
    bench.world.programme(JOB, Programme(on_death=OnDeath.HANG, hang_notice=100.0, give_up=1000.0))
    bench.start()
    bench.world.strike(bench.b, SimDefect(code="xid.13", cured_by=Remedy.RESTART_JOB))
    bench.run(300)
    assert bench.job().ranks == {bench.a: "running", bench.b: "gone"}
    assert [news.attempt for news in bench.news(Hung)] == [1]
    bench.run(900)
    assert bench.job().end is not None


def test_a_stop_reaches_ranks_that_hang() -> None:
    bench = Bench()
    bench.world.programme(JOB, Programme(give_up=None))
    bench.start()
    bench.cluster.stop(JOB, 1, final=False, key="stop")
    bench.world.hang(JOB)
    bench.run(60)
    assert bench.job().end is not None
    assert bench.world.running(JOB) == []


def test_the_ends_of_a_job_have_their_reasons() -> None:
    acts: dict[EndReason, Callable[[Bench], None]] = {
        EndReason.FAILED: lambda bench: bench.world.crash(JOB),
        EndReason.PREEMPTED: lambda bench: bench.world.preempt(JOB),
        EndReason.CANCELLED_BY_OTHER: lambda bench: bench.world.owner_cancels(JOB),
        EndReason.NODE_LOST: lambda bench: bench.world.lose_node(bench.a),
    }
    for reason, act in acts.items():
        bench = Bench()
        bench.start()
        act(bench)
        bench.run(1000)
        end = bench.job().end
        assert end is not None
        assert end.reason is reason
        if reason is EndReason.FAILED:
            assert end.exit_codes[bench.a] == 1
            assert "Traceback" in end.tail


def test_ranks_of_a_lost_node_are_not_called_gone_before_there_is_proof() -> None:
    bench = Bench()
    bench.start()
    bench.world.lose_node(bench.a, zombie=True)
    bench.run(1000)
    assert bench.job().end is not None
    assert bench.job().ranks == {bench.a: "running", bench.b: "gone"}
    assert bench.world.running(JOB) == [(1, [bench.a])]
    bench.machines.fence(bench.a, key="f", expect=None)
    bench.run(60)
    assert bench.job().ranks[bench.a] == "gone"
    assert bench.world.running(JOB) == []
    assert bench.violations() == []


def test_a_zombie_that_can_be_reached_again_is_stopped_then() -> None:
    bench = Bench()
    bench.start()
    bench.world.lose_node(bench.a, zombie=True)
    bench.run(10)
    bench.cluster.stop(JOB, 1, final=False, key="stop")
    bench.run(30)
    assert bench.world.running(JOB) == [(1, [bench.a])]
    bench.world.open_path(bench.a)
    bench.world.heal_partition(bench.a)
    bench.run(30)
    assert bench.world.running(JOB) == []
    assert bench.job().end is not None


def test_a_gang_started_in_part_is_completed_under_its_key() -> None:
    bench = Bench()
    bench.mischief.force_next("partial")
    with pytest.raises(Unknown):
        bench.start()
    bench.run(60)
    assert bench.job().ranks == {bench.a: "running"}
    bench.start()
    assert bench.job().ranks == {bench.a: "running", bench.b: "running"}
    assert bench.news(Stepped) != []
    assert bench.violations() == []


def test_an_attempt_that_ends_before_all_of_it_has_begun_holds_no_node() -> None:
    bench = Bench()
    bench.mischief.force_next("partial")
    with pytest.raises(Unknown):
        bench.start(wait=0.0)
    bench.world.operator_reboots(bench.a)
    bench.start(wait=0.0)  # the rest of it, a moment before the first node is found absent
    bench.run(600)
    assert bench.job().end is not None
    bench.start(2, key="s2")
    assert bench.violations() == []


def test_the_clusters_own_scheduler_waits_for_free_uncordoned_nodes() -> None:
    bench = Bench(capabilities=CLUSTER_CAN - {Capability.PLACE})
    for node in bench.nodes[:4]:
        bench.cluster.cordon(node, owner="sickbay:i", reason="r", key=f"c-{node}", expect=None)
    assert bench.world.other_scheduler_starts_work(bench.nodes[4])
    bench.cluster.start(JOB, 1, spec=bench.spec(), nodes={}, avoid=(), key="s")
    bench.run(100)
    assert bench.cluster.snapshot().jobs == (), "an attempt is shown only once it has nodes"
    bench.cluster.uncordon(bench.a, owner="sickbay:i", key="u", expect=None)
    bench.run(100)
    assert set(bench.job().ranks) == {bench.a, bench.nodes[5]}
    assert not bench.world.other_scheduler_starts_work(bench.b)


def test_a_native_controller_restarts_its_job_itself() -> None:
    bench = Bench()
    bench.world.submit_to_cluster(JOB, bench.spec(), native_delay=60.0)
    bench.run(200)
    assert (bench.job().native, bench.job().spec) == (True, bench.spec())
    bench.world.crash(JOB)
    bench.run(300)
    assert len(bench.job(2).ranks) == 2
    bench.world.owner_cancels(JOB)
    bench.run(3600)
    assert max(bench.world.workload.jobs[JOB].attempts) == 2


def test_an_adopted_job_runs_again_when_asked_and_only_after_its_last_attempt() -> None:
    bench = Bench()
    bench.world.submit_to_cluster(JOB, bench.spec())
    bench.run(200)
    with pytest.raises(Rejected):
        bench.cluster.rerun(JOB, 1, avoid=(), key="r0")
    bench.world.crash(JOB)
    bench.run(100)
    for _ in range(2):
        bench.cluster.rerun(JOB, 1, avoid=(bench.a,), key="r1")
    bench.run(100)
    assert list(bench.job(2).ranks) == bench.nodes[1:3]
    with pytest.raises(Rejected):
        bench.cluster.rerun(JOB, 1, avoid=(), key="r2")


# --- what must never happen is seen


def test_the_world_sees_two_attempts_of_one_job() -> None:
    bench = Bench()
    bench.start()
    bench.start(2, "s2")
    assert set(bench.violations()) == {"two_attempts", "device_twice"}


def test_the_world_sees_a_start_on_a_node_that_we_cordoned() -> None:
    bench = Bench()
    bench.cluster.cordon(bench.a, owner="sickbay:i", reason="r", key="c", expect=None)
    bench.start()
    assert bench.violations() == ["start_on_cordoned"]


def test_a_start_on_a_node_that_another_cordoned_is_refused() -> None:
    bench = Bench()
    bench.world.operator_cordons(bench.a)
    with pytest.raises(Rejected, match="other:maintenance"):
        bench.start()
    assert JOB not in bench.world.workload.jobs


@pytest.mark.parametrize("repair", ["reboot", "replace"])
def test_the_world_sees_a_repair_under_a_running_attempt(repair: str) -> None:
    bench = Bench()
    bench.start()
    act = bench.machines.reboot if repair == "reboot" else bench.machines.replace
    act(bench.a, key="k", expect=bench.holder(bench.a))
    assert bench.violations() == ["repair_on_running"]


def test_an_operators_reboot_is_no_violation_of_ours() -> None:
    bench = Bench()
    bench.start()
    bench.world.operator_reboots(bench.a)
    bench.run(1000)
    assert bench.violations() == []
    assert bench.job().end is not None


def test_the_world_sees_a_blind_repair_that_was_sent_twice() -> None:
    bench = Bench(blind_repairs=frozenset({"replace"}), capabilities=CLUSTER_CAN)
    for _ in range(2):
        bench.machines.replace(bench.a, key="k", expect=bench.holder(bench.a))
    assert bench.violations() == ["repair_twice"]


def test_a_reset_under_a_rank_is_refused_by_its_domain() -> None:
    bench = Bench()
    loose = NodeId("c/loose")
    seat = bench.world.ground.add_seat(loose, pool="loose", domain="", gpus=8, linked=False)
    bench.world.agents.refresh(seat)
    bench.world.plant.cluster_hears(seat)
    bench.cluster.start(JOB, 1, spec=bench.spec(1), nodes={loose: (0, 1)}, avoid=(), key="s")
    bench.run(100)
    with pytest.raises(Rejected, match="busy"):
        bench.machines.reset(loose, (1,), key="k1", expect=seat.incarnation)
    bench.machines.reset(loose, (5,), key="k2", expect=seat.incarnation)
    bench.run(60)
    assert [news.key for news in bench.news(ResetDone)] == ["k2"]


# --- mischief


def test_an_effect_lost_before_never_happens_and_one_lost_after_has_happened() -> None:
    for fate, happened in (("lost_before", 0), ("lost_after", 1)):
        bench = Bench()
        bench.mischief.force(bench.mischief.calls + 1, fate)
        with pytest.raises((Transient, Unknown)):
            bench.cluster.cordon(bench.a, owner="sickbay:i", reason="r", key="k", expect=None)
        bench.run(3600)
        assert bench.world.chronicle.counts["cordon"] == happened


def test_a_late_effect_comes_within_the_call_timeout() -> None:
    for seed in range(20):
        bench = Bench(Odds(late=1.0), seed=seed)
        try:
            accepted = bench.cluster.cordon(bench.a, owner="sickbay:i", reason="r", key="k", expect=None)
        except Unknown:
            accepted = None
        assert bench.world.chronicle.counts["cordon"] == 0
        began = bench.scheduler.now
        bench.run(bench.mischief.call_timeout)
        (event,) = bench.world.chronicle.of("cordon")
        assert event.at < began + bench.mischief.call_timeout
        assert accepted is None or accepted.visible_from == event.at


def test_a_late_double_of_a_cordon_does_not_cordon_again() -> None:
    bench = Bench(Odds(doubled=1.0))
    bench.cluster.cordon(bench.a, owner="sickbay:i", reason="r", key="k1", expect=None)
    bench.cluster.uncordon(bench.a, owner="sickbay:i", key="k2", expect=None)
    bench.run(3600)
    assert bench.world.seat(bench.a).cordons == {}


def test_an_outage_refuses_or_hangs_and_cannot_be_read() -> None:
    bench = Bench()
    now = bench.scheduler.now
    bench.mischief.outage("cluster:c", now, now + 100)
    bench.mischief.outage("machines:c", now, now + 100, hangs=True)
    with pytest.raises(Transient):
        bench.cluster.watch("0/0")
    with pytest.raises(Transient):
        bench.cluster.cordon(bench.a, owner="sickbay:i", reason="r", key="k", expect=None)
    with pytest.raises(Unknown):
        bench.machines.reboot(bench.a, key="k", expect=bench.holder(bench.a))
    bench.run(100)
    assert isinstance(bench.cluster.watch("0/0"), Deltas)
    assert bench.world.chronicle.counts["reboot"] == bench.world.chronicle.counts["cordon"] == 0


def test_what_the_hook_raises_goes_through_before_or_after_the_effect() -> None:
    class Crash(BaseException):
        pass

    for moment, happened in (("before", 0), ("after", 1)):
        bench = Bench()

        def hook(when: str, act: str, key: str, moment: str = moment) -> None:
            if (when, act, key) == (moment, "quarantine", "k"):
                raise Crash

        bench.mischief.on_call = hook
        with pytest.raises(Crash):
            bench.cluster.cordon(bench.a, owner="sickbay:i", reason="r", key="k", expect=None)
        assert bench.world.chronicle.counts["cordon"] == happened


def test_an_unknown_fate_is_refused_with_the_ones_that_exist() -> None:
    with pytest.raises(ValueError, match=FATES[0]):
        Mischief().force(1, "eaten")


def test_reads_show_the_world_as_it_was_and_never_their_own_moment() -> None:
    bench = Bench(lag=5.0)
    accepted = bench.cluster.cordon(bench.a, owner="sickbay:i", reason="r", key="k", expect=None)
    bench.run(4.9)
    assert (bench.seen(bench.a).cordons, bench.cluster.snapshot().as_of < accepted.visible_from) == ((), True)
    bench.run(0.2)
    assert bench.seen(bench.a).cordons == ("sickbay:i",)


def test_an_operator_removes_every_cordon_and_a_deleted_node_is_gone() -> None:
    bench = Bench()
    bench.cluster.cordon(bench.a, owner="sickbay:i", reason="r", key="k", expect=None)
    bench.world.operator_uncordons(bench.a)
    assert bench.world.seat(bench.a).cordons == {}
    bench.world.operator_deletes(bench.a)
    with pytest.raises(Gone):
        bench.cluster.cordon(bench.a, owner="sickbay:i", reason="r", key="k2", expect=None)
    bench.run(10)
    assert bench.a not in {found.node for found in bench.cluster.snapshot().nodes}


def test_unmanaged_work_is_drained_and_managed_work_is_left() -> None:
    bench = Bench()
    bench.start()
    bench.world.other_scheduler_starts_work(bench.a)
    bench.cluster.drain(bench.a, how=DrainHow.EVICT, key="d", expect=None)
    bench.run(60)
    assert bench.seen(bench.a).unmanaged == 0
    assert bench.a in bench.job().ranks
    assert bench.job().end is None


def test_a_check_that_cannot_run_never_passes() -> None:
    for seed in range(10):
        bench = Bench(Odds(check_silent=0.5), seed=seed)
        bench.world.lose_agent(bench.a)
        expect = bench.holder(bench.a)
        bench.checks.start("v1", {bench.a: expect, bench.b: expect}, level=1, profile="")
        bench.checks.start("v2", {bench.nodes[2]: None}, level=4, profile="")
        bench.world.operator_reboots(bench.nodes[2])
        bench.run(7200)
        assert {news.verdict for news in bench.news(Checked)} <= {"could_not_run"}


def test_a_notice_in_doubt_is_told_again_and_arrives_once() -> None:
    bench = Bench()
    notifier = SimNotifier(bench.world)
    notice = Notify(event="held", subject="i", text="t")
    bench.mischief.force_next("lost_after")
    with pytest.raises(Transient):
        notifier.tell(notice, key="n")
    notifier.tell(notice, key="n")
    assert bench.world.notices == [("n", notice)]


def test_one_seed_is_one_history() -> None:
    def history(seed: int) -> tuple[object, ...]:
        bench = Bench(Odds.rough(), seed=seed)
        dice = Random(seed)
        for number in range(60):
            node = dice.choice(bench.nodes)
            bench.world.strike(node, SimDefect(code="xid.79", cured_by=Remedy.REBOOT))
            try:
                if number % 3 == 0:
                    bench.start(number, f"s{number}", wait=50)
                bench.machines.reboot(node, key=f"k{number}", expect=bench.holder(node))
            except (Transient, Rejected, Unknown):
                bench.run(100)
        return (bench.world.chronicle.events, bench.world.chronicle.told, bench.facts, bench.cluster.snapshot())

    assert history(5) == history(5)
    assert history(5) != history(6)


def test_a_quarter_of_a_fleet_costs_the_world_few_steps() -> None:
    """No node has events of its own while nothing happens: the cost follows what happens, not the fleet's size."""
    scheduler, heard = Scheduler(), list[int]()
    world = World(
        scheduler, Random(1), Mischief(), lambda _facts, pulses: heard.append(len(pulses)), Timings(pulse=3600.0)
    )
    world.add_cluster(ClusterRules(id="c"))
    world.add_nodes("c", 500)
    scheduler.run(10.0)
    heard.clear()
    assert scheduler.run(7 * 86_400.0) == 7 * 24
    assert heard == [500] * (7 * 24)
