"""Following a log across rotation: renamed and made anew, copied and cut off, packed, once or several times.

After a rename its daemon goes on writing to the old file until it is told; so the old one is read on until it has been
silent for `QUIET` seconds and the new one has something in it. A log that was rotated while nobody looked is read on in
what the rotation left beside it, then what followed, in order. What could not be found is said (`lost`).
"""

import errno
import os
import re
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from pathlib import Path

from sickbay.agent.probes.one_file import CHUNK, LONGEST, PRINT, Data, OneFile, Plain, Spot, UnpackedFile, Worth, is_at

__all__ = ["CHUNK", "LONGEST", "FilePlace", "LogFile", "Spot", "Worth"]

QUIET = 60.0  # seconds of silence after which nobody is expected to write to a file that was moved away
MOST_OLD = 4  # files that were moved away and are read on; a daemon has one
LOOKED_AT = 20  # files beside ours, the newest of them
UNPACKED = 8  # of those that are packed: it takes a while
PACKED = (".gz",)
OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


class FilePlace(Spot):
    """How far a log was read. `older`: files that were moved away and may grow still. `through`: what was changed
    before has been read."""

    older: tuple[Spot, ...] = ()
    through: float = 0.0


class LogFile:
    """`generation` counts how often the file began anew, so that (generation, offset) names a line for ever.

    `told`: a place behind the first; what stands before it is handed out again as told. `rotated`: what a rotation left
    beside it is looked for. `worth`: only such lines are wanted.
    """

    def __init__(
        self,
        path: Path,
        place: FilePlace | None = None,
        *,
        told: FilePlace | None = None,
        rotated: bool = False,
        worth: Worth | None = None,
    ) -> None:
        self._path = path
        self._start = place or FilePlace()  # where we go on as long as nothing is open
        self._files: list[OneFile] = []  # oldest first; the last is the one that is written to
        self._through = self._start.through
        self._rotated = rotated
        self._worth = worth
        self._told = told
        self.generation, self.inode, self._told_to = self._start.generation, 0, 0.0  # of the line handed out last
        self.behind = False  # there is more to read at once
        self.lost: list[str] = []  # what could not be read, for whoever takes it away

    def was_told(self, offset: int) -> bool:
        """Of the line that was handed out last, and begins there."""
        return offset < self._told_to

    @property
    def place(self) -> FilePlace:
        """Behind all that was handed out, by us or by an earlier run."""
        if not self._files:
            return self._told or self._start
        return self._place(lambda file: file.behind_told)

    @property
    def rereading(self) -> bool:
        """Whether lines that an earlier run has told are still ahead."""
        return self._told is not None or any(file.rereading for file in self._files)

    def _place(self, spot_of: Callable[[OneFile], Spot | None]) -> FilePlace:
        *older, newest = self._files
        spot = spot_of(newest) or newest.spot
        return FilePlace(
            offset=spot.offset, generation=spot.generation, inode=spot.inode, tail=spot.tail, head=spot.head,
            older=tuple(its for file in older if (its := spot_of(file)) is not None),
            through=self._through if newest.unread else max(self._through, newest.mtime),
        )  # fmt: skip

    def lines(self) -> Iterator[tuple[int, str]]:
        """Whole lines that are new: where each began, and its text. Call again while `behind`."""
        self.behind = False
        try:
            if not self._files and not self._resume():
                return
            while (yield from self._new_lines()) or (not self.behind and self._replaced()):
                pass
        except OSError:
            self.close()  # a directory, or a disk that fails: the next time everything is opened anew
            raise

    def _forget(self) -> None:
        for file in self._files:
            file.close()
        self._files.clear()

    def close(self) -> None:
        told = self.place if self.rereading else None
        if self._files:
            self._start = self._place(lambda file: file.spot)
        self._told = told
        self._forget()

    # --- what is open now
    def _new_lines(self) -> Generator[tuple[int, str], None, bool]:
        """Returns whether there are other files now."""
        for file in list(self._files):
            self.generation, self.inode, self._told_to = file.generation, file.inode, file.told
            unread = file.seen if file is self._files[-1] and file.filled_anew() else 0
            empty, before = not file.end and not file.seen, file.mtime
            if file.cut_off():
                self._cut_off(file)
                return True
            # Of an empty file nothing tells whether it was filled, copied and cut off since, but that there is a copy.
            if empty and file is self._files[-1] and file.mtime != before and self._at_path(file):
                self._through = max(self._through, before)
                if self._begin_between(file):
                    return True
            if unread:
                if self._begin_between(file):
                    return True
                file.was_told_to(Spot())
                self.lost.append(f"{self._path} was cut off {unread} bytes before we had read it to its end")
            yield from file.lines()
            if file.behind:
                self.behind = True
                return False  # what was written first is read first
            if file is not self._files[-1] and self._over(file):
                yield from file.last_line()
                self._drop(file)
        return False

    def _over(self, file: OneFile) -> bool:
        return file.final or (self._files[-1].seen > 0 and time.monotonic() - file.grew > QUIET)

    def _drop(self, file: OneFile) -> None:
        self._through = max(self._through, file.mtime)
        self._files.remove(file)
        file.close()

    def _cut_off(self, file: OneFile) -> None:
        if file is not self._files[-1]:
            self._drop(file)
            return
        spot, unread = file.spot, file.seen - file.end
        self._through = max(self._through, file.mtime)
        self._files.remove(file)
        if self._take_up(spot, file.partial):
            self._files[-1].told_as(file)
        elif unread > 0:
            self.lost.append(f"{self._path} was cut off {unread} bytes before we had read it to its end")
        self._begin(file.data, spot.generation)

    def _at_path(self, file: OneFile) -> bool:
        with suppress(FileNotFoundError):
            found = self._path.stat()
            return (found.st_ino, found.st_dev) == (file.inode, file.device)
        return False

    def _replaced(self) -> bool:
        """Whether another file has our name now. It is read next, after what came between it and ours."""
        newest = self._files[-1]
        if self._at_path(newest):
            return False
        try:
            data = Plain(self._path)
        except FileNotFoundError:
            return False  # moved away, and nothing in its place yet: the old one may still grow
        found = data.stat()
        if found.st_ino == newest.inode and is_at(data, newest.spot, newest.partial):
            newest.close()  # its file system was mounted anew
            newest.data, newest.device = data, found.st_dev
            return False
        self._begin(data, newest.generation, newest)
        return True

    def _begin(self, data: Data, generation: int, before: OneFile | None = None, *, unread: bool = False) -> None:
        """This file is our log from now on; `before`: the one that was. `unread`: of that one nothing was read, and it
        is the first of what came between: lines of it that were told, and not kept as read, have its name."""
        if before is not None:
            self._through = max(self._through, before.data.stat().st_mtime)
        older = self._between(data.stat().st_ino, generation)
        if older and unread:
            generation -= 1
            for file in older:
                file.generation -= 1
        self._files += [*older, OneFile(data, Spot(generation=generation + len(older) + 1), self._worth)]
        for file in [old for old in self._files[:-1] if not old.final][:-MOST_OLD]:
            if not file.unread:
                self._drop(file)

    def _begin_between(self, file: OneFile) -> bool:
        """What came between is read before this file, of which nothing was read yet: the first of it was this file."""
        older = self._between(file.inode, file.generation - 1)
        file.generation += len(older)
        if older:
            older[0].told_as(file)
            file.was_told_to(Spot())
        self._files[-1:-1] = older
        return bool(older)

    # --- what a rotation left
    def _resume(self) -> bool:
        """Where the run before, or we before a trouble, stopped. False: there is no such file."""
        try:
            data: Data = Plain(self._path)
        except FileNotFoundError:
            return False
        try:
            self._go_on(data, self._start)
        except OSError:
            data.close()
            self._forget()  # and the start stays what it is
            raise
        told, self._told = self._told, None
        if told is None or self._knows(told):
            return True
        # What came between was taken away: then what waited is lost, and nothing else.
        self._forget()
        self.lost.clear()
        self._start, self._through = told, told.through
        return self._resume()

    def _knows(self, told: FilePlace) -> bool:
        """Whether this place is in a file that is open. All before it has been told."""
        places = [(spot, self._file_of(spot)) for spot in told.older]
        sought = {spot.generation for spot in self._start.older}  # and not found anywhere beside our log
        gone = [spot for spot, file in places if file is None and spot.generation in sought]
        older = [(spot, file) for spot, file in places if spot not in gone]
        known = [file for _, file in older]
        # Of an empty one nothing tells which it is: what was changed since, and is none of the others, was not read.
        fresh = (file for file in self._files if file not in known and file.mtime > told.through)
        newest = self._file_of(told) if told.offset else next(fresh, self._files[-1])
        if newest is None or None in known:
            return False
        for file in self._files[: self._files.index(newest)]:
            file.was_told_to(None)
        for spot, its in [*older, (told, newest)]:
            if its is not None:
                its.was_told_to(spot)
        for spot in gone:
            self._miss(spot)
        for file in self._files:
            file.generation += told.generation - newest.generation
        return True

    def _file_of(self, spot: Spot) -> OneFile | None:
        known = (f for f in self._files if (_is_at(f.data, spot) if spot.offset else f.inode == spot.inode))
        return next(known, None)

    def _go_on(self, data: Data, place: FilePlace) -> None:
        found = data.stat()
        if not place.inode:
            self._through = max([self._through, *(stat.st_mtime for _, stat in self._siblings())])
            tail = data.pread(PRINT, max(0, place.offset - PRINT))[: place.offset]
            spot = Spot(offset=place.offset, tail=tail, head=data.pread(PRINT, 0)[: place.offset])
            self._files.append(OneFile(data, spot, self._worth))
            return
        for spot in place.older:
            if not self._take_up(spot):
                self._miss(spot)
        if found.st_ino == place.inode and found.st_size >= place.offset and is_at(data, place):
            self._files.append(OneFile(data, place, self._worth))
            if not place.offset:
                self._begin_between(self._files[-1])
            return
        taken = self._take_up(place)
        self._begin(data, place.generation, unread=not taken and not place.offset)
        if not taken and (place.offset or len(self._files) == 1):
            self._miss(place)

    def _miss(self, spot: Spot) -> None:
        if self._rotated and self._told is None:  # else what counts is behind it
            where = f"what stood in it behind byte {spot.offset} could not be found beside it"
            self.lost.append(f"{self._path} was rotated while nobody read it, and {where}")

    def _take_up(self, spot: Spot, partial: bytes = b"") -> bool:
        """The file that we read last lies beside ours, or a copy of it: it is read to its end first."""
        there = self._siblings() if self._rotated else []
        moved = [path for path, stat in there if stat.st_ino == spot.inode]
        # A copy is not older than what we read of its original.
        copies = [path for path, stat in there if path.suffix not in PACKED and stat.st_mtime >= int(self._through)]
        packed = [path for path, _ in there if path.suffix in PACKED][:UNPACKED]
        for path in [*moved, *(copies + packed if spot.offset else [])]:
            data = self._opened(path)
            if data is None:
                continue
            if _is_at(data, spot, partial):
                self._through = max(self._through, data.stat().st_mtime)
                self._files.append(OneFile(data, spot, self._worth, final=path not in moved))
                return True
            data.close()
        return False

    def _opened(self, path: Path) -> Data | None:
        """None: it cannot be read. Raises OSError where that is our own trouble, which passes."""
        try:
            return UnpackedFile(path) if path.suffix in PACKED else Plain(path)
        except OSError as error:
            if error.errno in OURS:
                raise
            return None

    def _between(self, ours: int, generation: int) -> list[OneFile]:
        """Files that a rotation left and that nobody has read, oldest first. The last may be written to still."""
        found = [OneFile(data, Spot(), self._worth, final=True) for data in self._unread(ours)]
        for number, file in enumerate(found, generation + 1):
            file.generation = number
            file.final = file.data.packed or file is not found[-1]
        return found

    def _unread(self, ours: int) -> Iterator[Data]:
        known = {ours, *(file.inode for file in self._files)}
        there = self._siblings() if self._rotated else []
        times = {path: stat.st_mtime for path, stat in there}
        for path, stat in reversed(there):
            # One that is just being packed: the original, which goes when that is done, is what is read.
            packing = path.suffix in PACKED and times.get(path.with_suffix(""), stat.st_mtime) < stat.st_mtime
            if stat.st_mtime > self._through and stat.st_ino not in known and not packing:
                data = self._opened(path)
                self._through = stat.st_mtime
                if data is None:
                    self.lost.append(f"{path} cannot be read")
                elif any(file.offset and _is_at(data, file.spot) for file in self._files):
                    data.close()  # a copy of what we are reading
                else:
                    yield data

    def _siblings(self) -> list[tuple[Path, os.stat_result]]:
        """What a rotation may have made of our log, newest first."""
        name, stem, suffix = (re.escape(part) for part in (self._path.name, self._path.stem, self._path.suffix))
        turned = re.compile(rf"(?:{name}|{stem})[-._](?:\d[-._\dT]*?|old|bak)(?:{suffix})?(?:\.gz)?")
        found = []
        with suppress(OSError):
            for path in self._path.parent.iterdir():
                if turned.fullmatch(path.name):
                    with suppress(OSError):
                        found.append((path, path.stat()))
        return sorted(found, key=lambda each: each[1].st_mtime, reverse=True)[:LOOKED_AT]


def _is_at(data: Data, spot: Spot, partial: bytes = b"") -> bool:
    """Of a file that may be half packed yet, or garbage."""
    try:
        return is_at(data, spot, partial)
    except OSError:
        return False
