"""Every open thing has a deadline or a person who was told; every order is carried out or refused in a line."""

import pytest
from tests.support.wards import DAY, HOUR, OpenWard, Ward, cluster_without

from sickbay.brain.repair import CUT_SHORT
from sickbay.faces.answers import OrderAnswer
from sickbay.faces.archive import Archive
from sickbay.faces.orders import order_answer
from sickbay.model.facts import JobSeen
from sickbay.model.fault import Remedy
from sickbay.model.fleet import JobId, NodeId
from sickbay.model.incident import Phase
from sickbay.model.job import JobSpec, RankState
from sickbay.model.order import OrderRecord, OrderVerdict, order_id
from sickbay.policy.load import digest
from sickbay.sim.context import Timings
from sickbay.sim.job_behaviour import Programme


def answers(w: Ward) -> list[str]:
    return [line.text for line in w.sim.store.story("operator:") if line.event == "answer"]


def answer_now(w: Ward) -> OrderAnswer:
    """What is said now of the last order."""
    key = f"order:{order_id(f'order/{w.sim.orders}')}"
    record = w.sim.store.load([key])[key].row
    assert isinstance(record, OrderRecord), w.why()
    return order_answer(Archive(w.sim.store, {digest(w.sim.policy): w.sim.policy}), record)


def held(w: Ward) -> NodeId:
    """A node that a person has cordoned."""
    w.order("cordon", w.nodes[0])
    w.reaches(w.nodes[0], Phase.HELD, HOUR)
    return w.nodes[0]


# --- orders


@pytest.mark.parametrize("verb", ["reboot", "replace"])
def test_a_repair_that_a_person_orders_of_a_node_held_by_his_cordon_is_done(ward: OpenWard, verb: str) -> None:
    w = ward()
    node = held(w)
    w.order(verb, node, now=True)
    w.until(lambda: bool(w.passed_checks(node)), 2 * HOUR)
    w.rests()
    assert w.rungs(node) == [verb]
    assert f"taken up: {verb} is next" in answers(w)[-1]
    assert answer_now(w).verdict is OrderVerdict.DONE
    assert w.phase(node) == Phase.HELD, "his cordon stays until he takes it back"
    w.order("uncordon", node)
    w.reaches(node, Phase.DISMISSED, HOUR)
    assert w.node(node).claimable


def test_a_drain_of_a_node_that_is_held_moves_its_work_off_and_leaves_it_held(ward: OpenWard) -> None:
    w = ward(nodes=4)
    job = w.running(nodes=2, steps=10**6)
    node = min(w.job(job).claim)
    w.order("cordon", node)
    w.reaches(node, Phase.HELD, HOUR)
    w.run(60)
    assert node in w.job(job).claim, "a cordon leaves alone what runs"
    w.order("drain", node, now=True)
    w.until(lambda: node not in w.job(job).claim and w.state(job) == "RUNNING", HOUR)
    w.reaches(node, Phase.HELD, HOUR)
    assert "drain: taken up" in answers(w)[-1]
    assert answer_now(w).verdict is OrderVerdict.DONE


def test_what_the_cluster_cannot_do_for_a_held_node_leaves_it_held_and_is_refused_in_a_line(ward: OpenWard) -> None:
    w = ward(cluster=cluster_without("replace"))
    node = w.nodes[0]
    w.sick(node, "xid.79", None)
    w.reaches(node, Phase.HELD, 12 * HOUR)
    tried = w.rungs(node)
    w.order("replace", node)
    w.run(60)
    assert w.phase(node) == Phase.HELD
    assert w.rungs(node) == tried
    said = answer_now(w)
    assert said.verdict is OrderVerdict.REFUSED
    assert "the cluster cannot do replace" in said.because


