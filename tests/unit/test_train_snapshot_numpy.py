"""Snapshots of numpy's arrays and scalars, and of the dtypes that ml_dtypes adds to it."""

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.cases import one_by_one
from tests.support.states import file_of, restored, same, there_and_back
from tests.support.thorough import examples
from tests.unit.test_train_snapshot import buffers, check_refused, check_saves_in_a_row, keys, plain, shard_with, trees

from sickbay import train
from sickbay.train import snapshot
from sickbay.train.shard import MAGIC

np: Any = pytest.importorskip("numpy", reason="numpy is not installed here: states with its arrays are not tested")

NATIVE = "?bBhHiIlLqQefdgFDG"
DTYPES = [
    *NATIVE,
    *(f">{char}" for char in "hHiIlLqQefdFD"),
    *(f"{order}{kind}8[{unit}]" for order in "<>" for kind in "mM" for unit in ("Y", "D", "25s", "ns")),
    *("M8", "m8", "U1", "U5", ">U3", "S1", "S7", "V4", "V16"),
]
SHAPES = [(), (1,), (5,), (0,), (0, 3), (3, 0, 2), (2, 3), (1, 2, 1, 3)]


def array_of(dtype: str, shape: tuple[int, ...], seed: int = 0) -> Any:
    octets = np.random.default_rng(seed).bytes(np.dtype(dtype).itemsize * math.prod(shape))
    if np.dtype(dtype).kind == "U":  # letters
        return np.array([f"ab{seed}\0\U0001f600"[: 1 + index % 5] for index in range(math.prod(shape))], dtype).reshape(
            shape
        )
    if np.dtype(dtype).char in "?gG":  # not every pattern of bits is one of these
        return np.arange(math.prod(shape)).reshape(shape).astype(dtype)
    return np.frombuffer(octets, dtype).reshape(shape).copy() if octets else np.empty(shape, dtype)


@one_by_one("shape", SHAPES, ids=str)
@one_by_one("dtype", DTYPES)
def test_arrays_of_every_dtype_and_shape_come_back(dtype: str, shape: tuple[int, ...]) -> None:
    value = array_of(dtype, shape)
    back = there_and_back({"x": value})["x"]
    assert same(back, value)
    assert back.flags.writeable


def is_key(scalar: Any) -> bool:
    try:
        hash(scalar)
    except (TypeError, ValueError):
        return False
    return True


@one_by_one("dtype", DTYPES)
def test_scalars_of_every_dtype_come_back_as_values_and_as_keys(dtype: str) -> None:
    for value in array_of(dtype, (4,)):
        assert same(there_and_back([value]), [value])
        if is_key(value):
            assert same(there_and_back({value: 1, (value, "x"): 2}), {value: 1, (value, "x"): 2})


SCALARS = [
    *(
        np.float64("nan"),
        np.float64("nan"),
        np.float32("nan"),
        np.float64(-0.0),
        np.float16("inf"),
        np.longdouble(1) / 3,
    ),
    *(np.bool_(True), np.int8(2), np.longlong(3), np.ulonglong(4), np.complex64(complex(0.5, math.inf))),
    *(np.str_(""), np.str_("cat"), np.str_("cat\0"), np.str_("\ud83d\ude00"), np.bytes_(b""), np.bytes_(b"x\0")),
    *(np.datetime64("NaT"), np.datetime64("2026-01-01", "25s"), np.timedelta64(7, "Y")),
]


def test_scalars_of_numpy_are_keys_that_stay_apart_from_the_second_save_on() -> None:
    kept: list[Any] = []
    for round_ in range(3):
        state = {key: index + round_ for index, key in enumerate(SCALARS)} | {(key, 1): key for key in SCALARS}
        shot = snapshot.take({"x": state}, kept)
        kept = shot.kept
        assert same(restored("state", file_of(shot))["x"], state)


def test_thresholds_as_keys_survive_a_run(tmp_path: Path) -> None:
    state = {"by_threshold": {threshold: index for index, threshold in enumerate(np.array([0.1, 0.5, 0.9]))}}
    with train.Checkpoints(tmp_path, attempt=1, rank=0, world_size=1) as first:
        for step in (1, 2, 3):
            first.save(step, state)
    with train.Checkpoints(tmp_path, attempt=2, rank=0, world_size=1) as second:
        assert same(second.load(), state)


