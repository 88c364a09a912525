"""Snapshots of torch's tensors, on the CPU and, where there is one, on a GPU."""

import math
import sys
from collections import OrderedDict
from typing import Any

import pytest
from tests.support.states import file_of, restored, same, there_and_back
from tests.unit.test_train_snapshot import check_refused, shard_with

from sickbay.train import snapshot

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch's own making
torch: Any = pytest.importorskip("torch", reason="torch is not installed here: states with its tensors are not tested")

NAMES = (
    *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"),
    *("complex32", "complex64", "complex128", "bool", "uint8", "int8", "int16", "int32", "int64"),
    *("uint16", "uint32", "uint64", "float4_e2m1fn_x2"),
)
KINDS = [name for name in NAMES if hasattr(torch, name)]
PLACES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def tensor_of(name: str, shape: tuple[int, ...], place: str = "cpu", seed: int = 0) -> Any:
    kind = getattr(torch, name)
    octets = bytes(
        (seed + index * 7) % (2 if name == "bool" else 120) for index in range(math.prod(shape) * kind.itemsize)
    )
    flat = torch.frombuffer(bytearray(octets), dtype=kind) if octets else torch.empty(0, dtype=kind)
    return flat.reshape(shape).to(place)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", KINDS)
def test_tensors_of_every_dtype_and_shape_come_back_whatever_happens_before_they_are_written(
    name: str, place: str
) -> None:
    kept: list[Any] = []
    shapes = [(), (1,), (4,), (0, 3), (2, 3)]
    for seed in range(3):
        state = [tensor_of(name, shape, place, seed) for shape in shapes]
        before = [one.clone() for one in state]
        shot = snapshot.take(state, kept)
        for one in state:
            one.copy_(tensor_of(name, tuple(one.shape), place, 50))
        assert same(restored("state", file_of(shot)), before)
        kept = shot.kept
        shapes = [*shapes[1:], (5,)]


@pytest.mark.parametrize("place", PLACES)
def test_views_come_back_as_what_they_show(place: str) -> None:
    base = torch.arange(24.0, device=place).reshape(4, 6)
    complexes = torch.complex(base, -base)
    state = {
        "turned": base.t(),
        "cut": base[1:3, ::2],
        "wide": torch.ones(1, device=place).expand(3, 4),
        "conjugate": complexes.conj(),
        "imaginary": complexes.conj().imag,
        "last": base.reshape(1, 2, 2, 6).to(memory_format=torch.channels_last),
        "grad": torch.ones(3, device=place, requires_grad=True) * 2,
    }
    assert same(there_and_back(state), state)
    again = snapshot.take({"x": base, "more": state}, snapshot.take(state).kept)
    assert same(restored("state", file_of(again)), {"x": base, "more": state})


def test_states_of_modules_and_optimizers_come_back_as_they_were() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    chosen = torch.optim.Adam(model.parameters())
    model(torch.ones(4, 2)).sum().backward()
    chosen.step()
    state: dict[str, Any] = {
        "model": model.state_dict(),
        "optimizer": chosen.state_dict(),
        "random": torch.get_rng_state(),
    }
    back: dict[str, Any] = there_and_back(state)
    assert same(back, state)
    assert {name: type(value) for name, value in back.items()}["model"] is OrderedDict
    assert back["model"]._metadata == state["model"]._metadata
    model.load_state_dict(back["model"])
    chosen.load_state_dict(back["optimizer"])


def test_a_parameter_comes_back_as_a_plain_tensor() -> None:
    back = there_and_back({"p": torch.nn.Parameter(torch.ones(3))})["p"]
    assert (type(back), back.requires_grad, back.tolist()) == (torch.Tensor, False, [1, 1, 1])


@pytest.mark.parametrize("place", PLACES)
def test_memory_that_was_first_used_while_no_gradients_were_kept_is_used_again(place: str) -> None:
    weights = torch.ones(3, device=place)
    with torch.inference_mode():
        first = snapshot.take([weights, torch.ones(2, device=place)])
    second = snapshot.take([weights * 2, torch.ones(2, device=place)], first.kept)
    assert same(restored("state", file_of(second))[0], torch.full((3,), 2.0))
    assert {id(memory) for memory in first.kept} == {id(memory) for memory in second.kept}


def test_copies_lie_in_the_memory_of_the_host_whatever_the_default_is() -> None:
    shown, state = torch.arange(3.0), {"x": torch.arange(3.0), "empty": torch.empty(0, 2)}
    torch.set_default_device("meta")
    try:
        back = there_and_back(state)
    finally:
        torch.set_default_device(None)
    assert (back["x"].device.type, back["empty"].device.type) == ("cpu", "cpu")
    assert same(back["x"], shown)


