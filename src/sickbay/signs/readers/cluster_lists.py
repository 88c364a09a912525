"""What a cluster's tools list: `kubectl get nodes`, `kubectl get pods`, `sinfo`. A row says little, but where."""

import re
from collections.abc import Iterable
from typing import Any, ClassVar

from sickbay.model.sign import Fields, Sign
from sickbay.signs.readers.kube_tables import REASONS

LONGEST = 1024
KEPT = 400

_NODES = re.compile(r"\s*NAME\s{1,80}STATUS\s{1,40}(?:ROLES\s{1,40})?AGE\s", re.ASCII)
_PODS = re.compile(r"\s*(?:NAMESPACE\s{1,80})?NAME\s{1,120}READY\s{1,20}STATUS\s{1,60}RESTARTS\s", re.ASCII)
_SINFO = re.compile(
    r"\s*PARTITION\s{1,20}AVAIL\s{1,20}TIMELIMIT\s{1,20}NODES\s{1,20}STATE\s{1,20}NODELIST\s*$", re.ASCII
)
# A row of nodes is known without its heading too.
_NODE = re.compile(
    r"\s*(?P<node>[a-z0-9][\w.-]{0,252})\s{1,80}(?P<status>(?:Not)?Ready(?:,\w{1,30}){0,3}|Unknown)"
    r"(?:\s{1,40}(?:<none>|[\w,-]{1,80}))?\s{1,40}\d{1,6}[smhdy]\S{0,8}(?:\s{1,20}v\d\S{0,40})?(?:\s.{0,200})?$",
    re.ASCII,
)
_POD = re.compile(
    r"\s*(?:[\w.-]{1,253}\s{1,80})?(?P<pod>[a-z0-9][\w.-]{0,252})\s{1,120}\d{1,4}/\d{1,4}\s{1,20}"
    r"(?P<status>[A-Z]\w{1,60}|Init:\w{1,60})\s{1,60}\d",
    re.ASCII,
)
_PARTITION = re.compile(
    r"\s*[\w.-]{1,64}\*?\s{1,20}(?:up|down|drain|inact)\s{1,20}[\w:-]{1,20}\s{1,20}(?P<count>\d{1,6})\s{1,20}"
    r"(?P<state>[a-z_]{2,16})(?P<mark>[*~#!%$@^+-]{0,3})\s{1,20}(?P<node>[\w.\[\],-]{1,400})\s*$",
    re.ASCII,
)
_NODES_LONG = re.compile(r"\s*NODELIST\s{1,80}NODES\s{1,20}PARTITION\s{1,20}STATE\s", re.ASCII)
_NODE_LONG = re.compile(
    r"\s*(?P<node>[\w.\[\],-]{1,400})\s{1,80}\d{1,6}\s{1,20}\S{1,64}\s{1,20}(?P<state>[a-z_]{2,16})(?P<mark>[*~#!%$@^+-]{0,3})"
    r"(?:\s|$)",
    re.ASCII,
)
# `sacct`: the job's or the step's number, and among the rest its state; a state too long for its column is cut off.
_JOBS = re.compile(r"\s*JobID\S{0,8}\s.{0,400}\bState\b", re.ASCII)
_JOB = re.compile(
    r"\s*\d{1,12}(?:_\S{1,20})?(?:\.\w{1,16}|\+\d{1,4})?\s.{0,400}?\s(?P<state>OUT_OF_ME|NODE_FAIL|BOOT_FAIL|PREEMPTED|TIMEOUT"
    r"|DEADLINE|CANCELLED|FAILED)",
    re.ASCII,
)
_ROW_OF_JOB = re.compile(r"\s*(?:\d{1,12}\S{0,24}\s|-{3,}[ -]{0,400}$)", re.ASCII)
_JOB_STATE = re.compile(
    r"\s*JobState=(?P<state>OUT_OF_ME|NODE_FAIL|BOOT_FAIL|PREEMPTED|TIMEOUT|DEADLINE|CANCELLED|FAILED)"
)
_ENDS = {
    "OUT_OF_ME": "os.oom_kill",
    "NODE_FAIL": "slurm.node_failure",
    "BOOT_FAIL": "slurm.node_failure",
    "PREEMPTED": "slurm.preempted",
    "TIMEOUT": "slurm.time_limit",
    "DEADLINE": "slurm.time_limit",
    "CANCELLED": "slurm.cancelled",
    "FAILED": "job",
}
_STATES = {
    "down": "slurm.node_down",
    "drain": "slurm.node_drained",
    "drained": "slurm.node_drained",
    "drng": "slurm.node_drained",
    "draining": "slurm.node_drained",
    "fail": "slurm.node_drained",
    "failing": "slurm.node_drained",
    "failg": "slurm.node_drained",
    "inval": "slurm.low_resources",
}

