"""The bridge to torch.distributed.checkpoint."""

import signal
import socket
import subprocess
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sickbay import train

WHY = "torch is not installed here: sickbay.train.torch was not tried with it"


@pytest.mark.skipif(find_spec("torch") is not None, reason="torch is installed here")
def test_without_torch_the_import_error_is_one_clear_line() -> None:
    code = "import sickbay.train.torch"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    said = ran.stderr.splitlines()
    assert (
        said[-1]
        == "ImportError: sickbay.train.torch needs torch 2.3 or newer (No module named 'torch'): pip install torch"
    )
    assert "During handling" not in ran.stderr


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch", reason=WHY)


@pytest.mark.filterwarnings("ignore")  # of torch's own making
def test_a_dcp_checkpoint_is_listed_verified_and_loaded(torch: Any, tmp_path: Path) -> None:
    from sickbay.train import torch as bridge

    with train.Checkpoints(tmp_path, attempt=1, rank=0, world_size=1) as first:
        state = {"weights": torch.arange(1000.0), "step": 5}
        assert bridge.load(first, state) is False
        bridge.save(first, 5, state)
        first.wait()
        state["weights"] += 1
        bridge.save(first, 6, state)
    with train.Checkpoints(tmp_path, attempt=2, rank=0, world_size=1) as second:
        state = {"weights": torch.zeros(1000), "step": 0}
        assert bridge.load(second, state) is True
        assert torch.equal(state["weights"], torch.arange(1000.0) + 1)
    data = next((tmp_path / "attempt-1" / "step-6").glob("*.distcp"))
    data.write_bytes(data.read_bytes()[:-1])
    found = train.latest_valid(tmp_path)
    assert (found.step, len(found.skipped)) == (5, 1)
    assert "is torn" in found.skipped[0].why


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("where", ["", "attempt-1", "attempt-1/step-5", "attempt-1/step-5/.metadata"])
def test_the_pickle_of_dcp_is_opened_only_where_nobody_else_can_write(where: str, torch: Any, tmp_path: Path) -> None:
    from sickbay.train import torch as bridge

    with train.Checkpoints(tmp_path, attempt=1, rank=0, world_size=1) as first:
        bridge.save(first, 5, {"weights": torch.ones(3)})
    state = {"weights": torch.zeros(3)}
    (tmp_path / where).chmod(0o777)
    with train.Checkpoints(tmp_path, attempt=2, rank=0, world_size=1) as second:
        with pytest.raises(train.CheckpointError, match=r"others can write .*, and DCP runs what its \.metadata says"):
            bridge.load(second, state)
        assert not state["weights"].any()
        assert bridge.load(second, state, trust=True)
    assert state["weights"].all()


@pytest.mark.filterwarnings("ignore")
def test_what_changes_between_the_look_and_the_load_of_dcp_is_not_loaded(torch: Any, tmp_path: Path) -> None:
    from sickbay.train import torch as bridge

    with train.Checkpoints(tmp_path, attempt=1, rank=0, world_size=1) as first:
        bridge.save(first, 5, {"weights": torch.ones(3)})
    with train.Checkpoints(tmp_path, attempt=2, rank=0, world_size=1) as second:
        for path in sorted((tmp_path / "attempt-1" / "step-5").glob("*.distcp")):
            path.write_bytes(bytes(reversed(path.read_bytes())))
        with pytest.raises(train.CheckpointError, match=r"was whole and is no longer: .*\.distcp is corrupt"):
            bridge.load(second, {"weights": torch.zeros(3)})


@pytest.mark.filterwarnings("ignore")
def test_a_tensor_on_the_cpu_may_change_while_dcp_writes_it(torch: Any, tmp_path: Path) -> None:
    from sickbay.train import torch as bridge

    weights = torch.ones(20_000_000)
    state = {"model": {"weights": weights, "all": [weights[:10]]}}
    with _process_group(torch), train.Checkpoints(tmp_path, attempt=1, rank=0, world_size=1) as first:
        bridge.save(first, 1, state)
        weights.fill_(-1)
        first.wait()
        with train.Checkpoints(tmp_path, attempt=2, rank=0, world_size=1) as second:
            assert bridge.load(second, state) is True
    assert (state["model"]["weights"] == 1).all()


@contextmanager
def _process_group(torch: Any) -> Iterator[None]:
    """Of one: torch 2.3 does not save without."""
    place = f"tcp://127.0.0.1:{_free_port()}"
    torch.distributed.init_process_group("gloo", init_method=place, rank=0, world_size=1)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


