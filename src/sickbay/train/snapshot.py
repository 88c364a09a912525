"""Snapshot of a training state: a copy that a background thread can write while training goes on.

What is saved comes back equal, of the same type and in the same order, or is refused at once by its name. Only these
are let go of: an array comes back in plain memory (not mapped from a file, rows first), a tensor on the CPU and
detached; one array under two names comes back as two. How it lies in the file: sickbay.train.shard.
"""

import ctypes
import json
import sys
from array import array
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sickbay.train.shard import BYTES, FACTORIES, MAGIC, STATE, TENSOR, TYPECODES

SMALL = 1 << 63  # JSON readers of other languages are happy with these
DEPTH = 100  # containers within containers: the caller that restores it may itself stand deep in calls
KEY, ATTRIBUTES = object(), object()  # steps of a path that are not in brackets

Buffer = bytes | bytearray | memoryview


class SnapshotParts(NamedTuple):
    """`parts` are what the file will be, in order. `kept` is the memory behind them, to be used again next time."""

    form: str
    parts: tuple[Buffer, ...]
    kept: list[Any]


class NotAState(TypeError):  # noqa: N818
    """The state holds something that has no place in a shard."""


def take(state: object, reuse: Iterable[Any] = ()) -> SnapshotParts:
    """A copy of everything that could change. `reuse`: what an earlier snapshot kept, once it is written.

    Memory that was used before is already mapped (and, for tensors on a GPU, pinned), which makes the copy cheaper.
    """
    if type(state) is bytes:
        return SnapshotParts(BYTES, (state,), [])
    taking = _Taking(reuse)
    try:
        tree = taking.tree(state)
        sizes = [len(part) for part in taking.parts]
        header = json.dumps({"tree": tree, "sizes": sizes, "order": sys.byteorder}).encode()
    except RecursionError:
        raise NotAState(f"the state contains itself, or is nested more than {DEPTH} deep") from None
    taking.settle()
    return SnapshotParts(STATE, (MAGIC, len(header).to_bytes(8, "little"), header, *taking.parts), taking.kept)


