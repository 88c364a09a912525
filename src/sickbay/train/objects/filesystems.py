"""Every other store, through fsspec: Google's and Azure's object stores, files elsewhere, memory.

The same promises as far as fsspec can keep them:

- *Whole or not at all.* In some object stores (`VISIBLE_AT_CLOSE`) an object is there when its upload is closed; one
  that fails is thrown away instead. Elsewhere a file is written beside, confirmed, and then renamed: atomic where
  renaming is (file, sftp, hdfs). A killed process leaves such a file beside: it is never listed, and `remove_all`
  removes it. While an object is replaced, some stores show none (older adlfs removes it first).
- *Confirmed.* Google's stores state the MD5 of an object that they have computed, which is compared (`verifies`).
  Elsewhere everything is read back after it was written. Files of this machine are synced.
- *As it is now.* Each range is read by itself; at the end the store is asked whether the object is the one that it was
  at the beginning. A store that tells neither an etag nor a time shows a change by the caller's checksum only.
- *Time limits and repetitions* are the library's own. What it raises becomes an OSError, by its HTTP status if any.
- Uploads of a killed process that are not closed cannot be found: Google and Azure end them after a week.
"""

import base64
import errno
import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

from sickbay.train import disk
from sickbay.train.errors import CheckpointError
from sickbay.train.objects import Keys, Location, checked
from sickbay.train.objects.ahead import AHEAD, Quota, ReadAhead, Threads
from sickbay.train.objects.faults import cause_of, fault, number_of_status, one_line
from sickbay.train.objects.payload import Part, Payload, file_of, of_memory

AbstractFileSystem: Any = import_module("fsspec").AbstractFileSystem
url_to_fs: Any = import_module("fsspec.core").url_to_fs

