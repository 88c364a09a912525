"""Checks of virtual devices: they find what their level can find, and "could not run" is never "passed"."""

import time
from pathlib import Path

import pytest
from tests.support.agent_rig import XID_79

from sickbay.agent.checks import CouldNotRun, Exercise, examine
from sickbay.clusters.local.devices import Hardware
from sickbay.clusters.local.files import Paths, VirtualDefect
from sickbay.clusters.local.virtual_devices import VirtualDevices, virtual_tests
from sickbay.model.facts import Observed
from sickbay.model.fault import Remedy
from sickbay.model.fleet import NodeId

LATER = 1e12


@pytest.fixture
def hardware(tmp_path: Path) -> Hardware:
    found = Hardware(Paths(tmp_path, "n1"), "i")
    found.ensure(2)
    found.begin_boot("b")
    return found


def test_a_sound_node_passes_every_test_of_its_level(hardware: Hardware) -> None:
    verdict, because, tests = examine(virtual_tests(hardware, 2, "b"), 1, LATER)
    assert (verdict, because) == ("pass", "")
    assert [(test.name, test.verdict) for test in tests] == [("devices", "pass"), ("compute", "pass")]
    assert 0.1 < sum(test.seconds for test in tests) < 2.0


@pytest.mark.slow
@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_a_defect_is_found_from_its_level_on(hardware: Hardware, level: int) -> None:
    hardware.inject(VirtualDefect(name="quiet", device=1, found_at=3, lines=(XID_79,), cured_by=Remedy.REBOOT))
    verdict, because, _ = examine(virtual_tests(hardware, 2, "b"), level, LATER)
    assert verdict == ("fail" if level >= 3 else "pass")
    assert because == ("stress: quiet on GPU 1" if level >= 3 else "")


def test_a_defect_that_is_found_shows_itself_again_and_a_cured_one_does_not(hardware: Hardware, tmp_path: Path) -> None:
    kmsg = Paths(tmp_path, "n1").kmsg("i", "b")
    hardware.inject(VirtualDefect(name="gpu_off_bus", device=0, lines=(XID_79,), cured_by=Remedy.RESET_GPU))
    tests = virtual_tests(hardware, 2, "b")
    assert examine(tests, 1, LATER)[:2] == ("fail", "compute: gpu_off_bus on GPU 0")
    assert kmsg.read_text().count("Xid") == 1
    hardware.cure(Remedy.RESET_GPU)
    assert examine(tests, 1, LATER)[0] == "pass"
    assert kmsg.read_text().count("Xid") == 1


def test_a_missing_device_fails_the_check_and_is_told_once(hardware: Hardware) -> None:
    assert examine(virtual_tests(hardware, 3, "b"), 1, LATER)[:2] == ("fail", "devices: GPU 2 not there")
    probe = VirtualDevices(hardware, NodeId("c/n1"), expected=3)
    (item,) = probe.look(1.0)
    assert isinstance(item.news, Observed)
    assert (item.news.kind, item.news.fields) == ("gpu.missing", {"device": 2})
    assert probe.look(2.0) == []


def test_counters_that_rise_are_told(hardware: Hardware) -> None:
    probe = VirtualDevices(hardware, NodeId("c/n1"), expected=2)
    assert probe.look(1.0) == []
    hardware.show(VirtualDefect(name="x", device=1), "b")
    (item,) = probe.look(2.0)
    assert isinstance(item.news, Observed)
    assert (item.news.kind, item.news.fields) == ("gpu.errors", {"device": 1, "errors": 1})


def boom(until: float) -> str:
    raise ZeroDivisionError(str(until))


def no_tool(until: float) -> str:
    raise CouldNotRun(f"dcgmi is not installed ({until > 0})")


def fine(until: float) -> str:
    return "" if until else "?"


def bad(until: float) -> str:
    return f"broken {until > 0}"


@pytest.mark.parametrize("broken", [boom, no_tool])
def test_a_test_that_could_not_run_is_no_pass(broken: object) -> None:
    assert callable(broken)
    tests = [Exercise("a", 1, fine), Exercise("b", 1, broken)]
    verdict, because, results = examine(tests, 1, LATER)
    assert (verdict, because[:3], [test.verdict for test in results]) == (
        "could_not_run",
        "b: ",
        ["pass", "could_not_run"],
    )


def test_a_failure_outweighs_what_could_not_run() -> None:
    assert examine([Exercise("a", 1, no_tool), Exercise("b", 1, bad)], 1, LATER)[:2] == ("fail", "b: broken True")


def test_no_test_and_no_time_are_no_pass() -> None:
    assert examine([Exercise("a", 2, fine)], 1, LATER)[0] == "could_not_run"
    assert examine([Exercise("a", 1, fine)], 1, time.monotonic() - 1.0)[0] == "could_not_run"
