"""Xid and SXid lines: what NVIDIA's kernel modules say, without the prefixes before it.

Only a text that begins with the driver's own words is read. Formats: NVIDIA's open kernel modules of all branches, and
logs of the closed ones as people pasted them (see data/SOURCES.md).
"""

import re
from functools import cache

from sickbay.knowledge.csv_table import TableRow, read_table
from sickbay.model.fault import Remedy
from sickbay.model.sign import Fields, Sign
from sickbay.signs.classify import ADVISER
from sickbay.signs.recovery_action import action_in, action_of
from sickbay.signs.registers import NVLINK5, decode

# Every body that means something contains one of these.
ANCHORS: tuple[str, ...] = ("NVRM", "SXid", "nvidia-nv", "nvidia-uvm", "nvidia-modeset", "nvidia ", "nvidia:")
WORDINGS = "nvidia_wordings.csv"
LINKED = frozenset({74, 136, 155, *NVLINK5})

_BDF = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
_XID = re.compile(
    rf"NVRM:\s*(?:GPU\d{{1,3}}\s+)?Xid\s*\(\s*(?:PCI:)?\s*(?P<pci>{_BDF}|[0-9a-fA-F]{{2,4}}:[0-9a-fA-F]{{2}})"
    r"(?:[\s,]+GPU-I:\s?(?P<mig>\d{1,2}))?(?:[\s,]+GPU-CI:\s?\d{1,2})?\s*\)\s*:?\s*(?P<number>\d{1,5})"
    r"(?:\s*$|\s*[,;:]\s*|\s+(?=[A-Z0-9!<(\[]|pid=|name=|channel|intr))(?P<rest>.*)",
    re.ASCII | re.DOTALL,
)
_SXID = re.compile(
    rf"(?:NVRM:\s*)?(?:nvidia-)?(?i:nvswitch)-?(?P<switch>\d{{0,3}})\s*:?\s*SXid\s*\(\s*(?:PCI:)?\s*(?P<pci>{_BDF})\s*\)\s*:?\s*"
    r"(?P<number>\d{1,5})(?:\s*$|\s*[,;:]\s*|\s+(?=[A-Z]))(?P<rest>.*)",
    re.ASCII | re.DOTALL,
)
_PROCESS = re.compile(
    r"pid=['\"]?(?P<pid>\d{1,10}|<unknown>|unknown|-?)['\"]?(?:,\s*name=(?P<name>[^,]*))?(?:,\s*|\s*$)", re.ASCII
)
# A process chooses its name, 15 characters with any comma: what may be of it says nothing about the fault.
_CHOSEN = re.compile(r"(?:\\x[0-9a-f]{2}|#[0-7]{3}|.){0,15}(?:,\s*|\s*$)", re.DOTALL)
_FOLLOWS = re.compile(r"\bcaused by previous Xid (\d{1,5})\s*\.?$", re.ASCII)
_ADVISES = re.compile(
    r"recovery action changed\s+(?:from\s+\S+\s*(?:\([^)]{0,60}\)\s*)?)?to\s+(?:0x)?(?P<n>[0-9a-fA-F]{1,4})?\s*"
    r"(?:\(\s*(?P<words>[^)]{1,60}?)\s*\)?)?\s*\.?$",
    re.ASCII,
)
_LINK = re.compile(r"\blink:? (\d{1,3})(?![\d.])", re.ASCII | re.IGNORECASE)
_SEVERITY = re.compile(r"(Fatal|Non-?fatal)(?:\s*[,:]|\s*$|\s)", re.ASCII | re.IGNORECASE)
_DETAIL = re.compile(r"Severity \d|Data \{|Severity:|Engine instance", re.ASCII)
_PLACE = re.compile(r"\(GPC (\d{1,3}), TPC (\d{1,3})", re.ASCII)
_RESET = re.compile(r"\b(?:D-)?RST: Yes\b", re.ASCII)
_ANY_PCI = re.compile(rf"\b{_BDF}(?![0-9a-fA-F]|:[0-9a-fA-F])", re.ASCII)
_START = re.compile(
    r"NVRM(?::| \w{3,60}: )|nvidia(?:-(?:nvlink|nvswitch\d*|modeset|uvm|drm))?[: ]|(?:nvidia-)?(?i:nvswitch)-?\d*\s*:",
    re.ASCII,
)

