"""What can go wrong with checkpoints.

CheckpointError
├── AlreadyBegun   another process has taken this attempt's number, or this rank's place in it
├── Superseded     a later attempt has begun: nothing that this one saves would ever be read
├── SourceDamaged  a file that was to be stored elsewhere is no longer what was written: nothing of it was stored
└── Unreadable     what is on the disk could not be looked at, so nobody knows whether it is whole
"""

RESTARTED_IN_PLACE = 87  # how a rank ends that finds its own place taken: its whole attempt must be started anew


class CheckpointError(RuntimeError):
    """One line that says what to do."""


class AlreadyBegun(CheckpointError):  # noqa: N818  # it is a state of the directory, in the words of the design
    """Another process has taken this attempt's number, or this rank's place in it."""


class Superseded(CheckpointError):  # noqa: N818
    """A later attempt has begun: nothing that this one saves would ever be read."""


class Unreadable(CheckpointError):  # noqa: N818
    """What is on the disk could not be looked at: that is neither "there is nothing" nor "it is corrupt"."""


class SourceDamaged(CheckpointError):  # noqa: N818
    """A file that was to be stored elsewhere is no longer what was written: nothing of it was stored."""


def may_pass(error: Exception) -> bool:
    """What the system said, of a disk or a server: it may say something else in a while."""
    return isinstance(error.__cause__ if isinstance(error, Unreadable) else error, OSError)
