"""The pairwise search: every bad node is named, no healthy one is ever blamed, and doubt is said."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sickbay.agent.checks.pairwise import PairTried, PairwiseVerdict, Round, first_round, rounds, second_round, verdict
from sickbay.model.errors import BadInput


def nodes(count: int) -> list[str]:
    return [f"n{number}" for number in range(count)]


def search(names: list[str], bad: set[str]) -> PairwiseVerdict:
    steps = rounds(names)
    try:
        step = next(steps)
        while True:
            step = steps.send([PairTried(pair=pair, passed=(bad.isdisjoint(pair),)) for pair in step.pairs])
    except StopIteration as end:
        found: PairwiseVerdict = end.value
        return found


@st.composite
def sick(draw: st.DrawFn) -> tuple[list[str], set[str]]:
    names = nodes(draw(st.integers(2, 60)))
    order = draw(st.permutations(names))
    return list(order), set(draw(st.permutations(names))[: draw(st.integers(0, (len(names) - 1) // 2))])


@given(sick())
def test_any_bad_nodes_fewer_than_half_are_named_exactly(case: tuple[list[str], set[str]]) -> None:
    names, bad = case
    found = search(names, bad)
    assert set(found.bad) == bad
    assert set(found.good) == set(names) - bad
    assert found.unknown == {}


@given(st.integers(0, 30), st.sets(st.integers(0, 29)))
def test_never_blames_a_healthy_node_however_many_are_bad(count: int, bad: set[int]) -> None:
    names = nodes(count)
    sick_ones = {f"n{number}" for number in bad} & set(names)
    found = search(names, sick_ones)
    assert set(found.bad) <= sick_ones
    assert set(found.good).isdisjoint(sick_ones)
    assert {*found.bad, *found.good, *found.unknown} == set(names)


@pytest.mark.slow
@given(st.integers(2, 41), st.data())
def test_flaky_and_missing_results_never_crash_and_everybody_is_in_one_place(count: int, data: st.DataObject) -> None:
    names = nodes(count)
    anything = st.lists(st.booleans(), max_size=3).map(tuple)

    def some(step: Round) -> list[PairTried]:
        return [PairTried(pair=pair, passed=data.draw(anything)) for pair in step.pairs if data.draw(st.booleans())]

    first = some(first_round(names))
    found = verdict(names, first, some(second_round(names, first)))
    assert sorted([*found.bad, *found.good, *found.unknown]) == sorted(names)


@given(st.integers(0, 41), st.data())
def test_no_node_is_in_two_pairs_of_one_wave(count: int, data: st.DataObject) -> None:
    names = nodes(count)
    opening = first_round(names)
    first = [PairTried(pair=pair, passed=(data.draw(st.booleans()),)) for pair in opening.pairs]
    for step in (opening, second_round(names, first)):
        for wave in step.waves:
            flat = [node for pair in wave for node in pair]
            assert len(flat) == len(set(flat))


def test_an_odd_number_tries_the_last_three_each_with_each() -> None:
    assert first_round(nodes(3)).pairs == (("n0", "n1"), ("n1", "n2"), ("n2", "n0"))
    assert first_round(nodes(5)).waves[0] == (("n0", "n1"), ("n2", "n3"))
    assert search(nodes(3), {"n1"}).bad == ("n1",)


def test_where_nobody_passes_nobody_is_blamed() -> None:
    for found in (search(nodes(2), {"n0"}), search(nodes(6), set(nodes(6)))):
        assert found.bad == ()
        assert found.because.startswith("cannot tell: no pair passed")
    assert search(["n0"], set()).unknown == {"n0": "it has no partner to be tried with"}
    assert search([], set()) == PairwiseVerdict()


def test_all_well_blames_something_else() -> None:
    assert search(nodes(4), set()).because.startswith("every node works with another")


def test_who_passes_only_now_and_then_is_not_blamed() -> None:
    first = [PairTried(pair=("n0", "n1"), passed=(False, True)), PairTried(pair=("n2", "n3"), passed=(True,))]
    assert second_round(nodes(4), first).pairs == (("n0", "n2"), ("n1", "n3"))
    second = [PairTried(pair=("n0", "n2"), passed=(False, True)), PairTried(pair=("n1", "n3"), passed=(True,))]
    found = verdict(nodes(4), first, second)
    assert (found.bad, found.good) == ((), ("n2", "n3", "n1"))
    assert found.unknown == {"n0": "it passes at one time and fails at another"}


def test_one_failure_alone_is_no_blame() -> None:
    first = [PairTried(pair=("n0", "n1")), PairTried(pair=("n2", "n3"), passed=(True,))]
    second = [PairTried(pair=("n0", "n2"), passed=(False,)), PairTried(pair=("n1", "n3"), passed=(True,))]
    assert verdict(nodes(4), first, second).bad == ()


def test_more_suspects_than_good_nodes_come_one_after_the_other() -> None:
    first = [PairTried(pair=pair, passed=(number == 0,)) for number, pair in enumerate(first_round(nodes(10)).pairs)]
    step = second_round(nodes(10), first)
    assert [len(wave) for wave in step.waves] == [2, 2, 2, 2]
    assert len(step.pairs) == 8


def test_a_node_that_is_named_twice_is_refused() -> None:
    with pytest.raises(BadInput, match="twice"):
        first_round(["n0", "n0"])