class Tagged(torch.Tensor):  # type: ignore[misc]
    pass


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.eye(3).to_sparse(),
        lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        lambda: torch.ones(3, device="meta"),
        lambda: torch.ones(3).as_subclass(Tagged),
        torch.nn.UninitializedParameter,
    ],
    ids=["sparse", "quantized", "nested", "meta", "subclass", "uninitialized"],
)
def test_tensors_that_are_not_plain_memory_are_refused(make: Any) -> None:
    with pytest.raises(snapshot.NotAState, match=r"^state\['x'\] is a .* that is not plain memory"):
        snapshot.take({"x": make()})


@pytest.mark.parametrize("name", ["int1", "int4", "uint3", "bits1x8", "bits4x2"])
def test_dtypes_that_torch_cannot_copy_are_refused(name: str) -> None:
    if not hasattr(torch, name):
        pytest.skip(f"torch has no {name} here")
    with pytest.raises(
        snapshot.NotAState, match=rf"^state\['x'\] is a torch.Tensor of torch.{name}, which torch cannot"
    ):
        snapshot.take({"x": torch.zeros(4, dtype=torch.uint8).view(getattr(torch, name))})


@pytest.mark.parametrize("value", [lambda: torch.Size([1, 2]), lambda: torch.float32, lambda: torch.device("cpu")])
def test_other_things_of_torch_are_refused_by_name(value: Any) -> None:
    with pytest.raises(snapshot.NotAState, match=r"^state\['x'\] is a torch"):
        snapshot.take({"x": value()})


def test_tensors_are_no_keys() -> None:
    with pytest.raises(snapshot.NotAState, match=r"^a key of state is a torch\.Tensor: keys are"):
        snapshot.take({torch.ones(1): 1})


@pytest.mark.skipif(PLACES == ["cpu"], reason="there is no GPU here")
def test_memory_of_one_place_is_not_used_for_another() -> None:
    kept: list[Any] = []
    for place in ("cpu", "cuda", "cuda", "cpu"):
        state = [torch.arange(6.0, device=place), torch.ones(2, 3, device=place), bytearray(24)]
        shot = snapshot.take(state, kept)
        kept = shot.kept
        state[0].zero_()
        assert same(restored("state", file_of(shot)), [torch.arange(6.0), torch.ones(2, 3), bytearray(24)])


@pytest.mark.skipif(PLACES == ["cpu"], reason="there is no GPU here")
def test_a_large_tensor_on_a_gpu_may_change_while_it_is_written() -> None:
    kept: list[Any] = []
    weights = torch.zeros(1 << 26, device="cuda")
    for step in range(4):
        weights.fill_(step)
        shot = snapshot.take({"w": weights}, kept)
        kept = shot.kept
        weights.fill_(-1)
        assert (restored("state", file_of(shot))["w"] == step).all()


@pytest.mark.parametrize(
    "octets",
    [
        shard_with(["p", "float32", [1 << 40], 0], b""),
        shard_with(["p", "float32", [-1], 0], bytes(8)),
        shard_with(["p", "float32", [3], 0], bytes(8)),
        shard_with(["p", "load", [1], 0], bytes(8)),
        shard_with(["p", "float33", [1], 0], bytes(8)),
        shard_with(["p", "int4", [8], 0], bytes(8)),
        shard_with(["p", "quint8", [8], 0], bytes(8)),
        shard_with(["p", None, [8], 0], bytes(8)),
    ],
    ids=lambda _: "shard",
)
def test_a_tensor_that_is_not_what_lies_in_the_file_is_refused(octets: bytes) -> None:
    check_refused(octets)


def test_tensors_that_an_earlier_version_wrote_are_still_read() -> None:
    tree = ["l", [["p", "bfloat16", [2], 0], ["p", "complex64", [], 1], ["p", "bool", [0, 3], 2]]]
    back = restored("state", shard_with(tree, bytes((0x80, 0x3F, 0, 0x40)), bytes(8), b""))
    expected = [torch.tensor([1.0, 2.0]).bfloat16(), torch.tensor(0j), torch.empty(0, 3, dtype=torch.bool)]
    assert same(back, expected)


def test_a_shard_of_tensors_says_that_torch_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # as if it were not installed
    check_refused(shard_with(["p", "float32", [1], 0], bytes(4)), "arrays of torch, which is not installed here")
