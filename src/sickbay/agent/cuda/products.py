"""Matrix products, compared bit by bit: a unit that computes wrong now and then shows itself in nothing else."""

import ctypes
import time
from contextlib import ExitStack
from typing import Any, Final

from sickbay.agent.checks import Result
from sickbay.agent.cuda import multiply, ptx
from sickbay.agent.cuda.driver import CAPABILITY_MAJOR, MULTIPROCESSORS, THREADS, Cuda
from sickbay.agent.cuda.patterns import WORD, Finder, spoil

TENSOR_CORES_FROM: Final = 8  # compute capability: with bf16
ROWS, ROWS_WITHOUT = 8192, 2048
REPEATS, BATCH = 8, 10  # under sustained load: products from one load of operands, launches between two looks


class Products:
    def __init__(self, cuda: Cuda, stack: ExitStack, *, exact: bool) -> None:
        self.cuda = cuda
        self.tensor = cuda.attribute(CAPABILITY_MAJOR) >= TENSOR_CORES_FROM
        self.n = ROWS if self.tensor else ROWS_WITHOUT
        self._compare = cuda.load(ptx.MEMORY, "compare")
        self._fma = cuda.load(multiply.fma(), "multiply_fma")
        self._mma = cuda.load(multiply.mma(), "multiply_mma") if self.tensor else None
        self._blocks = cuda.attribute(MULTIPROCESSORS) * 32
        size, self.size = self.n * multiply.K * 2, self.n * self.n * 4
        self.a, self.b = (stack.enter_context(cuda.memory(size)) for _ in range(2))
        self.first, self.other = (stack.enter_context(cuda.memory(self.size)) for _ in range(2))
        self._finder = Finder(cuda, stack.enter_context(cuda.memory(24)))
        operands = cuda.load(ptx.OPERANDS, "operands")
        for at, seed in ((self.a, 1), (self.b, 2)):
            words = (ctypes.c_uint64(value) for value in (at, size // WORD, seed))
            cuda.launch(operands, (self._blocks, 1), THREADS, *words, ctypes.c_uint32(exact))
        cuda.wait()

    def flops(self, repeats: int = 1) -> float:
        return 2.0 * self.n * self.n * multiply.K * (repeats if self.tensor else 1)

    def multiply(self, to: int, *, tensor: bool, repeats: int = 1) -> None:
        where = [ctypes.c_uint64(pointer) for pointer in (self.a, self.b, to)]
        n = ctypes.c_uint32(self.n)
        if tensor and self._mma is not None:
            blocks = self.n // multiply.TILE_MMA
            self.cuda.launch(self._mma, (blocks, blocks), 128, *where, n, ctypes.c_uint32(repeats))
        else:
            blocks = self.n // multiply.TILE_FMA
            self.cuda.launch(self._fma, (blocks, blocks), 256, *where, n)

    def differ(self) -> str:
        """How the two results differ; empty: in no bit."""
        self._finder.clear()
        words = (ctypes.c_uint64(value) for value in (self.first, self.size // WORD, self.other, self._finder.at))
        self.cuda.launch(self._compare, (self._blocks, 1), THREADS, *words)
        count, first, bits = self._finder.found()
        if not count:
            return ""
        row, column = divmod((first - self.first) // 4, self.n)
        return f"{count} pairs of results differ, the first at row {row}, column {column}, bits {bits:#x}"


def matrix(wants: dict[str, Any]) -> Result:
    """The same product again and again gives the same bits; tensor cores and plain units agree on whole numbers."""
    cuda = Cuda(wants.get("pci", ""))
    seconds = wants.get("seconds", 5.0)
    with ExitStack() as stack:
        whole = Products(cuda, stack, exact=True)
        whole.multiply(whole.first, tensor=False)
        whole.multiply(whole.other, tensor=True)
        if differs := whole.differ():
            return Result(f"tensor cores and plain units disagree on a product of whole numbers: {differs}")
    figures: dict[str, float] = {}
    with ExitStack() as stack:
        rough = Products(cuda, stack, exact=False)
        units = (("tensor", 0.7), ("plain", 0.3)) if rough.tensor else (("plain", 1.0),)
        for name, share in units:
            if wrong := _repeat(rough, name, seconds * share, wants, figures):
                return Result(wrong, figures)
    return Result("", figures)


def _repeat(work: Products, name: str, seconds: float, wants: dict[str, Any], figures: dict[str, float]) -> str:
    tensor = name == "tensor"
    work.multiply(work.first, tensor=tensor)
    work.cuda.wait()
    began, number, spent = time.monotonic(), 0, 0.0
    while number < 2 or time.monotonic() - began < seconds:
        with work.cuda.timed() as taken:
            work.multiply(work.other, tensor=tensor)
        spent += taken[0]
        number += 1
        if "spoil" in wants:
            spoil(work.cuda, work.other + wants["spoil"])
        if differs := work.differ():
            return f"the same product gave other bits at repetition {number} ({name} units): {differs}"
    figures[f"{name}_tflops"] = work.flops() * number / spent / 1e12
    figures[f"{name}_products"] = float(number)
    return ""


def sustained(wants: dict[str, Any]) -> Result:
    """Full load for `seconds`; the product stays the same to the last bit, and its rate is told."""
    cuda = Cuda(wants.get("pci", ""))
    seconds = wants.get("seconds", 60.0)
    rates: list[float] = []
    with ExitStack() as stack:
        load = Products(cuda, stack, exact=False)
        load.multiply(load.first, tensor=True, repeats=REPEATS)
        cuda.wait()
        began = time.monotonic()
        while not rates or time.monotonic() - began < seconds:
            with cuda.timed() as taken:
                for _ in range(BATCH):
                    load.multiply(load.other, tensor=True, repeats=REPEATS)
            rates.append(BATCH * load.flops(REPEATS) / taken[0] / 1e12)
            if differs := load.differ():
                return Result(
                    f"the same product gave other bits after {time.monotonic() - began:.0f} s of load: {differs}"
                )
    third = max(1, len(rates) // 3)
    early, late = (sorted(part)[len(part) // 2] for part in (rates[:third], rates[-third:]))
    return Result("", {"load_tflops": late, "kept_share": late / early, "seconds": seconds})
