"""A copy of a training state that a background thread can write while training goes on, and the way back.

A shard has one of two forms. `bytes`: the state was bytes, and the file is those bytes and nothing else. `state`: the
line MAGIC, the length of a JSON header (8 bytes, little endian), the header, then the raw contents of all arrays. The
header holds the tree of the state; arrays in it are named by their number. Reading one never runs code that a
file names, unlike a pickle.
"""

import ctypes
import json
import sys
from array import array
from collections.abc import Iterator, Mapping
from io import BufferedIOBase
from typing import Any, NamedTuple

MAGIC = b"sickbay-state 1\n"
BYTES, STATE = "bytes", "state"
SMALL = 1 << 63  # JSON readers of other languages are happy with these

Buffer = bytes | bytearray | memoryview


class Snapshot(NamedTuple):
    """`parts` are what the file will be, in order. `kept` holds what they point into, to be used again next time."""

    form: str
    parts: tuple[Buffer, ...]
    kept: dict[str, Any]


class NotAState(TypeError):  # noqa: N818
    """The state holds something that has no place in a shard."""


def take(state: object, reuse: Mapping[str, Any] | None = None) -> Snapshot:
    """A copy of everything that could change. `reuse`: what an earlier snapshot kept, once it is written.

    Memory that was used before is already mapped (and, for tensors on a GPU, pinned), which makes the copy cheaper.
    """
    if isinstance(state, bytes):
        return Snapshot(BYTES, (state,), {})
    taking = _Taking(reuse or {})
    try:
        tree = taking.tree(state, "state")
        sizes = [len(part) for part in taking.parts]
        header = json.dumps({"tree": tree, "sizes": sizes, "order": sys.byteorder}).encode()
    except RecursionError:
        raise NotAState("the state contains itself, or is nested too deeply to be saved") from None
    taking.settle()
    return Snapshot(STATE, (MAGIC, len(header).to_bytes(8, "little"), header, *taking.parts), taking.kept)


class _Taking:
    """One walk through a state. Containers become tagged lists: JSON knows neither tuples nor keys that are numbers."""

    def __init__(self, reuse: Mapping[str, Any]) -> None:
        self.reuse = reuse
        self.parts: list[Buffer] = []
        self.kept: dict[str, Any] = {}
        self.copying: set[Any] = set()  # GPUs that must finish before the copies may be read
        self.numpy: Any = sys.modules.get("numpy")  # a state can hold their arrays only if they are loaded
        self.torch: Any = sys.modules.get("torch")

    def settle(self) -> None:
        for device in self.copying:
            self.torch.cuda.synchronize(device)

    def tree(self, value: object, path: str) -> Any:
        kind = type(value)
        if value is None or kind in {bool, float, str}:
            return value
        if kind is int:
            assert isinstance(value, int)
            return value if -SMALL <= value < SMALL else ["i", hex(value)]
        if isinstance(value, dict):
            pairs = [[self.key(k, path), self.tree(v, f"{path}[{k!r}]")] for k, v in value.items()]
            return ["d", pairs]
        if isinstance(value, list) or kind is tuple:
            tag = "l" if isinstance(value, list) else "t"
            return [tag, [self.tree(one, f"{path}[{index}]") for index, one in enumerate(value)]]  # type: ignore[arg-type, var-annotated]
        return self.leaf(value, path)

    def key(self, key: object, path: str) -> Any:
        if key is None or isinstance(key, bool | int | float | str | bytes | tuple):
            return self.tree(key, f"a key of {path}")
        raise NotAState(f"a key of {path} is a {_kind(key)}: keys are None, numbers, text, bytes or tuples of these")

    def leaf(self, value: object, path: str) -> Any:
        if isinstance(value, bytes):
            return ["b", self.part(value)]
        if isinstance(value, bytearray | memoryview):
            return ["b", self.octets(memoryview(value), path)]
        if isinstance(value, array) and value.typecode != "u":
            return ["a", value.typecode, self.octets(memoryview(value), path)]
        if self.torch is not None and isinstance(value, self.torch.Tensor):
            return self.tensor(value, path)
        if self.numpy is not None and isinstance(value, self.numpy.ndarray | self.numpy.generic):
            return self.ndarray(value, path)
        raise NotAState(
            f"{path} is a {_kind(value)}: a state is made of None, numbers, text, bytes, lists, tuples, dicts,"
            " arrays of numpy and tensors of torch; turn it into these (state_dict()), or into bytes"
        )

    def part(self, octets: Buffer) -> int:
        self.parts.append(octets)
        return len(self.parts) - 1

    def octets(self, value: memoryview, path: str) -> int:
        host = self.reuse.get(path)
        if not (isinstance(host, bytearray) and len(host) == value.nbytes):
            host = bytearray(value.nbytes)
        if host:
            # Through a view: assigning to a slice of a bytearray would copy twice.
            memoryview(host)[:] = value.cast("B") if value.contiguous else value.tobytes()
        self.kept[path] = host
        return self.part(host)

    def ndarray(self, value: Any, path: str) -> Any:
        if value.dtype.hasobject or value.dtype.names:
            raise NotAState(f"{path} is an array of {value.dtype}: save its plain columns one by one")
        if isinstance(value, self.numpy.ndarray) and type(value) not in {self.numpy.ndarray, self.numpy.memmap}:
            raise NotAState(f"{path} is a {_kind(value)}: save the plain arrays that it is made of")
        scalar, dtype, shape = isinstance(value, self.numpy.generic), value.dtype.str, list(value.shape)
        source = self.numpy.asarray(value)
        host = self.reuse.get(path)
        if not (isinstance(host, self.numpy.ndarray) and (host.dtype, host.shape) == (source.dtype, source.shape)):
            host = self.numpy.empty(source.shape, source.dtype)
        self.numpy.copyto(host, source)
        self.kept[path] = host
        return ["n", dtype, shape, scalar, self.part(memoryview(host.reshape(-1).view(self.numpy.uint8)))]

    def tensor(self, value: Any, path: str) -> Any:
        if value.layout is not self.torch.strided or value.is_quantized or hasattr(value, "to_local"):
            raise NotAState(
                f"{path} is a {_kind(value)} that is not plain memory: save it with sickbay.train.torch, or its parts"
            )
        source = value.detach().resolve_conj().resolve_neg()
        host: Any = self.reuse.get(path)
        fits = isinstance(host, self.torch.Tensor) and (host.dtype, host.shape) == (source.dtype, source.shape)
        if not fits:
            host = self.torch.empty(source.shape, dtype=source.dtype, pin_memory=source.is_cuda)
        host.copy_(source, non_blocking=source.is_cuda)
        if source.is_cuda:
            self.copying.add(source.device)
        self.kept[path] = host
        size = host.numel() * host.element_size()
        # Not through numpy: it may be missing, and knows no bfloat16.
        octets = memoryview((ctypes.c_ubyte * size).from_address(host.data_ptr())) if size else b""
        return ["p", str(source.dtype).removeprefix("torch."), list(source.shape), self.part(octets)]


