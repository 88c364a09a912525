"""Root-cause analysis of a text: signs → symptoms, each named, repeats counted, consequences under their cause."""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from msgspec.structs import replace

from sickbay.brain.causes import CAUSES, GPU, HARDWARE, CausalRule, fits
from sickbay.model.facts import Observed
from sickbay.model.fault import RUNGS, Fault, Remedy, Scope, Severity
from sickbay.model.fleet import NodeId
from sickbay.model.sign import Fields, Sign
from sickbay.model.symptom import Symptom
from sickbay.model.tables import CONSEQUENCE, RAISED, DiagnosisRule, Tables
from sickbay.signs.classify import ADVISER, classify

MOST = 2000  # different symptoms of one text; a text with more has one illness in many words
MOST_EACH = 100_000
LIVES = 64  # boots in one text that are told apart
BOOT = "boot"
KEPT = 400  # of the line that proves it
HERE = NodeId("")

ADVICE_CODE = f"xid.{ADVISER}"
# Fields that tell one patient from another, and how a person reads them.
PLACES = (
    ("device", "GPU {}"), ("gpu", "GPU {}"), ("uuid", "{}"), ("mig", "MIG instance {}"),
    ("switch", "NVSwitch {}"), ("link", "link {}"),
    ("port", "port {}"), ("interface", "{}"), ("disk", "{}"), ("mount", "{}"), ("cpu", "CPU {}"),
    ("node", "node {}"), ("pod", "pod {}"),
    ("dimm", "{}"), ("core", "core {}"), ("neuron", "Neuron device {}"),
)  # fmt: skip
PART = frozenset({"mig", "link", "port", "cpu", "core"})  # never without the device that it is a part of
# Fields that change what a sign means.
MEANS = ("number", "severity", "advice", "resolution", "follows")
GRAVE = frozenset({Severity.ERROR, Severity.FATAL})

_PCI = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})(?:\.[0-7])?")


def name_all(signs: Iterable[Sign], tables: Tables, *, each: bool = False) -> tuple[Symptom, ...]:
    """All that is wrong, in the order of the text. `each`: a symptom for every line instead of one with a count."""
    ward = _Ward(tables, each=each)
    for sign in signs:
        ward.take(sign)
    return tuple(ward.symptoms())


class NamedFault(NamedTuple):
    fault: Fault
    restart: bool | None = None


def named(sign: Sign, tables: Tables) -> NamedFault | None:
    """What one sign means by itself."""
    if sign.kind == "job":
        if sign.fields.get("name") == RAISED:
            return NamedFault(_raised(sign))
        rule = next((rule for rule in tables.diagnosis if rule.name == sign.fields.get("name")), None)
        return None if rule is None else _job(rule, sign, tables)
    fault = classify(Observed(node=HERE, kind=sign.kind, fields=sign.fields, text=sign.text), tables)
    return None if fault is None else NamedFault(fault)


def _raised(sign: Sign) -> Fault:
    return Fault(
        code=f"job.{RAISED}",
        component="application",
        severity=Severity.WARNING,
        scope=Scope.NODE,
        remedy=Remedy.NONE,
        because="the program raised an error that is not known here: its own words say what",
        evidence=sign.text,
    )


def _job(rule: DiagnosisRule, sign: Sign, tables: Tables) -> NamedFault:
    same = tables.faults.get(rule.fault)
    if same is not None:
        seen = classify(Observed(node=HERE, kind=same.code, text=sign.text), tables)
        if seen is not None:
            return NamedFault(seen, rule.restart)
    return NamedFault(
        Fault(
            code=f"job.{rule.name}",
            # What comes right when it is run again was not the program's doing.
            component="job" if rule.restart else "application",
            severity=Severity.WARNING,
            scope=Scope.NODE,
            remedy=Remedy.RESTART_JOB if rule.restart else Remedy.NONE,
            because=rule.because,
            evidence=sign.text,
        ),
        rule.restart,
    )


# --- where


def gpu_of(fields: Fields) -> str:
    """One name for one GPU: PCI addresses are written in several lengths."""
    pci = _PCI.fullmatch(str(fields.get("pci", "")).lower())
    if pci is not None:
        return f"{int(pci[1], 16):04x}:{pci[2]}:{pci[3]}"
    for field in ("pci", "uuid", "device", "gpu"):
        if field in fields:
            return str(fields[field])
    return ""


