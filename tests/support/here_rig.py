"""A real `sickbay up --here` on a made-up machine: its tree (`host_root`), its kernel log, its nvidia-smi."""

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.support.up_rig import QUICK, Sickbay

from sickbay.clusters.local.files import Paths, Status, read

FIXTURES = Path(__file__).parent.parent / "fixtures"
HOST = "ws1"
NODE = f"here/{HOST}"
# A reset and its proof within seconds; what a GPU's own check needs, no machine of a test has.
# Neither who starts an agent again on a busy machine nor the agent itself is silent so soon.
POLICY = (
    QUICK.replace("agent: 3s", "agent: 15s")
    + """\
examine: []
ladders:
  - match: {fault: ["xid.*"]}
    rungs:
      - {do: reset_gpu, tries: 2, deadline: 1m, verify: 1, verify_deadline: 1m, on_could_not_run: fail}
      - {do: reboot, tries: 1, deadline: 15m, verify: 1, verify_deadline: 1m, on_could_not_run: hold}
      - {do: replace, tries: 1, deadline: 1h, verify: 1, verify_deadline: 1m, on_could_not_run: hold}
  - rungs:
      - {do: reboot, tries: 1, deadline: 15m, verify: 1, verify_deadline: 1m, on_could_not_run: hold}
"""
)
# As the real one was recorded; a reset is written down, and takes a moment.
NVIDIA_SMI = """\
#!/bin/sh
case "$1" in
-q) cat "{recorded}" ;;
--gpu-reset)
  echo "$@" >> "{called}"
  while [ -e "{slow}" ]; do sleep 0.05; done
  echo done >> "{called}" ;;
esac
"""


class WorkstationRig(Sickbay):
    """One GPU at 0000:00:06, as it was recorded; all that is the machine's lies below a directory."""

    def __init__(self, state: Path, *, boot: str = "", policy: str = POLICY) -> None:
        super().__init__(state, nodes=1, policy=policy)
        self.root = state.parent / "machine"
        self.log = self.root / "var/log/kern.log"
        self.called = self.root / "called"
        self.slow = self.root / "slow"  # while it is there no reset ends
        self._bin = self.root / "bin"
        self._put("proc/1/mounts", "")
        self._put("proc/self/status", "")
        self._put("dev/nvidiactl", "")
        self._put("etc/hostname", HOST)
        self._put("etc/machine-id", uuid.uuid4().hex)
        self.boots(boot or str(uuid.uuid4()))
        self._put("var/log/kern.log", "")
        smi = self._put(
            "bin/nvidia-smi",
            NVIDIA_SMI.format(recorded=FIXTURES / "h200/nvidia-smi-q.xml", called=self.called, slow=self.slow),
        )
        smi.chmod(0o755)
        self.rebooted = self.root / "rebooted"
        reboot = self._put("bin/reboot", f'#!/bin/sh\necho "$@" >> "{self.rebooted}"')
        reboot.chmod(0o755)
        (state / "agent.yaml").write_text(
            f"reboot_command: [{reboot}, now]\n"
            f"host_root: {self.root}\nsources: [{self.log}]\ntrust_logs: true\nmetrics: off\n"
        )

    def _put(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n" if text else "")
        return path

    def boots(self, boot: str) -> None:
        """From the next look on the machine is in this boot."""
        self.boot = boot
        self._put("proc/sys/kernel/random/boot_id", boot)

    def power_off(self) -> None:
        """The machine goes down, and all that runs on it, at once."""
        self.kill()
        os.killpg(self.supervisor(), signal.SIGKILL)

    # --- the command
    def words(self) -> list[str]:
        return ["--here", "--policy", str(self._policy)]

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "PATH": f"{self._bin}{os.pathsep}{os.environ['PATH']}"}

    def said(self) -> str:
        return (self.state / "up.out").read_text()

    def reaches_phase(self, code: str, phase: str, seconds: float = 60) -> dict[str, Any]:
        """The newest incident of this fault, once it is in this phase."""

        def there() -> dict[str, Any] | None:
            found = [one for one in self.incidents(NODE) if one["fault"]["code"] == code]
            return found[-1] if found and found[-1]["phase"] == phase else None

        found: dict[str, Any] = self.until(there, seconds, f"{code} reaches {phase}")
        return found

    # --- the machine
    def kernel(self, line: str) -> None:
        """As a log daemon writes down what the kernel says."""
        with self.log.open("a") as file:
            file.write(f"{datetime.now(UTC).isoformat(timespec='microseconds')} {HOST} kernel: {line}\n")

    def xid(self, number: int, text: str = "pid=1, name=x, something") -> None:
        self.kernel(f"NVRM: Xid (PCI:0000:00:06): {number}, {text}")

    def holds_gpu(self, pid: int, name: str) -> None:
        self._put(f"proc/{pid}/comm", name)
        fd = self.root / "proc" / str(pid) / "fd"
        fd.mkdir()
        (fd / "5").symlink_to("/dev/nvidia0")

    def lets_go(self, pid: int) -> None:
        (self.root / "proc" / str(pid) / "fd/5").unlink()

    @property
    def resets(self) -> list[str]:
        return self.called.read_text().splitlines() if self.called.exists() else []

    # --- the processes below
    def status(self, node: str = NODE) -> Status | None:
        return read(Paths(self.state / "clusters/here", node.rpartition("/")[2]).status, Status)

    def supervisor(self) -> int:
        status = self.status()
        assert status is not None
        return status.pid

    def commands_begun(self) -> set[str]:
        """What the agent has noted before it carried it out."""
        (noted,) = self.state.glob("clusters/here/seats/*/instances/*/agent/commands.jsonl")
        return {json.loads(line)["id"] for line in noted.read_text().splitlines() if line}

    def agent(self) -> int:
        status = self.status()
        return status.agent_pid if status is not None else 0


def foreign_process() -> Iterator[subprocess.Popen[bytes]]:
    """Somebody else's, that must outlive all that we do."""
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    try:
        yield process
    finally:
        process.communicate()  # its input ends, and so does it
