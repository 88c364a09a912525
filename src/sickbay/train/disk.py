"""Atomic, durable files: whole or not at all, whenever the process or the machine dies; and whether they still are."""

import errno
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from sickbay.train.errors import Unreadable

CHUNK = 4 * 1024 * 1024
# File systems that know no hard links say so in these ways.
NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}


class Sum(NamedTuple):
    """What a file must be."""

    size: int
    sha256: str


class ByteStream(Protocol):
    """A file that is read from its beginning, once."""

    def read(self, size: int = -1, /) -> bytes: ...

    def readinto(self, buffer: bytearray | memoryview, /) -> int | None: ...


class Copy(NamedTuple):
    """A copy of a file that lies elsewhere: on another node, in an object store."""

    name: str
    where: str
    size: Callable[[], int]  # FileNotFoundError: it is not there; any other OSError: nobody can tell
    open: Callable[[], AbstractContextManager[ByteStream]]

    def __str__(self) -> str:
        return self.where


File = Path | Copy


def size_of(file: File) -> int:
    return file.stat().st_size if isinstance(file, Path) else file.size()


def opened(file: File) -> AbstractContextManager[ByteStream]:
    return file.open("rb", buffering=0) if isinstance(file, Path) else file.open()


def exists(path: Path) -> bool:
    """Whether it is there. What cannot be looked at is an error, whatever Path.exists makes of it."""
    try:
        path.stat()
    except FileNotFoundError:
        return False
    return True


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """What cannot be looked at is told as that."""
    try:
        yield
    except OSError as error:
        raise unreadable(Path(error.filename or path), error) from error


@contextmanager
def undamaged(path: Path) -> Iterator[None]:
    """A damaged file whose content nothing else tells is told as one that cannot be read."""
    try:
        yield
    except Damaged as damage:
        raise Unreadable(f"{path} {damage}") from None


