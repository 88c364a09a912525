"""Counters under /sys: Neuron, InfiniBand, EFA, PCIe, memory controllers, disks. Their growth is what is told."""

import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sickbay.agent.outbox import say
from sickbay.agent.probes.machine import word
from sickbay.knowledge.counters import CounterRule, counter_rules
from sickbay.model.facts import Observed
from sickbay.model.fleet import NodeId
from sickbay.model.protocol import Item

SEARCH_EVERY = 600.0  # seconds: devices come and go rarely, and walking through /sys is what costs
MOST = 4096  # files that are watched
_ENDLESS = re.compile(r"[0-9a-fA-F]{40}\s*\Z")  # longer than any counter: Python refuses numbers of thousands of digits
_NUMBER = re.compile(r"(?:0x[0-9a-fA-F]+|\d+)\s*\Z")


@dataclass(slots=True)
class _Watched:
    rule: CounterRule
    path: Path
    device: str
    value: int | None = None
    grown: deque[tuple[float, int]] = field(default_factory=deque)
    told_at: float = -1e9


class Counters:
    """`root` is /sys, or a recording of it."""

    def __init__(self, node: NodeId, root: Path = Path("/sys"), rules: Sequence[CounterRule] | None = None) -> None:
        self._node = node
        self._root = root
        self._rules = counter_rules() if rules is None else tuple(rules)
        self._watched: dict[Path, _Watched] = {}
        self._searched = -1e9

    def look(self, now: float) -> list[Item]:
        if now - self._searched >= SEARCH_EVERY:
            self._search()
            self._searched = now
        return [item for watched in self._watched.values() for item in self._read(watched, now)]

    def _search(self) -> None:
        found: dict[Path, _Watched] = {}
        for rule in self._rules:
            for device in sorted(self._root.glob(rule.under)):
                for path in sorted(device.glob(rule.name))[: MOST - len(found)]:
                    found[path] = self._watched.get(path) or _Watched(rule, path, _name(device, self._root))
        self._watched = found

    def _read(self, watched: _Watched, now: float) -> Iterator[Item]:
        value = number_in(watched.path)
        if value is None:
            return
        before, watched.value = watched.value, value
        if before is None:
            before = 0 if watched.rule.at_start else value
        grown = value - before  # one that fell back was reset, with its driver: that is no growth
        if grown > 0:
            watched.grown.append((now, grown))
        while watched.grown and watched.grown[0][0] < now - watched.rule.within:
            watched.grown.popleft()
        total = sum(n for _, n in watched.grown)
        if grown > 0 and total >= watched.rule.grown_by and now - watched.told_at >= min(watched.rule.within, 3600.0):
            watched.told_at = now
            watched.grown.clear()
            yield self._item(watched, total, value, now)

    def _item(self, watched: _Watched, total: int, value: int, now: float) -> Item:
        counter = watched.path.relative_to(self._root).as_posix()
        over = f" within {watched.rule.within:g} s" if watched.rule.within > 1 else ""
        text = f"{counter} grew by {total}{over}, to {value}"
        fields: dict[str, str | int] = {"interface": watched.device, "counter": counter.rsplit("/", 2)[-1]}
        if index := re.fullmatch(r"neuron(\d+)", watched.device):
            fields = {"device": int(index[1]), "counter": watched.path.parent.name}
        news = Observed(node=self._node, kind=watched.rule.code, fields=fields, text=text, count=total)
        return say(news, now)


def _name(device: Path, root: Path) -> str:
    """`mlx5_0/1` for a port, `0000:b9:00.0` for a PCI device, `neuron3`."""
    parts = device.relative_to(root).parts
    return f"{parts[-3]}/{parts[-1]}" if len(parts) > 3 and parts[-2] == "ports" else parts[-1]


def number_in(path: Path) -> int | None:
    """The number at the end of a file: plain, hexadecimal, or behind a word, as PCI's are."""
    text = word(path)
    if _ENDLESS.search(text):
        return None
    if text.isdecimal():
        return int(text) if text == "0" or text[0] != "0" else None
    found = _NUMBER.search(text)
    return int(found[0].strip(), 0) if found and not re.fullmatch(r"0\d+", found[0].strip()) else None
