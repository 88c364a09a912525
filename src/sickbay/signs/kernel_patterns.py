"""Patterns of kernel lines: what a sick machine prints beside the GPU driver's own → signs, by data/patterns.csv.

A row is heard from its speakers only (the kernel where it names none) and must fit from the first character of what the
speaker said: who quotes such a line, or writes about one, begins otherwise. The rows are tried in the order of the file
and the first that fits speaks; a row with the code `none` says that the line is no sign.

`anchor` is a literal that stands in every line that the pattern fits. Lines are asked for anchors first, and only the
patterns of those that occur are run, so that a quiet log costs next to nothing.

Named groups become fields of the sign: digits as a number, `count` as the sign's count (0 is no sign: that is how
drivers report that all is well), addresses in lower case. Shorthands that a pattern may use are in SHORTHANDS.
"""

import re
from collections.abc import Collection
from functools import cache

from sickbay.knowledge.csv_table import TableRow, read_table
from sickbay.knowledge.load import load_tables
from sickbay.model.noun import Noun
from sickbay.model.sign import Fields, Sign

COLUMNS = ("code", "anchor", "pattern", "unless", "speakers", "source")
LONGEST = 4096  # the kernel prints no such line, and the time that a pattern may take is bounded by it
KERNEL = "kernel"
NOTHING = "none"
# Digits that are a name or an address, not a number.
WORDS = frozenset({"pci", "name", "serial", "uuid", "disk", "interface", "mount", "address", "server"})

_PCI = r"(?P<pci>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])"
SHORTHANDS: dict[str, str] = {
    "%pci%": _PCI,
    # Whoever drives the device: `pcieport 0000:00:01.0: `, `ixgbe 0000:3b:00.0 eth0: `.
    "%driver%": rf"[\w.-]{{2,32}} {_PCI}(?: (?P<interface>[\w.@-]{{1,32}}))?: ",
    "%mlx5%": (
        rf"mlx5_core {_PCI}(?: (?P<interface>[\w.@-]{{1,32}}))?: "
        r"(?:(?:[0-9a-f:.]{7,16}:)?\w{1,64}:\d{1,6}:\(pid \d{1,10}\): )?"
    ),
    # Before its RDMA device has a name the EFA driver speaks of the card, afterwards of the device.
    "%efa%": (rf"(?:efa {_PCI}(?: (?P<interface>[\w.@-]{{1,32}}))?|infiniband (?P<port>(?:efa|rdmap)\w{{1,28}})): "),
    "%amd%": (
        rf"(?=amdgpu|\[drm|kfd)(?:kfd kfd: )?(?:amdgpu {_PCI}: )?(?:amdgpu: )?"
        r"(?:\[powerplay\]\s{1,8})?(?:\[drm(?::[\w.]{1,80}(?: \[amdgpu\])?)?\] )?(?:\*ERROR\* )?(?:\{\d{1,10}\} ?)?"
    ),
    # A row of `ipmitool sel list`; its number may look like the gutter of an editor and be gone.
    "%sel%": (
        r"(?:[0-9a-f]{1,5} \| )?"
        r"(?:\d\d/\d\d/\d{2,4} ?\| ?\d\d:\d\d:\d\d(?: [A-Z]{3,4})?|Pre-Init {1,8}\|? ?[\w-]{1,16}) ?\| "
    ),
    # A row of `ras-mc-ctl --errors`.
    "%ras%": r"\d{1,9} \d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?: [+-]\d{4})? ",
    # The Neuron runtime's own stamp: `2024-Oct-21 20:16:04.966640  7838:7838  ERROR  TDRV:exec  `.
    "%nrt%": (
        r"(?:\d{4}-\w{3}-\d\d \d\d:\d\d:\d\d\.\d{1,9}\s{1,8}\d{1,10}:\d{1,10}"
        r"\s{1,8}\w{4,8}\s{1,8}\w{2,8}:\S{1,64}\s{1,64})?"
    ),
}

_NUMBER = re.compile(r"[0-9]{1,18}")
# A repeated group that itself repeats can take for ever on a line that almost fits.
_NESTED = re.compile(r"\((?:[^()]*[*+}][^()]*)\)(?:[*+]|\{\d*,\d*\})")
_OPEN = re.compile(r"\.[*+]")


class Pattern(Noun):
    """A row of the table."""

    code: str
    anchor: str
    pattern: str
    unless: str  # a literal that disarms it; empty: nothing does
    speakers: frozenset[str]
    source: str

    def hears(self, speaker: str) -> bool:
        # A line without any stamp is `dmesg -t` or somebody's excerpt of it.
        return (speaker or KERNEL) in self.speakers

    def read(self, body: str) -> re.Match[str] | None:
        if self.unless and self.unless in body:
            return None
        return _compiled(self.pattern).match(body)


