"""Lines that only talk about errors: source code, documentation, a person's prose.

Errors are printed at the beginning of a line, or behind a stamp, a level or a name; who talks about them quotes them,
passes
them to functions, or has a sentence before them.
"""

import re

_CODE = re.compile(
    r"\s*(?:def |class |import |from [\w.]+ import |raise\b|return\b|except\b|elif |assert |async "
    r"|await |with .*:$|if .*:$|for .*:$"
    r"|while .*:$|//|/\*|\*/|#(?:!|include|define|if|endif| [a-z])|\"\"\"|'''|const |static |public "
    r"|private |func |fn |let |var "
    r"|case |throw |catch|\}|@\w+\b|echo |printf|print\(|log(?:ger|ging)?\.\w+\(|grep |assert\w*\()"
)
_MARKDOWN = re.compile(r"\s*(?:#{1,6} \S|\|.*\|\s*$|<(?:li|p|td|h\d|code)\b)")
_CALL = re.compile(r"(?<![\w])(?P<name>[A-Za-z_][\w.]*)[(\[][^()\[\]]*$")
_ASSIGNS = re.compile(r"^\s*[A-Za-z_][\w.\[\]]{0,60}(?:: [\w\[\], |.]{1,60})? (?:[:+|]?=) ")
_STOPS = re.compile(r"[\d\[\]<>{}]|Error\b|Exception\b|ERROR|WARN|FATAL|error:|fatal:|failed:", re.ASCII)
_FILLERS = frozenset(
    [
        "a",
        "an",
        "the",
        "is",
        "are",
        "was",
        "be",
        "of",
        "or",
        "and",
        "if",
        "when",
        "that",
        "this",
        "which",
        "you",
        "your",
        "we",
        "our",
        "it",
        "its",
        "for",
        "with",
        "in",
        "on",
        "to",
        "by",
        "as",
        "may",
        "can",
        "how",
        "what",
        "because",
        "not",
        "does",
        "do",
        "i",
        "my",
        "get",
        "getting",
        "after",
        "while",
        "where",
    ]
)
ENOUGH = 2  # words of this kind before the error: it stands in a sentence


def talks(line: str, start: int, end: int) -> bool:
    """Whether the words from `start` to `end` are talked about in this line."""
    if _CODE.match(line) or _MARKDOWN.match(line):
        return True
    before = line[:start]
    if before.count("`") % 2 or _ASSIGNS.match(line) or before.endswith(("signal.", "errno.", '== "', "== '")):
        return True
    call = _CALL.search(before[-200:])
    if call is not None and not call["name"].endswith(("Error", "Exception")) and not before.endswith("["):
        return True
    return _quoted(line, before, end) or _in_a_sentence(before)


def _quoted(line: str, before: str, end: int) -> bool:
    """Inside a literal of a program: a bracket or a comma follows its end, or stands before it."""
    for quote in ('"', "'"):
        if before.count(quote) % 2 == 0:
            continue
        opening = before.rfind(quote)
        if opening and line[opening - 1] in "=>(" and not re.search(r"[(,] ?$", before[:opening]):
            continue  # msg="…" of a structured log, the repr of an error
        closing = line.find(quote, end)
        rest = line[closing + 1 :].strip() if closing >= 0 else ""
        if closing >= 0 and (
            rest[:1] in {",", ";", "]", "}", ":"} or (rest == ")" and opening and line[opening - 1] != "(")
        ):
            return True
        if opening and line[opening - 1] in "([":
            return not re.search(r"(?:Error|Exception)[(\[]$", before[:opening])
    return False


def _in_a_sentence(before: str) -> bool:
    if _STOPS.search(before):
        return False
    words = re.findall(r"[a-z]+", before.lower()[-120:])
    return sum(word in _FILLERS for word in words) >= ENOUGH
