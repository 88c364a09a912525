"""Ways to save and load one state, measured in a process of its own: what a step waits, the rest, a resume.

python -m bench.checkpoint_ways JSON   # {"ways": …, "gb": …, "where": …, "twice": …, "device": …, "port": …}
"""

import json
import os
import shutil
import sys
import time
import warnings
from array import array
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from sickbay import train

GB = 10**9
PIECE = GB // 4  # bytes of one tensor, at most
State = dict[str, Any]


class Cost(NamedTuple):
    """Seconds."""

    first: float  # that the first save of a process holds the step up: it finds no memory of an earlier one
    wait: float  # that a later one does
    durable: float  # from the beginning of a later one until it is on the disk
    resume: float | None  # until what was saved is on the device again; None: the same as of another way


class Way:
    """A step is held up by `save`; after `finish` it is on the disk; `resume` gives the state, on its device."""

    background = False  # most of the work is done after `save`

    def __init__(self, state: State, where: Path, device: str) -> None:
        self.state, self.where, self.device = state, where, device

    def save(self, step: int) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        raise NotImplementedError

    def forget(self, step: int) -> None:
        """Its files, before the next save: a disk may have room for one only."""
        shutil.rmtree(self.where / f"step-{step}", ignore_errors=True)

    def resume(self) -> State | None:
        raise NotImplementedError


class Sickbay(Way):
    """`train.Checkpoints`: copied at once; hashed, written and synced in the background. A resume verifies it all."""

    background = True

    def __init__(self, state: State, where: Path, device: str) -> None:
        super().__init__(state, where, device)
        self.checkpoints = train.Checkpoints(where, attempt=1, rank=0, world_size=1, keep=None)

    def save(self, step: int) -> None:
        self.checkpoints.save(step, self.state)

    def finish(self) -> None:
        self.checkpoints.wait()

    def forget(self, step: int) -> None:
        shutil.rmtree(self.where / "attempt-1" / f"step-{step}")

    def again(self) -> train.Checkpoints:
        return train.Checkpoints(self.where, attempt=2, rank=0, world_size=1, keep=None)

    def resume(self) -> State | None:
        held: State = self.again().load()
        return held if self.device == "cpu" else {name: one.to(self.device) for name, one in held.items()}


class SickbayDcp(Sickbay):
    """`sickbay.train.torch`: DCP's files, the same promises."""

    def __init__(self, state: State, where: Path, device: str) -> None:
        super().__init__(state, where, device)
        self.bridge: Any = import_module("sickbay.train.torch")

    def save(self, step: int) -> None:
        self.bridge.save(self.checkpoints, step, self.state)

    def resume(self) -> State | None:
        held = blank_of(self.state)
        assert self.bridge.load(self.again(), held)
        return held


class Plain(Way):
    """A script without torch: one write after the other into a file aside, fsync, rename."""

    def save(self, step: int) -> None:
        self.path = self.where / f"step-{step}"
        with self.path.with_suffix(".aside").open("wb") as file:
            for held in self.state.values():
                file.write(memoryview(held))

    def finish(self) -> None:
        sync(self.path.with_suffix(".aside"))
        self.path.with_suffix(".aside").rename(self.path)

    def forget(self, step: int) -> None:
        (self.where / f"step-{step}").unlink()

    def resume(self) -> State | None:
        held: State = {}
        with self.path.open("rb") as file:
            for name, one in self.state.items():
                held[name] = array("d", bytes(8)) * len(one)
                file.readinto(held[name])
        return held


class TorchSave(Way):
    def save(self, step: int) -> None:
        self.path = self.where / f"step-{step}"
        torch().save(self.state, self.path)

    def finish(self) -> None:
        sync(self.path)

    def forget(self, step: int) -> None:
        (self.where / f"step-{step}").unlink()

    def resume(self) -> State | None:
        held: State = torch().load(self.path, map_location=self.device, weights_only=True)
        return held


class DcpSave(Way):
    """It syncs its files before it returns."""

    def save(self, step: int) -> None:
        self.path = self.where / f"step-{step}"
        dcp().save(self.state, checkpoint_id=str(self.path))

    def finish(self) -> None:
        pass

    def resume(self) -> State | None:
        held = blank_of(self.state)
        dcp().load(held, checkpoint_id=str(self.path))
        return held


