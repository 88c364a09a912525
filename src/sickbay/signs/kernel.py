"""Lines of the kernel log → signs.

Only what the kernel itself printed is read: a line that begins, after all that others put before it, with the words of
a driver or of the kernel. A program that prints an Xid into its log, or a person who writes about one, is not heard.
"""

import re
from collections.abc import Generator, Iterable, Iterator
from functools import cache

from msgspec.structs import replace

from sickbay.model.sign import Sign
from sickbay.signs import kernel_patterns as patterns
from sickbay.signs import nvidia
from sickbay.signs.classify import ADVISER
from sickbay.signs.prefixes import KERNEL, Peeled, peel
from sickbay.signs.registers import NVLINK5, registers

LONGEST = 4096  # the kernel prints no such line; what is longer is no line of its
TEXT = 2000  # characters of evidence
ANCHORS: tuple[str, ...] = (*nvidia.ANCHORS, *patterns.ANCHORS)
NO_REGION = "gpu.bar_invalid"  # its headline names no GPU, the line below does
WRAPPED = 5  # lines that one message may be broken into
SEVERAL = 3  # lines in one, with their ends escaped: a log inside a string
NEAR = 3  # lines within which words without a number are details of the same event
KILLED_BY_NUMBER = 45  # the Xid whose line may end with its cause


# How a record with several lines looks when it is kept as one.
_BROKEN = re.compile(r"(?:\\x0a|#012|\\n|\n)\s*(?:NVRM:\s*)?")
_FIELD = re.compile(r"\s*(?P<key>_?_?[A-Z][A-Z0-9_]{1,63})=(?P<value>.*)")
_CUT_NUMBER = re.compile(r"NVRM:\s*Xid\s*\([^)]{1,60}\)\s*:?\s*\d{0,4}$|NVRM:\s*Xid\s*(?:\([^)]{0,60})?$")
_CUT_WORDS = re.compile(
    r"(?:[,(:]|\b(?:from|to|caused|by|previous|Xid|on|of|is|the|waiting|link|has|action|changed))\s*$"
)
_ADVISED = re.compile(r"\bto\s+\w{1,8}\s*\([^)]*\)$")
_NVRM_CUT = re.compile(r"NVRM:.*\b(?:fallen off(?: the)?|fallen|installed in this(?: system)?(?: has)?)\s*$")


def parse_line(text: str) -> Sign | None:
    """What the kernel said in this line; None if it is not the kernel's, or only details of the line before."""
    if len(text) > LONGEST:
        return None
    return _named(peel(text), text)


# Words that the kernel puts behind the name of a process (15 characters that it chose itself) at a line's beginning.
_BY_NAME = re.compile(
    r"(?P<head>traps: )?(?P<name>(?:\\x[0-9a-f]{2}|.){0,15}?)"
    r"(?=\[\d{1,10}\]:? |/\d{1,10}: | ?\(\d{1,10}\):? | invoked oom-killer: "
    r"|: (?:page allocation failure|vmalloc error|attempt to access beyond end of device|potentially unexpected)\b"
    r"| uses obsolete \(PF_INET| sent an empty control message)",
    re.DOTALL,
)
_SOMEBODY = "a"  # is read in the place of such a name


def heard(text: str, *, bare: bool) -> tuple[Sign | None, Peeled]:
    """What the kernel said in a line that was read from its source, and what stood before it.

    `bare`: the source is the kernel's own, and nothing stands before its words. Nobody but the kernel speaks in them: a
    name with which a line begins is not read, and what the kernel has escaped stays so.
    """
    peeled = Peeled(body=text.strip(), speaker=KERNEL) if bare else peel(text, pasted=False)
    if len(text) > LONGEST:
        return None, peeled
    found = _BY_NAME.match(peeled.body) if peeled.by_kernel else None
    if found is None:
        return _named(peeled, text, pasted=False), peeled
    body = f"{found['head'] or ''}{_SOMEBODY}{peeled.body[found.end() :]}"
    sign = _named(replace(peeled, body=body), text, pasted=False)
    if sign is not None and sign.fields.get("name") == _SOMEBODY:
        sign = replace(sign, fields={**sign.fields, "name": found["name"]})
    return sign, peeled


