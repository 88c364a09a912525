"""From an intent that is written down to its end: what was decided before is asked again, withdrawn, or answered."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.wards import DAY, HOUR, OpenWard, Ward, cluster_without, policy_with

from sickbay.adapters.machines.agents import AgentMachines
from sickbay.engine.ingest import Ingest
from sickbay.engine.reception import Reception
from sickbay.model.errors import Rejected, Transient, Unknown
from sickbay.model.facts import CallResult, Outcome
from sickbay.model.fault import Remedy
from sickbay.model.fleet import Incarnation, NodeId, Withholding
from sickbay.model.incident import Phase
from sickbay.model.intent import Intent, IntentState
from sickbay.model.job import JobState
from sickbay.model.policy import FaultRule, Match, Mode, Window
from sickbay.model.protocol import PROTO, Answered, CommandResult, Item, Report, RunReboot
from sickbay.ports.cluster import Accepted
from sickbay.sim.context import Timings
from sickbay.sim.job_behaviour import Programme


def intent_of(w: Ward, key: str) -> Intent:
    row = w.sim.store.load([f"intent:{key}"])[f"intent:{key}"].row
    assert isinstance(row, Intent)
    return row


class Channel:
    """One method of a simulated adapter, which answers as it is told and counts its calls."""

    def __init__(self, adapter: Any, name: str, answer: Callable[[int], Exception | None]) -> None:
        self.calls = 0
        self._real = getattr(adapter, name)
        self.answer = answer
        setattr(adapter, name, self)

    def __call__(self, *args: Any, **more: Any) -> Any:
        self.calls += 1
        error = self.answer(self.calls)
        if error is not None:
            raise error
        return self._real(*args, **more)

    def works(self) -> None:
        self.answer = lambda _: None


def down(_: int) -> Exception:
    return Transient("connection refused")


# --- what an answer means


@pytest.mark.parametrize("first", [None, "transient"], ids=["refused at once", "after a refused connection"])
def test_a_refused_start_fails_the_job_whatever_the_connection_did_before(ward: OpenWard, first: str | None) -> None:
    w = ward(cluster=cluster_without("place"))
    start = Channel(
        w.sim.hands.sites["sim"].cluster,
        "start",
        lambda n: Transient("connection refused") if first and n == 1 else Rejected("invalid partition"),
    )
    job = w.sim.submit("train", nodes=2)
    w.until(lambda: w.state(job) == JobState.FAILED, HOUR)
    assert "invalid partition" in w.job(job).diagnosis
    assert start.calls <= 6


def test_a_start_refused_after_one_in_doubt_is_not_a_year_in_the_clusters_queue(ward: OpenWard) -> None:
    w = ward(cluster=cluster_without("place"))
    Channel(
        w.sim.hands.sites["sim"].cluster,
        "start",
        lambda n: Unknown("no answer") if n == 1 else Rejected("invalid partition"),
    )
    job = w.sim.submit("train", nodes=2)
    w.until(lambda: w.state(job) != "", HOUR)
    w.until(lambda: w.job(job).wait is not None and "invalid partition" in str(w.job(job).wait), HOUR)
    w.until(lambda: w.state(job) == JobState.FAILED, DAY)
    w.run(5)
    assert w.told("job_failed")


@pytest.mark.parametrize("place", [False, True], ids=["cluster chooses", "we choose"])
def test_starts_that_are_refused_after_one_in_doubt_do_not_go_on_for_ever(ward: OpenWard, place: bool) -> None:
    """Each time: no answer, sent again, refused. Whether the first took effect a stop tells; it never did."""
    w = ward(nodes=4) if place else ward(nodes=4, cluster=cluster_without("place"))
    start = Channel(
        w.sim.hands.sites["sim"].cluster,
        "start",
        lambda n: Unknown("no answer") if n % 2 else Rejected("invalid partition"),
    )
    job = w.sim.submit("train", nodes=2)
    w.until(lambda: w.state(job) == JobState.FAILED, DAY)
    w.run(5)
    assert len(w.told("job_failed")) == 1
    assert start.calls <= 2 * 5
    w.rests()


def test_a_late_refusal_of_a_repair_whose_sendings_failed_ends_it(ward: OpenWard) -> None:
    w = ward()
    node = w.nodes[0]
    reset = Channel(
        w.sim.hands.sites["sim"].machines,
        "reset",
        lambda n: Unknown("the command may be posted") if n == 1 else Transient("could not be posted"),
    )
    w.says(node, 48)
    w.until(lambda: reset.calls == 2, HOUR)
    w.run(1)
    key = w.incident(node).intent
    late = Outcome(key=key, result=CallResult.REJECTED, sends=0, text="the device is busy")
    Ingest(w.sim.store, w.sim.clock).tell(f"answered/{key}", late)
    w.sim.hosts[0].wake()
    w.run(5)
    assert intent_of(w, key).state is IntentState.REJECTED
    reset.works()
    w.rests()
    assert w.phase(node) == "RELEASED"


def test_what_is_in_doubt_has_a_deadline_however_often_it_was_sent(ward: OpenWard) -> None:
    w = ward()
    node = w.nodes[0]
    answers = {1: Unknown("no answer"), 2: Transient("connection refused"), 3: Rejected("the device is busy")}
    Channel(w.sim.hands.sites["sim"].machines, "reset", lambda n: answers.get(n, Rejected("busy")))
    w.says(node, 48)
    w.reaches(node, Phase.REPAIRING)
    w.until(lambda: w.incident(node).intent != "" and intent_of(w, w.incident(node).intent).refused, HOUR)
    assert intent_of(w, w.incident(node).intent).seen_by is not None
    w.rests()
    assert w.phase(node) in {"RELEASED", "HELD"}


# --- admission is asked again when an act is sent

REPAIRS = ("reset_gpu", "reboot", "replace")


def repairs(w: Ward, since: float = 0.0) -> list[str]:
    return [f"{e.what} {e.subject}" for e in w.world.chronicle.events if e.what in REPAIRS and e.at > since]


def waiting_repair(w: Ward, node: NodeId) -> Channel:
    """A repair that was admitted and written down, and that the machines' API takes only later."""
    reboot = Channel(w.sim.hands.sites["sim"].machines, "reboot", down)
    w.sick(node)
    w.reaches(node, Phase.REPAIRING)
    w.until(lambda: reboot.calls >= 2, HOUR)
    return reboot


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
def test_a_pause_holds_a_repair_that_was_written_down_before_it(ward: OpenWard, cold: bool) -> None:
    w = ward(cold=cold)
    node = w.nodes[0]
    reboot = waiting_repair(w, node)
    w.order("pause", "")
    w.run(1)
    reboot.works()
    w.run(3 * HOUR)
    assert repairs(w) == []
    assert w.phase(node) == "DRAINED"
    assert "check it, put it back to work" in w.incident(node).wait.would
    assert w.incident(node).tries == (), "what was never sent was not tried"
    assert w.ledger().repairing == 0
    assert w.told("held") == []
    w.order("unpause", "")
    w.rests()
    assert w.phase(node) == "RELEASED"
    assert w.rungs(node) == ["reboot"]


