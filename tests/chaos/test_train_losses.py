"""A training that is killed again and again makes the losses of one that is left alone, bit by bit."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from shutil import rmtree

import pytest
from tests.support.thorough import THOROUGH

pytestmark = pytest.mark.slow

pytest.importorskip("numpy")

RANKS, STEPS, EVERY = 2, 60, 7

# Momentum, a generator of random numbers and an order of samples: whatever of it was not saved shows in the loss.
SCRIPT = f"""
import os, sys
import numpy as np
from sickbay import train

rank = int(os.environ["RANK"])
with train.Checkpoints() as checkpoints:
    state = checkpoints.load()
    dice = np.random.default_rng(rank)
    if state is None:
        state = {{"step": 0, "weights": dice.normal(size=256).astype(np.float32),
                 "momentum": np.zeros(256, np.float32), "dice": dice.bit_generator.state}}
    dice.bit_generator.state = state["dice"]
    with open(f"{{sys.argv[1]}}/losses-{{rank}}", "a") as losses:
        for step in range(state["step"] + 1, {STEPS} + 1):
            sample = dice.normal(size=256).astype(np.float32)
            state["momentum"] *= np.float32(0.9)
            state["momentum"] += state["weights"] - sample
            state["weights"] -= np.float32(0.01) * state["momentum"]
            state.update(step=step, dice=dice.bit_generator.state)
            losses.write(f"{{step}} {{float(np.abs(state['weights']).sum()).hex()}}\\n")
            losses.flush()
            if step % {EVERY} == 0:
                checkpoints.save(step, state)
                if step % {2 * EVERY} == 0 or "SICKBAY_CHECKPOINT_NEAR" not in os.environ:
                    checkpoints.wait()
"""


class Gang:
    """Ranks as an engine starts them: a number for each attempt, and all of them end with one."""

    def __init__(self, where: Path, *, near: bool = False) -> None:
        self.where, self.attempt, self.near = where, 0, near
        self.ranks: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        self.attempt += 1
        own = {
            **os.environ,
            "SICKBAY_CHECKPOINT_DIR": str(self.where / "checkpoints"),
            "SICKBAY_ATTEMPT": str(self.attempt),
            "WORLD_SIZE": str(RANKS),
        }
        own.pop("SICKBAY_LAST_STEP", None)
        command = [sys.executable, "-c", SCRIPT, str(self.where)]
        self.ranks = [
            subprocess.Popen(command, env={**own, "RANK": str(rank), **self.on_its_node(rank)}) for rank in range(RANKS)
        ]

    def on_its_node(self, rank: int) -> dict[str, str]:
        if not self.near:
            return {}
        return {"NODE_RANK": str(rank), "SICKBAY_CHECKPOINT_NEAR": str(self.disk_of(rank))}

    def disk_of(self, rank: int) -> Path:
        return self.where / f"node-{rank}"

    def ended(self) -> bool:
        return all(rank.poll() is not None for rank in self.ranks)

    def written(self) -> int:
        files = [self.where / f"losses-{rank}" for rank in range(RANKS)]
        return sum(file.read_bytes().count(b"\n") for file in files if file.exists())

    def kill(self, first: int) -> None:
        self.ranks[first].send_signal(signal.SIGKILL)
        for rank in self.ranks:
            rank.kill()
            rank.wait()

    def losses(self, rank: int) -> dict[int, set[str]]:
        """By step, all that attempts have said; a line that was cut by the death of its rank says nothing."""
        said: dict[int, set[str]] = {}
        for line in (self.where / f"losses-{rank}").read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                step, loss = line.split()
                said.setdefault(int(step), set()).add(loss)
        return said


def left_alone(where: Path) -> Gang:
    gang = Gang(where)
    gang.start()
    assert [rank.wait(60) for rank in gang.ranks] == [0] * RANKS
    return gang


@pytest.mark.parametrize("near", [False, True], ids=["far", "near"])
@pytest.mark.parametrize("seed", range(4 if THOROUGH else 2))
def test_the_losses_of_a_training_that_was_killed_are_those_of_one_that_was_not(
    seed: int, near: bool, tmp_path: Path
) -> None:
    """`near`: saves go to a disk of the rank's node first, and with a killed rank its disk is lost now and then."""
    dice = random.Random(seed)
    (tmp_path / "calm").mkdir()
    (tmp_path / "killed").mkdir()
    calm, gang = left_alone(tmp_path / "calm"), Gang(tmp_path / "killed", near=near)
    kills = 0
    while kills < 8:
        gang.start()
        enough = gang.written() + dice.randrange(2 * RANKS * EVERY)
        deadline = time.monotonic() + 60
        while gang.written() < enough and not gang.ended():
            assert time.monotonic() < deadline, "it does not train"
        if gang.ended():
            break
        first = dice.randrange(RANKS)
        gang.kill(first)
        if near and dice.random() < 0.5:
            rmtree(gang.disk_of(first), ignore_errors=True)
        kills += 1
    else:
        gang.start()
    assert [rank.wait(60) for rank in gang.ranks] == [0] * RANKS
    assert kills > 2
    for rank in range(RANKS):
        assert calm.losses(rank) == gang.losses(rank)
        assert len(calm.losses(rank)) == STEPS