class Patterns:
    """Rows in the order in which they are tried."""

    def __init__(self, rows: Collection[Pattern]) -> None:
        self.rows = tuple(rows)
        self._by_anchor: dict[str, list[tuple[int, Pattern]]] = {}
        for place, row in enumerate(self.rows):
            self._by_anchor.setdefault(row.anchor, []).append((place, row))
        self.anchors = tuple(self._by_anchor)

    def match(self, body: str, speaker: str) -> Sign | None:
        """What this line says; None if it says nothing that is known."""
        if len(body) > LONGEST:
            return None
        asked = [row for anchor, rows in self._by_anchor.items() if anchor in body for row in rows]
        if not asked:
            return None
        asked.sort(key=_place)
        said = body.strip()
        who = speaker.partition("[")[0]
        for _, row in asked:
            if row.hears(who) and (found := row.read(said)):
                return _sign(row.code, found)
        return None

    def over(self, other: "Patterns") -> "Patterns":
        """These first, then the other's: an operator's rows outrank the shipped ones."""
        return Patterns((*self.rows, *other.rows))


def read_patterns(text: str, name: str, codes: Collection[str] | None = None) -> Patterns:
    """The rows of a CSV text, checked, because every row can take a node out of service. `codes` have a meaning."""
    known = load_tables().faults if codes is None else codes

    def checked(row: TableRow) -> Pattern:
        pattern = _pattern(row)
        if pattern.code != NOTHING and pattern.code not in known:
            raise row.wrong(f"code {pattern.code} has no meaning; write one of the fault tables, or {NOTHING}")
        _check(pattern, row)
        return pattern

    return Patterns(read_table(name, COLUMNS, checked, text))


def _pattern(row: TableRow) -> Pattern:
    return Pattern(
        code=row.given("code"),
        anchor=row.given("anchor"),
        pattern=row.expanded("pattern", SHORTHANDS),
        unless=row["unless"],
        speakers=frozenset(row["speakers"].split() or (KERNEL,)),
        source=row.given("source"),
    )


def _check(made: Pattern, row: TableRow) -> None:
    row.pattern("pattern", re.ASCII, SHORTHANDS)
    if made.pattern.lstrip("(?:^").startswith((".*", ".+", "[^")):
        raise row.wrong("pattern begins with anything at all; begin with what the speaker says first")
    plain = _without_classes(made.pattern)
    if _NESTED.search(plain) or len(_OPEN.findall(plain)) > 1:
        raise row.wrong("pattern may run for ever; write limits such as {0,80} in place of * and +")
    if made.anchor not in _required(made.pattern):
        raise row.wrong(f"anchor '{made.anchor}' is not in every line that fits; take it from outside brackets")


def _without_classes(pattern: str) -> str:
    """Escapes and character classes as a plain letter: what is left of brackets and stars means something."""
    return re.sub(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", "x", pattern)


def _required(pattern: str) -> str:
    """The literal text that stands outside brackets, classes and repetitions; `\\0` where something else does."""
    out: list[str] = []
    depth = place = 0
    for token in re.finditer(r"\\(.)|\[\^?\]?(?:\\.|[^\]\\])*\]|\{\d*,?\d*\}|.", pattern, re.DOTALL):
        text, place = token.group(), token.end()
        if text == "(":
            depth += 1
        elif text == ")":
            depth -= 1
        if depth or text == ")":
            out.append("\0")
        elif text == "|":
            return ""  # one of two: neither is required
        elif text in {"?", "*", "+"} or (len(text) > 1 and text[0] == "{"):
            out[-1:] = ["\0"]
        elif escaped := token.group(1):
            out.append("\0" if escaped.isalnum() else escaped)
        else:
            out.append(text if len(text) == 1 and text not in ".^$" else "\0")
    assert place == len(pattern)
    return "".join(out)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    # Compiled when first asked: most machines never see most of these.
    return re.compile(pattern, re.ASCII)


def _place(row: tuple[int, Pattern]) -> int:
    return row[0]


def _sign(code: str, found: re.Match[str]) -> Sign | None:
    groups = {name: text for name, text in found.groupdict().items() if text is not None}
    count = int(groups.pop("count", "1")[:18])
    if code == NOTHING or not count:
        return None
    fields: Fields = {name: _value(name, text) for name, text in groups.items()}
    return Sign(kind=code, fields=fields, text=found.string, count=count)


def _value(name: str, text: str) -> str | int:
    if name == "pci":
        return text.lower()
    return int(text) if name not in WORDS and _NUMBER.fullmatch(text) else text


# Every agent and every command that reads a log pays for this; that the rows are sound is proven by the tests.
SHIPPED = Patterns(read_table("patterns.csv", COLUMNS, _pattern))
ANCHORS: tuple[str, ...] = SHIPPED.anchors


def match(body: str, speaker: str) -> Sign | None:
    """What a line without its stamps says, by the shipped rows; the speaker is `kernel`, a program's name, or ''."""
    return SHIPPED.match(body, speaker)