def test_a_repair_that_is_withheld_while_an_earlier_sending_is_in_doubt_was_not_tried(ward: OpenWard) -> None:
    w = ward()
    node = w.nodes[0]
    reboot = Channel(w.sim.hands.sites["sim"].machines, "reboot", lambda n: Unknown("no answer") if n == 1 else None)
    w.sick(node, "xid.79", Remedy.REBOOT)
    w.until(lambda: reboot.calls == 1, HOUR)
    w.run(2)
    w.order("pause", "")
    w.run(2 * HOUR)
    assert w.phase(node) == Phase.DRAINED
    assert w.rungs(node) == []
    w.order("unpause", "")
    w.rests()
    assert w.rungs(node) == ["reboot"]
    assert repairs(w) == [f"reboot {node}"]


def test_a_brake_holds_what_was_written_down_before_it_tripped(ward: OpenWard) -> None:
    w = ward(nodes=20)
    reboot = Channel(w.sim.hands.sites["sim"].machines, "reboot", down)
    for node in w.nodes[:2]:
        w.says(node, 79)
    w.until(lambda: reboot.calls >= 4, HOUR)
    for node in w.nodes[2:6]:
        w.says(node, 79)
    w.until(lambda: w.brake("pool:train:xid.79").tripped_at is not None, HOUR)
    reboot.works()
    w.run(200)
    assert w.brake("pool:train:xid.79").tripped_at is not None
    assert repairs(w) == []
    assert {w.phase(node) for node in w.nodes[:2]} == {"DRAINED"}


@pytest.mark.slow
def test_a_window_that_closes_holds_what_was_written_down_in_it(ward: OpenWard) -> None:
    w = ward(policy=policy_with(windows=(Window(start="00:00", end="00:10"),)))
    node = w.nodes[0]
    reboot = waiting_repair(w, node)
    w.run(600)
    reboot.works()
    w.run(HOUR)
    assert repairs(w) == []
    assert w.phase(node) == "DRAINED"
    w.rests()
    assert w.phase(node) == "RELEASED"


def test_a_pause_holds_a_cordon_that_was_written_down_before_it(ward: OpenWard) -> None:
    w = ward()
    node = w.nodes[0]
    cordon = Channel(w.sim.hands.sites["sim"].cluster, "cordon", down)
    w.sick(node)
    w.until(lambda: cordon.calls >= 2, HOUR)
    w.order("pause", "")
    w.run(1)
    cordon.works()
    w.run(HOUR)
    assert w.happened("cordon") == []
    assert w.phase(node) == "SUSPECT", "it is in service"
    assert w.ledger().out == 0
    assert w.incident(node).wait.would
    w.order("unpause", "")
    w.rests()
    assert w.phase(node) == "RELEASED"


