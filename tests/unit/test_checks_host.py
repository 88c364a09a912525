"""Processors, memory, disk and the network, for real: sound ones pass, planted faults are found."""

import errno
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from sickbay.agent.checks import CouldNotRun, select
from sickbay.agent.checks import disk as disks
from sickbay.agent.checks.apart import apart
from sickbay.agent.checks.node import host_tests, node_tests
from sickbay.agent.checks.stress import CHAOS, POWER, chaos, dram, power

pytestmark = pytest.mark.slow


def run(job: str, **wishes: Any) -> tuple[str, str, dict[str, float]]:
    (found,) = apart([(job, wishes)], time.monotonic() + 60)
    return found.verdict, found.because, dict(found.figures)


def test_sound_cores_pass_and_all_of_them_work() -> None:
    verdict, because, figures = run("cpu", seconds=0.3)
    assert (verdict, because) == ("pass", "")
    assert figures["cores"] == len(os.sched_getaffinity(0))
    assert figures["rounds_per_s"] > 0


def test_a_core_that_computes_wrong_is_named() -> None:
    core = max(os.sched_getaffinity(0))
    verdict, because, _ = run("cpu", seconds=0.3, spoil=[core])
    assert verdict == "fail"
    assert because.startswith(f"core {core}: ")


def test_what_every_core_computes_is_what_was_written_down() -> None:
    assert chaos() == CHAOS
    assert power() == POWER


def test_sound_memory_passes_and_a_turned_bit_is_found() -> None:
    assert run("dram", share=0.1, most_gib=0.06)[0] == "pass"
    verdict, because, _ = run("dram", share=0.1, most_gib=0.06, spoil=4242)
    assert (verdict, because) == ("fail", "memory of the host read back wrong in piece 0 of 16 MiB")


def test_all_the_memory_that_was_written_is_read_back_also_when_time_is_short() -> None:
    assert run("dram", share=0.5, most_gib=0.1, seconds=60.0)[2]["tested_gib"] == pytest.approx(0.09375)
    assert 0 < run("dram", share=0.5, most_gib=0.1, seconds=0.0)[2]["tested_gib"] <= 0.09375


def test_no_free_memory_is_no_pass() -> None:
    with pytest.raises(CouldNotRun):
        dram({"share": 0.0})


def test_a_sound_disk_passes_with_its_bandwidth_and_leaves_nothing(tmp_path: Path) -> None:
    verdict, because, figures = run("disk", directory=str(tmp_path), mib=16)
    assert (verdict, because) == ("pass", "")
    assert figures["tested_mib"] == 16
    assert figures["write_mbps"] > 0
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_returns_other_bytes_fails(tmp_path: Path) -> None:
    verdict, because, _ = run("disk", directory=str(tmp_path), mib=16, spoil=5_000_000)
    assert (verdict, because) == ("fail", "the block at 4 MiB read back other than it was written")


@pytest.mark.parametrize(
    ("number", "verdict"),
    [(errno.EIO, "fail"), (errno.EUCLEAN, "fail"), (errno.ENOSPC, "unable"), (errno.EROFS, "unable")],
)
def test_an_io_error_fails_and_a_full_disk_could_not_be_tested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, verdict: str
) -> None:
    def fsync(file: int) -> None:
        raise OSError(number, os.strerror(number), file)

    monkeypatch.setattr(os, "fsync", fsync)
    if verdict == "fail":
        assert os.strerror(number) in disks.exercise({"directory": str(tmp_path), "mib": 4}).because
    else:
        with pytest.raises(CouldNotRun, match=os.strerror(number)):
            disks.exercise({"directory": str(tmp_path), "mib": 4})


def test_a_directory_that_is_not_there_could_not_be_tested(tmp_path: Path) -> None:
    assert run("disk", directory=str(tmp_path / "gone"))[0] == "could_not_run"


def test_a_machine_without_gpus_is_tested_all_the_same(tmp_path: Path) -> None:
    mine = [test.name for test in host_tests(tmp_path)]
    there = [test.name for test in node_tests(0, tmp_path)]
    assert set(mine) <= set(there)
    levels = [test.level for test in node_tests(0, tmp_path)]
    assert levels == sorted(levels)
    assert {"gpu_inventory", "gpu_kernel"} <= {test.name for test in node_tests(2, tmp_path)}
    assert all(test.within for test in host_tests(tmp_path))


def test_where_dcgm_is_its_levels_run_and_the_highest_stands_for_those_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "dcgmi"
    tool.write_text("#!/bin/sh\nexit 1\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    tests = node_tests(1, tmp_path)
    assert [test.name for test in select(tests, 3) if test.name.startswith("dcgm")] == ["dcgm_3"]
    assert [test.name for test in select(tests, 1, "hyperpod") if test.name.startswith("dcgm")] == ["dcgm_2"]
    assert [test.name for test in select(tests, 4, "disk") if test.name.startswith("dcgm")] == []


# --- all-reduce over TCP


def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as door:
        number: int = door.getsockname()[1]
        return number


def ring(ranks: int, **wishes: Any) -> list[tuple[str, str, dict[str, float]]]:
    here = {"ranks": ranks, "at": f"127.0.0.1:{port()}", "mib": 1, "seconds": 20, **wishes}
    job = "sickbay.agent.checks.collective:nodes"
    found = apart([(job, {**here, "rank": rank}) for rank in range(ranks)], time.monotonic() + 40)
    return [(one.verdict, one.because, dict(one.figures)) for one in found]


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_ring_sums_right_and_measures(ranks: int) -> None:
    for verdict, because, figures in ring(ranks):
        assert (verdict, because, figures["ranks"]) == ("pass", "", ranks)
        assert figures["busbw_gbps"] > 0
