"""kubectl get events, kubectl describe, Kubernetes objects as YAML or JSON, and what Slurm says."""

import re
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from sickbay.model.sign import Fields, Sign
from sickbay.signs.readers.kube_tables import (
    BAD_NAME,
    CONDITIONS,
    GOOD_NAME,
    GPU_IN_WORDS,
    HARDWARE,
    IN_WORDS,
    MESSAGES,
    NORMAL,
    POD_CONDITIONS,
    REASONS,
    SLURM_LINES,
    SLURM_REASONS,
    TAINTS,
)  # fmt: skip

KEPT = 400
UNSCHEDULABLE, ACCELERATOR, OTHER = "kube.unschedulable", "kube.accelerator_not_ready", "kube.node_condition"
KILLED, CRASHED = 137, (134, 135, 139)
# One of these is in every line of SLURM_LINES.
SLURM_WORDS = (
    "slurm",
    "srun: ",
    "sbatch: ",
    "salloc: ",
    "ode",
    "gres/gpu",
    "rolog",
    "atch",
    "illing",
    "oom_kill",
    "oom-kill",
    "*** ",
)
MOST_ITEMS = 100_000

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


class KubeEvents:
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
        self._owns = False
        self._section = ""  # events | conditions | taints | state | yaml | sinfo
        self._node = ""
        self._item: dict[str, str] = {}
        self._begun = 0
        self._state: dict[str, str] = {}

    @property
    def owns(self) -> bool:
        return self._owns

    def read(self, number: int, line: str) -> Iterator[Sign]:
        self._owns = False
        if self._section == "yaml":
            if _YAML_MORE.match(line) or _YAML_LINE.match(line):
                self._owns = True
                yield from self._yaml(number, line)
                return
            yield from self._close()
        if not line.strip():
            self._section = ""
            return
        if self._heads(number, line):
            self._owns = True
            if self._section == "taints":
                yield from self._taint(number, line)
            return
        signs = list(self._row(number, line))
        self._owns = self._owns or bool(signs)
        yield from signs

    def _heads(self, number: int, line: str) -> bool:
        """Whether a section begins here."""
        if _EVENTS_HEAD.match(line):
            self._section = "events"
        elif _CONDITION_HEAD.match(line):
            self._section = "conditions"
        elif _SINFO_HEAD.match(line):
            self._section = "sinfo"
        elif _YAML_BEGINS.match(line):
            self._section, self._item, self._begun = "yaml", {}, number
        elif (head := _HEAD.match(line)) and head["key"] in {"Taints", "Conditions", "Events"}:
            self._section = head["key"].lower()
        else:
            return False
        return True

    def _row(self, number: int, line: str) -> Iterator[Sign]:
        if self._section == "events" and (event := _EVENT.search(line)):
            self._owns = True
            yield from _event(number, line, event["type"], event["reason"], event["rest"])
        elif self._section == "conditions" and (row := _CONDITION.match(line)):
            self._owns = True
            yield from self._condition(number, line, row)
        elif self._section == "taints" and line[:1].isspace():
            self._owns = True
            yield from self._taint(number, line)
        elif self._section == "sinfo" and (row := _SINFO.match(line)):
            self._owns = True
            yield from _slurm_reason(number, line, row["reason"], row["node"])
        else:
            if not (line[:1].isspace() and self._section in {"events", "conditions"}):
                self._section = "" if self._section != "state" else "state"
            yield from self._alone(number, line)

    def _alone(self, number: int, line: str) -> Iterator[Sign]:
        """Lines that say enough by themselves."""
        if "Warning" in line and (event := _ALONE.match(line)) and event["reason"] in REASONS:
            yield from _event(number, line, "Warning", event["reason"], event["rest"])
        elif (" False" in line or " True" in line) and (row := _ALONE_CONDITION.match(line)):
            yield from self._condition(number, line, row)
        elif "nhealthy" in line and (plugin := _PLUGIN.search(line)):
            yield _plugin(number, line, plugin)
        elif state := _STATE.match(line):
            yield from self._container(number, line, state["key"], state["value"].strip())
        elif "NodeName=" in line and (node := _NODE.match(line)):
            self._node = node["node"]
        elif "Reason=" in line and self._node and (reason := _REASON.match(line)):
            yield from _slurm_reason(number, line, reason["reason"], self._node)
            self._node = ""
        elif (
            (head := _HEAD.match(line))
            and head["key"] == "Reason"
            and head["value"] in {"Evicted", "OOMKilled", "Preempting"}
        ):
            yield Sign(kind=REASONS[head["value"]], text=line.strip()[:KEPT], line=number)
        else:
            yield from _slurm(number, line)

    def _condition(self, number: int, line: str, row: re.Match[str]) -> Iterator[Sign]:
        rest = _DATES.sub("", row["rest"], count=1)
        reason, _, message = rest.partition(" ")
        yield from _judged(number, line, row["type"], row["status"], reason, message)

    def _taint(self, number: int, line: str) -> Iterator[Sign]:
        for pattern, code in TAINTS:
            if pattern.search(line):
                yield Sign(kind=code, text=line.strip()[:KEPT], line=number)
                return

    def _container(self, number: int, line: str, key: str, value: str) -> Iterator[Sign]:
        """kubectl describe pod: `Last State: Terminated`, then its reason and its exit code."""
        if key in {"Last State", "State"}:
            self._section, self._state = ("state", {}) if value == "Terminated" else ("", {})
            return
        if self._section != "state":
            return
        self._owns = True
        self._state[key] = value
        if key == "Exit Code":
            yield from _ended(number, line, self._state.get("Reason", ""), value)
            self._section = ""

    # --- objects

    def _yaml(self, number: int, line: str) -> Iterator[Sign]:
        row = _YAML_LINE.match(line)
        if row is None:
            return
        key = row["key"].strip("\"'")
        if row["dash"] or key in {"terminated", "apiVersion", "lastState", "state"}:
            yield from self._close_item()
            self._begun = number
        if key in _WANTED and len(self._item) < len(_WANTED) and key not in self._item:
            self._item[key] = (row["value"] or "").strip().strip("\"'")
            if key in {"reason", "type"}:
                self._item.setdefault("text", line.strip())

    def _close_item(self) -> Iterator[Sign]:
        item, self._item = self._item, {}
        if item:
            yield from _object(self._begun, item)

    def _close(self) -> Iterator[Sign]:
        self._section = ""
        yield from self._close_item()

    def value(self, number: int, value: Any) -> Iterator[Sign]:
        self._owns = False
        items = value.get("items") if isinstance(value, dict) else None
        for item in (items if isinstance(items, list) else [value])[:MOST_ITEMS]:
            if not isinstance(item, dict) or not isinstance(
                item.get("kind", value.get("kind") if isinstance(value, dict) else None), str
            ):
                continue
            if "apiVersion" not in item and "involvedObject" not in item and items is None:
                continue
            self._owns = True
            yield from _kubernetes(number, item)

    def end(self) -> Iterable[Sign]:
        return list(self._close())


