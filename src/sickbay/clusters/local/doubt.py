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
        raise Transient(f"the local cluster cannot be read: {_words(error)}") from error


@contextmanager
def changing() -> Iterator[None]:
    """Half of it may be on disk. The same key again completes it, so doubt costs nothing."""
    try:
        yield
    except _TROUBLE as error:
        raise Unknown(f"the local cluster could not write everything down: {_words(error)}") from error


def _words(error: Exception) -> str:
    """The system's reason and the file, for people."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return str(error)
