"""Support bundle: logs, the driver's own words, versions, what the agent knows of itself, in one file.

Its size is bounded, the latest few are kept, no link is followed, and no secret goes in: what looks like one is cut
out of whatever is gathered. It stays on the node, for root alone, and only its path goes to the controller. That is why
it needs no `allow`.
"""

import io
import os
import platform
import stat
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from sickbay import __version__
from sickbay.agent.join import kept_token
from sickbay.agent.settings import AgentSettings, printable
from sickbay.signs.redact import redact
from sickbay.wire.commands import run_bounded
from sickbay.wire.files import replacing

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
         "/usr/lib/os-release")  # fmt: skip


class Bundle(NamedTuple):
    path: Path
    size: int
    missing: tuple[str, ...]  # parts that could not be had


@dataclass(frozen=True, slots=True)
class BundleParts:
    """What is gathered besides what the agent knows of itself."""

    commands: Mapping[str, Sequence[str]] = field(default_factory=lambda: COMMANDS)
    files: Mapping[str, Path] = field(default_factory=lambda: {f"files{name}": Path(name) for name in FILES})


def parts_of(settings: AgentSettings) -> BundleParts:
    """Those of the machine, also from a container."""
    root = (f"--root={settings.host_root}",) if settings.contained else ()
    commands = {part: (*words, *(root if words[0] == "journalctl" else ())) for part, words in COMMANDS.items()}
    return BundleParts(commands, {f"files{name}": settings.on_host(name) for name in FILES})


def collect(state: Path, settings: AgentSettings, until: float, parts: BundleParts | None = None) -> Bundle:
    """Raises OSError where the file cannot be written."""
    directory = state / "bundles"
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    name = f"sickbay-{settings.node.replace('/', '-')}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    path = directory / f"{name}.tar.gz"
    secrets = _secrets(settings)
    missing: list[str] = []
    left = WHOLE
    for half in directory.glob(".sickbay-*"):  # of an agent that was killed; one collects at a time
        half.unlink(missing_ok=True)
    with replacing(path, durable=False) as file, tarfile.open(fileobj=file, mode="w:gz", compresslevel=6) as tar:
        for part, data in _gathered(state, settings, until, parts or parts_of(settings)):
            if data is None:
                missing.append(part)
                continue
            clean = redact(data[-PART:].decode(errors="replace"), secrets).encode()[-PART:][:left]
            left -= len(clean)
            info = tarfile.TarInfo(f"{name}/{part}")
            info.size, info.mtime, info.mode = len(clean), int(time.time()), 0o600
            tar.addfile(info, io.BytesIO(clean))
    _forget_old(directory)
    return Bundle(path, path.stat().st_size, tuple(missing))


def _gathered(
    state: Path, settings: AgentSettings, until: float, parts: BundleParts
) -> Iterator[tuple[str, bytes | None]]:
    versions = {"sickbay": __version__, "python": platform.python_version(), "kernel": platform.release()}
    yield "versions.json", msgspec.json.format(msgspec.json.encode(versions))
    yield "settings.json", msgspec.json.format(msgspec.json.encode(printable(settings)))
    for part, words in parts.commands.items():
        yield part, _said(words, until)
    for part, path in parts.files.items():
        yield part, _read(path)
    for found in sorted(state.glob("*.json*")):
        yield f"agent/{found.name}", _read(found)
    yield "agent/spool.txt", b"\n".join(map(_listed, sorted(state.glob("spool/*"))))


def _listed(path: Path) -> bytes:
    try:
        return f"{path.name} {path.lstat().st_size}".encode()
    except OSError:  # segments go as soon as they are reported
        return f"{path.name} gone".encode()


def _said(words: Sequence[str], until: float) -> bytes | None:
    """The end of what it prints. A driver's tool on a dying GPU may hang where not even a kill ends it."""
    left = min(TAKES, until - time.monotonic())
    if left <= 0:
        return None
    try:
        ended = run_bounded(words, left, merged=True)
    except OSError:
        return None
    return None if ended.code is None else ended.out.encode()


def _read(path: Path) -> bytes | None:
    """Its end. Not what a link points to, and no pipe that would be waited for."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return _end_of(handle) if stat.S_ISREG(os.fstat(handle).st_mode) else None
    except OSError:
        return None
    finally:
        os.close(handle)


def _end_of(handle: int) -> bytes:
    size = os.fstat(handle).st_size  # 0 for those of /proc
    return os.pread(handle, PART, max(0, size - PART))


def _secrets(settings: AgentSettings) -> list[str]:
    found = [settings.token]
    for file in filter(None, (settings.token_file, settings.join_token_file)):
        with suppress(OSError):
            found.append(Path(file).read_text(errors="replace").strip())
    with suppress(OSError):
        kept = kept_token(Path(settings.state))
        found += [kept.token] if kept is not None else []
    return found


def _forget_old(directory: Path) -> None:
    found = sorted(directory.glob("sickbay-*.tar.gz"), key=lambda path: path.stat().st_mtime)
    for old in found[:-KEEP]:
        old.unlink(missing_ok=True)
