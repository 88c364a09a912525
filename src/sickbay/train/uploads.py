"""Write-behind: checkpoints that are whole on the nodes' own disks are uploaded to where they are durable.

All ranks must upload the same step, and the storage sets the pace: whenever rank 0 is free it asks for the newest that
it holds (`upload-<k>.json`), each rank uploads its share of that, and rank 0 commits it. Steps in between are left out.
A checkpoint of an older attempt that this one goes on from, and that was near only, is uploaded first, as a checkpoint
of this attempt.
"""

import errno
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Condition, Event, Thread
from typing import Any

from sickbay.train import beats, disk
from sickbay.train.committing import Committing
from sickbay.train.errors import CheckpointError, FailureStreak, SourceDamaged, Superseded, is_transient
from sickbay.train.far import key_of, store_of
from sickbay.train.latest_only import LatestOnly
from sickbay.train.layout import (
    CheckpointName,
    Manifest,
    RankPart,
    failed_path,
    is_committed,
    part_path,
    step_path,
    upload_path,
)
from sickbay.train.near import Near
from sickbay.train.objects import Objects
from sickbay.train.pruning import is_newest
from sickbay.train.sharing import allowance, shares_of

log = logging.getLogger("sickbay.train")
AGAIN = (1.0, 5.0, 20.0)  # seconds after which a rank tries its upload again, before it says that it has failed
SOON = 0.02
ASKS = 1.0  # seconds between two looks for what rank 0 asks, while something waits for it
IDLE = 5.0  # … and while nothing does
MAY_BE_ASKED = 10 * ASKS  # seconds for which a rank that has gone ahead keeps what rank 0 may have asked for


