"""Snapshots keep every key and every type, see nothing that happens later, and are read back from any bytes safely."""

import enum
import json
import math
import random
import sys
import tracemalloc
from array import array
from collections import Counter, OrderedDict, UserDict, defaultdict, namedtuple
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.states import copied, file_of, restored, same, scramble, there_and_back
from tests.support.thorough import examples

from sickbay.train import snapshot
from sickbay.train.shard import MAGIC, NotAShard

surrogates = st.text(st.characters(min_codepoint=0xD7F0, max_codepoint=0xE010), max_size=4)
huge = st.sampled_from([1 << 63, -(1 << 63), (1 << 63) - 1, 1 << 200, -(1 << 200)])
texts: st.SearchStrategy[Any] = st.text(max_size=4) | surrogates | st.binary(max_size=4)
numbers: st.SearchStrategy[Any] = st.booleans() | st.integers() | huge | st.floats()
plain: st.SearchStrategy[Any] = st.none() | numbers | st.complex_numbers() | texts
keys = st.recursive(plain, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=3)
short: st.SearchStrategy[Any] = st.binary(max_size=6)
buffers: st.SearchStrategy[Any] = (
    short.map(bytearray)
    | short.map(lambda octets: memoryview(bytes(octets)))
    | short.map(lambda octets: memoryview(bytearray(octets)))
    | short.map(lambda octets: memoryview(bytearray(octets))[::2])
    | st.builds(array, st.sampled_from("bhilq"), st.lists(st.integers(-100, 100), max_size=3))
    | st.lists(st.floats(), max_size=3).map(lambda numbers: array("d", numbers))
)


def trees(leaves: st.SearchStrategy[Any], keys: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.lists(inner, max_size=3).map(tuple)
            | st.dictionaries(keys, inner, max_size=4)
            | st.dictionaries(keys, inner, max_size=4).map(OrderedDict)
            | st.dictionaries(keys, inner, max_size=4).map(lambda held: defaultdict(list, held))
        ),
        max_leaves=15,
    )


states = trees(plain | buffers, keys)


def check_saves_in_a_row(state: Any, other: Any, seed: int) -> None:
    """Three saves with one memory: of a state, of what became of it, of another; each changed before it is written."""
    kept: list[Any] = []
    chance = random.Random(seed)
    for now in ([state], [state], [other, state]):
        before = copied(now)
        assert same(before, now)
        shot = snapshot.take(now, kept)
        scramble(now, chance)
        assert same(restored(shot.form, file_of(shot)), before)
        kept = shot.kept


@given(states, states, st.integers())
def test_a_state_comes_back_as_it_was_whatever_happens_to_it_before_it_is_written(
    state: Any, other: Any, seed: int
) -> None:
    check_saves_in_a_row(state, other, seed)


def test_several_keys_that_are_not_a_number_come_back_each_with_its_own() -> None:
    state = {math.nan: 1, float("nan"): 2, (float("nan"), 1): 3, (float("nan"), 1, "x"): 4}
    assert same(there_and_back(state), state)


def test_numbers_that_are_equal_keep_their_type_as_keys_and_as_values() -> None:
    for key in (True, 1, 1.0, 1 + 0j, 0.0, -0.0, 0, False):
        state = {key: [True, 1, 1.0, 0.0, -0.0, complex(-0.0, -0.0)], (key,): key}
        assert same(there_and_back(state), state)


def test_two_surrogates_are_not_joined_to_one_letter() -> None:
    state = {"\ud83d\ude00": "\ud83d\ude00", "😀": "😀", "\udc80": "\ud800"}
    assert same(there_and_back(state), state)


def test_a_huge_integer_is_a_key_too() -> None:
    state = {1 << 20000: {-(1 << 20000): bytearray(b"x")}}
    assert same(there_and_back(state), state)
    with pytest.raises(TypeError, match=r"state\[a huge number\] is a object: a state is made of"):
        snapshot.take({1 << 20000: object()})


def test_bytes_that_can_change_come_back_as_such() -> None:
    state = {"a": bytearray(b"a"), "v": memoryview(bytearray(b"v")), "r": memoryview(b"r"), "e": bytearray()}
    back = there_and_back(state)
    assert same(back, state)
    back["a"] += b"more"
    back["v"][0] = 0


