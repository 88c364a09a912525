"""Stripping of control sequences (CSI, OSC, DCS …): what a program wrote must not move a reader's terminal.

Whole sequences go, with their parameters; lines and tabs stay, and a carriage return ends a line, as each state of a
progress bar is one.
"""

import re

_HELD_MOST = 4096  # characters of a sequence whose end has not come yet
# The 8-bit starts of OSC, DCS …. None stands within another: else each of a million without an end is looked for to
# the end of the text, and a job that writes them holds up the controller.
_BEGINS = r"\x90\x98\x9d\x9e\x9f"

_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor, erase
    rf"|(?:\x1b[\]PX^_]|[{_BEGINS}])[^\x07\x1b\x9c\n{_BEGINS}]*(?:\x07|\x1b\\|\x9c)"  # OSC, DCS …: title, clipboard
    r"|\x1b[ -/]*[0-~]"  # two or three characters: character sets, reset
)
_UNFINISHED = re.compile(
    rf"(?:(?:\x1b\[|\x9b)[0-?]*[ -/]*|(?:\x1b[\]PX^_]|[{_BEGINS}])[^\x07\x1b\x9c\n{_BEGINS}]*\x1b?|\x1b[ -/]*|\r)\Z"
)
_ENDS_LINE = re.compile(r"\r\n?")
# Single controls, and marks that turn the direction of what follows.
_CONTROL = dict.fromkeys([*range(9), *range(11, 32), *range(127, 160), *range(8234, 8239), *range(8294, 8298)])


def plain_text(text: str) -> str:
    """The same text where there is nothing to take out, which is nearly always."""
    if text.isprintable():
        return text
    return _ENDS_LINE.sub("\n", _SEQUENCE.sub("", text)).translate(_CONTROL)


class PlainStream:
    """Text in pieces: a sequence may begin in one and end in the next."""

    def __init__(self) -> None:
        self._held = ""

    def take(self, piece: str) -> str:
        text, self._held = self._held + piece, ""
        unfinished = _UNFINISHED.search(text, max(0, len(text) - _HELD_MOST))
        if unfinished is not None:
            text, self._held = text[: unfinished.start()], unfinished[0]
        return plain_text(text)

    def end(self) -> str:
        """What was held back, once nothing more comes."""
        text, self._held = self._held, ""
        return plain_text(text)
