"""Texts that people paste when they ask for help, each kind with its reader."""

from collections.abc import Iterable
from typing import Any, ClassVar, Protocol

from sickbay.model.sign import Sign


class Document(Protocol):
    """Reads one kind of text, wherever in a stream it stands: a bug report is many of them, one behind the other.

    It gets every line that matters to it and tells by itself where its text begins and ends. Its memory is bounded, no
    line makes it raise, and no line costs it more than time in proportion to the line's length.
    """

    # A line that begins its text has one of these in it, in any case of letters. A long stream is searched for them
    # first:
    # a line without any is not even looked at, unless some document goes on there.
    ANCHORS: ClassVar[tuple[str, ...]]

    @property
    def owns(self) -> bool:
        """The line that it was given last is part of its text: nobody else is to read a meaning into it."""
        ...

    def read(self, number: int, line: str) -> Iterable[Sign]:
        """One line, without its end, and its number from 1."""
        ...

    def value(self, number: int, value: Any) -> Iterable[Sign]:
        """A whole JSON document that began in this line; whoever does not know it says nothing."""
        ...

    def end(self) -> Iterable[Sign]:
        """The text is over: what could only be told at the end."""
        ...
