"""Checkpoint of error counters: what each said last, kept for the next run of the agent within one boot.

What was told goes to disk after it is in the outbox (`Probe.told`): who dies in between tells it twice, never not.
"""

from contextlib import suppress
from pathlib import Path

import msgspec

from sickbay.model.noun import Noun
from sickbay.wire.files import replace_file

Counts = dict[str, int]  # counter → the last number that could be believed


class _Kept(Noun):
    boot: str
    at: float  # on the monotonic clock of that boot
    counts: dict[str, Counts]


class Remembered:
    """`counts`: by device. `boot`: empty where nobody knows which it is; then nothing is kept."""

    def __init__(self, file: Path, boot: str) -> None:
        self._file = file
        self._boot = boot
        before = _read(file) if boot else None
        here = before if before is not None and before.boot == boot else None
        self.at = None if here is None else here.at
        self.counts: dict[str, Counts] = {} if here is None else here.counts
        self._written = msgspec.json.encode(self.counts)

    def keep(self, now: float) -> None:
        written = msgspec.json.encode(self.counts)
        if not self._boot or written == self._written:
            return
        with suppress(OSError):  # a full disk: then the next run tells more again
            kept = _Kept(boot=self._boot, at=now, counts=self.counts)
            replace_file(self._file, msgspec.json.encode(kept), durable=False)
            self._written = written


def boot_in(file: str) -> str:
    """The boot that this file names; empty where it cannot be read."""
    try:
        return Path(file).read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _read(file: Path) -> _Kept | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=_Kept)
    except (OSError, msgspec.MsgspecError):
        return None