class _Taking:
    """One walk through a state. What is not exactly of a known type is refused: it would come back as another."""

    def __init__(self, reuse: Iterable[Any]) -> None:
        self.path: list[object] = []
        self.parts: list[Buffer] = []
        self.kept: list[Any] = []
        # By size, not by place or name: each buffer is given out once, whatever has become of the state since.
        self.free: defaultdict[tuple[bool, int], list[Any]] = defaultdict(list)
        for host in reversed(list(reuse)):
            self.free[not isinstance(host, Buffer), len(host)].append(host)
        self.copying: set[Any] = set()  # GPUs that must finish before the copies may be read
        self.numpy: Any = sys.modules.get("numpy")  # a state can hold their arrays only if they are loaded
        self.torch: Any = sys.modules.get("torch")

    def settle(self) -> None:
        for device in self.copying:
            self.torch.cuda.synchronize(device)

    def tree(self, value: Any) -> Any:
        if value is None or type(value) in {bool, float}:
            return value
        if (write := WRITE.get(type(value))) is not None:
            return write(self, value)
        if self.torch is not None and isinstance(value, self.torch.Tensor):
            return self.tensor(value)
        if self.numpy is not None and isinstance(value, self.numpy.ndarray | self.numpy.generic):
            return self.ndarray(value)
        for plain in (float, *WRITE):
            if isinstance(value, plain):
                name = plain.__name__
                raise self.refusal(value, f", which would come back as a plain {name}: save {name}(…) of it")
        raise self.refusal(
            value,
            ": a state is made of None, numbers, text, bytes, lists, tuples, dicts,"
            " arrays of numpy and tensors of torch; turn it into these (state_dict()), or into bytes",
        )

    def refusal(self, value: object, why: str) -> NotAState:
        return NotAState(f"{_place(self.path)} is a {_kind(value)}{why}")

    def below(self, step: object, value: object, walk: Callable[[Any], Any]) -> Any:
        if len(self.path) == DEPTH:
            raise RecursionError
        self.path.append(step)
        node = walk(value)
        self.path.pop()
        return node

    def integer(self, value: int) -> Any:
        return value if -SMALL <= value < SMALL else ["i", hex(value)]

    def text(self, value: str) -> Any:
        try:
            value.encode()
        except UnicodeEncodeError:  # surrogates, and JSON would join two of them to one letter
            return ["u", value.encode("utf-8", "surrogatepass").hex()]
        return value

    def items(self, value: Sequence[object], walk: Callable[[Any], Any]) -> list[Any]:
        return [self.below(index, one, walk) for index, one in enumerate(value)]

    def pairs(self, value: Mapping[Any, object]) -> list[Any]:
        return [[self.below(KEY, key, self.key), self.below(key, one, self.tree)] for key, one in value.items()]

    def key(self, key: object) -> Any:
        if type(key) is tuple:
            return ["t", self.items(key, self.key)]
        if type(key) in KEYS or (self.numpy is not None and isinstance(key, self.numpy.generic)):
            return self.tree(key)
        raise self.refusal(key, ": keys are None, numbers, text, bytes or tuples of these")

    def ordered(self, value: OrderedDict[Any, Any]) -> Any:
        return ["o", self.pairs(value), self.below(ATTRIBUTES, vars(value), self.pairs)]  # torch leaves _metadata there

    def defaults(self, value: defaultdict[Any, Any]) -> Any:
        factory: Any = value.default_factory
        name = None if factory is None else getattr(factory, "__name__", "")
        if name is not None and FACTORIES.get(name) is not factory:
            raise self.refusal(value, f" that makes something else than {', '.join(FACTORIES)}: save dict(…) of it")
        return ["f", name, self.pairs(value)]

    def part(self, octets: Buffer) -> int:
        self.parts.append(octets)
        return len(self.parts) - 1

    def host(self, size: int, *, pinned: bool = False) -> Any:
        """Memory for one copy."""
        free = self.free[pinned, size]
        if free:
            host = free.pop()
        elif pinned:
            host = self.torch.empty(size, dtype=self.torch.uint8, device="cpu", pin_memory=True)
        elif self.numpy is not None:
            host = memoryview(self.numpy.empty(size, self.numpy.uint8))  # a bytearray is filled with zeros first
        else:
            host = bytearray(size)
        self.kept.append(host)
        return host

    def octets(self, value: bytearray | memoryview) -> int:
        host = self.host(len(value))
        # Through a view: assigning to a slice of a bytearray would copy twice.
        memoryview(host)[:] = value
        return self.part(host)

    def view(self, value: memoryview) -> Any:
        if value.ndim != 1 or value.format != "B":
            raise self.refusal(value, f" of {value.format!r} in {value.ndim} dimensions: save the array that it shows")
        return ["m", value.readonly, self.octets(value)]

    def numbers(self, value: Any) -> Any:
        if value.typecode not in TYPECODES:
            raise self.refusal(value, f" of {value.typecode!r}: save its text")
        return ["a", value.typecode, self.octets(memoryview(value).cast("B"))]

    def ndarray(self, value: Any) -> Any:
        numpy, kind, dtype = self.numpy, type(value), value.dtype
        if dtype.hasobject or dtype.names is not None:
            raise NotAState(f"{_place(self.path)} is an array of {dtype}: save its plain columns one by one")
        scalar = isinstance(value, numpy.generic)
        if kind not in ({dtype.type} if scalar else {numpy.ndarray, numpy.memmap}):
            raise self.refusal(value, ": save the plain arrays that it is made of")
        if kind is numpy.str_ or kind is numpy.bytes_:  # an array of them drops zeros at their end
            return ["s", kind.__name__, self.tree(str.__str__(value) if kind is numpy.str_ else bytes(value))]
        tag, name = self.dtype(dtype)
        source = numpy.asarray(value)
        if scalar:
            return [tag, name, [], True, self.part(source.tobytes())]
        host = self.host(source.nbytes)
        if host:
            numpy.copyto(numpy.ndarray(source.shape, dtype, buffer=host), source)
        return [tag, name, list(source.shape), False, self.part(host)]

    def dtype(self, dtype: Any) -> tuple[str, str]:
        """A name from which the same dtype can be made, and the tag of those who make it."""
        if dtype.type.__module__ == "ml_dtypes" and dtype.isnative:
            return "x", dtype.type.__name__
        name: str = dtype.str
        if dtype.type.__module__ == "numpy" and self.numpy.dtype(name) == dtype:
            return "n", name if self.numpy.dtype(name).char == dtype.char else name[0] + dtype.char  # long long
        raise NotAState(f"{_place(self.path)} is an array of {dtype}, which is not of numpy itself: save it as another")

    def tensor(self, value: Any) -> Any:
        torch = self.torch
        if (
            type(value) not in {torch.Tensor, torch.nn.Parameter}
            or value.layout is not torch.strided
            or value.is_quantized
            or value.is_nested
            or value.is_meta
        ):
            raise self.refusal(value, " that is not plain memory: save it with sickbay.train.torch, or its parts")
        name = str(value.dtype).removeprefix("torch.")
        if not TENSOR.fullmatch(name):
            raise self.refusal(value, f" of {value.dtype}, which torch cannot copy: save it as another")
        source = value.detach().resolve_conj().resolve_neg()
        size = source.numel() * source.element_size()
        with torch.inference_mode(False):  # what is allocated within it could not be written to outside it
            host = self.host(size, pinned=source.is_cuda)
            if size:
                self.copy(source, host)
        return ["p", name, list(source.shape), self.part(host if isinstance(host, Buffer) else _pinned(host))]

    def copy(self, source: Any, host: Any) -> None:
        torch = self.torch
        flat = host.view(source.dtype) if source.is_cuda else torch.frombuffer(host, dtype=source.dtype)
        flat.view(source.shape).copy_(source, non_blocking=source.is_cuda)
        if source.is_cuda:
            self.copying.add(source.device)


WRITE: Final[dict[type, Callable[[_Taking, Any], Any]]] = {
    int: _Taking.integer,
    str: _Taking.text,
    complex: lambda _, value: ["c", value.real, value.imag],
    list: lambda taking, value: ["l", taking.items(value, taking.tree)],
    tuple: lambda taking, value: ["t", taking.items(value, taking.tree)],
    OrderedDict: _Taking.ordered,
    defaultdict: _Taking.defaults,
    dict: lambda taking, value: ["d", taking.pairs(value)],
    bytes: lambda taking, value: ["b", taking.part(value)],
    bytearray: lambda taking, value: ["y", taking.octets(value)],
    memoryview: _Taking.view,
    array: _Taking.numbers,
}
KEYS = frozenset({type(None), bool, int, float, complex, str, bytes})


def _pinned(host: Any) -> memoryview:
    """Not through numpy: it may be missing."""
    octets: Any = (ctypes.c_ubyte * len(host)).from_address(host.data_ptr())
    octets.host = host  # lives as long as the view
    return memoryview(octets)


def _place(path: list[object]) -> str:
    text = "state"
    for step in path:
        if step is KEY:
            text = f"a key of {text}"
        else:
            text += ".__dict__" if step is ATTRIBUTES else f"[{_said(step)}]"
    return text


def _said(step: object) -> str:
    try:
        said = repr(step)
    except ValueError:  # an integer that Python refuses to write out
        said = "a huge number"
    return said if len(said) <= 100 else f"{said[:100]}…"


def _kind(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