arrays = st.builds(array_of, st.sampled_from(DTYPES), st.sampled_from(SHAPES), st.integers(0, 9))
scalars = st.builds(lambda dtype, seed: array_of(dtype, (1,), seed)[0], st.sampled_from(DTYPES), st.integers(0, 9))
cut = st.sampled_from([lambda x: x[::-1], lambda x: x[::2], lambda x: x.T, np.asfortranarray, lambda x: x[..., None]])
views = st.builds(lambda array, way: way(array) if array.ndim else array, arrays, cut)
number_keys = scalars.filter(is_key) | st.sampled_from(SCALARS)
states = trees(plain | buffers | arrays | views | scalars | st.sampled_from(SCALARS), keys | number_keys)


@settings(max_examples=examples(200))
@given(states, states, st.integers())
def test_a_state_with_arrays_comes_back_as_it_was_whatever_happens_before_it_is_written(
    state: Any, other: Any, seed: int
) -> None:
    check_saves_in_a_row(state, other, seed)


def test_one_array_under_two_names_comes_back_as_two_that_are_equal() -> None:
    base = np.arange(6.0)
    state = {"a": base, "b": base, "head": base[:3], "backwards": base[::-1], "wide": np.broadcast_to(base, (2, 6))}
    back = there_and_back(state)
    assert same(back, state)
    back["a"][:] = 9.0
    back.pop("a")
    state.pop("a")
    assert same(back, state)


def test_arrays_that_cannot_be_written_or_lie_in_a_file_come_back_in_plain_memory(tmp_path: Path) -> None:
    fixed = np.arange(3)
    fixed.setflags(write=False)
    mapped = np.memmap(tmp_path / "x", dtype="f4", shape=(2, 2), mode="w+")
    mapped[:] = 7
    back = there_and_back({"fixed": fixed, "mapped": mapped})
    mapped[:] = 8
    assert same(back, {"fixed": fixed, "mapped": np.full((2, 2), 7, "f4")})
    back["fixed"][0] = back["mapped"][0, 0] = 5


class Tagged(np.ndarray):  # type: ignore[misc]
    pass


class Measured(np.float64):  # type: ignore[misc]
    pass


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: np.array([{}], object), "an array of object: save its plain columns"),
        (lambda: np.zeros(2, [("a", "i4"), ("b", "f8")]), r"an array of \[\('a'.*: save its plain columns"),
        (lambda: np.zeros(2, [("a", "i4")])[0], r"an array of \[\('a'.*: save its plain columns"),
        (lambda: np.zeros(2, []), r"an array of \[\]: save its plain columns"),
        (lambda: np.ma.array([1, 2], mask=[0, 1]), "a numpy.ma.*MaskedArray: save the plain arrays"),
        (lambda: np.ma.masked, "a numpy.ma.*MaskedConstant: save the plain arrays"),
        (lambda: np.asmatrix([[1]]), "a numpy.matrix: save the plain arrays"),
        (lambda: np.rec.array([1, 2]), r"an array of \(numpy.record.*: save its plain columns"),
        (lambda: np.char.array(["a"]), "a numpy.*chararray: save the plain arrays"),
        (lambda: np.arange(3).view(Tagged), "a .*Tagged: save the plain arrays"),
        (lambda: Measured(1.5), "a .*Measured: save the plain arrays"),
        (lambda: np.array(["a"], np.dtypes.StringDType()), "an array of StringDType.*: save its plain columns"),
        (lambda: np.float64, "a type: a state is made of"),
        (lambda: np.dtype("f4"), "a numpy.*DType: a state is made of"),
    ],
)
def test_arrays_that_are_more_than_plain_memory_are_refused(make: Callable[[], Any], says: str) -> None:
    if "StringDType" in says and not hasattr(getattr(np, "dtypes", None), "StringDType"):
        pytest.skip("numpy is older than 2 here")
    with pytest.raises(snapshot.NotAState, match=rf"^state\['x'\] is {says}"):
        snapshot.take({"x": make()})


def test_scalars_that_are_refused_are_named_as_keys() -> None:
    with pytest.raises(snapshot.NotAState, match=r"^a key of state\['x'\] is a .*Measured: save the plain"):
        snapshot.take({"x": {Measured(1.5): 1}})


def test_memory_is_used_again_for_what_has_another_dtype_or_shape() -> None:
    kept: list[Any] = []
    for value in (
        np.arange(6, dtype="i4"),
        np.ones((2, 3), "f4"),
        np.zeros((3,), ">f8"),
        np.zeros((0, 3)),
        np.array("abcdef"),
    ):
        shot = snapshot.take([value, value.copy()], kept)
        assert same(restored("state", file_of(shot)), [value, value])
        if kept and value.nbytes:
            assert {id(memory) for memory in shot.kept} == {id(memory) for memory in kept}
        kept = shot.kept if value.nbytes else kept