def _named(peeled: Peeled, text: str, *, pasted: bool = True) -> Sign | None:
    body = peeled.body
    if not body:
        return None
    if "\n" in body or "\\x0a" in body or "#012" in body:
        body, *more = _BROKEN.split(body)
        if pasted and any(part.startswith("Xid") for part in more):
            return None  # several messages, not one; in what the kernel printed at once a process has such a name
        body = " ".join((body, *more))
    sign = nvidia.match(body) if peeled.by_kernel else None
    sign = sign or patterns.match(body, peeled.speaker)
    return None if sign is None else replace(sign, text=text.strip()[:TEXT])


def _tree(words: Iterable[str]) -> str:
    """One pattern for all the words, branching letter by letter: many times as fast as one after the other."""
    branches: dict[str, list[str]] = {}
    for word in sorted(set(words)):
        if not word:
            return ""
        branches.setdefault(word[0], []).append(word[1:])
    return "(?:" + "|".join(re.escape(first) + _tree(rest) for first, rest in branches.items()) + ")"


@cache
def _anchor() -> re.Pattern[str]:
    # Made when a pasted log is read: it takes a twentieth of a second, and an agent has the scanner instead.
    return re.compile(_tree(ANCHORS))


class KernelReader:
    """Reads a kernel log line by line, also one that was pasted: wrapped lines and lines of one event are one sign.

    What is complete is told at once; a line that looks cut off waits for the next one. Its memory is a few lines.
    """

    def __init__(self) -> None:
        self._held: tuple[int, str, Sign | None] | None = None
        self._pieces = 0
        self._entry: tuple[int, str, Sign] | None = None  # of a journal's export, until it says who spoke
        self._speaker = ""
        self._about = (0, "")
        self._last = (0, "", "")  # line, kind and address of the last sign without a number
        self.owns = False

    @property
    def idle(self) -> bool:
        """Nothing waits for the next line: one without an anchor need not be shown to it."""
        return self._held is None and self._entry is None and not self._speaker

    def read(self, number: int, line: str) -> Iterator[Sign]:
        """One line, without its end, and its number from 1."""
        self.owns = False
        if "\u00a0" in line:  # what a browser copies
            line = line.replace("\u00a0", " ")
        if "\\n" in line and line.count("\\n") >= SEVERAL - 1:
            yield from self._inside(number, line)
        if self._held is not None:
            joined = yield from self._go_on(line)
            if joined:
                return
        if self._entry is not None or self._speaker:
            yield from self._field(line)
        if len(line) > LONGEST or not _anchor().search(line):
            if self._entry is None and "_TRANSPORT=" in line:
                yield from self._field(line)
            return
        yield from self._fresh(number, line)

    def end(self) -> Iterator[Sign]:
        """The text is over: what waited for more is told."""
        yield from self._let_go()
        yield from self._close_entry()
        self._speaker = ""

    def _fresh(self, number: int, line: str) -> Iterator[Sign]:
        peeled = peel(line)
        sign = _named(peeled, line)
        if pci := nvidia.about(peeled.body):
            self._about = (number, pci)
        if line.lstrip().startswith("MESSAGE="):
            if sign is not None:
                self.owns = True
                self._entry = (number, line, sign)
            return
        if _cut_off(peeled.body, line, sign):
            self.owns = sign is not None
            self._held, self._pieces = (number, line.rstrip(), sign), 1
            return
        if sign is not None:
            self.owns = True
            yield from self._tell(number, sign)

    def _inside(self, number: int, line: str) -> Iterator[Sign]:
        """A log that is the value of a string. Only lines with a stamp: a program's literals have none."""
        for part in line.split("\\n"):
            if len(part) > LONGEST or not _anchor().search(part):
                continue
            peeled = peel(part)
            sign = _named(peeled, part) if peeled.stamped else None
            if sign is not None:
                self.owns = True
                yield from self._tell(number, sign)

    def _go_on(self, line: str) -> Generator[Sign, None, bool]:
        """Whether this line is the rest of the one that is held."""
        assert self._held is not None
        start, text, before = self._held
        below = parse_line(line) if before is not None and before.kind == NO_REGION else None
        if below is not None and below.kind == NO_REGION:
            self._held = None
            yield from self._tell(start, below)
            return True
        if self._pieces >= WRAPPED or not _continues(line):
            yield from self._let_go()
            return False
        body = line.strip().lstrip("> ")
        # A terminal breaks a line anywhere, a person between words.
        wholes = [(whole, parse_line(whole)) for whole in (text + body, f"{text} {body}")]
        read = [(whole, sign) for whole, sign in wholes if sign is not None and _fits(before, sign)]
        if not read:
            self._held, self._pieces = (start, wholes[0][0][:LONGEST], before), self._pieces + 1
            return before is None
        whole, sign = max(read, key=lambda pair: len(pair[1].fields))
        self.owns = True
        if _cut_off(peel(whole).body, "", sign):
            self._held, self._pieces = (start, whole, sign), self._pieces + 1
        else:
            self._held = None
            yield from self._tell(start, sign)
        return True

    def _let_go(self) -> Iterator[Sign]:
        held, self._held, self._pieces = self._held, None, 0
        if held is not None and held[2] is not None:
            yield from self._tell(held[0], held[2])

    def _field(self, line: str) -> Iterator[Sign]:
        """A journal's export tells message and speaker in any order; a blank line or a new headline ends the entry."""
        found = _FIELD.fullmatch(line)
        if found is None or found["key"] == "__CURSOR":
            yield from self._close_entry()
            self._speaker = ""
            return
        if found["key"] in {"_TRANSPORT", "SYSLOG_IDENTIFIER"} and self._speaker != KERNEL:
            self._speaker = found["value"].strip()

    def _close_entry(self) -> Iterator[Sign]:
        entry, self._entry = self._entry, None
        if entry is not None and self._speaker in {KERNEL, ""}:
            yield from self._tell(entry[0], entry[2])

    def _tell(self, number: int, sign: Sign) -> Iterator[Sign]:
        if "number" not in sign.fields and sign.kind.startswith(("gpu.", "driver.")):
            line, pci = self._about
            if "pci" not in sign.fields and pci and number - line <= NEAR:
                sign = replace(sign, fields={**sign.fields, "pci": pci})
            at = str(sign.fields.get("pci", ""))
            line, kind, before = self._last
            self._last = (number, sign.kind, at or before)
            if kind == sign.kind and number - line <= NEAR and (at == before or not at or not before):
                return  # a detail of the event that was told
        yield replace(sign, line=number)


