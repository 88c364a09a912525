"""Shard format: how a training state lies in a file, and the way back from it, without pickle.

A shard has one of two forms. `bytes`: the state was bytes, and the file is those bytes and nothing else. `state`: the
line MAGIC, the length of a JSON header (8 bytes, little endian), the header, then its parts: the raw contents of
everything that is memory. The header holds the tree of the state and the sizes of the parts; the tree names them by
their number, in the order of the file. Reading one never runs code that a file names, unlike a pickle.

In the tree None, booleans, text, floats and small integers stand for themselves; JSON knows no more than these, so all
else is a list that begins with a tag. Tags are added and never change: an older sickbay says that it does not know one.

    i  integer, in hex       l  list      b  bytes        n  numpy: dtype, shape, whether it is a scalar, part
    u  text in surrogates    t  tuple     y  bytearray    x  numpy, with a dtype of ml_dtypes
    c  complex               d  dict      m  memoryview   s  numpy.str_ or numpy.bytes_
    o  OrderedDict           f  defaultdict               p  torch: dtype, shape, part
                                          a  array.array: typecode, part
"""

import json
import math
import re
import sys
from array import array
from collections import OrderedDict, defaultdict
from importlib import import_module
from typing import Any, Protocol

MAGIC = b"sickbay-state 1\n"
BYTES, STATE = "bytes", "state"
TYPECODES = "bBhHiIlLqQfd"
FACTORIES = {made.__name__: made for made in (bool, int, float, str, bytes, list, tuple, dict, set, OrderedDict)}
DTYPE = re.compile(r"[<>|]([biufcSUV]\d{1,9}|[mM]8(\[\d*\w+\])?|[qQ])")
TENSOR = re.compile(r"bool|u?int(8|16|32|64)|b?float\d+(_\w+)?|complex\d+|bits(8|16)")  # whole bytes, not quantized
NONSENSE = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


class NotAShard(ValueError):  # noqa: N818
    """The file is whole, but this code cannot read it: another version wrote it, or the library it needs is missing."""


class Source(Protocol):
    """A file that is read from its beginning, once."""

    def read(self, size: int = -1, /) -> bytes: ...

    def readinto(self, buffer: bytearray | memoryview, /) -> int: ...


def restore(form: str, file: Source, size: int) -> Any:
    """The state that was saved, in a file of so many bytes. Arrays are writable and belong to the caller alone.

    Whatever the header says, no array is made that is larger than what is left of the file.
    """
    if form == BYTES:
        return file.read()
    if form != STATE or file.read(len(MAGIC)) != MAGIC:
        raise NotAShard(f"it has the form {form!r}, which this version of sickbay cannot read")
    try:
        return _Reading(file, size - len(MAGIC)).state()
    except NotAShard:
        raise
    except NONSENSE as why:  # a header can be wrong in as many ways as there are bytes in it
        raise NotAShard(f"its header makes no sense ({type(why).__name__}: {why})") from why


