"""Log prefixes before the kernel's own words: stamps, levels, hosts, programs, colours, quotes; and who speaks.

The same message looks different in dmesg, syslog, journald, a container's log and a pasted answer. `peel` takes all of
that off, however much of it is piled up, and says who speaks. Each step looks at the front only and consumes what it
recognises, so the cost is in proportion to the prefix.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from sickbay.model.noun import Noun
from sickbay.signs.carriers import CRI, KERNELS_HOST, POD, REPLICA
from sickbay.signs.dates import DATE, DATE_ALONE, HUMAN, ISO, ISO_ALONE, from_iso, from_words

KERNEL = "kernel"
# Programs that hand the kernel's lines on as they are. Others that speak of an Xid speak for themselves.
RELAYS = frozenset(
    {"kernel", "kern", "klogd", "dmesg", "kmsg", "vmkernel", "vmunix", "kernel-monitor", "node-problem-detector",
     "fluent-bit", "imklog"}
)  # fmt: skip
LEVELS = ("emerg", "alert", "crit", "err", "warn", "notice", "info", "debug")
ROUNDS = 12  # prefixes on top of each other; nobody has seen more than six
LONGEST = 8192  # of a line; the kernel prints no such line


class Peeled(Noun):
    """`body` is what was said; `speaker` is `kernel`, another program's name, or empty if nothing tells."""

    body: str
    speaker: str = ""
    host: str = ""  # whose line it is, where the prefix says it
    wall: datetime | None = None  # without a zone where the prefix has none
    yearless: bool = False  # the prefix names no year: see `dated`
    mono: float | None = None  # seconds since boot
    sequence: int | None = None  # of the kernel's ring
    level: str = ""

    @property
    def stamped(self) -> bool:
        """Something before the words says that a message begins here."""
        return bool(self.speaker or self.level or self.wall is not None or self.mono is not None)

    @property
    def by_kernel(self) -> bool:
        return self.speaker in {"", KERNEL}


class _State:
    __slots__ = ("dmesg", "host", "level", "mono", "sequence", "speaker", "wall", "yearless")

    def __init__(self) -> None:
        self.speaker = ""
        self.host = ""
        self.wall: datetime | None = None
        self.yearless = False
        self.mono: float | None = None
        self.sequence: int | None = None
        self.level = ""
        self.dmesg = False  # the form has no room for a host: what follows is the message

    def stamped(self) -> bool:
        return self.mono is not None or self.wall is not None or bool(self.level)


_COLOUR = re.compile(r"(?:\x1b|ESC)\[[0-9;?]{0,12}[A-Za-z]|\x1b\([A-Z]|\[(?:[0-9]{1,2};){0,3}[0-9]{0,2}m(?!\])")
_HTML = {"&lt;": "<", "&gt;": ">", "&#x27;": "'", "&#39;": "'", "&quot;": '"', "&amp;": "&"}
_DRIVER = r"(?:NVRM|nvidia(?:-(?:nvlink|nvswitch\d*|modeset|uvm|drm|peermem))?|nvidia_\w+)"

