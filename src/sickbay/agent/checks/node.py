"""The tests of a real node: what there is to test on the machine this runs on."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sickbay.agent.checks import CouldNotRun, Exercise, Result
from sickbay.agent.checks.apart import alone
from sickbay.agent.checks.dcgm import dcgm_tests
from sickbay.agent.checks.gpus import FULL_NODE, Bench, gpu_tests, gpus_here, what_keeps_from
from sickbay.agent.checks.launched import Launch
from sickbay.agent.checks.network import network_tests
from sickbay.agent.cuda.nccl import library
from sickbay.knowledge.skus import sku_of
from sickbay.model.gpu import GpuReading

STATE = Path("/var/lib/sickbay")
ALL_REDUCE = "all_reduce_nodes"
LOOK = 30.0  # seconds in which the driver says which GPUs there are
ACCELERATOR = ("compute", "memory", "thermal", "pcie", "nvlink")


def node_tests(
    expected_gpus: int | None = None,
    state_dir: Path | None = None,
    launch: Launch | None = None,
    root: Path = Path("/"),
) -> list[Exercise]:
    """GPUs are left out where none is expected and none is on the bus; processors, memory and disk always run.

    `state_dir`: the disk to test; without it that of the agent's state, or else the temporary files'. `launch`: who
    this process is among others that run the same check at the same time; an agent is alone, and waits for nobody.
    `root`: below which the machine's /sys and /dev are.
    """
    bench = Bench(expected_gpus, here=lambda: gpus_here(root / "sys", root / "dev"))
    count = max(bench.here(), expected_gpus or 0)
    tests = [*host_tests(state_dir or default_state()), *network_tests(root / "sys")]
    if count:
        tests = [*gpu_tests(bench, count), *_dcgm(), *tests]
    if launch is not None:
        among = launch
        last = Exercise(
            ALL_REDUCE, 3, lambda until: over_nodes(bench, among, until), among.seconds + 15.0, ("network", "nvlink")
        )
        tests = [*tests, last]
    return sorted(tests, key=lambda test: test.level)


def over_nodes(bench: Bench, launch: Launch, until: float) -> Result:
    """By NCCL where every rank has GPUs that are free and its library, over TCP where none has."""
    if not launch.at:
        raise CouldNotRun("nobody says where rank 0 is: set MASTER_ADDR and MASTER_PORT, or write --at HOST:PORT")
    found: list[GpuReading] = []
    cannot = path = ""
    if bench.here():
        try:
            found = bench.look(min(until, time.monotonic() + LOOK))
            cannot = "; ".join(f"GPU {one.index} {why}" for one in found if (why := what_keeps_from(one)))
        except CouldNotRun as error:
            cannot = str(error)
        path = library()
    wishes = {
        "rank": launch.rank, "ranks": launch.world, "at": launch.at, "library": path, "cannot": cannot,
        "gpus": [one.pci for one in found], "floor": launch.floor,
        "floor_here": _within_a_node(found) if path else None,
        "seconds": min(launch.seconds, max(1.0, until - time.monotonic() - 2.0)),
    }  # fmt: skip
    return alone("sickbay.agent.checks.collective:nodes", wishes, until)


def _within_a_node(found: Sequence[GpuReading]) -> float | None:
    """What a model reaches is known for eight GPUs of one machine; over a network it depends on that."""
    sku = sku_of(found[0].name) if len(found) >= FULL_NODE else None
    return sku.least("busbw_gbps") if sku is not None else None


def host_tests(state_dir: Path) -> list[Exercise]:
    def do(job: str, **wishes: Any) -> Callable[[float], Result]:
        return lambda until: alone(job, wishes, until)

    where = str(state_dir)
    cpu, dram, disk = ("cpu",), ("dram",), ("disk",)
    return [
        Exercise("cpu_quick", 1, do("cpu", seconds=1.0), 30.0, cpu),
        Exercise("disk_quick", 1, do("disk", directory=where, mib=32), 60.0, disk),
        Exercise("cpu", 2, do("cpu", seconds=15.0), 60.0, cpu),
        Exercise("dram", 2, do("dram", share=0.1, most_gib=4.0, seconds=20.0), 90.0, dram),
        Exercise("disk", 2, do("disk", directory=where, mib=256), 120.0, disk),
        Exercise("cpu_long", 3, do("cpu", seconds=60.0), 150.0, cpu, ("cpu",)),
        Exercise("dram_long", 3, do("dram", share=0.5, most_gib=64.0, seconds=90.0), 300.0, dram, ("dram",)),
        Exercise("disk_long", 3, do("disk", directory=where, mib=1024), 300.0, disk, ("disk",)),
        Exercise("cpu_burn", 4, do("cpu", seconds=600.0), 700.0, cpu, ("cpu_long",)),
    ]


def default_state() -> Path:
    return STATE if os.access(STATE, os.W_OK) else Path(tempfile.gettempdir())


def _dcgm() -> list[Exercise]:
    """Where it is installed. A level of its diagnosis contains those below."""
    if shutil.which("dcgmi") is None:
        return []
    tests = dcgm_tests()
    return [
        replace(test, components=ACCELERATOR, contains=tuple(one.name for one in tests if one.level < test.level))
        for test in tests
    ]
