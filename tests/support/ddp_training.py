"""A real DDP job (DistributedDataParallel) whose every step can be compared bit by bit with that of another run.

    python ddp_training.py --steps 400 --seen DIRECTORY --pace FILE

A small net with dropout and augmented data is trained, so that a checkpoint that forgets the model, the optimiser, the
schedule, the place in the data or one of the random states shows in the next loss. Each rank writes down what it saw
at each step, outside of the checkpoints: `<job>.<attempt>.<rank>` with one line for each step.
"""

import argparse
import hashlib
import os
import random
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from sickbay import train
from sickbay.train import torch as sickbay_torch

torch: Any = import_module("torch")
dist: Any = import_module("torch.distributed")

SAMPLES, BATCH, SEED = 480, 48, 7  # a batch is divided among 2, 3 or 4 ranks


class Sampler:
    """Which samples a step is made of: a permutation for each epoch, dealt out among the ranks."""

    def __init__(self) -> None:
        self.epoch, self.place = 0, 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.place = state["epoch"], state["place"]

    def batch(self, rank: int, world: int) -> list[int]:
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(SEED + self.epoch)).tolist()
        mine = order[self.place : self.place + BATCH][rank::world]
        self.place += BATCH
        if self.place >= SAMPLES:
            self.epoch, self.place = self.epoch + 1, 0
        return [int(number) for number in mine]


class Training:
    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        torch.manual_seed(SEED)  # the same weights on all ranks
        net = torch.nn.Sequential(
            torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(64, 64), torch.nn.GELU(),
            torch.nn.Linear(64, 1),
        )  # fmt: skip
        # After its first step DDP puts the gradients into another order, in which ranks add them up otherwise: a run
        # that was restarted would differ in the last bit. Not so where it looks for parameters that are not used.
        self.net = torch.nn.parallel.DistributedDataParallel(net, find_unused_parameters=True)
        self.optimiser = torch.optim.AdamW(self.net.parameters(), lr=0.01)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimiser, T_max=1000)
        self.sampler = Sampler()
        self.data = torch.randn(SAMPLES, 16, generator=torch.Generator().manual_seed(SEED))
        self.own_randomness(0)

    def own_randomness(self, step: int) -> None:
        """Of dropout and augmentation: each rank's own."""
        torch.manual_seed(1_000_000 * SEED + 1000 * step + self.rank)
        random.seed(f"{SEED} {step} {self.rank}")

    def state(self, step: int) -> dict[str, object]:
        return {
            "step": step,
            "model": self.net.module.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "schedule": self.schedule.state_dict(),
            "sampler": self.sampler.state_dict(),
            "torch": torch.get_rng_state(),
            "random": random.getstate(),
        }

    def resume(self, checkpoints: train.Checkpoints) -> int:
        """The step that is done."""
        if checkpoints.resumed is None:
            return 0
        as_many = checkpoints.resumed.world_size == self.world
        state = checkpoints.load() if as_many else checkpoints.load(rank=0)
        self.net.module.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.schedule.load_state_dict(state["schedule"])
        self.sampler.load_state_dict(state["sampler"])
        if as_many:
            torch.set_rng_state(state["torch"])
            random.setstate(state["random"])
        else:  # the randomness of another number of ranks is nobody's
            self.own_randomness(state["step"])
        return int(state["step"])

    def step(self) -> tuple[float, list[int]]:
        chosen = self.sampler.batch(self.rank, self.world)
        x = self.data[chosen] + random.gauss(0, 0.01)
        wanted = torch.sin(x.sum(dim=1, keepdim=True))
        loss = ((self.net(x) - wanted) ** 2).mean()
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        self.schedule.step()
        return float(loss.item()), chosen

    def digest(self) -> str:
        """Of all parameters and of the optimiser's moments, bit by bit."""
        moments = [value for one in self.optimiser.state.values() for value in one.values()]
        whole = b"".join(tensor.detach().numpy().tobytes() for tensor in [*self.net.parameters(), *moments])
        return hashlib.sha256(whole).hexdigest()[:16]


def pause(pace: Path) -> None:
    """As long as the file says: a model of this size would be done before anybody could break a node."""
    try:
        time.sleep(float(pace.read_text()))
    except (OSError, ValueError):
        return


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--seen", type=Path, required=True)
    parser.add_argument("--pace", type=Path, required=True)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    training = Training(rank, world)
    own = f"{os.environ['SICKBAY_JOB_ID']}.{os.environ['SICKBAY_ATTEMPT']}.{rank}"
    with train.Checkpoints() as checkpoints, (asked.seen / own).open("a", buffering=1) as seen:
        begin = training.resume(checkpoints)
        print(f"rank {rank} of {world}: begins after step {begin}", flush=True)
        for step in range(begin + 1, asked.steps + 1):
            loss, chosen = training.step()
            seen.write(f"{step} {loss.hex()} {training.digest()} {','.join(map(str, sorted(chosen)))}\n")
            train.heartbeat(step, loss=loss)
            if step % asked.every == 0 or step == asked.steps or sickbay_torch.should_save():
                checkpoints.save(step, training.state(step))
            if sickbay_torch.should_end():
                break
            pause(asked.pace)
    if sickbay_torch.should_end():
        print(f"rank {rank}: ends after step {step}, as it was told to", flush=True)
        sys.exit(143)
    print(f"rank {rank}: done, loss {loss:.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
