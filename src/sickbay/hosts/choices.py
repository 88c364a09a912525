"""What a state was last served with (persisted options): given once, it stays until something else is given."""

from contextlib import suppress
from pathlib import Path

import msgspec

from sickbay.model.noun import Noun
from sickbay.wire.files import replace_file

CHOICES = "choices.json"


class Choices(Noun):
    """Absolute paths; empty: never given."""

    notifiers: str = ""


def choices(state: Path) -> Choices:
    """What cannot be read was never chosen."""
    with suppress(OSError, ValueError, msgspec.MsgspecError):
        return msgspec.json.decode((state / CHOICES).read_bytes(), type=Choices)
    return Choices()


def keep_choices(state: Path, kept: Choices) -> None:
    replace_file(state / CHOICES, msgspec.json.encode(kept))
