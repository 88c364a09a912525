"""Background save with retry and back-off: one in flight at a time, counted and told to people when it fails."""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Event, Thread

from sickbay.train import beats, disk
from sickbay.train.committing import Committing
from sickbay.train.errors import CheckpointError, FailureStreak, Superseded, is_transient
from sickbay.train.layout import CheckpointName, Manifest, RankPart, part_path, step_path
from sickbay.train.sharing import allowance
from sickbay.train.uploads import Uploads

log = logging.getLogger("sickbay.train")
AT_EXIT = 60.0  # seconds that a script which ends without `wait` gives its last save, besides what its bytes take
GRACE = 10.0  # seconds that a save in flight has left when the script fails: other ranks may never come
AGAIN = (1.0, 5.0, 20.0)  # seconds after which a save that failed is tried again, before it is given up

Write = Callable[[Path], RankPart]  # makes this rank's files in a directory
Sure = Callable[[Manifest], None]  # what rank 0 makes sure of right before it commits; raises if it is not so


class Saves:
    """Saves of one rank, each in a thread of its own, and what follows them: uploads and copies."""

    def __init__(self, at: Committing, uploads: Uploads | None, committed: Callable[[CheckpointName], None]) -> None:
        self.at, self.uploads, self._committed = at, uploads, committed
        self.thread: Thread | None = None
        self.error: Exception | None = None  # of the last save
        self.size = 0  # bytes of the last save of this rank
        self._failed = FailureStreak()
        self._hurry = Event()  # the next save waits, or the end: nothing is tried again

    # --- the thread that trains

    def start(self, place: CheckpointName, write: Write, sure: Sure | None) -> bool:
        """False: there is no thread for it, which counts as a failure."""
        self._hurry.clear()
        self.thread = Thread(
            target=self._run, args=(place, write, sure), name=f"sickbay-save-{place.step}", daemon=True
        )
        try:
            self.thread.start()
        except RuntimeError as error:  # a limit of processes
            self.thread = None
            self.cannot_begin(place, error)
            return False
        return True

    def cannot_begin(self, place: CheckpointName, error: Exception) -> None:
        self.error = _named(place, error)
        log.warning("%s", self.error)
        self._fails(place)

    def ends_within(self, budget: float | None) -> bool:
        """Wait for the save in flight, which is not tried again. False: it has not ended in so many seconds."""
        if self.thread is not None:
            self._hurry.set()
            _join(self.thread, budget)
            if self.thread.is_alive():
                return False
            self.thread = None
        return True

    def raise_after(self, failures: int) -> None:
        """The last error, after more than so many saves in a row have failed, or once this attempt is over."""
        if self._failed.exceeds(failures) or isinstance(self.error, Superseded):
            self._raise()

    def _raise(self) -> None:
        error, self.error = self.error, None
        if error is not None:
            self._failed.reset()
            raise error

    def leave_out(self, place: CheckpointName, why: str) -> None:
        """People hear of it, and the other ranks need not wait for this rank's part."""
        self.tell_failed(place.step, why)
        self.at.tell_failed(place, near=self.uploads is not None)
        if self.uploads is not None:
            self.uploads.offer(place.step, None)

    def tell_failed(self, step: int, why: str) -> None:
        """People hear of it by the heartbeat."""
        if beats.tells_of(str(self.at.directory)):
            beats.save_failed(step, why)

    def wait(self, within: float | None = None) -> None:
        """Until the save in flight is done, and within so many seconds (None: with patience) uploaded."""
        if self.thread is not None:
            _join(self.thread)
            self.thread = None
        self._raise()
        if self.uploads is not None:
            self.uploads.finish(within)

    # --- the end

    @property
    def is_over(self) -> bool:
        """Nothing is in flight, and nothing will be uploaded."""
        return self.thread is None and self.uploads is None

    def finish(self) -> None:
        """The script ends without `wait`: its last save is finished all the same."""
        self._hurry.set()
        if self.thread is not None:
            began = time.monotonic()
            while self.thread.is_alive() and time.monotonic() - began < AT_EXIT + allowance(self.size):
                _join(self.thread, 1.0)
            if self.thread.is_alive():  # others may have ended before their part was written
                self.at.giving_up.set()
        try:
            self.wait(AT_EXIT)
        except CheckpointError as error:
            log.error("the last checkpoint was not saved: %s", error)  # noqa: TRY400  # one line, not a traceback
        self.close(leave=True)

    def give_up(self) -> None:
        """The script has failed."""
        if self.thread is not None:
            _join(self.thread, GRACE)
            self.at.giving_up.set()
            _join(self.thread, 1.0)
        self.close(leave=True)

    def close(self, *, leave: bool) -> None:
        """`leave`: what is on the nodes' own disks stays there, as the training may go on from it."""
        if self.uploads is not None:
            if leave:
                self.uploads.near.copying.wait(GRACE)
            self.uploads.stop()
            self.uploads.near.close(leave=leave)
            self.uploads = None

    # --- the thread that saves

    def _run(self, place: CheckpointName, write: Write, sure: Sure | None) -> None:
        for pause in (*AGAIN, None):
            try:
                if self.uploads is None or sure is not None:
                    self._save(place, write, sure)
                else:
                    self._save_near(self.uploads, place, write)
            except Exception as error:  # noqa: BLE001  # it is told, and raised in the thread that trains
                why = self._reason(place, error)
                self.error = why
                log.warning("%s", why)
                if pause is None or isinstance(why, Superseded) or not is_transient(error):
                    break
                if self._hurry.wait(pause) or self.at.giving_up.is_set():
                    break
            else:
                self.error = None
                self._failed.reset()
                return
        self._fails(place)

    def _fails(self, place: CheckpointName) -> None:
        self._failed.fail()
        self.leave_out(place, str(self.error))

    def _reason(self, place: CheckpointName, error: Exception) -> Exception:
        """A later attempt may have removed what we were writing: then that is the reason, not a missing file."""
        try:
            self.at.check_fence()
        except CheckpointError as reason:
            return reason
        return _named(place, error)

    def _save(self, place: CheckpointName, write: Write, sure: Sure | None) -> None:
        self.at.check_fence()
        directory = step_path(self.at.directory, place)
        disk.make_in(directory)
        if not disk.exists(part_path(self.at.directory, place, self.at.rank)):  # else it was written by an earlier try
            self.at.put(place, write(directory))
        if self.at.rank == 0:
            self.at.commit(place, partial(_made_sure, sure=sure))
            self._committed(place)

    def _save_near(self, uploads: Uploads, place: CheckpointName, write: Write) -> None:
        """Whole on this node: nothing is asked of another one. Uploads and copies follow in threads of their own."""
        near = uploads.near
        directory = near.directory_of(place)
        part = near.part_of(place)  # written by an earlier try
        if part is None:
            part = write(directory)._replace(run=self.at.run)
            near.put(place, part)
        uploads.offer(place.step, part)
        near.copying.offer((place, part))


def _join(thread: Thread, within: float | None = None) -> None:
    with suppress(RuntimeError):  # an interrupt came right before it was started
        thread.join(within)


def _made_sure(manifest: Manifest, *, sure: Sure | None) -> Manifest:
    if sure is not None:
        sure(manifest)
    return manifest


def _named(place: CheckpointName, error: Exception) -> Exception:
    """One line; what the system said stays as the cause."""
    if isinstance(error, CheckpointError):
        return error
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
    named = CheckpointError(f"{place} was not saved: {why}")
    named.__cause__ = error
    return named
