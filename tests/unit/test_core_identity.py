"""Who holds a seat, said by two that do not know the same things."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sickbay.brain.identity import KEEP_BOOTS, Standing, ended_too, held_by, standing_of, with_holder
from sickbay.model.fleet import Incarnation, Node, NodeId
from sickbay.model.protocol import Poll, Report

NODE = NodeId("k/n0")
Who = Incarnation
WORDS = st.sampled_from(["", "1", "2", "3"])
INCARNATIONS = st.builds(Incarnation, uid=WORDS, instance_id=WORDS, boot_id=WORDS)


def seat(now: Incarnation | None, *, registered: Incarnation | None = None, ended: tuple[str, ...] = ()) -> Node:
    return Node(id=NODE, cluster="k", pool="p", incarnation=now, registered=registered or now, ended_boots=ended)


@pytest.mark.parametrize(
    ("one", "other", "agree", "holder", "reboot"),
    [
        (Who(uid="u", instance_id="i", boot_id="b"), Who(instance_id="i", boot_id="b"), True, True, False),
        (Who(), Who(uid="u", instance_id="i", boot_id="b"), True, True, False),
        (Who(uid="u", instance_id="i"), Who(instance_id="i", boot_id="b"), True, True, False),
        (Who(instance_id="i", boot_id="b"), Who(instance_id="i", boot_id="c"), False, True, True),
        (Who(instance_id="i", boot_id="b"), Who(instance_id="j", boot_id="c"), False, False, True),
        (Who(uid="u", instance_id="i", boot_id="b"), Who(uid="v", instance_id="i", boot_id="b"), False, True, False),
        (Who(uid="u", boot_id="b"), Who(uid="v", boot_id="b"), False, True, False),
        (Who(uid="u", boot_id="b"), Who(uid="v", boot_id="c"), False, False, True),
        (Who(uid="u"), Who(uid="v", boot_id="c"), False, False, False),
    ],
)
def test_two_statements_conflict_only_in_what_both_know(
    one: Incarnation, other: Incarnation, agree: bool, holder: bool, reboot: bool
) -> None:
    assert (one.agrees(other), one.same_holder(other), one.new_boot(other)) == (agree, holder, reboot)
    assert (other.agrees(one), other.same_holder(one), other.new_boot(one)) == (agree, holder, reboot)


@given(INCARNATIONS, INCARNATIONS)
def test_a_statement_agrees_with_what_it_was_added_to(one: Incarnation, other: Incarnation) -> None:
    assert one.told(other).agrees(other)
    assert one.told(one) == one
    if one.agrees(other):
        assert one.told(other) == other.told(one)
        assert one.same_boot(other)


def test_nobody_is_told_apart_from_a_seat_that_nobody_holds() -> None:
    assert not Who().agrees(None)
    assert not Who().same_holder(None)
    assert not Who().new_boot(None)


ROW = Who(uid="u1", instance_id="i1", boot_id="b1")
OTHER = Who(instance_id="i2", boot_id="b2")


@pytest.mark.parametrize(
    ("registered", "said", "standing", "after"),
    [
        (ROW, Who(instance_id="i1", boot_id="b1"), Standing.PRESENT, ROW),
        (ROW, Who(instance_id="i1", boot_id="b2"), Standing.REBOOTED, Who(uid="u1", instance_id="i1", boot_id="b2")),
        (ROW, Who(instance_id="i1", boot_id="b0"), Standing.ENDED, ROW),
        (ROW, Who(instance_id="i2", boot_id="b2"), Standing.AHEAD, ROW),
        (Who(uid="u1", boot_id="b1"), OTHER, Standing.SUCCEEDED, OTHER),
        (Who(), OTHER, Standing.SUCCEEDED, OTHER),
        (Who(), Who(instance_id="i1", boot_id="b2"), Standing.REBOOTED, Who(uid="u1", instance_id="i1", boot_id="b2")),
    ],
)
def test_an_agents_word_decides_what_its_cluster_cannot_tell(
    registered: Incarnation, said: Incarnation, standing: Standing, after: Incarnation
) -> None:
    node = seat(ROW, registered=registered, ended=("b0",))
    found = standing_of(node, said, by_agent=True)
    assert (found, held_by(node, said, found)) == (standing, after)


@pytest.mark.parametrize(
    ("said", "standing", "after"),
    [
        (Who(uid="u1", instance_id="i1"), Standing.PRESENT, ROW),
        (Who(), Standing.PRESENT, ROW),
        (
            Who(uid="u2", instance_id="i1", boot_id="b1"),
            Standing.PRESENT,
            Who(uid="u2", instance_id="i1", boot_id="b1"),
        ),
        (
            Who(uid="u1", instance_id="i1", boot_id="b2"),
            Standing.REBOOTED,
            Who(uid="u1", instance_id="i1", boot_id="b2"),
        ),
        (Who(uid="u1", instance_id="i1", boot_id="b0"), Standing.ENDED, ROW),
        (Who(uid="u2", instance_id="i2"), Standing.SUCCEEDED, Who(uid="u2", instance_id="i2")),
        (Who(uid="u2"), Standing.SUCCEEDED, Who(uid="u2")),
    ],
)
def test_a_clusters_word(said: Incarnation, standing: Standing, after: Incarnation) -> None:
    node = seat(ROW, registered=Who(uid="u1", instance_id="i1", boot_id="b1"), ended=("b0",))
    found = standing_of(node, said, by_agent=False)
    assert (found, held_by(node, said, found)) == (standing, after)


def test_a_cluster_that_repeats_itself_takes_nothing_back() -> None:
    """Its agent has told of another machine in the seat; the cluster's read is older than its own next word."""
    node = seat(Who(instance_id="i2", boot_id="b2"), registered=Who(uid="u1"), ended=("b1",))
    again = standing_of(node, Who(uid="u1"), by_agent=False)
    assert held_by(node, Who(uid="u1"), again) == Who(instance_id="i2", boot_id="b2")
    word = standing_of(node, Who(uid="u2"), by_agent=False)
    assert held_by(node, Who(uid="u2"), word) == Who(uid="u2", instance_id="i2", boot_id="b2")


