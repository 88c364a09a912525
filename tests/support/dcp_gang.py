"""Gangs of ranks on gloo that save through sickbay.train.torch: `python dcp_gang.py DIRECTORY WORLD:SCENARIO,… …`.

Each rank is a process, forked when torch has been loaded. It writes what it has seen to `DIRECTORY/<gang>-<rank>.json`.
"""

import json
import logging
import os
import resource
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

warnings.simplefilter("ignore")  # of torch's own making
torch: Any = import_module("torch")
dist: Any = import_module("torch.distributed")

from sickbay import train  # noqa: E402
from sickbay.train import torch as bridge  # noqa: E402

for more in ("distributed.fsdp", "distributed.checkpoint.state_dict", "optim", "_dynamo"):
    with suppress(ImportError):
        import_module(f"torch.{more}")  # else each rank would
rank, world, root = 0, 0, Path(sys.argv[1])
told: list[str] = []
opened: list[str] = []


class _Told(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        told.append(record.getMessage())


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and str(arguments[0]).endswith((".distcp", ".metadata")):
        mode = arguments[1] or ("w" if arguments[2] & (os.O_WRONLY | os.O_RDWR) else "r")
        opened.append(f"{mode[0]} {Path(os.fsdecode(arguments[0])).name}")


def begin(directory: Path, attempt: int = 1, **more: Any) -> train.Checkpoints:
    return train.Checkpoints(
        directory, attempt=attempt, rank=rank, world_size=world, **{"patience": 60, "keep": None, **more}
    )


def state_of(step: int, elements: int = 240) -> dict[str, Any]:
    """A tensor of which every rank has its share, and a number."""
    try:
        tensor = import_module("torch.distributed.tensor")
        mesh = tensor.init_device_mesh("cpu", (world,))
    except AttributeError:  # torch 2.3
        tensor = import_module("torch.distributed._tensor")
        mesh = import_module("torch.distributed.device_mesh").init_device_mesh("cpu", (world,))
    share = elements // world
    local = torch.arange(rank * share, (rank + 1) * share, dtype=torch.float32) + step
    return {"weights": tensor.DTensor.from_local(local, mesh, [tensor.Shard(0)]), "step": step}


def outcome(act: Callable[[], Any]) -> Any:
    """What it gives, or its error in one line."""
    told.clear()
    try:
        return act()
    except (train.CheckpointError, TypeError) as error:
        return f"{type(error).__name__}: {error}"


def save(checkpoints: train.Checkpoints, step: int, state: dict[str, Any] | None = None) -> Any:
    return outcome(lambda: bridge.save(checkpoints, step, state or state_of(step)))


def save_and_wait(checkpoints: train.Checkpoints, step: int) -> list[Any]:
    return [save(checkpoints, step), outcome(checkpoints.wait)]


# --- scenarios


def sums() -> Any:
    """Which files are opened while a save goes on."""
    opened.clear()
    with begin(root / "sums") as checkpoints:
        bridge.save(checkpoints, 1, state_of(1, 2_000_000))
        checkpoints.wait()
        bridge.save(checkpoints, 2, state_of(2, 2_000_000))
    return list(opened)


def budgets() -> Any:
    """Rank 0 does not get to the end of its first save: it is to measure a file that nobody ends."""
    checkpoints = begin(root / "budgets", budget=0.2 if rank == 0 else 60)
    endless = root / "budgets" / "attempt-1" / "step-1" / "__0_9.distcp"
    if rank == 0:
        endless.parent.mkdir()
        os.mkfifo(endless)
    first = save(checkpoints, 1)
    second, why = save(checkpoints, 2), list(told)
    if rank == 0:
        endless.open("wb").close()
    checkpoints.wait()
    return {"said": [first, second, save(checkpoints, 3), outcome(checkpoints.wait)], "told": why}


def steps() -> Any:
    checkpoints = begin(root / "steps")
    return [save(checkpoints, 5 + rank), *save_and_wait(checkpoints, 10)]


def unmounted() -> Any:
    """Rank 1 sees the directory through a link of its own, which is gone for a while."""
    real, view = root / "unmounted", root / f"view-{rank}"
    real.mkdir(exist_ok=True)
    view.symlink_to(real)
    checkpoints = begin(view)
    first = save_and_wait(checkpoints, 1)
    if rank == 1:
        view.unlink()
    second = save_and_wait(checkpoints, 2)
    if rank == 1:
        view.symlink_to(real)
    return [first, second, save_and_wait(checkpoints, 3)]


def unsaveable() -> Any:
    """Rank 1 has something in its state that cannot be copied."""
    checkpoints = begin(root / "unsaveable")
    odd = {**state_of(1), "lock": threading.Lock()} if rank == 1 else state_of(1)
    return [save(checkpoints, 1, odd), *save_and_wait(checkpoints, 2)]


def too_large() -> Any:
    """The disk of rank 1 takes no file of that size, which shows when DCP writes."""
    checkpoints = begin(root / "too_large")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        first = [save(checkpoints, 1, state_of(1, 1_000_000)), outcome(checkpoints.wait)]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    return [first, save_and_wait(checkpoints, 2)]


def refused_load() -> Any:
    """A byte of what rank 1 has written changes after all was verified."""
    with begin(root / "refused_load") as before:
        bridge.save(before, 1, state_of(1))
    dist.barrier()
    again = begin(root / "refused_load", 2)
    dist.barrier()
    if rank == 1:
        with (again.resumed.path / "__1_0.distcp").open("r+b") as data:  # at no moment of another size
            first = data.read(1)[0]
            data.seek(0)
            data.write(bytes([first ^ 1]))
    return outcome(lambda: bridge.load(again, state_of(0)))


def misfit() -> Any:
    """What is to be filled is not what was saved."""
    with begin(root / "misfit") as first:
        bridge.save(first, 1, state_of(1))
    dist.barrier()
    again = begin(root / "misfit", 2)
    missing = outcome(lambda: bridge.load(again, {**state_of(0), "bias": torch.zeros(3)}))
    return [missing, outcome(lambda: bridge.load(again, state_of(0, 480)))]


def alone() -> Any:
    """Rank 1 does not come."""
    checkpoints = begin(root / "alone", patience=1, budget=1)
    first = save_and_wait(checkpoints, 1)
    began = time.monotonic()
    second = save(checkpoints, 2) if rank == 0 else None
    took = time.monotonic() - began
    dist.barrier()
    return {"said": [*first, second if rank == 0 else save(checkpoints, 2)], "took": took}


def asked() -> Any:
    """Each rank gets its signal at another moment."""

    def ask(whom: int | None = None, **more: Any) -> bool:
        if rank == whom:
            signal.raise_signal(signal.SIGTERM)
        answer: bool = bridge.should_save(**more)
        return answer

    said = [ask(), ask(1), ask(), ask(0), ask(), ask()]
    others = dist.new_group(backend="gloo")
    now = [ask(process_group=others, now=True), ask(0, process_group=others, now=True)]
    return [said, [*now, ask(1, process_group=others, now=True)]]


def _trained() -> tuple[Any, Any]:
    """A model and its optimizer, sharded over all ranks, after some steps on the same batches."""
    fully_shard = import_module("torch.distributed.fsdp").fully_shard
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(10, 31), torch.nn.ReLU(), torch.nn.Linear(31, 7))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=import_module("torch.distributed.tensor").init_device_mesh("cpu", (world,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(4, 10)).square().sum().backward()
        optimizer.step()
    return model, optimizer


def _whole(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _whole(held) for key, held in state.items()}
    return state.full_tensor() if hasattr(state, "full_tensor") else state


def reshard() -> Any:
    """FSDP2: what 4 ranks have saved is what 2 ranks have loaded, to the last bit."""
    both = import_module("torch.distributed.checkpoint.state_dict")
    model, optimizer = _trained()
    weights, rest = both.get_state_dict(model, optimizer)
    checkpoints = begin(root / "reshard", 1 if world == 4 else 2)
    if world == 4:
        bridge.save(checkpoints, 7, {"weights": weights, "rest": rest, "seen": 28})
        checkpoints.wait()
        if rank == 0:
            torch.save(_whole({"weights": weights, "rest": rest}), root / "whole.pt")
        else:
            _whole({"weights": weights, "rest": rest})
        return "saved"
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    weights, rest = both.get_state_dict(model, optimizer)
    held = {"weights": weights, "rest": rest, "seen": 0}
    assert bridge.load(checkpoints, held)
    both.set_state_dict(model, optimizer, model_state_dict=held["weights"], optim_state_dict=held["rest"])
    weights, rest = both.get_state_dict(model, optimizer)
    expected = torch.load(root / "whole.pt", weights_only=False)
    different = _differences(expected, _whole({"weights": weights, "rest": rest}))
    return {"different": different, "seen": held["seen"], "tensors": _count(expected)}


def _differences(one: Any, other: Any, where: str = "") -> list[str]:
    if isinstance(one, dict):
        if one.keys() != other.keys():
            return [where]
        return [found for key in one for found in _differences(one[key], other[key], f"{where}/{key}")]
    same = torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
    return [] if same else [where]


def _count(state: Any) -> int:
    return sum(map(_count, state.values())) if isinstance(state, dict) else int(isinstance(state, torch.Tensor))


def be_rank(number: int, of: int, port: int, scenarios: str, story: Path) -> None:
    global rank, world  # this process is that rank
    rank, world = number, of
    logging.getLogger("sickbay.train").addHandler(_Told())
    sys.addaudithook(_hear)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    seen = {name: globals()[name]() for name in scenarios.split(",")}
    dist.barrier()
    dist.destroy_process_group()
    story.write_text(json.dumps(seen))


def main() -> int:
    for gang in sys.argv[2:]:
        size, scenarios = gang.split(":")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        ranks = []
        for number in range(int(size)):
            if (child := os.fork()) == 0:
                be_rank(number, int(size), port, scenarios, root / f"{gang}-{number}.json")
                return 0
            ranks.append(child)
        ends = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in ranks]
        if any(ends):
            print(gang, "ended with", ends, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