def refresh(directory: Path) -> None:
    """Make sure that what is listed next is no old copy: a client that changes a directory asks its server for it."""
    aside = directory / f".look.{os.urandom(6).hex()}"
    os.close(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    with suppress(FileNotFoundError):
        aside.unlink()


def take(path: Path) -> bool:
    """Create an empty file, or do nothing because it is there. True: it is ours."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    except FileExistsError:
        return False
    return True


def sync(directory: Path) -> None:
    """Make names durable: fsync of a file says nothing about the entry that leads to it."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.EBADF}:  # file systems whose directories cannot be synced
            raise
    finally:
        os.close(handle)


def make(directory: Path) -> None:
    """Create the directory and what leads to it, each one durable."""
    if directory.is_dir():
        return
    make(directory.parent)
    try:
        directory.mkdir(exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(directory)) from None
    sync(directory.parent)


def make_in(directory: Path) -> None:
    """Create the directory in one that is there: below a mount point that has lost its disk nothing is made."""
    if not directory.is_dir():
        directory.mkdir(exist_ok=True)
        sync(directory.parent)


def write(
    path: Path, parts: Iterable[bytes | bytearray | memoryview], progress: Callable[[int], None] | None = None
) -> Sum:
    """Write a new file through to the disk, or leave nothing of it. One that is there already is never touched."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        try:
            total = _write(handle, parts, progress)
            os.fsync(handle)
        finally:
            os.close(handle)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return total


def _write(handle: int, parts: Iterable[bytes | bytearray | memoryview], progress: Callable[[int], None] | None) -> Sum:
    digest, size = hashlib.sha256(), 0
    for part in parts:
        octets = memoryview(part)
        for start in range(0, len(octets), CHUNK):
            chunk = octets[start : start + CHUNK]
            digest.update(chunk)
            while chunk:
                written = os.write(handle, chunk)
                chunk = chunk[written:]
                if progress is not None:
                    progress(written)
        size += len(octets)
    return Sum(size, digest.hexdigest())


def create(path: Path, content: dict[str, Any]) -> bool:
    """Create a sealed JSON file, whole and durable, or do nothing because it is there. True: it is ours."""
    # By chance, not by process number: on a shared disk every container has a process 1.
    aside = path.with_name(f".{path.name}.{os.urandom(6).hex()}")
    write(aside, [_seal(content)])
    try:
        ours = _place(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    if ours:
        sync(path.parent)
    return ours


def ask(path_of: Callable[[int], Path], number: int, content: dict[str, Any]) -> int:
    """Create one of a series of files that this process alone creates and others wait for, and say which.

    No number is left out, also where the one before was made by a try whose answer was an error.
    """
    while not create(path := path_of(number), content):
        there = read(path)
        if there == content:
            break
        if there is not None:
            number += 1
        elif not _unclaimed(path):
            raise unreadable(path, OSError(errno.ESTALE, os.strerror(errno.ESTALE)))
    return number


def _unclaimed(path: Path) -> bool:
    """Take a claim of our own back that was not followed by its file. False: there is none."""
    try:
        claim_of(path).unlink()
    except FileNotFoundError:
        return False
    return True


def _place(aside: Path, path: Path) -> bool:
    try:
        os.link(aside, path)
    except FileExistsError:
        # A network file system may have done it and lost the answer.
        return exists(path) and aside.samefile(path)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        # Without hard links: the process that creates the claim may rename. A death in between spends the name.
        return take(claim_of(path)) and _moved(aside, path)
    return True


def claim_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.claim")


def _moved(aside: Path, path: Path) -> bool:
    aside.rename(path)
    return True


def _seal(content: dict[str, Any]) -> bytes:
    """JSON with a checksum of itself: a flipped bit must not become another step."""
    return json.dumps({**content, "seal": _checksum(content)}, indent=1).encode()


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


class Damaged(ValueError):  # noqa: N818
    """A sealed file that does not say what was written into it. The text is a reason: "is not JSON"."""


def read(path: Path) -> dict[str, Any] | None:
    """What was sealed; None: there is no such file. Damaged, if it is not what was written; Unreadable."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(path, error) from error
    if not text:
        raise Damaged("is empty")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise Damaged("is not JSON") from None
    if not isinstance(content, dict) or content.pop("seal", None) != _checksum(content):
        raise Damaged("does not have the checksum that it was written with")
    return content


class Hashing:
    """A file that is hashed while it is read, from its first byte to its last."""

    def __init__(self, file: ByteStream, progress: Callable[[int], None] | None = None) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._progress = progress
        self.size = 0

    def read(self, size: int = -1) -> bytes:
        """As many bytes as were asked for, if there are so many."""
        if size < 0:
            whole = bytearray()
            while piece := self.read(CHUNK):
                whole += piece
            return bytes(whole)
        octets = bytearray(size)
        return bytes(memoryview(octets)[: self.readinto(octets)])

    def readinto(self, buffer: bytearray | memoryview) -> int:
        """Fills the buffer, unless the file ends before."""
        rest, done = memoryview(buffer), 0
        while rest and (size := self._file.readinto(rest[:CHUNK])):
            self._digest.update(rest[:size])
            rest, done = rest[size:], done + size
            if self._progress is not None:
                self._progress(size)
        self.size += done
        return done

    def finish(self) -> Sum:
        """What the whole file is; reads what was left."""
        buffer = bytearray(CHUNK)
        while self.readinto(buffer):
            pass
        return Sum(self.size, self._digest.hexdigest())


def measure(path: Path) -> Sum:
    """Of a file that somebody else has written."""
    with path.open("rb", buffering=0) as file:
        return Hashing(file).finish()


def misfit_of(path: File, expected: Sum, name: str = "") -> str | None:
    """Why a file cannot be what it must be, by its size alone; None: it may be. `name`: as its manifest has it."""
    name = name or path.name
    try:
        size = size_of(path)
        if size != expected.size and isinstance(path, Path):
            with path.open(
                "rb"
            ) as file:  # a network client may remember another length: opening makes it ask its server
                size = os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        return f"{name} is missing"
    except OSError as error:
        raise unreadable(path, error) from error
    return (
        None if size == expected.size else f"{name} is {_misfit(size, expected.size)} ({size} of {expected.size} bytes)"
    )


def fault_of(path: File, expected: Sum, progress: Callable[[int], None] | None = None, name: str = "") -> str | None:
    """Why a file is not what it must be, in plain words; None: it is. What cannot be read now is no fault of it."""
    name = name or path.name
    if (misfit := misfit_of(path, expected, name)) is not None:
        return misfit
    try:
        with opened(path) as file:
            found = Hashing(file, progress).finish()
    except FileNotFoundError:
        return f"{name} is missing"
    except OSError as error:
        raise unreadable(path, error) from error
    return None if found == expected else corrupt(name)


def corrupt(name: str) -> str:
    return f"{name} is corrupt (its checksum differs)"


def writable_by_others(path: Path) -> bool:
    """Whether somebody else than we and root could have written it."""
    found = path.stat()
    return found.st_uid not in {0, os.geteuid()} or bool(found.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def _misfit(size: int, expected: int) -> str:
    return "torn" if size < expected else "too long"


def unreadable(path: File, error: OSError) -> Unreadable:
    return Unreadable(
        f"cannot read {path}: {error.strerror}; nobody knows what is in it, so nothing is begun from it: make it"
        " readable again, or move its checkpoint away to go on from an older one"
    )