_HEADS = (("nodes", _NODES), ("pods", _PODS), ("sinfo", _SINFO), ("long", _NODES_LONG), ("jobs", _JOBS))


class ClusterLists:
    """Line by line; it remembers under which heading it is."""

    ANCHORS: ClassVar[tuple[str, ...]] = (" NotReady", "STATUS ", "TIMELIMIT", "JobID ", "JobState=", "NODELIST ")

    def __init__(self) -> None:
        self._under = ""
        self._owns = False

    @property
    def owns(self) -> bool:
        return self._owns

    def read(self, number: int, line: str) -> Iterable[Sign]:
        self._owns = False
        if len(line) > LONGEST or not line.strip():
            self._under = ""
            return ()
        for name, head in _HEADS:
            if ("STATUS" in line or "STATE" in line or "State" in line) and head.match(line):
                self._under, self._owns = name, True
                return ()
        if self._under == "pods":
            return self._pod(number, line)
        if self._under == "sinfo":
            return self._partition(number, line, _PARTITION)
        if self._under == "long":
            return self._partition(number, line, _NODE_LONG)
        if self._under == "jobs":
            return self._job(number, line)
        if "JobState=" in line and (job := _JOB_STATE.match(line)):
            return _ended(job["state"], number, line)
        return self._node(number, line) if self._under or "NotReady" in line else ()

    def value(self, number: int, value: Any) -> Iterable[Sign]:
        del number, value
        return ()

    def end(self) -> Iterable[Sign]:
        self._under, self._owns = "", False
        return ()

    def _node(self, number: int, line: str) -> Iterable[Sign]:
        row = _NODE.match(line)
        if row is None:
            self._under = ""
            return ()
        self._owns = True
        state = row["status"].split(",", 1)[0]
        if state == "Ready":
            return ()
        code = "kube.node_unreachable" if state == "Unknown" else "kube.node_not_ready"
        return (_sign(code, {"node": row["node"]}, number, line),)

    def _pod(self, number: int, line: str) -> Iterable[Sign]:
        row = _POD.match(line)
        if row is None:
            self._under = ""
            return ()
        self._owns = True
        code = REASONS.get(row["status"].removeprefix("Init:"), "")
        return (_sign(code, {"pod": row["pod"]}, number, line),) if code else ()

    def _job(self, number: int, line: str) -> Iterable[Sign]:
        if not _ROW_OF_JOB.match(line):
            self._under = ""
            return ()
        self._owns = True
        row = _JOB.match(line)
        return _ended(row["state"], number, line) if row else ()

    def _partition(self, number: int, line: str, shape: re.Pattern[str]) -> Iterable[Sign]:
        row = shape.match(line)
        if row is None:
            self._under = ""
            return ()
        self._owns = True
        code = _STATES.get(row["state"], "slurm.not_responding" if "*" in row["mark"] else "")
        return (_sign(code, {"node": row["node"]}, number, line),) if code else ()


def _ended(state: str, number: int, line: str) -> Iterable[Sign]:
    code = _ENDS[state]
    return (_sign(code, {"name": "rank_failed"} if code == "job" else {}, number, line),)


def _sign(code: str, fields: Fields, number: int, line: str) -> Sign:
    return Sign(kind=code, fields=fields, text=line.strip()[:KEPT], line=number)