# --- one thing each


def _event(number: int, line: str, kind: str, reason: str, rest: str) -> Iterator[Sign]:
    if kind != "Warning" and reason not in NORMAL:
        return
    times = _TIMES.search(rest)
    count = int(times[1]) if times else 1
    fields: Fields = {}
    named = _OBJECT.search(rest)
    if named is not None:
        fields[named["kind"]] = named["name"]
    yield from _said(number, line, reason, rest, REASONS.get(reason, ""), fields, count)


def _judged(number: int, line: str, kind: str, status: str, reason: str, message: str) -> Iterator[Sign]:
    """A condition of a node."""
    if kind in POD_CONDITIONS:
        return
    bad, code = CONDITIONS.get(kind, ("", OTHER))
    if not bad:
        bad = "False" if GOOD_NAME.search(kind) else "True" if BAD_NAME.search(kind) else ""
    if not bad or status not in bad or (kind == "Ready" and not reason):
        return
    if kind == "Ready" and status == "Unknown":
        code = "kube.node_unreachable"
    number_of_kind = "sxid" if "SXID" in kind else "xid"
    yield from _said(number, line, reason, message, code, {}, 1, number_of_kind)


def _said(
    number: int, line: str, reason: str, message: str, code: str, fields: Fields, count: int, numbered: str = "xid"
) -> Iterator[Sign]:
    """What reason and message name themselves counts more than the code of their kind."""
    text = line.strip()[:KEPT]
    place = {
        key: value.lower() if isinstance(value, str) and key == "pci" else value
        for key, value in _first(GPU_IN_WORDS, message).items()
    }
    for pattern, kind in HARDWARE:
        if found := pattern.fullmatch(reason):
            number_of = {"number": int(found[kind])} if kind in {"xid", "sxid"} else {}
            yield Sign(kind=kind, fields={**fields, **place, **number_of}, text=text, line=number, count=count)
            return
    gpus = code in {ACCELERATOR, "kube.device_unhealthy"} or "xid" in reason.lower()
    if gpus and (found := IN_WORDS.search(message)):
        said = {"number": int(found["xid"] or found["code"])}
        yield Sign(kind=numbered, fields={**fields, **place, **said}, text=text, line=number, count=count)
        return
    for pattern, kind in MESSAGES:
        if code in {
            "",
            UNSCHEDULABLE,
            "kube.back_off",
            "kube.admission_failed",
            "kube.sandbox_failed",
        } and pattern.search(message):
            yield Sign(kind=kind, fields=fields, text=text, line=number, count=count)
            return
    if code:
        yield Sign(kind=code, fields={**fields, **place}, text=text, line=number, count=count)


