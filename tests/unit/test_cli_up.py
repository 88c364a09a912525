"""sickbay up, told to end."""

import subprocess
import sys

STORM = """
import os, signal
from sickbay.faces.cli.signals import Signals

ended, us = Signals(), os.getpid()
storm = os.fork()
if storm == 0:
    for _ in range(100_000):
        os.kill(us, signal.SIGTERM)
    os._exit(0)
while os.waitpid(storm, os.WNOHANG) == (0, 0):
    ended.wait(0.0001)
assert ended.by == signal.SIGTERM
assert ended.wait(5)
"""


def test_signals_in_the_midst_of_signals_are_heard() -> None:
    """A process group that is told to end and a parent that passes the word on: twice within a moment."""
    done = subprocess.run([sys.executable, "-c", STORM], timeout=30, check=False)
    assert done.returncode == 0