class _Reading:
    """One way through a file: its parts lie in the order in which the tree names them."""

    def __init__(self, file: Source, left: int) -> None:
        self.file = file
        self.left = left
        self.sizes: list[int] = []
        self.next = 0

    def state(self) -> Any:
        length = int.from_bytes(self.octets(8), "little")
        header = json.loads(self.octets(length), parse_constant=float)  # two NaN are two keys, if they are two objects
        if header["order"] != sys.byteorder:
            raise NotAShard(f"it was written on a {header['order']} endian machine")
        self.sizes = header["sizes"]
        if not all(type(size) is int and size >= 0 for size in self.sizes) or sum(self.sizes) < self.left:
            raise NotAShard("its header does not name all that is in it")
        if sum(self.sizes) > self.left:
            raise NotAShard("it ends too early")
        state = self.tree(header["tree"])
        if self.next != len(self.sizes):
            raise NotAShard("its header does not name all that is in it")
        return state

    def octets(self, size: int) -> bytearray:
        if size > self.left:
            raise NotAShard("it ends too early")
        buffer = bytearray(size)
        self.fill(buffer)
        return buffer

    def fill(self, buffer: bytearray | memoryview) -> None:
        if self.file.readinto(buffer) != len(buffer):
            raise NotAShard("it ends too early")
        self.left -= len(buffer)

    def size(self, number: int) -> int:
        if number != self.next:
            raise NotAShard(f"it holds part {number} where part {self.next} is due")
        self.next += 1
        return self.sizes[number]

    def part(self, number: int) -> bytearray:
        return self.octets(self.size(number))

    def tree(self, node: Any) -> Any:
        if not isinstance(node, list | dict):
            return node
        match node:
            case ["i", text]:
                return int(text, 16)
            case ["u", text]:
                return bytes.fromhex(text).decode("utf-8", "surrogatepass")
            case ["c", real, imaginary]:
                return complex(real, imaginary)
            case ["d", pairs]:
                return self.mapping(pairs)
            case ["o", pairs, attributes]:
                ordered = OrderedDict(self.mapping(pairs))
                vars(ordered).update(self.mapping(attributes))
                return ordered
            case ["f", factory, pairs]:
                return defaultdict(FACTORIES[factory] if factory is not None else None, self.mapping(pairs))
            case ["l", items]:
                return [self.tree(item) for item in items]
            case ["t", items]:
                return tuple([self.tree(item) for item in items])
            case ["b", number]:
                return self.fixed(number)
            case ["y", number]:
                return self.part(number)
            case ["m", readonly, number]:
                return memoryview(self.fixed(number) if readonly else self.part(number))
            case ["a", typecode, number]:
                return self.numbers(typecode, number)
            case ["n", dtype, shape, scalar, number]:
                return self.ndarray(_numpy_dtype(dtype), shape, scalar, number)
            case ["x", dtype, shape, scalar, number]:
                return self.ndarray(_extension_dtype(dtype), shape, scalar, number)
            case ["s", "str_" | "bytes_" as kind, value]:
                return getattr(_library("numpy"), kind)(self.tree(value))
            case ["p", dtype, shape, number]:
                return self.tensor(dtype, shape, number)
        tag = node[0] if isinstance(node, list) and node else node
        raise NotAShard(f"it holds a {tag!r:.40}, which this version of sickbay does not know")

    def mapping(self, pairs: list[Any]) -> dict[Any, Any]:
        items = [(self.tree(key), self.tree(value)) for key, value in pairs]
        found = dict(items)
        if len(found) != len(items):  # an early version mixed up keys that were scalars of numpy
            raise NotAShard("it holds a dict with two keys that are equal: what was saved there is lost")
        return found

    def fixed(self, number: int) -> bytes:
        size = self.size(number)
        if size > self.left or len(found := self.file.read(size)) != size:
            raise NotAShard("it ends too early")
        self.left -= size
        return found

    def numbers(self, typecode: str, number: int) -> Any:
        if typecode not in TYPECODES:
            raise NotAShard(f"it holds an array of {typecode!r}")
        one, size = array(typecode, [0]), self.size(number)
        found = one * _count(size, one.itemsize)
        if found:
            self.fill(memoryview(found).cast("B"))
        return found

    def ndarray(self, dtype: Any, shape: list[int], scalar: bool, number: int) -> Any:
        self.check(shape, dtype.itemsize, number)
        whole = _library("numpy").ndarray(shape, dtype, buffer=self.part(number))
        return whole[()] if scalar else whole

    def tensor(self, dtype: str, shape: list[int], number: int) -> Any:
        if not TENSOR.fullmatch(dtype):
            raise NotAShard(f"it holds a tensor of {dtype!r:.40}")
        torch = _library("torch")
        kind = getattr(torch, dtype, None)
        if kind is None:
            raise NotAShard(f"it holds a tensor of {dtype}, which the torch that is installed here lacks")
        self.check(shape, torch.empty((), dtype=kind, device="cpu").element_size(), number)
        buffer = self.part(number)
        flat = torch.frombuffer(buffer, dtype=kind) if buffer else torch.empty(0, dtype=kind, device="cpu")
        return flat.reshape(shape)

    def check(self, shape: list[int], itemsize: int, number: int) -> None:
        """Before anything is allocated: what an array says of itself is what lies in the file."""
        if not all(type(length) is int and length >= 0 for length in shape):
            raise NotAShard(f"it holds an array of the shape {shape}")
        if math.prod(shape) * itemsize != self.sizes[number]:
            raise NotAShard(f"part {number} has {self.sizes[number]} bytes, not those of an array of {shape}")


def _count(size: int, itemsize: int) -> int:
    if size % itemsize:
        raise NotAShard(f"{size} bytes are no whole number of items")
    return size // itemsize


def _numpy_dtype(text: str) -> Any:
    if not DTYPE.fullmatch(text):  # above all not "O": a file would name addresses
        raise NotAShard(f"it holds an array of {text!r:.40}")
    return _library("numpy").dtype(text)


def _extension_dtype(name: str) -> Any:
    numpy, kind = _library("numpy"), getattr(_library("ml_dtypes"), name, None)
    if not (isinstance(kind, type) and issubclass(kind, numpy.generic)):
        raise NotAShard(f"it holds an array of ml_dtypes.{name}, which the ml_dtypes that is installed here lacks")
    return numpy.dtype(kind)


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise NotAShard(f"it holds arrays of {name}, which is not installed here") from None
