"""Cards of the fabric on a recorded sysfs tree, with tools of our own in the place of libfabric's."""

import time
from pathlib import Path

import pytest

from sickbay.agent.checks import CouldNotRun, Exercise, Result, network
from sickbay.agent.checks.network import cards, network_tests


def card(sysfs: Path, name: str, driver: str = "efa", state: str = "4: ACTIVE", layer: str = "InfiniBand") -> None:
    port = sysfs / f"class/infiniband/{name}/ports/1"
    port.mkdir(parents=True)
    (port / "state").write_text(f"{state}\n")
    (port / "link_layer").write_text(f"{layer}\n")
    there = sysfs / f"bus/pci/drivers/{driver}"
    there.mkdir(parents=True, exist_ok=True)
    device = sysfs / f"class/infiniband/{name}/device"
    device.mkdir()
    (device / "driver").symlink_to(there)


def tool(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


# A server waits for ever, a client (the last word is the address) is answered unless its card is silent.
PINGPONG = """for last; do :; done
[ "$last" = localhost ] || { sleep 60; exit 0; }
case "$*" in *silent*) echo 'fi_pingpong: no answer' >&2; exit 1;; esac
echo ok"""


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(network, "READY", 0.05)
    (tmp_path / "bin").mkdir()
    tool(tmp_path / "bin/fi_pingpong", PINGPONG)
    tool(tmp_path / "bin/ibv_rc_pingpong", PINGPONG)
    tool(tmp_path / "bin/fi_info", 'case "$*" in *unlisted*) echo "fi_getinfo: -61" >&2; exit 61;; esac')
    return [str(tmp_path / "bin")]


def run(tests: list[Exercise]) -> Result:
    (test,) = tests
    found = test.run(time.monotonic() + 30)
    assert isinstance(found, Result)
    return found


def test_a_machine_without_such_cards_has_no_such_tests(tmp_path: Path) -> None:
    assert network_tests(tmp_path / "sys") == []


def test_cards_are_read_from_sysfs(tmp_path: Path) -> None:
    card(tmp_path, "rdmap0s6")
    card(tmp_path, "mlx5_0", "mlx5_core", "1: DOWN", "Ethernet")
    assert [tuple(one) for one in cards(tmp_path)] == [
        ("mlx5_0", "mlx5_core", "DOWN", True),
        ("rdmap0s6", "efa", "ACTIVE", False),
    ]
    assert [test.name for test in network_tests(tmp_path)] == ["efa_loopback", "ib_loopback"]


def test_every_card_answers(tmp_path: Path, places: list[str]) -> None:
    card(tmp_path, "rdmap0s6")
    card(tmp_path, "rdmap0s7")
    found = run(network_tests(tmp_path, places))
    assert found.because == ""
    assert set(found.figures) == {"rdmap0s6.seconds", "rdmap0s7.seconds"}


def test_one_silent_card_fails_and_is_named(tmp_path: Path, places: list[str]) -> None:
    card(tmp_path, "rdmap0s6")
    card(tmp_path, "silent1")
    found = run(network_tests(tmp_path, places))
    assert found.because == "silent1: nothing came back over the card itself: fi_pingpong: no answer"


def test_a_card_that_libfabric_does_not_list_fails(tmp_path: Path, places: list[str]) -> None:
    card(tmp_path, "unlisted0")
    assert "libfabric does not see it" in run(network_tests(tmp_path, places)).because


def test_a_link_that_is_down_fails(tmp_path: Path, places: list[str]) -> None:
    card(tmp_path, "mlx5_0", "mlx5_core", "1: DOWN")
    assert run(network_tests(tmp_path, places)).because == "mlx5_0: its link is DOWN"


def test_infiniband_answers_too(tmp_path: Path, places: list[str]) -> None:
    card(tmp_path, "mlx5_0", "mlx5_core")
    assert run(network_tests(tmp_path, places)).because == ""


def test_a_card_without_a_tool_could_not_be_tested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    card(tmp_path / "sys", "rdmap0s6")
    with pytest.raises(CouldNotRun, match="rdmap0s6: fi_pingpong is not installed"):
        run(network_tests(tmp_path / "sys", []))