def test_a_pause_holds_a_drain_that_was_written_down_before_it(ward: OpenWard) -> None:
    w = ward(rules=Timings(work_lasts=100_000.0))
    node = w.nodes[0]
    drain = Channel(w.sim.hands.sites["sim"].cluster, "drain", down)
    assert w.world.other_scheduler_starts_work(node)
    w.run(10)
    w.sick(node)
    w.until(lambda: drain.calls >= 2, HOUR)
    w.order("pause", "")
    w.run(1)
    drain.works()
    w.run(3 * HOUR)
    assert w.happened("drain") == []
    assert w.phase(node) == "DRAINING", "its time does not run out meanwhile"
    w.order("unpause", "")
    w.rests()
    assert w.happened("drain")
    assert w.phase(node) == "RELEASED"


def test_a_pause_holds_an_incidents_stop_of_a_job_that_was_written_down_before_it(ward: OpenWard) -> None:
    w = ward()
    job = w.running(steps=100_000)
    node = min(w.job(job).claim)
    stop = Channel(w.sim.hands.sites["sim"].cluster, "stop", down)
    w.says(node, 79)
    w.until(lambda: stop.calls >= 1, HOUR)
    w.order("pause", "")
    w.run(1)
    stop.works()
    calls = stop.calls
    w.run(HOUR)
    assert stop.calls == calls
    assert "pause by operator" in w.job(job).wait.because
    w.order("unpause", "")
    w.until(lambda: w.job(job).attempt == 2, HOUR)


def test_a_persons_stop_of_a_job_is_not_held_by_a_pause(ward: OpenWard) -> None:
    w = ward()
    job = w.running(steps=100_000)
    w.says(min(w.job(job).claim), 79)
    w.order("pause", "")
    w.order("stop", job)
    w.until(lambda: w.state(job) == JobState.STOPPED, HOUR)


@pytest.mark.parametrize("sick", [False, True])
def test_lost_seats_that_are_back_are_not_cordoned_beyond_the_pools_limit(ward: OpenWard, sick: bool) -> None:
    w = ward(nodes=4)
    cordon = Channel(w.sim.hands.sites["sim"].cluster, "cordon", down)
    lost = w.nodes[:2]
    for node in lost:
        w.world.cut_path(node)
        w.world.partition(node)
    w.until(lambda: all(w.phase(node) == Phase.QUARANTINED for node in lost), HOUR)
    for node in lost:
        w.world.heal_partition(node)
        w.world.open_path(node)
        if sick:  # then they are treated one after the other
            w.sick(node)
    w.run(60)
    cordon.works()
    w.rests()
    assert all(w.node(node).claimable for node in w.nodes), w.why()
    assert w.ledger().out == 0


def test_a_call_that_stood_still_before_it_was_made_is_asked_again(ward: OpenWard) -> None:
    w = ward()
    node = w.nodes[0]
    executor = w.sim.hosts[0]._engine._executor
    real = executor.submit

    def late(lane: str, call: Any, timeout: float, done: Any, key: str) -> None:
        after = 10.0 if lane.endswith("/Repair") else 0.0
        w.sim.scheduler.after(after, lambda: real(lane, call, timeout, done, key))

    executor.submit = late  # type: ignore[method-assign]
    w.sick(node)
    w.reaches(node, Phase.REPAIRING)
    w.run(1)
    assert intent_of(w, w.incident(node).intent).state is IntentState.SENT
    w.order("pause", "")
    w.run(HOUR)
    assert repairs(w) == []
    assert w.phase(node) == "DRAINED"


# --- an exclusion excuses only while it lasts


def test_a_node_whose_quarantine_is_written_is_nobodys_to_claim(ward: OpenWard) -> None:
    w = ward(nodes=1, policy=policy_with(examine=()))
    node = w.nodes[0]
    cordon = Channel(w.sim.hands.sites["sim"].cluster, "cordon", down)
    w.order("exclude", "", node=node, fault="xid.79", seconds="600")
    w.sick(node)  # which the check at the exclusion's end confirms
    w.run(60)
    assert w.node(node).claimable
    w.until(lambda: w.phase(node) == Phase.QUARANTINED, HOUR)
    assert not w.node(node).excused
    assert not w.node(node).claimable
    job = w.sim.submit("train", Programme(steps=300, checkpoint_every=100), nodes=1)
    w.run(300)
    assert w.state(job) == JobState.QUEUED
    assert w.job(job).attempt == 0
    cordon.works()
    w.rests()
    assert w.phase(node) == "RELEASED"