class DcpAsync(DcpSave):
    background = True

    def save(self, step: int) -> None:
        self.written = dcp().async_save(self.state, checkpoint_id=str(self.where / f"step-{step}"))

    def finish(self) -> None:
        self.written.result()

    def resume(self) -> State | None:
        return None


ALWAYS: dict[str, type[Way]] = {"sickbay": Sickbay}
WITH_TORCH: dict[str, type[Way]] = {
    "sickbay DCP": SickbayDcp,
    "torch.save": TorchSave,
    "dcp.save": DcpSave,
    "dcp.async_save": DcpAsync,
}
WITHOUT: dict[str, type[Way]] = {"plain": Plain}


def ways() -> dict[str, type[Way]]:
    return ALWAYS | (WITH_TORCH if find_spec("torch") else WITHOUT)


def torch() -> Any:
    return import_module("torch")


def dcp() -> Any:
    return import_module("torch.distributed.checkpoint")


def state_of(octets: int, device: str) -> State:
    """Numbers in pieces: tensors on the device, or arrays where there is no torch."""
    sizes = [min(PIECE, octets - start) // 8 * 8 for start in range(0, octets, PIECE)]
    if find_spec("torch") is None:
        return {f"w{n}": array("d", [n + 0.5]) * (size // 8) for n, size in enumerate(sizes)}
    kinds = {"dtype": torch().int32, "device": device}
    return {f"w{n}": torch().arange(n, n + size // 4, **kinds).view(torch().bfloat16) for n, size in enumerate(sizes)}


def blank_of(state: State) -> State:
    return {name: torch().empty_like(held) for name, held in state.items()}


def sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def drop_from_memory(where: Path) -> None:
    """A resume mostly comes to a machine that has not written what it reads."""
    for path in where.rglob("*"):
        if path.is_file():
            handle = os.open(path, os.O_RDONLY)
            with suppress(OSError):
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)


def timed(act: Callable[[], Any], device: str) -> tuple[float, Any]:
    wait: Callable[[], None] = torch().cuda.synchronize if device == "cuda" else lambda: None
    wait()
    start = time.perf_counter()
    found = act()
    wait()
    return time.perf_counter() - start, found


def measure(way: Way, *, twice: bool) -> Cost:
    """`twice`: save the whole of it a second time. Else of that save only what holds up the step, last of all."""
    first, _ = timed(partial(way.save, 1), way.device)
    finished, _ = timed(way.finish, way.device)
    if twice:
        way.forget(1)
        wait, _ = timed(partial(way.save, 2), way.device)
        finished, _ = timed(way.finish, way.device)
        return Cost(first, wait, wait + finished, resume(way))
    resumed = resume(way)
    way.forget(1)
    wait = timed(partial(way.save, 2), way.device)[0] if way.background else first
    return Cost(first, wait, wait + finished, resumed)


def resume(way: Way) -> float | None:
    drop_from_memory(way.where)
    took, held = timed(way.resume, way.device)
    assert held is None or all(same(held[name], way.state[name]) for name in list(way.state)[-1:])
    return None if held is None else took


def same(one: Any, other: Any) -> bool:
    if isinstance(one, array):
        return bool(one == other)
    kind = torch().uint8
    return bool(torch().equal(one.view(kind), other.view(kind)))


def main() -> None:
    asked = json.loads(sys.argv[1])
    warnings.simplefilter("ignore")  # of torch: it is told at every save that there is one process
    known, device = ways(), asked["device"]
    state = state_of(round(asked["gb"] * GB), device)
    if "torch" in sys.modules and find_spec("torch"):
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(asked["port"]))
        backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
        import_module("torch.distributed").init_process_group(backend, rank=0, world_size=1)
    for number, name in enumerate(asked["ways"]):
        where = Path(asked["where"]) / f"way-{number}"
        where.mkdir()
        cost = measure(known[name](state, where, device), twice=asked["twice"])
        print(json.dumps({"way": name, **cost._asdict()}), flush=True)
        if asked["twice"]:
            shutil.rmtree(where)
    os._exit(0)  # nobody waits for a save that is still written


if __name__ == "__main__":
    main()