def test_a_vacant_seat_is_filled_by_its_cluster_only() -> None:
    assert standing_of(seat(None), ROW, by_agent=True) is Standing.AHEAD
    assert standing_of(seat(None), ROW, by_agent=False) is Standing.SUCCEEDED


def test_the_last_boots_of_a_seat_are_remembered() -> None:
    node = seat(Who(boot_id="b0"))
    for n in range(1, 40):
        now = Who(boot_id=f"b{n}")
        node = with_holder(node, now)
    assert node.ended_boots == tuple(f"b{n}" for n in range(39 - KEEP_BOOTS, 39))
    assert with_holder(node, Who(instance_id="i", boot_id="b39")).ended_boots == node.ended_boots


def test_an_agent_never_says_how_its_cluster_has_registered_it() -> None:
    given = {"proto": 1, "node": NODE, "instance_id": "i-1", "boot_id": "b"}
    report = Report(**given, uid="i-1", agent_run="r", first_seq=1, mono_now=0.0, wall_now=0.0, watermark=0.0)  # type: ignore[arg-type]
    assert report.incarnation == Who(instance_id="i-1", boot_id="b")
    assert Poll(**given).uid == ""  # type: ignore[arg-type]


def test_a_boot_that_its_own_agent_calls_ended_is_history_though_nobody_knew_that_it_ran() -> None:
    now = Incarnation(instance_id="i", boot_id="c")
    seat = Node(id=NodeId("k/n"), cluster="k", pool="k/p", incarnation=now, ended_boots=("a",))
    assert ended_too(seat, Incarnation(instance_id="i", boot_id="b")) == ("b", "a")
    assert ended_too(seat, now) == ("a",)
    assert ended_too(seat, Incarnation(instance_id="j", boot_id="b")) == ("a",)
