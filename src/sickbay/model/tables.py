"""Knowledge as frozen tables: what each fault means, and what the end of a job's log means.

`sickbay.knowledge` reads them from data files, `sickbay.brain` decides by them.
"""

from sickbay.model.fault import Fault, Remedy, Scope, Severity
from sickbay.model.noun import Noun

UNLISTED = "not in the table"


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

    def fault(self, evidence: str = "", device: int | None = None) -> Fault:
        return Fault(
            code=self.code, component=self.component, severity=self.severity, scope=self.scope, remedy=self.remedy,
            because=self.because, cancels=self.cancels, evidence=evidence, device=device,
        )  # fmt: skip


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
    """One line of a log and what it says about restarting. Lower rank is nearer to the root cause.

    One of the `words`, in small letters, is in every line that the pattern fits; (): the pattern is tried on all lines.
    """

    name: str
    rank: int
    pattern: str
    restart: bool
    because: str
    source: str
    words: tuple[str, ...] = ()
    fault: str = ""  # the code of the fault that it tells of, where that has one: one fault, one code, whoever says it


CONSEQUENCE = 4  # from this rank of a rule on a line tells what follows when a rank is gone
RAISED = "raised"  # an error that no rule knows, by its traceback


class Diagnosis(Noun):
    """What the end of a job's log says. `restart`: whether running it again unchanged may come right."""

    name: str  # of its rule, or RAISED
    line: str
    because: str
    restart: bool
    rank: int = 1


class Tables(Noun):
    xids: dict[int, XidRow]
    sxids: dict[int, SxidRow]
    faults: dict[str, FaultRow]
    diagnosis: tuple[DiagnosisRule, ...]
    digest: str  # recorded with each decision

    def xid(self, number: int | None) -> XidRow:
        """Its row; one that asks for nothing but attention where the table has none."""
        known = self.xids.get(number) if number is not None else None
        return known or XidRow(
            code=f"xid.{'unknown' if number is None else number}", number=number or 0, component="gpu",
            severity=Severity.WARNING, scope=Scope.DEVICE, remedy=Remedy.WATCH, because=UNLISTED, source="ours",
            monitor=f"XID_WARNING_{number or 0}",
        )  # fmt: skip

    def sxid(self, number: int | None) -> SxidRow:
        """The same for a number of the switches' driver."""
        known = self.sxids.get(number) if number is not None else None
        return known or SxidRow(
            code=f"sxid.{'unknown' if number is None else number}", number=number or 0, component="nvswitch",
            severity=Severity.WARNING, scope=Scope.FABRIC, remedy=Remedy.WATCH, because=UNLISTED, source="ours",
            monitor="GPU_HEALTH_WARNING",
        )  # fmt: skip

    def meanings(self) -> tuple[Meaning, ...]:
        return (*self.xids.values(), *self.sxids.values(), *self.faults.values())
