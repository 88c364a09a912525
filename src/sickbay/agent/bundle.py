"""What a person would ask for, in one file: logs, the driver's own words, versions, what the agent knows of itself.

Its size is bounded, the latest few are kept, and no secret goes in: tokens are cut out of whatever is gathered.
"""

import io
import os
import platform
import re
import subprocess
import tarfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from sickbay import __version__
from sickbay.agent.settings import AgentSettings, printable

KEEP = 3
PART = 4 << 20  # bytes of each part
WHOLE = 32 << 20  # bytes of all parts before they are packed
TAKES = 20.0  # seconds that one command may take

COMMANDS: dict[str, tuple[str, ...]] = {
    "dmesg.txt": ("dmesg", "--ctime"),
    "journal.txt": ("journalctl", "-b", "-n", "5000", "--no-pager", "-o", "short-iso"),
    "journal-before.txt": ("journalctl", "-b", "-1", "-n", "2000", "--no-pager", "-o", "short-iso"),
    "nvidia-smi-q.txt": ("nvidia-smi", "-q"),
    "nvidia-smi.txt": ("nvidia-smi",),
    "nvidia-smi-topo.txt": ("nvidia-smi", "topo", "-m"),
    "nvidia-smi-nvlink.txt": ("nvidia-smi", "nvlink", "-s", "-e"),
    "lspci.txt": ("lspci", "-vv", "-d", "10de:"),
    "dcgmi.txt": ("dcgmi", "discovery", "-l"),
    "fabricmanager.txt": ("systemctl", "status", "--no-pager", "nvidia-fabricmanager"),
    "memory.txt": ("free", "-b"),
    "disks.txt": ("df", "-k"),
}
FILES = ("/proc/driver/nvidia/version", "/proc/version", "/proc/cmdline", "/proc/uptime", "/proc/loadavg",
         "/etc/os-release")  # fmt: skip
SECRET = re.compile(
    rb"(?i)((?:token|password|passwd|secret|authorization|api[_-]?key|credential)[\"']?\s*[=:]\s*[\"']?(?:bearer\s+)?)[^\s\"',;]+"
)


class Bundle(NamedTuple):
    path: Path
    size: int
    missing: tuple[str, ...]  # parts that could not be had


def collect(
    state: Path, settings: AgentSettings, until: float, commands: dict[str, tuple[str, ...]] | None = None
) -> Bundle:
    """Raises OSError where the file cannot be written."""
    directory = state / "bundles"
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    name = f"sickbay-{settings.node.replace('/', '-')}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    path, aside = directory / f"{name}.tar.gz", directory / f".{name}.new"
    secrets = _secrets(settings)
    missing: list[str] = []
    left = WHOLE
    handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "wb") as file, tarfile.open(fileobj=file, mode="w:gz", compresslevel=6) as tar:
            for part, data in _parts(state, settings, until, COMMANDS if commands is None else commands):
                if data is None:
                    missing.append(part)
                    continue
                clean = _clean(data[-PART:], secrets)[:left]
                left -= len(clean)
                info = tarfile.TarInfo(f"{name}/{part}")
                info.size, info.mtime, info.mode = len(clean), int(time.time()), 0o600
                tar.addfile(info, io.BytesIO(clean))
        aside.rename(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    _forget_old(directory)
    return Bundle(path, path.stat().st_size, tuple(missing))


def _parts(
    state: Path, settings: AgentSettings, until: float, commands: dict[str, tuple[str, ...]]
) -> Iterator[tuple[str, bytes | None]]:
    versions = {"sickbay": __version__, "python": platform.python_version(), "kernel": platform.release()}
    yield "versions.json", msgspec.json.format(msgspec.json.encode(versions))
    yield "settings.json", msgspec.json.format(msgspec.json.encode(printable(settings)))
    for part, words in commands.items():
        yield part, _said(words, until)
    for name in FILES:
        yield f"files{name}", _read(Path(name))
    for found in sorted(state.glob("*.json*")):
        yield f"agent/{found.name}", _read(found)
    spool = b"\n".join(f"{path.name} {path.stat().st_size}".encode() for path in sorted(state.glob("spool/*")))
    yield "agent/spool.txt", spool


def _said(words: Sequence[str], until: float) -> bytes | None:
    left = min(TAKES, until - time.monotonic())
    if left <= 0:
        return None
    try:
        done = subprocess.run(  # noqa: S603 - a fixed table of commands, no shell
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=left, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def _read(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            return file.read(PART)
    except OSError:
        return None


def _secrets(settings: AgentSettings) -> list[bytes]:
    found = [settings.token.encode()]
    if settings.token_file:
        with suppress(OSError):
            found.append(Path(settings.token_file).read_bytes().strip())
    return [secret for secret in found if len(secret) >= 4]


def _clean(data: bytes, secrets: Iterable[bytes]) -> bytes:
    for secret in secrets:
        data = data.replace(secret, b"(removed)")
    return SECRET.sub(rb"\1(removed)", data)


def _forget_old(directory: Path) -> None:
    found = sorted(directory.glob("sickbay-*.tar.gz"), key=lambda path: path.stat().st_mtime)
    for old in found[:-KEEP]:
        old.unlink(missing_ok=True)