class Uploads:
    """One rank's uploads, in a thread of their own."""

    def __init__(
        self,
        at: Committing,
        near: Near,
        far: str,
        *,
        resumed: Manifest | None,
        committed: Callable[[CheckpointName], None],
        drops_older: bool = True,
    ) -> None:
        self._at, self.near, self._far, self._rank = at, near, far, at.rank
        self._resumed = resumed if resumed is not None and resumed.far is None else None
        self.saved_again = self._resumed.place.step if self._resumed else None  # which step of ours that becomes
        self._committed, self._drops_older = committed, drops_older
        self._news = Condition()
        self._held: dict[int, RankPart] = {}  # by step
        self._since: dict[int, float] = {}
        # Steps of ours: saved or left out; saved; asked for; of which the upload has ended, well or not.
        self._reached = self._newest = self._asked = self._ended = -1
        self._durable = False
        self._number = 0
        self._pause = SOON
        self._error: Exception | None = None
        self._failed = FailureStreak()
        self.thinning = LatestOnly("sickbay-near", self._thin_out)
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="sickbay-upload", daemon=True)
        self._thread.start()

    # --- the thread that trains, and the one that saves

    def offer(self, step: int, part: RankPart | None) -> None:
        """This rank has saved a step on its node; None: it could not, or left it out."""
        with self._news:
            self._reached = max(self._reached, step)
            if part is not None:
                self._newest = step
                self._held[step], self._since[step] = part, time.monotonic()
            self._news.notify_all()
        self.thinning.offer(step)

    @property
    def _size(self) -> int:
        return sum(one.size for part in self._held.values() for one in part.files.values())

    @property
    def busy_with(self) -> set[CheckpointName]:
        """What must stay on the node: what is uploaded, and what rank 0 may have asked for a moment ago."""
        now = time.monotonic()
        with self._news:
            recent = {step for step, since in self._since.items() if now - since < MAY_BE_ASKED}
            under_way = {self._asked} if self._ended < self._asked else set()
            return {CheckpointName(self._at.attempt, step) for step in under_way | recent}

    def finish(self, within: float | None = None) -> None:
        """Until what this rank saved last is durable; where it has saved nothing, what it went on from.

        Raises what went wrong with it. Seconds; None: with patience.
        """
        with self._news:
            newest, size = self._newest, 2 * self._size
        step = self.saved_again if newest < 0 else newest
        if step is None:
            return self._raise_error()
        began, most = time.monotonic(), (self._at.patience if within is None else within) + allowance(size)
        while True:
            with self._news:
                self._news.wait_for(partial(self._has_ended, newest), timeout=ASKS)
                ended = self._has_ended(newest)
                place = CheckpointName(self._at.attempt, max(step, self._ended))
            if ended or isinstance(self._error, Superseded):
                self._raise_error()
            if ended and (self._rank == 0 or is_committed(self._at.directory, place)):
                return None
            self._at.check_fence()
            if disk.exists(failed_path(self._at.directory, place, 0)):
                raise CheckpointError(f"{place} was not saved: rank 0 could not; its own error says why")
            if ended:  # here; rank 0 waits for the others before it commits
                self._stopping.wait(ASKS / 10)
            if not self._thread.is_alive() or time.monotonic() - began > most:
                raise CheckpointError(f"{place} is on the nodes' own disks only: it was not uploaded within {most:g} s")

    def _has_ended(self, newest: int) -> bool:
        """Whether this rank's share is uploaded, or given up. What it went on from is the first of all."""
        return self._resumed is None and self._ended >= newest

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _thin_out(self, _step: int) -> None:
        """Drop older steps near, unless a younger attempt may go on from one of them.

        What goes is chosen before the fence is looked at: a younger one looks at this node after its fence is there.
        """
        with suppress(OSError, CheckpointError):
            surplus = self.near.surplus(self.busy_with)
            if surplus and is_newest(self._at.directory, self._at.attempt):
                self.near.drop(surplus)
            elif surplus:
                self._check_over()

    def _check_over(self) -> None:
        try:
            self._at.check_fence()
        except Superseded as over:
            with self._news:
                self._error = over
                self._news.notify_all()

    def stop(self) -> None:
        self.thinning.stop()
        self._stopping.set()
        self._at.giving_up.set()
        with self._news:
            self._news.notify_all()
        self._thread.join(1.0)

    def hopeless(self, failures: int) -> bool:
        """Whether the training must be told by an error, as nothing becomes durable any more."""
        return self._failed.exceeds(failures) or isinstance(self._error, Superseded) or not self._thread.is_alive()

    def raise_last(self) -> None:
        error, self._error = self._error, None
        self._failed.reset()
        raise error or CheckpointError("nothing is uploaded any more: its thread has ended, the log says why")

    # --- the thread that uploads

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                asked = self._ask() if self._rank == 0 else self._asked_for()
            except (OSError, ValueError, CheckpointError) as why:  # the directory cannot be reached: it is asked again
                log.warning("nothing is uploaded at the moment: %s", why)
                self._stopping.wait(IDLE)
                continue
            if asked is None:
                continue
            place, resumed = CheckpointName(self._at.attempt, asked["step"]), asked["resumed"]
            self._upload(place, self._resumed if resumed else None, durable=asked["durable"])
            if isinstance(self._error, Superseded):
                return

    def _ask(self) -> dict[str, Any] | None:
        """Rank 0: the newest that it holds, for all ranks to upload."""
        with self._news:
            first = self._resumed is not None
            if not first:
                self._news.wait_for(lambda: self._stopping.is_set() or max(self._held, default=-1) > self._asked, IDLE)
                if max(self._held, default=-1) <= self._asked:
                    return None
            step = self._resumed.place.step if first and self._resumed else max(self._held)
        asked = {"step": step, "resumed": first, "durable": self._durable}
        self._number = disk.ask(partial(upload_path, self._at.directory, self._at.attempt), self._number, asked) + 1
        if not first:
            self._begin(step)
        return asked

    def _asked_for(self) -> dict[str, Any] | None:
        """The others: what rank 0 asks for next, once this rank has come so far."""
        asked = disk.read(upload_path(self._at.directory, self._at.attempt, self._number))
        if asked is None:
            with self._news:
                waits, seen = self._resumed is not None or max(self._held, default=-1) > self._asked, self._newest
                self._pause = min(self._pause * 1.5, ASKS) if waits else SOON
                self._news.wait_for(
                    lambda: self._stopping.is_set() or self._newest > seen, self._pause if waits else IDLE
                )
            return None
        with self._news:
            self._news.wait_for(
                lambda: self._stopping.is_set() or asked["resumed"] or self._reached >= asked["step"], IDLE
            )
            if not asked["resumed"] and self._reached < asked["step"]:
                return None
        self._number += 1
        if not asked["resumed"]:
            self._begin(asked["step"])
        return asked

    def _begin(self, step: int) -> None:
        with self._news:
            self._asked, self._pause = step, SOON
            self._held = {number: part for number, part in self._held.items() if number >= step}
            self._since = {number: since for number, since in self._since.items() if number >= step}

    def _upload(self, place: CheckpointName, resumed: Manifest | None, *, durable: bool) -> None:
        error = self._tried(place, resumed)
        if durable or (self._rank == 0 and error is None):
            self._durable = True
            if self._drops_older and self.near.has_older() and is_newest(self._at.directory, self._at.attempt):
                self.near.drop_older()
        with self._news:
            self._error = error
            if error is None:
                self._failed.reset()
            else:
                self._failed.fail()
            if resumed is None:
                self._ended = place.step
            self._resumed = None
            self._news.notify_all()
        self.thinning.offer(place.step)  # the next save may need the room
        if error is not None and not self._stopping.is_set():
            log.warning("%s", error)
            if beats.tells_of(str(self._at.directory)):
                beats.save_failed(place.step, str(error))
            self._at.tell_failed(place)

    def _tried(self, place: CheckpointName, resumed: Manifest | None) -> Exception | None:
        why: Exception | None = None
        for pause in (*AGAIN, None):
            try:
                self._at.check_fence()
                self._send_all(place, resumed)
                if self._rank == 0:
                    self._at.commit(place, partial(_as_it_was, far=self._far, like=resumed))
                    self._committed(place)
            except Superseded as reason:
                return reason
            except Exception as error:  # noqa: BLE001  # it is told, and raised in the thread that trains
                why = CheckpointError(f"{place} is on the nodes' own disks only: {error}")
                why.__cause__ = error
                if pause is None or not is_transient(error) or self._stopping.wait(pause):
                    break
            else:
                return None
        return why

    def _send_all(self, place: CheckpointName, resumed: Manifest | None) -> None:
        disk.make_in(step_path(self._at.directory, place))
        if disk.exists(part_path(self._at.directory, place, self._rank)):
            return  # by an earlier try
        if resumed is None:
            part = self._held.get(place.step)
            if part is None:
                raise CheckpointError(f"rank {self._rank} did not save it on its node")
            here = step_path(self.near.root, place)
            sources: dict[str, list[disk.File]] = {name: [here / name] for name in part.files}
        else:
            sizes = {name: one.size for name, one in resumed.files.items()}
            mine = shares_of(sizes, self._at.world_size)[self._rank]
            part = RankPart({name: resumed.files[name] for name in mine})
            sources = {name: self.near.copies(resumed, name) for name in part.files}
        for name, expected in part.files.items():
            self._send(place, name, expected, sources[name])
        self._at.put(place, part)

    def _send(self, place: CheckpointName, name: str, expected: disk.Sum, sources: list[disk.File]) -> None:
        why: Exception = FileNotFoundError(errno.ENOENT, f"{name} is on none of the nodes that take part")
        for source in sources:
            try:
                if self._far:
                    _to_store(store_of(self._far), key_of(place, self._at.run, name), source, expected)
                else:
                    _to_directory(step_path(self._at.directory, place) / name, source, expected)
            except (OSError, SourceDamaged) as error:
                why = error
            else:
                return
        raise why


