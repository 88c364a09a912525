"""A file or standard input → chunks of whole lines in UTF-8, however it was packed and encoded."""

import bz2
import codecs
import gzip
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

from sickbay.model.errors import BadInput

BLOCK = 256 * 1024
DAMAGE = (zlib.error, OSError, lzma.LZMAError, ValueError)
LONGEST = 64 * 1024  # of one line; the rest of a longer one is data
SOFT = b"\x0b\n"  # stands for a carriage return alone: a line's end that editors do not count
Notice = Callable[[str], None]

_NO_TEXT = (
    (b"PK\x03\x04", "a zip archive", "unpack it first"),
    (b"\x7fELF", "a program", "give a log or the output of a tool"),
    (b"\x89PNG", "a picture", "give the text itself"),
    (b"\xff\xd8\xff", "a picture", "give the text itself"),
    (b"%PDF", "a PDF", "give the text itself"),
    (b"LPKSHHRH", "a journal in its own form", "give the output of 'journalctl --file FILE -o short-iso'"),
    (b"SQLite format 3", "a database", "give a log or the output of a tool"),
    (b"7z\xbc\xaf'\x1c", "a 7z archive", "unpack it first"),
)
_ODD = bytes({*range(32), 127} - {9, 10, 11, 12, 13, 27, 8, 7, 14, 15, 0})
TOO_ODD = 0.3  # of what is looked at first


@contextmanager
def open_input(path: str, tell: Notice = lambda _: None) -> Iterator[Iterator[bytes]]:
    """Chunks of whole lines, each ending with a line's end. `tell` hears what is worth a word: a torn archive."""
    if path == "-":
        yield whole_lines(blocks_of(sys.stdin.buffer, "standard input", tell))
        return
    with _opened(path) as file:
        yield whole_lines(blocks_of(file, path, tell))


def _opened(path: str) -> BinaryIO:
    try:
        return Path(path).open("rb")
    except (OSError, ValueError) as error:
        what = getattr(error, "strerror", None) or str(error)
        raise BadInput(
            f"{path}: {what[:1].lower()}{what[1:]}; give the path of a text file, or - for standard input"
        ) from None


def blocks_of(file: BinaryIO, name: str, tell: Notice) -> Iterator[bytes]:
    """Text in UTF-8, without NULs; refuses what is no text at all."""
    whole: Any = file  # of a file of bytes the first can be seen without taking them
    blocks = _text(_unpacked(file if isinstance(file, BufferedReader) else BufferedReader(whole), name, tell))
    head = next(blocks, b"")
    _refuse_binary(head, name)
    yield head.replace(b"\0", b"")
    for block in blocks:
        yield block.replace(b"\0", b"") if b"\0" in block else block


def _refuse_binary(head: bytes, name: str) -> None:
    for magic, what, instead in _NO_TEXT:
        if head.startswith(magic):
            raise BadInput(f"{name}: {what}, no text; {instead}")
    sample = head[:65_536].replace(b"\0", b"")
    if head and not sample:
        raise BadInput(f"{name}: nothing but zero bytes; give a log or the output of a tool")
    odd = len(sample) - len(sample.translate(None, _ODD)) + sample.decode("utf-8", "replace").count("�")
    if odd > TOO_ODD * len(sample):
        raise BadInput(f"{name}: binary data, no text; give a log or the output of a tool")


# --- packing: members one behind the other, as `cat a.gz b.gz` makes them, are read as one


def _unpacked(file: BufferedReader, name: str, tell: Notice) -> Iterator[bytes]:
    try:
        packed = next((open_ for magic, open_ in _PACKED.items() if file.peek().startswith(magic)), None)
    except OSError as error:
        raise BadInput(
            f"{name}: cannot be read ({error.strerror}); give the path of a text file, or - for standard input"
        ) from None
    source = file if packed is None else packed(file, name)
    try:
        while block := source.read1(BLOCK):
            yield block
    except EOFError:
        tell(f"{name}: the archive is torn; what came before the tear was read")
    except DAMAGE as error:
        if packed is None:
            raise
        tell(f"{name}: the archive is damaged ({error}); what came before was read")


def _zstd(file: BufferedReader, name: str) -> Any:
    with suppress(ImportError):
        from compression import zstd  # type: ignore[import-not-found]  # Python 3.14 and later

        return zstd.ZstdFile(file)
    with suppress(ImportError):
        import zstandard  # type: ignore[import-not-found]

        return zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
    raise BadInput(
        f"{name}: packed with zstd, which this Python cannot unpack; write: zstd -dc FILE | sickbay diagnose -"
    )


_PACKED: dict[bytes, Callable[[BufferedReader, str], Any]] = {
    b"\x1f\x8b": lambda file, _: gzip.GzipFile(fileobj=file),
    b"BZh": lambda file, _: bz2.BZ2File(file),
    b"\xfd7zXZ\0": lambda file, _: lzma.LZMAFile(file),  # noqa: SIM115 - it ends with the file under it
    b"\x28\xb5\x2f\xfd": _zstd,
}


# --- encoding and lines


def _text(blocks: Iterator[bytes]) -> Iterator[bytes]:
    first = next(blocks, b"")
    if not first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        yield first.removeprefix(codecs.BOM_UTF8)
        yield from blocks
        return
    decoder = codecs.getincrementaldecoder("utf-16")("replace")
    yield decoder.decode(first).encode("utf-8", "replace")
    for block in blocks:
        yield decoder.decode(block).encode("utf-8", "replace")
    yield decoder.decode(b"", final=True).encode("utf-8", "replace")


def whole_lines(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Chunks that end with a line's end. A line without an end is kept up to LONGEST; the rest of it is dropped."""
    rest, cut = b"", False
    for block in blocks:
        if cut:
            ends = [at for at in (block.find(b"\n"), block.find(b"\r")) if at >= 0]
            if not ends:
                continue
            text, cut = rest + block[min(ends) :], False
        else:
            text = rest + block
        held = b"\r" if text.endswith(b"\r") else b""  # its other half may be in the next block
        text = text.removesuffix(held) if held else text
        if b"\r" in text:
            text = text.replace(b"\r\n", b"\n").replace(b"\r", SOFT)
        end = text.rfind(b"\n") + 1
        if end:
            yield text[:end]
        rest = text[end:] + held
        if len(rest) > LONGEST:
            rest, cut = rest[:LONGEST], True
    if rest:
        yield rest.removesuffix(b"\r") + b"\n"
