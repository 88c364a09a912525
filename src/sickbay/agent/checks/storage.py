"""Shared storage that a job names (FSx, NFS, Lustre): is each directory there, does it answer, can it be written?

Each is looked at in a process of its own, for whoever asks a file server that is down may hang in the kernel, where not
even a kill ends it. As long as one hangs there, nobody is sent after it.

What is proven: the directory can be opened and listed, its file system is not read-only, and 4 KiB that were written
by its owner read back as they were. What is not: that the ranks' own user may write, and how much, for nobody here
knows who that is.
"""

import errno
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, Any, Final

from sickbay.agent.checks import Exercise, Result, examine
from sickbay.agent.checks.apart import ExerciseOutcome, outcome, start
from sickbay.agent.probes.mounts import HIDDEN, OWN, is_hidden, is_remote, read_mounts
from sickbay.agent.setting_values import HOST
from sickbay.agent.settings import on_host
from sickbay.model.checkup import STORAGE_MOST, StorageSeen, Tested, Verdict
from sickbay.model.facts import Checked
from sickbay.model.fleet import Incarnation, NodeId
from sickbay.model.protocol import RunCheck
from sickbay.wire.commands import ChildEnd, finish_all

WITHIN = 30.0  # seconds; a failover of FSx or of an NFS server takes about as long
JOB = "sickbay.agent.checks.storage:exercise"
BYTES: Final = 4096
UNPROVEN = "it answers; that it can be written is not proven, for the agent may not write there"

Look = Callable[[Sequence[str], float], tuple[StorageSeen, ...]]


class StorageLook:
    """`root`: below which the machine's own tree is seen from here. `within`: seconds for all directories together."""

    def __init__(self, root: str = HOST, within: float = WITHIN, job: str = JOB) -> None:
        self._root = root
        self._within = within
        self._job = job
        self._hung: dict[str, int] = {}  # processes that not even a kill has ended, by directory

    def __call__(self, paths: Sequence[str], until: float) -> tuple[StorageSeen, ...]:
        began = time.monotonic()
        until = min(until, began + self._within)
        asked = list(dict.fromkeys(paths))[:STORAGE_MOST]
        hidden = {path for path in asked if self._hidden(path)}
        children = {
            path: start(self._job, {"directory": str(on_host(self._root, path))})
            for path in asked
            if path not in hidden and not self._still_hangs(path)
        }
        pids = {path: child.pid for path, child in children.items()}
        ends = dict(zip(children, finish_all(list(children.values()), until), strict=True))
        self._hung |= {path: pids[path] for path, end in ends.items() if end.stuck}
        return tuple(
            StorageSeen(path=path, verdict=Verdict.COULD_NOT_RUN, because=HIDDEN)
            if path in hidden
            else _seen(path, ends.get(path), until - began)
            for path in asked
        )

    def _hidden(self, path: str) -> bool:
        """Whether it lies on something that the machine has mounted and a container does not show."""
        if self._root == HOST:
            return False
        place = _mount_of(path, read_mounts(on_host(self._root, "/proc/1/mounts")))
        return place not in {"", "/"} and is_hidden(self._root, place)

    def _still_hangs(self, path: str) -> bool:
        pid = self._hung.get(path)
        if pid is None or _state(pid) not in {"", "Z", "X"}:
            return pid is not None
        del self._hung[path]
        return False


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def _seen(path: str, ended: ChildEnd | None, seconds: float) -> StorageSeen:
    if ended is None:
        return StorageSeen(path=path, verdict=Verdict.FAIL, because="it still does not answer to an earlier look")
    if ended.stuck or ended.code is None:
        return StorageSeen(
            path=path, verdict=Verdict.FAIL, because=f"it does not answer within {seconds:.0f} s", seconds=ended.seconds
        )
    found: ExerciseOutcome = outcome(ended, seconds)
    unproven = UNPROVEN if found.figures.get("unproven") else ""
    return StorageSeen(
        path=path,
        verdict=found.verdict,
        because=found.because or unproven,
        remote=bool(found.figures.get("remote")),
        empty=bool(found.figures.get("empty")),
        seconds=round(ended.seconds, 3),
    )


def answer_check(
    order: RunCheck, tests: Sequence[Exercise], until: float, look: Look, node: NodeId, me: Incarnation
) -> Checked:
    """Carries a check out: the verdict is of the hardware, the storage is told beside it."""
    storage = look(order.storage, until) if order.storage else ()
    verdict, because, tested = Verdict.PASS, "", tuple[Tested, ...]()
    if order.level or not order.storage:
        verdict, because, tested = examine(tests, order.level, until, order.profile)
    return Checked(
        check=order.check, node=node, verdict=verdict, incarnation=me, level=order.level, because=because,
        tests=tested, storage=storage,
    )  # fmt: skip


# --- in the child


def exercise(wants: dict[str, Any]) -> Result:
    # Here: an agent that only watches writes nowhere. And before it becomes somebody who may not read our own modules.
    from tempfile import TemporaryFile

    where = str(wants["directory"])
    try:
        handle = os.open(where, os.O_RDONLY | os.O_CLOEXEC)  # it may hang: this process is there for that
    except FileNotFoundError:
        return Result("it does not exist: is it mounted?")
    except PermissionError:
        return Result("", {"unproven": 1.0})
    except OSError as error:
        return Result(_words(error))
    figures: dict[str, float] = {}
    try:
        with os.scandir(handle) as entries:
            empty = next(iter(entries), None) is None
        if os.fstatvfs(handle).f_flag & os.ST_RDONLY:
            return Result("it is mounted read-only")
        figures = {"empty": float(empty), "remote": float(_is_remote(where)), "unproven": 0.0}
        _become(os.fstat(handle))
        _write_and_read(TemporaryFile, where)
    except PermissionError:
        return Result("", {**figures, "unproven": 1.0})
    except OSError as error:
        return Result(_words(error))
    return Result("", figures)


def _become(owner: os.stat_result) -> None:
    """Whom the directory belongs to: a file server may trust root less than anybody else."""
    if os.geteuid() == 0 and owner.st_uid != 0:
        os.setgroups([])
        os.setegid(owner.st_gid)
        os.seteuid(owner.st_uid)


def _write_and_read(temporary_file: Callable[..., IO[bytes]], where: str) -> None:
    data = os.urandom(BYTES)
    # Without a name from the beginning, where the file system can do that: whatever ends this, nothing is left.
    with temporary_file(dir=where, prefix=".sickbay-", buffering=0) as file:
        file.write(data)
        os.fsync(file.fileno())
        if os.pread(file.fileno(), BYTES, 0) != data:
            raise OSError(errno.EIO, "what was written reads back other than it was")


def _mount_of(path: str, places: Iterable[str]) -> str:
    above = (place for place in places if path == place or path.startswith(place.rstrip("/") + "/"))
    return max(above, key=len, default="")


def _is_remote(where: str) -> bool:
    """Whether the file system that it lies on is another machine's."""
    table = read_mounts(OWN)
    return is_remote(table.get(_mount_of(os.path.realpath(where), table), b""))


def _words(error: OSError) -> str:
    match error.errno:
        case errno.EROFS:
            return "it is mounted read-only"
        case errno.ENOTDIR:
            return "it is no directory"
        case errno.ENOSPC | errno.EDQUOT:
            return "there is no room left in it"
        case _:
            return error.strerror or str(error)
