"""The agent of a node, as its supervisor sees it: a process that is started, and started anew only when told to.

It lives in the supervisor's own process group: whoever kills that group loses the node with both of its witnesses.
"""

import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress

from sickbay.clusters.local import processes
from sickbay.clusters.local.complaints import complain
from sickbay.clusters.local.files import BOOT_MARK, LocalSeat, Paths
from sickbay.wire.commands import die_with

AGENT_MARK = "SICKBAY_AGENT_RUN"  # in the environment of an agent and all that it starts
AGENT = "sickbay.clusters.local.node"
COMMAND = "SICKBAY_AGENT_COMMAND"  # what to run instead of our own agent: a site's wrapper, a debugger, a test
GRACE = 2.0  # seconds from SIGTERM to SIGKILL when the node is shut down


class AgentProcess:
    def __init__(self, paths: Paths, seat: LocalSeat) -> None:
        self._paths = paths
        self._seat = seat
        self._process: subprocess.Popen[bytes] | None = None
        self._runs = 0
        self._mark = ""

    @property
    def pid(self) -> int:
        """0: it does not run."""
        return self._process.pid if self._process else 0

    @property
    def pids(self) -> tuple[int, ...]:
        return (self._process.pid,) if self._process else ()

    def start(self) -> None:
        """Whatever is left of the one before is ended first: two agents would speak for one node."""
        self.kill()
        self._runs += 1
        self._mark = f"{self._seat.boot_id}.{self._runs}"
        own = ("--root", str(self._paths.root), "--seat", self._seat.name)
        given = shlex.split(os.environ.get(COMMAND, "")) or [sys.executable, "-m", AGENT]
        environment = {
            **os.environ,
            BOOT_MARK: self._seat.boot_id,
            AGENT_MARK: self._mark,
            "SICKBAY_TOKEN_FILE": str(self._paths.token),
        }
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own agent, or what the operator put in its place
                [*given, *own],
                stdin=subprocess.DEVNULL,
                env=environment,
                preexec_fn=die_with(os.getpid()),  # noqa: PLW1509 - the supervisor has no threads
            )
        except (OSError, subprocess.SubprocessError) as error:
            # A node without an agent is a node whose agent is silent: the controller sees to that.
            complain(f"the agent could not be started: {error}")

    def turn(self) -> bool:
        """True: it has ended since the last turn."""
        if self._process is None or self._process.poll() is None:
            return False
        complain(f"the agent ended with exit code {self._process.returncode}")
        self._process = None
        return True

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._mark:
            for _ in range(100):  # its checks run in children of their own; a process that cannot die is left
                if not (left := processes.find(marks=(f"{AGENT_MARK}={self._mark}",))):
                    break
                processes.kill(left)
                time.sleep(0.01)

    def end(self) -> None:
        """Politely, so that it can put its spool in order."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(GRACE)
        self.kill()
