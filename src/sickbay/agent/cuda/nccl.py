"""An all-reduce over all GPUs of this machine by NCCL, if its library is to be found anywhere."""

import ctypes
import ctypes.util
import struct
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from sickbay.agent.checks import CouldNotRun, Result
from sickbay.agent.cuda import ptx
from sickbay.agent.cuda.driver import Cuda
from sickbay.agent.cuda.patterns import GIB, WORD, Painter

FLOAT, SUM = 7, 0
TIMES: Final = 8
PLACES: Final = (
    "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/local/lib", "/usr/local/cuda/lib64",
    "/usr/local/nccl/lib", "/opt/nccl/build/lib", "/opt/nccl/lib",
)  # fmt: skip
# Where frameworks bring their own along.
ENVIRONMENTS: Final = (
    "opt/*/lib/python3*/site-packages", "opt/*/.venv/lib/python3*/site-packages",
    "usr/local/lib/python3*/*-packages", "usr/lib/python3*/dist-packages",
)  # fmt: skip


def library() -> str:
    """Where it is, or empty."""
    for place in PLACES:
        if (found := Path(place, "libnccl.so.2")).exists():
            return str(found)
    if (found_name := ctypes.util.find_library("nccl")) is not None:
        return found_name
    roots = [Path(entry) for entry in sys.path if entry.endswith("-packages")]
    roots += [path for pattern in ENVIRONMENTS for path in Path("/").glob(pattern)]
    return next((str(path) for root in roots if (path := root / "nvidia/nccl/lib/libnccl.so.2").exists()), "")


class UniqueId(ctypes.Structure):
    """ncclUniqueId: handed from one rank to all others, and to the library by value."""

    _fields_ = (("internal", ctypes.c_ubyte * 128),)


# ncclUnhandledCudaError (a driver too old for this NCCL; what a GPU does wrong we see ourselves), ncclInvalidArgument,
# ncclInvalidUsage: the set-up's, not the fabric's.
SET_UP: Final = frozenset({1, 4, 5})


class NcclError(CouldNotRun):
    """NCCL returned an error. Whether it proves something depends on who asked."""

    def __init__(self, because: str, code: int) -> None:
        super().__init__(because)
        self.code = code


class Nccl:
    def __init__(self, path: str) -> None:
        try:
            self._lib = ctypes.CDLL(path)
        except OSError as error:
            raise CouldNotRun(f"{path} cannot be loaded: {error}") from error
        self._lib.ncclGetErrorString.restype = ctypes.c_char_p

    def do(self, name: str, *args: Any) -> None:
        """NCCL has the same few errors for broken links, missing rights and wrong set-ups: none blames a GPU."""
        code = getattr(self._lib, name)(*args)
        if code:
            text = (self._lib.ncclGetErrorString(code) or b"").decode(errors="replace")
            raise NcclError(f"{name}: {text or code}", code)