def test_an_exclusion_that_is_taken_back_excuses_nobody_even_while_the_pool_is_at_its_limit(ward: OpenWard) -> None:
    w = ward(nodes=4)
    w.order("cordon", w.nodes[1])
    w.reaches(w.nodes[1], Phase.HELD)
    node = w.nodes[0]
    w.order("exclude", "", node=node, fault="xid.79")
    w.says(node, 79)
    w.run(60)
    assert w.node(node).claimable
    w.order("include", "exclude-" + str(_exclusion(w)))
    w.run(60)
    assert w.phase(node) == "SUSPECT", "the limit defers it"
    assert not w.node(node).claimable


def _exclusion(w: Ward) -> int:
    rows = w.sim.store.load(["withholding:"])["withholding:"].row
    assert isinstance(rows, Withholding)
    return int(rows.rows[-1].id.rsplit("-", 1)[1])


def test_an_exclusion_covers_no_other_fault_that_joins_the_excluded_one(ward: OpenWard) -> None:
    w = ward(nodes=1)
    node = w.nodes[0]
    w.order("exclude", "", node=node, fault="xid.79", seconds="36000")
    w.says(node, 79)
    w.run(60)
    assert w.node(node).claimable
    w.sick(node, "xid.48", Remedy.RESET_GPU)  # nobody excluded this one
    w.reaches(node, Phase.RELEASED, HOUR)
    assert w.incident(node).fault.code == "xid.48"
    assert w.rungs(node) == ["reset_gpu"], "what is excluded is left alone"


def test_an_exclusion_covers_what_its_fault_brings_with_it(ward: OpenWard) -> None:
    w = ward(nodes=1)
    node = w.nodes[0]
    w.order("exclude", "", node=node, fault="xid.79", seconds="36000")
    w.says(node, 79)
    w.says(node, 48)
    w.run(HOUR)
    assert w.node(node).claimable
    assert w.happened("cordon") == []


def test_two_exclusions_cover_two_faults_of_one_node(ward: OpenWard) -> None:
    w = ward(nodes=1)
    node = w.nodes[0]
    for number in (79, 48):
        w.order("exclude", "", node=node, fault=f"xid.{number}", seconds="36000")
    w.says(node, 79)
    w.run(60)
    w.says(node, 48)
    w.run(600)
    assert w.node(node).claimable
    assert w.happened("cordon") == []


def test_a_pause_holds_a_fault_that_joins_an_excluded_one_and_it_is_checked_afterwards(ward: OpenWard) -> None:
    w = ward(nodes=1)
    node = w.nodes[0]
    w.order("exclude", "", node=node, fault="xid.79", seconds="36000")
    w.says(node, 79)
    w.run(60)
    w.order("pause", "")
    w.says(node, 48)
    w.run(60)
    assert not w.node(node).claimable
    w.order("unpause", "")
    w.run(600)
    assert w.phase(node) == Phase.DISMISSED, "a check has cleared it"
    assert w.happened("cordon") == []


@pytest.mark.parametrize("verb", ["reboot", "replace"])
def test_a_fault_on_a_node_whose_repair_waits_for_a_window_takes_it_out_of_service(ward: OpenWard, verb: str) -> None:
    w = ward(nodes=4, policy=policy_with(windows=(Window(start="03:00"),)))
    node = w.nodes[0]
    w.order(verb, node)
    w.run(60)
    assert w.node(node).claimable
    w.sick(node, "xid.48", Remedy.RESET_GPU)
    w.reaches(node, Phase.DRAINED, 600)
    assert not w.node(node).claimable
    w.run(HOUR)
    assert w.happened(verb, node) == [], "the repair waits for its window"
    w.reaches(node, Phase.RELEASED)
    assert w.rungs(node) == [verb], "what the person asked for is done"


def test_a_fault_that_the_policy_only_observes_does_not_hurry_a_repair_that_waits_for_a_window(ward: OpenWard) -> None:
    observed = (FaultRule(match=Match(fault="xid.48"), mode=Mode.OBSERVE),)
    w = ward(nodes=4, policy=policy_with(windows=(Window(start="03:00"),), faults=observed))
    node = w.nodes[0]
    w.order("reboot", node)
    w.run(60)
    w.says(node, 48)
    w.run(HOUR)
    assert w.phase(node) == Phase.SUSPECT
    assert not w.node(node).claimable, "it is not given new work"
    w.reaches(node, Phase.RELEASED)
    assert w.rungs(node) == ["reboot"]


# --- withdrawal: what nobody wants any more, and what may have come of it


def slow_reboots(w: Ward, after: float) -> None:
    """Machines that take a reboot at once and carry it out later, if the boot is still the one that was meant."""
    machines = w.sim.hands.sites["sim"].machines

    def reboot(node: NodeId, *, key: str, expect: Incarnation) -> Accepted:
        def begin() -> None:
            if w.world.seat(node).incarnation == expect:
                w.world.plant.reboot(w.world.seat(node), key=key)

        w.sim.scheduler.after(after, begin)
        return Accepted(visible_from=w.sim.scheduler.now)

    machines.reboot = reboot  # type: ignore[method-assign]


