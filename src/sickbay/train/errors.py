"""What can go wrong with checkpoints.

CheckpointError
├── AlreadyBegun   another run has taken this attempt's number
├── Superseded     a later attempt has begun: nothing that this one saves would ever be read
└── Unreadable     what is on the disk could not be looked at, so nobody knows whether it is whole
"""


class CheckpointError(RuntimeError):
    """One line that says what to do."""


class AlreadyBegun(CheckpointError):  # noqa: N818  # it is a state of the directory, in the words of the design
    """Another run has taken this attempt's number."""


class Superseded(CheckpointError):  # noqa: N818
    """A later attempt has begun: nothing that this one saves would ever be read."""


class Unreadable(CheckpointError):  # noqa: N818
    """What is on the disk could not be looked at: that is neither "there is nothing" nor "it is corrupt"."""