def _kind(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


class NotAShard(ValueError):  # noqa: N818
    """The file is whole, but this code cannot read it: another version wrote it, or the library it needs is missing."""


def restore(form: str, file: BufferedIOBase) -> Any:
    """The state that was saved. Arrays are writable and belong to the caller alone."""
    if form == BYTES:
        return file.read()
    if form != STATE or file.read(len(MAGIC)) != MAGIC:
        raise NotAShard(f"it has the form {form!r}, which this version of sickbay cannot read")
    header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    if header["order"] != sys.byteorder:
        raise NotAShard(f"it was written on a {header['order']} endian machine")
    return _tree(header["tree"], list(_buffers(file, header["sizes"])))


def _buffers(file: BufferedIOBase, sizes: list[int]) -> Iterator[bytearray]:
    for size in sizes:
        buffer = bytearray(size)
        if file.readinto(buffer) != size:
            raise NotAShard("it ends too early")
        yield buffer


def _tree(node: Any, buffers: list[bytearray]) -> Any:
    if not isinstance(node, list):
        return node
    match node:
        case ["i", text]:
            return int(text, 16)
        case ["d", pairs]:
            return {_tree(key, buffers): _tree(value, buffers) for key, value in pairs}
        case ["l", items]:
            return [_tree(item, buffers) for item in items]
        case ["t", items]:
            return tuple(_tree(item, buffers) for item in items)
        case ["b", number]:
            return bytes(buffers[number])
        case ["a", typecode, number]:
            return array(typecode, bytes(buffers[number]))
        case ["n", dtype, shape, scalar, number]:
            whole = _ndarray(_library("numpy"), dtype, shape, buffers[number])
            return whole[()] if scalar else whole
        case ["p", dtype, shape, number]:
            return _tensor(_library("torch"), dtype, shape, buffers[number])
    raise NotAShard(f"it holds a {node[0]!r}, which this version of sickbay does not know")


def _ndarray(numpy: Any, dtype: str, shape: list[int], buffer: bytearray) -> Any:
    return numpy.frombuffer(buffer, dtype=dtype).reshape(shape) if buffer else numpy.empty(shape, dtype=dtype)


def _tensor(torch: Any, dtype: str, shape: list[int], buffer: bytearray) -> Any:
    kind = getattr(torch, dtype)
    return torch.frombuffer(buffer, dtype=kind).reshape(shape) if buffer else torch.empty(shape, dtype=kind)


def _library(name: str) -> Any:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError:
        raise NotAShard(f"it holds arrays of {name}, which is not installed here") from None
