"""What the agent costs a training loop: `python tests/gpu/overhead.py PID[,PID…] SHARE`. Needs PyTorch.

The loops run in this process; the agent (and its NVML child) is stopped and let go on in turns, in an order that
cancels drift (stopped, running, running, stopped), and each pair of neighbours is one comparison. What one that was
stopped has to catch up with falls into the turns in which it runs, so this shows too much rather than too little.
SHARE of the usual number of turns is taken.
"""

import contextlib
import importlib
import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

WARM_UP = 3.0  # seconds: clocks rise, kernels are chosen


class Loop(NamedTuple):
    """A transformer that is trained for real."""

    width: int
    layers: int
    batch: int
    tokens: int
    seconds: float  # of one turn
    pairs: int


LOOPS = {
    # The GPU is always busy: what disturbs it or its clocks shows.
    "gpu_bound": Loop(2048, 4, 8, 1024, seconds=1.0, pairs=16),
    # Short kernels that the processor hardly launches in time: what disturbs the processor shows. It is noisy, and
    # what disturbs it comes in waves of seconds, so turns are short and many.
    "host_bound": Loop(512, 4, 16, 128, seconds=0.25, pairs=80),
}


def compare(pids: Sequence[int], share: float = 1.0) -> dict[str, Any] | None:
    """In a process of its own, so that nothing but the loop is in it. None where there is no PyTorch."""
    if importlib.util.find_spec("torch") is None:
        return None
    words = [sys.executable, str(Path(__file__)), ",".join(map(str, pids)), str(share)]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=400, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


class Training:
    def __init__(self, loop: Loop) -> None:
        self._torch: Any = importlib.import_module("torch")
        nn, half = self._torch.nn, self._torch.bfloat16
        self._torch.manual_seed(0)
        heads, inner = loop.width // 64, 4 * loop.width
        layer = nn.TransformerEncoderLayer(loop.width, heads, inner, batch_first=True, device="cuda", dtype=half)
        self._model = nn.TransformerEncoder(layer, loop.layers, enable_nested_tensor=False)
        self._adam = self._torch.optim.AdamW(self._model.parameters(), lr=1e-4)
        self._batch = self._torch.randn(loop.batch, loop.tokens, loop.width, device="cuda", dtype=half)

    def rate(self, seconds: float) -> float:
        """Steps per second."""
        self._torch.cuda.synchronize()
        steps, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            self._adam.zero_grad(set_to_none=True)
            loss = (self._model(self._batch) - self._batch).pow(2).mean()
            loss.backward()
            self._adam.step()
            steps += 1
            if steps % 4 == 0:
                loss.item()  # as a loop does that prints its loss
        self._torch.cuda.synchronize()
        return steps / (time.perf_counter() - began)


@contextlib.contextmanager
def stopped(pids: Sequence[int]) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def measured(pids: Sequence[int], loop: Loop, pairs: int) -> dict[str, Any]:
    training = Training(loop)
    training.rate(WARM_UP)
    running: list[float] = []
    without: list[float] = []
    for pair in range(pairs):
        for with_it in (False, True) if pair % 2 == 0 else (True, False):
            if with_it:
                running.append(training.rate(loop.seconds))
            else:
                with stopped(pids):
                    without.append(training.rate(loop.seconds))
    ratios = [one / other for one, other in zip(running, without, strict=True)]
    # The same comparison between turns in which nothing differs: stopped against the next stopped.
    nothing = [one / other for one, other in zip(without[1:], without, strict=False)]
    return {
        "pairs": pairs,
        "seconds_each": loop.seconds,
        "steps_per_s_stopped": statistics.mean(without),
        "steps_per_s_running": statistics.mean(running),
        "ratio_mean": statistics.mean(ratios),
        "ratio_median": statistics.median(ratios),
        "ratio_spread": statistics.stdev(ratios),
        "spread_between_equal_turns": statistics.stdev(nothing),
        "lost": 1 - statistics.mean(ratios),
        "noise": statistics.stdev(ratios) / len(ratios) ** 0.5,  # of the mean: one standard error
    }


def main() -> None:
    pids, part = [int(pid) for pid in sys.argv[1].split(",")], float(sys.argv[2])
    print(json.dumps({name: measured(pids, loop, max(3, int(loop.pairs * part))) for name, loop in LOOPS.items()}))


if __name__ == "__main__":
    main()
