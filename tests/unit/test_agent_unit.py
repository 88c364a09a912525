"""The systemd unit fits what the agent does."""

import configparser
import os
import socket
from pathlib import Path

from sickbay.agent.commands import DEADLINES
from sickbay.agent.watchdog import Watchdog
from sickbay.model.protocol import RunReset

UNIT = Path(__file__).parents[2] / "deploy/systemd/sickbay-agent.service"


def service() -> dict[str, str]:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(UNIT)
    return dict(parser["Service"])


def test_a_stop_waits_for_a_reset_and_does_not_signal_it() -> None:
    unit = service()
    assert float(unit["TimeoutStopSec"]) > DEADLINES[RunReset] + 5.0
    assert unit["KillMode"] == "mixed"  # control-group would send SIGTERM to nvidia-smi itself


def test_the_agent_has_a_limit_of_memory_that_its_checks_do_not_have() -> None:
    unit = service()
    assert unit["LimitDATA"].endswith(":infinity")
    assert unit["MemoryMax"]
    assert unit["OOMPolicy"] == "continue"


def test_the_watchdog_of_another_process_is_not_fed() -> None:
    assert Watchdog({"WATCHDOG_USEC": "4000000", "WATCHDOG_PID": str(os.getpid() + 1)}).every == 0.0
    assert Watchdog({"WATCHDOG_USEC": "4000000", "WATCHDOG_PID": str(os.getpid())}).every == 2.0


def test_systemd_hears_at_an_abstract_address_too() -> None:
    name = f"sickbay-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.bind(f"\0{name}")
        line.settimeout(5)
        Watchdog({"NOTIFY_SOCKET": f"@{name}"}).ending()
        assert line.recv(100) == b"STOPPING=1"


def test_the_watchdog_is_fed_twice_in_its_time() -> None:
    seconds = float(service()["WatchdogSec"])
    fed = Watchdog({"WATCHDOG_USEC": f"{seconds * 1e6:.0f}"})
    assert fed.every <= seconds / 2
