"""The real agent of this machine, as its supervisor sees it: started anew when it ends, with back-off.

Its environment has no mark of ours: what it has begun, above all the reset of a GPU, is never killed by whoever clears
away what an earlier supervisor has left. The agent itself dies with its supervisor.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from sickbay.agent.settings import AgentSettings
from sickbay.clusters.local.complaints import complain
from sickbay.clusters.local.files import ClusterFile, LocalSeat, Paths, read
from sickbay.clusters.local.here.settings import AGENT_FILE
from sickbay.wire.commands import die_with

AGENT = "sickbay.agent"
FIRST, MOST = 1.0, 30.0  # seconds until one that has ended is started again
STEADY = 60.0  # seconds after which it counts as running well
GRACE = 10.0  # seconds from SIGTERM to SIGKILL


class HereAgent:
    def __init__(self, paths: Paths, seat: LocalSeat) -> None:
        self._paths = paths
        self._seat = seat
        self._process: subprocess.Popen[bytes] | None = None
        self._wanted = False
        self._began = 0.0
        self._again_at = 0.0
        self._pause = FIRST
        self._given: AgentSettings | None = None

    @property
    def pid(self) -> int:
        """0: it does not run."""
        return self._process.pid if self._process else 0

    @property
    def pids(self) -> tuple[int, ...]:
        return (self._process.pid,) if self._process else ()

    def start(self) -> None:
        """Also when it runs: then anew."""
        self._wanted = True
        self.kill()
        self._start(time.monotonic())

    def turn(self) -> bool:
        """True: it has ended or begun since the last turn. It is also begun anew where the controller has moved."""
        now = time.monotonic()
        if self._process is not None and self._process.poll() is not None:
            complain(f"the agent ended with exit code {self._process.returncode}")
            self._process = None
            self._pause = FIRST if now - self._began > STEADY else min(2 * self._pause, MOST)
            self._again_at = now + self._pause
            return True
        if not self._wanted or now < self._again_at:
            return False
        if self._process is None:
            return self._start(now)
        self._again_at = now + FIRST  # how often it is looked whether the controller has moved
        if self._settings() != self._given:
            self.kill()
            return self._start(now)
        return False

    def _settings(self) -> AgentSettings | None:
        """None: no controller has been there yet."""
        cluster = read(self._paths.root / "cluster.json", ClusterFile)
        settings = read(self._paths.root / AGENT_FILE, AgentSettings)
        if cluster is None or settings is None or not cluster.controller:
            return None
        return replace(
            settings, url=cluster.controller, ca=cluster.ca, node=self._seat.id, token_file=str(self._paths.token),
            state=str(self._paths.agent(self._seat.instance_id)),
            ranks=str(self._paths.instance(self._seat.instance_id)),
        )  # fmt: skip

    def _start(self, now: float) -> bool:
        self._again_at = now + FIRST
        settings = self._settings()
        if settings is None:
            return False
        descriptor = os.memfd_create("settings", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, msgspec.json.encode(settings))
            os.lseek(descriptor, 0, os.SEEK_SET)
            self._process = subprocess.Popen(  # noqa: S603 - our own agent
                [sys.executable, "-m", AGENT, "--settings", str(descriptor)],
                stdin=subprocess.DEVNULL,
                env={name: value for name, value in os.environ.items() if not name.startswith("SICKBAY_")},
                pass_fds=(descriptor,),
                preexec_fn=die_with(os.getpid()),  # noqa: PLW1509 - the supervisor has no threads
            )
        except (OSError, subprocess.SubprocessError) as error:
            complain(f"the agent could not be started: {error}")
            return False
        finally:
            os.close(descriptor)
        self._began, self._given = now, settings
        return True

    def kill(self) -> None:
        """Politely for a moment: it puts its spool in order, and waits for a reset that has begun."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE)
        self._process.kill()
        self._process.wait()
        self._process = None

    def end(self) -> None:
        self._wanted = False
        self.kill()
