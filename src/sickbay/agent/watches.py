"""File watches: inotify or, where there is none, polling."""

import ctypes
import errno
import os
import select
import struct
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

MODIFIED, CLOSED, MOVED_TO, CREATED, DELETED, MOVED = 0x002, 0x008, 0x080, 0x100, 0x400, 0x800
OFTEN = 0.05  # seconds between two looks where nobody calls
_EVENT = struct.Struct("iIII")


class Watches:
    """Wakes on changes in directories and files, on descriptors, on `ring`. What is missing is looked for often."""

    def __init__(self) -> None:
        self._bell, self._ringer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(self._bell, select.POLLIN)
        self._handle = _inotify()
        self._libc = ctypes.CDLL(None, use_errno=True)
        if self._handle is not None:
            self._poll.register(self._handle, select.POLLIN)
        self._names: dict[int, set[str]] = {}
        self._paths: dict[Path, tuple[int, str]] = {}
        self._wanted: dict[Path, tuple[str, int]] = {}
        self._handles: dict[int, str] = {}

    @property
    def ringer(self) -> int:
        """A byte written here wakes the loop (signals do)."""
        return self._ringer

    def want(self, wanted: Mapping[Path, tuple[str, int]]) -> set[str]:
        """Watch exactly these directories: for whom, and for which events.

        Returns for whom a watch is new: what happened before it began has called nobody.
        """
        self._wanted = dict(wanted)
        for path in self._paths.keys() - wanted.keys():
            self._drop(path)
        return self._add([path for path in wanted if path not in self._paths])

    def listen(self, handles: Mapping[int, str]) -> None:
        """Wake for exactly these descriptors, and for whom; one that was called for stays out until it was read."""
        for handle in self._handles.keys() - handles.keys():
            self._unlisten(handle)
        for handle, name in handles.items():
            if handle not in self._handles:
                self._poll.register(handle, select.POLLIN)
            self._handles[handle] = name

    def _unlisten(self, handle: int) -> None:
        del self._handles[handle]
        with suppress(KeyError, OSError):
            self._poll.unregister(handle)

    def _add(self, paths: Iterable[Path]) -> set[str]:
        new: set[str] = set()
        if self._handle is None:
            return new
        for path in paths:
            name, mask = self._wanted[path]
            descriptor = self._libc.inotify_add_watch(self._handle, os.fsencode(path), mask)
            if descriptor >= 0:
                self._paths[path] = (descriptor, name)
                self._names.setdefault(descriptor, set()).add(name)
                new.add(name)
        return new

    def _drop(self, path: Path) -> None:
        descriptor, _ = self._paths.pop(path)
        self._names.pop(descriptor, None)
        if self._handle is not None:
            self._libc.inotify_rm_watch(self._handle, descriptor)

    @property
    def sees_all(self) -> bool:
        return self._paths.keys() == self._wanted.keys()

    def wait(self, seconds: float) -> set[str]:
        """For whom something has changed. Where not everything can be watched: for all, after a short while."""
        blind = not self.sees_all
        ready = self._poll.poll(1000 * max(0.0, min(seconds, OFTEN) if blind else seconds))
        called: set[str] = set()
        for handle, _ in ready:
            if handle in self._handles:
                called.add(self._handles[handle])
                # Ready as long as nobody reads it, and closed ones for ever: whoever still wants it says so again.
                self._unlisten(handle)
            elif handle == self._bell:
                self._drain()
            elif handle == self._handle:
                called |= self._read_events()
        if blind:
            self._add([path for path in self._wanted if path not in self._paths])
            called |= {name for name, _ in self._wanted.values()}
        return called

    def _read_events(self) -> set[str]:
        assert self._handle is not None
        try:
            data = os.read(self._handle, 1 << 16)
        except BlockingIOError:
            return set()
        called: set[str] = set()
        at = 0
        while at + _EVENT.size <= len(data):
            descriptor, mask, _, length = _EVENT.unpack_from(data, at)
            at += _EVENT.size + length
            if mask & 0x4000:  # the queue ran over: anything may have happened
                return {name for name, _ in self._wanted.values()}
            called |= self._names.get(descriptor, set())
            if mask & (0x8000 | DELETED | MOVED):  # what was watched is gone, or has another name now
                self._forget(descriptor)
        return called

    def _forget(self, descriptor: int) -> None:
        if self._names.pop(descriptor, None) is not None and self._handle is not None:
            self._libc.inotify_rm_watch(self._handle, descriptor)
        for path in [path for path, (known, _) in self._paths.items() if known == descriptor]:
            del self._paths[path]

    def _drain(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._bell, 4096)

    def ring(self) -> None:
        with suppress(BlockingIOError):
            os.write(self._ringer, b"!")

    def close(self) -> None:
        for handle in (self._bell, self._ringer, self._handle):
            if handle is not None:
                os.close(handle)


def _inotify() -> int | None:
    """None: this system has no inotify, or no more instances of it."""
    try:
        start = ctypes.CDLL(None, use_errno=True).inotify_init1
    except (AttributeError, OSError):
        return None
    handle: int = start(os.O_CLOEXEC | os.O_NONBLOCK)
    if handle < 0:
        if ctypes.get_errno() not in {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSYS, errno.EPERM}:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        return None
    return handle
