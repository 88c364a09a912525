"""sickbay explain at 3 a.m.: the present first, each way out with its command, then the last chapter."""

import shlex
from datetime import timedelta
from typing import Any

import click
import msgspec
import pytest
from click.testing import CliRunner
from msgspec.structs import replace
from tests.unit.test_explain import MINUTE, after, told, waits

from sickbay.adapters.stores.memory import MemoryStore
from sickbay.faces.chapters import StorySpan, span_of
from sickbay.faces.cli.explain import folded
from sickbay.faces.cli.main import main
from sickbay.faces.cli.show import told_of
from sickbay.faces.explain import explain, told_lines
from sickbay.faces.words import WORDS, words_in
from sickbay.model.errors import BadInput
from sickbay.model.fleet import Incarnation, Node, NodeId
from sickbay.model.incident import Phase
from sickbay.model.job import JobState
from sickbay.model.policy import FaultRule, Mode, Policy
from sickbay.model.rows import Line, Unit
from sickbay.policy.load import load_policy
from sickbay.sim.scenarios import NAMED, Scenario, perform, stage
from sickbay.sim.schedule import EPOCH
from sickbay.sim.simulation import Simulation
from sickbay.sim.timeline import OperatorOrder, StrikeDevice

LINES = 10_000


def ways(found: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one["what"], one["command"]) for one in found["ways_out"]]


def parsed(command: str) -> None:
    """Raises click's own refusal of what cannot be pasted."""
    name, *args = shlex.split(command)
    assert name == "sickbay"
    found: click.Command = main
    while isinstance(found, click.Group):
        sub = found.get_command(click.Context(found), args.pop(0))
        assert sub is not None, command
        found = sub
    found.make_context(found.name, args)


def recommend() -> Policy:
    policy = load_policy("default")
    return replace(policy, faults=(FaultRule(mode=Mode.RECOMMEND), *policy.faults))


def test_the_node_that_uses_the_budget_is_named_with_the_command_that_brings_it_back() -> None:
    cordoned = OperatorOrder(at=MINUTE, verb="cordon", node="train-0003")
    drained = OperatorOrder(at=MINUTE, verb="drain", node="train-0002")
    standard = NAMED["standard"]
    sim = after(15, replace(standard, timeline=(cordoned, drained, *standard.timeline)))
    budget = waits(sim, "train-0000")["budget"]
    assert {seat["node"] for seat in budget["used_by"]} <= {"sim/train-0000", "sim/train-0002", "sim/train-0003"}
    held = next(seat for seat in budget["used_by"] if seat["node"] == "sim/train-0003")
    assert "a person must decide" in held["because"]
    assert held["command"] == 'sickbay uncordon sim/train-0003 --reason "WHY"'


def test_what_the_policy_only_recommends_names_the_repair_and_the_order_that_does_it() -> None:
    sim = after(15, "standard", recommend())
    found = waits(sim, "train-0000")
    assert found["would"] == "cordon sim/train-0000, move its jobs off, reboot it, check it, put it back to work"
    what, command = ways(found)[0]
    assert "recommend" in what
    assert "reboot it" in what
    assert command == 'sickbay reboot sim/train-0000 --reason "WHY"'


def test_a_waiting_job_tells_its_nodes_incident_and_what_that_waits_for() -> None:
    sim = after(240, replace(NAMED["cured-by-nothing"], jobs=(replace(NAMED["no-spare"].jobs[0], nodes=2),), nodes=2))
    (incident,) = sim.incidents()
    assert incident.phase is Phase.HELD
    (behind,) = waits(sim, "train")["behind"]
    assert (behind["about"], behind["node"], behind["state"]) == (incident.id, incident.node, "HELD")
    repaired = "it is repaired: it is checked, and returns if it passes"
    assert (repaired, f'sickbay confirm {incident.id} --reason "WHY"') in ways(behind)


def test_a_job_of_a_braked_storm_knows_when_the_brake_goes_off() -> None:
    sim = after(15, "storm")
    braked = next(i for i in sim.incidents() if i.phase is Phase.SUSPECT)
    found = waits(sim, braked.id)
    assert found["then"].startswith("the brake goes off by itself")
    assert found["until"]["about"] < "2026-01-01T01:30"
    assert f'sickbay reset {braked.node} --reason "WHY"' in [command for _, command in ways(found)]


@pytest.mark.parametrize(
    ("name", "minutes"),
    [("standard", 12), ("storm", 15), ("held", 120), ("no-spare", 11)],
)
def test_every_command_that_is_shown_can_be_pasted(name: str, minutes: float) -> None:
    sim = after(minutes, name)
    subjects = [*(i.id for i in sim.incidents(intake=True)), *(j.id for j in sim.jobs()), *sim.nodes]
    shown = [waiting for subject in subjects if (waiting := told(sim, subject)["waits_for"]) is not None]
    found = [one for each in shown for one in [each, *each["behind"]]]
    commands = {command for each in found for _, command in ways(each) if command}
    commands |= {seat["command"] for each in shown for seat in each["budget"]["used_by"] if seat["command"]}
    assert commands
    for command in commands:
        parsed(command)


def test_the_present_is_one_sentence_with_its_subject_in_front() -> None:
    sim = after(12, "standard")
    (incident,) = sim.incidents()
    healing = f"{incident.id} is REPAIRING: sim/train-0000 is out of service for xid.79"
    assert told(sim, incident.id)["now"].startswith(healing)
    out = f"sim/train-0000 is OUT ({incident.id} REPAIRING): it is out of service for xid.79"
    assert told(sim, "train-0000")["now"].startswith(out)
    assert told(sim, "train")["now"].startswith("train is ")
    assert told(sim, "train-0003")["now"] == "sim/train-0003 is READY: it is fit for work and is idle."


