"""Processes of this machine: children that die with their parent, and whatever a rank has left behind."""

import ctypes
import os
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from sickbay.wire.proc import environment, others, read_proc

_PR_SET_CHILD_SUBREAPER = 36
_PROC = Path("/proc")
_LINUX = sys.platform.startswith("linux")
_LIBC = ctypes.CDLL(None) if _LINUX else None  # loaded before any fork: a child between fork and exec may not


def adopt_orphans() -> None:
    """Grandchildren whose parent ends become our children, not init's: so none stays behind as a zombie."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def orphans(known: Iterable[int]) -> tuple[int, ...]:
    """Our children, dead or alive, that we have not started ourselves."""
    mine = set(known)
    try:
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_bytes().split()
    except OSError:
        return ()
    return tuple(int(pid) for pid in children if int(pid) not in mine)


def bury_orphans(known: Iterable[int]) -> None:
    """Reap adopted children that have ended; those in `known` are left to whoever started them."""
    for pid in orphans(known):
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def has_ended(pid: int) -> bool:
    """Whether this child of ours has ended. It stays a zombie, so that its number belongs to nobody else yet."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def find(groups: Iterable[int] = (), marks: Iterable[str] = ()) -> dict[int, str]:
    """Living processes (no zombies) in these process groups or with these words (NAME=value) in their environment.

    Returns pid → the group (as text) or the mark by which it was found. We ourselves are never found.
    """
    wanted = {group: str(group) for group in groups}
    words = {mark.encode(): mark for mark in marks}
    return _find_in_proc(wanted, words) if _LINUX else _find_with_psutil(wanted, words)


def is_alive(pid: int) -> bool:
    """Whether a process of this number exists and has not ended: a zombie has."""
    if not _LINUX:
        import psutil

        return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    try:
        return read_proc(str(pid), "stat").rpartition(b")")[2].split(None, 1)[0] not in {b"Z", b"X"}
    except (OSError, IndexError):
        return False


def _find_in_proc(groups: dict[int, str], words: dict[bytes, str]) -> dict[int, str]:
    found: dict[int, str] = {}
    for name in others():
        try:
            state, _, group = read_proc(name, "stat").rpartition(b")")[2].split(None, 3)[:3]
            if state in {b"Z", b"X"}:
                continue
            if int(group) in groups:
                found[int(name)] = groups[int(group)]
            elif words:
                for word in environment(name):
                    if word in words:
                        found[int(name)] = words[word]
                        break
        except (OSError, ValueError):
            continue  # it ended meanwhile, or is another user's
    return found


def _find_with_psutil(groups: dict[int, str], words: dict[bytes, str]) -> dict[int, str]:
    import psutil

    found: dict[int, str] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            if os.getpgid(process.pid) in groups:
                found[process.pid] = groups[os.getpgid(process.pid)]
                continue
            environment = {f"{key}={value}".encode() for key, value in process.environ().items()}
            if hits := environment & set(words):
                found[process.pid] = words[hits.pop()]
    return found


def kill(pids: Iterable[int], what: signal.Signals = signal.SIGKILL) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, what)


def kill_group(group: int, what: signal.Signals = signal.SIGKILL) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, what)


def name_of(pid: int) -> str:
    try:
        return (_PROC / str(pid) / "comm").read_text().strip() if pid else ""
    except OSError:
        return ""
