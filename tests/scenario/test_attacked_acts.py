"""Acts, letters and words that come at a bad moment, or from somebody who has no say in them."""

import pytest
from tests.scenario.test_acts import Channel
from tests.support.wards import HOUR, OpenWard, Ward, cluster_without

from sickbay.adapters.machines.agents import AgentMachines
from sickbay.engine.reception import Reception
from sickbay.model.errors import Transient
from sickbay.model.facts import Inventory, Observed
from sickbay.model.fault import Remedy
from sickbay.model.fleet import Device, NodeId
from sickbay.model.incident import Phase
from sickbay.model.intent import Intent, IntentState
from sickbay.model.protocol import PROTO, Answered, Command, CommandResult, Item, ItemNews, Poll, Report
from sickbay.sim.context import ClusterRules, Timings
from sickbay.sim.job_behaviour import Programme


def intent_of(w: Ward, key: str) -> Intent:
    row = w.sim.store.load([f"intent:{key}"])[f"intent:{key}"].row
    assert isinstance(row, Intent)
    return row


def polled(w: Ward, node: NodeId) -> tuple[Command, ...]:
    """What an agent is given that asks for its mail."""
    who = w.world.seat(node).incarnation
    poll = Poll(proto=PROTO, node=node, instance_id=who.instance_id, boot_id=who.boot_id)
    return Reception(w.sim.store, w.sim.clock).commands(poll).commands


def reports(w: Ward, node: NodeId, *said: ItemNews, boot: str | None = None, counted: int | None = None) -> None:
    """An agent's report, with the boot that it claims; `counted`: the number of its first line in the kernel log."""
    who = w.world.seat(node).incarnation
    boot_id = who.boot_id if boot is None else boot
    items = tuple(
        Item(
            seq=n,
            mono=1.0,
            news=news,
            source="" if counted is None else "kmsg",
            source_seq=None if counted is None else counted + n - 1,
        )
        for n, news in enumerate(said, start=1)
    )
    report = Report(
        proto=PROTO, node=node, instance_id=who.instance_id, boot_id=boot_id, agent_run=f"run-of-{node}",
        first_seq=1, mono_now=1.0, wall_now=0.0, watermark=0.0, items=items,
    )  # fmt: skip
    Reception(w.sim.store, w.sim.clock).receive(report)
    w.sim.hosts[0].wake()


def xid(node: NodeId, number: int) -> Observed:
    return Observed(node=node, kind="xid", fields={"number": number, "device": 0}, text=f"NVRM: Xid: {number}")


def test_a_letter_does_not_outlive_its_intent_though_the_clock_is_set_back(ward: OpenWard) -> None:
    rules = cluster_without("replace", "reset_gpu", "restart_service", begins_within=1e9)
    w = ward(cluster=rules)
    node = w.nodes[0]
    w.says(node, 79)
    w.reaches(node, Phase.REPAIRING, HOUR)
    w.run(5)
    key = w.incident(node).intent
    mail = AgentMachines(w.sim.store, wall=w.sim.clock.wall, reboots=True)
    mail.reboot(node, key=key, expect=w.world.seat(node).incarnation)
    w.sim.jump(120)
    assert len(polled(w, node)) == 1  # two minutes of the wall are none of its own
    w.sim.jump(-3720)
    w.until(lambda: intent_of(w, key).state is IntentState.EXPIRED, HOUR)
    assert polled(w, node) == ()
    assert not w.sim.store.mail(node)


def test_an_agent_has_no_say_in_the_repair_of_another_node(ward: OpenWard) -> None:
    w = ward(cluster=ClusterRules(id="sim", begins_within=60.0))
    node, other = w.nodes[:2]
    w.sick(node, "xid.79", Remedy.REBOOT)
    w.reaches(node, Phase.REPAIRING, HOUR)
    w.run(5)
    key = w.incident(node).intent
    reports(w, other, Answered(command=f"{key}/{other}", result=CommandResult.REFUSED, text="not me"))
    w.run(5)
    assert intent_of(w, key).state is IntentState.ACCEPTED
    w.rests()
    assert w.rungs(node) == ["reboot"]