def ended(scenario: Scenario) -> Simulation:
    sim = stage(scenario)
    perform(sim, scenario, 0)
    return sim


def test_a_node_tells_its_last_incident_and_how_much_came_before() -> None:
    standard = NAMED["standard"]
    again = StrikeDevice(at=3 * 60 * MINUTE, node="train-0000", code="xid.79")
    sim = stage(replace(standard, timeline=(*standard.timeline, again)))
    sim.run(5 * 3600)
    first, second = sorted(sim.incidents(), key=lambda one: one.opened_at)
    answer = told(sim, "train-0000")
    assert answer["chapter"] == f"incident {second.id}"
    assert {line["about"] for line in answer["story"]} >= {f"incident:{second.id}"}
    assert f"incident:{first.id}" not in {line["about"] for line in answer["story"]}
    assert answer["earlier"]["lines"] > 0
    assert answer["earlier"]["incidents"] >= 1
    whole = msgspec.to_builtins(explain(sim.store, "train-0000", span=StorySpan(all=True)))
    assert {f"incident:{first.id}", f"incident:{second.id}"} <= {line["about"] for line in whole["story"]}
    assert whole["earlier"] == {"lines": 0, "incidents": 0, "since": None}
    since = span_of("2026-01-01T03:00", None)
    assert [line["about"] for line in msgspec.to_builtins(explain(sim.store, "train-0000", span=since))["story"]][
        :1
    ] == [f"incident:{second.id}"]


def test_a_job_tells_its_last_interruption() -> None:
    standard = NAMED["standard"]
    again = StrikeDevice(at=20 * MINUTE, node="train-0001", code="xid.79")
    endless = replace(standard.jobs[0], steps=100_000)
    sim = stage(replace(standard, timeline=(*standard.timeline, again), jobs=(endless,)))
    sim.run(45 * 60)
    (job,) = sim.jobs()
    assert (job.state, len(job.interruptions)) == (JobState.RUNNING, 2)
    answer = told(sim, "train")
    assert answer["chapter"] == "the interruption of attempt 2"
    assert answer["story"][0]["at"] >= "2026-01-01T00:20"
    assert answer["earlier"]["lines"] > 5


@pytest.mark.parametrize("since", ["yesterday", "2026-13-01", "2h1d", "-5m"])
def test_a_time_that_is_none_is_refused_with_what_to_write(since: str) -> None:
    with pytest.raises(BadInput, match="write a time such as"):
        span_of(since, EPOCH)


def test_a_time_is_a_moment_or_so_long_ago() -> None:
    assert span_of("2h", EPOCH).since == EPOCH - timedelta(hours=2)
    assert span_of("2026-01-01T00:30", EPOCH).since == EPOCH + timedelta(minutes=30)
    with pytest.raises(BadInput, match="exclude each other"):
        span_of("2h", EPOCH, everything=True)


def long_history(lines: int) -> MemoryStore:
    """A node that has been ill and well again for years."""
    store = MemoryStore()
    lease = store.lease("test", 60.0)
    assert lease is not None
    node = Node(id=NodeId("sim/old"), cluster="sim", pool="sim/train", incarnation=Incarnation(uid="u"))
    store.commit(Unit(writes={"node:sim/old": node}), lease.epoch)
    for begin in range(0, lines, 40):
        story = tuple(
            Line(subjects=("node:sim/old", f"incident:i{n // 10}"), at=EPOCH + timedelta(minutes=n), text=f"line {n}")
            for n in range(begin, begin + 40)
        )
        store.commit(Unit(story=story), lease.epoch)
    return store


def test_a_node_with_years_of_history_is_answered_within_bounds() -> None:
    store = long_history(LINES)
    for span in (StorySpan(), StorySpan(all=True), StorySpan(since=EPOCH)):
        answer = explain(store, "old", span=span)
        assert 0 < len(answer.story) <= 2000
        assert answer.story[-1].text == f"line {LINES - 1}"


def test_lines_that_say_the_same_again_and_again_are_one() -> None:
    def boot(number: int) -> Line:
        return Line(subjects=("node:sim/a",), at=EPOCH, text=f"rebooted (boot {number})", event="incarnation")

    other = Line(subjects=("node:sim/a",), at=EPOCH, text="the agent is silent", event="silent")
    shown = folded([told_of(msgspec.to_builtins(line)) for line in told_lines([*map(boot, range(5)), other, boot(0)])])
    last = "rebooted (boot 4) (the last of 5 times)"
    assert [one.text for one in shown] == [last, "the agent is silent", "rebooted (boot 0)"]


def test_the_words_of_an_answer_are_explained_and_no_others() -> None:
    found = words_in({"because": "sim/n0 is HELD: the brakes are on", "stages": {"claim": None}})
    assert list(found) == ["HELD", "brake"]
    states = {*(phase.value for phase in Phase), *(state.value for state in JobState)}
    assert states <= WORDS.keys()


def test_a_simulation_can_be_explained_with_its_words_and_from_a_time_on() -> None:
    def shown(*args: str) -> str:
        result = CliRunner().invoke(main, ["explain", "train", "--sim", "no-spare", "--at", "11m", *args])
        assert result.exit_code == 0, result.output
        return result.stdout

    text = shown("--words")
    assert text.startswith("train is QUEUED: ")
    assert text.index("What would change that") < text.index("Story") < text.index("Words")
    assert "sickbay hold i15" in text
    assert "earlier lines: sickbay explain train --all" in text
    assert "earlier" not in shown("--all")
    assert "Story: since 2026-01-01T00:10:2" in shown("--since", "55s")
    both = CliRunner().invoke(main, ["explain", "train", "--sim", "no-spare", "--all", "--since", "1h"])
    assert both.exit_code == 2
    assert "exclude each other" in both.output
