"""Readers of pasted texts, each for one kind of text; `stream.TextStream` sends every line of a mixture to all of them.

`diagnose.diagnose` is the one entry point for people. Else nobody knows a reader but
- the agent: `smi_xml`, for a machine without NVML, and `dcgm_diag`, `dcgm_trial`, `dcgm_health`, `exporter`, which read
  what DCGM answers;
- `signs.training_log`, the judge of a job's log: `training`, `unwrap`, `prose`.
"""

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from msgspec.structs import replace

from sickbay.model.sign import Sign

KEPT = 400  # characters of the line that proves a sign


class Document:
    """Reads one kind of text, wherever in a stream it stands: a bug report is many of them, one behind the other.

    It gets every line that matters to it and tells by itself where its text begins and ends. Its memory is bounded, no
    line makes it raise, and no line costs it more than time in proportion to the line's length.
    """

    # A line that begins its text has one of these in it, in any case of letters. A long stream is searched for them
    # first: a line without any is not even looked at, unless some document goes on there.
    ANCHORS: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        self.owns = False  # the line it was given last is part of its text: nobody else reads a meaning into it

    def read(self, number: int, line: str) -> Iterable[Sign]:
        """One line, without its end, and its number from 1."""
        raise NotImplementedError

    def value(self, number: int, value: Any) -> Iterable[Sign]:
        """A whole JSON document that began in this line; whoever does not know it says nothing."""
        del number, value
        return ()

    def end(self) -> Iterable[Sign]:
        """The text is over: what could only be told at the end."""
        self.owns = False
        return ()


def proven(signs: Iterable[Sign], number: int, line: str, kept: int = KEPT) -> Iterator[Sign]:
    """The signs with the line that proves them, as far as they do not say it themselves."""
    return (replace(sign, line=number, text=sign.text or line.strip()[:kept]) for sign in signs)
