"""Training states for tests: there and back, compared to the last bit, and scrambled in place."""

import math
import sys
from array import array
from collections.abc import Iterable, Mapping
from io import BytesIO
from random import Random
from typing import Any

from sickbay.train import snapshot
from sickbay.train.shard import restore


def file_of(shot: snapshot.SnapshotParts) -> bytes:
    return b"".join(bytes(part) for part in shot.parts)


def restored(form: str, octets: bytes | bytearray | BytesIO) -> Any:
    """What a file of these bytes holds."""
    file = octets if isinstance(octets, BytesIO) else BytesIO(octets)
    return restore(form, file, len(file.getvalue()))


def there_and_back(state: object) -> Any:
    shot = snapshot.take(state)
    return restored(shot.form, file_of(shot))


def same(one: Any, other: Any) -> bool:
    """Of one type, equal and in one order all the way down. 1, 1.0 and True differ, NaN equals NaN, 0.0 is not -0.0."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float) and type(one) is float:
        if math.isnan(one):
            return math.isnan(other)
        return (one, math.copysign(1, one)) == (other, math.copysign(1, other))
    if isinstance(one, complex) and type(one) is complex:
        return same(one.real, other.real) and same(one.imag, other.imag)
    if isinstance(one, Mapping):
        return _same_pairs(one, other)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, str | bytes):  # letter by letter: numpy's scalars overlook zeros at the end
        return list(one) == list(other)
    if isinstance(one, array):
        return bool(one.typecode == other.typecode and one.tobytes() == other.tobytes())
    if isinstance(one, memoryview):
        return bool(one.readonly == other.readonly and one.tobytes() == other.tobytes())
    if hasattr(one, "dtype"):
        return _same_arrays(one, other)
    return bool(one == other)


def _same_pairs(one: Mapping[Any, Any], other: Mapping[Any, Any]) -> bool:
    if getattr(one, "default_factory", None) is not getattr(other, "default_factory", None):
        return False
    if not same(getattr(one, "__dict__", None), getattr(other, "__dict__", None)):
        return False
    return same([list(pair) for pair in one.items()], [list(pair) for pair in other.items()])


def _same_arrays(one: Any, other: Any) -> bool:
    if (torch := sys.modules.get("torch")) and isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and _octets(one) == _octets(other)
    if (one.dtype, one.dtype.char, one.shape) != (other.dtype, other.dtype.char, other.shape):
        return False
    if one.dtype.char in "gG":  # there is padding in them
        return bool(sys.modules["numpy"].array_equal(one, other, equal_nan=True))
    return bool(one.tobytes() == other.tobytes())


def _octets(tensor: Any) -> list[int]:
    whole = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().flatten()
    flat: list[int] = whole.view(sys.modules["torch"].uint8).tolist() if whole.numel() else []
    return flat


def copied(state: Any) -> Any:
    """A deep copy that knows more than copy.deepcopy: memoryviews, and the keys as they are."""
    if isinstance(state, Mapping):
        copy = type(state)()
        if hasattr(state, "default_factory"):
            copy.default_factory = state.default_factory  # type: ignore[attr-defined]
        for key, value in state.items():
            copy[key] = copied(value)  # type: ignore[index]
        for name, value in getattr(state, "__dict__", {}).items():
            setattr(copy, name, copied(value))
        return copy
    if isinstance(state, list | tuple):
        return type(state)([copied(value) for value in state])
    if isinstance(state, memoryview):
        return memoryview(state.tobytes() if state.readonly else bytearray(state.tobytes()))
    if isinstance(state, bytearray):
        return bytearray(state)
    if isinstance(state, array):
        return array(state.typecode, state)
    if (numpy := sys.modules.get("numpy")) and isinstance(state, numpy.ndarray):
        return state.copy()
    return state


def scramble(state: Any, chance: Random) -> None:
    """Training goes on: every buffer is written over, every container is changed, in place."""
    if isinstance(state, dict):
        for value in list(state.values()):
            scramble(value, chance)
        for key in chance.sample(list(state), len(state) // 2):
            if chance.random() < 0.5:
                del state[key]
            else:
                state[key] = chance.random()
        state[f"new {chance.random()}"] = bytearray(b"new")
    elif isinstance(state, list):
        _scramble_all(state, chance)
        state.insert(chance.randint(0, len(state)), bytearray(chance.randbytes(3)))
    elif isinstance(state, tuple):
        _scramble_all(state, chance)
    elif isinstance(state, bytearray | memoryview):
        view = memoryview(state)
        if not view.readonly:
            view[:] = chance.randbytes(len(view))
    elif isinstance(state, array):
        for index in range(len(state)):
            state[index] = 1
    elif (numpy := sys.modules.get("numpy")) and isinstance(state, numpy.ndarray) and state.size:
        state[...] = (
            numpy.frombuffer(chance.randbytes(1) * state.dtype.itemsize, state.dtype)[0]
            if state.dtype.kind != "U"
            else "x"
        )


def _scramble_all(values: Iterable[Any], chance: Random) -> None:
    for value in values:
        scramble(value, chance)
