"""Patterns in a GPU's memory: written by one kernel, read and compared by another."""

import ctypes
import struct
import time
from contextlib import ExitStack
from typing import Any, Final

from sickbay.agent.checks import CouldNotRun, Result
from sickbay.agent.cuda import ptx
from sickbay.agent.cuda.driver import MULTIPROCESSORS, THREADS, Cuda

GIB: Final = 1 << 30
WORD: Final = 8
ALL: Final = (1 << 64) - 1
PIECE: Final = 8 * GIB  # memory is taken in pieces, so that a fragmented one is taken too
LEFT_FREE: Final = 512 << 20  # for the driver's own needs

Pattern = tuple[str, int, int, int]  # name, kind, seed, mask
# Written over all, then read and compared, one after the other.
ROUNDS: Final[tuple[Pattern, ...]] = (
    ("address", ptx.ADDRESS, 0, 0),
    ("address inverted", ptx.ADDRESS, 0, ALL),
    ("random", ptx.RANDOM, 0x5EED, 0),
    ("random inverted", ptx.RANDOM, 0x5EED, ALL),
    ("walking ones", ptx.WALKING, 0, 0),
    ("walking zeros", ptx.WALKING, 0, ALL),
    ("checkerboard", ptx.SOLID, 0xAAAA_AAAA_AAAA_AAAA, 0),
    ("checkerboard inverted", ptx.SOLID, 0xAAAA_AAAA_AAAA_AAAA, ALL),
)


class Found(tuple[int, int, int]):
    """How many words differ, the lowest address of one, all bits that differ."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"the first at address {self[1]:#x}, bits {self[2]:#x}"


class Finder:
    """Where kernels count what differs: three words on the GPU."""

    def __init__(self, cuda: Cuda, at: int) -> None:
        self._cuda, self.at = cuda, at
        self.clear()

    def clear(self) -> None:
        self._cuda.write(self.at, struct.pack("<3Q", 0, ALL, 0))

    def found(self) -> Found:
        self._cuda.wait()
        return Found(struct.unpack("<3Q", self._cuda.read(self.at, 24)))


class Painter:
    """Writes patterns to one GPU's memory and reads them back."""

    def __init__(self, cuda: Cuda, stack: ExitStack) -> None:
        self._cuda = cuda
        self._fill, self._verify = cuda.load(ptx.MEMORY, "fill"), cuda.load(ptx.MEMORY, "verify")
        self._blocks = cuda.attribute(MULTIPROCESSORS) * 32
        self.finder = Finder(cuda, stack.enter_context(cuda.memory(24)))

    def fill(self, at: int, size: int, kind: int, seed: int, mask: int = 0) -> None:
        self._launch(self._fill, at, size, kind, seed, mask)

    def verify(self, at: int, size: int, kind: int, seed: int, mask: int = 0) -> None:
        self._launch(self._verify, at, size, kind, seed, mask, ctypes.c_uint64(self.finder.at))

    def _launch(
        self, kernel: ctypes.c_void_p, at: int, size: int, kind: int, seed: int, mask: int, *more: ctypes.c_uint64
    ) -> None:
        words = (ctypes.c_uint64(value) for value in (at, size // WORD, seed, mask))
        self._cuda.launch(kernel, (self._blocks, 1), THREADS, *words, ctypes.c_uint32(kind), *more)


def kernel(wants: dict[str, Any]) -> Result:
    """A small kernel that answers: 16 MiB of random words, written and read."""
    return _memory(wants, 16 << 20, ROUNDS[2:4])


def memory_some(wants: dict[str, Any]) -> Result:
    """A few GiB, each word written and read twice."""
    return _memory(wants, int(wants.get("gib", 4) * GIB), ROUNDS[:4])


def memory(wants: dict[str, Any]) -> Result:
    """All patterns over a share of the free memory, again until `seconds` are over (once at least)."""
    return _memory(wants, None, ROUNDS)


def _memory(wants: dict[str, Any], size: int | None, patterns: tuple[Pattern, ...]) -> Result:
    cuda = Cuda(wants.get("pci", ""))
    with ExitStack() as stack:
        painter = Painter(cuda, stack)
        pieces = _pieces(cuda, stack, size, wants.get("share", 0.5))
        tested = sum(take for _, take in pieces)
        began, number = time.monotonic(), 0
        while not number or time.monotonic() - began < wants.get("seconds", 0.0):
            for pattern in patterns:
                found = _once(cuda, painter, pieces, pattern, number, wants)
                if found[0]:
                    return Result(
                        f"{found[0]} of {tested // WORD} words read back wrong, {found} (pattern {pattern[0]})",
                        {"tested_gib": tested / GIB, "wrong_words": float(found[0])},
                    )
            number += 1
        moved = 2 * tested * len(patterns) * number
        rate = moved / (time.monotonic() - began) / 1e9
        return Result("", {"tested_gib": tested / GIB, "rounds": float(number), "pattern_gb_per_s": rate})


def _pieces(cuda: Cuda, stack: ExitStack, size: int | None, share: float) -> list[tuple[int, int]]:
    free = cuda.free() - LEFT_FREE
    wanted = size if size is not None else int(free * share)
    if not 0 < wanted <= free:
        raise CouldNotRun(f"{free / GIB:.1f} GiB of its memory are free, {wanted / GIB:.1f} GiB are needed")
    takes = [PIECE] * (wanted // PIECE)
    if rest := wanted % PIECE & ~(WORD - 1):
        takes.append(rest)
    return [(stack.enter_context(cuda.memory(take)), take) for take in takes]


def _once(
    cuda: Cuda, painter: Painter, pieces: list[tuple[int, int]], pattern: Pattern, number: int, wants: dict[str, Any]
) -> Found:
    _, kind, seed, mask = pattern
    # Another seed each time round: walking ones wander, random words are others.
    salt = seed + number if kind in {ptx.WALKING, ptx.RANDOM} else seed
    for at, take in pieces:
        painter.fill(at, take, kind, salt, mask)
    cuda.wait()
    if "spoil" in wants:
        spoil(cuda, pieces[-1][0] + wants["spoil"])
    for at, take in pieces:
        painter.verify(at, take, kind, salt, mask)
    return painter.finder.found()


def spoil(cuda: Cuda, at: int) -> None:
    """For the proof that a fault is found: one bit is turned over behind the kernel's back."""
    cuda.write(at, bytes([cuda.read(at, 1)[0] ^ 1]))
