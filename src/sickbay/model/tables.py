"""Knowledge as frozen tables: what each fault means, and what the end of a job's log means.

`sickbay.knowledge` reads them from data files, `sickbay.brain` decides by them.
"""

from sickbay.model.fault import Remedy, Scope, Severity
from sickbay.model.noun import Noun


class Meaning(Noun):
    """What one code means to us, and why."""

    code: str  # xid.79, sxid.12028, node.lost
    component: str
    severity: Severity
    scope: Scope
    remedy: Remedy
    because: str
    source: str  # keys explained in knowledge/data/SOURCES.md
    monitor: str  # class in the EKS monitor's words
    cancels: tuple[str, ...] = ()  # codes that this one takes back
    overridden: bool = False  # an operator wrote this row: it outranks the driver's own words


class XidRow(Meaning, kw_only=True):
    number: int
    mnemonic: str = ""
    kind: str = ""  # letters of cause: H hardware, D driver, A application, M memory, B bus, T thermal, F framebuffer
    positions: dict[str, str] = {}  # what each source says, by the column's name
    notes: str = ""


class SxidRow(Meaning, kw_only=True):
    number: int
    mnemonic: str = ""
    positions: dict[str, str] = {}
    notes: str = ""


class FaultRow(Meaning):
    """A fault that no driver numbers: silence, a failed check, a person's wish."""


class DiagnosisRule(Noun):
    """One line of a log and what it says about restarting. Lower rank is nearer to the root cause."""

    name: str
    rank: int
    pattern: str
    restart: bool
    because: str
    source: str
    fault: str = ""  # the code of the fault that it tells of, where that has one: one fault, one code, whoever says it


class Diagnosis(Noun):
    """What the end of a job's log says. `restart`: whether running it again unchanged may come right."""

    name: str
    line: str
    because: str
    restart: bool


class Tables(Noun):
    xids: dict[int, XidRow]
    sxids: dict[int, SxidRow]
    faults: dict[str, FaultRow]
    diagnosis: tuple[DiagnosisRule, ...]
    digest: str  # recorded with each decision

    def meanings(self) -> tuple[Meaning, ...]:
        return (*self.xids.values(), *self.sxids.values(), *self.faults.values())
