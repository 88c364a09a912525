"""Which lines of a long text deserve to be read, at a small part of the cost of reading them.

Logs repeat themselves. With its digits masked a line is a template, and a template that once held nothing is not
looked at again. Templates in their turn are made of few words: a word is looked at once, for short pieces at least one
of which is in every anchor. Only a line with such a word in it is searched for the anchors themselves.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from enum import IntEnum
from functools import lru_cache
from itertools import accumulate

MASK = bytes.maketrans(b"123456789", b"000000000")
PIECE = 4
REMEMBERED, LONGEST = 40_000, 600  # templates, and the bytes of one
KNOWN, LONGEST_WORD = 200_000, 48  # words, and the bytes of one

# How common each letter is in logs, roughly; what is not listed is rare.
_COMMON = {byte: 0.1 / (1 + rank / 2) for rank, byte in enumerate(b" e0taoinsrlcdmpu.:=-/")}


def masked(word: str) -> bytes:
    return word.encode().lower().translate(MASK)


class Worth(IntEnum):
    """What an anchor makes of its line."""

    PERHAPS = 0  # the caller has the last word
    READ = 1
    WITH_NEXT = 2  # and so are the lines behind it


class Sieve:
    """`strong` words make a line and those behind it worth reading, `alone` the line, `weak` perhaps the line."""

    def __init__(self, strong: Iterable[str], weak: Iterable[str], alone: Iterable[str] = ()) -> None:
        self._worth = {masked(word): Worth.PERHAPS for word in weak}
        self._worth.update((masked(word), Worth.READ) for word in alone)
        self._worth.update((masked(word), Worth.WITH_NEXT) for word in strong)
        self._pieces = _pieces(frozenset(self._worth))
        self._harmless: set[bytes] = set()
        self._cold: set[bytes] = set()  # words without any piece
        self._hot: dict[bytes, frozenset[bytes]] = {}  # words with a piece, and the anchors that it stands for

    def sift(self, chunk: bytes) -> list[tuple[int, Worth]]:
        """Where lines begin that are worth reading, in order."""
        lines = chunk.translate(MASK).split(b"\n")
        lines.pop()
        harmless = self._harmless
        fresh = [place for place, line in enumerate(lines) if line not in harmless]
        if not fresh:
            return []
        templates = list({lines[place] for place in fresh})
        worth = self._judge(templates)
        if len(harmless) > REMEMBERED:
            harmless.clear()
        harmless.update(line for line in templates if line not in worth and len(line) <= LONGEST)
        starts = [0, *accumulate(len(line) + 1 for line in lines)]
        return [(starts[place], worth[lines[place]]) for place in fresh if lines[place] in worth]

    def forget(self, line: bytes) -> None:
        """It was looked at: nothing in it, nor in the same line with other digits."""
        if len(line) <= LONGEST:
            self._harmless.add(line.translate(MASK))

    def _judge(self, templates: Sequence[bytes]) -> dict[bytes, Worth]:
        worth = {line: Worth.WITH_NEXT for line in templates if _opens_json(line)}
        words = set(b"\n".join(templates).lower().split())
        self._learn(words - self._cold - self._hot.keys())
        here = self._hot.keys() & words
        if not here:
            return worth
        for line in templates:
            low = line.lower()
            hot = here.intersection(low.split())
            if hot and line not in worth:
                anchors = [anchor for anchor in frozenset().union(*map(self._hot.__getitem__, hot)) if anchor in low]
                if anchors:
                    worth[line] = max(map(self._worth.__getitem__, anchors))
        return worth

    def _learn(self, words: set[bytes]) -> None:
        if len(self._cold) > KNOWN or len(self._hot) > KNOWN:
            self._cold.clear()
            self._hot.clear()
        new = list(words)
        text = b" ".join(new)
        ends = list(accumulate(len(word) + 1 for word in new))
        found: dict[bytes, set[bytes]] = {}
        for piece, anchors in self._pieces:
            at = text.find(piece)
            while at >= 0:
                place = bisect_right(ends, at)
                found.setdefault(new[place], set()).update(anchors)
                at = text.find(piece, ends[place])
        self._hot.update((word, frozenset(anchors)) for word, anchors in found.items())
        self._cold.update(word for word in new if word not in found and len(word) <= LONGEST_WORD)


def _opens_json(line: bytes) -> bool:
    """A JSON document that begins here and does not end here."""
    if not line.startswith((b"{", b"[")):
        return False
    rest = line[1:].strip()
    return not rest or (rest[:1] in b'{["' and not rest.endswith((b"}", b"]")))


@lru_cache(maxsize=4)
def _pieces(words: frozenset[bytes]) -> list[tuple[bytes, tuple[bytes, ...]]]:
    """Few short and rare pieces, at least one of which is in every word, each with the words that it stands for."""
    holders: dict[bytes, set[bytes]] = {}
    within = {word: _parts(word) for word in words}
    for word, parts in within.items():
        for part in parts:
            holders.setdefault(part, set()).add(word)
    chosen: list[tuple[bytes, tuple[bytes, ...]]] = []
    cost = {piece: 1 + 30_000 * _rate(piece) for piece in holders}
    while holders:
        piece = max(holders, key=lambda piece: (len(holders[piece]) / cost[piece], piece))
        taken = tuple(sorted(holders[piece]))
        chosen.append((piece, taken))
        for word in taken:
            for part in within[word]:
                holders.get(part, set()).discard(word)
        holders = {piece: held for piece, held in holders.items() if held}
    return chosen


def _parts(anchor: bytes) -> set[bytes]:
    """All pieces of one size, none with a space in it: text is looked at word by word."""
    words = anchor.split()
    size = min(PIECE, max(map(len, words), default=0))
    return {word[at : at + size] for word in words for at in range(len(word) - size + 1) if size}


def _rate(piece: bytes) -> float:
    rate = 1.0
    for byte in piece:
        rate *= _COMMON.get(byte, 0.008)
    return rate
