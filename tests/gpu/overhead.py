"""What the agent costs a training loop: `python tests/gpu/overhead.py PID[,PID…] TURNS SECONDS`. Needs PyTorch.

The loop runs in this process; the agent (and its NVML child) is stopped and let go on in turns, in an order that
cancels drift (stopped, running, running, stopped), and each pair of neighbours is one comparison. What one that was
stopped has to catch up with falls into the turns in which it runs, so this shows too much rather than too little.
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
from typing import Any

WARM_UP = 5.0  # seconds: clocks rise, kernels are chosen


def compare(pids: Sequence[int], turns: int, seconds: float) -> dict[str, Any] | None:
    """In a process of its own, so that nothing but the loop is in it. None where there is no PyTorch."""
    if importlib.util.find_spec("torch") is None:
        return None
    words = [sys.executable, str(Path(__file__)), ",".join(map(str, pids)), str(turns), str(seconds)]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=120 + 3 * turns * seconds, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


class Training:
    """A small model that is trained for real: many short kernels, so that whatever disturbs the host shows."""

    def __init__(self) -> None:
        self._torch: Any = importlib.import_module("torch")
        nn = self._torch.nn
        self._torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, device="cuda", dtype=self._torch.bfloat16)
        self._model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self._adam = self._torch.optim.AdamW(self._model.parameters(), lr=1e-4)
        self._batch = self._torch.randn(16, 128, 512, device="cuda", dtype=self._torch.bfloat16)

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
            if steps % 8 == 0:
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


def measured(pids: Sequence[int], turns: int, seconds: float) -> dict[str, Any]:
    training = Training()
    training.rate(WARM_UP)
    with_it: list[float] = []
    without: list[float] = []
    for turn in range(turns):
        for running in (False, True) if turn % 2 == 0 else (True, False):
            if running:
                with_it.append(training.rate(seconds))
            else:
                with stopped(pids):
                    without.append(training.rate(seconds))
    ratios = [one / other for one, other in zip(with_it, without, strict=True)]
    # The same comparison between turns in which nothing differs: stopped against the next stopped.
    nothing = [one / other for one, other in zip(without[1:], without, strict=False)]
    return {
        "pairs": turns,
        "seconds_each": seconds,
        "steps_per_s_stopped": statistics.mean(without),
        "steps_per_s_running": statistics.mean(with_it),
        "ratio_median": statistics.median(ratios),
        "ratio_mean": statistics.mean(ratios),
        "ratio_spread": statistics.stdev(ratios),
        "ratio_of_nothing_spread": statistics.stdev(nothing),
        "lost": 1 - statistics.mean(ratios),
        "noise": statistics.stdev(ratios) / len(ratios) ** 0.5,
        "ratios": [round(one, 5) for one in ratios],
    }


if __name__ == "__main__":
    print(json.dumps(measured([int(pid) for pid in sys.argv[1].split(",")], int(sys.argv[2]), float(sys.argv[3]))))
