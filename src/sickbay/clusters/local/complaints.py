"""Logging of a supervisor: what it has to say to people, one line each."""

import os
import time
from contextlib import suppress

_STDERR = 2


def complain(text: str) -> None:
    """Unbuffered, and lost if the disk is full: a complaint about the disk must not be the end of the node."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    with suppress(OSError):
        os.write(_STDERR, f"{stamp} {text}\n".encode())