LETTING_GO: dict[str, Callable[[Ward, NodeId], object]] = {
    "dismissed": lambda w, node: w.order("dismiss", w.incident(node).id),
    "uncordoned by name": lambda w, node: w.order("uncordon", node),
    "held, then dismissed": lambda w, node: (
        w.order("hold", w.incident(node).id),
        w.order("dismiss", w.incident(node).id),
    ),
}


@pytest.mark.parametrize("how", LETTING_GO)
def test_nobody_is_let_in_while_a_repair_may_be_on_its_way(ward: OpenWard, how: str) -> None:
    w = ward(nodes=1, policy=policy_with(examine=()))
    node = w.nodes[0]
    slow_reboots(w, after=55.0)
    w.says(node, 79)
    w.reaches(node, Phase.REPAIRING)
    w.run(5)
    job = w.sim.submit("train", Programme(steps=600, checkpoint_every=100), nodes=1)
    LETTING_GO[how](w, node)
    w.run(20)
    assert not w.node(node).claimable
    assert "reboot was withdrawn but may be on its way" in w.incident(node).wait.because
    w.rests()
    assert w.phase(node) == "DISMISSED"
    assert w.state(job) == JobState.COMPLETE
    assert w.job(job).interruptions == (), "nothing hit it"


@pytest.mark.parametrize("begins", ["runs", "begins late", "never begins", "no answer"])
@pytest.mark.parametrize("verb", ["dismiss", "uncordon"])
def test_no_job_is_placed_under_a_check_of_a_node_that_a_person_has_back_meanwhile(
    ward: OpenWard, verb: str, begins: str
) -> None:
    w = ward(nodes=1, policy=policy_with(examine=()))
    node = w.nodes[0]
    checks = w.sim.hands.sites["sim"].checks
    real, late = checks.start, {"runs": 0.0, "begins late": 55.0, "no answer": 55.0, "never begins": 1e9}[begins]

    def start(*args: Any, **more: Any) -> Accepted:
        w.sim.scheduler.after(late, lambda: real(*args, **more))
        if begins == "no answer":
            raise Unknown("no answer")
        return Accepted(visible_from=w.sim.scheduler.now)

    checks.start = start  # type: ignore[method-assign]
    w.sick(node, kills_ranks=False)
    incident = w.reaches(node, Phase.VERIFYING)
    w.run(5)
    w.order(verb, incident.id if verb == "dismiss" else node)
    w.reaches(node, Phase.DISMISSED, 60)
    assert not w.node(node).cordons, "the person has his node at once"
    job = w.sim.submit("train", Programme(steps=100, checkpoint_every=100), nodes=1)
    w.run(150)
    assert w.job(job).state is JobState.QUEUED
    w.until(lambda: w.job(job).state is JobState.COMPLETE, 3 * HOUR)
    began = next(e.at for e in w.world.chronicle.events if e.what == "start")
    assert all(e.at <= began for e in w.world.chronicle.events if e.what == "check.pass")
    w.rests()


def test_nobody_is_let_in_when_the_cordon_goes_while_a_repair_is_on_its_way(ward: OpenWard) -> None:
    w = ward(nodes=1, policy=policy_with(examine=()))
    node = w.nodes[0]
    slow_reboots(w, after=55.0)
    w.says(node, 79)
    w.reaches(node, Phase.REPAIRING)
    w.run(5)
    job = w.sim.submit("train", Programme(steps=600, checkpoint_every=100), nodes=1)
    w.world.operator_uncordons(node)
    w.run(20)
    assert not w.node(node).claimable
    w.rests()
    assert w.node(node).incident is None
    assert w.state(job) == JobState.COMPLETE
    assert w.job(job).interruptions == (), "nothing hit it"


def test_a_withdrawn_repair_whose_end_is_never_seen_is_waited_for_until_its_deadline(ward: OpenWard) -> None:
    w = ward(nodes=1, policy=policy_with(examine=()))
    node = w.nodes[0]
    slow_reboots(w, after=10 * DAY)
    w.says(node, 79)
    w.reaches(node, Phase.REPAIRING)
    w.run(5)
    w.order("dismiss", w.incident(node).id)
    w.run(60)
    assert w.phase(node) == "REPAIRING"
    w.until(lambda: w.phase(node) == "DISMISSED", 2 * HOUR)
    w.rests()
    assert w.node(node).claimable