def test_a_repair_that_a_person_orders_again_of_a_node_at_its_ladders_end_is_done_once_and_proven(
    ward: OpenWard,
) -> None:
    w = ward(cluster=cluster_without("replace"))
    node = w.nodes[0]
    w.sick(node, "xid.79", None)
    w.reaches(node, Phase.HELD, 12 * HOUR)
    tried = w.rungs(node)
    w.order("reboot", node)
    w.rests()
    assert w.rungs(node)[: len(tried)] == tried
    assert set(w.rungs(node)[len(tried) :]) == {"reboot"}
    assert w.phase(node) == Phase.HELD, "it is still sick"
    assert "taken up: reboot is next" in answers(w)[-1]
    assert answer_now(w).verdict is OrderVerdict.REFUSED, "rebooted, and not proven well"


@pytest.mark.parametrize("phase", [Phase.REPAIRING, Phase.VERIFYING])
def test_a_stronger_repair_ordered_during_another_follows_it(ward: OpenWard, phase: Phase) -> None:
    w = ward()
    node = w.nodes[0]
    w.sick(node, "xid.79", Remedy.REBOOT)
    w.reaches(node, phase, HOUR)
    w.run(2)
    w.order("replace", node)
    w.reaches(node, Phase.RELEASED, 3 * HOUR)
    assert w.rungs(node) == ["reboot", "replace"]
    assert "taken up: replace is " in answers(w)[-1]
    assert answer_now(w).verdict is OrderVerdict.DONE


@pytest.mark.parametrize(("verb", "ends"), [("cordon", Phase.HELD), ("replace", Phase.RELEASED)])
def test_an_order_to_an_incident_that_closes_begins_when_that_is_over(ward: OpenWard, verb: str, ends: Phase) -> None:
    w = ward()
    node = w.nodes[0]
    w.sick(node, "xid.79", Remedy.REBOOT)
    w.until(lambda: w.phase(node) == Phase.VERIFYING and w.incident(node).closing is not None, HOUR)
    w.order(verb, node)
    w.until(lambda: len(w.incidents(node)) == 2, HOUR)
    w.reaches(node, ends, 2 * HOUR)
    assert w.incident(node).fault.code == f"operator.{verb}"
    waits, taken = answers(w)[-2:]
    assert f"{verb}: waits: " in waits
    assert "begins when that is over" in waits
    assert f"{verb}: taken up: " in taken, "it is answered again when it begins"


def test_a_cordon_behind_an_uncordon_is_there_in_the_end(ward: OpenWard) -> None:
    w = ward()
    node = held(w)
    w.run(20)
    w.order("uncordon", node)
    w.order("cordon", node)
    w.until(lambda: len(w.incidents(node)) == 2 and w.phase(node) == Phase.HELD, HOUR)
    assert w.world.seat(node).cordons


def test_an_order_for_what_is_not_there_is_refused_in_a_line(ward: OpenWard) -> None:
    w = ward()
    for verb in ("cordon", "uncordon", "stop"):
        w.order(verb, "sim/nobody")
        w.run(10)
        assert "not possible" in answers(w)[-1]
        assert verb in answers(w)[-1]


# --- faults


def test_a_fault_on_a_node_that_a_person_holds_interrupts_its_job_and_is_told(ward: OpenWard) -> None:
    w = ward(nodes=4)
    job = w.running(nodes=2, steps=10**6)
    node = min(w.job(job).claim)
    w.order("cordon", node)
    w.reaches(node, Phase.HELD, HOUR)
    w.run(60)
    w.says(node, 79)
    w.until(lambda: node not in w.job(job).claim and w.state(job) == "RUNNING", HOUR)
    assert w.phase(node) == Phase.HELD, "whoever cordoned it decides on its repair"
    assert any("xid.79" in text for text in w.told("held"))


# --- silence


