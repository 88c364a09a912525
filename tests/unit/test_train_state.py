"""What a state may hold, and that it comes back as it was."""

import errno
import os
import random
import sys
from array import array
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.states import restored

from sickbay import train
from sickbay.train import disk, snapshot
from sickbay.train.shard import MAGIC, NotAShard


def there_and_back(state: object) -> Any:
    shot = snapshot.take(state)
    return restored(shot.form, b"".join(bytes(part) for part in shot.parts))


keys = st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.tuples(st.integers(), st.text())
states = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(keys, inner) | st.tuples(inner, inner),
    max_leaves=20,
)


def same(one: object, other: object) -> bool:
    """Equal, and of one kind all the way down: 1, 1.0 and True are three things in a state."""
    if type(one) is not type(other) or one != other:
        return False
    if isinstance(one, dict) and isinstance(other, dict):
        return all(
            same(a, b) for pair in zip(one.items(), other.items(), strict=True) for a, b in zip(*pair, strict=True)
        )
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return all(same(a, b) for a, b in zip(one, other, strict=True))
    return True


@given(states)
def test_a_state_comes_back_as_it_was(state: object) -> None:
    assert same(there_and_back(state), state)


@pytest.mark.parametrize("typecode", "bBhHiIlLqQfd")
def test_arrays_of_the_standard_library_come_back(typecode: str) -> None:
    assert there_and_back({"a": array(typecode, [1, 2, 3])}) == {"a": array(typecode, [1, 2, 3])}


def test_memory_that_is_used_again_holds_what_was_saved_last() -> None:
    strided = memoryview(bytes(range(10)))[::2]
    kept: list[Any] = []
    states: list[dict[str, Any]] = [
        {"a": array("d", [1.0]), "b": bytearray(b"one"), "c": strided, "e": bytearray()},
        {"a": array("d", [2.0]), "b": bytearray(b"two"), "c": strided, "e": bytearray()},
        {"a": array("i", [3]), "b": bytearray(b"three"), "c": memoryview(b"x"), "e": bytearray()},
    ]
    for state in states:
        shot = snapshot.take(state, kept)
        kept = shot.kept
        back = restored(shot.form, b"".join(bytes(part) for part in shot.parts))
        assert back == {name: value if name == "a" else bytes(value) for name, value in state.items()}


def test_the_state_of_the_random_generator_comes_back() -> None:
    chance = random.Random(5)
    state = there_and_back({"random": chance.getstate()})
    expected = chance.random()
    chance.setstate(state["random"])
    assert chance.random() == expected


def test_numbers_that_json_does_not_know_come_back() -> None:
    loss, big = there_and_back([float("inf"), 2**5000])
    assert (loss, big) == (float("inf"), 2**5000)
    assert str(there_and_back(float("nan"))) == "nan"


def test_an_ordered_dictionary_comes_back_as_one_in_its_order() -> None:
    back = there_and_back(OrderedDict(b=1, a=2))
    assert type(back) is OrderedDict
    assert list(back.items()) == [("b", 1), ("a", 2)]


class Model:
    pass


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({"model": Model()}, "state['model'] is a "),
        ([1, {"x": {1, 2}}], "state[1]['x'] is a set: a state is made of"),
        ({Model: 1}, "a key of state is a type: keys are"),
        ({"f": print}, "state['f'] is a builtin_function_or_method"),
    ],
)
def test_what_has_no_place_in_a_state_is_named_at_once(state: object, says: str, tmp_path: Path) -> None:
    with train.Checkpoints(tmp_path, rank=0, world_size=1) as checkpoints:
        with pytest.raises(TypeError) as told:
            checkpoints.save(1, state)
        assert str(told.value).startswith(says)
        checkpoints.save(1, b"what it should have been")
    assert train.latest_valid(tmp_path).step == 1


def test_a_state_that_contains_itself_is_refused() -> None:
    state: list[object] = []
    state.append(state)
    with pytest.raises(TypeError, match="the state contains itself"):
        snapshot.take(state)


def test_a_shard_of_bytes_is_those_bytes_and_nothing_else() -> None:
    shot = snapshot.take(b"as torch.save wrote it")
    assert (shot.form, shot.parts) == ("bytes", (b"as torch.save wrote it",))


def test_a_shard_that_another_version_wrote_is_refused_in_words() -> None:
    with pytest.raises(NotAShard, match="form 'state/9', which this version of sickbay cannot read"):
        restored("state/9", b"")


def test_large_parts_are_written_and_summed_whole(tmp_path: Path) -> None:
    octets = bytes(2 * disk.CHUNK + 17)
    written = disk.write(tmp_path / "x", [octets, memoryview(b""), bytearray(b"end")])
    assert (written.size, disk.fault_of(tmp_path / "x", written)) == (len(octets) + 3, None)


