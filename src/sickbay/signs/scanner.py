"""A prefilter by literals: which lines of a large log can mean something at all.

Each rule knows a literal that every line of its kind contains. Looking for one literal in a chunk runs at the speed of
memory, looking for two hundred does not: so the words of a stretch are collected first, once each, which is a small
text, and only the literals whose words all occur there are looked for. Only lines with one are peeled and parsed.
"""

import re
from collections.abc import Iterable, Iterator
from functools import cache

STRETCH = 1 << 20  # bytes whose words are collected together
_WORDS = re.compile(rb"[A-Za-z]+")
_BLANKED = bytes(byte if chr(byte).isascii() and chr(byte).isalpha() else 32 for byte in range(256))
_RETURN = 13


def fewest(anchors: Iterable[str]) -> tuple[bytes, ...]:
    """Without those that contain another one: whoever has the longer has the shorter."""
    kept: list[bytes] = []
    for anchor in sorted({anchor.encode() for anchor in anchors if anchor}, key=len):
        if not any(shorter in anchor for shorter in kept):
            kept.append(anchor)
    return tuple(kept)


class Scanner:
    """Finds lines by literals: those of the kernel's readers, and whatever else the caller looks for."""

    def __init__(self, anchors: Iterable[str]) -> None:
        self._anchors = [(anchor, tuple(_WORDS.findall(anchor))) for anchor in fewest(anchors)]

    def lines(self, chunk: bytes) -> Iterator[tuple[int, int]]:
        """Start and end, without the line's end, of each line with a literal in it, in order."""
        begin, size = 0, len(chunk)
        while begin < size:
            cut = chunk.find(b"\n", min(begin + STRETCH, size))
            end = size if cut < 0 else cut + 1
            yield from self._stretch(chunk, begin, end)
            begin = end

    def _stretch(self, chunk: bytes, begin: int, end: int) -> Iterator[tuple[int, int]]:
        words = b" ".join(set(chunk[begin:end].translate(_BLANKED).split()))
        found: dict[int, int] = {}
        for anchor, needed in self._anchors:
            if not all(word in words for word in needed):
                continue
            at = chunk.find(anchor, begin, end)
            while at >= 0:
                start = chunk.rfind(b"\n", begin, at) + 1 or begin
                stop = found.get(start)
                if stop is None:
                    stop = chunk.find(b"\n", at, end)
                    found[start] = stop = end if stop < 0 else stop
                at = chunk.find(anchor, stop, end)
        for start in sorted(found):
            stop = found[start]
            yield start, stop - 1 if stop > start and chunk[stop - 1] == _RETURN else stop


@cache
def _kernel_scanner() -> Scanner:
    from sickbay.signs.kernel import ANCHORS

    return Scanner(ANCHORS)


def lines_of_interest(chunk: bytes) -> Iterator[tuple[int, int]]:
    """The lines that `kernel.parse_line` could name. A chunk should end at a line's end."""
    return _kernel_scanner().lines(chunk)