def test_ordered_and_default_dictionaries_come_back_as_such() -> None:
    weights = OrderedDict(b=1, a=2)
    weights._metadata = OrderedDict({"": {"version": 1}})  # type: ignore[attr-defined]  # as torch's state_dict()
    state = {"w": weights, "d": defaultdict(list, {"x": [1]}), "n": defaultdict(None, {1: 2})}
    back = there_and_back(state)
    assert same(back, state)
    assert back["w"]._metadata[""] == {"version": 1}
    assert back["d"]["new"] == []


class Color(enum.IntEnum):
    RED = 1


class Mode(enum.StrEnum):
    FAST = "fast"


class Plain(enum.Enum):
    ONE = 1


Point = namedtuple("Point", "x y")  # noqa: PYI024  # as old training scripts have them
KINDS: list[type] = [list, tuple, dict, str, int, float, bytes, bytearray, array, OrderedDict, complex]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_what_is_derived_from_a_plain_type_is_refused_and_not_made_plain(kind: type) -> None:
    derived = type("Derived", (kind,), {})
    value = derived("b", [1]) if kind is array else derived()
    says = (
        rf"state\['x'\]\[1\] is a .*Derived, which would come back as a plain {kind.__name__}: save {kind.__name__}\("
    )
    with pytest.raises(snapshot.NotAState, match=says):
        snapshot.take({"x": (0, value)})


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({"x": Color.RED}, r"state\['x'\] is a .*Color, which would come back as a plain int: save int\("),
        ({"x": Mode.FAST}, r"state\['x'\] is a .*Mode, which would come back as a plain str: save str\("),
        ({"x": Plain.ONE}, r"state\['x'\] is a .*Plain: a state is made of"),
        ({"x": Point(1, 2)}, r"state\['x'\] is a .*Point, which would come back as a plain tuple: save tuple\("),
        ({"x": Counter("a")}, r"state\['x'\] is a collections.Counter, which would come back as a plain dict"),
        ({"x": UserDict(a=1)}, r"state\['x'\] is a collections.UserDict: a state is made of"),
        ({"x": defaultdict(lambda: 0)}, r"state\['x'\] is a collections.defaultdict that makes something else than"),
        ({"x": frozenset()}, r"state\['x'\] is a frozenset: a state is made of"),
        ({"x": range(3)}, r"state\['x'\] is a range: a state is made of"),
        ({"x": memoryview(array("d", [1]))}, r"state\['x'\] is a memoryview of 'd' in 1 dimensions"),
        ({"x": memoryview(bytes(4)).cast("B", [2, 2])}, r"state\['x'\] is a memoryview of 'B' in 2 dimensions"),
        ({"x": array("u", "a")}, r"state\['x'\] is a array.array of 'u': save its text"),
        ({"x": {Color.RED: 1}}, r"a key of state\['x'\] is a .*Color: keys are"),
        ({"x": {Point(1, 2): 1}}, r"a key of state\['x'\] is a .*Point: keys are"),
        ({"x": {(1, frozenset()): 1}}, r"a key of state\['x'\]\[1\] is a frozenset: keys are"),
        ({"x": {memoryview(b"x"): 1}}, r"a key of state\['x'\] is a memoryview: keys are"),
        ({"x" * 500: object()}, r"state\['xxxxx.*x…\] is a object: a state is made of"),
    ],
)
def test_what_would_come_back_as_something_else_is_refused_by_its_name(state: object, says: str) -> None:
    with pytest.raises(snapshot.NotAState, match=f"^{says}"):
        snapshot.take(state)


def test_metadata_of_an_ordered_dictionary_that_has_no_place_in_a_state_is_named() -> None:
    weights = OrderedDict(a=1)
    weights.hook = print  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match=r"^state\['w'\].__dict__\['hook'\] is a builtin"):
        snapshot.take({"w": weights})


def test_bytes_at_the_top_are_a_shard_of_bytes_only_if_they_are_nothing_more() -> None:
    class Named(bytes):
        pass

    with pytest.raises(snapshot.NotAState, match=r"^state is a .*Named, which would come back as a plain bytes"):
        snapshot.take(Named(b"x"))


