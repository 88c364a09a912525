"""`sickbay diagnose`: a file or standard input → what is wrong in it, each with the line that proves it."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from sickbay.model.symptom import Symptom
from sickbay.model.tables import Tables
from sickbay.signs.readers.input import Notice, open_input
from sickbay.signs.readers.stream import TextStream
from sickbay.signs.symptoms import name_all

EVERY = 8 * 1024 * 1024  # bytes after which it says how far it is


class DiagnosedText(NamedTuple):
    symptoms: tuple[Symptom, ...]
    lines: int
    read_as: tuple[str, ...]  # what people call the kinds of text that were found in it


def diagnose(
    path: str,
    tables: Tables,
    *,
    each: bool = False,
    notice: Notice = lambda _: None,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> DiagnosedText:
    """`notice` hears what is worth a word (a torn archive), `progress` the bytes and lines of a long text so far."""
    stream = TextStream(tables.diagnosis)
    with open_input(path, notice) as chunks:
        symptoms = name_all(stream.read(_counted(chunks, stream, progress)), tables, each=each)
    return DiagnosedText(symptoms, stream.lines, tuple(stream.formats))


def _counted(chunks: Iterable[bytes], stream: TextStream, progress: Callable[[int, int], None]) -> Iterator[bytes]:
    seen = said = 0
    for chunk in chunks:
        seen += len(chunk)
        if seen - said >= EVERY:
            said = seen
            progress(seen, stream.lines)
        yield chunk
