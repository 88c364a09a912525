"""Training and launcher logs, by the rules of diagnosis.csv."""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, ClassVar

from sickbay.model.sign import Sign
from sickbay.model.tables import RAISED, DiagnosisRule
from sickbay.signs.carriers import message_at
from sickbay.signs.readers.prose import talks

LINE_LIMIT = 2000  # a longer line is data, not a message
KEPT = 400  # of a line that proves a rule
REMEMBERED, LONGEST_PART = 50_000, 64  # words of a text, and the letters of one
ANY_DIGIT = str.maketrans("123456789", "000000000")
NEAR = 4  # lines from the last place in a traceback to what was raised there
_PLACE = re.compile(r'\s*File "[^"]{1,400}", line \d{1,9}')
# An exception that carries another one's traceback: what it names is said again, with its reason, below.
_WRAPPER = re.compile(r"^\w+: Caught \w+ in (?:DataLoader worker|replica|pin memory thread|worker)\b")
FAILED = "rank_failed"
# Printed by nothing but an interpreter, even where the traceback was cut off: a name with its module's before it, and
# some that nobody writes a sentence about.
_QUALIFIED = re.compile(
    r"(?:(?:[a-z_]\w{0,60}\.){1,8}[A-Z]\w{0,80}(?:Error|Exception|Invalid)"
    r"|KeyError|IndexError|ZeroDivisionError|UnicodeDecodeError|OverflowError): (?=\S)"
)
TRACEBACK = "Traceback (most recent call last):"
EXCEPTION = re.compile(r"[A-Za-z_][\w.]{0,200}(?:Error|Exception)(?:: .*)?$")
_NAMED = re.compile(r"[A-Za-z_][\w.]{0,200}(?:: .*)?$")  # any class may be raised


class DiagnosisRules:
    """The rows of diagnosis.csv, compiled: which of them fits a line, the lowest rank first."""

    def __init__(self, rules: Sequence[DiagnosisRule]) -> None:
        rules = sorted(rules, key=lambda rule: rule.rank)
        self._rules = [(rule.name, re.compile(rule.pattern)) for rule in rules]
        self._of_word: dict[str, set[int]] = {}  # which rules, by their places, may fit where a word is
        for place, rule in enumerate(rules):
            for word in rule.words:
                self._of_word.setdefault(word, set()).add(place)
        self.words = tuple(sorted(self._of_word))
        self._wordless = {place for place, rule in enumerate(rules) if not rule.words}
        self._parts = [(max(word.split(), key=len).translate(ANY_DIGIT), word) for word in self.words]
        self._known: dict[str, tuple[str, ...]] = {}  # words of a text, and the rules' words that they may be part of
        self._of_digits = {word for rule in rules if _tells_digits(rule.pattern) for word in rule.words}

    def fit(self, line: str) -> str:
        """The name of the first that fits what a program printed; empty: none does, or the line only talks of it."""
        if "NCCL INFO" in line:
            return ""  # what it retries and what it closes is its daily work
        here = self._here(line.lower())
        if not here and not self._wordless and "Caught" not in line:
            return ""
        said = message_of(line).strip()
        if _WRAPPER.match(said):
            return FAILED
        for place in sorted(self._wordless.union(*map(self._of_word.__getitem__, here))):
            name, pattern = self._rules[place]
            found = pattern.search(said)
            if found and not talks(said, found.start(), found.end()):
                return name
        return ""

    def _here(self, low: str) -> set[str]:
        """Which of the rules' words are in a line. Texts are made of few words, so each is looked at once."""
        known = self._known
        found: set[str] = set()
        for part in set(low.translate(ANY_DIGIT).split()):
            words = known.get(part)
            if words is None:
                words = tuple(word for piece, word in self._parts if piece in part)
                if len(known) >= REMEMBERED:
                    known.clear()
                if len(part) <= LONGEST_PART:
                    known[part] = words
            if words:
                found.update(word for word in words if word in low)
        return found

    def tells_digits(self, line: str) -> bool:
        """Whether some rule would judge this line by its digits: the same line with others may mean something else."""
        return not self._of_digits.isdisjoint(self._here(line.lower()))


def message_of(line: str) -> str:
    """What a program said, with its indentation: without rank, host, stamp and level."""
    return line[message_at(line) :].rstrip()


@lru_cache(maxsize=4)
def compiled(rules: tuple[DiagnosisRule, ...]) -> DiagnosisRules:
    return DiagnosisRules(rules)


class TrainingReader:
    """What the lines of a job say about its end: a sign of kind `job` for every line that a rule fits."""

    ANCHORS: ClassVar[tuple[str, ...]] = ()  # by its rules: `anchors`

    def __init__(self, rules: Sequence[DiagnosisRule]) -> None:
        self._rules = compiled(tuple(rules))
        self._place = -NEAR - 1  # the last line that told a place in a program
        self._trace = False  # inside a traceback whose head was seen

    @property
    def anchors(self) -> tuple[str, ...]:
        """Words without which no rule fits. A rule that demands none is not heard in a long text."""
        return self._rules.words

    @property
    def owns(self) -> bool:
        return False

    def read(self, number: int, line: str) -> Iterator[Sign]:
        name = self.fits(line) or self._raised(number, line[:LINE_LIMIT])
        if name:
            yield Sign(kind="job", fields={"name": name}, text=line.strip()[:KEPT], line=number)

    def fits(self, line: str) -> str:
        return self._rules.fit(line[:LINE_LIMIT])

    def tells_digits(self, line: str) -> bool:
        return self._rules.tells_digits(line)

    def _raised(self, number: int, line: str) -> str:
        """At the end of a traceback with places in it, which those in documentation leave out."""
        if 'File "' in line and (_PLACE.match(line) or _PLACE.match(message_of(line))):
            self._place = number
            return ""
        if not self._trace and "Error" not in line and "Exception" not in line and TRACEBACK not in line:
            return ""
        said = message_of(line)
        if said.startswith(TRACEBACK):
            self._trace = True
        elif said and not said[0].isspace():
            named = _NAMED if self._trace else EXCEPTION
            self._trace = False
            if number - self._place <= NEAR and named.match(said):
                self._place = -NEAR - 1
                return RAISED
            if "Error: " in said and (found := _QUALIFIED.match(said)) and not talks(said, 0, found.end()):
                return RAISED
        return ""

    def value(self, number: int, value: Any) -> Iterable[Sign]:
        del number, value
        return ()

    def end(self) -> Iterable[Sign]:
        return ()


def _tells_digits(pattern: str) -> bool:
    return re.search(r"[0-9]", re.sub(r"\{\d*,?\d*\}", "", pattern)) is not None
