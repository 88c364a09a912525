"""GPUs as the driver shows them: what is missing, busy, lost or slow. The GPUs' own work is tested on a real one."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sickbay.agent.checks import CouldNotRun, examine
from sickbay.agent.checks.apart import ExerciseOutcome
from sickbay.agent.checks.gpus import Bench, gpu_tests, gpus_here, under_load
from sickbay.agent.checks.nccl_tests import judged
from sickbay.agent.cuda import multiply, ptx
from sickbay.agent.nvml.watched import CannotRead, NoDriver, NvmlHung
from sickbay.knowledge.skus import COLUMNS, LANE, link_floor, read_skus, sku_of
from sickbay.model.checkup import Verdict
from sickbay.model.errors import BadInput
from sickbay.model.gpu import GpuProcess, GpuReading, Link

GIB = 1 << 30
RECORDED = Path(__file__).parents[1] / "fixtures/h200"
LATER = 1e12


def gpu(index: int = 0, **more: Any) -> GpuReading:
    fields: dict[str, Any] = {"pci": f"0000:{index + 1:02x}:00.0", "name": "NVIDIA H200", "processes": (), "mig": False}
    fields |= {"pcie_generation_max": 5, "pcie_width_max": 16, "utilization": 100.0, **more}
    return GpuReading(index=index, **fields)


def bench(found: Sequence[GpuReading] | Exception, expected: int | None = None, here: int = 1) -> Bench:
    def look(seconds: float) -> list[GpuReading]:
        assert seconds > 0
        if isinstance(found, Exception):
            raise found
        return list(found)

    @contextmanager
    def reader() -> Iterator[Callable[[float], list[GpuReading]]]:
        yield look

    return Bench(expected, reader, lambda: here)


def soon() -> float:
    return time.monotonic() + 20


def test_all_there_passes_and_a_missing_one_fails() -> None:
    assert bench([gpu(0), gpu(1)], 2).inventory(soon()).because == ""
    assert bench([gpu(0)], 2).inventory(soon()).because == "1 of 2 GPUs are there"
    assert bench([gpu(0)], None, here=8).inventory(soon()).because == "1 of 8 GPUs are there"
    assert bench([gpu(0), gpu(1, lost="GPU is lost")]).inventory(soon()).because == "GPU 1: GPU is lost"


@pytest.mark.parametrize("error", [NoDriver("no libnvidia-ml.so.1"), CannotRead("mismatch")])
def test_without_a_driver_nothing_is_proved(error: CannotRead) -> None:
    verdict, because, tests = examine(gpu_tests(bench(error), 1), 1, LATER)
    assert verdict == "could_not_run"
    assert {test.verdict for test in tests} == {"could_not_run"}
    assert str(error) in because


def test_a_driver_that_hangs_fails() -> None:
    assert "does not answer" in bench(NvmlHung("GPU 3 does not answer", None)).inventory(soon()).because


def test_what_the_driver_knows_of_itself_fails_the_health_test() -> None:
    assert bench([gpu(0, temperature=40.0)]).health(soon()).because == ""
    found = bench([gpu(0), gpu(1, remap_failed=True)]).health(soon())
    assert "GPU 1" in found.because
    assert "remap" in found.because


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (
            {"processes": (GpuProcess(pid=123, name="/usr/bin/python"),)},
            "GPU 0 is used by pid 123 (python): stop it first",
        ),
        ({"processes": (GpuProcess(pid=123_456_789),)}, "pid 123456789 (not to be seen from here)"),
        ({"mig": True}, "MIG is on"),
        ({"memory_used": 40 * GIB}, "40.0 GiB of it are in use by somebody"),
        ({"lost": "GPU is lost"}, "GPU is lost"),
    ],
)
def test_a_gpu_that_cannot_be_exercised_could_not_be_tested_and_says_why(more: dict[str, Any], says: str) -> None:
    busy = bench([gpu(0, **more)])
    runs: list[Callable[[], object]] = [
        lambda: busy.each("gpu.kernel", {}, soon()),
        lambda: busy.nccl(soon()),
        lambda: busy.sustained(1.0, soon()),
    ]
    for run in runs:
        with pytest.raises(CouldNotRun) as error:
            run()
        assert says in str(error.value)


def test_no_listed_gpu_is_no_pass() -> None:
    for run in (bench([]).nccl, bench([]).health, lambda until: bench([]).each("gpu.kernel", {}, until)):
        with pytest.raises(CouldNotRun, match="lists no GPU"):
            run(soon())
    with pytest.raises(CouldNotRun, match="two GPUs"):
        bench([gpu(0)]).links(soon())


@pytest.mark.skipif(bool(gpus_here()), reason="this machine has GPUs")
def test_without_the_drivers_library_the_child_says_so() -> None:
    with pytest.raises(CouldNotRun, match=r"GPU 0: the NVIDIA driver's libcuda\.so\.1 cannot be loaded"):
        bench([gpu(0)]).each("gpu.kernel", {}, soon())


def test_a_link_that_is_down_beside_others_that_are_up_fails() -> None:
    up, down = (tuple(Link(number=number, up=number != broken) for number in range(18)) for broken in (99, 3))
    found = bench([gpu(0, links=up), gpu(1, links=down)]).links(soon())
    assert "GPU 1" in found.because
    assert (found.figures["gpu.0.links_up"], found.figures["gpu.1.links_up"]) == (18, 17)


# --- against expectations


@pytest.mark.parametrize(
    ("name", "figures", "low"),
    [
        ("NVIDIA H200", {"h2d_gbps": 53.0, "d2h_gbps": 53.0, "d2d_gbps": 4200.0}, ""),
        ("NVIDIA H200", {"h2d_gbps": 12.0}, "h2d_gbps 12.0, at least 38.7 expected (NVIDIA H200 in skus.csv)"),
        ("NVIDIA H200", {"d2d_gbps": 2000.0}, "d2d_gbps 2000.0"),
        ("NVIDIA H200", {"tensor_tflops": 90.0}, "tensor_tflops 90.0"),
        ("Some New Card", {"h2d_gbps": 40.0, "d2d_gbps": 1.0}, ""),
        ("Some New Card", {"d2h_gbps": 20.0}, "d2h_gbps 20.0, at least 31.5 expected (PCIe gen 5 x16)"),
    ],
)
def test_figures_are_judged_by_the_kind_of_card_else_by_its_link(
    name: str, figures: dict[str, float], low: str
) -> None:
    got = Bench._judge(gpu(0, name=name), ExerciseOutcome(Verdict.PASS, "", figures))
    assert got.verdict == ("fail" if low else "pass")
    assert got.because.startswith(low)
    assert got.figures == figures


def test_a_link_that_nobody_knows_gives_no_floor() -> None:
    assert link_floor(None, 16) is None
    assert link_floor(5, None) is None
    assert link_floor(99, 16) is None
    assert all(one < other for one, other in zip(list(LANE.values())[:-1], list(LANE.values())[1:], strict=True))


def test_cards_are_told_apart_by_their_names() -> None:
    names = {
        "NVIDIA H200": "H200 SXM", "NVIDIA H200 NVL": "H200 NVL", "NVIDIA H100 80GB HBM3": "H100 SXM",
        "NVIDIA L4": "L4", "NVIDIA L40S": "L40S", "NVIDIA A100-SXM4-40GB": "A100 SXM 40 GB",
    }  # fmt: skip
    assert {name: sku.sku for name in names if (sku := sku_of(name))} == names
    assert sku_of("Tesla T4") is None


@pytest.mark.parametrize("level", [1, 2, 3])
def test_what_a_real_h200_measured_passes_and_is_what_is_expected_of_it(level: int) -> None:
    found = json.loads((RECORDED / f"check-level{level}.json").read_text())
    assert (found["level"], found["verdict"]) == (level, "pass")
    sku = sku_of("NVIDIA H200")
    assert sku is not None
    seen = 0
    for test in found["tests"]:
        for name, value in test["figures"].items():
            expected = getattr(sku, name.removeprefix("gpu.0."), None) if name.startswith("gpu.0.") else None
            if expected is not None:
                seen += 1
                assert value == pytest.approx(expected, rel=0.05), name
    assert seen == {1: 0, 2: 5, 3: 6}[level]


def test_a_wrong_row_is_refused_in_one_line() -> None:
    head = ",".join(COLUMNS)
    assert len(read_skus(f"{head}\nX,X,1,,,,,,,,,,0.8,ours\n")) == 1
    for row in (
        "X,X,one,,,,,,,,,,0.8,ours",
        "X,X,1,,,,,,,,,,0.8,",
        "X,X,1,,,,,,,,,,1.8,ours",
        "X,(,1,,,,,,,,,,0.8,ours",
    ):
        with pytest.raises(BadInput, match="line 2"):
            read_skus(f"{head}\n{row}\n")
    with pytest.raises(BadInput, match="column match is missing"):
        read_skus("sku,floor\nX,0.8\n")


# --- under load


LOADED = ExerciseOutcome(Verdict.PASS, "", {"load_tflops": 500.0, "kept_share": 0.99})


def test_a_gpu_that_holds_its_rate_without_a_brake_passes_with_its_figures() -> None:
    samples = [
        gpu(temperature=50.0 + n, power=690.0, sm_clock=1900.0 - n, slowed_by=("sw_power_cap",)) for n in range(10)
    ]
    got = under_load(LOADED, samples)
    assert (got.verdict, got.because) == ("pass", "")
    expected = {"temperature_max": 59.0, "power_max": 690.0, "sm_clock_min": 1891.0, "braked_share": 0.0}
    assert expected.items() <= got.figures.items()


def test_a_brake_under_load_fails_and_one_look_alone_does_not() -> None:
    braked = [gpu(slowed_by=("hw_thermal_slowdown", "hw_slowdown"), temperature=88.0)] * 3
    got = under_load(LOADED, [*braked, *[gpu(slowed_by=())] * 7])
    assert got.verdict == "fail"
    assert got.because == "slowed down under load by hw_slowdown, hw_thermal_slowdown in 3 of 10 looks"
    assert got.figures["temperature_max"] == 88.0
    assert under_load(LOADED, [braked[0], *[gpu(slowed_by=())] * 9]).verdict == "pass"


def test_a_rate_that_falls_fails_and_a_load_that_nobody_saw_is_no_pass() -> None:
    slow = ExerciseOutcome(Verdict.PASS, "", {"kept_share": 0.5})
    assert under_load(slow, [gpu()]).because == "under load its rate fell to 50% of what it began with"
    assert under_load(LOADED, []).verdict == "could_not_run"
    assert under_load(ExerciseOutcome(Verdict.FAIL, "other bits"), [gpu()]).because == "other bits"


# --- the rest


def test_gpus_are_counted_on_the_bus_and_among_the_device_files(tmp_path: Path) -> None:
    dev, sysfs = tmp_path / "dev", tmp_path / "sys"
    dev.mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (dev / name).touch()
    assert gpus_here(sysfs, dev) == 2
    for number in range(3):
        device = sysfs / f"bus/pci/devices/0000:0{number}:00.0"
        device.mkdir(parents=True)
        (device / "vendor").write_text("0x10de\n")
        (device / "class").write_text("0x030200\n")
    assert gpus_here(sysfs, dev) == 3


def test_links_between_gpus_are_tested_only_where_there_are_two() -> None:
    assert "gpu_nvlink" not in {test.name for test in gpu_tests(bench([]), 1)}
    assert "gpu_nvlink" in {test.name for test in gpu_tests(bench([]), 8)}
    assert all(test.within for test in gpu_tests(bench([]), 8))


def test_what_all_reduce_perf_prints_is_read() -> None:
    text = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 412.35 \n"
    assert judged(text, 0, "", 8) == ExerciseOutcome(Verdict.PASS, "", {"ranks": 8.0, "busbw_gbps": 412.35})
    assert judged(text.replace(": 0 OK", ": 7 FAILED"), 1, "", 8).verdict == "fail"
    assert judged("", 127, "cannot open libnccl", 8).because == "all_reduce_perf ended with 127: cannot open libnccl"


def test_the_kernels_are_ones_that_an_assembler_would_take(tmp_path: Path) -> None:
    """As far as it can be told without one: braces match, and every label that is jumped to is there once."""
    for text in (ptx.MEMORY, ptx.OPERANDS, multiply.fma(), multiply.mma()):
        assert text.count("{") == text.count("}")
        for body in text.split(".visible .entry")[1:]:
            jumps = {line.split("bra ")[1].strip(" ;") for line in body.splitlines() if "bra " in line}
            for label in jumps:
                assert body.count(f"    {label}:") == 1, label
    tool = subprocess.run(["sh", "-c", "command -v ptxas"], capture_output=True, text=True, check=False).stdout.strip()
    if tool:
        (tmp_path / "k.ptx").write_text(multiply.mma())
        subprocess.run([tool, "-arch", "sm_90", str(tmp_path / "k.ptx"), "-o", str(tmp_path / "k")], check=True)