BUCKETS = frozenset({"gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "oci", "memory"})  # the rest has directories
VISIBLE_AT_CLOSE = frozenset({"gs", "gcs", "az", "abfs", "abfss"})
STATES_MD5 = frozenset({"gs", "gcs"})
IDENTITY = ("etag", "ETag", "generation", "md5Hash", "ino", "mtime", "created", "last_modified", "LastModified", "size")
BLOCK = 16 * 1024 * 1024  # of one request, where the library uploads in blocks
THREADS = 8
BESIDE = re.compile(r"\.[^/]+\.[0-9a-f]{12}\.partial")

Progress = Callable[[int], None] | None


class FilesystemObjects:
    """One directory or bucket of a file system that fsspec knows, below one prefix."""

    def __init__(self, place: Location) -> None:
        self.url = str(place)
        self._fs, self._root = _find(place)
        self._buckets = place.scheme in BUCKETS
        self._at_close = place.scheme in VISIBLE_AT_CLOSE
        self._local = bool(getattr(self._fs, "local_file", False))
        self.verifies = place.scheme in STATES_MD5
        self._threads = Threads(THREADS, "sickbay-objects")
        self._quota = Quota(AHEAD)

    def put(self, key: str, parts: Iterable[Part], expected: disk.Sum | None = None) -> disk.Sum:
        return self._store(checked(key), of_memory(parts, expected, f"{self.url}/{key}"), expected, None)

    def put_file(
        self, key: str, source: Path, expected: disk.Sum, progress: Callable[[int], None] | None = None
    ) -> None:
        with file_of(source, expected) as payload:
            self._store(checked(key), payload, expected, progress)

    def _store(self, key: str, payload: Payload, expected: disk.Sum | None, progress: Progress) -> disk.Sum:
        directory, _, name = key.rpartition("/")
        beside = f"{directory}/.{name}.{os.urandom(6).hex()}.partial".lstrip("/")
        target = key if self._at_close else beside
        if not self._buckets:  # below a mount point that has lost its disk nothing is made
            self._there()
            with self._told(key):
                self._make(self._path(key).rpartition("/")[0])
        try:
            md5 = self._write(target, payload, expected, progress)
            self._confirm(target, payload.sum(), md5)
            if target == beside:
                with self._told(key):
                    self._rename(self._path(beside), self._path(key))
        except BaseException:
            if target == beside:
                with suppress(Exception):  # its process may have lost the store: then it stays beside, unseen
                    self._fs.rm_file(self._path(beside))
            raise
        if target == beside and self.size_of(key) != payload.sum().size:
            raise fault(errno.EIO, "has another size than what was written", f"{self.url}/{key}")
        return payload.sum()

    def _make(self, directory: str) -> None:
        if self._local:  # each name on the way is on the disk, as the object itself will be
            disk.make(Path(directory))
        else:
            self._fs.makedirs(directory, exist_ok=True)

    def _write(self, key: str, payload: Payload, expected: disk.Sum | None, progress: Progress) -> str:
        """Its MD5, where the store will state one."""
        md5 = hashlib.md5(usedforsecurity=False)
        with self._told(key, made=True):
            file = self._fs.open(self._path(key), "wb", block_size=BLOCK)
        try:
            for block in payload.blocks():
                if self.verifies:
                    md5.update(block)
                with self._told(key, made=True):
                    file.write(block)
                if progress is not None:
                    progress(len(block))
            payload.check(expected)
            with self._told(key, made=True):
                if self._local:
                    file.flush()
                    os.fsync(file.fileno())
                file.close()
        except BaseException:
            self._throw_away(file)
            raise
        return base64.b64encode(md5.digest()).decode()

    def _throw_away(self, file: Any) -> None:
        """Where an object is visible when it is closed, it must not be: not by the garbage collector either."""
        with suppress(Exception):
            if not self._at_close:
                file.close()
                return
            file.closed = True
            file.discard()

    def _rename(self, beside: str, path: str) -> None:
        if type(self._fs).mv is AbstractFileSystem.mv:  # which takes the letters *, ? and [ for patterns
            self._fs.cp_file(beside, path)
            self._fs.rm_file(beside)
            return
        try:
            self._fs.mv(beside, path)
        except FileExistsError:  # a file system whose renames do not replace
            self._fs.rm_file(path)
            self._fs.mv(beside, path)
        if self._local:
            disk.sync(Path(path).parent)

    def _confirm(self, key: str, written: disk.Sum, md5: str) -> None:
        where, info = f"{self.url}/{key}", self._look(key)
        if info is None:
            raise fault(errno.EIO, "is not there after it was written", where)
        stated = info.get("md5Hash") if self.verifies else None
        self.verifies = stated is not None
        if info["size"] == written.size and stated == md5:
            return
        if info["size"] == written.size and stated is None:
            with self._opened(key, info) as back:
                if disk.Hashing(back).finish() == written:
                    return
        with suppress(Exception):
            self._fs.rm_file(self._path(key))
        raise fault(errno.EIO, "does not hold what was written into it", where)

    # --- read

    def _look(self, key: str) -> dict[str, Any] | None:
        """What the store says of an object; None: it is surely not there."""
        info = self._info(self._path(key), key)
        if info is None:
            self._there()
            return None
        return info if info["type"] != "directory" else None

    def _info(self, path: str, key: str | None) -> dict[str, Any] | None:
        with self._told(key):
            self._fs.invalidate_cache()
            try:
                info: dict[str, Any] = self._fs.info(path)
            except FileNotFoundError:
                return None
            return info

    def _there(self) -> None:
        """Raises if bucket or directory are not there: then nothing can be said of what is in them."""
        root = self._root.strip("/").split("/")[0] if self._buckets else self._root
        if self._info(root, None) is None:
            what = "bucket" if self._buckets else "directory"
            raise fault(errno.ENODEV, f"there is no {what} {root}: create it, or mount it", self.url)

    def size_of(self, key: str) -> int | None:
        info = self._look(checked(key))
        return None if info is None else int(info["size"])

    def open(self, key: str) -> BinaryIO:
        info = self._look(checked(key))
        if info is None:
            raise fault(errno.ENOENT, "there is no such object", f"{self.url}/{key}")
        return self._opened(key, info)

    def _opened(self, key: str, info: dict[str, Any]) -> BufferedReader:
        width = THREADS if getattr(self._fs, "async_impl", False) else 1
        fetch, finish = partial(self._fetch, key), partial(self._still, key, _identity(info))
        whole = ReadAhead(int(info["size"]), fetch, self._threads, self._quota, width=width, finish=finish)
        return BufferedReader(whole)

    def _fetch(self, key: str, start: int, size: int, unwanted: threading.Event) -> bytes:
        if unwanted.is_set():
            return b""
        with self._told(key):
            octets: bytes = self._fs.cat_file(self._path(key), start=start, end=start + size)
        if len(octets) != size:
            raise fault(errno.ESTALE, "was replaced while it was read", f"{self.url}/{key}")
        return octets

    def _still(self, key: str, identity: list[Any]) -> None:
        info = self._look(key)
        if info is None or _identity(info) != identity:
            raise fault(errno.ESTALE, "was replaced while it was read", f"{self.url}/{key}")

    def list(self, prefix: str) -> Keys:
        return sorted(key for key in self._below(prefix) if not BESIDE.fullmatch(key.rpartition("/")[2]))

    def _below(self, prefix: str, *, directories: bool = False) -> Keys:
        directory = self._path(checked(prefix)) if prefix else self._root
        if self._info(directory, prefix or None) is None:
            self._there()
            return []
        with self._told(prefix or None):
            try:
                names = self._names(directory, directories=directories)
            except FileNotFoundError as error:
                raise fault(errno.ESTALE, "changed while it was listed", f"{self.url}/{prefix}") from error
        return [name.removeprefix(f"{self._root}/") for name in names if name.startswith(f"{directory}/")]

    def _names(self, directory: str, *, directories: bool) -> Keys:
        """What cannot be listed must not be left out, as `find` does below its first directory in spite of on_error."""
        if self._buckets:
            return list(self._fs.find(directory, withdirs=directories, on_error="raise"))  # in one listing
        names, ahead = Keys(), [directory]
        while ahead:
            for entry in self._fs.ls(ahead.pop(), detail=True):
                within = entry["type"] == "directory"
                ahead += [entry["name"]] if within else []
                names += [entry["name"]] if directories or not within else []
        return names

    def remove_all(self, prefix: str) -> None:
        """Name by name: what removes all at once takes the letters *, ? and [ for patterns."""
        for key in self._below(checked(prefix)):
            with self._told(key), suppress(FileNotFoundError):
                self._fs.rm_file(self._path(key))
        if not self._buckets:
            for key in sorted([prefix, *self._below(prefix, directories=True)], reverse=True):
                with suppress(OSError):  # it is gone, or somebody writes there again
                    self._fs.rmdir(self._path(key))

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    @contextmanager
    def _told(self, key: str | None, *, made: bool = False) -> Iterator[None]:
        """Whatever a library raises is an OSError with a number and one line of text. `made`: what is missing to make
        an object is its bucket.
        """
        where = self.url if key is None else f"{self.url}/{key}"
        try:
            yield
        except OSError as error:
            if isinstance(error.filename, str) and error.filename.startswith(self.url):
                raise
            number = _number_of(error)
            number = errno.ENODEV if made and number == errno.ENOENT else number
            text = "there is no such object" if number == errno.ENOENT else error.strerror or str(error)
            raise fault(number, text or type(error).__name__, where) from cause_of(error)
        except NotImplementedError as error:
            raise fault(errno.EOPNOTSUPP, "the library cannot do that", where) from error
        except Exception as error:  # noqa: BLE001 - a library's own: there are as many kinds as libraries
            raise fault(_number_of(error), f"{type(error).__name__}: {error}", where) from cause_of(error)


def _find(place: Location) -> tuple[Any, str]:
    """The file system and the path of our root in it."""
    if place.scheme in BUCKETS:
        form, wrong = f"{place.scheme}://BUCKET/PREFIX", not place.container
    elif place.scheme in {"file", "local"}:
        form, wrong = f"{place.scheme}:///DIRECTORY", bool(place.container) or not place.prefix
    else:
        form, wrong = f"{place.scheme}://HOST/DIRECTORY", not place.prefix
    if wrong or "::" in str(place):
        raise CheckpointError(f"{place} names no place for objects: write {form}")
    try:
        fs, root = url_to_fs(str(place), skip_instance_cache=True)
    except ImportError as missing:
        raise CheckpointError(f"{place.scheme}:// needs a library: {one_line(str(missing))}") from None
    except Exception as error:  # noqa: BLE001 - a library's own; some look for credentials here
        raise CheckpointError(f"cannot use {place}: {one_line(str(error))}") from None
    return fs, str(root).rstrip("/")


def _number_of(error: Exception) -> int:
    """Of an error that has one, or that carries an HTTP status."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    if isinstance(error, FileNotFoundError):
        return errno.ENOENT
    if isinstance(error, PermissionError):
        return errno.EACCES
    if isinstance(error, TimeoutError):
        return errno.ETIMEDOUT
    for name in ("status_code", "status", "code"):
        status = getattr(error, name, None)
        if str(status).isdecimal():
            return number_of_status(int(str(status)))
    return errno.EIO


def _identity(info: dict[str, Any]) -> list[Any]:
    return [info.get(name) for name in IDENTITY]
