"""Bandwidth between host and GPU, within a GPU, and from one GPU to others. GB/s are 10⁹ bytes per second."""

from contextlib import ExitStack
from typing import Any, Final

from sickbay.agent.checks import Result
from sickbay.agent.cuda import ptx
from sickbay.agent.cuda.driver import Cuda
from sickbay.agent.cuda.patterns import GIB, WORD, Painter

TIMES: Final = 5
SEED: Final = 7


def bandwidth(wants: dict[str, Any]) -> Result:
    """Pinned host memory to the GPU and back, and a copy within it (bytes read and written)."""
    cuda = Cuda(wants.get("pci", ""))
    size = int(wants.get("gib", 1) * GIB)
    figures: dict[str, float] = {}
    with cuda.pinned(size) as host, cuda.memory(size) as here, cuda.memory(size) as there:
        for name, how, to, source, count in (
            ("h2d", "HtoD", here, host, 1), ("d2h", "DtoH", host, here, 1), ("d2d", "DtoD", there, here, 2),
        ):  # fmt: skip
            cuda.copy(how, to, source, size)
            best = 0.0
            for _ in range(TIMES):
                with cuda.timed() as taken:
                    cuda.copy(how, to, source, size)
                best = max(best, count * size / taken[0] / 1e9)
            figures[f"{name}_gbps"] = best
    return Result("", figures)


def peers(wants: dict[str, Any]) -> Result:
    """From one GPU to others, straight where it can. What arrives is what was sent."""
    source = Cuda(wants["pci"])
    size = int(wants.get("gib", 1) * GIB)
    figures: dict[str, float] = {}
    with ExitStack() as stack:
        here = stack.enter_context(source.memory(size))
        Painter(source, stack).fill(here, size, ptx.RANDOM, SEED)
        source.wait()
        for index, pci in wants["peers"]:
            if wrong := _to_peer(source, here, size, Cuda(pci), index, figures):
                return Result(wrong, figures)
        source.enter()
    return Result("", figures)


def _to_peer(source: Cuda, here: int, size: int, peer: Cuda, index: int, figures: dict[str, float]) -> str:
    figures[f"to.{index}.straight"] = float(source.reaches(peer))
    peer.enter()
    with ExitStack() as stack:
        there = stack.enter_context(peer.memory(size))
        painter = Painter(peer, stack)
        source.enter()
        best = 0.0
        for _ in range(TIMES):
            with source.timed() as taken:
                source.copy_to_peer(peer, there, here, size)
            best = max(best, size / taken[0] / 1e9)
        figures[f"to.{index}.p2p_gbps"] = best
        peer.enter()
        painter.verify(there, size, ptx.RANDOM, SEED)
        found = painter.finder.found()
    source.enter()
    return f"{found[0]} of {size // WORD} words arrived wrong at GPU {index}, {found}" if found[0] else ""
