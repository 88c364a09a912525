"""Checkpoints of a real training on a real GPU: what is resumed goes on bit by bit as if nothing had happened."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch", reason="torch is not installed here: no training was tried")
if not torch.cuda.is_available():
    pytest.skip("there is no GPU here", allow_module_level=True)

STEPS = 60
TRAINS = """
import os, sys, time
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
import torch
from sickbay import train

form, directory, steps, pace = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
torch.use_deterministic_algorithms(True)
torch.manual_seed(7)
layers = torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)
model = torch.nn.Sequential(*layers).to("cuda", torch.bfloat16)
if form == "fsdp":
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[5])
    dist.init_process_group("cpu:gloo,cuda:nccl", rank=0, world_size=1)
    fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
with train.Checkpoints(directory, attempt=int(sys.argv[6]), rank=0, world_size=1, keep=3) as checkpoints:
    step = 0
    if form == "fsdp":
        from sickbay.train import torch as bridge
        from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

        def state():
            weights, rest = get_state_dict(model, optimizer)
            return {"weights": weights, "rest": rest, "step": step}

        if checkpoints.resumed is not None:
            nothing = torch.zeros(8, 512, device="cuda", dtype=torch.bfloat16)
            model(nothing).float().sum().backward()
            optimizer.step()  # so that the optimizer has a state to fill
            optimizer.zero_grad()
            held = state()
            assert bridge.load(checkpoints, held)
            set_state_dict(model, optimizer, model_state_dict=held["weights"], optim_state_dict=held["rest"])
            step = checkpoints.resumed.step
    elif (held := checkpoints.load()) is not None:
        model.load_state_dict(held["weights"])
        optimizer.load_state_dict(held["rest"])
        step = held["step"]
    print("from", step, flush=True)
    while step < steps:
        step += 1
        maker = torch.Generator("cuda").manual_seed(step)
        batch = torch.randn(64, 512, generator=maker, device="cuda", dtype=torch.bfloat16)
        loss = torch.nn.functional.mse_loss(model(batch).float(), batch.float().sin())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("loss", step, loss.item().hex(), flush=True)
        if step % 5 == 0:
            if form == "fsdp":
                bridge.save(checkpoints, step, state())
            else:
                checkpoints.save(step, {"weights": model.state_dict(), "rest": optimizer.state_dict(), "step": step})
        time.sleep(pace)
print("done", flush=True)
"""


def run(
    form: str, directory: Path, attempt: int, *, killed_after: float | None = None
) -> tuple[int, dict[int, str], int]:
    """Its exit code, the loss of every step that it made, and from which step it went on."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SICKBAY_", "RANK", "WORLD"))}
    pace = "0.02" if killed_after is not None else "0"
    command = [sys.executable, "-c", TRAINS, form, str(directory), str(STEPS), pace, str(29500 + attempt), str(attempt)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean)
    if killed_after is not None:
        for line in process.stdout:  # from its first step on
            if line.startswith("from"):
                began = int(line.split()[1])
                break
        time.sleep(killed_after)
        process.send_signal(signal.SIGKILL)
    out, err = process.communicate(timeout=300)
    words = [line.split() for line in out.splitlines()]
    losses = {int(step): loss for kind, step, loss in (w for w in words if len(w) == 3) if kind == "loss"}
    if killed_after is None:
        began = next((int(w[1]) for w in words if w[0] == "from"), -1)
        assert process.returncode == 0, err[-3000:]
    return process.returncode, losses, began


@pytest.mark.parametrize("form", ["state", "fsdp"])
def test_a_training_that_is_killed_and_resumed_makes_the_same_losses_bit_by_bit(form: str, tmp_path: Path) -> None:
    chance = random.Random(20261118)
    _, undisturbed, _ = run(form, tmp_path / "undisturbed", 1)
    losses: dict[int, str] = {}
    resumed: list[int] = []
    for attempt in range(1, 6):
        after = chance.uniform(0.2, 0.6) if attempt < 5 else None
        _, made, began = run(form, tmp_path / "killed", attempt, killed_after=after)
        resumed.append(began)
        for step, loss in made.items():
            assert losses.setdefault(step, loss) == loss, (attempt, step)
    print(json.dumps({"form": form, "resumed": resumed, "torch": torch.__version__}))
    assert resumed[-1] > 0
    assert {step: undisturbed[step] for step in losses} == losses
    assert len(losses) == STEPS or set(range(min(losses), STEPS + 1)) == set(losses)
