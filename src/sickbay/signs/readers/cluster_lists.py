"""Lists of a cluster's tools: nodes and pods of kubectl, nodes and jobs of Slurm. A row says little, but where."""

import re
from collections.abc import Callable, Iterable
from typing import ClassVar, NamedTuple

from sickbay.model.sign import Sign
from sickbay.signs.readers import Document, proven
from sickbay.signs.readers.words import code_of

LONGEST = 1024
# A state of a job that is too long for its column is cut off.
_ENDS = r"(?P<state>OUT_OF_ME|NODE_FAIL|BOOT_FAIL|PREEMPTED|TIMEOUT|DEADLINE|CANCELLED|FAILED)"
_JOB_STATE = re.compile(r"\s*JobState=" + _ENDS)
_NODE_STATE = r"(?P<state>[a-z_]{2,16})(?P<mark>[*~#!%$@^+-]{0,3})"


def _node_of_kubernetes(row: re.Match[str]) -> str:
    status = row["status"].split(",", 1)[0]
    return {"Ready": "", "Unknown": "kube.node_unreachable"}.get(status, "kube.node_not_ready")


def _pod(row: re.Match[str]) -> str:
    return code_of("event", row["status"].removeprefix("Init:"))


def _node_of_slurm(row: re.Match[str]) -> str:
    return code_of("node state", row["state"]) or ("slurm.not_responding" if "*" in row["mark"] else "")


def _job(row: re.Match[str]) -> str:
    return code_of("job state", row["state"]) if row["state"] else ""


class _List(NamedTuple):
    """A list's heading, its rows, and what a row means: a code, or nothing."""

    head: re.Pattern[str]
    row: re.Pattern[str]
    means: Callable[[re.Match[str]], str]


_NODES = _List(
    re.compile(r"\s*NAME\s{1,80}STATUS\s{1,40}(?:ROLES\s{1,40})?AGE\s", re.ASCII),
    re.compile(
        r"\s*(?P<node>[a-z0-9][\w.-]{0,252})\s{1,80}(?P<status>(?:Not)?Ready(?:,\w{1,30}){0,3}|Unknown)"
        r"(?:\s{1,40}(?:<none>|[\w,-]{1,80}))?\s{1,40}\d{1,6}[smhdy]\S{0,8}(?:\s{1,20}v\d\S{0,40})?(?:\s.{0,200})?$",
        re.ASCII,
    ),
    _node_of_kubernetes,
)
_LISTS = (
    _NODES,
    _List(
        re.compile(r"\s*(?:NAMESPACE\s{1,80})?NAME\s{1,120}READY\s{1,20}STATUS\s{1,60}RESTARTS\s", re.ASCII),
        re.compile(
            r"\s*(?:[\w.-]{1,253}\s{1,80})?(?P<pod>[a-z0-9][\w.-]{0,252})\s{1,120}\d{1,4}/\d{1,4}\s{1,20}"
            r"(?P<status>[A-Z]\w{1,60}|Init:\w{1,60})\s{1,60}\d",
            re.ASCII,
        ),
        _pod,
    ),
    _List(
        re.compile(
            r"\s*PARTITION\s{1,20}AVAIL\s{1,20}TIMELIMIT\s{1,20}NODES\s{1,20}STATE\s{1,20}NODELIST\s*$", re.ASCII
        ),
        re.compile(
            r"\s*[\w.-]{1,64}\*?\s{1,20}(?:up|down|drain|inact)\s{1,20}[\w:-]{1,20}\s{1,20}\d{1,6}\s{1,20}"
            rf"{_NODE_STATE}\s{{1,20}}(?P<node>[\w.\[\],-]{{1,400}})\s*$",
            re.ASCII,
        ),
        _node_of_slurm,
    ),
    _List(
        re.compile(r"\s*NODELIST\s{1,80}NODES\s{1,20}PARTITION\s{1,20}STATE\s", re.ASCII),
        re.compile(
            rf"\s*(?P<node>[\w.\[\],-]{{1,400}})\s{{1,80}}\d{{1,6}}\s{{1,20}}\S{{1,64}}\s{{1,20}}{_NODE_STATE}(?:\s|$)",
            re.ASCII,
        ),
        _node_of_slurm,
    ),
    # `sacct`: the job's or the step's number, and among the rest its state.
    _List(
        re.compile(r"\s*JobID\S{0,8}\s.{0,400}\bState\b", re.ASCII),
        re.compile(
            rf"(?=\s*(?:\d{{1,12}}\S{{0,24}}\s|-{{3,}}[ -]{{0,400}}$))"
            rf"(?:\s*\d{{1,12}}(?:_\S{{1,20}})?(?:\.\w{{1,16}}|\+\d{{1,4}})?\s.{{0,400}}?\s{_ENDS})?",
            re.ASCII,
        ),
        _job,
    ),
)


class ClusterLists(Document):
    """Line by line; it remembers under which heading it is."""

    ANCHORS: ClassVar[tuple[str, ...]] = (" NotReady", "STATUS ", "TIMELIMIT", "JobID ", "JobState=", "NODELIST ")

    def __init__(self) -> None:
        super().__init__()
        self._under: _List | None = None

    def read(self, number: int, line: str) -> Iterable[Sign]:
        self.owns = False
        if len(line) > LONGEST or not line.strip():
            self._under = None
            return ()
        maybe = _LISTS if "STATUS" in line or "STATE" in line or "State" in line else ()
        if head := next((each for each in maybe if each.head.match(line)), None):
            self._under, self.owns = head, True
            return ()
        if self._under is None and "JobState=" in line and (job := _JOB_STATE.match(line)):
            return proven(_signs(_job(job), job), number, line)
        # A row of nodes is known without its heading too.
        under = self._under or (_NODES if "NotReady" in line else None)
        row = under.row.match(line) if under else None
        self.owns = row is not None
        if under is None or row is None:
            self._under = None
            return ()
        return proven(_signs(under.means(row), row), number, line)

    def end(self) -> Iterable[Sign]:
        self._under = None
        return super().end()


def _signs(code: str, row: re.Match[str]) -> Iterable[Sign]:
    if not code:
        return ()
    kind, _, rule = code.partition(".")
    if kind == "job":
        return (Sign(kind=kind, fields={"name": rule}),)
    return (Sign(kind=code, fields={name: row[name] for name in ("node", "pod") if name in row.groupdict()}),)
