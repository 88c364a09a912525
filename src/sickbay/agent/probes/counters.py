"""Counters under /sys: Neuron, InfiniBand, EFA, PCIe, memory controllers, disks. Their growth is what is told."""

import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sickbay.agent.outbox import say
from sickbay.agent.probes.machine import word
from sickbay.agent.probes.remembered import Remembered
from sickbay.knowledge.counters import CounterRule, counter_rules
from sickbay.model.facts import Observed
from sickbay.model.fleet import NodeId
from sickbay.model.protocol import Item
from sickbay.signs.counting import growth

SEARCH_EVERY = 600.0  # seconds: devices come and go rarely, and walking through /sys is what costs
MOST = 4096  # files that are watched
NAMED = 3  # counters that cannot be believed, by name
# At the end of the text and behind a space. Longer ones are no counters, and Python refuses thousands of digits.
_NUMBER = re.compile(r"(?:\A|\s)(-?(?:0x[0-9a-fA-F]{1,40}|0|[1-9][0-9]{0,39}))\Z", re.ASCII)


@dataclass(slots=True)
class _WatchedCounter:
    rule: CounterRule
    path: Path
    device: str
    name: str  # below its device
    read_at: float  # when it gave a number last; before that, when the run before ours looked
    absurd: bool = False
    grown: deque[tuple[float, int]] = field(default_factory=deque)
    told_at: float = -1e9


class Counters:
    """`root` is /sys, or a recording of it."""

    def __init__(
        self,
        node: NodeId,
        root: Path = Path("/sys"),
        rules: Sequence[CounterRule] | None = None,
        remembered: Remembered | None = None,
    ) -> None:
        self._node = node
        self._root = root
        self._rules = counter_rules() if rules is None else tuple(rules)
        self._remembered = remembered or Remembered(root, boot="")
        self._watched: dict[Path, _WatchedCounter] = {}
        self._searched = -1e9

    def look(self, now: float) -> list[Item]:
        if now - self._searched >= SEARCH_EVERY:
            self._search(now)
            self._searched = now
        absurd: list[_WatchedCounter] = []
        found = [item for watched in self._watched.values() for item in self._read(watched, now, absurd)]
        return [*found, self._unbelievable(absurd, now)] if absurd else found

    def told(self, now: float) -> None:
        """What was found is in the outbox: the next run of the agent need not tell it again."""
        self._remembered.keep(now)

    def _search(self, now: float) -> None:
        found: dict[Path, _WatchedCounter] = {}
        since = now if self._remembered.at is None else self._remembered.at
        for rule in self._rules:
            for device in sorted(self._root.glob(rule.under)):
                for path in sorted(device.glob(rule.name))[: MOST - len(found)]:
                    name = path.relative_to(device).as_posix()
                    new = _WatchedCounter(rule, path, _name(device, self._root), name, read_at=since)
                    found[path] = self._watched.get(path) or new
        self._watched = found
        # A device that is away for a while comes back with its errors; those that never do are not kept for ever.
        there, counts = {watched.device for watched in found.values()}, self._remembered.counts
        for away in [device for device in counts if device not in there][: max(0, len(counts) - MOST)]:
            del counts[away]

    def _read(self, watched: _WatchedCounter, now: float, absurd: list[_WatchedCounter]) -> Iterator[Item]:
        value = number_in(watched.path)
        if value is None:
            return
        rule, counts = watched.rule, self._remembered.counts.setdefault(watched.device, {})
        seen = growth(counts.get(watched.name), value, fresh=rule.at_start)
        if seen.absurd and not watched.absurd:
            absurd.append(watched)
        watched.absurd = seen.absurd
        if seen.absurd or seen.remembered is None:
            return
        since, watched.read_at = now - watched.read_at, now
        counts[watched.name] = seen.remembered
        # What grew while nobody could look, for longer than the rule's time, grew evenly as far as anybody knows.
        by = int(seen.by * rule.within / since) if rule.grown_by > 1 and since > rule.within else seen.by
        if by > 0:
            watched.grown.append((now, by))
        while watched.grown and watched.grown[0][0] < now - rule.within:
            watched.grown.popleft()
        total = sum(n for _, n in watched.grown)
        if by > 0 and total >= rule.grown_by and now - watched.told_at >= min(rule.within, 3600.0):
            watched.told_at = now
            watched.grown.clear()
            yield self._item(watched, total, value, now)

    def _item(self, watched: _WatchedCounter, total: int, value: int, now: float) -> Item:
        counter = watched.path.relative_to(self._root).as_posix()
        over = f" within {watched.rule.within:g} s" if watched.rule.within > 1 else ""
        text = f"{counter} grew by {total}{over}, to {value}"
        fields: dict[str, str | int] = {"interface": watched.device, "counter": counter.rsplit("/", 2)[-1]}
        if index := re.fullmatch(r"neuron(\d+)", watched.device):
            fields = {"device": int(index[1]), "counter": watched.path.parent.name}
        news = Observed(node=self._node, kind=watched.rule.code, fields=fields, text=text, count=total)
        return say(news, now)

    def _unbelievable(self, absurd: Sequence[_WatchedCounter], now: float) -> Item:
        """Once for all that begin to read so: a device that is dead has many counters."""
        names = ", ".join(watched.path.relative_to(self._root).as_posix() for watched in absurd[:NAMED])
        more = f" and {len(absurd) - NAMED} more" if len(absurd) > NAMED else ""
        text = f"{names}{more}: what is read there is no count of errors, so it is not believed"
        return say(Observed(node=self._node, kind="probe.failed", text=text[:500]), now)


def _name(device: Path, root: Path) -> str:
    """`mlx5_0/1` for a port, `0000:b9:00.0` for a PCI device, `neuron3`."""
    parts = device.relative_to(root).parts
    return f"{parts[-3]}/{parts[-1]}" if len(parts) > 3 and parts[-2] == "ports" else parts[-1]


def number_in(path: Path) -> int | None:
    """The number at the end of a file: plain, hexadecimal, or behind a word, as PCI's are."""
    found = _NUMBER.search(word(path))
    return None if found is None else int(found[1], 0)
