"""libcuda.so.1 through ctypes: just enough to load a kernel, run it and move memory."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from sickbay.agent.checks import CouldNotRun

HOST_PORTABLE: Final = 1
CAPABILITY_MAJOR, MULTIPROCESSORS = 75, 16
THREADS: Final = 256

# What only a GPU or its memory can have done to kernels that are known to be right. Any other error of the driver
# (out of memory, busy, no permission, not initialised) means that nothing was proved.
SICK: Final = {
    214: "uncorrectable ECC error",
    220: "uncorrectable NVLink error",
    226: "contained memory error",
    700: "illegal address in a kernel that has none",
    702: "kernel timed out",
    714: "hardware stack error",
    715: "illegal instruction in a kernel that has none",
    716: "misaligned address in a kernel that has none",
    717: "invalid address space",
    718: "invalid program counter",
    719: "launch failed",
    721: "the GPU stopped answering",
}
HINTS: Final = {
    2: "somebody else holds its memory",
    3: "the driver is not initialised",
    46: "it is busy or in exclusive mode",
    100: "the driver sees no GPU",
    101: "the driver does not know that GPU",
    802: "the fabric manager has not set up the NVSwitches yet",
    803: "library and kernel module of the driver are of different versions; reboot, or reload the module",
    804: "this driver cannot run on this GPU",
}


class Sick(Exception):  # noqa: N818 - a verdict, not a mistake
    """The GPU did something that a sound one does not do."""


class Cuda:
    """One GPU, its primary context made current. All sizes are bytes."""

    def __init__(self, pci: str = "", ordinal: int = 0) -> None:
        self._lib = _library()
        self._do("cuInit", 0)
        device = ctypes.c_int()
        if pci:
            self._do("cuDeviceGetByPCIBusId", ctypes.byref(device), pci.encode())
        else:
            self._do("cuDeviceGet", ctypes.byref(device), ordinal)
        self.device = device.value
        self._context = ctypes.c_void_p()
        self._do("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device)
        self.enter()
        self._stream = ctypes.c_void_p()
        # Flag 0: in step with the plain copies, which end before what is launched after them begins.
        self._do("cuStreamCreate", ctypes.byref(self._stream), 0)
        self._modules: list[ctypes.c_void_p] = []

    @property
    def stream(self) -> ctypes.c_void_p:
        return self._stream

    def enter(self) -> None:
        self._do("cuCtxSetCurrent", self._context)

    def _do(self, name: str, *args: Any) -> None:
        code = getattr(self._lib, name)(*args)
        if code:
            raise _error(self._lib, name, code)

    # --- what it is
    def attribute(self, number: int) -> int:
        value = ctypes.c_int()
        self._do("cuDeviceGetAttribute", ctypes.byref(value), number, self.device)
        return value.value

    def free(self) -> int:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._do("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    # --- kernels
    def load(self, ptx: str, name: str) -> ctypes.c_void_p:
        module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
        self._do("cuModuleLoadData", ctypes.byref(module), ptx.encode())
        self._modules.append(module)
        self._do("cuModuleGetFunction", ctypes.byref(kernel), module, name.encode())
        return kernel

    def launch(self, kernel: ctypes.c_void_p, grid: tuple[int, int], threads: int, *args: Any) -> None:
        pointers = (ctypes.c_void_p * len(args))(*(ctypes.addressof(arg) for arg in args))
        self._do("cuLaunchKernel", kernel, *grid, 1, threads, 1, 1, 0, self._stream, pointers, None)

    def wait(self) -> None:
        self._do("cuStreamSynchronize", self._stream)

    # --- memory
    @contextmanager
    def memory(self, size: int) -> Iterator[int]:
        pointer = ctypes.c_uint64()
        self._do("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        try:
            yield pointer.value
        finally:
            self._lib.cuMemFree_v2(pointer)  # in vain on a GPU that has just failed, which is told by then

    @contextmanager
    def pinned(self, size: int) -> Iterator[int]:
        pointer = ctypes.c_void_p()
        self._do("cuMemHostAlloc", ctypes.byref(pointer), ctypes.c_size_t(size), HOST_PORTABLE)
        try:
            yield pointer.value or 0
        finally:
            self._lib.cuMemFreeHost(pointer)

    def set_words(self, pointer: int, word: int, count: int) -> None:
        """`count` words of 32 bits."""
        self._do("cuMemsetD32_v2", ctypes.c_uint64(pointer), ctypes.c_uint(word), ctypes.c_size_t(count))

    def write(self, pointer: int, data: bytes) -> None:
        self._do("cuMemcpyHtoD_v2", ctypes.c_uint64(pointer), data, ctypes.c_size_t(len(data)))

    def read(self, pointer: int, size: int) -> bytes:
        data = ctypes.create_string_buffer(size)
        self._do("cuMemcpyDtoH_v2", data, ctypes.c_uint64(pointer), ctypes.c_size_t(size))
        return data.raw

    def copy(self, how: str, to: int, source: int, size: int) -> None:
        """how: HtoD, DtoH or DtoD, on the stream."""
        self._do(
            f"cuMemcpy{how}Async_v2", ctypes.c_uint64(to), ctypes.c_uint64(source), ctypes.c_size_t(size), self._stream
        )

    def copy_to_peer(self, peer: "Cuda", to: int, source: int, size: int) -> None:
        self._do(
            "cuMemcpyPeerAsync", ctypes.c_uint64(to), peer._context, ctypes.c_uint64(source), self._context,  # noqa: SLF001 - of the same class
            ctypes.c_size_t(size), self._stream,
        )  # fmt: skip

    def reaches(self, peer: "Cuda") -> bool:
        """Straight, without a stop in the host's memory; and from now on it does."""
        able = ctypes.c_int()
        self._do("cuDeviceCanAccessPeer", ctypes.byref(able), self.device, peer.device)
        if able.value:
            self.enter()
            code = self._lib.cuCtxEnablePeerAccess(peer._context, 0)  # noqa: SLF001 - of the same class
            if code not in {0, 704}:  # 704: it already does
                raise _error(self._lib, "cuCtxEnablePeerAccess", code)
        return bool(able.value)

    # --- time
    @contextmanager
    def timed(self) -> Iterator[list[float]]:
        """What is put on the stream within: afterwards the list holds its seconds, by the GPU's own clock."""
        begin, end = ctypes.c_void_p(), ctypes.c_void_p()
        self._do("cuEventCreate", ctypes.byref(begin), 0)
        self._do("cuEventCreate", ctypes.byref(end), 0)
        taken: list[float] = []
        self._do("cuEventRecord", begin, self._stream)
        yield taken
        self._do("cuEventRecord", end, self._stream)
        self._do("cuEventSynchronize", end)
        milliseconds = ctypes.c_float()
        self._do("cuEventElapsedTime", ctypes.byref(milliseconds), begin, end)
        taken.append(milliseconds.value / 1e3)
        self._do("cuEventDestroy_v2", begin)
        self._do("cuEventDestroy_v2", end)


def _library() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise CouldNotRun(f"the NVIDIA driver's libcuda.so.1 cannot be loaded: {error}") from error


def _error(lib: ctypes.CDLL, call: str, code: int) -> Exception:
    text = ctypes.c_char_p()
    lib.cuGetErrorName(code, ctypes.byref(text))
    name = text.value.decode(errors="replace") if text.value else f"error {code}"
    if code in SICK:
        return Sick(f"{SICK[code]} ({name} from {call})")
    return CouldNotRun(f"{call}: {name}" + (f", {HINTS[code]}" if code in HINTS else ""))