def _continues(line: str) -> bool:
    """No stamp, no speaker, no words of a driver: it may be the rest of the line before."""
    peeled = peel(line)
    return bool(peeled.body) and not peeled.stamped and not _STARTS.match(peeled.body)


_STARTS = re.compile(r"(?:NVRM|nvidia[\w-]*|[\w.-]+\[\d+\]):|[$#|{]|```|\w+=")


def _fits(before: Sign | None, after: Sign) -> bool:
    """The longer text is still the same event."""
    if before is None:
        return True
    if before.kind != after.kind or before.fields.get("pci") != after.fields.get("pci"):
        return False
    return str(after.fields.get("number", "")).startswith(str(before.fields.get("number", "")))


def _cut_off(body: str, line: str, sign: Sign | None) -> bool:
    """What follows could change what the line means. `line` as it was printed, for its width."""
    if not body.startswith(("NVRM", "nvidia")):
        return False
    if sign is None:
        return bool(_CUT_NUMBER.match(body) or _NVRM_CUT.match(body)) and "Xid" in body
    if sign.kind == NO_REGION:
        return body.endswith(":")
    if sign.kind != "xid":
        return False
    number = sign.fields["number"]
    if _CUT_NUMBER.match(body):
        return True
    if number == ADVISER:
        return "advice" not in sign.fields and not _ADVISED.search(body)
    if number == KILLED_BY_NUMBER:
        return "follows" not in sign.fields and (bool(_CUT_WORDS.search(body)) or len(line) in _WIDTHS)
    if number in {74, *NVLINK5}:
        return body.count("(") > body.count(")") or (not registers(body) and bool(_CUT_WORDS.search(body)))
    return False


_WIDTHS = frozenset({79, 80, 99, 100, 119, 120, 131, 132, 159, 160})  # of terminals
