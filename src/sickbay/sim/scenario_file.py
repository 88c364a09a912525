"""Scenario files: YAML → Scenario, or one line with the place and what to write instead."""

from pathlib import Path
from typing import Any, get_args

import msgspec
import yaml
from msgspec import inspect as mi

from sickbay.knowledge.load import load_tables
from sickbay.knowledge.yaml_places import YamlReader, compose_mapping, converted, read_text, unknown
from sickbay.model.errors import BadInput
from sickbay.policy.load import is_file_name
from sickbay.sim.scenarios import JobPlan, Scenario
from sickbay.sim.simulation import CLUSTER, POOL
from sickbay.sim.timeline import KINDS, Moment, OperatorOrder, Target

MOST_NODES = 20_000
KINDS_BY_WORD: dict[str, type[Moment]] = {word: kind for kind in KINDS for word in get_args(kind.__annotations__["do"])}


def load_scenario(path: Path) -> Scenario:
    """Raises BadInput."""
    text = read_text(path, str(path), "give a .yaml file, or a name that 'sickbay sim list' shows")
    return parse_scenario(text, str(path))


def parse_scenario(text: str, where: str) -> Scenario:
    """The scenario that `text` says; `where` names it in errors. Raises BadInput."""
    if all(line.lstrip().startswith("#") or not line.strip() for line in text.splitlines()):
        raise BadInput(f"{where}:1: the file is empty: write 'nodes: 4', 'jobs:' and 'timeline:'")
    root = compose_mapping(text, where)
    reader = YamlReader(where)
    lines = [pair for pair in root.value if pair[0].value == "timeline"]
    root.value = [pair for pair in root.value if pair[0].value != "timeline"]
    head: Scenario = converted(reader.read(root, _shape(), ()), Scenario, reader.places)
    _check_head(reader, root, head)
    timeline = _timeline(reader, lines, head)
    # A policy file is named as seen from the scenario's own place.
    policy = str(Path(where).parent / head.policy) if is_file_name(head.policy) else head.policy
    return msgspec.structs.replace(head, name=where, timeline=timeline, policy=policy)


def _shape() -> mi.Type:
    """A scenario as it is written: its name is the file's, and what a timeline's item has, `do` says."""
    kind = mi.type_info(Scenario)
    if isinstance(kind, mi.StructType):
        kind = msgspec.structs.replace(kind, fields=tuple(f for f in kind.fields if f.name != "name"))
    return kind


def _timeline(reader: YamlReader, lines: list[tuple[yaml.Node, yaml.Node]], head: Scenario) -> tuple[Moment, ...]:
    if not lines:
        return ()
    if len(lines) > 1:
        raise reader.fail(lines[1][0], (), "'timeline' is given twice: keep one of them")
    value = lines[0][1]
    if not isinstance(value, yaml.SequenceNode):
        raise reader.fail(value, ("timeline",), "expected a list: put '- ' before each 'at: …, do: …'")
    return tuple(_moment(reader, item, ("timeline", n), head) for n, item in enumerate(value.value))


def _moment(reader: YamlReader, item: yaml.Node, path: tuple[str | int, ...], head: Scenario) -> Moment:
    if not isinstance(item, yaml.MappingNode):
        raise reader.fail(item, path, "expected 'at: …, do: …' and what it is about")
    words = {key.value: value for key, value in item.value}
    if "do" not in words:
        raise reader.fail(item, path, f"'do' is missing: add 'do: …', one of {', '.join(KINDS_BY_WORD)}")
    word = str(words["do"].value)
    if word not in KINDS_BY_WORD:
        raise reader.fail(words["do"], (*path, "do"), unknown("value", word, KINDS_BY_WORD))
    kind = KINDS_BY_WORD[word]
    data: dict[str, Any] = reader.read(item, mi.type_info(kind), path)
    moment: Moment = msgspec.convert(data, kind)
    wrong = _misfit(moment, head)
    if wrong is not None:
        name, text = wrong
        raise reader.fail(words.get(name, item), (*path, name) if name else path, text)
    return moment


def _misfit(moment: Moment, head: Scenario) -> tuple[str, str] | None:
    """What the types let through and the scenario cannot do: (the key, what to write)."""
    if isinstance(moment, Target) and not isinstance(moment, OperatorOrder) and bool(moment.node) == bool(moment.job):
        return "", "say where, with 'node: …' or 'job: …' (the first node that it trains on), one of them"
    if (job := getattr(moment, "job", "")) and job not in (names := [j.name for j in head.jobs]):
        return "job", unknown("job", job, names)
    if (node := getattr(moment, "node", "")) and not _is_node(node, head.nodes):
        return "node", f"there is no node {node!r}: write {_range(head.nodes)}"
    if (engine := getattr(moment, "engine", 0)) >= head.engines:
        return "engine", f"there is no engine {engine}: write 0 to {head.engines - 1}, or more 'engines:'"
    if (device := getattr(moment, "device", 0)) >= head.gpus or device < 0:
        return "device", f"there is no device {device}: write 0 to {head.gpus - 1}"
    code = getattr(moment, "code", None)
    if code is not None and not _is_code(code):
        known = ["xid.79", "sxid.12028", *load_tables().faults]
        return "code", f"unknown fault {code!r}: write xid.<number>, sxid.<number> or one of {', '.join(known[2:])}"
    return None


def _is_code(code: str) -> bool:
    kind, _, number = code.partition(".")
    return (kind in {"xid", "sxid"} and number.isascii() and number.isdigit()) or code in load_tables().faults


def _is_node(name: str, nodes: int) -> bool:
    name = name.removeprefix(f"{CLUSTER}/")
    number = name.removeprefix(f"{POOL}-")
    return number != name and len(number) == 4 and number.isdigit() and int(number) < nodes


def _range(nodes: int) -> str:
    return f"{POOL}-0000" if nodes == 1 else f"{POOL}-0000 to {POOL}-{nodes - 1:04d}"


def _check_head(reader: YamlReader, root: yaml.MappingNode, head: Scenario) -> None:
    place = {key.value: value for key, value in root.value}

    def refuse(name: str, text: str) -> None:
        raise reader.fail(place.get(name, root), (name,), text)

    if not 1 <= head.nodes <= MOST_NODES:
        refuse("nodes", f"{head.nodes} nodes: write 1 to {MOST_NODES}")
    if not 1 <= head.gpus <= 16:
        refuse("gpus", f"{head.gpus} GPUs on a node: write 1 to 16")
    if not 1 <= head.engines <= 5:
        refuse("engines", f"{head.engines} engines: write 1 to 5")
    if head.lasts.total_seconds() <= 0:
        refuse("for", "it must last: write 12h, or 7d")
    names = [job.name for job in head.jobs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        refuse("jobs", f"two jobs are called {twice!r}: give each a name of its own")
    for n, job in enumerate(head.jobs):
        wrong = _bad_job(job, head.nodes)
        if wrong:
            refuse("jobs", f"[{n}] {job.name}: {wrong}")


def _bad_job(job: JobPlan, nodes: int) -> str:
    for name in job.on:
        if not _is_node(name, nodes):
            return f"there is no node {name!r}: write {_range(nodes)}"
    if not 1 <= job.nodes <= nodes:
        return f"{job.nodes} nodes of {nodes}: write 1 to {nodes}"
    if job.steps < 1 or job.rate <= 0 or job.checkpoint_every < 1:
        return "steps, rate and checkpoint_every must be more than 0"
    if job.native_restart is not None and job.submitted_to == "sickbay":
        return "native_restart is for jobs that others submitted: add 'submitted_to: cluster'"
    return ""
