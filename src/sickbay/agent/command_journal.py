"""The write-ahead journal of commands: which were begun, and what was answered."""

import os
from collections import OrderedDict
from pathlib import Path

import msgspec

from sickbay.model.noun import Noun
from sickbay.model.protocol import CommandResult
from sickbay.wire.files import replace_file, sync_directory

REMEMBERED = 500  # commands whose answer is known; one that has none yet is never forgotten
LINES = 4 * REMEMBERED  # in the file, before what is not remembered is left out of it


class JournaledCommand(Noun):
    """A line of the journal: a command that was begun (no result yet), or what was answered.

    `leaving`: the boot that was about to be ended by it; whether it was shows the boot that the next run finds.
    """

    id: str
    result: CommandResult | None = None
    text: str = ""
    leaving: str = ""


class CommandJournal:
    """On disk when `note` returns. `trouble`: why it cannot be read; then nobody knows what was carried out."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines = 0
        self.known: OrderedDict[str, JournaledCommand] = OrderedDict()
        self.trouble = ""
        try:
            lines = path.read_bytes().split(b"\n")
        except FileNotFoundError:
            lines = []
        except OSError as error:
            lines, self.trouble = [], f"its journal cannot be read: {error.strerror or error}"
        for line in filter(None, lines):
            self._lines += 1
            try:
                entry = msgspec.json.decode(line, type=JournaledCommand)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                continue  # cut off by the death that it did not survive: then the command was not begun
            self._remember(entry)

    def _remember(self, entry: JournaledCommand) -> None:
        self.known[entry.id] = entry
        self.known.move_to_end(entry.id)
        # What has no answer yet is the very thing to be remembered.
        old = (known.id for known in list(self.known.values()) if known.result)
        while len(self.known) > REMEMBERED and (name := next(old, None)) is not None:
            del self.known[name]

    def note(self, entry: JournaledCommand) -> None:
        """Raises OSError."""
        if self.trouble:
            raise OSError(self.trouble)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        begins = not self._path.exists()
        handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            # It begins with a newline: half a line that a full disk left behind must not swallow this one.
            data = b"\n" + msgspec.json.encode(entry) + b"\n"
            if os.write(handle, data) != len(data):
                raise OSError("the disk took only a part of it")
            os.fsync(handle)
        finally:
            os.close(handle)
        if begins:
            sync_directory(self._path.parent)
        self._remember(entry)
        self._lines += 1
        if self._lines > LINES:
            self.compact()

    def compact(self) -> None:
        """Only what is remembered, in a file that is replaced as a whole. Raises OSError."""
        if self.trouble:
            raise OSError(self.trouble)
        lines = [msgspec.json.encode(entry) for entry in self.known.values()]
        replace_file(self._path, b"\n".join(lines) + b"\n")
        self._lines = len(lines)
