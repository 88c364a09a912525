"""kubectl get events, kubectl describe, Kubernetes objects as YAML or JSON, and what Slurm says.

YAML is read line by line, not by its library: a paste may begin and end anywhere.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from msgspec.structs import replace

from sickbay.model.sign import Fields, Sign
from sickbay.signs.readers import KEPT, Document, proven
from sickbay.signs.readers.words import code_of, names, wordings

WORDS = "cluster_words.csv"
OTHER = "kube.node_condition"
# Codes that leave open what it was: the message may tell. And those of devices, whose message may name an Xid.
VAGUE = frozenset({"", "kube.unschedulable", "kube.back_off", "kube.admission_failed", "kube.sandbox_failed"})
OF_DEVICES = frozenset({"kube.accelerator_not_ready", "kube.device_unhealthy"})
KILLED = 137
MOST_ITEMS = 100_000

# One of these is in every line of Slurm's that means something; the first are for a search without regard to case.
SLURM_ANCHORS = (
    "oom_kill event", "oom-kill event", ": out of memory", "memory limit", "cancelled ", "stepd terminated",
    "node failure on", "aborting, node", "on failed node", "missing from batch node", "due to failure of node",
    "not responding", "setting down", "to down", "set down", "is down", "slurmctld", "gres/gpu count", "prolog",
)  # fmt: skip
SLURM_WORDS = (
    "slurm", "srun: ", "sbatch: ", "salloc: ", "ode", "gres/gpu", "rolog", "atch", "illing", "oom_kill", "oom-kill",
    "*** ",
)  # fmt: skip

_EVENTS_HEAD = re.compile(
    r"^(?:NAMESPACE\s+)?LAST ?SEEN\s.*\bREASON\b.*\b(?:OBJECT|MESSAGE)\b|^\s+(?:FirstSeen\s.*)?Type\s+Reason\s+Age\s"
)
_EVENT = re.compile(r"(?:^|\s)(?P<type>Normal|Warning)\s+(?P<reason>[A-Z][\w./-]{2,63})\s+(?P<rest>\S.*)$")
_ALONE = re.compile(
    r"^\s*(?:\S{1,16}\s{2,})?Warning\s+(?P<reason>[A-Z]\w{2,63})\s+(?:(?:\d{1,5}[smhdy]){1,3}|<unknown>|(?:pod|node|job)s?/\S)(?P<rest>.*)$"
)
_TIMES = re.compile(r"\(x(\d{1,9}) over ")
_OBJECT = re.compile(r"\b(?P<kind>pod|node)s?/(?P<name>[\w.-]{1,253})")

_CONDITION_HEAD = re.compile(r"^\s*Type\s+Status\s+Last(?:Heartbeat|Transition|Probe)")
_CONDITION = re.compile(r"^\s+(?P<type>[A-Z]\w{2,80})\s+(?P<status>True|False|Unknown)\s+(?P<rest>.*)$")
_ALONE_CONDITION = re.compile(
    r"^\s*(?P<type>[A-Z]\w{2,80}(?:Ready|Watch|XIDError|Pressure|Deadlock))\s+(?P<status>True|False|Unknown)\s+(?P<rest>.*)$"
)
_DATES = re.compile(
    r"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d\d \w{3} \d{4} [\d:]{8} \S+\s+){1,2}|(?:\d{4}-\d\d-\d\dT\S+\s+){1,2}"
)

_HEAD = re.compile(
    r"^(?P<key>Name|Taints|Conditions|Events|Status|Reason|Message|Node|Containers|Labels|Annotations"
    r"|Lease|Allocated resources|Capacity):\s*(?P<value>.*)$"
)
_STATE = re.compile(
    r"^\s+(?P<key>Last State|State|Reason|Exit Code|Message|Restart Count|Started|Finished|Signal):\s*(?P<value>.*)$"
)

_YAML_BEGINS = re.compile(r"^(?:- )?apiVersion: ?[\w./]{1,80}$")
_YAML_LINE = re.compile(r"^(?P<indent>\s*)(?P<dash>- )?(?P<key>[\w./~\"'-]{1,253}):(?: (?P<value>.*)|$)")
_YAML_MORE = re.compile(r"^(?:\s+\S|- |---|\s*$)")
_OF_PODS = frozenset({"Evicted", "OOMKilled", "Preempting"})
_WANTED = frozenset({"reason", "message", "type", "status", "count", "exitCode", "kind", "key", "note"})

_SINFO_HEAD = re.compile(r"^REASON\s+USER\s+TIMESTAMP\s+NODELIST")
_SINFO = re.compile(
    r"^(?P<reason>\S.{0,80}?)\s{1,40}\S{1,32}\s+(?:\d{4}-\d\d-\d\dT[\d:]{8}|Unknown)\s+(?P<node>\S{1,200})\s*$"
)
_NODE = re.compile(r"^\s*NodeName=(?P<node>\S{1,200})")
_REASON = re.compile(r"^\s*Reason=(?P<reason>\S.{0,200}?)(?: \[\S{1,40}@\S{1,40}\])?$")

_PLUGIN = re.compile(
    r"XidCriticalError: Xid=(?P<xid>\d{1,3})(?: on Device=(?P<uuid>[\w-]{1,80}))?"
    r"|'(?:nvidia\.com/\S{1,80})' device marked unhealthy: (?P<lost>[\w-]{1,80})"
    r"|marking device (?P<other>GPU-[0-9a-f-]{1,60}) as unhealthy"
)
# A condition that no table has is told by its name.
_GOOD_NAME = re.compile(r"(?:Ready|Healthy|Available|Succeeded|OK)$")
_BAD_NAME = re.compile(
    r"(?:Problem|Error|Errors|Failure|Failed|Unhealthy|Fault|Pressure|Deadlock|Corruption|Mismatch|Missing|Degraded|Watch)$"
)
_XID = re.compile(
    r"\bXid(?: \(PCI:(?P<pci>[0-9a-fA-F:.]{7,16})\))?[:=]? ?(?P<xid>\d{1,3})\b|\bErrorCode:(?P<code>\d{1,3})\b",
    re.IGNORECASE,
)
_GPU = re.compile(
    r"\bPCI:(?P<pci>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)|\bGPU:(?P<device>\d{1,3})\b|(?P<uuid>GPU-[0-9a-f]{8}-[0-9a-f-]{27})"
)


class KubeEvents(Document):
    """It begins anew with every section; a section ends with the first line that cannot be part of it."""

    ANCHORS: ClassVar[tuple[str, ...]] = (
        "last seen", "lastseen", "type     reason", "type    reason", "warning  ", "warning\t", "conditions:",
        "events:", "taints:",
        "apiversion: ", "lastheartbeattime", "ready  ", "watch  ", "last state:", "evicted",
        "nodename=", "reason=", "nodelist", "xidcriticalerror", "marked unhealthy", "as unhealthy", "not responding",
        "failed node",
        "gres/gpu count", "oom_kill event", "oom-kill event", "prolog failed",
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self._section = ""  # events | conditions | taints | state | yaml | sinfo
        self._node = ""
        self._item: dict[str, str] = {}
        self._begun = 0
        self._state: dict[str, str] = {}

    def read(self, number: int, line: str) -> Iterable[Sign]:
        self.owns = False
        closed: list[Sign] = []
        if self._section == "yaml":
            if _YAML_MORE.match(line) or _YAML_LINE.match(line):
                self.owns = True
                return self._yaml(number, line)
            closed = list(self.end())
        if not line.strip():
            self._section = ""
            return closed
        begins = self._heads(number, line)
        found = list(proven(_taint(line) if begins == "taints" else () if begins else self._row(line), number, line))
        self.owns = self.owns or bool(begins or found)
        return [*closed, *found]

    def _heads(self, number: int, line: str) -> str:
        """The section that begins here."""
        head = _HEAD.match(line)
        if _EVENTS_HEAD.match(line):
            self._section = "events"
        elif _CONDITION_HEAD.match(line):
            self._section = "conditions"
        elif _SINFO_HEAD.match(line):
            self._section = "sinfo"
        elif _YAML_BEGINS.match(line):
            self._section, self._item, self._begun = "yaml", {}, number
        elif head and head["key"] in {"Taints", "Conditions", "Events"}:
            self._section = head["key"].lower()
        else:
            return ""
        return self._section

    def _row(self, line: str) -> Iterable[Sign]:
        section = self._section
        self.owns = True
        if section == "events" and (row := _EVENT.search(line)):
            return _event(row["type"], row["reason"], row["rest"])
        if section == "conditions" and (row := _CONDITION.match(line)):
            return _condition(row)
        if section == "taints" and line[:1].isspace():
            return _taint(line)
        if section == "sinfo" and (row := _SINFO.match(line)):
            return _slurm_reason(row["reason"], row["node"])
        self.owns = False
        if section != "state" and not (line[:1].isspace() and section in {"events", "conditions"}):
            self._section = ""
        return self._alone(line)

    def _alone(self, line: str) -> Iterable[Sign]:
        """Lines that say enough by themselves."""
        if "Warning" in line and (row := _ALONE.match(line)) and row["reason"] in names("event"):
            return _event("Warning", row["reason"], row["rest"])
        if (" False" in line or " True" in line) and (row := _ALONE_CONDITION.match(line)):
            return _condition(row)
        if "nhealthy" in line and (row := _PLUGIN.search(line)):
            return _plugin(row)
        if row := _STATE.match(line):
            return self._container(line, row["key"], row["value"].strip())
        if "NodeName=" in line and (row := _NODE.match(line)):
            self._node = row["node"]
            return ()
        if "Reason=" in line and self._node and (row := _REASON.match(line)):
            node, self._node = self._node, ""
            return _slurm_reason(row["reason"], node)
        if (row := _HEAD.match(line)) and row["key"] == "Reason" and row["value"] in _OF_PODS:
            return (Sign(kind=code_of("event", row["value"])),)
        return _slurm(line)

    def _container(self, line: str, key: str, value: str) -> Iterable[Sign]:
        """kubectl describe pod: `Last State: Terminated`, then its reason and its exit code."""
        if key in {"Last State", "State"}:
            self._section, self._state = ("state", {}) if value == "Terminated" else ("", {})
            return ()
        if self._section != "state":
            return ()
        self.owns = True
        self._state[key] = value
        if key != "Exit Code":
            return ()
        self._section = ""
        return _ended(line, self._state.get("Reason", ""), value)

    # --- objects

    def _yaml(self, number: int, line: str) -> Iterable[Sign]:
        row = _YAML_LINE.match(line)
        if row is None:
            return ()
        closed: Iterable[Sign] = ()
        key = row["key"].strip("\"'")
        if row["dash"] or key in {"terminated", "apiVersion", "lastState", "state"}:
            closed = self._close_item()
            self._begun = number
        if key in _WANTED and key not in self._item:
            self._item[key] = (row["value"] or "").strip().strip("\"'")
            if key in {"reason", "type"}:
                self._item.setdefault("text", line.strip())
        return closed

    def _close_item(self) -> Iterable[Sign]:
        item, self._item = self._item, {}
        return list(_object(self._begun, item))

    def value(self, number: int, value: Any) -> Iterator[Sign]:
        self.owns = False
        if not isinstance(value, dict):
            return
        listed = value.get("items")
        for item in (listed if isinstance(listed, list) else [value])[:MOST_ITEMS]:
            if not isinstance(item, dict) or not isinstance(item.get("kind", value.get("kind")), str):
                continue
            if isinstance(listed, list) or "apiVersion" in item or "involvedObject" in item:
                self.owns = True
                yield from _kubernetes(number, item)

    def end(self) -> Iterable[Sign]:
        self._section = ""
        return self._close_item()


# --- one thing each


def _event(kind: str, reason: str, rest: str) -> Iterator[Sign]:
    known = names("event").get(reason)
    if kind != "Warning" and (known is None or kind not in known.when):
        return
    times, named = _TIMES.search(rest), _OBJECT.search(rest)
    fields: Fields = {named["kind"]: named["name"]} if named else {}
    yield from _said(reason, rest, known.code if known else "", fields, int(times[1]) if times else 1)


def _condition(row: re.Match[str]) -> Iterator[Sign]:
    reason, _, message = _DATES.sub("", row["rest"], count=1).partition(" ")
    return _judged(row["type"], row["status"], reason, message)


def _judged(kind: str, status: str, reason: str, message: str) -> Iterator[Sign]:
    """A condition of a node."""
    known = names("condition").get(kind)
    code = known.code if known else OTHER
    bad = (
        known.when if known else ("False",) if _GOOD_NAME.search(kind) else ("True",) if _BAD_NAME.search(kind) else ()
    )
    if status not in bad or (kind == "Ready" and not reason):
        return
    if kind == "Ready" and status == "Unknown":
        code = "kube.node_unreachable"
    yield from _said(reason, message, code, {}, numbered="sxid" if "SXID" in kind else "xid")


def _said(
    reason: str, message: str, code: str, fields: Fields, count: int = 1, numbered: str = "xid"
) -> Iterator[Sign]:
    """What reason and message name themselves counts more than the code of their kind."""
    fields, plain = {**fields, **_gpu_in(message)}, fields
    for pattern, kind in wordings(WORDS, "hardware"):
        if found := pattern.fullmatch(reason):
            number: Fields = {name: int(text) for name, text in found.groupdict().items()}
            yield Sign(kind=kind, fields={**fields, **number}, count=count)
            return
    if (code in OF_DEVICES or "xid" in reason.lower()) and (xid := _XID.search(message)):
        yield Sign(kind=numbered, fields={**fields, "number": int(xid["xid"] or xid["code"])}, count=count)
        return
    if code in VAGUE:
        for pattern, kind in wordings(WORDS, "message"):
            if pattern.search(message):
                yield Sign(kind=kind, fields=plain, count=count)
                return
    if code:
        yield Sign(kind=code, fields=fields, count=count)


def _gpu_in(text: str) -> Fields:
    found: Fields = {}
    for match in _GPU.finditer(text[:2000]):
        key, value = match.lastgroup or "", match[match.lastgroup or 0]
        found.setdefault(key, int(value) if key == "device" else value.lower() if key == "pci" else value)
    return found


def _taint(line: str) -> Iterable[Sign]:
    code = next((taint.code for key, taint in names("taint").items() if key in line), "")
    return (Sign(kind=code),) if code else ()


def _ended(line: str, reason: str, code: str) -> Iterator[Sign]:
    if not code.isdigit() or len(code) > 3 or (int(code) == 0 and reason != "OOMKilled"):
        return
    kind = "kube.container_killed" if int(code) == KILLED else "kube.container_failed"
    kind = code_of("event", reason) if reason == "OOMKilled" else kind
    text = f"Reason: {reason}, {line.strip()}" if reason else line.strip()
    yield Sign(kind=kind, fields={"exit": int(code)}, text=text[:KEPT])


def _plugin(found: re.Match[str]) -> Iterable[Sign]:
    uuid = found["uuid"] or found["lost"] or found["other"]
    fields: Fields = {"uuid": uuid} if uuid else {}
    if found["xid"]:
        return (Sign(kind="xid", fields={**fields, "number": int(found["xid"])}),)
    return (Sign(kind="kube.device_unhealthy", fields=fields),)


def _slurm(line: str) -> Iterable[Sign]:
    if any(word in line for word in SLURM_WORDS):
        for pattern, code in wordings(WORDS, "slurm line"):
            if found := pattern.match(line):
                node = found.groupdict().get("node")
                return (Sign(kind=code, fields={"node": node} if node else {}),)
    return ()


def _slurm_reason(reason: str, node: str) -> Iterable[Sign]:
    if reason.strip().lower() in {"none", "(null)", ""}:
        return ()
    if xid := _XID.search(reason):
        return (Sign(kind="xid", fields={"node": node, "number": int(xid["xid"] or xid["code"])}),)
    code = next(
        (code for pattern, code in wordings(WORDS, "drain reason") if pattern.search(reason)), "slurm.node_drained"
    )
    return (Sign(kind=code, fields={"node": node}),)


def _object(number: int, item: dict[str, str]) -> Iterator[Sign]:
    """A flat mapping out of YAML or JSON: an event, a condition or an ended container, told by its keys."""
    reason, message = item.get("reason", ""), item.get("message", item.get("note", ""))
    said = f"{reason}: {message}".strip(": ") or item.get("text", "")
    if "exitCode" in item:
        yield from proven(_ended(f"exit code {item['exitCode']}", reason, item["exitCode"]), number, said)
    elif item.get("type") in {"Normal", "Warning"} and "reason" in item:
        for sign in proven(_event(item["type"], reason, message), number, said):
            yield replace(sign, count=_whole(item.get("count", "1")))
    elif item.get("status") in {"True", "False", "Unknown"} and "type" in item:
        yield from proven(_judged(item["type"], item["status"], reason, item.get("message", "")), number, said)


def _whole(text: str) -> int:
    return max(1, int(text)) if text.isascii() and text.isdigit() and len(text) < 10 else 1


def _kubernetes(number: int, item: dict[str, Any]) -> Iterator[Sign]:
    if "involvedObject" in item or "regarding" in item:
        yield from _object(number, _flat(item))
        return
    status, spec = _map(item.get("status")), _map(item.get("spec"))
    if item.get("kind") == "Node" and status:
        for condition in _maps(status.get("conditions")):
            yield from _object(number, _flat(condition))
        for taint in _maps(spec.get("taints")):
            key = str(taint.get("key", ""))
            yield from proven(_taint(key), number, key)
    for container in _maps(status.get("containerStatuses")):
        for state in ("lastState", "state"):
            ended = _flat(_map(_map(container.get(state)).get("terminated")))
            if ended:
                yield from _object(number, {"exitCode": "", **ended})
    reason = str(status.get("reason"))
    if item.get("kind") == "Pod" and reason in {"Evicted", "Preempting"}:
        yield Sign(kind=code_of("event", reason), text=str(status.get("message", reason))[:KEPT], line=number)


def _flat(value: dict[str, Any]) -> dict[str, str]:
    return {key: str(each) for key, each in value.items() if key in _WANTED and isinstance(each, str | int)}


def _map(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _maps(value: Any) -> Iterator[dict[str, Any]]:
    return (each for each in (value if isinstance(value, list) else []) if isinstance(each, dict))