def test_a_held_node_is_not_repaired_again_while_the_repair_before_may_be_on_its_way(ward: OpenWard) -> None:
    w = ward(nodes=4)
    node = w.nodes[0]
    slow_reboots(w, after=120.0)
    w.sick(node, cured_by=Remedy.REPLACE)
    w.reaches(node, Phase.REPAIRING)
    w.run(5)
    w.order("hold", w.incident(node).id)
    w.order("escalate", w.incident(node).id)
    w.run(60)
    assert w.phase(node) == "DRAINED"
    assert w.happened("replace") == []
    w.rests()
    assert w.phase(node) == "RELEASED"


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
def test_what_is_withdrawn_is_struck_from_the_agents_mail(ward: OpenWard, cold: bool) -> None:
    w = ward(nodes=4, cold=cold)
    node = w.nodes[0]
    agents = AgentMachines(w.sim.store, wall=w.sim.clock.wall, reboots=True)
    w.sim.hands.sites["sim"].machines.reboot = agents.reboot  # type: ignore[method-assign]
    w.sick(node)
    w.reaches(node, Phase.REPAIRING)
    w.run(5)
    assert [type(letter.order) for letter in w.sim.store.mail(node)] == [RunReboot]
    w.order("dismiss", w.incident(node).id)
    w.run(5)
    assert list(w.sim.store.mail(node)) == [], "an agent that asks now has nothing to begin"
    w.rests()
    assert w.incidents(node)[0].phase is Phase.DISMISSED


def test_the_late_refusal_of_what_was_struck_ends_the_wait_for_it(ward: OpenWard) -> None:
    w = ward(nodes=4)
    node = w.nodes[0]
    agents = AgentMachines(w.sim.store, wall=w.sim.clock.wall, reboots=True)
    w.sim.hands.sites["sim"].machines.reboot = agents.reboot  # type: ignore[method-assign]
    w.sick(node)
    w.reaches(node, Phase.REPAIRING)
    w.run(5)
    (letter,) = w.sim.store.mail(node)
    w.order("dismiss", w.incident(node).id)
    w.run(20)
    assert w.phase(node) == "REPAIRING"
    boot = w.world.seat(node).incarnation
    answer = Answered(command=letter.id, result=CommandResult.REFUSED, text="not this boot")
    report = Report(
        proto=PROTO, node=node, instance_id=boot.instance_id, boot_id=boot.boot_id, agent_run="r",
        first_seq=1, items=(Item(seq=1, mono=1.0, news=answer),), mono_now=1.0, wall_now=0.0, watermark=1.0,
    )  # fmt: skip
    Reception(w.sim.store, w.sim.clock).receive(report)
    w.sim.hosts[0].wake()
    w.run(20)
    assert w.incidents(node)[0].phase is Phase.DISMISSED


def test_a_strike_survives_the_death_of_the_engine_that_wrote_it_down(ward: OpenWard) -> None:
    w = ward(nodes=4)
    node = w.nodes[0]
    agents = AgentMachines(w.sim.store, wall=w.sim.clock.wall, reboots=True)
    w.sim.hands.sites["sim"].machines.reboot = agents.reboot  # type: ignore[method-assign]
    w.sick(node)
    w.reaches(node, Phase.REPAIRING)
    w.run(5)
    key = w.incident(node).intent
    w.order("dismiss", w.incident(node).id)
    w.until(lambda: w.sim.store.load([f"intent:{key}.strike"])[f"intent:{key}.strike"].row is not None, 60)
    w.sim.hosts[0].crash()
    w.run(60)
    assert list(w.sim.store.mail(node)) == []


# --- proof before return


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
def test_a_node_rebooted_after_its_proof_is_proven_again_before_it_is_released(ward: OpenWard, cold: bool) -> None:
    w = ward(cold=cold)
    node = w.nodes[0]
    uncordon = Channel(w.sim.hands.sites["sim"].cluster, "uncordon", lambda _: None)
    w.sick(node)
    w.reaches(node, Phase.VERIFYING)
    uncordon.answer = down
    w.until(lambda: w.incident(node).closing is not None, HOUR)
    checks = len(w.happened("check.pass", node))
    w.world.operator_reboots(node)
    w.run(600)
    uncordon.works()
    w.rests()
    assert w.phase(node) == "RELEASED"
    assert len(w.happened("check.pass", node)) == checks + 1
    assert w.told() == []
    assert w.ledger().out == 0


def test_a_release_that_meets_another_boot_is_refused_and_proven_again(ward: OpenWard) -> None:
    w = ward()
    node = w.nodes[0]
    uncordon = Channel(w.sim.hands.sites["sim"].cluster, "uncordon", lambda _: None)
    w.sick(node)
    w.reaches(node, Phase.VERIFYING)

    def reboots_first(_: int) -> None:
        w.world.operator_reboots(node)

    uncordon.answer = reboots_first
    w.until(lambda: uncordon.calls > 0, HOUR)
    uncordon.works()
    w.rests()
    assert w.phase(node) == "RELEASED"
    assert w.node(node).claimable
    assert w.told() == []


