"""What watching costs a training loop: steps per second with and without, in turns. `python tests/gpu/overhead.py`.

It asks far oftener than the agent does (a reading each second, samples five times a second), so that there is something
to see. Needs PyTorch.
"""

import importlib
import statistics
import threading
import time
from typing import Any

from sickbay.agent.nvml.watched import Nvml

TURN = 4.0  # seconds
TURNS = 5


def steps(torch: Any, seconds: float) -> float:
    weights = [torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16) for _ in range(8)]
    torch.cuda.synchronize()
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        x = weights[0]
        for weight in weights:
            x = (x @ weight).relu() * 0.01
        x.sum().item()
        done += 1
    return done / (time.perf_counter() - began)


def main() -> None:
    torch = importlib.import_module("torch")
    nvml, over = Nvml(), threading.Event()
    watching = threading.Event()

    def watch() -> None:
        turn = 0
        while not over.wait(0.2):
            if watching.is_set():
                turn += 1
                nvml.metrics()
                if turn % 5 == 0:
                    nvml.read()

    thread = threading.Thread(target=watch)
    thread.start()
    nvml.read(60)
    steps(torch, TURN)
    without, watched = [], []
    for _ in range(TURNS):
        watching.clear()
        without.append(steps(torch, TURN))
        watching.set()
        watched.append(steps(torch, TURN))
    over.set()
    thread.join()
    nvml.close()
    spread = statistics.stdev(without) / statistics.mean(without)
    lost = 1 - statistics.mean(watched) / statistics.mean(without)
    print(f"steps/s without {statistics.mean(without):.1f} (spread {spread:.2%})")
    print(f"watched {statistics.mean(watched):.1f}: {lost:.2%} lost")


if __name__ == "__main__":
    main()