class NcclRing:
    """All GPUs, each with what it gives and what it gets; with `shared` they are some among those of many machines."""

    def __init__(
        self, nccl: Nccl, gpus: list[Cuda], size: int, stack: ExitStack, shared: tuple[UniqueId, int, int] | None = None
    ) -> None:
        self._nccl, self._gpus, self._size, self._stack = nccl, gpus, size, stack
        count = len(gpus)
        self._comms = (ctypes.c_void_p * count)()
        self._first, self._total = (0, count) if shared is None else shared[1:]
        if shared is None:
            nccl.do("ncclCommInitAll", self._comms, count, (ctypes.c_int * count)(*(gpu.device for gpu in gpus)))
        else:
            self._join(shared[0])
        self._buffers = []
        for rank, gpu in enumerate(gpus, self._first):
            gpu.enter()
            sent, got = (stack.enter_context(gpu.memory(size)) for _ in range(2))
            (word,) = struct.unpack("<I", struct.pack("<f", float(rank + 1)))
            gpu.set_words(sent, word, size // 4)
            self._buffers.append((sent, got))

    def _join(self, identity: UniqueId) -> None:
        """One group: each waits for all others, so that one after the other would wait for ever."""
        self._nccl.do("ncclGroupStart")
        for at, gpu in enumerate(self._gpus):
            gpu.enter()
            comm = ctypes.byref(self._comms, at * ctypes.sizeof(ctypes.c_void_p))
            self._nccl.do("ncclCommInitRank", comm, self._total, identity, self._first + at)
        self._nccl.do("ncclGroupEnd")

    def once(self) -> float:
        began = time.perf_counter()
        self._nccl.do("ncclGroupStart")
        for gpu, comm, (sent, got) in zip(self._gpus, self._comms, self._buffers, strict=True):
            gpu.enter()
            self._nccl.do(
                "ncclAllReduce", ctypes.c_void_p(sent), ctypes.c_void_p(got), ctypes.c_size_t(self._size // 4),
                FLOAT, SUM, ctypes.c_void_p(comm), gpu.stream,
            )  # fmt: skip
        self._nccl.do("ncclGroupEnd")
        for gpu in self._gpus:
            gpu.enter()
            gpu.wait()
        return time.perf_counter() - began

    def wrong(self) -> str:
        """Rank r gave r + 1 everywhere, so every sum is known."""
        ranks = self._total
        (word,) = struct.unpack("<Q", struct.pack("<2f", *([ranks * (ranks + 1) / 2] * 2)))
        for rank, (gpu, (_, got)) in enumerate(zip(self._gpus, self._buffers, strict=True), self._first):
            gpu.enter()
            painter = Painter(gpu, self._stack)
            painter.verify(got, self._size, ptx.SOLID, word)
            found = painter.finder.found()
            if found[0]:
                return f"rank {rank} got {found[0]} wrong sums of {self._size // WORD}, {found}"
        return ""


def all_reduce(wants: dict[str, Any]) -> Result:
    path = wants.get("library") or library()
    if not path:
        raise CouldNotRun("libnccl.so.2 is nowhere to be found: install NCCL")
    nccl = Nccl(path)
    gpus = [Cuda(pci) for pci in wants["gpus"]]
    ranks, size = len(gpus), int(wants.get("gib", 1) * GIB)
    with ExitStack() as stack:
        ring = NcclRing(nccl, gpus, size, stack)
        ring.once()
        best = min(ring.once() for _ in range(TIMES))
        wrong = ring.wrong()
    bandwidth = size / best / 1e9
    figures = {"ranks": float(ranks), "algbw_gbps": bandwidth, "busbw_gbps": bandwidth * 2 * (ranks - 1) / ranks}
    return Result(wrong, figures)


def identity(path: str) -> str:
    """What rank 0 hands to all others. This process must live on: the others come to it."""
    made = UniqueId()
    Nccl(path).do("ncclGetUniqueId", ctypes.byref(made))
    return bytes(made.internal).hex()


def join(wants: dict[str, Any]) -> Result:
    """The GPUs of this rank among `total` of many machines, from number `first` on. All have come and are free:
    what NCCL cannot do now is a failure of the collective."""
    nccl = Nccl(wants["library"])
    gpus = [Cuda(pci) for pci in wants["gpus"]]
    total, size = int(wants["total"]), int(wants.get("gib", 1) * GIB)
    made = UniqueId.from_buffer_copy(bytes.fromhex(wants["id"]))
    try:
        with ExitStack() as stack:
            ring = NcclRing(nccl, gpus, size, stack, (made, int(wants["first"]), total))
            ring.once()
            best = min(ring.once() for _ in range(TIMES))
            wrong = ring.wrong()
    except NcclError as error:
        if error.code in SET_UP:
            raise
        return Result(str(error))
    bandwidth = size / best / 1e9
    return Result(
        wrong,
        {"ranks": float(total), "algbw_gbps": bandwidth, "busbw_gbps": bandwidth * 2 * (total - 1) / total},
    )
