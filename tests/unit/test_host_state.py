"""The state directory of `sickbay up`: who serves it, and how that ends."""

import subprocess
import sys
from pathlib import Path

import pytest

from sickbay.hosts.state import end_all, make_private, serving
from sickbay.model.errors import BadInput

LINGERS = """
import signal, sys, time
from pathlib import Path
from sickbay.hosts.state import lock_alone
lock = lock_alone(Path(sys.argv[1]))
def end(*_):
    lock.close()
    time.sleep(0.5)  # as an interpreter takes to end
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("serves", flush=True)
while True:
    signal.pause()
"""


def test_down_returns_when_the_controller_is_gone_not_when_its_lock_is_free(tmp_path: Path) -> None:
    (tmp_path / "sickbay.db").touch()
    with subprocess.Popen(
        [sys.executable, "-c", LINGERS, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as controller:
        assert controller.stdout is not None
        assert controller.stdout.readline() == "serves\n"
        assert serving(tmp_path) == controller.pid
        ended = end_all(tmp_path)
        assert ended is not None
        assert ended.controller
        assert controller.poll() == 0  # it has ended before this was asked


def test_a_directory_that_others_use_is_not_closed_to_them(tmp_path: Path) -> None:
    shared = tmp_path / "var"
    (shared / "log").mkdir(parents=True)
    shared.chmod(0o755)
    with pytest.raises(BadInput, match="holds other things: give one that is the controller's own"):
        make_private(shared)
    assert shared.stat().st_mode & 0o777 == 0o755
    (shared / "sickbay.db").touch()  # a copy that was put back by hand
    make_private(shared)
    assert shared.stat().st_mode & 0o777 == 0o700