def test_no_line_is_a_double_of_what_another_node_says(ward: OpenWard) -> None:
    w = ward(strict=False)  # an agent that lies about its boot is believed
    node, other = w.nodes[:2]
    noise = [Observed(node=other, kind="no.such.kind")] * 20
    reports(w, other, *noise, boot=w.world.seat(node).incarnation.boot_id, counted=100)
    w.run(5)
    reports(w, node, xid(node, 79), counted=110)
    w.run(5)
    assert [incident.fault.code for incident in w.incidents(node)] == ["xid.79"]


def test_agents_that_cannot_tell_their_boot_do_not_swallow_each_others_lines(ward: OpenWard) -> None:
    w = ward()
    node, other = w.nodes[:2]
    reports(w, other, xid(other, 31), boot="", counted=150)
    reports(w, node, xid(node, 79), boot="", counted=150)
    w.run(5)
    assert [incident.fault.code for incident in w.incidents(node)] == ["xid.79"]


def test_a_node_keeps_no_more_devices_than_a_machine_has(ward: OpenWard) -> None:
    w = ward()
    node = w.nodes[0]
    for turn in range(10):
        found = tuple(Device(index=turn * 64 + n, serial=f"{turn}-{n}") for n in range(64))
        reports(w, node, Inventory(devices=found), boot=None, counted=1000 + turn)
        w.run(5)
    assert len(w.node(node).devices) == 64
    assert w.story(node).count("no more are kept") == 1


def test_who_reboots_in_a_gate_is_checked_again_though_the_clock_is_set_back(ward: OpenWard) -> None:
    w = ward(rules=Timings(boot_takes=15.0, check_takes=(60.0, 150.0, 900.0, 3600.0)))
    job = w.sim.submit("train", Programme(steps=100_000, checkpoint_every=100), nodes=4, precheck=2)
    w.until(lambda: w.state(job) == "GATING" and bool(intent_of(w, w.job(job).intent).verdicts), HOUR)
    first = next(iter(intent_of(w, w.job(job).intent).verdicts))
    w.sim.jump(-3600)
    w.world.operator_reboots(first)
    w.until(lambda: w.state(job) == "RUNNING", HOUR)
    passed = [e.at for e in w.world.chronicle.events if e.what == "check.pass" and e.subject == first]
    rebooted = [e.at for e in w.world.chronicle.events if e.what == "reboot" and e.subject == first]
    assert first not in w.job(job).claim or passed[-1] > rebooted[-1]


def test_a_stop_that_was_not_sent_goes_with_the_incident_that_called_for_it(ward: OpenWard) -> None:
    w = ward()
    job = w.running(nodes=2, steps=100_000, precheck=0)
    node = min(w.job(job).claim)
    stop = Channel(w.sim.hands.sites["sim"].cluster, "stop", lambda _: Transient("no connection"))
    w.says(node, 79)
    w.until(lambda: w.state(job) == "STOPPING" and stop.calls > 0, HOUR)
    w.order("pause", "")
    w.run(10)
    stop.works()
    w.order("dismiss", w.incident(node).id)
    w.until(lambda: w.phase(node) == "DISMISSED", HOUR)
    w.run(120)
    assert w.state(job) == "RUNNING"
    assert w.world.running(job)
    assert w.job(job).attempt == 1
    assert not w.job(job).interruptions


@pytest.mark.parametrize("asked_by", ["checkup", "gate"])
def test_no_check_is_sent_to_a_node_where_others_work_runs_by_now(ward: OpenWard, asked_by: str) -> None:
    w = ward(nodes=2)
    node = w.nodes[0]
    now = w.sim.scheduler.now
    w.sim.mischief.outage("checks:sim", now, now + 100)
    if asked_by == "checkup":
        w.order("check", node, level="1")
    else:
        w.sim.submit("train", Programme(steps=100, checkpoint_every=10), nodes=2, precheck=1)
    w.run(40)
    assert w.world.other_scheduler_starts_work(node)
    w.run(900)
    assert not w.happened("check", node)
    w.rests()
    assert all(job.state == "COMPLETE" for job in w.sim.jobs())
