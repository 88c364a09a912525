"""Where an attempt may run: never on what another holds, never on what cannot be claimed."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from sickbay.adapters.stores.memory import MemoryStore
from sickbay.brain import place as placing
from sickbay.brain.admit import limit_for
from sickbay.brain.decision import Need, ReadFirst
from sickbay.brain.job_input import JobInput, OutOfReach, Placement
from sickbay.brain.place import NoPlace, to_avoid
from sickbay.engine.job_reads import WATCHED, input_of, supply
from sickbay.engine.view import Draft, Rules, View
from sickbay.knowledge.load import load_tables
from sickbay.model.fault import Fault, Remedy, Scope, Severity
from sickbay.model.fleet import AgentState, Device, Incarnation, IncidentId, JobId, Ledger, Node, NodeId, Roster
from sickbay.model.incident import Incident, IncidentKind, Phase
from sickbay.model.job import Interruption, Job, JobSpec, JobState, RankState
from sickbay.model.policy import Limit, PlaceBy, Policy
from sickbay.model.rows import AnyRow, Unit, key_of
from sickbay.policy.load import load_policy

NOW = datetime(2026, 3, 1, tzinfo=UTC)
TABLES = load_tables()
DEFAULT = load_policy("default")
GPUS = 4
Found = TypeVar("Found", Placement, tuple[NodeId, ...])
SEATS = [NodeId(f"sim/n{n}") for n in range(5)]


def node(n: int, **more: Any) -> Node:
    seat = SEATS[n]
    holder = Incarnation(uid=f"u{n}", instance_id=f"i{n}", boot_id=f"b{n}")
    devices = tuple(Device(index=index) for index in range(GPUS))
    fields: dict[str, Any] = {"incarnation": holder, "devices": devices, "agent": AgentState.HEARD, "claimable": True}
    return Node(id=seat, cluster="sim", pool="sim/train", **{**fields, **more})


def spec(**more: Any) -> JobSpec:
    return JobSpec(name="train", cluster="sim", pool="train", **more)


def job(name: str = "train", **more: Any) -> Job:
    fields: dict[str, Any] = {"spec": spec(nodes=2), **more}
    return Job(id=JobId(name), submitted_at=NOW, **fields)


def draft(*rows: AnyRow, policy: Policy = DEFAULT) -> Draft:
    store = MemoryStore(limits=False)
    lease = store.lease("test", 60.0)
    assert lease is not None
    for row in (*rows, *map(roster, ROSTERS)):
        store.commit(Unit(writes={key_of(row): row}, expect={key_of(row): 0}), lease.epoch)
    rules = Rules(policy=policy, tables=TABLES, policy_digest="", can={"sim": frozenset()}, blind={})
    return Draft(View(store), rules, {}, NOW)


def by(*order: PlaceBy) -> Policy:
    return replace(DEFAULT, resume=replace(DEFAULT.resume, place=order))


def interrupted(*nodes: int) -> tuple[Interruption, ...]:
    """The loss of an attempt on these nodes; its number names their roster, which every draft has."""
    return (Interruption(attempt=_attempt(nodes), cause="", stages={"detected": NOW}, rosters=1),)


def _attempt(nodes: tuple[int, ...]) -> int:
    return int("1" + "".join(map(str, nodes)))


ROSTERS = [(0, 1), (2, 3), (0, 1, 2), (1, 2, 3)]


def roster(nodes: tuple[int, ...]) -> Roster:
    names = tuple(SEATS[n] for n in nodes)
    return Roster(job=JobId("train"), attempt=_attempt(nodes), number=0, at=NOW, nodes=names)


def place(made: Draft, mine: Job) -> Placement | str:
    return _asked(made, mine, lambda s: placing.place(s, made.rules.policy))


def unusable(made: Draft, mine: Job) -> tuple[NodeId, ...] | str:
    return _asked(made, mine, to_avoid)


def _asked(made: Draft, mine: Job, decide: Callable[[JobInput], Found | NoPlace | ReadFirst]) -> Found | str:
    """Decide as the engine does: until nothing more is to be read."""
    s = input_of(made, mine)
    while isinstance(found := decide(s), ReadFirst):
        s = supply(made, s, found)
    return found.because if isinstance(found, NoPlace) else found


def placed(found: Placement | str) -> list[str]:
    assert not isinstance(found, str), found
    return [seat.removeprefix("sim/") for seat in found]


def test_all_that_it_asks_for_or_a_reason() -> None:
    mine = job()
    assert placed(place(draft(node(0), node(1), node(2)), mine)) == ["n0", "n1"]
    assert place(draft(node(0)), mine) == "needs 2 nodes of sim/train, 1 can be claimed"


def test_a_node_that_cannot_be_claimed_is_not() -> None:
    assert placed(place(draft(node(0, claimable=False), node(1), node(2)), job())) == ["n1", "n2"]


def test_what_did_not_answer_comes_last_but_comes() -> None:
    mine = job(avoid=(SEATS[0],))
    assert placed(place(draft(node(0), node(1), node(2)), mine)) == ["n1", "n2"]
    assert placed(place(draft(node(0), node(1)), mine)) == ["n1", "n0"]


@pytest.mark.parametrize(
    ("order", "least", "losses", "found"),
    [
        ((PlaceBy.SPARE, PlaceBy.SAME, PlaceBy.FEWER), 1, interrupted(0, 1), ["n1"]),
        ((PlaceBy.SPARE, PlaceBy.SAME, PlaceBy.FEWER), 1, (), "needs 2 nodes of sim/train, 1 can be claimed"),
        ((PlaceBy.SPARE, PlaceBy.SAME), 1, interrupted(0, 1), "needs 2 nodes of sim/train, 1 can be claimed"),
        ((PlaceBy.SPARE, PlaceBy.FEWER), 0, interrupted(0, 1), "needs 2 nodes of sim/train, 1 can be claimed"),
    ],
)
def test_fewer_nodes_only_for_a_restart_and_only_if_job_and_policy_agree(
    order: tuple[PlaceBy, ...], least: int, losses: tuple[Interruption, ...], found: list[str] | str
) -> None:
    mine = job(spec=spec(nodes=2, min_nodes=least), interruptions=losses)
    answer = place(draft(node(0, claimable=False), node(1), policy=by(*order)), mine)
    assert (answer if isinstance(answer, str) else placed(answer)) == found


def test_the_same_nodes_come_first_where_the_policy_says_so() -> None:
    rows = [node(n) for n in range(4)]
    mine = job(interruptions=interrupted(2, 3))
    assert placed(place(draft(*rows, policy=by(PlaceBy.SAME, PlaceBy.SPARE)), mine)) == ["n2", "n3"]
    assert placed(place(draft(*rows, policy=by(PlaceBy.SPARE, PlaceBy.SAME)), mine)) == ["n0", "n1"]


def test_only_the_same_nodes_where_the_policy_knows_no_spare() -> None:
    mine = job(interruptions=interrupted(2, 3))
    away = draft(node(0), node(1), node(2), node(3, claimable=False), policy=by(PlaceBy.SAME))
    assert place(away, mine) == "waits for its own nodes: sim/n3 cannot be claimed"
    back = draft(node(0), node(1), node(2), node(3), policy=by(PlaceBy.SAME))
    assert placed(place(back, mine)) == ["n2", "n3"]


def test_a_seat_that_is_there_no_more_is_not_waited_for() -> None:
    mine = job(interruptions=interrupted(2, 3))
    found = place(draft(node(0), node(1), node(2), policy=by(PlaceBy.SAME)), mine)
    assert "n2" in placed(found)


def test_named_nodes_are_all_or_nothing_with_the_reason_of_the_first() -> None:
    mine = job(spec=spec(on=(SEATS[0], SEATS[1])))
    other = job("other", state=JobState.RUNNING, claim={SEATS[1]: ()})
    assert place(draft(node(0), node(1, claimable=False)), mine) == "sim/n1 cannot be claimed"
    assert place(draft(node(0), node(1), other), mine) == "sim/n1 is taken"
    assert place(draft(node(0)), mine) == "sim/n1 is not known"
    assert placed(place(draft(node(0), node(1)), mine)) == ["n0", "n1"]


CLAIMS = st.dictionaries(
    st.sampled_from(SEATS),
    st.just(()) | st.sets(st.integers(0, GPUS - 1), min_size=1).map(lambda s: tuple(sorted(s))),
    max_size=3,
)
OTHERS = st.lists(st.tuples(st.sampled_from(JobState), CLAIMS), max_size=4)


@given(
    others=OTHERS,
    claimable=st.lists(st.booleans(), min_size=5, max_size=5),
    wanted=st.builds(
        spec, nodes=st.integers(1, 4), min_nodes=st.integers(0, 3), gpus_per_node=st.integers(0, GPUS),
        on=st.just(()) | st.lists(st.sampled_from(SEATS), min_size=1, max_size=2, unique=True).map(tuple),
    ),
    order=st.lists(st.sampled_from(PlaceBy), min_size=1, unique=True).map(tuple),
    losses=st.just(()) | st.just(interrupted(0, 1, 2)),
    avoid=st.lists(st.sampled_from(SEATS), unique=True, max_size=2).map(tuple),
)  # fmt: skip
def test_no_device_is_ever_claimed_twice(
    others: list[tuple[JobState, Placement]],
    claimable: list[bool],
    wanted: JobSpec,
    order: Any,
    losses: Any,
    avoid: Any,
) -> None:
    assume(wanted.least <= wanted.most)
    rows: list[AnyRow] = [node(n, claimable=free) for n, free in enumerate(claimable)]
    rows += [job(f"o{n}", state=state, claim=claim) for n, (state, claim) in enumerate(others)]
    found = place(draft(*rows, policy=by(*order)), job(spec=wanted, interruptions=losses, avoid=avoid))
    if isinstance(found, str):
        assert found
        return
    assert wanted.least <= len(found) <= wanted.most
    for seat, devices in found.items():
        assert claimable[SEATS.index(seat)]
        mine = set(devices or range(GPUS))
        assert len(mine) == (wanted.gpus_per_node or GPUS)
        for state, claim in others:
            if seat in claim and not state.terminal:
                assert not mine & set(claim[seat] or range(GPUS))


def test_nodes_that_must_not_be_used_are_named_for_clusters_that_choose() -> None:
    fault = Fault(
        code="xid.79", component="gpu", severity=Severity.FATAL, scope=Scope.NODE, remedy=Remedy.REBOOT, because=""
    )
    sick, watched = (
        Incident(
            id=IncidentId(f"i{n}"), node=SEATS[n], cluster="sim", pool="sim/train", kind=IncidentKind.FAULT,
            incarnation=None, fault=fault, opened_at=NOW, phase=phase,
        )
        for n, phase in ((0, Phase.DRAINED), (1, Phase.WATCHED))
    )  # fmt: skip
    rows = (
        Ledger(pool="sim/train", seats=5),
        node(0, claimable=False),
        node(1),
        node(2, claimable=False, agent=AgentState.SILENT),
        node(3, claimable=False, cordons=("sickbay:i9",)),
        sick,
        watched,
    )
    mine = job(interruptions=interrupted(1, 2, 3))
    assert unusable(draft(*rows), mine) == (SEATS[0], SEATS[2]), "the cluster itself keeps off what is cordoned"
    dark = replace(mine, avoid=(SEATS[4],))
    assert unusable(draft(*rows), dark) == (SEATS[0], SEATS[2], SEATS[4])
    three = replace(dark, spec=spec(nodes=3))
    assert unusable(draft(*rows), three) == (SEATS[0], SEATS[2]), "what only did not answer is not worth a wait"
    four = replace(dark, spec=spec(nodes=4))
    assert unusable(draft(*rows), four) == "needs 4 nodes of sim/train: sim/n0, sim/n2 cannot be used"
    named = replace(dark, spec=spec(on=(SEATS[2],)))
    assert unusable(draft(*rows), named) == "needs 1 nodes of sim/train: sim/n0, sim/n2 cannot be used"


def test_who_can_be_reached() -> None:
    rows = (
        node(0),
        node(1, ready=False),
        node(2, ready=False, agent=AgentState.SILENT),
        node(3, ready=False),
        job("other", state=JobState.RUNNING, claim={SEATS[3]: (0,)}),
    )
    mine = job(ranks={**dict.fromkeys(SEATS, RankState.RUNNING), SEATS[0]: RankState.GONE})
    made = draft(*rows)
    assert supply(made, input_of(made, mine), ReadFirst(Need.AWAY)).away == OutOfReach(
        lost=(SEATS[2], SEATS[4]),
        unseen=tuple(SEATS[1:]),
        fenceable=(SEATS[1], SEATS[2], SEATS[4]),  # others use the partitioned one
    )


@given(
    size=st.integers(0, 20_000),
    percent=st.floats(0, 100),
    absolute=st.none() | st.integers(0, 500),
    at_least=st.integers(0, 10),
)
def test_a_limit_is_its_formula(size: int, percent: float, absolute: int | None, at_least: int) -> None:
    limit = Limit(out_percent=percent, out_absolute=absolute, out_at_least=at_least)
    share = percent * size / 100
    most = limit.out(size)
    assert most >= at_least
    if absolute is not None:
        assert most <= max(absolute, at_least)
    if most > at_least:
        assert most <= share + 1e-6
        assert most == absolute or most > share - 1
    assert limit.out(size + 1) >= most, "a larger pool may lack no fewer"
    same = Limit(repairing_percent=percent, repairing_absolute=absolute, repairing_at_least=at_least)
    assert same.repairing(size) == most


@pytest.mark.parametrize(
    ("size", "percent", "most"),
    [
        (1, 10.0, 1),
        (9, 10.0, 1),
        (10, 10.0, 1),
        (19, 10.0, 1),
        (20, 10.0, 2),
        (1000, 10.0, 100),
        (30, 10.0, 3),
        (7, 100.0, 7),
    ],
)
def test_percentages_are_whole_seats(size: int, percent: float, most: int) -> None:
    assert Limit(out_percent=percent).out(size) == most


def test_the_first_limit_that_names_the_pool_counts() -> None:
    policy = replace(DEFAULT, limits=(Limit(pool="tr*", out_absolute=5), Limit(pool="*", out_absolute=1)))
    assert limit_for("train", policy).out_absolute == 5
    assert limit_for("other", policy).out_absolute == 1


def test_a_job_that_avoids_a_node_which_is_gone_is_woken_when_it_comes_back_wherever_that_is() -> None:
    """Nobody knows in which pool that will be, so no ledger tells of it."""
    here, gone = SEATS[0], NodeId("sim/gone")
    made = draft(node(0), job())
    assert supply(made, input_of(made, job()), ReadFirst(Need.WELL, (here, gone))).well == (here,)
    assert made.watched == {"ledger:sim/train", f"node:{gone}"}
    many = tuple(NodeId(f"sim/gone-{n}") for n in range(200))
    made = draft(job())
    assert supply(made, input_of(made, job()), ReadFirst(Need.WELL, many)).well == ()
    assert len(made.watched) == 1 + WATCHED