def test_a_release_is_asked_for_again_and_again_and_a_person_is_reminded_at_another_pace(ward: OpenWard) -> None:
    w = ward()
    node = w.nodes[0]
    uncordon = Channel(w.sim.hands.sites["sim"].cluster, "uncordon", down)
    w.sick(node, "xid.79", Remedy.REBOOT)
    w.reaches(node, Phase.VERIFYING, HOUR)
    w.run(2 * HOUR)
    assert len(w.told("release_failed")) == 1
    assert w.story(node).count("Release: ") == 1  # the same again is no news
    uncordon.works()
    w.reaches(node, Phase.RELEASED, 300)


@pytest.mark.slow
def test_a_release_that_the_cluster_refuses_is_asked_for_again_at_a_pace(ward: OpenWard) -> None:
    w = ward()
    node = w.nodes[0]
    uncordon = Channel(w.sim.hands.sites["sim"].cluster, "uncordon", lambda _: Rejected("not now"))
    w.sick(node, "xid.79", Remedy.REBOOT)
    w.reaches(node, Phase.VERIFYING, HOUR)
    w.run(13 * HOUR)
    assert len(w.told("release_failed")) == 2
    assert 100 < uncordon.calls < 500
    uncordon.works()
    w.reaches(node, Phase.RELEASED, 300)


# --- no repair and no check under work, managed or not


def watched_for_work(w: Ward, node: NodeId) -> list[str]:
    """Repairs and checks of the node that begin while work is there."""
    met: list[str] = []
    site = w.sim.hands.sites["sim"]

    def guard(adapter: Any, name: str) -> None:
        real = getattr(adapter, name)

        def call(*args: Any, **more: Any) -> Any:
            seat = w.world.seat(node)
            gate = args[0].startswith("job.")  # a job's own
            here = args[0] == node or (not gate and len(args) > 1 and isinstance(args[1], dict) and node in args[1])
            if here and (seat.unmanaged or any(node in job.claim for job in w.sim.jobs())):
                met.append(name)
            return real(*args, **more)

        setattr(adapter, name, call)

    for name in ("reset", "reboot", "replace"):
        guard(site.machines, name)
    guard(site.checks, "start")
    return met


@pytest.mark.parametrize("verb", ["confirm", "escalate"])
@pytest.mark.parametrize("work", ["unmanaged", "managed"])
@pytest.mark.parametrize("how", ["cordon", "hold"])
def test_a_held_node_is_emptied_before_it_is_checked_or_repaired(
    ward: OpenWard, how: str, work: str, verb: str
) -> None:
    w = ward(nodes=4, rules=Timings(work_lasts=100_000.0))
    node = w.nodes[0]
    if work == "unmanaged":
        assert w.world.other_scheduler_starts_work(node)
        w.run(15)
    else:
        w.running(steps=100_000, nodes=1, on=(node,))
    if how == "cordon":
        w.order("cordon", node)
    else:
        w.sick(node)
        w.reaches(node, Phase.QUARANTINED)
        w.order("hold", w.incident(node).id)
    w.reaches(node, Phase.HELD)
    w.run(10)
    met = watched_for_work(w, node)
    w.order(verb, w.incident(node).id)
    w.run(2 * HOUR)
    assert met == []
    called_before = how == "hold" and work == "managed"
    assert called_before or "DRAINING" in w.phases(node)[w.phases(node).index("HELD") :], w.phases(node)
    assert w.happened("check.start") or w.happened("reboot", node) or w.happened("reset_gpu", node)


def test_a_node_held_before_its_cordon_was_sent_is_cordoned_all_the_same(ward: OpenWard) -> None:
    w = ward()
    node = w.nodes[0]
    cordon = Channel(w.sim.hands.sites["sim"].cluster, "cordon", down)
    w.sick(node)
    w.until(lambda: cordon.calls >= 1, HOUR)
    w.order("hold", w.incident(node).id)
    w.reaches(node, Phase.HELD, 60)
    cordon.works()
    w.rests()
    assert w.phase(node) == "HELD"
    assert f"sickbay:{w.incident(node).id}" in w.node(node).cordons
    assert len(w.told("held")) == 1


def test_a_check_that_was_written_down_before_work_came_is_not_begun_under_it(ward: OpenWard) -> None:
    w = ward(nodes=4, rules=Timings(work_lasts=100_000.0))
    node = w.nodes[0]
    start = Channel(w.sim.hands.sites["sim"].checks, "start", down)
    w.sick(node)
    w.reaches(node, Phase.VERIFYING)
    w.until(lambda: start.calls >= 2, HOUR)
    seat = w.world.seat(node)
    seat.unmanaged = 1  # a scheduler that minds no cordon
    w.world.ground.show(seat)
    w.until(lambda: w.node(node).unmanaged == 1, HOUR)
    start.works()
    w.reaches(node, Phase.DRAINING, HOUR)
    assert w.happened("check.start") == []
    w.rests()
    assert w.phases(node)[-4:] == ["DRAINING", "DRAINED", "VERIFYING", "RELEASED"]
    assert w.rungs(node) == ["reboot"]


