"""Directory trees that other code has written: which files are in one, and whether they stay as they are."""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from sickbay.train import disk
from sickbay.train.layout import checked

DELETED = re.compile(r"\.nfs[0-9a-f]{16,}\Z")  # what an NFS client makes of a file that was deleted while it was open


class Stamp(NamedTuple):
    """What shows that a file is still the same."""

    size: int
    modified: int
    inode: int


class Unfit(ValueError):  # noqa: N818
    """What is there cannot be part of a checkpoint. The text is a reason."""


def stamps_below(top: Path) -> dict[str, Stamp]:
    """Of every file; nothing else may be there but directories."""
    if top.is_symlink():
        raise Unfit(f"{top.name} has become a symbolic link: leave the directory where it is")
    if not top.is_dir():
        raise Unfit(f"{top.name} is no directory any more: leave the directory where it is")
    found: dict[str, Stamp] = {}
    for name, entry in entries_below(top, fresh=True):
        if not entry.is_dir(follow_symlinks=False):
            _refuse_unfit(name, entry)
            found[name] = _stamp_of(Path(entry.path))
    return found


def entries_below(top: Path, *, fresh: bool = False) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """All that is there, each with its name from the directory in which `top` is. No link is followed.

    `fresh`: our client may remember what was there before others wrote, so it asks its server.
    """
    ahead = [top.name]
    while ahead:
        within = ahead.pop()
        if fresh:
            disk.refresh(top.parent / within)
        with os.scandir(top.parent / within) as entries:
            for entry in entries:
                name = f"{within}/{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    ahead.append(name)
                if not DELETED.match(entry.name):
                    yield name, entry


def _refuse_unfit(name: str, entry: os.DirEntry[str]) -> None:
    try:
        checked(name)
    except ValueError as why:
        raise Unfit(f"there is {why}") from None
    if entry.is_symlink():
        raise Unfit(f"{name} is a symbolic link: write the file itself into the directory")
    if not entry.is_file(follow_symlinks=False):
        raise Unfit(f"{name} is no file: a checkpoint is made of files and directories")


def opened(path: Path) -> int:
    """A handle to read from; of a link, or of a pipe that was put there a moment ago, it neither follows nor waits."""
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)


def _stamp_of(path: Path) -> Stamp:
    """Of an open file: opening it makes a network client ask its server."""
    handle = opened(path)
    try:
        return stamp(handle)
    finally:
        os.close(handle)


def stamp(handle: int) -> Stamp:
    found = os.fstat(handle)
    return Stamp(found.st_size, found.st_mtime_ns, found.st_ino)


def size_below(top: Path) -> int:
    """Bytes, as far as they can be seen."""
    total = 0
    for directory, _, names in os.walk(top):
        for name in names:
            with suppress(OSError):
                total += Path(directory, name).lstat().st_size
    return total


def open_for_writing(top: Path) -> str:
    """The name of a file that this process still has open for writing, as a writer that has ended has not; or none."""
    above = top.parent.resolve()
    with suppress(OSError):  # no /proc: then what changes later shows all the same
        for entry in Path("/proc/self/fd").iterdir():
            with suppress(OSError, ValueError, IndexError):
                path = entry.readlink()
                if path.is_relative_to(above / top.name) and not path.name.endswith(" (deleted)"):
                    told = Path("/proc/self/fdinfo", entry.name).read_text(encoding="ascii")
                    if int(told.split("flags:")[1].split()[0], 8) & os.O_ACCMODE != os.O_RDONLY:
                        return str(path.relative_to(above))
    return ""
