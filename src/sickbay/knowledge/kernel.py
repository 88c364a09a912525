"""Lines of the kernel log → kind and fields.

Only what the driver itself printed is read: a line that begins, after the stamps that kernel and syslog put before it,
with the driver's own words. A program that prints an Xid into its log, or a person who writes about one, is not heard.
Formats: NVIDIA's open kernel modules (see data/SOURCES.md).
"""

import re

from sickbay.brain.classify import ADVISER
from sickbay.model.fault import Remedy
from sickbay.model.noun import Noun

Fields = dict[str, str | int]


class ParsedLine(Noun):
    """`kind` is xid or sxid; `fields` as `brain.classify` reads them."""

    kind: str
    fields: Fields


# What the driver wants done (Xid 154), in the words of all branches. "Drain P2P" asks for the end of the work that
# talks to peers, which is what restarting the job does; "Drain and Reset" lets work end first, as every reset of ours.
ADVICE: dict[str, Remedy] = {
    "none": Remedy.NONE,
    "gpu reset required": Remedy.RESET_GPU,
    "pf flr": Remedy.RESET_GPU,
    "node reboot required": Remedy.REBOOT,
    "os reboot": Remedy.REBOOT,
    "drain p2p": Remedy.RESTART_JOB,
    "drain and reset": Remedy.RESET_GPU,
}

_STAMP = (
    r"(?:<\d{1,3}>|\d+,\d+,\d+,[^;\s]*;)?"  # /dev/kmsg
    r"(?:kern\s*:\w+\s*:\s*)?"  # dmesg -x
    r"(?:\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*\s+|[A-Z][a-z]{2}\s+\d{1,2}\s\d\d:\d\d:\d\d\s+)?"  # syslog
    r"(?:(?:[\w.-]+\s+)?kernel:\s+)?"  # host and program; no other program speaks for the kernel
    r"(?:\[[\s\w:.]{1,40}\](?:\[\s*[TC]\d+\])?\s+)?"  # dmesg, dmesg -T, with the printing thread
)
_PCI = r"PCI:(?P<pci>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"
_XID = re.compile(
    rf"{_STAMP}NVRM: Xid \({_PCI}(?: GPU-I:(?P<mig>\d{{1,2}}))?\): (?P<number>\d{{1,5}})(?:, (?P<rest>.*))?", re.ASCII
)
_SXID = re.compile(
    rf"{_STAMP}nvidia-nvswitch(?P<switch>\d{{1,3}}): SXid \({_PCI}\): (?P<number>\d{{1,5}})(?:, (?P<rest>.*))?",
    re.ASCII,
)
_PROCESS = re.compile(r"pid='?(?P<pid>\d{1,10}|<unknown>)'?(?:, name=(?P<name>[^,]*))?(?:,|$)", re.ASCII)
_FOLLOWS = re.compile(r" caused by previous Xid (\d{1,5})$", re.ASCII)
_ADVISES = re.compile(r"GPU recovery action changed from 0x[0-9a-fA-F]+ \(.*?\) to 0x[0-9a-fA-F]+ \((.*?)\)$", re.ASCII)
_LINK = re.compile(r"\blink:? (\d{1,3})\b", re.ASCII | re.IGNORECASE)
_SEVERITY = re.compile(r"(Fatal|Non-fatal)(?:,|$)", re.ASCII)
_DETAIL = re.compile(r"Severity \d|Data \{", re.ASCII)

LINKED = frozenset({74, *range(144, 151)})
LONGEST = 4096  # the kernel prints no such line; what is longer is no line of its


def parse_line(text: str) -> ParsedLine | None:
    """What the driver said in this line; None if it is not the driver's, or only details of the line before."""
    line = text.strip()
    if len(line) > LONGEST:
        return None
    if xid := _XID.fullmatch(line):
        return ParsedLine(kind="xid", fields=_xid_fields(xid))
    if sxid := _SXID.fullmatch(line):
        # An event is one headline and up to two lines of detail under the same number: events are counted, not lines.
        return None if _DETAIL.match(sxid["rest"] or "") else ParsedLine(kind="sxid", fields=_sxid_fields(sxid))
    return None


def _xid_fields(line: re.Match[str]) -> Fields:
    number, rest = int(line["number"]), line["rest"] or ""
    fields: Fields = {"number": number, "pci": line["pci"].lower()}
    if line["mig"]:
        fields["mig"] = int(line["mig"])
    if process := _PROCESS.match(rest):
        if process["pid"].isdigit():
            fields["pid"] = int(process["pid"])
        if process["name"] and process["name"] != "<unknown>":
            fields["name"] = process["name"]
        rest = rest[process.end() :]  # a process chooses its name: what follows is read without it
    if follows := _FOLLOWS.search(rest):
        fields["follows"] = int(follows[1])
    if number == ADVISER and (advises := _ADVISES.search(rest)):
        advice = ADVICE.get(advises[1].strip().lower())
        if advice is not None:
            fields["advice"] = advice.value
    if number in LINKED and (link := _LINK.search(rest)):
        fields["link"] = int(link[1])
    return fields


def _sxid_fields(line: re.Match[str]) -> Fields:
    rest = line["rest"] or ""
    fields: Fields = {"number": int(line["number"]), "pci": line["pci"].lower(), "switch": int(line["switch"])}
    if severity := _SEVERITY.match(rest):
        fields["severity"] = severity[1].replace("-", "").lower()
    if link := _LINK.search(rest):
        fields["link"] = int(link[1])
    return fields
