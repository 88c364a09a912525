"""A soak test of a real agent: rotated logs, a controller out of its mind, a disk that fills, kill -9. It counts lines.

    python -m tests.support.agent_soak --minutes 10 --seed 1

In the end every line that was written to its logs is at the controller once; and each of a few lines among them that
only look like the kernel's is there as unconfirmed, and never as a fault. Real `logrotate` and `rsyslogd` are used
where they are on the PATH, and a small disk of its own where it may be mounted; what was used is said.
"""

import argparse
import contextlib
import http.server
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from tests.support.agent_rig import TOKEN, FrontDoor

from sickbay.agent.settings import SETTINGS
from sickbay.model.facts import Observed
from sickbay.model.protocol import Report

NODE = "soak/n1"
DISK = 3 << 20  # bytes
KEPT = 100  # rotated files: a log turns every few seconds here, and nobody throws away what is a minute old
NUMBERS = (13, 31, 43, 48, 63, 79, 94, 119)
Event = tuple[str, int]  # which log (its device's address) and which Xid


class MadDoor(FrontDoor):
    """Answers as it should, or with garbage, 500, nothing, a cut line, too small or too large an acknowledgement."""

    MOODS = (
        "well",
        "well",
        "well",
        "well",
        "garbage",
        "500",
        "hangs",
        "cut",
        "stored and cut",
        "too little",
        "too much",
    )

    def __init__(self, dice: random.Random) -> None:
        super().__init__(report_every=0.5, poll_for=2.0)
        self._dice = dice
        self.calm = False
        self.moods: Counter[str] = Counter()

    def answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        mood = "well" if self.calm or request.path != "/v1/agent/report" else self._dice.choice(self.MOODS)
        self.moods[mood] += 1
        if mood == "500":
            self._say(request, 500, b"no")
        elif mood == "garbage":
            self._say(request, 200, self._dice.choice([b"", b"{", b'{"ack": "x"}', b"\0" * 300, b"[]"]))
        elif mood == "cut":
            self._cut(request)
        else:
            if mood == "hangs":
                time.sleep(self._dice.uniform(0.5, 3.0))
            self._mood = mood
            super().answer(request)

    def _say(self, request: http.server.BaseHTTPRequestHandler, status: int, said: bytes) -> None:
        request.rfile.read(int(request.headers["Content-Length"]))
        request.send_response(status)
        request.send_header("Content-Length", str(len(said)))
        request.end_headers()
        request.wfile.write(said)

    def _cut(self, request: http.server.BaseHTTPRequestHandler) -> None:
        request.close_connection = True
        with contextlib.suppress(OSError):
            request.connection.shutdown(socket.SHUT_RDWR)

    def _report(self, body: bytes) -> bytes:
        mood, report = getattr(self, "_mood", "well"), msgspec.json.decode(body, type=Report)
        reply = self.reception.receive(report)
        if mood == "stored and cut":
            return b"cut"
        ack = {"too little": report.first_seq - 1 + len(report.items) // 2, "too much": reply.ack + 10_000}
        return msgspec.json.encode(msgspec.structs.replace(reply, ack=max(0, ack.get(mood, reply.ack))))

    def events(self) -> Counter[Event]:
        found: Counter[Event] = Counter()
        for news in self.news(Observed):
            if "pci" in news.fields and "number" in news.fields and not news.unconfirmed:
                found[str(news.fields["pci"]), int(news.fields["number"])] += news.count
        return found

    def unconfirmed(self) -> set[str]:
        return {str(news.fields.get("pci", "")) for news in self.news(Observed) if news.unconfirmed}

    def kinds(self) -> Counter[str]:
        return Counter(news.kind for news in self.news(Observed) if "number" not in news.fields)


# --- logs and who writes them


@dataclass
class Log:
    """One log with its writer. `written` counts what is in it, or will be."""

    path: Path
    pci: str
    dice: random.Random
    written: Counter[Event] = field(default_factory=Counter)
    forged: list[str] = field(default_factory=list)  # devices
    rotations: int = 0

    def __post_init__(self) -> None:
        self.path.touch()
        self._handle = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        self.held = threading.Lock()  # nobody may write between a copy and its cut: such a line is lost for everybody

    def line(self) -> str:
        number = self.dice.choice(NUMBERS)
        self.written[self.pci, number] += 1
        return f"NVRM: Xid (PCI:{self.pci}): {number}, pid={self.dice.randrange(1 << 20)}, name=x, Ch 00000001"

    def write(self, count: int) -> None:
        with self.held:
            for _ in range(count):
                line = f"{time.strftime('%b %e %H:%M:%S')} {socket.gethostname()} kernel: {self.line()}\n".encode()
                half = self.dice.randrange(len(line)) if self.dice.random() < 0.02 else 0
                if half:
                    os.write(self._handle, line[:half])
                    time.sleep(0.002)
                os.write(self._handle, line[half:])

    def forge(self, device: str) -> None:
        """A line that nobody can date counts for nothing, whoever trusts the log."""
        with self.held:
            self.forged.append(device)
            when = time.strftime("%b %e %H:%M:%S", time.localtime(time.time() + 86_400.0))
            line = f"{when} {socket.gethostname()} kernel: NVRM: Xid (PCI:{device}): 79, pid=1, name=x, forged\n"
            os.write(self._handle, line.encode())

    def hup(self) -> None:
        with self.held:
            os.close(self._handle)
            self._handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def rotate(self) -> None:
        """By hand: a chain, packed or not, and a daemon that hears of it only a while later."""
        self.rotations += 1
        packed = self.dice.random() < 0.5
        turn = f"{self.path.name}-{time.time_ns()}"
        moved = self.path.with_name(turn)
        self.path.rename(moved)
        time.sleep(self.dice.choice((0.0, 0.0, 0.3)))
        self.path.touch()
        self.write(self.dice.randrange(20))  # to the old one
        time.sleep(self.dice.choice((0.0, 0.1, 1.0)))
        self.write(self.dice.randrange(20))
        self.hup()
        if packed:
            _pack(moved)
        for old in sorted(self.path.parent.glob(f"{self.path.name}-*"))[:-KEPT]:
            old.unlink()

    def end(self) -> None:
        os.close(self._handle)


class CopiedLog(Log):
    """Copied and cut off, by logrotate where it is."""

    def rotate(self) -> None:
        self.rotations += 1
        with self.held:
            if shutil.which("logrotate"):
                _logrotate(self.path, "copytruncate", "compress")
            else:
                copy = self.path.with_name(f"{self.path.name}.{self.rotations}")
                shutil.copy(self.path, copy)
                os.truncate(self.path, 0)


class DaemonLog(Log):
    """Written by rsyslogd, from a socket of its own, and rotated by logrotate, which sends the HUP."""

    def __post_init__(self) -> None:
        self.path.touch()
        self.held = threading.Lock()
        folder = self.path.parent / "rsyslogd"
        folder.mkdir()
        self._socket, self._pid = str(folder / "s"), folder / "pid"
        config = folder / "conf"
        config.write_text(
            f'module(load="imuxsock" SysSock.Use="off")\n'
            f'input(type="imuxsock" Socket="{self._socket}" RateLimit.Interval="0" UseSysTimeStamp="on")\n'
            f'action(type="omfile" File="{self.path}" Template="RSYSLOG_TraditionalFileFormat")\n'
        )
        self._daemon = subprocess.Popen(
            ["rsyslogd", "-n", "-f", str(config), "-i", str(self._pid)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        end = time.monotonic() + 10
        while not Path(self._socket).exists() and time.monotonic() < end:
            time.sleep(0.02)
        self._line = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._line.connect(self._socket)

    def write(self, count: int) -> None:
        with self.held:
            for _ in range(count):
                self._line.send(f"<4>{time.strftime('%b %e %H:%M:%S')} kernel: {self.line()}".encode())

    def rotate(self) -> None:
        self.rotations += 1
        # Without delaycompress it packs what its daemon still writes to: such a line is lost for everybody.
        _logrotate(self.path, "compress", "delaycompress", "create", after=f"kill -HUP {self._daemon.pid}")

    def end(self) -> None:
        self._line.close()
        self._daemon.terminate()
        self._daemon.wait(10)


def _pack(path: Path) -> None:
    subprocess.run(["gzip", "-f", str(path)], check=True)


def _logrotate(path: Path, *words: str, after: str = "") -> None:
    config = path.parent / "rsyslogd" / f"{path.name}.conf"
    config.parent.mkdir(exist_ok=True)
    script = f"  postrotate\n    {after}\n  endscript\n" if after else ""
    body = "".join(f"  {word}\n" for word in (f"rotate {KEPT}", "missingok", "su root root", *words))
    config.write_text(f"{path} {{\n{body}{script}}}\n")
    config.chmod(0o644)
    command = ["logrotate", "-f", "-s", str(config.with_suffix(".state")), str(config)]
    subprocess.run(command, check=False, capture_output=True)


# --- the agent and its disk


class Disk:
    """A small one of its own where that may be mounted; else the agent may write no file beyond a size."""

    def __init__(self, path: Path) -> None:
        path.mkdir()
        self.path = path
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "none", str(path)]
        self.mounted = os.geteuid() == 0 and not subprocess.run(command, check=False, capture_output=True).returncode
        self.fills = 0

    def fill(self) -> None:
        self.fills += 1
        with contextlib.suppress(OSError), (self.path / "filler").open("ab", buffering=0) as filler:
            while self.mounted:
                filler.write(b"\0" * 4096)

    def empty(self) -> None:
        (self.path / "filler").unlink(missing_ok=True)

    def close(self) -> None:
        if self.mounted:
            subprocess.run(["umount", "-l", str(self.path)], check=False)


class Agent:
    def __init__(self, root: Path, disk: Disk, door: FrontDoor, logs: list[Log]) -> None:
        self._errors = root / "agent.err"
        token = root / "token"
        token.write_text(TOKEN)
        trusted = ["--set", "trust_logs=true"] if "trust_logs" in SETTINGS else []
        self._command = [
            sys.executable, "-m", "sickbay", "agent", "--url", f"http://127.0.0.1:{door.port}", "--node", NODE,
            "--token-file", str(token), "--state", str(disk.path / "state"), "--set", "instance_id=i-1",
            "--set", "metrics=off", "--set", f"sources={','.join(str(log.path) for log in logs)}", *trusted,
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None
        self.kills = 0
        self.largest = 0  # KiB resident

    def start(self) -> None:
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(self._command, stderr=errors)

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def measure(self) -> None:
        if self._process is not None:
            with contextlib.suppress(OSError, IndexError):
                text = Path(f"/proc/{self._process.pid}/status").read_text()
                self.largest = max(self.largest, int(text.split("VmRSS:")[1].split()[0]))

    def kill(self) -> None:
        if self._process is not None:
            self.kills += 1
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def end(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(20)

    @property
    def complaints(self) -> str:
        return self._errors.read_text()


@dataclass
class Result:
    written: Counter[Event]
    counted: Counter[Event]
    untold: set[str]  # forged lines of which nobody heard
    report: str

    @property
    def exact(self) -> bool:
        return self.written == self.counted and not self.untold


class Soak:
    def __init__(self, root: Path, seed: int) -> None:
        self._dice = random.Random(seed)
        folder = root / "log"
        folder.mkdir()
        self.daemon = bool(shutil.which("rsyslogd") and shutil.which("logrotate") and os.geteuid() == 0)
        last = DaemonLog if self.daemon else Log
        self._logs = [
            kind(folder / name, f"000{n}:18:00", random.Random(seed + n))
            for n, (kind, name) in enumerate(((Log, "kern.log"), (CopiedLog, "syslog"), (last, "messages")), 1)
        ]
        self._door = MadDoor(random.Random(seed + 10))
        self._door.open()
        self._disk = Disk(root / "disk")
        self._agent = Agent(root, self._disk, self._door, self._logs)
        self._over = threading.Event()

    def run(self, seconds: float, settle: float = 60.0) -> Result:
        self._agent.start()
        self._until_it_reads()
        threads = [threading.Thread(target=self._trouble, args=(log,), daemon=True) for log in self._logs]
        threads += [threading.Thread(target=each, daemon=True) for each in (self._fill, self._forge)]
        for thread in threads:
            thread.start()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            life = time.monotonic() + self._dice.choice((0.3, 1.0, 2.0, 5.0, 15.0, 15.0))
            while time.monotonic() < min(life, end) and self._agent.alive:
                time.sleep(0.1)
                self._agent.measure()
            self._agent.kill()
            time.sleep(self._dice.choice((0.0, 0.0, 0.5, 3.0)))
            self._agent.start()
        self._over.set()
        for thread in threads:
            thread.join()
        self._disk.empty()
        self._door.calm = True
        written = self._written()
        end = time.monotonic() + settle
        while (sum(self._door.events().values()) < sum(written.values()) or self._untold()) and time.monotonic() < end:
            time.sleep(0.5)
        time.sleep(3.0)  # what would be told twice
        return Result(written, self._door.events(), self._untold(), self._report(seconds))

    def _untold(self) -> set[str]:
        return {device for log in self._logs for device in log.forged} - self._door.unconfirmed()

    def _forge(self) -> None:
        """So few that each is shown by itself."""
        dice = random.Random(11)
        number = 0
        while not self._over.wait(dice.uniform(4.0, 12.0)):
            number += 1
            dice.choice(self._logs[:2]).forge(f"f{number:03x}:18:00")  # rsyslogd dates its lines itself

    def _until_it_reads(self) -> None:
        """A log that is rotated before anybody has met it has nobody who misses it."""
        end = time.monotonic() + 30
        while not self._door.reports and not self._door.moods["well"] and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(1.5)

    def _trouble(self, log: Log) -> None:
        while not self._over.is_set():
            log.write(log.dice.choice((0, 1, 1, 5, 50, 300)))
            if log.dice.random() < 0.03:  # each ten seconds: a place 20 rotations back is not looked for
                log.rotate()
            self._over.wait(log.dice.uniform(0.02, 0.6))

    def _fill(self) -> None:
        dice = random.Random(7)
        while not self._over.wait(dice.uniform(1.0, 6.0)):
            self._disk.fill()
            self._over.wait(dice.uniform(0.5, 4.0))
            self._disk.empty()

    def _written(self) -> Counter[Event]:
        total: Counter[Event] = Counter()
        for log in self._logs:
            total += log.written
        return total

    def _report(self, seconds: float) -> str:
        written, counted = self._written(), self._door.events()
        rotations = {log.path.name: log.rotations for log in self._logs}
        daemon, turned = "real" if self.daemon else "by hand", "real" if shutil.which("logrotate") else "by hand"
        disk = "a tmpfs of its own" if self._disk.mounted else "none of its own, it did not fill"
        counts = (
            f"{seconds:.0f} s: {sum(written.values())} lines written, {sum(counted.values())} counted in "
            f"{len(self._door.facts())} facts; missing {sum((written - counted).values())}, "
            f"doubled {sum((counted - written).values())}; {sum(len(log.forged) for log in self._logs)} forged, "
            f"{len(self._untold())} of them never told"
        )
        lines = [
            counts,
            f"killed {self._agent.kills} times; rotated {rotations}; disk filled {self._disk.fills} times",
            f"rsyslogd: {daemon}; logrotate: {turned}; disk: {disk}",
            f"answers: {dict(self._door.moods)}; remarks: {dict(self._door.kinds())}",
            *sorted({news.text for news in self._door.news(Observed) if news.kind == "agent.lines_lost"}),
            f"largest: {self._agent.largest / 1024:.1f} MB resident",
        ]
        wrong = sorted((written - counted) + (counted - written))
        return "\n".join(
            [*lines, *(f"  {event}: {written[event]} written, {counted[event]} counted" for event in wrong)]
        )

    def close(self) -> None:
        self._over.set()
        self._agent.end()
        self._door.shut()
        for log in self._logs:
            log.end()
        self._disk.close()

    @property
    def complaints(self) -> str:
        return self._agent.complaints


@contextlib.contextmanager
def soak(root: Path, seed: int) -> Iterator[Soak]:
    one = Soak(root, seed)
    try:
        yield one
    finally:
        one.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="leave the files behind")
    words = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="agent-soak-"))
    with soak(root, words.seed) as one:
        result = one.run(60 * words.minutes)
        print(result.report)
    if words.keep:
        print(root)
    else:
        shutil.rmtree(root)
    sys.exit(0 if result.exact else 1)


if __name__ == "__main__":
    main()
