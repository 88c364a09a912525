"""Whatever cannot be heard runs out of no time: outages, hangs and jumps of the clock, in every phase."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.support.wards import HOUR, OpenWard, Ward, in_phase

from sickbay.model.errors import StoreUnavailable
from sickbay.model.facts import Fact, Outcome
from sickbay.model.incident import Phase
from sickbay.model.job import JobState
from sickbay.sim.chaos import Odds

OPEN = [p for p in Phase if not p.terminal]


def cluster_out(w: Ward, seconds: float, *, hangs: bool = False) -> None:
    now = w.sim.scheduler.now
    w.sim.mischief.outage("cluster:sim", now, now + seconds, hangs=hangs)


def both_out(w: Ward) -> None:
    cluster_out(w, 2 * HOUR)
    w.world.go_deaf(2 * HOUR)


def about_nodes(w: Ward) -> list[str]:
    """What a human was told, but for the outage itself."""
    return [text for text in w.told() if text not in w.told("unheard")]


OUTAGES: dict[str, Callable[[Ward], None]] = {
    "the cluster's API": lambda w: cluster_out(w, 2 * HOUR),
    "our ear": lambda w: w.world.go_deaf(2 * HOUR),
    "both": both_out,
    "our process": lambda w: w.sim.hosts[0].crash(2 * HOUR),
    "our process stands still": lambda w: w.sim.hosts[0].pause(2 * HOUR),
    "an API that hangs": lambda w: cluster_out(w, HOUR / 2, hangs=True),
    "a clock that jumps forward": lambda w: w.sim.clock.jump(86_400),
    "a clock that jumps back": lambda w: w.sim.clock.jump(-86_400),
}


@pytest.mark.parametrize("outage", OUTAGES)
@pytest.mark.parametrize("phase", OPEN)
def test_no_rung_is_climbed_and_no_deadline_runs_out(ward: OpenWard, phase: Phase, outage: str) -> None:
    w, node = in_phase(ward, phase)
    told = about_nodes(w)
    OUTAGES[outage](w)
    w.run(2 * HOUR + 60)
    w.order("unpause", "")
    w.rests()
    want = {Phase.WATCHED: "DISMISSED", Phase.HELD: "HELD"}.get(phase, "RELEASED")
    assert w.phase(node) == want
    assert len(w.incidents(node)) == 1
    assert w.rungs(node) == ([] if phase in {Phase.WATCHED, Phase.HELD} else ["reboot"])
    assert about_nodes(w) == told
    assert not [n for n in w.nodes[1:] if w.incidents(n)], "nobody else fell ill of it"


@pytest.mark.parametrize("outage", OUTAGES)
def test_a_job_trains_through_it(ward: OpenWard, outage: str) -> None:
    w = ward()
    job = w.running(steps=9000)
    OUTAGES[outage](w)
    w.rests()
    assert w.job(job).state is JobState.COMPLETE
    assert w.job(job).interruptions == ()
    assert w.incidents() == []
    assert about_nodes(w) == []


@pytest.mark.parametrize("outage", ["both", "our process"])
def test_what_breaks_during_an_outage_is_treated_afterwards(ward: OpenWard, outage: str) -> None:
    w = ward()
    job = w.running(steps=9000)
    node = w.nodes[0]
    OUTAGES[outage](w)
    w.run(600)
    w.sick(node)
    w.rests()
    assert w.phase(node) == "RELEASED"
    assert w.rungs(node) == ["reboot"]
    assert w.job(job).state is JobState.COMPLETE


@pytest.mark.parametrize("seed", range(3))
def test_an_outage_in_a_rough_world_ends_like_any_other(ward: OpenWard, seed: int) -> None:
    w = ward(seed=seed, odds=Odds.rough(), nodes=5, cold=seed % 2 == 1)
    w.sick(w.nodes[0])
    w.run(20)
    both_out(w)
    w.rests()
    assert w.phase(w.nodes[0]) in {"RELEASED", "HELD"}


def test_an_outcome_that_the_store_could_not_take_is_covered_by_its_intents_doubt(
    ward: OpenWard, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, and the effect shows itself, or is asked for again under the same key."""
    w = ward(nodes=4)
    node, store = w.nodes[0], w.sim.hosts[0].store
    append, lost = store.append, []

    def fails(facts: Sequence[Fact], *more: Any, **named: Any) -> int:
        outcomes = [fact.news.key for fact in facts if isinstance(fact.news, Outcome)]
        if outcomes and outcomes[0] not in lost:
            lost.extend(outcomes)
            raise StoreUnavailable("the disk is busy")
        return append(facts, *more, **named)

    store.append = fails  # type: ignore[method-assign]
    w.sick(node)
    w.reaches(node, Phase.RELEASED, 3 * HOUR)
    assert lost
    assert {record.message for record in caplog.records} == {"outcome_lost"}
    assert len(w.happened("cordon", node)) == len(w.happened("reboot", node)) == len(w.happened("uncordon", node)) == 1
