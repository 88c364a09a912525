"""What any program of a node may have written is shown to whoever looks for the cause, and decides nothing."""

from tests.support.wards import OpenWard, Ward

from sickbay.brain.correlate import KEEP_EVIDENCE
from sickbay.faces.explain import explain
from sickbay.model.facts import Observed
from sickbay.model.fleet import NodeId

TEXT = "Nov 16 08:00:00 gpu-7 kernel: NVRM: Xid (PCI:0000:10:00): {}, GPU has fallen off the bus."


def hears(ward: Ward, node: NodeId, number: int, *, count: int = 1, kind: str = "xid", text: str = "") -> None:
    """Its agent tells of a line in a text log that no witness confirms."""
    seat = ward.world.seat(node)
    seat.seq += 1
    news = Observed(
        node=node, kind=kind, text=text or TEXT.format(number), incarnation=seat.voice, count=count, unconfirmed=True,
        fields={"number": number, "device": 0, "said_by": "/var/log/messages"},
    )  # fmt: skip
    ward.world.agents.say(seat, news, f"{seat.incarnation.boot_id}:text:{seat.seq}")
    ward.run(10)


def test_it_opens_no_incident_stops_no_job_and_stands_in_the_nodes_story(ward: OpenWard) -> None:
    w = ward(nodes=4)
    job = w.running()
    node = next(iter(w.job(job).claim))
    for number in (79, 48, 154, 95):
        hears(w, node, number, count=1000)
    hears(w, node, 0, kind="node.going_down")
    w.run(600)
    assert not w.incidents()
    assert w.state(job) == "RUNNING"
    assert w.job(job).attempt == 1
    assert w.node(node).recent == ()
    assert w.node(node).going_down is None
    shown = [line.text for line in explain(w.sim.store, node).story if line.event == "unconfirmed"]
    assert len(shown) == 4
    assert "/var/log/messages says" in shown[0]
    assert "no witness does" in shown[0]
    assert "(1000 times)" in shown[0]


def test_it_joins_an_open_incident_as_evidence_and_raises_nothing(ward: OpenWard) -> None:
    w = ward(nodes=4)
    w.says(w.nodes[0], 63)
    before = w.incident(w.nodes[0]) if w.incidents(w.nodes[0]) else None
    if before is None:
        w.until(lambda: bool(w.incidents(w.nodes[0])))
        before = w.incident(w.nodes[0])
    hears(w, w.nodes[0], 79)
    after = w.incident(w.nodes[0])
    assert any(line.startswith("unconfirmed: xid.79") for line in after.evidence)
    unchanged = ("fault", "remedy", "least", "others", "beside", "seen_at", "shown_at", "needs_human", "relapse")
    assert [getattr(after, name) for name in unchanged] == [getattr(before, name) for name in unchanged]


def test_it_pushes_no_proven_evidence_out(ward: OpenWard) -> None:
    w = ward(nodes=4)
    w.says(w.nodes[0], 63)
    w.until(lambda: bool(w.incidents(w.nodes[0])))
    first = w.incident(w.nodes[0]).evidence
    for number in range(100, 100 + 2 * KEEP_EVIDENCE):
        hears(w, w.nodes[0], number)
    evidence = w.incident(w.nodes[0]).evidence
    assert evidence[: len(first)] == first
    assert len(evidence) <= KEEP_EVIDENCE


def test_it_makes_no_repair_a_failed_one(ward: OpenWard) -> None:
    w = ward(nodes=4)
    w.sick(w.nodes[0])
    w.reaches(w.nodes[0], "VERIFYING")
    hears(w, w.nodes[0], 79)
    w.rests()
    assert w.rungs(w.nodes[0]) == ["reboot"]
    assert w.phase(w.nodes[0]) == "RELEASED"


def test_it_trips_no_brake(ward: OpenWard) -> None:
    w = ward(nodes=16)
    for node in w.nodes:
        hears(w, node, 79)
    w.run(600)
    assert not w.told("brake")
    assert not w.incidents()


def test_a_real_fault_after_it_is_treated_as_ever(ward: OpenWard) -> None:
    w = ward(nodes=4)
    for _ in range(3):
        hears(w, w.nodes[0], 79)
    w.sick(w.nodes[0])
    w.rests()
    assert w.rungs(w.nodes[0]) == ["reboot"]


def test_what_an_agent_says_of_itself_stands_in_the_nodes_story(ward: OpenWard) -> None:
    """That the ring cannot be read was told to the controller and to nobody else."""
    w = ward(nodes=4)
    w.world.observe(w.nodes[0], "probe.failed", {}, "devkmsg cannot be read: not permitted")
    w.world.observe(w.nodes[0], "agent.lines_lost", {"lost": 7}, "7 lines of the kernel log were overwritten")
    w.run(30)
    assert not w.incidents()
    assert "devkmsg cannot be read: not permitted" in w.story(w.nodes[0])
    assert "7 lines of the kernel log were overwritten" in w.story(w.nodes[0])
