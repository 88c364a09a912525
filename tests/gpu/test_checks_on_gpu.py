"""On a real NVIDIA machine (`make gpu-test`): the checks pass on sound GPUs, find what is planted, and end in time.

With SICKBAY_RECORD=DIR what the levels printed is kept there (tests/fixtures/h200 was made so).
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sickbay.agent.checks.apart import ExerciseOutcome, apart
from sickbay.agent.nvml.watched import Nvml
from sickbay.knowledge.skus import sku_of
from sickbay.wire.commands import Child

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="this machine has no NVIDIA driver"),
]
SICKBAY = [sys.executable, "-c", "from sickbay.faces.cli.main import main; main()"]
# A process that holds a GPU as a training process does, with nothing but the driver.
HOLDER = """
import time
from sickbay.agent.cuda.driver import Cuda
cuda = Cuda()
print("held", flush=True)
time.sleep(120)
"""


def check(*args: str, seconds: float = 580.0) -> tuple[int, dict[str, Any]]:
    done = subprocess.run([*SICKBAY, "check", "--json", *args], stdout=subprocess.PIPE, timeout=seconds, check=False)
    found: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, found


def recorded(found: dict[str, Any], name: str) -> None:
    if where := os.environ.get("SICKBAY_RECORD"):
        Path(where, name).write_text(json.dumps({**found, "node": "h200"}, indent=2) + "\n")


def job(name: str, within: float = 120.0, **wishes: Any) -> ExerciseOutcome:
    return apart([(name, wishes)], time.monotonic() + within)[0]


def unwell(found: dict[str, Any]) -> list[tuple[str, str]]:
    return [(test["name"], test["because"]) for test in found["tests"] if test["verdict"] != "pass"]


@pytest.mark.parametrize(("level", "within"), [(1, 30.0), (2, 150.0)])
def test_a_sound_machine_passes_in_the_time_of_its_level(level: int, within: float) -> None:
    began = time.monotonic()
    code, found = check("--level", str(level))
    took = time.monotonic() - began
    assert (code, found["verdict"], unwell(found)) == (0, "pass", [])
    assert took < within
    recorded({**found, "took": round(took, 1)}, f"check-level{level}.json")


def test_a_sound_gpu_passes_level_3_with_figures_of_its_kind() -> None:
    code, found = check("--level", "3")
    recorded(found, "check-level3.json")
    assert (code, unwell(found)) == (0, [])
    figures = {name: value for test in found["tests"] for name, value in test["figures"].items()}
    assert figures["gpu.0.tested_gib"] > 1
    assert figures["gpu.0.h2d_gbps"] > 1
    assert figures["gpu.0.kept_share"] > 0.8
    nvml = Nvml()
    try:
        (first, *_) = nvml.read(60)
    finally:
        nvml.close()
    all_of_it = next(test for test in found["tests"] if test["name"] == "gpu_memory_all")
    assert all_of_it["figures"]["gpu.0.tested_gib"] > 0.9 * (first.memory_total or 0) / (1 << 30)
    if (sku := sku_of(first.name)) is not None and (least := sku.least("d2d_gbps")) is not None:
        assert figures["gpu.0.d2d_gbps"] > least


def test_the_profile_of_a_memory_fault_runs_the_memory_tests_and_level_1() -> None:
    code, found = check("--level", "2", "--profile", "xid.48")
    ran = {test["name"] for test in found["tests"]}
    assert (code, unwell(found)) == (0, [])
    assert {"gpu_inventory", "gpu_memory", "gpu_matrix", "cpu_quick"} <= ran
    assert {"cpu", "disk", "dram"}.isdisjoint(ran)


@pytest.mark.parametrize("at", [0, 12_345, (2 << 30) - 1])
def test_one_turned_bit_in_memory_is_found_with_its_address(at: int) -> None:
    found = job("gpu.memory_some", gib=2, spoil=at)
    assert found.verdict == "fail"
    assert "1 of 268435456 words read back wrong, the first at address 0x" in found.because
    assert f"bits {1 << at % 8 * 8:#x} " in found.because


def test_one_turned_bit_in_a_product_is_found_with_its_place() -> None:
    found = job("gpu.matrix", seconds=1, spoil=4 * 1024)
    assert found.verdict == "fail"
    assert "row 0, column 1024, bits 0x1" in found.because


def test_a_test_that_does_not_end_is_killed_and_the_gpu_is_free_again() -> None:
    found = job("gpu.sustained", 5.0, seconds=300)
    assert (found.verdict, found.because) == ("could_not_run", "it did not end within 5 s and was killed")
    assert job("gpu.kernel").verdict == "pass"


def test_more_memory_than_there_is_could_not_be_tested() -> None:
    found = job("gpu.memory_some", gib=100_000)
    assert found.verdict == "could_not_run"
    assert "GiB of its memory are free" in found.because


@pytest.fixture
def holder() -> Iterator[int]:
    child = Child([sys.executable, "-c", HOLDER])
    end = time.monotonic() + 60
    while "held" not in child.so_far():
        assert time.monotonic() < end
        assert not child.ended()
        time.sleep(0.05)
    yield child.pid
    child.finish(0.0)


def test_a_gpu_in_use_could_not_be_tested_and_its_user_is_named(holder: int) -> None:
    code, found = check("--level", "1", seconds=120)
    assert (code, found["verdict"]) == (1, "could_not_run")
    blocked = dict(unwell(found))
    assert f"GPU 0 is used by pid {holder} (python3" in blocked["gpu_kernel"]
    assert blocked["gpu_kernel"].endswith("stop it first")
    assert "disk_quick" not in blocked