RANK = """
import sys, warnings
warnings.simplefilter("ignore")
import torch, torch.distributed as dist
try:
    from torch.distributed.tensor import DTensor, Shard, init_device_mesh
except ImportError:  # torch 2.3
    from torch.distributed._tensor import DTensor, Shard
    from torch.distributed.device_mesh import init_device_mesh
from sickbay import train
from sickbay.train import torch as bridge
directory, rank, world, attempt, port = sys.argv[1], *map(int, sys.argv[2:])
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
mesh = init_device_mesh("cpu", (world,))
whole = torch.arange(24.0)
share = DTensor.from_local(torch.zeros(24 // world), mesh, [Shard(0)])
checkpoints = train.Checkpoints(directory, attempt=attempt, rank=rank, world_size=world, patience=60)
state = {"weights": share}
if bridge.load(checkpoints, state):
    mine = whole[rank * 24 // world:(rank + 1) * 24 // world] + checkpoints.resumed.step
    assert torch.equal(state["weights"].to_local(), mine), (state, mine)
first = checkpoints.resumed.step + 1 if checkpoints.resumed else 1
for step in (first, first + 1):
    local = whole[rank * 24 // world:(rank + 1) * 24 // world] + step
    bridge.save(checkpoints, step, {"weights": DTensor.from_local(local, mesh, [Shard(0)])})
checkpoints.wait()
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.usefixtures("torch")
def test_a_run_with_another_number_of_ranks_goes_on_from_a_dcp_checkpoint(tmp_path: Path) -> None:
    for attempt, world in ((1, 2), (2, 3), (3, 1)):
        port = _free_port()
        numbers = [[str(number) for number in (rank, world, attempt, port)] for rank in range(world)]
        gang = [subprocess.Popen([sys.executable, "-c", RANK, str(tmp_path), *those]) for those in numbers]
        try:
            assert [rank.wait(120) for rank in gang] == [0] * world
        finally:
            for rank in gang:
                rank.kill()
                rank.wait()
    found = train.latest_valid(tmp_path)
    assert (found.attempt, found.step, found.world_size, found.skipped) == (3, 6, 1, ())


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Pair(NamedTuple):
    one: Any
    other: Any


def _mixed(torch: Any, factor: float = 1.0) -> dict[str, Any]:
    whole = torch.arange(24.0).reshape(4, 6) * factor
    return {
        "plain": OrderedDict(a=whole, b=torch.nn.Parameter(whole + 1)),
        "turned": [whole.t(), whole[1:3, ::2], torch.tensor(2.5 * factor)],
        "empty": (torch.empty(0, 3), torch.empty(0)),
        "kinds": {kind: whole.to(getattr(torch, kind)) for kind in ("bfloat16", "int8", "bool", "complex64")},
        "conjugate": (whole + 1j).conj(),
        "pair": Pair(whole, [factor]),
        "counts": defaultdict(int, {"a": int(factor)}),
        "number": factor,
    }


def _same(torch: Any, one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and bool(torch.equal(one.detach(), other.detach()))
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(_same(torch, one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(_same(torch, *pair) for pair in zip(one, other, strict=True))
    return bool(one == other)


def test_what_is_staged_is_the_same_and_does_not_change_with_its_source(torch: Any) -> None:
    from sickbay.train.staging import Staging

    state = _mixed(torch)
    staged = Staging().take(state)
    assert _same(torch, state, staged)
    with torch.no_grad():
        state["plain"]["a"].fill_(-1)
        state["plain"]["b"].fill_(-1)
    state["pair"].other.append(1)
    state["counts"]["a"] = 7
    assert _same(torch, _mixed(torch), staged)


def test_a_later_save_is_staged_in_the_memory_of_the_one_before(torch: Any) -> None:
    from sickbay.train.staging import Staging

    def places(staged: Any) -> set[int]:
        return {one.data_ptr() for one in (*staged["plain"].values(), *staged["kinds"].values())}

    staging = Staging()
    first = places(staging.take(_mixed(torch)))
    size = staging.size
    second = staging.take(_mixed(torch, 2.0))
    assert (places(second), staging.size) == (first, size)
    assert _same(torch, _mixed(torch, 2.0), second)
    smaller = staging.take({"one": torch.ones(24)})
    assert smaller["one"].data_ptr() in first
    assert staging.size == 96


@pytest.mark.filterwarnings("ignore")
def test_who_holds_a_state_of_its_own_is_asked_for_it(torch: Any, tmp_path: Path) -> None:
    from sickbay.train import torch as bridge

    class Counter:
        steps = 0

        def state_dict(self) -> dict[str, Any]:
            return {"steps": self.steps, "tensor": torch.full((3,), float(self.steps))}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.steps = state["steps"]

    counter = Counter()
    counter.steps = 12
    with train.Checkpoints(tmp_path, attempt=1, rank=0, world_size=1) as first:
        bridge.save(first, 1, {"counter": counter})
    again = Counter()
    with train.Checkpoints(tmp_path, attempt=2, rank=0, world_size=1) as second:
        assert bridge.load(second, {"counter": again})
    assert again.steps == 12


@pytest.mark.filterwarnings("ignore")
def test_each_form_refuses_the_other_in_one_line(torch: Any, tmp_path: Path) -> None:
    from sickbay.train import torch as bridge

    with train.Checkpoints(tmp_path / "ours", attempt=1, rank=0, world_size=1) as first:
        first.save(1, {"weights": torch.ones(3)})
    with (
        train.Checkpoints(tmp_path / "ours", attempt=2, rank=0, world_size=1) as second,
        pytest.raises(train.CheckpointError, match=r"was not saved by sickbay\.train\.torch: read it with"),
    ):
        bridge.load(second, {"weights": torch.zeros(3)})
    with train.Checkpoints(tmp_path / "dcp", attempt=1, rank=0, world_size=1) as first:
        bridge.save(first, 1, {"weights": torch.ones(3)})
    with (
        train.Checkpoints(tmp_path / "dcp", attempt=2, rank=0, world_size=1) as second,
        pytest.raises(
            train.CheckpointError, match=r"was not saved with checkpoints\.save: read it with sickbay\.train\.torch"
        ),
    ):
        second.load()


def test_ranks_that_cannot_reach_one_another_are_refused(torch: Any, tmp_path: Path) -> None:
    from sickbay.train import torch as bridge

    with (
        train.Checkpoints(tmp_path, attempt=1, rank=0, world_size=2) as checkpoints,
        pytest.raises(
            train.CheckpointError, match=r"rank 0 of 2, and DCP .*: call torch.distributed.init_process_group first"
        ),
    ):
        bridge.save(checkpoints, 1, {"weights": torch.ones(3)})
    with (
        _process_group(torch),
        train.Checkpoints(tmp_path, attempt=2, rank=0, world_size=2) as checkpoints,
        pytest.raises(train.CheckpointError, match="rank 0 of 2, the process group is of rank 0 of 1"),
    ):
        bridge.save(checkpoints, 1, {"weights": torch.ones(3)})


@pytest.mark.usefixtures("torch")
def test_one_rank_asks_nobody_else_whether_to_save() -> None:
    from sickbay.train import torch as bridge

    before = signal.getsignal(signal.SIGTERM)
    try:
        assert bridge.should_save() is False
        signal.raise_signal(signal.SIGTERM)
        assert [bridge.should_save(), bridge.should_save()] == [True, False]
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.filterwarnings("ignore")
def test_tensors_of_every_kind_come_back(torch: Any, tmp_path: Path) -> None:
    places = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    state = {
        f"{kind}-{place}": torch.arange(24, device=place).reshape(4, 6).to(getattr(torch, kind)).t()
        for kind in ("float32", "bfloat16", "float16", "int64", "uint8", "bool", "complex64")
        for place in places
    } | {"empty": torch.empty(0, 3), "scalar": torch.tensor(2.5), "grad": torch.nn.Parameter(torch.ones(3))}
    with train.Checkpoints(tmp_path, attempt=1, rank=0, world_size=1) as first:
        for step in (1, 2):
            first.save(step, state)
    with train.Checkpoints(tmp_path, attempt=2, rank=0, world_size=1) as second:
        back = second.load()
    for name, value in state.items():
        assert back[name].dtype == value.dtype, name
        assert torch.equal(back[name], value.detach().cpu()), name


def test_a_tensor_that_is_not_plain_memory_is_refused(torch: Any, tmp_path: Path) -> None:
    with (
        train.Checkpoints(tmp_path, attempt=1, rank=0, world_size=1) as checkpoints,
        pytest.raises(TypeError, match="not plain memory"),
    ):
        checkpoints.save(1, {"sparse": torch.eye(3).to_sparse()})


LEAVES = """
import sys, time, warnings
warnings.simplefilter("ignore")
import torch.distributed as dist
from sickbay import train
from sickbay.train import torch as bridge
directory, rank, world, port = sys.argv[1], *map(int, sys.argv[2:])
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
with train.Checkpoints(directory, attempt=1, rank=rank, world_size=world, patience=20) as checkpoints:
    for step in range(1, 3000):
        if bridge.should_save():
            checkpoints.save(step, {"step": step})
        if bridge.should_end():
            break
        print(step, flush=True)
        time.sleep(0.01)
print("left after", step)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("torch")
def test_ranks_of_which_one_is_told_to_end_save_and_leave_after_the_same_step(tmp_path: Path) -> None:
    port = _free_port()
    words = [[str(number) for number in (rank, 3, port)] for rank in range(3)]
    command = [sys.executable, "-c", LEAVES, str(tmp_path)]
    gang = [subprocess.Popen([*command, *those], stdout=subprocess.PIPE, text=True) for those in words]
    try:
        told = 0
        while told < 20:
            assert gang[1].stdout is not None
            told = int(gang[1].stdout.readline())
        gang[1].terminate()
        said = [rank.communicate(timeout=60)[0].splitlines()[-1] for rank in gang]
    finally:
        for rank in gang:
            rank.kill()
            rank.wait()
    saved = train.latest_valid(tmp_path)
    assert saved is not None
    assert said == [f"left after {saved.step}"] * 3
    assert saved.step >= told
