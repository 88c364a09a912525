"""A small training job that shows how `sickbay.train` is used: python -m sickbay.train.sample --steps 200

It fits a line to noisy points with plain gradient descent, the same on every rank, and writes a checkpoint now and
then. There is nothing in it but the standard library.
"""

import argparse
import json
import random
import time

from sickbay import train


def main() -> None:
    asked = _arguments()
    checkpoints = train.Checkpoints()
    state = {"step": 0, "slope": 0.0, "offset": 0.0}
    if checkpoints.resumed is not None:
        state = json.loads(checkpoints.load(rank=0))  # the same on all ranks, so any number of them can go on
        print(f"rank {checkpoints.rank}: resuming at step {state['step']}", flush=True)
    while state["step"] < asked.steps:
        step = int(state["step"]) + 1
        loss = _descend(state, seed=step)
        state["step"] = step
        train.heartbeat(step, loss=loss)
        # These ranks do not talk to one another, so several cannot agree on a step in between: the next round one is
        # the answer. Ranks that train together would all-reduce it. SIGTERM ends them at once.
        asked_to_save = train.should_save(term=False) and checkpoints.world_size == 1
        if step % asked.every == 0 or asked_to_save:
            checkpoints.save(step, json.dumps(state).encode())
        if step % 10 == 0:
            print(f"rank {checkpoints.rank}: step {step} loss {loss:.4f}", flush=True)
        time.sleep(asked.step_seconds)
    checkpoints.wait()
    print(f"rank {checkpoints.rank}: done, y = {state['slope']:.2f} x + {state['offset']:.2f}", flush=True)


def _descend(state: dict[str, float], seed: int) -> float:
    """One step on a handful of points of y = 3 x + 1; the seed is the step's, so that a resumed run sees the same."""
    rng = random.Random(seed)  # noqa: S311 - data, not secrets
    points = [(x, 3 * x + 1 + rng.gauss(0, 0.1)) for x in (rng.uniform(-1, 1) for _ in range(32))]
    errors = [(x, state["slope"] * x + state["offset"] - y) for x, y in points]
    state["slope"] -= 0.1 * sum(2 * e * x for x, e in errors) / len(errors)
    state["offset"] -= 0.1 * sum(2 * e for _, e in errors) / len(errors)
    return sum(e * e for _, e in errors) / len(errors)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A small training job that survives.")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=10, help="steps between two checkpoints")
    parser.add_argument("--step-seconds", type=float, default=0.1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