def test_memory_is_never_shared_between_two_places_of_one_state() -> None:
    def state(number: int) -> dict[Any, Any]:
        return {1: {"a": bytearray([number])}, "1": {"a": bytearray([number + 1])}, 2: [array("b", [number + 2])]}

    kept: list[Any] = []
    for number in range(3):
        shot = snapshot.take(state(number), kept)
        kept = shot.kept
        assert same(restored("state", file_of(shot)), state(number))
        assert len({id(memory) for memory in kept}) == len(kept) == 3


def test_memory_is_found_again_when_the_state_has_grown_before_it() -> None:
    first = snapshot.take({"w": bytearray(10), "v": bytearray(20)})
    second = snapshot.take({"new": bytearray(5), "v": bytearray(20), "w": bytearray(10)}, first.kept)
    assert {id(memory) for memory in first.kept} <= {id(memory) for memory in second.kept}


def nested(make: Callable[[Any], Any], depth: int) -> Any:
    state: Any = 0
    for _ in range(depth):
        state = make(state)
    return state


WAYS: list[Callable[[Any], Any]] = [
    lambda x: [x],
    lambda x: (x,),
    lambda x: {"k": x},
    lambda x: OrderedDict(k=x),
    lambda x: defaultdict(None, {"k": x}),
]


@pytest.mark.parametrize("make", WAYS)
def test_what_can_be_saved_can_be_restored_however_deep_it_is(make: Callable[[Any], Any]) -> None:
    for depth in (1, 50, 100):
        assert same(there_and_back(nested(make, depth)), nested(make, depth))
        key = nested(lambda x: (x,), depth - 1)
        assert same(there_and_back({key: 1}), {key: 1})
    for depth in (101, 102, 300, 900, 5000):
        with pytest.raises(snapshot.NotAState, match="nested more than 100 deep"):
            snapshot.take(nested(make, depth))
        with pytest.raises(snapshot.NotAState, match="nested more than 100 deep"):
            snapshot.take({nested(lambda x: (x,), min(depth, 300)): 1})


# Reading: from any bytes, without taking more than they are


EXAMPLE = {
    "a": [bytearray(b"some"), array("d", [1.0, 2.0]), (None, "\ud800", 1 << 70, memoryview(b"xy"), 1j)],
    "o": OrderedDict({1: b"bytes", (2, "x"): defaultdict(int, {3: 4})}),
}


def shard_of(header: object, octets: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return MAGIC + len(text).to_bytes(8, "little") + text + octets


def shard_with(tree: object, *parts: bytes, **more: object) -> bytes:
    header = {"tree": tree, "sizes": [len(part) for part in parts], "order": sys.byteorder} | more
    return shard_of(header, b"".join(parts))


def check_refused(octets: bytes, says: str | None = None) -> None:
    with pytest.raises(NotAShard, match=says):
        restored("state", octets)


def test_a_shard_that_ends_anywhere_else_is_refused() -> None:
    whole = file_of(snapshot.take(EXAMPLE))
    for end in range(len(whole)):
        check_refused(whole[:end])
    check_refused(whole + b"x", "its header does not name all that is in it")


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_a_shard_with_wrong_bytes_is_refused_or_is_another_state(data: st.DataObject) -> None:
    whole = bytearray(file_of(snapshot.take(EXAMPLE)))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(
            st.integers(0, 255) | st.sampled_from(b'0129"[]{},')
        )
    with suppress(NotAShard):
        restored("state", whole)


junk = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 40) | st.floats() | st.text(max_size=2) | st.sampled_from("<f8 f4 O d"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=6,
)
nodes = st.recursive(
    junk,
    lambda inner: (
        st.tuples(st.sampled_from("iucdofltbymanxsp"), *[inner | st.integers(0, 2)]).map(list)
        | st.builds(lambda tag, rest: [tag, *rest], st.sampled_from("iucdofltbymanxsp"), st.lists(inner, max_size=4))
    ),
    max_leaves=8,
)