@pytest.mark.parametrize("announced", [True, False])
def test_an_agent_that_does_not_start_after_a_reboot_is_told(ward: OpenWard, announced: bool) -> None:
    w = ward(nodes=4)
    node = w.nodes[0]
    if announced:
        w.world.announce(node, "kernel upgrade", 600)
        w.run(5)
    else:  # a pause withholds what its silence would have led to
        w.order("pause", "")
        w.run(5)
        w.world.lose_agent(node)
        w.world.partition(node)
        w.run(200)
    w.world.seat(node).agentless = True
    w.world.operator_reboots(node)
    w.run(600)
    if not announced:
        w.world.heal_partition(node)
        w.run(120)
        w.order("unpause", "")
    w.until(lambda: bool(w.told("agent_lost")), 2 * HOUR)
    assert w.incident(node).fault.code == "agent.lost"


# --- loops


def test_a_machine_that_boots_anew_under_every_check_is_held_and_told(ward: OpenWard) -> None:
    w = ward(rules=Timings(boot_takes=20.0), strict=False)
    node = w.nodes[0]
    w.sick(node, "xid.79", Remedy.REBOOT)
    w.reaches(node, Phase.VERIFYING, HOUR)
    fallen: set[str] = set()

    def falls() -> None:
        incident = w.incident(node)
        if incident.phase is Phase.VERIFYING and incident.intent not in {"", *fallen}:
            fallen.add(incident.intent)
            w.sim.scheduler.after(10.0, lambda: w.world.operator_reboots(node))
        w.sim.scheduler.after(20.0, falls)

    falls()
    w.reaches(node, Phase.HELD, HOUR)
    w.until(lambda: bool(w.told("held")), HOUR)
    assert len(fallen) == CUT_SHORT


# --- jobs


@pytest.mark.slow
def test_an_adopted_job_that_cannot_be_asked_to_run_again_is_told(ward: OpenWard) -> None:
    w = ward(nodes=2, cluster=cluster_without("restart_service"))
    job, spec = JobId("theirs"), JobSpec(name="theirs", cluster="sim", pool="train", nodes=2)
    w.world.submit_to_cluster(job, spec, Programme(steps=10**5, checkpoint_every=100))
    w.until(lambda: w.state(job) == "RUNNING", HOUR)
    w.run(60)
    w.world.lose_agent(w.nodes[0])
    w.run(120)
    w.world.crash(job)
    w.until(lambda: bool(w.told("job_waits")), DAY)
    w.world.restore_agent(w.nodes[0])
    w.until(lambda: w.state(job) == "RUNNING", HOUR)


def test_a_job_whose_ranks_are_all_gone_without_a_word_of_its_end_is_told(ward: OpenWard) -> None:
    w = ward()
    spec = JobSpec(name="theirs", cluster="sim", pool="train", nodes=2)
    for n, state in enumerate((RankState.RUNNING, RankState.GONE)):
        ranks = dict.fromkeys(w.nodes[:2], state)
        said = JobSeen(
            job=JobId("theirs"),
            attempt=1,
            as_of=w.sim.scheduler.now,
            ranks=ranks,
            native=True,
            spec=spec,
            cluster="sim",
        )
        w.sim.hosts[0].tell(f"seen/{n}", said)
        w.run(20)
    w.until(lambda: bool(w.told("job_stuck")), HOUR)


def test_a_machine_that_boots_anew_under_every_gate_ends_the_loop_and_is_told(ward: OpenWard) -> None:
    w = ward(rules=Timings(boot_takes=15.0), strict=False)
    on = tuple(w.nodes[:2])
    job = w.sim.submit("train", Programme(steps=100, checkpoint_every=100), nodes=2, on=on, precheck=2)
    fallen: set[str] = set()

    def falls() -> None:
        row = next((row for row in w.sim.jobs() if row.id == job), None)
        if row is not None and row.state == "GATING" and row.intent not in {"", *fallen}:
            fallen.add(row.intent)
            w.sim.scheduler.after(10.0, lambda: w.world.operator_reboots(on[0]))
        w.sim.scheduler.after(15.0, falls)

    falls()
    w.until(lambda: w.state(job) == "FAILED", 2 * HOUR)
    w.until(lambda: any("booted anew under the gate" in text for text in w.told("job_failed")), HOUR)