def _as_it_was(manifest: Manifest, *, far: str, like: Manifest | None) -> Manifest:
    """`like`: what the parts must add up to, where another attempt saved it."""
    if like is None:
        return manifest._replace(far=far)
    if manifest.files != like.files:
        raise CheckpointError(f"{manifest.place} was not saved: its parts are not those of {like.place}")
    return manifest._replace(far=far, world_size=like.world_size, forms=like.forms)


def _to_directory(target: Path, source: disk.File, expected: disk.Sum) -> None:
    target.unlink(missing_ok=True)  # our own, of a try that failed after it
    if disk.write(target, chunks_of(source)) != expected:
        target.unlink(missing_ok=True)
        raise _differs(source)


def _to_store(store: Objects, key: str, source: disk.File, expected: disk.Sum) -> None:
    if isinstance(source, Path):
        store.put_file(key, source, expected)
    else:
        store.put(key, chunks_of(source), expected)


def _differs(source: disk.File) -> OSError:
    return OSError(errno.EIO, f"{source} is not what was saved there any more")


def chunks_of(source: disk.File) -> Iterator[memoryview]:
    """What it holds, piece by piece; the piece before is over when the next is asked for."""
    buffer = bytearray(disk.CHUNK)
    with disk.opened(source) as file:
        while size := file.readinto(buffer):
            yield memoryview(buffer)[:size]