def test_a_check_that_is_withheld_while_an_earlier_sending_is_in_doubt_has_not_failed(ward: OpenWard) -> None:
    w = ward(nodes=1)
    node = w.nodes[0]
    start = Channel(w.sim.hands.sites["sim"].checks, "start", lambda n: Unknown("no answer") if n == 1 else None)
    w.sick(node, "xid.79", Remedy.REBOOT)
    w.until(lambda: start.calls == 1, HOUR)
    seat = w.world.seat(node)
    seat.unmanaged += 1  # put there by hand, past the cordon
    w.world.ground.show(seat)
    w.run(1200)
    seat.unmanaged -= 1
    w.world.ground.show(seat)
    w.rests()
    assert w.phase(node) == Phase.RELEASED
    assert w.rungs(node) == ["reboot"]


def test_a_repair_that_was_held_before_it_was_sent_was_not_tried(ward: OpenWard) -> None:
    w = ward()
    node = w.nodes[0]
    reboot = waiting_repair(w, node)
    w.until(lambda: reboot.calls >= 5, HOUR)
    w.run(1)
    assert intent_of(w, w.incident(node).intent).state is IntentState.PLANNED
    w.order("hold", w.incident(node).id)
    w.reaches(node, Phase.HELD, 60)
    assert w.incident(node).tries == ()
    reboot.works()
    w.order("escalate", w.incident(node).id)
    w.rests()
    assert w.rungs(node) == ["reboot"]


# --- a person's order


@pytest.mark.parametrize("verb", ["cordon", "drain", "reset", "reboot", "replace"])
@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.RECOMMEND])
def test_a_persons_order_passes_what_the_policy_only_observes(ward: OpenWard, mode: Mode, verb: str) -> None:
    w = ward(policy=policy_with(faults=(FaultRule(match=Match(fault="xid.79"), mode=mode),)))
    node = w.nodes[0]
    w.says(node, 79)
    w.reaches(node, Phase.SUSPECT)
    w.run(60)
    assert w.phase(node) == "SUSPECT"
    w.order(verb, node)
    w.rests()
    assert w.phase(node) == ("HELD" if verb in {"cordon", "drain"} else "RELEASED")


def test_a_persons_order_passes_a_brake(ward: OpenWard) -> None:
    w = ward(nodes=60)
    for node in w.nodes[:6]:
        w.says(node, 79)
    w.run(20)
    w.until(lambda: w.brake("pool:train:xid.79").tripped_at is not None, HOUR)
    node = next(n for n in w.nodes[:6] if w.phase(n) == "SUSPECT")
    w.order("reboot", node)
    w.run(60)
    assert w.phase(node) not in {"SUSPECT", ""}


@pytest.mark.parametrize("what", ["pause", "limit"])
def test_a_pause_and_a_limit_hold_a_persons_order_and_the_answer_says_so(ward: OpenWard, what: str) -> None:
    w = ward(nodes=4)
    if what == "pause":
        w.order("pause", "")
    else:
        w.says(w.nodes[1], 79)  # a person's own cordon would not use up a small pool's budget
        w.reaches(w.nodes[1], Phase.REPAIRING)
    w.order("reboot", w.nodes[0])
    w.run(30)
    assert w.phase(w.nodes[0]) == "SUSPECT"
    said = [line.text for line in w.sim.store.story("operator:") if line.event == "deferred"]
    assert ("pause by operator" if what == "pause" else "may lack") in said[-1]


def test_a_persons_order_outside_a_window_leaves_the_node_in_service_until_it_opens(ward: OpenWard) -> None:
    w = ward(nodes=4, policy=policy_with(windows=(Window(start="03:00"),)))
    job = w.running(steps=100_000, nodes=1)
    node = min(w.job(job).claim)
    w.order("reboot", node)
    w.run(HOUR)
    assert w.phase(node) == "SUSPECT"
    assert w.node(node).claimable
    assert w.happened("cordon") == []
    assert w.job(job).interruptions == ()
    assert "window" in w.incident(node).wait.because
    w.until(lambda: w.phase(node) == "QUARANTINED", 4 * HOUR)
    assert not w.node(node).excused
    w.until(lambda: w.phase(node) == "RELEASED", HOUR)
    assert w.happened("reboot", node)


def test_a_drain_by_hand_does_not_wait_for_a_window(ward: OpenWard) -> None:
    w = ward(nodes=4, policy=policy_with(windows=(Window(start="03:00"),)))
    w.order("drain", w.nodes[0])
    w.reaches(w.nodes[0], Phase.HELD, 600)
