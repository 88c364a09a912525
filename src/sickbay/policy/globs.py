"""Whether one glob matches everything that another one does. Exact, for the globs of `fnmatch`."""

import re
from collections.abc import Iterable
from fnmatch import translate

# Stands for every character that no pattern names; nobody writes it in a policy.
_OTHER = "\ufffe"
_PIECE = re.compile(r"\[!?\]?[^\]]*\]|.", re.DOTALL)
_RANGE = re.compile(r"(.)-(.)", re.DOTALL)

_PATIENCE = 20_000  # states; globs that need more are not compared, which refuses nothing

_Pieces = tuple[str, ...]
_State = frozenset[tuple[int, int]]  # (which pattern, how much of it has matched)


def covers(wide: Iterable[str], narrow: Iterable[str]) -> bool:
    """Every text that one of `narrow` matches is matched by one of `wide`."""
    wide, narrow = tuple(wide), tuple(narrow)
    if "*" in wide:
        return True
    ours, theirs = [_pieces(glob) for glob in wide], [_pieces(glob) for glob in narrow]
    alphabet = sorted({letter for glob in (*ours, *theirs) for piece in glob for letter in _letters(piece)} | {_OTHER})
    # Walk both automata side by side, looking for a text that ends in an accepting state of `narrow` only.
    start = (_close(ours, {(n, 0) for n in range(len(ours))}), _close(theirs, {(n, 0) for n in range(len(theirs))}))
    seen, queue = {start}, [start]
    while queue:
        left, right = queue.pop()
        if (_accepts(theirs, right) and not _accepts(ours, left)) or len(seen) > _PATIENCE:
            return False
        for letter in alphabet:
            after = (_step(ours, left, letter), _step(theirs, right, letter))
            if after[1] and after not in seen:
                seen.add(after)
                queue.append(after)
    return True


def _pieces(glob: str) -> _Pieces:
    return tuple(_PIECE.findall(re.sub(r"\*+", "*", glob)))


def _letters(piece: str) -> Iterable[str]:
    if len(piece) == 1:
        return () if piece in "*?" else (piece,)
    # The ends of a range and their neighbours tell ranges apart; a policy's ranges are short ([0-9]), so name all.
    within = [chr(c) for a, b in _RANGE.findall(piece[1:-1]) for c in range(ord(a), min(ord(b), ord(a) + 200) + 1)]
    return (*piece[1:-1], *within)


def _fits(piece: str, letter: str) -> bool:
    if piece == "?":
        return True
    return piece == letter if len(piece) == 1 else re.match(translate(piece), letter) is not None


def _close(globs: list[_Pieces], states: Iterable[tuple[int, int]]) -> _State:
    """A star may match nothing: the state after it holds as well."""
    closed = set()
    for n, at in states:
        closed.add((n, at))
        if at < len(globs[n]) and globs[n][at] == "*":
            closed.add((n, at + 1))
    return frozenset(closed)


def _step(globs: list[_Pieces], states: _State, letter: str) -> _State:
    after = []
    for n, at in states:
        if at == len(globs[n]):
            continue
        if globs[n][at] == "*":
            after.append((n, at))
        elif _fits(globs[n][at], letter):
            after.append((n, at + 1))
    return _close(globs, after)


def _accepts(globs: list[_Pieces], states: _State) -> bool:
    return any(at == len(globs[n]) for n, at in states)
