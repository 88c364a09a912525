"""Error translation: trouble with the files in the words of the ports."""

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from sickbay.model.errors import BadInput, Transient, Unknown

# BadInput: the room itself is not there (any more).
_TROUBLE = (OSError, msgspec.MsgspecError, BadInput)


@contextmanager
def reading() -> Iterator[None]:
    try:
        yield
    except _TROUBLE as error:
        raise Transient(f"the local cluster cannot be read: {error}") from error


@contextmanager
def changing() -> Iterator[None]:
    """Half of it may be on disk. The same key again completes it, so doubt costs nothing."""
    try:
        yield
    except _TROUBLE as error:
        raise Unknown(f"the local cluster could not write everything down: {error}") from error
