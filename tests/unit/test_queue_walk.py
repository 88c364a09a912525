"""The walk along a queue: what is kept for whom, whatever shapes nodes have and whoever chooses which."""

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest

from sickbay.brain.queue import Claimable, Pile, Piles, QueueTicket, QueueTurn, fits, walk
from sickbay.model.fleet import JobId, NodeId

BIG, SMALL = (8, 8, True, True), (4, 4, True, True)
BIG_BUSY, SMALL_BUSY = (0, 8, False, True), (0, 4, False, True)
DEAF = (8, 8, True, False)  # no agent was ever heard there


def ticket(job: str, nodes: int, **more: object) -> QueueTicket:
    fields = {"wanted": 8, "heard": False, "most": nodes, "need": nodes, **more}
    return QueueTicket(job=JobId(job), **fields)  # type: ignore[arg-type]


def turns(piles: Piles, *tickets: QueueTicket, releases: Sequence[tuple[float, Piles]] = ()) -> dict[str, QueueTurn]:
    free = Claimable(piles=dict(piles))
    return {turn.job: turn for turn in walk(tickets, free, releases, sum(piles.values()), {})}


def test_what_becomes_free_and_is_too_small_for_the_head_is_no_reason_to_lend_its_nodes() -> None:
    piles = {BIG: 1, BIG_BUSY: 1, SMALL_BUSY: 4}
    said = turns(piles, ticket("head", 2), ticket("s", 1), releases=[(3600.0, {SMALL: 4})])
    assert said["head"].head
    assert not said["s"].begins


def test_nodes_of_one_who_should_be_over_and_is_not_are_not_lent_in_advance() -> None:
    piles = {BIG: 2, BIG_BUSY: 4}
    said = turns(piles, ticket("head", 3), ticket("s", 1), releases=[(0.0, {BIG: 4})])
    assert not said["s"].begins
    said = turns(piles, ticket("head", 3), ticket("s", 1), releases=[(60.0, {BIG: 4})])
    assert said["s"].begins


def test_a_job_that_only_its_own_nodes_will_do_for_keeps_no_others() -> None:
    said = turns({BIG: 4}, ticket("own", 2, spares=False), ticket("s", 1))
    assert said["s"].begins


def test_a_job_that_too_few_agents_could_check_keeps_nobody_waiting() -> None:
    said = turns({BIG: 2, DEAF: 2}, ticket("head", 3, heard=True), ticket("s", 1, heard=True))
    assert said["head"].hopeless
    assert said["s"].begins


def test_a_job_that_names_a_node_that_does_not_come_back_keeps_no_other() -> None:
    nodes = (NodeId("c/n0"), NodeId("c/n1"))
    free = Claimable(piles={BIG: 1})
    named = ticket("named", 2, on=nodes, away=True)
    said = list(walk([named, ticket("s", 1)], free, [], 1, {nodes[1]: BIG}))
    assert [turn.begins for turn in said] == [False, True]


def test_the_spare_of_a_job_that_shares_nodes_is_not_lent_for_what_is_left_of_its_own() -> None:
    shared = (7, 8, False, True)
    piles = {shared: 2, BIG: 1, BIG_BUSY: 1}
    lacks = ticket("lacks", 3, wanted=1, mine=2, own=((shared, 2),), keeps=True, waits=False)
    said = turns(piles, lacks, ticket("s", 1, wanted=0))
    assert said["lacks"].kept == 1
    assert not said["s"].begins
    name = NodeId("c/n0")
    named = ticket("named", 1, wanted=0, on=(name,))
    found = list(walk([lacks, named], Claimable(piles=dict(piles)), [], 4, {name: BIG}))
    assert [turn.begins for turn in found] == [False, False]


def test_reservations_of_nothing_do_not_make_the_walk_long() -> None:
    free = Claimable(piles={BIG_BUSY: 4000})
    list(walk([ticket(f"j{n}", 2, mine=2, keeps=True) for n in range(2000)], free, [], 4000, {}))
    assert len(free.reserves) <= 1


# --- whatever they choose


def _random_tickets(rng: Random) -> list[QueueTicket]:
    found = []
    for n in range(rng.randint(2, 6)):
        most = rng.randint(1, 4)
        keeps = n < 2 and rng.random() < 0.4
        need = rng.randint(1, most) if keeps else most
        wanted, heard = rng.choice([0, 2, 4, 8]), rng.random() < 0.3
        found.append(
            ticket(f"j{n}", most, need=need, wanted=wanted, heard=heard, keeps=keeps, waits=rng.random() < 0.9)
        )
    return sorted(found, key=lambda each: not each.keeps)


def _random_piles(rng: Random) -> dict[Pile, int]:
    piles: Counter[Pile] = Counter()
    for _ in range(rng.randint(1, 8)):
        devices = rng.choice([4, 8])
        free = rng.choice([0, devices // 2, devices, devices])
        piles[free, devices, free == devices, rng.random() < 0.7] += 1
    return dict(piles)


def _take(rng: Random, left: Counter[Pile], ticket: QueueTicket, front: list[QueueTicket], many: int) -> bool:
    """It takes so many nodes: those that nobody in front could use, then any."""
    for _ in range(many):
        fit = [pile for pile, count in left.items() if count and fits(pile, ticket.wanted, heard=ticket.heard)]
        plain = [pile for pile in fit if not any(fits(pile, each.wanted, heard=each.heard) for each in front)]
        if not fit:
            return False
        left[rng.choice(plain or fit)] -= 1
    return True


@pytest.mark.parametrize("seed", range(20))
def test_what_is_kept_is_there_whatever_those_behind_choose(seed: int) -> None:
    for n in range(60):
        rng = Random(1000 * seed + n)
        piles, tickets = _random_piles(rng), _random_tickets(rng)
        said = {t.job: t for t in walk(tickets, Claimable(piles=dict(piles)), [], sum(piles.values()), {})}
        wants = [each for each in tickets if said[each.job].room and (said[each.job].begins or each.keeps)]
        for _ in range(5):
            left = Counter(piles)
            for each in reversed(wants):
                front = wants[: wants.index(each)]
                assert _take(rng, left, each, front, said[each.job].room), (piles, tickets, said)