def _where(fields: Fields) -> str:
    said = [gpu_of(fields)] if "pci" in fields else []
    said += [
        words.format(fields[field]) for field, words in PLACES if field in fields and not (said and field == "device")
    ]
    return ", ".join(said)


def _device(fields: Fields) -> str:
    named = gpu_of(fields)
    return named or next((str(fields[field]) for field, _ in PLACES if field in fields and field not in PART), "")


# --- one group of repeats


class _Group:
    def __init__(self, named: NamedFault, sign: Sign) -> None:
        self.fault, self.restart = named
        self.sign = sign
        self.gpu = gpu_of(sign.fields)
        self.count = 0
        self.last = sign.line
        self.lives: dict[int, int] = {}  # in which boots it was seen, and where first
        self.advice: Remedy | None = None
        self.cancelled = ""
        self.root: _Group | None = None
        self.why = ""

    @property
    def code(self) -> str:
        return self.fault.code

    def roots(self) -> "Iterator[_Group]":
        group: _Group | None = self
        while group is not None:
            yield group
            group = group.root


class _Ward:
    """All groups of one text."""

    def __init__(self, tables: Tables, *, each: bool) -> None:
        self._tables = tables
        self._each = each
        self._groups: dict[tuple[object, ...], _Group | None] = {}
        self._life = 0
        self._latest: dict[str, _Group] = {}  # the last fault of each GPU, for the driver's advice
        self._ranks = {f"job.{rule.name}": rule.rank for rule in tables.diagnosis}
        self._ranks[f"job.{RAISED}"] = CONSEQUENCE - 1

    def take(self, sign: Sign) -> None:
        if sign.kind == BOOT:
            self._life += 1
            self._latest.clear()
            return
        group = self._group(sign)
        if group is None:
            return
        group.count += sign.count
        group.last = max(group.last, sign.line)
        group.cancelled = ""
        if self._life not in group.lives and len(group.lives) < LIVES:
            group.lives[self._life] = sign.line
        if group.code == ADVICE_CODE:
            self._advise(group)
        elif group.gpu and group.fault.severity is not Severity.INFO:
            self._latest[group.gpu] = group
        for code in group.fault.cancels:
            self._cancel(code, group)

    def _group(self, sign: Sign) -> _Group | None:
        fields = sign.fields
        key: tuple[object, ...] = (
            sign.kind, gpu_of(fields), fields.get("name") if sign.kind == "job" else "",
            *(fields.get(field) for field, _ in PLACES), *(fields.get(field) for field in MEANS),
            sign.line if self._each else 0,
        )  # fmt: skip
        if key in self._groups:
            return self._groups[key]
        if len(self._groups) >= (MOST_EACH if self._each else MOST):
            return None
        meaning = named(sign, self._tables)
        self._groups[key] = None if meaning is None else _Group(meaning, sign)
        return self._groups[key]

    def _advise(self, adviser: _Group) -> None:
        target = self._latest.get(adviser.gpu)
        advice = adviser.fault.advice
        if target is None or advice is None or advice is Remedy.NONE:
            return
        if target.advice is None or advice.rank > target.advice.rank:
            target.advice = advice
        adviser.root, adviser.why = target, "the driver's own word on it"

    def _cancel(self, code: str, by: _Group) -> None:
        for group in self._groups.values():
            if group is not None and group.code == code and group.gpu == by.gpu:
                group.cancelled = by.code

    # --- out

    def symptoms(self) -> Iterator[Symptom]:
        groups = sorted(
            (group for group in self._groups.values() if group is not None), key=lambda group: group.sign.line
        )
        self._relate(groups)
        for group in groups:  # the driver's word on a consequence is its word on the cause
            *_, root = group.roots()
            if group.advice is not None and (root.advice is None or group.advice.rank > root.advice.rank):
                root.advice = group.advice
        places = {id(group): place for place, group in enumerate(groups)}
        for group in groups:
            yield self._symptom(group, places)

    def _relate(self, groups: list[_Group]) -> None:
        by_code: dict[str, list[_Group]] = {}
        for group in groups:
            by_code.setdefault(group.code, []).append(group)
        for group in groups:
            if group.root is None:
                self._by_driver(group, by_code)
        for row in CAUSES:
            effects = [group for group in groups if group.root is None and fits(group.code, row.brings)]
            causes = [group for group in groups if fits(group.code, row.codes)] if effects else []
            for effect in effects:
                _attach(effect, next((cause for cause in causes if _brought(effect, cause, row)), None), row.why)
        for group in groups:
            self._by_rank(group, groups)

    def _by_driver(self, group: _Group, by_code: dict[str, list[_Group]]) -> None:
        """`caused by previous Xid N`."""
        if group.fault.follows:
            cause = next((other for other in by_code.get(group.fault.follows, ()) if other.gpu == group.gpu), None)
            _attach(group, cause, "the driver names its cause")

    def _by_rank(self, group: _Group, groups: list[_Group]) -> None:
        """What a job's log says at a higher rank follows from the lower, and from faults of the hardware before it."""
        rank = self._ranks.get(group.code, 0)
        if group.root is not None or rank < CONSEQUENCE:
            return
        hardware = [
            g for g in groups if g.fault.severity in GRAVE and fits(g.code, HARDWARE) and g.sign.line <= group.last
        ]
        nearer = sorted(
            (g for g in groups if 0 < self._ranks.get(g.code, 0) < rank),
            key=lambda g: (self._ranks[g.code], g.sign.line),
        )
        cause = next(iter([*hardware, *nearer]), None)
        _attach(
            group,
            cause,
            "the other ranks wait for the one that is gone" if rank == CONSEQUENCE else "what the launcher does then",
        )

    def _symptom(self, group: _Group, places: dict[int, int]) -> Symptom:
        fault = _treated(group, self._tables)
        root = group.root
        because = fault.because
        if root is not None:
            because = f"follows {root.code} (line {root.sign.line}): {group.why}; {because}"
        return Symptom(
            line=group.sign.line,
            text=group.sign.text[:KEPT],
            code=fault.code,
            monitor=fault.monitor_class,
            component=fault.component,
            severity=fault.severity,
            scope=fault.scope,
            remedy=fault.remedy,
            because=because,
            device=_device(group.sign.fields),
            where=_where(group.sign.fields),
            count=group.count,
            last_line=group.last,
            follows=root.code if root is not None else fault.follows,
            root=places[id(root)] if root is not None else -1,
            needs=RUNGS[fault.remedy].needs or "",
            restart=group.restart,
        )