@pytest.mark.parametrize(
    "octets",
    [
        shard_with(["n", "<f8", [1 << 40], False, 0], b""),
        shard_with(["n", "<f8", [1 << 40, 0], False, 0], bytes(8)),
        shard_with(["n", "<f8", [-1], False, 0], bytes(8)),
        shard_with(["n", "<f8", [True], False, 0], bytes(8)),
        shard_with(["n", "<f8", [1.0], False, 0], bytes(8)),
        shard_with(["n", "<f8", 1, False, 0], bytes(8)),
        shard_with(["n", "<f8", [2], False, 0], bytes(8)),
        shard_with(["n", "<f8", [1], False, 1], bytes(8)),
        shard_with(["n", "|O", [1], False, 0], bytes(8)),
        shard_with(["n", "O", [1], False, 0], bytes(8)),
        shard_with(["n", "<i4,O", [1], False, 0], bytes(12)),
        shard_with(["n", "(2,)i4", [1], False, 0], bytes(8)),
        shard_with(["n", "T", [1], False, 0], bytes(16)),
        shard_with(["n", "<f9", [1], False, 0], bytes(9)),
        shard_with(["n", "<U99999999999999999999", [0], False, 0], b""),
        shard_with(["n", "<f8", [1] * 100, False, 0], bytes(8)),
        shard_with(["n", None, [1], False, 0], bytes(8)),
        shard_with(["x", "finfo", [1], False, 0], bytes(8)),
        shard_with(["x", "no_such_type", [1], False, 0], bytes(8)),
        shard_with(["s", "load", "x"]),
    ],
    ids=lambda _: "shard",
)
def test_an_array_that_is_not_what_lies_in_the_file_is_refused(octets: bytes) -> None:
    check_refused(octets)


def test_arrays_that_an_earlier_version_wrote_are_still_read() -> None:
    tree = [
        "l",
        [
            ["n", "<f4", [2], False, 0],
            ["n", "|V2", [1], False, 1],
            ["n", "<i8", [], True, 2],
            ["n", "<M8[25s]", [0, 3], False, 3],
        ],
    ]
    parts = (np.array([1, 2], "<f4").tobytes(), b"ab", np.int64(-5).tobytes(), b"")
    back = restored("state", shard_with(tree, *parts))
    expected = [np.array([1, 2], "<f4"), np.array([b"ab"], "V2"), np.int64(-5), np.empty((0, 3), "<M8[25s]")]
    assert same(back, expected)


# With ml_dtypes, where it is installed


@pytest.fixture
def ml() -> Any:
    return pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed here: its dtypes are not tested")


def test_dtypes_of_ml_dtypes_come_back(ml: Any) -> None:
    kinds = [kind for kind in vars(ml).values() if isinstance(kind, type) and issubclass(kind, np.generic)]
    assert ml.bfloat16 in kinds
    kept: list[Any] = []
    for round_ in range(2):
        state: dict[str, Any] = {
            kind.__name__: [np.array([[0, round_]], kind), np.zeros((0, 3), kind), np.array(1, kind), kind(1)]
            for kind in kinds
        }
        state["keys"] = {ml.bfloat16(0.5): 1, ml.bfloat16(2): 2}
        shot = snapshot.take(state, kept)
        kept = shot.kept
        back = restored("state", file_of(shot))
        assert same(back, state)
        assert back["bfloat16"][0].dtype == ml.bfloat16


def test_dtypes_of_ml_dtypes_in_another_byte_order_are_refused(ml: Any) -> None:
    swapped = np.zeros(2, ml.bfloat16).view(np.dtype(ml.bfloat16).newbyteorder())
    with pytest.raises(snapshot.NotAState, match=r"^state\['x'\] is an array of .*, which is not of numpy itself"):
        snapshot.take({"x": swapped})


def test_a_shard_whose_dtypes_are_missing_here_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    octets = shard_with(["x", "bfloat16", [1], False, 0], bytes(2))
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)  # as if it were not installed
    check_refused(octets, "it holds arrays of ml_dtypes, which is not installed here")


def test_a_dtype_that_a_newer_library_has_is_named(ml: Any) -> None:
    assert not hasattr(ml, "bfloat17")
    octets = shard_with(["x", "bfloat17", [1], False, 0], bytes(2))
    check_refused(octets, "ml_dtypes.bfloat17, which the ml_dtypes that is installed here lacks")


def test_headers_are_json_that_others_can_read() -> None:
    shard = file_of(snapshot.take({np.float64("nan"): np.arange(2)}))
    length = int.from_bytes(shard[len(MAGIC) :][:8], "little")
    assert json.loads(shard[len(MAGIC) + 8 :][:length])["sizes"] == [8, 16]
