"""Which words stand in every text that a pattern matches: what the column `words` of diagnosis.csv must say."""

import importlib
from typing import Any

sre: Any = importlib.import_module("re._parser")  # there is no public way to look into a pattern
SHORTEST = 3  # a literal below that is in every other line
# Worth less than any other word, however long.
EVERYWHERE = frozenset({"loss", "exit", "error", "time", "step", "status", "received "})


def literals(pattern: str) -> tuple[str, ...]:
    """Words in small letters, one of which is in every text that the pattern matches; none: nothing can be said."""
    return tuple(sorted(_of(sre.parse(pattern)) or ()))


def _of(items: Any) -> frozenset[str] | None:
    """The best that any part of a sequence demands: the longer its shortest word, the rarer it is."""
    found: list[frozenset[str]] = []
    run = ""
    for kind, value in [*items, (None, None)]:
        name = str(kind)
        if name == "LITERAL" and value < 128:
            run += chr(value).lower()
            continue
        if len(run) >= SHORTEST:
            found.append(frozenset({run}))
        run = ""
        inner = _inside(name, value)
        if inner:
            found.append(inner)
    return max(found, key=lambda words: (not words & EVERYWHERE, min(map(len, words))), default=None)


def _inside(name: str, value: Any) -> frozenset[str] | None:
    if name == "SUBPATTERN":
        return _of(value[3])
    if name == "ATOMIC_GROUP":
        return _of(value)
    if name in {"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"} and value[0] > 0:
        return _of(value[2])
    if name == "BRANCH":
        words = [_of(branch) for branch in value[1]]
        return frozenset().union(*(word for word in words if word)) if all(words) else None
    return None
