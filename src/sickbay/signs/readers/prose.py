"""Prose, documentation and source code: lines that only talk about errors.

Errors are printed at the beginning of a line, or behind a stamp, a level or a name; who talks about them quotes them,
passes them to functions, comments on them, or has a sentence before them.
"""

import re

_CODE = re.compile(
    r"\s*(?:def |class |import |from [\w.]+ import |raise\b|return\b|except\b|elif |assert |async |await |with .*:$"
    r"|if .*:$|(?:if|for|while|switch|\} else) .*\{$"
    r"|if (?:\[|grep |!)|for .*:$|while .*:$|//|/\*|\*/|#(?:!|include|define|if|endif|\s)|\"\"\"|'''|const "
    r"|static |public |private |func |fn |let |var |using |case |throw |catch|\}|@\w+\b|echo |printf|print\("
    r"|log(?:ger|ging)?\.\w+\(|grep |assert\w*\(|export \w+=|trap |\$ |sudo )"
)
# A literal on a line of its own; and how statements end, or lines that go on.
_LITERAL = re.compile(r"\s*[rbfuRBFU]{0,2}(?P<quote>[\"'])(?:(?!(?P=quote)).)*(?P=quote)[,;)\]]*\s*$")
_ENDS = (";", "),", ") ,", "\\")
_MARKDOWN = re.compile(
    r"\s*(?:#{1,6} \S|\.\. [\w-]+::|\|.*\|\s*$|<(?:li|p|td|h\d|code)\b|<!--|\*\*"
    r"|[-*•‣+]\s{1,3}(?!(?:DEBUG|INFO|WARN|ERROR|CRIT|FATAL))(?:\[[ x]\]|[A-Za-z`\"'*]))"
)
# A line of a change's history: its number or its version, then what was done.
_CHANGE = re.compile(
    r"\s*(?:[0-9a-f]{7,40}|v?\d+\.\d+(?:\.\d+)?:?|\(?#\d+\)?:?)\s+(?:\([^)]{0,80}\) )?"
    r"(?:fix|handle|revert|add|remove|catch|avoid"
    r"|ignore|suppress|retry|raise|improve|support|make|use|bump|update|skip|allow|report|detect|test|merge)\w{0,3}:?\s",
    re.IGNORECASE,
)
# A name in a manual or a header: its number, its meaning or how to be rid of it stands behind it.
_DEFINED = re.compile(
    r"\s*=\s+(?:0x)?\d+\s*,?\s*(?:/[/*].*)?$|\s{0,4}(?:\(\d{1,4}\))?: an? |\s{2,}[A-Z][a-z]+ [a-z ]{8}.*\.\s*$"
    r"|.{0,80}\b[Hh]ow (?:to|do|can) "
)
_ERRNO = re.compile(
    r"\s*E(?:ADDRINUSE|NOSPC|DQUOT|STALE|IO|ACCES|PERM|NOENT|CONNREFUSED|CONNRESET|PIPE|MFILE|NOMEM|AGAIN|TIMEDOUT"
    r"|HOSTUNREACH|NETUNREACH|ROFS)(?:\s|$)"
)
_COMMENT = re.compile(r"\s#\s")
_FIELD = re.compile(r'^\s*"message"\s?: ?$')
_SPAN = re.compile(r"`[^`]+`")
_CALL = re.compile(r"(?<![\w])(?P<name>[A-Za-z_][\w.]*)[(\[][^()\[\]]*$")
_ASSIGNS = re.compile(r"^\s*[A-Za-z_][\w.\[\]]{0,60}(?:: [\w\[\], |.]{1,60})? (?:[:+|]?=) ")
_COMPARES = ("signal.", "errno.", '== "', "== '", '|= "', '!= "', '=~ "', "|= `")
_STOPS = re.compile(r"[\d\[\]<>{}]|Error\b|Exception\b|Warning\b|ERROR|WARN|FATAL|error:|fatal:|failed:", re.ASCII)
# What the beginning of a printed line looks like: a stamp, a level, a name, a place in a source.
_PRINTED = re.compile(
    r"\s*`?(?:[\[(<|{]|\d|[A-Z]\d{4} |[A-Z] \S*/|[\w.@/+-]{1,120}[:=\[(]"
    r"|(?:DEBUG|INFO|WARN|WARNING|ERROR|FATAL)\b|\S+\s+\|)"
)
_FILLERS = frozenset(
    [
        "a", "an", "the", "is", "are", "was", "be", "of", "or", "and", "if", "when", "that", "this", "which",
        "you", "your", "we", "our", "it", "its", "for", "with", "in", "on", "to", "by", "as", "may", "can", "how",
        "what", "because", "not", "does", "do", "i", "my", "get", "getting", "after", "while", "where", "then",
        "but", "so", "also", "there", "here", "why", "should",
    ]
)  # fmt: skip
_PERSONS = frozenset({"you", "your", "we", "our", "my", "me", "us"})  # programs rarely say these before an error
ENOUGH = 2  # words of this kind before the error: it stands in a sentence
MANY = 3  # the same where stamps or names of errors stand before it too, but nothing that a printed line begins with
# An exception that was printed says what it has to say, in sentences and with names in `code`.
_SPOKEN = re.compile(
    r"\s*(?:(?:[A-Za-z_]\w{0,80}\.){0,8}\w{0,80}(?:Error|Exception|Warning): "
    r"|terminate called after throwing |(?:=\s+)?YOUR APPLICATION TERMINATED"
    r"|\*\*\* (?:stack smashing |Process received signal))"
)
FAR = 300  # characters before it that are looked at


def talks(line: str, start: int, end: int) -> bool:
    """Whether the words from `start` to `end` are talked about in this line."""
    if _SPOKEN.match(line):
        return line.rstrip().endswith(_ENDS)
    if line[:1] in {"+", "-"} and _CODE.match(line[1:]):
        return True  # a patch
    if _ERRNO.match(line) or _CHANGE.match(line) or _DEFINED.match(line[end : end + FAR]):
        return True
    if _CODE.match(line) or _LITERAL.match(line) or _MARKDOWN.match(line) or line.rstrip().endswith(_ENDS):
        return True
    before = line[:start]
    if _in_code_span(line, before) or _ASSIGNS.match(line) or before.endswith(_COMPARES):
        return True
    if _COMMENT.search(before):
        return True
    call = _CALL.search(before[-200:])
    if call is not None and not call["name"].endswith(("Error", "Exception")) and not before.endswith("["):
        return True
    return _quoted(line, before, end) or _in_a_sentence(line, before)


def _in_code_span(line: str, before: str) -> bool:
    """In `code`, or behind some. A single mark at one end of the line is the end of a paste."""
    text = line.strip()
    if text.count("`") == 1 and (text[0] == "`" or text[-1] == "`"):
        return False
    return before.count("`") % 2 == 1 or "``" in before.replace("```", "") or _SPAN.search(before) is not None


def _quoted(line: str, before: str, end: int) -> bool:
    """Inside a literal of a program: a bracket or a comma follows its end, or stands before it."""
    for quote in ('"', "'"):
        if before.count(quote) % 2 == 0:
            continue
        opening = before.rfind(quote)
        if _FIELD.search(before[:opening]):
            continue  # a report in JSON
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


def _in_a_sentence(line: str, before: str) -> bool:
    words = re.findall(r"[a-z]+", before.lower()[-FAR:])
    fillers = sum(word in _FILLERS for word in words)
    if fillers >= MANY and (not _PRINTED.match(line) or not _PERSONS.isdisjoint(words)):
        return True
    return fillers >= ENOUGH and not _STOPS.search(before)
