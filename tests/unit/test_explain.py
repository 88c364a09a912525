"""sickbay explain: why nothing happens, until when, and what would change that."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from sickbay.adapters.stores.memory import MemoryStore
from sickbay.brain.showing import state_of
from sickbay.faces.archive import Archive
from sickbay.faces.explain import explain
from sickbay.faces.story import weave
from sickbay.model.errors import BadInput
from sickbay.model.fleet import AgentState, Node, NodeId
from sickbay.model.policy import Policy, Window
from sickbay.model.rows import Line
from sickbay.policy.load import digest, load_policy
from sickbay.sim.scenarios import NAMED, JobPlan, Scenario, perform, stage
from sickbay.sim.schedule import EPOCH
from sickbay.sim.simulation import Simulation
from sickbay.sim.timeline import LoseNode, NodeMoment, OperatorOrder, Outage, StrikeDevice

MINUTE = timedelta(minutes=1)


def after(minutes: float, scenario: Scenario | str, policy: Policy | None = None) -> Simulation:
    found = NAMED[scenario] if isinstance(scenario, str) else scenario
    sim = stage(found, policy=policy)
    sim.run(minutes * 60)
    return sim


def told(sim: Simulation, name: str) -> dict[str, Any]:
    """As the API and `--json` show it."""
    shown: dict[str, Any] = msgspec.json.decode(
        msgspec.json.encode(explain(sim.store, name, {digest(sim.policy): sim.policy}))
    )
    return shown


def waits(sim: Simulation, name: str) -> dict[str, Any]:
    found = told(sim, name)["waits_for"]
    assert isinstance(found, dict)
    return found


def test_a_held_node_waits_for_an_operator_and_says_which_words_help() -> None:
    sim = after(240, "cured-by-nothing")
    (incident,) = sim.incidents()
    answer = told(sim, "train-0000")
    assert answer["state"] == "HELD"
    assert answer["incident"] == incident.id
    waiting = answer["waits_for"]
    assert waiting["because"].startswith("a person must decide: no repair is left to try: xid.79 asks for ")
    commands = [one["command"] for one in waiting["ways_out"]]
    for verb in ("confirm", "escalate", "dismiss"):
        assert f'sickbay {verb} {incident.id} --reason "WHY"' in commands
    assert waiting["then"] == "a person is reminded"
    assert waiting["until"]["about"].startswith("2026-01-01T12:")
    assert waiting["budget"]["held"] == 1


def test_a_waiting_job_names_the_nodes_that_keep_it_waiting() -> None:
    sim = after(11, "no-spare")
    (incident,) = sim.incidents()
    answer = told(sim, "train")
    assert answer["state"] == "QUEUED"
    assert answer["because"] == "needs 2 nodes of sim/train, 1 can be claimed"
    assert answer["waits_for"]["changed_by"] == [f"sim/train-0000 can be used again ({incident.id} REPAIRING: xid.79)"]
    (interruption,) = answer["interruptions"]
    assert interruption["incidents"] == [incident.id]
    assert interruption["stages"]["first_step"] is None


def test_a_job_that_waits_for_another_names_it() -> None:
    jobs = (JobPlan(name="first", nodes=4), JobPlan(name="second", nodes=1, at=3 * MINUTE))
    sim = after(5, Scenario(jobs=jobs))
    assert "job first leaves sim/train-0000" in waits(sim, "second")["changed_by"]


def test_a_withheld_repair_is_told_as_would_have_with_the_opening_of_its_window() -> None:
    closed = replace(load_policy("default"), windows=(Window(start="02:00", end="04:00"),))
    sim = after(20, "standard", closed)
    waiting = waits(sim, "train-0000")
    assert waiting["would"] == "reboot it, check it, put it back to work"
    assert waiting["because"] == "repairs wait for the maintenance window, which opens at 2026-01-01 02:00 UTC"
    assert waiting["until"]["about"].startswith("2026-01-01T02:00")
    assert waiting["ways_out"][0]["what"] == "the maintenance window of sim/train opens at 2026-01-01 02:00 UTC"
    assert waiting["ways_out"][1]["command"] == 'sickbay reboot sim/train-0000 --now --reason "WHY"'


def test_a_pause_is_named_with_who_can_take_it_back() -> None:
    pause = OperatorOrder(at=MINUTE, verb="pause", args={"seconds": "7200"})
    standard = NAMED["standard"]
    sim = after(20, replace(standard, timeline=(pause, *standard.timeline)))
    waiting = waits(sim, "train-0000")
    cordon = "cordon sim/train-0000, move its jobs off, reboot it, check it, put it back to work"
    assert waiting["would"] == cordon  # the repair that would follow is named, too
    taken_back = waiting["ways_out"][0]
    assert "pause by operator" in taken_back["what"]
    assert taken_back["what"].endswith("it ends at 2026-01-01 02:01 UTC")
    assert taken_back["command"] == 'sickbay unpause --reason "WHY"'


def test_a_braked_storm_says_that_the_brake_is_on_and_how_it_goes_off() -> None:
    sim = after(15, "storm")
    braked = [i for i in sim.incidents() if i.phase == "SUSPECT"]
    assert len(braked) > 3
    for incident in braked:
        answer = told(sim, incident.id)
        assert "the brake is on" in answer["waits_for"]["because"]
        reset, quiet, order, vouch = answer["waits_for"]["ways_out"]
        assert order["command"] == f'sickbay reset {incident.node} --reason "WHY"'
        assert reset["command"] == 'sickbay brake reset xid.119 --scope pool:sim/train --reason "WHY"'
        assert quiet["what"].startswith("the brake goes off by itself about 2026-01-01 00:5")
        assert answer["waits_for"]["until"]["about"].startswith("2026-01-01T00:5")  # not the next reminder
        assert vouch["command"] == f'sickbay dismiss {incident.id} --reason "WHY"'
        assert told(sim, incident.node)["state"] == "SUSPECT"


def test_an_order_is_no_way_out_of_a_brake_while_a_pause_would_hold_it_too() -> None:
    storm = NAMED["storm"]
    pause = OperatorOrder(at=14 * MINUTE, verb="pause", args={"seconds": "3600"})
    sim = after(15, replace(storm, timeline=(pause, *storm.timeline)))
    braked = next(i for i in sim.incidents() if i.phase == "SUSPECT")
    commands = [way["command"] for way in told(sim, braked.id)["waits_for"]["ways_out"]]
    assert any("unpause" in command for command in commands)
    assert not any(command.startswith("sickbay reset") for command in commands)


def test_a_node_in_repair_waits_for_proof_and_shows_the_budget_with_its_limits() -> None:
    sim = after(12, "standard")
    waiting = waits(sim, "train-0000")
    assert waiting["because"] == "waiting for proof of reboot"
    assert waiting["changed_by"][0] == "reboot of sim/train-0000 is proven: it is seen under a new boot"
    budget = waiting["budget"]
    assert (budget["out"], budget["may_be_out"], budget["repairing"], budget["may_be_repairing"]) == (1, 1, 1, 1)


def test_a_budget_without_its_policy_claims_no_limit() -> None:
    sim = after(12, "standard")
    budget = msgspec.json.decode(msgspec.json.encode(explain(sim.store, "train-0000")))["waits_for"]["budget"]
    assert (budget["out"], budget["may_be_out"]) == (1, None)


def test_a_cluster_that_hangs_is_named_and_its_deadlines_stand_still() -> None:
    sim = after(40, "outage")
    waiting = waits(sim, "train-0000")
    assert any(note.startswith("cluster sim has not answered since 2026-01-01 00:11") for note in waiting["notes"])
    assert waiting["until"]["stands_since"].startswith("2026-01-01T00:11")
    assert any("is not known" in note for note in waiting["notes"])


def test_what_is_over_or_well_waits_for_nothing() -> None:
    scenario = NAMED["standard"]
    sim = stage(scenario)
    perform(sim, scenario, 0)
    (incident,) = sim.incidents()
    for name in ("train", "train-0000", incident.id):
        assert told(sim, name)["waits_for"] is None
    assert told(sim, "train-0000")["state"] == "READY"


def test_an_incidents_story_goes_from_the_first_symptom_to_the_first_new_step() -> None:
    scenario = NAMED["standard"]
    sim = stage(scenario)
    perform(sim, scenario, 0)
    (incident,) = sim.incidents()
    events = [line["event"] for line in told(sim, incident.id)["story"]]
    assert events[0] == "opened"
    assert {"call", "first_step", "release"} <= set(events)
    assert "complete" not in events  # the job's end is not this incident's story


def test_a_withdrawn_agent_leaves_its_node_unknown() -> None:
    scenario = Scenario(timeline=(NodeMoment(at=MINUTE, do="lose_agent", node="train-0002"),))
    sim = stage(scenario)
    sim.run_until(lambda: sim.node(NodeId("sim/train-0002")).agent is AgentState.SILENT, 600)
    assert told(sim, "train-0002")["state"] == "UNKNOWN"


def test_another_ones_cordon_is_named() -> None:
    sim = after(5, Scenario(timeline=(NodeMoment(at=MINUTE, do="others_cordon", node="train-0002"),)))
    answer = told(sim, "train-0002")
    assert (answer["state"], answer["schedulable"]) == ("OUT", False)
    assert answer["waits_for"]["changed_by"] == ["maintenance takes its cordon back"]


def test_the_keys_of_each_kind_are_the_documented_ones() -> None:
    sim = after(12, "standard")
    (incident,) = sim.incidents()
    wanted = {
        "train-0000": "id pool state schedulable boot_id instance_id devices job incident because",
        "train": "id name state attempt restarts nodes step resumed_from diagnosis interruptions because",
        incident.id: "id node fault remedy phase opened_at closed_at stages jobs because",
    }
    for name, keys in wanted.items():
        assert set(f"{keys} story waits_for".split()) <= set(told(sim, name))
    answer = told(sim, incident.id)
    assert set(answer["fault"]) == {"code", "component", "severity", "evidence"}
    assert all(set(stage) == {"phase", "entered_at", "seconds", "because"} for stage in answer["stages"])


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("trian", "did you mean train"),
        ("train-001", "train-0001"),
        ("incident:train", "there is no node, job or incident"),
        ("zzzzzz", "there are train-0000"),
    ],
)
def test_an_unknown_name_is_one_line_with_the_closest_names(name: str, says: str) -> None:
    sim = after(3, "standard")
    with pytest.raises(BadInput) as refused:
        told(sim, name)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_name_that_means_two_things_must_be_said_in_full() -> None:
    standard = NAMED["standard"]
    twin = replace(standard.jobs[0], name="sim/train-0003")
    sim = after(3, replace(standard, jobs=(twin,), timeline=()))
    with pytest.raises(BadInput, match=r"node:sim/train-0003 or job:sim/train-0003"):
        told(sim, "sim/train-0003")
    assert told(sim, "job:sim/train-0003")["kind"] == "job"
    assert told(sim, "node:train-0003")["kind"] == "node"


@pytest.mark.slow
def test_every_open_thing_can_be_explained_at_any_moment() -> None:
    """Whatever goes on, the answer has a reason and at least one thing that would change it."""
    storm = NAMED["storm"]
    more = (
        LoseNode(at=20 * MINUTE, node="train-0001", zombie=True),
        Outage(at=25 * MINUTE, lasts=10 * MINUTE, hangs=True),
        StrikeDevice(at=30 * MINUTE, node="train-0002", code="xid.31"),
    )
    sim = stage(replace(storm, timeline=(*storm.timeline, *more)))
    for _ in range(60):
        sim.run(90)
        things: list[str] = [i.id for i in sim.incidents(intake=True) if i.open]
        things += [j.id for j in sim.jobs() if j.open]
        for thing in things:
            waiting = waits(sim, thing)
            assert waiting["because"]
            assert waiting["changed_by"], (sim.scheduler.now, thing, waiting)


def test_the_state_of_a_node_is_the_worst_that_is_true() -> None:
    node = after(1, "standard").node(NodeId("sim/train-0000"))
    silent = replace(node, agent=AgentState.SILENT)
    cases: list[tuple[Node, str]] = [
        (node, "READY"),
        (silent, "UNKNOWN"),
        (replace(silent, ready=False), "LOST"),
        (replace(node, incarnation=None), "OUT"),
        (replace(node, cordons=("other:maintenance",)), "OUT"),
    ]
    assert [state_of(one, None) for one, _ in cases] == [state for _, state in cases]


def test_lines_of_several_subjects_come_once_and_in_every_subjects_own_order() -> None:
    def line(text: str, *subjects: str, second: int = 0) -> Line:
        return Line(subjects=subjects, at=EPOCH + timedelta(seconds=second), text=text)

    first, both, last = line("x", "a"), line("both", "b", "a"), line("y", "b", second=1)
    other = line("z", "b")
    woven = weave({"b": [other, both, last], "a": [first, both]})
    assert sorted(woven, key=woven.index) == woven
    assert woven.count(both) == 1
    assert len(woven) == 4
    assert woven.index(first) < woven.index(both)
    assert woven.index(other) < woven.index(both) < woven.index(last)


def test_an_empty_store_says_so() -> None:
    with pytest.raises(BadInput, match="there is none at all"):
        explain(MemoryStore(), "train")
    assert Archive(MemoryStore()).as_of is None


def test_what_is_watched_says_what_would_make_it_worse_and_that_it_is_dismissed_else() -> None:
    strike = StrikeDevice(at=2 * MINUTE, node="train-0002", code="xid.31")
    sim = after(4, Scenario(timeline=(strike,)))
    watched = next(i for i in sim.incidents() if i.phase == "WATCHED")
    waiting = waits(sim, watched.id)
    assert waiting["changed_by"][0] == "xid.31 shows itself again, or something worse does"
    assert waiting["then"] == "it is dismissed"
