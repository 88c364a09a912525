"""The agent's own words on stderr: one line, whoever reads it or not."""

import sys
from contextlib import suppress


def complain(text: str) -> None:
    """Never raises: a journal that was restarted answers EPIPE, and that is no reason to stop watching a node."""
    line = "".join(sign if sign.isprintable() else " " for sign in text)
    with suppress(OSError, ValueError, AttributeError):
        print(f"agent: {line[:1000]}", file=sys.stderr, flush=True)