def _first(pattern: re.Pattern[str], text: str) -> Fields:
    found: Fields = {}
    for match in pattern.finditer(text[:2000]):
        for key, value in match.groupdict().items():
            if value and key not in found:
                found[key] = int(value) if key == "device" else value
    return found


def _ended(number: int, line: str, reason: str, code: str) -> Iterator[Sign]:
    if not code.isdigit() or len(code) > 3 or (int(code) == 0 and reason != "OOMKilled"):
        return
    kind = (
        "os.oom_kill"
        if reason == "OOMKilled"
        else "kube.container_killed"
        if int(code) == KILLED
        else "kube.container_failed"
    )
    text = f"Reason: {reason}, {line.strip()}" if reason else line.strip()
    yield Sign(kind=kind, fields={"exit": int(code)}, text=text[:KEPT], line=number)


def _plugin(number: int, line: str, found: re.Match[str]) -> Sign:
    text = line.strip()[:KEPT]
    uuid = found["uuid"] or found["lost"] or found["other"]
    fields: Fields = {"uuid": uuid} if uuid else {}
    if found["xid"]:
        return Sign(kind="xid", fields={**fields, "number": int(found["xid"])}, text=text, line=number)
    return Sign(kind="kube.device_unhealthy", fields=fields, text=text, line=number)


def _slurm(number: int, line: str) -> Iterator[Sign]:
    if not any(word in line for word in SLURM_WORDS):
        return
    for pattern, code in SLURM_LINES:
        if found := pattern.match(line):
            node = found.groupdict().get("node")
            yield Sign(kind=code, fields={"node": node} if node else {}, text=line.strip()[:KEPT], line=number)
            return


def _slurm_reason(number: int, line: str, reason: str, node: str) -> Iterator[Sign]:
    if reason.strip().lower() in {"none", "(null)", ""}:
        return
    text, fields = line.strip()[:KEPT], Fields(node=node)
    if xid := IN_WORDS.search(reason):
        yield Sign(kind="xid", fields={**fields, "number": int(xid["xid"] or xid["code"])}, text=text, line=number)
        return
    code = next((code for pattern, code in SLURM_REASONS if pattern.search(reason)), "slurm.node_drained")
    yield Sign(kind=code, fields=fields, text=text, line=number)


def _object(number: int, item: dict[str, str]) -> Iterator[Sign]:
    """A flat mapping out of YAML: an event, a condition, an ended container or a taint, told by its keys."""
    text = item.get("text", "")
    said = f"{item.get('reason', '')}: {item.get('message', item.get('note', ''))}".strip(": ") or text
    if "exitCode" in item:
        yield from _ended(number, f"exit code {item['exitCode']}", item.get("reason", ""), item["exitCode"])
    elif item.get("type") in {"Normal", "Warning"} and "reason" in item:
        count = item.get("count", "1")
        for sign in _event(number, said, item["type"], item["reason"], item.get("message", item.get("note", ""))):
            yield Sign(kind=sign.kind, fields=sign.fields, text=sign.text, line=number, count=_whole(count))
    elif item.get("status") in {"True", "False", "Unknown"} and "type" in item:
        yield from _judged(number, said, item["type"], item["status"], item.get("reason", ""), item.get("message", ""))


def _whole(text: str) -> int:
    return max(1, int(text)) if text.isascii() and text.isdigit() and len(text) < 10 else 1


def _kubernetes(number: int, item: dict[str, Any]) -> Iterator[Sign]:
    flat = {key: str(value) for key, value in item.items() if key in _WANTED and isinstance(value, str | int)}
    if "involvedObject" in item or "regarding" in item:
        yield from _object(number, flat)
        return
    status, spec = item.get("status"), item.get("spec")
    if not isinstance(status, dict):
        return
    if item.get("kind") == "Node":
        for condition in _maps(status.get("conditions")):
            yield from _object(number, {key: str(value) for key, value in condition.items()})
        for taint in _maps(spec.get("taints") if isinstance(spec, dict) else None):
            key = str(taint.get("key", ""))
            yield from (Sign(kind=code, text=key, line=number) for pattern, code in TAINTS if pattern.search(key))
    for container in _maps(status.get("containerStatuses")):
        for state in ("lastState", "state"):
            ended = container.get(state)
            ended = ended.get("terminated") if isinstance(ended, dict) else None
            if isinstance(ended, dict):
                code, reason = str(ended.get("exitCode", "")), str(ended.get("reason", ""))
                yield from _ended(number, f"exit code {code}", reason, code)
    if item.get("kind") == "Pod" and status.get("reason") in {"Evicted", "Preempting"}:
        yield Sign(
            kind=REASONS[str(status["reason"])], text=str(status.get("message", status["reason"]))[:KEPT], line=number
        )


def _maps(value: Any) -> Iterator[dict[str, Any]]:
    return (each for each in (value if isinstance(value, list) else []) if isinstance(each, dict))
