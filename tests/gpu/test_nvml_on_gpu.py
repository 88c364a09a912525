"""On a real NVIDIA machine (`make gpu-test`): NVML through our child, real Xids, the kernel's log, the reset rung."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from sickbay.agent.nvml.pci import address
from sickbay.agent.nvml.watched import Nvml
from sickbay.knowledge.load import load_tables
from sickbay.model.facts import Observed
from sickbay.model.fleet import NodeId
from sickbay.model.gpu import GpuReading
from sickbay.signs.classify import classify
from sickbay.signs.gpu_state import signs_among
from sickbay.signs.kernel import parse_line
from sickbay.signs.readers.smi_xml import readings_from_xml

BAD = Path(__file__).with_name("bad_kernels.py")
RESET = "SICKBAY_GPU_TEST_RESET"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="this machine has no NVIDIA driver"),
]


@pytest.fixture
def nvml() -> Iterator[Nvml]:
    made = Nvml()
    made.read(60)
    yield made
    made.close()


@pytest.fixture
def ring() -> Iterator[int]:
    """The kernel's log from now on."""
    try:
        handle = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        pytest.skip(f"/dev/kmsg cannot be read: {error.strerror}")
    os.lseek(handle, 0, os.SEEK_END)
    yield handle
    os.close(handle)


def lines(ring: int, seconds: float) -> Iterator[str]:
    """Bodies of the records that come within so many seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with suppress(BlockingIOError):
            yield os.read(ring, 8192).decode("utf-8", "replace").partition(";")[2].partition("\n")[0]
            continue
        time.sleep(0.001)


def smi(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["nvidia-smi", *words], capture_output=True, text=True, timeout=120, check=False)


def test_nvml_and_the_xml_agree(nvml: Nvml) -> None:
    steady = [name for name in GpuReading.__struct_fields__ if name not in {
        "power", "temperature", "temperature_memory", "sm_clock", "memory_clock", "memory_used", "memory_total",
        "utilization", "memory_utilization", "slowed_by", "processes", "pcie_generation", "fan",
    }]  # fmt: skip
    unsaid: tuple[object, ...] = (None, "", "N/A", ())
    ours, theirs = nvml.read(), readings_from_xml(smi("-q", "-x").stdout)
    assert [address(one.pci) for one in ours] == [address(one.pci) for one in theirs]
    for one, other in zip(ours, theirs, strict=True):
        pairs = {name: (getattr(one, name), getattr(other, name)) for name in steady}
        assert {name: pair for name, pair in pairs.items() if pair[0] != pair[1] and not set(map(repr, pair))
                & set(map(repr, unsaid))} == {}  # fmt: skip
        assert abs((one.temperature or 0) - (other.temperature or 0)) < 10


def test_a_healthy_gpu_shows_no_sign(nvml: Nvml) -> None:
    assert [sign.text for sign in signs_among(nvml.read())] == []


def test_a_reading_costs_little(nvml: Nvml) -> None:
    count = len(nvml.read())
    began = time.monotonic()
    for _ in range(10):
        nvml.read()
    full = (time.monotonic() - began) / 10 / count
    began = time.monotonic()
    for _ in range(10):
        nvml.metrics()
    few = (time.monotonic() - began) / 10 / count
    print(f"a full reading {full * 1e3:.2f} ms, metrics {few * 1e3:.2f} ms per GPU")
    assert full < 0.1
    assert few < 0.05


@pytest.mark.parametrize(("kernel", "number"), [("misaligned", 13), ("illegal", 31), ("trap", 43)])
def test_what_a_bad_kernel_does_is_seen_by_both_witnesses_and_blamed_on_the_program(
    nvml: Nvml, ring: int, kernel: str, number: int
) -> None:
    subprocess.run([sys.executable, str(BAD), kernel], capture_output=True, timeout=120, check=False)
    signs = [sign for line in lines(ring, 2.0) if (sign := parse_line(line)) is not None]
    assert {sign.fields["number"] for sign in signs if sign.kind == "xid"} == {number}
    tables = load_tables()
    for sign in signs:
        fault = classify(Observed(node=NodeId("a/b"), kind=sign.kind, fields=sign.fields), tables)
        assert fault is None or not fault.remedy.disrupts
    events = nvml.events()
    assert {event.number for event in events} == {number}
    assert address(events[0].pci) == address(str(signs[0].fields["pci"]))


def test_a_line_written_into_the_kernels_log_is_there_within_milliseconds(ring: int) -> None:
    # An address that no machine has: whoever watches this one learns nothing about its GPUs.
    line = "NVRM: Xid (PCI:ffff:ff:1f): 95, pid=1, name=python, Uncontained: FBHUB. RST: Yes, D-RST: No"
    began = time.monotonic()
    try:
        Path("/dev/kmsg").write_text(f"<6>{line}\n", encoding="ascii")
    except OSError as error:
        pytest.skip(f"/dev/kmsg cannot be written: {error.strerror}")
    found = next(text for text in lines(ring, 5.0) if "ffff:ff:1f" in text)
    took = time.monotonic() - began
    assert took < 0.1
    sign = parse_line(found)
    assert sign is not None
    assert sign.fields["number"] == 95


def test_a_reset_is_refused_while_a_process_holds_the_gpu(nvml: Nvml) -> None:
    if not os.environ.get(RESET):
        pytest.skip(f"a reset is tried only where ${RESET} is set")
    with nvml.aside("a reset"):
        with subprocess.Popen([sys.executable, str(BAD), "hold"], stdout=subprocess.PIPE, text=True) as holder:
            assert holder.stdout is not None
            holder.stdout.readline()
            refused = smi("-r")
            holder.kill()
        assert refused.returncode != 0
        done = smi("-r")
        assert done.returncode == 0, done.stdout + done.stderr
    assert [one.lost for one in nvml.read(60)] == [""] * len(nvml.read())