_QUOTES = re.compile(r"[\s\ufeff]*(?:>[ \t]?[ \t>]*)*")
# `cat -n`, `nl`, `less -N` and the gutters of editors number the lines;
# a paste may begin with the quote of its code, or in bold.
_GUTTER = re.compile(
    r"\s{0,12}\d{1,7}(?:\t|\s{0,3}[|│]\s)\s*"
    r"|(?:`{1,3}|\*{1,3}|_{2})(?=\[|\w{3}\s+\d|\d{4}-|NVRM|nvidia|kernel:|<\d)"
)
# Monitors that print the kernel's line as it is behind a stamp of their own.
_RELAYED = re.compile(
    r"(?:(?:TRACE|DEBUG|INFO|WARNING|ERROR) - ){1,4}(?=\[\s{0,8}\d{1,9}\.\d{6}\])"
    r"|[:#>$%~ ]{1,16}(?=\[\s{0,8}\d{1,9}\.\d{6}\])"  # a shell's prompt on a serial console
    r"|\[[\w-]{1,40}\] \[[A-Z]{4,8}\] GPU-[0-9a-f-]{36}: XID: (?=NVRM: Xid)"
)
_ELIDED = re.compile(r"\[(?:\.{2,4}|…)\]:?\s*")
_KMSG = re.compile(r"(?P<pri>\d{1,4}),(?P<seq>\d{1,19}),(?P<usec>\d{1,19}),[^;\s]{1,60};")
_PRI = re.compile(r"<(?P<pri>\d{1,3})>")
_SYSLOG5 = re.compile(
    rf"1 (?:{ISO}|-) (?P<host>\S{{1,255}}) (?P<app>\S{{1,48}}) \S{{1,128}} \S{{1,32}} "
    r"(?:-|\[[^\]]{0,1000}\])\s?(?:\ufeff)?"
)
_FACILITY = re.compile(r"(?P<fac>kern|user|daemon|syslog|auth|authpriv|mail|local\d)\s*:\s*(?P<lev>[a-z]{3,7})\s*:\s*")
_FACILITY_DOT = re.compile(r"(?P<fac>kern)\.(?P<lev>[a-z]{3,7})\s+(?=kernel\b|\S+\s+kernel\b|\[)")
_BRACKET = re.compile(r"\[(?P<in>[^\[\]]{1,60})\]:?\s*")
_SECONDS = re.compile(r"\s*\+?(?P<s>\d{1,12}(?:\.\d{1,9})?)s?(?:\s*<\s*\+?[\d.]*\s*>)?\s*")
_THREAD = re.compile(r"\s*[TC]\s*\d{1,9}\s*")
_ISO_STAMP = re.compile(rf"(?:[^\W\d_]{{2,4}}\.?\s+)?{ISO}(?:\s+[A-Z]{{2,4}}T\b)?[:,]?\s+")
_DATE_STAMP = re.compile(rf"{DATE}:?\s+")
_UNIX = re.compile(r"(?P<s>\d{9,10}\.\d{3,9})\s+(?=\S+\s+\S+:)")
_KERNEL_TAG = re.compile(
    r"(?:(?P<host>[\w.:@-]{1,255})\s+)?(?:kern\.(?P<lev>[a-z]{3,7})\s+)?(?P<tag>kernel|vmkernel|vmunix|klogd|kern)(?:\[\d{1,10}\])?:\s*"
)
_TAG = re.compile(
    r"(?P<host>[\w.:@-]{1,255})\s+(?P<tag>[A-Za-z_(/][\w./@()+-]{0,120})(?P<pid>\[\d{1,10}\])?:\s+(?P<rest>)"
)
_BARE_TAG = re.compile(r"(?P<tag>[A-Za-z_][\w./@+-]{0,120})\[\d{1,10}\]:\s+")
_LOGGERS = r"(?!(?:TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|ERR|CRITICAL|FATAL|root)\b)"
_DRIVER_TAG = re.compile(
    rf"(?:(?P<host>{_LOGGERS}[\w.:-]{{1,255}})\s+)?(?={_DRIVER}(?::| [0-9a-f]{{4,8}}:[0-9a-f]{{2}}:))"
)
_VMWARE = re.compile(r"(?:(?:WARNING|ALERT|INFO): )?cpu\d{1,4}:\d{1,10}(?: opID=\w{1,16})?\)(?:WARNING: |ALERT: )?")
_JOURNAL = re.compile(r"MESSAGE=")
# `grep` and its kin put the file's name before the line: of a log, that is; a source or a text is not the kernel.
_FILE = re.compile(
    r"(?:\./)?(?P<file>(?:[\w.@+-]{0,80}/){0,12}[\w.@+-]{1,120})(?P<gz>\.(?:gz|xz|zst|bz2))?:(?:\d{1,10}[:-])?\s*"
)
_LOG_NAME = re.compile(r"messages|syslog|kern|dmesg|journal|boot|console|\.log|^log|/log/", re.IGNORECASE)
_NO_LOG = re.compile(r"\.(?:py|c|h|cc|cpp|cu|go|rs|sh|md|rst|txt|html?|json|ya?ml|js|ts|java|csv|tex|ipynb|adoc)$")
_NUMBER = re.compile(r"\d{1,10}[:-]\s*(?=\[|\w{3}\s+\d|\d{4}-|NVRM|nvidia|kernel:|<\d)")


