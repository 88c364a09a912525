"""What a checkpoint adds to a step and what a resume costs, by its size: sickbay, torch.save, DCP and its async_save.

python -m tests.gpu.checkpoint_figures DIRECTORY GIB …
"""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from sickbay import train
from sickbay.train import torch as bridge

torch: Any = import_module("torch")
dcp: Any = import_module("torch.distributed.checkpoint")


def state_of(gib: float) -> dict[str, Any]:
    """Bfloat16 weights on the GPU in pieces of 256 MiB."""
    pieces = max(1, int(gib * 4))
    return {f"w{n}": torch.randn(128 * 1024**2, dtype=torch.bfloat16, device="cuda") for n in range(pieces)}


def timed(act: Callable[[], Any]) -> tuple[float, Any]:
    torch.cuda.synchronize()
    began = time.perf_counter()
    found = act()
    torch.cuda.synchronize()
    return time.perf_counter() - began, found


def measure(root: Path, gib: float) -> dict[str, float]:
    state = state_of(gib)
    found: dict[str, float] = {"gib": gib}
    blank = {name: torch.empty_like(held) for name, held in state.items()}

    checkpoints = train.Checkpoints(root / "ours", attempt=1, rank=0, world_size=1, keep=1)
    for step in (1, 2):  # the second uses the memory of the first again
        found["ours: a step waits"], _ = timed(partial(checkpoints.save, step, state))
        found["ours: then until committed"], _ = timed(checkpoints.wait)
    found["ours: begin and load"], held = timed(
        lambda: train.Checkpoints(root / "ours", attempt=2, rank=0, world_size=1).load()
    )
    assert all(torch.equal(held[name], state[name].cpu()) for name in list(state)[:1])
    del held
    shutil.rmtree(root / "ours")

    ours_dcp = train.Checkpoints(root / "dcp", attempt=1, rank=0, world_size=1, keep=1)
    for step in (1, 2):
        found["ours with DCP: a step waits"], _ = timed(partial(bridge.save, ours_dcp, step, state))
        found["ours with DCP: then until committed"], _ = timed(ours_dcp.wait)
    again = train.Checkpoints(root / "dcp", attempt=2, rank=0, world_size=1)
    found["ours with DCP: load"], _ = timed(lambda: bridge.load(again, blank))
    shutil.rmtree(root / "dcp")

    for _ in range(2):
        found["torch.save: a step waits"], _ = timed(lambda: torch.save(state, root / "plain.pt"))
    found["torch.save: then until synced"], _ = timed(partial(sync_file, root / "plain.pt"))
    found["torch.load"], _ = timed(lambda: torch.load(root / "plain.pt", map_location="cpu"))
    (root / "plain.pt").unlink()

    for _ in range(2):
        found["DCP save: a step waits"], _ = timed(lambda: dcp.save(state, checkpoint_id=str(root / "plain-dcp")))
        found["DCP async_save: a step waits"], written = timed(
            lambda: dcp.async_save(state, checkpoint_id=str(root / "async-dcp"))
        )
        found["DCP async_save: then until written"], _ = timed(written.result)
    found["DCP load"], _ = timed(lambda: dcp.load(blank, checkpoint_id=str(root / "plain-dcp")))
    shutil.rmtree(root / "plain-dcp")
    shutil.rmtree(root / "async-dcp")
    return {name: round(value, 3) for name, value in found.items()}


def sync_file(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def main() -> None:
    root = Path(sys.argv[1])
    root.mkdir(parents=True, exist_ok=True)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29499", RANK="0", WORLD_SIZE="1")
    torch.distributed.init_process_group("cpu:gloo,cuda:nccl", rank=0, world_size=1)
    print(json.dumps({"torch": torch.__version__, "gpu": torch.cuda.get_device_name()}), flush=True)
    for gib in map(float, sys.argv[2:]):
        print(json.dumps(measure(root, gib)), flush=True)


if __name__ == "__main__":
    main()
