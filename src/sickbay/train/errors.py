"""What can go wrong with checkpoints.

CheckpointError
├── NotOurs        another job saves, or saved, where this one would begin
├── NoSuchStep     the step that a person asked for cannot be gone on from
├── AlreadyBegun   another process has taken this attempt's number, or this rank's place in it
├── Superseded     a later attempt has begun: nothing that this one saves would ever be read
├── SourceDamaged  a file that was to be stored elsewhere is no longer what was written: nothing of it was stored
└── Unreadable     what is on the disk could not be looked at, so nobody knows whether it is whole
"""

import time

LASTING = 600.0  # seconds that failures must go on for: room is made on a full disk, a server comes back
RESTARTED_IN_PLACE = 87  # how a rank ends that finds its own place taken: its whole attempt must be started anew


class CheckpointError(RuntimeError):
    """One line that says what to do."""


class AlreadyBegun(CheckpointError):  # noqa: N818  # it is a state of the directory, in the words of the design
    """Another process has taken this attempt's number, or this rank's place in it."""


class NotOurs(CheckpointError):  # noqa: N818
    """The directory holds the checkpoints of a job that this one does not continue: weights are never mixed."""


class NoSuchStep(CheckpointError):  # noqa: N818
    """The step that a person wants to go on from is not there, or not whole."""


class Superseded(CheckpointError):  # noqa: N818
    """A later attempt has begun: nothing that this one saves would ever be read."""


class Unreadable(CheckpointError):  # noqa: N818
    """What is on the disk could not be looked at: that is neither "there is nothing" nor "it is corrupt"."""


class SourceDamaged(CheckpointError):  # noqa: N818
    """A file that was to be stored elsewhere is no longer what was written: nothing of it was stored."""


def is_transient(error: Exception) -> bool:
    """What the system said, of a disk or a server: it may say something else in a while."""
    return isinstance(error.__cause__ if isinstance(error, Unreadable) else error, OSError)


class FailureStreak:
    """Consecutive failures, counted and timed, until a success resets them."""

    def __init__(self) -> None:
        self._count, self._since = 0, 0.0

    def fail(self) -> None:
        if not self._count:
            self._since = time.monotonic()
        self._count += 1

    def reset(self) -> None:
        self._count = 0

    def exceeds(self, most: int) -> bool:
        """More than so many, over a while that no passing trouble takes. With `most` 0 the first one is too many."""
        return self._count > most and (most == 0 or time.monotonic() - self._since >= LASTING)