def peel(line: str, *, pasted: bool = True) -> Peeled:
    """The line without what stands before the message, and what that told.

    `pasted`: as somebody saw it on a terminal, where a progress bar wrote over itself. In a line that is read from its
    source nothing goes away in front of a carriage return: it would take the speaker along.
    """
    text = _clean(line[:LONGEST], pasted=pasted)
    state = _State()
    at = _match_end(_GUTTER, text, _match_end(_QUOTES, text, 0))
    at = _match_end(_RELAYED, text, at)
    for _ in range(ROUNDS):
        after = _step(text, at, state)
        if after <= at:
            break
        at = after
        if state.speaker not in {"", KERNEL}:
            break
    return Peeled(
        body=text[at:].strip(), speaker=state.speaker, host=state.host, wall=state.wall, yearless=state.yearless,
        mono=state.mono, sequence=state.sequence, level=state.level,
    )  # fmt: skip


def dated(peeled: Peeled, today: datetime) -> datetime | None:
    """When it was said. Without a year it is the latest one that does not lie more than a day ahead of `today`."""
    wall = peeled.wall
    if wall is None or not peeled.yearless:
        return wall
    limit = today.replace(tzinfo=None) + timedelta(days=1)
    for year in range(today.year + 1, today.year - 9, -1):
        try:
            meant = wall.replace(year=year)
        except ValueError:  # 29 February
            continue
        if meant.replace(tzinfo=None) <= limit:
            return meant
    return None


def _clean(text: str, *, pasted: bool) -> str:
    text = text.rstrip("\r\n\x00")
    if "\x1b" in text or "m" in text[:40]:
        text = _COLOUR.sub("", text)
    if pasted and "\r" in text:  # a progress bar wrote over itself: the last is what was seen
        text = text.rsplit("\r", 1)[-1]
    if "\u00a0" in text:
        text = text.replace("\u00a0", " ")
    if "&" in text and "&lt;" in text:
        for entity, character in _HTML.items():
            text = text.replace(entity, character)
    return text