@pytest.mark.slow
@settings(max_examples=examples(500), deadline=None)  # it may import torch
@given(nodes, st.lists(st.integers(-1, 1 << 66) | st.integers(0, 8) | junk, max_size=3) | junk, st.binary(max_size=16))
def test_a_header_that_somebody_made_up_is_refused_or_is_a_state(tree: object, sizes: object, octets: bytes) -> None:
    with suppress(NotAShard):
        restored("state", shard_of({"tree": tree, "sizes": sizes, "order": sys.byteorder}, octets))


@pytest.mark.parametrize(
    "octets",
    [
        MAGIC + (1 << 40).to_bytes(8, "little"),
        MAGIC + ((1 << 64) - 1).to_bytes(8, "little") + b"{}",
        shard_with(["b", 0], sizes=[1 << 40]),
        shard_with(["y", 0], sizes=[1 << 40]),
        shard_with(["a", "d", 0], sizes=[1 << 40]),
        shard_with(["l", [["y", 0], ["y", 0]]], sizes=[1 << 62, -(1 << 62)]),
        shard_with(["l", [["b", 0]] * 100], bytes(10_000)),
        shard_with(["l", [["y", 0], ["y", -1]]], bytes(10_000)),
        shard_with(["y", 0], sizes=[True]),
        shard_with(["y", 0], sizes={"0": 1}),
    ],
    ids=lambda _: "shard",
)
def test_no_more_is_taken_than_there_is_in_the_file(octets: bytes) -> None:
    tracemalloc.start()
    try:
        check_refused(octets)
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("octets", "says"),
    [
        (b"", "form 'state', which"),
        (shard_of(b"not json"), "its header makes no sense"),
        (shard_of(b"[" * 100_000), "its header makes no sense"),
        (shard_of(b'{"tree": 1' + b"0" * 5000 + b"}"), "its header makes no sense"),
        (shard_of([]), "its header makes no sense"),
        (shard_of({"tree": 1, "sizes": []}), "its header makes no sense"),
        (shard_of({"tree": 1, "sizes": [], "order": "middle"}), "it was written on a middle endian machine"),
        (shard_with(["zz", 1]), "it holds a 'zz', which this version of sickbay does not know"),
        (shard_with({"a": 1}), "which this version of sickbay does not know"),
        (shard_with([]), "which this version of sickbay does not know"),
        (shard_with(1, b"left over"), "its header does not name all that is in it"),
        (shard_with(["d", [[1, 2], [1, 3]]]), "two keys that are equal"),
        (shard_with(["d", [[["l", []], 2]]]), "its header makes no sense"),
        (shard_with(["f", "eval", []]), "its header makes no sense"),
        (shard_with(["a", "d", 0], bytes(7)), "7 bytes are no whole number of items"),
        (shard_with(["a", "u", 0], bytes(8)), "it holds an array of 'u'"),
        (shard_with(["b", 1], b"x"), "it holds part 1 where part 0 is due"),
    ],
)
def test_a_shard_that_makes_no_sense_says_why(octets: bytes, says: str) -> None:
    check_refused(octets, says)


def test_what_the_disk_says_is_not_taken_for_a_wrong_shard() -> None:
    class Broken(BytesIO):
        def readinto(self, _buffer: Any) -> int:
            raise OSError(5, "Input/output error")

    with pytest.raises(OSError, match="Input/output error"):
        restored("state", Broken(file_of(snapshot.take(EXAMPLE))))


FIRST = (
    f'{{"order": "{sys.byteorder}",'
    ' "tree": ["d", [["step", 7], ["loss", NaN], ["big", ["i", "0x10000000000000000"]], [["t", [1, "x"]], null],'
    ' [["b", 0], true], ["b", ["b", 1]], ["a", ["a", "d", 2]], ["l", ["l", [1.5, ["t", []]]]], [Infinity, -0.0]]],'
    ' "sizes": [3, 5, 16]}'
)


def test_a_shard_that_an_earlier_version_wrote_is_still_read() -> None:
    octets = b"key" + b"value" + array("d", [1.0, -2.0]).tobytes()
    back = restored("state", shard_of(FIRST.encode(), octets))
    assert same(
        back,
        {"step": 7, "loss": math.nan, "big": 1 << 64, (1, "x"): None, b"key": True, "b": b"value"}
        | {"a": array("d", [1.0, -2.0]), "l": [1.5, ()], math.inf: -0.0},
    )
