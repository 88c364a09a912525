"""The controller's own log (rotation): lines that a person can read safely, in a few parts of bounded size."""

import logging
from logging.handlers import RotatingFileHandler
from pathlib import Path

from sickbay.model.plain_text import plain_text

PARTS = 4


class _LogFile(RotatingFileHandler):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the standard library's name
        """A line that the disk does not take is lost: a page about each would only bury what is wrong."""


class _PlainLines(logging.Formatter):
    """People read it with `tail -f`: what a job wrote, and is quoted, must not reach their terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return plain_text(super().format(record))


def log_to(file: Path, most: int) -> logging.Handler:
    """`most`: bytes of all its parts together."""
    handler = _LogFile(file, maxBytes=most // PARTS, backupCount=PARTS - 1, delay=True)
    handler.setFormatter(_PlainLines("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logger = logging.getLogger("sickbay")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    return handler