def _match_end(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found else at


def _step(text: str, at: int, state: _State) -> int:
    """Takes one prefix off, by what the text begins with."""
    if at >= len(text):
        return at
    for take in _BY_FIRST.get(text[at], _ANY):
        after = take(text, at, state)
        if after > at:
            return after
    return at


def _bracket(text: str, at: int, state: _State) -> int:
    for plain in (_ELIDED, POD):
        if found := plain.match(text, at):
            return found.end()
    found = _BRACKET.match(text, at)
    if not found:
        return at
    inside = found["in"]
    if _THREAD.fullmatch(inside):
        return found.end() if state.stamped() else at
    if seconds := _SECONDS.fullmatch(inside):
        state.mono = float(seconds["s"]) if state.mono is None else state.mono
        return found.end()
    if _bracketed_date(inside.split("<", 1)[0].strip(), state):
        return found.end()
    return at


def _bracketed_date(inside: str, state: _State) -> bool:
    if found := ISO_ALONE.fullmatch(inside):
        state.wall = from_iso(found)
        state.dmesg = True
        return True
    if found := DATE_ALONE.fullmatch(inside):
        state.wall, state.yearless = from_words(found)
        state.dmesg = True
        return True
    if found := HUMAN.fullmatch(inside):
        state.dmesg = True
        return True
    return False


def _kmsg(text: str, at: int, state: _State) -> int:
    found = _KMSG.match(text, at)
    if not found:
        return at
    _priority(int(found["pri"]), state)
    state.sequence, state.mono, state.dmesg = int(found["seq"]), int(found["usec"]) / 1e6, True
    return found.end()


def _pri(text: str, at: int, state: _State) -> int:
    found = _PRI.match(text, at)
    if not found:
        return at
    _priority(int(found["pri"]), state)
    five = _SYSLOG5.match(text, found.end())
    if not five:
        return found.end()
    if five["date"]:
        state.wall = from_iso(five)
    state.host = "" if five["host"] == "-" else five["host"]
    _speak(five["app"], state)
    return five.end()


def _priority(pri: int, state: _State) -> None:
    # Who writes to /dev/kmsg gets the facility `user`: that says only that the kernel did not say so itself.
    state.level = LEVELS[pri & 7]
    if pri < len(LEVELS):
        state.speaker = state.speaker or KERNEL


def _facility(text: str, at: int, state: _State) -> int:
    found = _FACILITY.match(text, at) or _FACILITY_DOT.match(text, at)
    if not found or found["lev"] not in _LEVEL_WORDS:
        return at
    state.level, state.dmesg = found["lev"], True
    if found["fac"] == "kern":
        state.speaker = KERNEL
    return found.end()


def _stamp(text: str, at: int, state: _State) -> int:
    if state.wall is not None:
        return at
    if found := CRI.match(text, at):
        return found.end()
    if found := _ISO_STAMP.match(text, at):
        state.wall = from_iso(found)
        state.dmesg = state.dmesg or "," in found["clock"]  # dmesg alone writes the fraction so
        return found.end()
    if found := _DATE_STAMP.match(text, at):
        state.wall, state.yearless = from_words(found)
        return found.end()
    if found := _UNIX.match(text, at):
        state.wall = datetime.fromtimestamp(float(found["s"]), tz=UTC)
        return found.end()
    return at


def _who(text: str, at: int, state: _State) -> int:
    """Host and program. Only where a stamp came before can the first word be a host."""
    stamped = state.wall is not None or state.mono is not None
    found = _KERNEL_TAG.match(text, at)
    if found and (found["host"] is None or stamped):
        state.speaker = KERNEL
        state.host = state.host or found["host"] or ""
        state.level = state.level or found["lev"] or ""
        return found.end()
    if state.speaker or not stamped:
        found = _BARE_TAG.match(text, at)
        if found and not state.speaker and found["tag"] in RELAYS:
            state.speaker = KERNEL
            return found.end()
        return at
    if (found := _DRIVER_TAG.match(text, at)) and not (state.dmesg and found["host"]):
        state.host = state.host or found["host"] or ""
        return found.end()
    found = _TAG.match(text, at)
    # After the seconds since boot, or where dmesg wrote the stamp, words with a colon are the message's own.
    if not found or ((state.dmesg or state.wall is None) and not found["pid"]):
        return at
    state.host = state.host or found["host"]
    _speak(found["tag"], state)
    return found.end()


def _speak(tag: str, state: _State) -> None:
    name = tag.rsplit("/", 1)[-1]
    state.speaker = KERNEL if name in RELAYS else name


def _file(text: str, at: int, state: _State) -> int:
    if state.wall is not None or state.mono is not None or state.speaker:
        return at
    if found := _NUMBER.match(text, at):
        return found.end()
    found = _FILE.match(text, at)
    if found and _LOG_NAME.search(found["file"]) and not _NO_LOG.search(found["file"]) and found["file"] != KERNEL:
        return found.end()
    return at


def _plain(pattern: re.Pattern[str]) -> Callable[[str, int, _State], int]:
    def take(text: str, at: int, state: _State) -> int:  # noqa: ARG001 - a step
        return _match_end(pattern, text, at)

    return take


_LEVEL_WORDS = frozenset({*LEVELS, "warning", "error", "panic"})
_DIGITS = (_kmsg, _plain(CRI), _stamp, _file, _plain(KERNELS_HOST), _who)
_ANY = (
    _facility, _plain(KERNELS_HOST), _plain(_VMWARE), _plain(_JOURNAL), _who, _stamp, _plain(REPLICA), _file,
)  # fmt: skip
_BY_FIRST: dict[str, tuple[Callable[[str, int, _State], int], ...]] = {
    "[": (_bracket,),
    "<": (_pri,),
    **dict.fromkeys("0123456789", _DIGITS),
}