def _attach(effect: _Group, cause: _Group | None, why: str) -> None:
    if cause is not None and all(group is not effect for group in cause.roots()):
        effect.root, effect.why = cause, why


def _brought(effect: _Group, cause: _Group, row: CausalRule) -> bool:
    if cause is effect or cause.code == effect.code:
        return False
    if row.grave and cause.fault.severity not in GRAVE:
        return False
    if row.same == GPU and cause.gpu and effect.gpu and cause.gpu != effect.gpu:
        return False
    shared = [life for life in effect.lives if life in cause.lives]
    if len(shared) < len(effect.lives):
        return False  # it was there in a boot that did not see the cause
    return not row.before or all(cause.lives[life] <= effect.lives[life] for life in shared)


def _treated(group: _Group, tables: Tables) -> Fault:
    """The fault with the driver's advice, if it gave one, and without its sting, if it was taken back."""
    fault, advice = group.fault, group.advice
    if group.cancelled:
        why = f"taken back by {group.cancelled}; {fault.because}"
        return replace(fault, severity=Severity.INFO, remedy=Remedy.NONE, because=why)
    if group.code == ADVICE_CODE:
        advice = fault.advice
        if group.root is not None or advice is None:
            return fault
    if advice is None or advice is Remedy.NONE or _overridden(fault, tables):
        return fault
    severity = Severity.ERROR if advice.disrupts and fault.severity not in GRAVE else fault.severity
    why = f"the driver asks for {advice}; {fault.because}"
    return replace(fault, remedy=advice, severity=severity, because=why)


def _overridden(fault: Fault, tables: Tables) -> bool:
    return any(row.code == fault.code and row.overridden for row in tables.meanings())
