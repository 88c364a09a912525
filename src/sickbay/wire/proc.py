"""Process table (/proc), read directly: psutil costs more to import than all scans of a supervisor's life.

Nothing is imported here when it is called: a fork may call it.
"""

import os

PROC = "/proc"


def others() -> list[str]:
    """The numbers of all processes but our own, as text."""
    me = str(os.getpid())
    return [name for name in os.listdir(PROC) if name.isdigit() and name != me]  # noqa: PTH208 - half of a Path's cost


def read_proc(pid: str, file: str) -> bytes:
    """Raises OSError: it has ended, or is another user's."""
    handle = os.open(f"{PROC}/{pid}/{file}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(handle, 1 << 16):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(handle)


def environment(pid: str) -> list[bytes]:
    """Its words, NAME=value; of a zombie there are none any more. Raises OSError."""
    return read_proc(pid, "environ").split(b"\0")
