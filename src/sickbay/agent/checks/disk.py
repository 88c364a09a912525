"""The disk that the state is on: written, made durable, read back from the device and compared. In a child process."""

import contextlib
import errno
import hashlib
import os
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from sickbay.agent.checks import CouldNotRun, Result

BLOCK: Final = 4 << 20
# What a device says that fails, or a file system that met one. Others (no room, no permission) prove nothing.
BROKEN: Final = {errno.EIO, errno.ENXIO, errno.ENODEV, errno.EREMOTEIO, errno.EBADMSG, errno.EUCLEAN, errno.ETIMEDOUT}


def exercise(wants: dict[str, Any]) -> Result:
    where, size = Path(wants["directory"]), int(wants.get("mib", 256)) << 20
    free = os.statvfs(where)
    room = free.f_bavail * free.f_frsize // 20  # a check must not be what fills a disk
    size = min(size, room) // BLOCK
    if size < 1:
        raise CouldNotRun(f"{where} has too little room: {room >> 20} MiB may be used, {BLOCK >> 20} MiB are needed")
    try:
        # Without a name from the beginning: whatever ends this, nothing is left.
        with tempfile.TemporaryFile(dir=where, buffering=0) as file:
            return _through(file.fileno(), size, wants)
    except OSError as error:
        if error.errno in BROKEN:
            return Result(f"{where}: {error.strerror}")
        raise CouldNotRun(f"{where}: {error.strerror}") from error


def _through(file: int, blocks: int, wants: dict[str, Any]) -> Result:
    began = time.monotonic()
    for index in range(blocks):
        _write(file, _block(index), index * BLOCK)
    os.fsync(file)
    wrote = time.monotonic() - began
    if "spoil" in wants:
        os.pwrite(file, b"\x00\xff", int(wants["spoil"]))
    # Out of the cache, so that the device itself is read; some file systems keep it there, which the figure shows.
    with contextlib.suppress(OSError):
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    began = time.monotonic()
    for index in range(blocks):
        if os.pread(file, BLOCK, index * BLOCK) != _block(index):
            return Result(f"the block at {index * BLOCK >> 20} MiB read back other than it was written")
    took, size = time.monotonic() - began, blocks * BLOCK
    return Result(
        "", {"tested_mib": float(size >> 20), "write_mbps": size / wrote / 1e6, "read_mbps": size / took / 1e6}
    )


def _block(index: int) -> bytes:
    """Each block another, so that one in the place of another is found; incompressible enough to reach the device."""
    return hashlib.shake_128(index.to_bytes(8, "little")).digest(4096) * (BLOCK // 4096)


def _write(file: int, data: bytes, at: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(file, data[done:], at + done)