def test_a_file_that_is_there_is_never_written_over(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"first")
    with pytest.raises(FileExistsError):
        disk.write(tmp_path / "x", [b"second"])
    assert (tmp_path / "x").read_bytes() == b"first"
    assert disk.create(tmp_path / "x", {"a": 1}) is False
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x"]


def test_a_disk_that_takes_a_few_bytes_at_a_time_gets_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda handle, octets: write(handle, octets[:7]))
    written = disk.write(tmp_path / "x", [bytes(range(100))])
    assert (tmp_path / "x").read_bytes() == bytes(range(100))
    assert disk.fault_of(tmp_path / "x", written) is None


def test_of_a_file_that_could_not_be_written_nothing_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space left"):
            disk.write(tmp_path / "x", [b"x"])
        with pytest.raises(OSError, match="No space left"):
            disk.create(tmp_path / "x", {"a": 1})
    assert list(tmp_path.iterdir()) == []
    assert disk.create(tmp_path / "x", {"a": 1})


def test_without_hard_links_what_is_there_is_not_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    assert disk.create(tmp_path / "x", {"a": 1}) is True
    assert disk.create(tmp_path / "x", {"a": 2}) is False
    assert disk.read(tmp_path / "x") == {"a": 1}


def test_a_link_whose_answer_was_lost_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def answers_late(*args: Any) -> None:
        link(*args)
        link(*args)  # the client sends it once more

    monkeypatch.setattr(os, "link", answers_late)
    assert disk.create(tmp_path / "x", {"a": 1}) is True
    assert disk.create(tmp_path / "x", {"a": 2}) is False


# With numpy, where it is installed


@pytest.fixture
def numpy() -> Any:
    return pytest.importorskip("numpy", reason="numpy is not installed here: states with its arrays are not tested")


def test_arrays_of_numpy_come_back_writable_and_of_their_kind(numpy: Any) -> None:
    state = {
        "plain": numpy.arange(12, dtype="float32").reshape(3, 4),
        "fortran": numpy.asfortranarray(numpy.arange(6).reshape(2, 3)),
        "strided": numpy.arange(20)[::3],
        "empty": numpy.empty((0, 5)),
        "zero_d": numpy.array(3.5),
        "scalar": numpy.float32(1.25),
        "when": numpy.array(["2026-01-01"], dtype="datetime64[s]"),
        "big_endian": numpy.arange(3, dtype=">i4"),
        "flags": numpy.array([True, False]),
    }
    back = there_and_back(state)
    for name, value in state.items():
        assert type(back[name]) is type(value), name
        assert (back[name].dtype, back[name].shape) == (value.dtype, value.shape), name
        assert numpy.array_equal(back[name], value), name
    back["plain"][0, 0] = 7.0


def test_arrays_of_numpy_that_are_not_plain_memory_are_refused(numpy: Any) -> None:
    for odd in (numpy.array([{}]), numpy.zeros(2, dtype=[("a", "i4")]), numpy.ma.array([1, 2], mask=[0, 1])):
        with pytest.raises(TypeError, match=r"state\['x'\] is a"):
            snapshot.take({"x": odd})


def test_memory_of_an_earlier_snapshot_is_used_again_only_where_it_fits(numpy: Any) -> None:
    first = snapshot.take({"w": numpy.zeros(4), "v": numpy.zeros(4)})
    second = snapshot.take({"w": numpy.ones(4), "v": numpy.ones(5)}, first.kept)
    assert second.kept[0] is first.kept[0]
    assert [len(memory) for memory in second.kept] == [32, 40]


def test_training_may_change_an_array_while_it_is_written(numpy: Any, tmp_path: Path) -> None:
    weights = numpy.zeros(1_000_000)
    with train.Checkpoints(tmp_path, rank=0, world_size=1, keep=None) as checkpoints:
        for step in range(1, 6):
            weights[:] = step
            checkpoints.save(step, {"weights": weights})
            weights[:] = -1
    for _ in range(5):
        with train.Checkpoints(tmp_path, rank=0, world_size=1) as later:
            assert (later.load()["weights"] == later.resumed.step).all()
            (later.resumed.path / "manifest.json").unlink()


def test_a_shard_with_arrays_of_a_library_that_is_missing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)  # as if it were not installed
    header = b'{"tree": ["n", "<f4", [1], false, 0], "sizes": [4], "order": "%s"}' % sys.byteorder.encode()
    shard = MAGIC + len(header).to_bytes(8, "little") + header + bytes(4)
    with pytest.raises(NotAShard, match="arrays of numpy, which is not installed here"):
        restored("state", shard)
