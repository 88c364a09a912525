"""The fabric manager's own log, its lines in the journal, and those of its subnet manager.

Its switches' errors are SXids, as the kernel log has them; everything else that it cannot do is in the table.
"""

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import ClassVar

from sickbay.knowledge.csv_table import read_table
from sickbay.knowledge.dcgm import DcgmMessage, said, squeezed, words_in
from sickbay.model.sign import Fields, Sign
from sickbay.signs.readers import Document

TEXT = 500
LONGEST = 4096
DOWN = "fabric_manager.down"

_OWN = re.compile(
    r"\[(?:[A-Z][a-z]{2} [ \d]?\d \d{4} \d\d:\d\d:\d\d|\d{4}-\d\d-\d\d[ T][\d:.,+Z-]{8,30})\] "
    r"\[(TRACE|DEBUG|INFO|NOTICE|WARNING|WARN|ERROR|CRITICAL|FATAL)\] (?:\[tid \d{1,10}\] )?(.*)",
    re.ASCII,
)
# What stands before the program's name in a journal is everybody's own.
_JOURNAL = re.compile(
    r"(?:^|.{0,120}?\s)(nv-fabricmanager|nvidia-fabricmanager-start\.sh|nvidia-fabricmanager|nv_fabricmanager|nvlsm|"
    r"nvidia-fabricmanager-wrapper)(?:\[\d{1,10}\])?: (.*)"
)
_SYSTEMD = re.compile(
    r"(?:^|.{0,120}?\s)systemd\[\d{1,10}\]: (.*)|"
    r"(Job for nvidia-fabricmanager\.service failed.{0,200}|nvidia-fabricmanager\.service: (?:Failed|Main).{0,200})"
)
_SWITCH = re.compile(
    r"(?:detected )?NVSwitch (non-fatal|fatal) error:? (\d{1,6})\b(?:.*?pci bus id ([0-9a-fA-F:.]{7,16}))?"
    r"(?:.*?physical id (\d{1,4}))?(?:.*?port (\d{1,4}))?",
    re.IGNORECASE | re.ASCII,
)
_PCI = re.compile(r"\b((?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])\b", re.ASCII)
_UUID = re.compile(r"\b(GPU-[0-9a-fA-F-]{8,40})\b", re.ASCII)
_LEVELS = frozenset({"ERROR", "CRITICAL", "FATAL", "WARNING", "WARN"})


@cache
def rules() -> list[DcgmMessage]:
    columns = ("code", "words", "source")
    return read_table("fabric_manager.csv", columns, lambda row: DcgmMessage(code=row["code"], words=words_in(row)))


class FabricManager(Document):
    """Line by line. What repeats is told again: whoever collects signs counts them."""

    ANCHORS: ClassVar[tuple[str, ...]] = (
        "[tid ",
        "NVSwitch",
        "fabricmanager",
        "abric Manager",
        "abric manager",
        "nvlsm",
        "multicast team",
    )

    def __init__(self) -> None:
        super().__init__()
        self._explained = False  # a cause was named: that the service then ended is no news

    def read(self, number: int, line: str) -> Iterable[Sign]:
        self.owns = False
        if len(line) > LONGEST or not any(word in line for word in self.ANCHORS):
            return ()
        text = line.strip()
        if own := _OWN.fullmatch(text):
            # The month's name is the fabric manager's; a date in figures is everybody's.
            self.owns = not text[1].isdigit() or "NVSwitch" in own[2] or "abric" in own[2]
            return self._message(number, text, own[2]) if self.owns and own[1] in _LEVELS else ()
        if program := _JOURNAL.match(text):
            self.owns = True
            inner = _OWN.fullmatch(program[2])
            if inner and inner[1] not in _LEVELS:
                return ()
            return self._message(number, text, inner[2] if inner else program[2])
        if systemd := _SYSTEMD.match(text):
            return self._service(number, text, systemd[1] or systemd[2] or "")
        return ()

    def end(self) -> Iterable[Sign]:
        self.owns = False
        return ()

    def _message(self, number: int, line: str, message: str) -> Iterator[Sign]:
        if switch := _SWITCH.match(message):
            fields: Fields = {"number": int(switch[2]), "severity": switch[1].lower().replace("-", "")}
            for name, value in (("pci", switch[3]), ("switch", switch[4]), ("port", switch[5])):
                if value:
                    fields[name] = value.lower() if name == "pci" else int(value)
            yield Sign(kind="sxid", fields=fields, text=line[:TEXT], line=number)
            return
        squeezed_text = squeezed(message)
        for rule in rules():
            if any(said(words, squeezed_text) for words in rule.words):
                if rule.code == DOWN and self._explained:
                    return
                if rule.code:
                    self._explained = True
                    yield Sign(kind=rule.code, fields=_where(message), text=line[:TEXT], line=number)
                else:
                    self._explained = False  # it runs
                return

    def _service(self, number: int, line: str, message: str) -> Iterator[Sign]:
        if "fabricmanager" not in message and "fabric manager" not in message.lower():
            return
        self.owns = True
        if message.startswith(("Started", "Starting", "Stopped", "Stopping")):
            if message.startswith("Starting"):
                self._explained = False
            return
        ended = (
            "Failed with result",
            "Main process exited",
            "Failed to start",
            "failed because",
            "Start request repeated",
        )
        if any(words in message for words in ended) and "status=0" not in message and not self._explained:
            self._explained = True
            yield Sign(kind=DOWN, text=line[:TEXT], line=number)


def _where(message: str) -> Fields:
    fields: Fields = {}
    if pci := _PCI.search(message):
        fields["pci"] = pci[1].lower()
    if uuid := _UUID.search(message):
        fields["uuid"] = uuid[1]
    return fields