_QUOTED = re.compile(r"""(?:["`]|'[,;)\]])[\s,;)\]}\\]*$|\|\s*$""")  # a string in a program, a cell of a table
_NVRM = r"NVRM(?::\s*| (?=\w{3,60}: ))(?:GPU\d{1,3}\s+)?"
_AT = rf"(?:GPU (?:at )?(?:PCI:)?{_BDF}:?\s*)?"
# Shorthands of the patterns in data/nvidia_wordings.csv.
SHORTHANDS = {"%nvrm%": _NVRM, "%at%": _AT, "%pci%": _BDF}
_ABOUT = re.compile(rf"{_NVRM}The NVIDIA GPU (?P<pci>{_BDF})", re.ASCII)


def match(body: str) -> Sign | None:
    """What the driver said; None if it is not the driver's, is chatter, or is only a detail of the line before."""
    if not _START.match(body) or _QUOTED.search(body):
        return None
    if xid := _XID.match(body):
        return Sign(kind="xid", fields=_xid_fields(xid))
    if sxid := _SXID.match(body):
        # An event is one headline and up to two lines of detail under the same number: events are counted, not lines.
        return None if _DETAIL.match(sxid["rest"]) else Sign(kind="sxid", fields=_sxid_fields(sxid))
    for kind, wording in wordings():
        if wording.match(body):
            found = _ANY_PCI.search(body)
            return Sign(kind=kind, fields={"pci": found[0].lower()} if found else {})
    return None


@cache
def wordings() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Faults that have no number: the sign's kind, and how the driver's words begin. The first that fits counts."""
    return read_wordings()


def read_wordings(text: str | None = None, name: str = WORDINGS) -> tuple[tuple[str, re.Pattern[str]], ...]:
    def wording(row: TableRow) -> tuple[str, re.Pattern[str]]:
        pattern = row.pattern("pattern", re.DOTALL, SHORTHANDS)
        if not any(anchor.strip() in pattern.pattern for anchor in ANCHORS):
            raise row.wrong(f"write a pattern with one of {ANCHORS} in it")
        return row.given("code"), pattern

    return tuple(read_table(name, ("code", "pattern", "source"), wording, text))


def about(body: str) -> str:
    """The GPU that the following lines of this message speak of."""
    found = _ABOUT.match(body)
    return found["pci"].lower() if found else ""


def _xid_fields(line: re.Match[str]) -> Fields:
    number, rest = int(line["number"]), line["rest"]
    fields: Fields = {"number": number, "pci": line["pci"].lower()}
    if line["mig"]:
        fields["mig"] = int(line["mig"])
    if process := _PROCESS.match(rest):
        if process["pid"].isdigit():
            fields["pid"] = int(process["pid"])
        name = (process["name"] or "").strip()
        if name and name != "<unknown>":
            fields["name"] = name
        chosen = _CHOSEN.match(rest, process.start("name")) if process["name"] is not None else None
        rest = rest[chosen.end() if chosen else process.end() :]
    if follows := _FOLLOWS.search(rest):
        fields["follows"] = int(follows[1])
    if number == ADVISER and (advice := advice_of(rest)) is not None:
        fields["advice"] = advice.value
    if number in LINKED and (link := _LINK.search(rest)):
        fields["link"] = int(link[1])
    if number == 13 and (place := _PLACE.search(rest)):
        fields["gpc"], fields["tpc"] = int(place[1]), int(place[2])
    return fields | decode(number, rest) | _said(number, rest)


def _said(number: int, rest: str) -> Fields:
    """What the words of the line ask for beyond what its number means."""
    if number == 94 and _RESET.search(rest):
        return {"resolution": Remedy.RESET_GPU.value, "why": "the driver says that this one needs a reset"}
    if number == 119 and "GSP_INIT_DONE" in rest:
        return {"resolution": Remedy.REBOOT.value, "why": "its firmware did not start at all"}
    return {}


def advice_of(text: str) -> Remedy | None:
    """What Xid 154 asks for; None if it is in words that are not known."""
    found = _ADVISES.search(text)
    if not found:
        return None
    # Where the words are cut off: the numbers stand for the same in every branch.
    number = int(found["n"], 16) if found["n"] else -1
    action = action_in(found["words"]) if found["words"] else action_of(number)
    return None if action is None else action.remedy


def _sxid_fields(line: re.Match[str]) -> Fields:
    rest = line["rest"]
    fields: Fields = {"number": int(line["number"]), "pci": line["pci"].lower()}
    if line["switch"]:
        fields["switch"] = int(line["switch"])
    if severity := _SEVERITY.match(rest):
        fields["severity"] = severity[1].replace("-", "").lower()
    if link := _LINK.search(rest):
        fields["link"] = int(link[1])
    return fields
