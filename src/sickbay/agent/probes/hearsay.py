"""Hearsay: lines that any program may have written (text logs, /dev/kmsg) wait for a witness, debounced and bounded.

A witness is a source in which only the kernel or the driver speaks (the ring's kernel facility, journald's trusted
fields, NVML). What it tells as well is its fault, and an echo here. What no witness tells is shown once as unconfirmed;
whoever floods a log can neither fill the reports with it nor hide a real fault, which is counted without asking here.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from sickbay.agent.outbox import say
from sickbay.agent.probes.sums import Key, Sums, key_of, origin_of
from sickbay.model.facts import Observed
from sickbay.model.protocol import Item

WAIT = 10.0  # seconds that a witness is given: a log daemon is often faster than a child that asks NVML
AGAIN = 3600.0  # seconds in which the same words are counted and not shown again
MOST = 20  # different ones that are shown in that time; of the others only how many there were
REMEMBERED = 200


@dataclass(slots=True)
class _Said:
    item: Item
    due: float
    dated: bool
    count: int
    shown: bool = False


class Hearsay:
    def __init__(self, sums: Sums) -> None:
        self._sums = sums
        self._said: OrderedDict[Key, _Said] = OrderedDict()
        self._others = 0  # lines beyond what is shown
        self._window, self._shown = 0.0, 0
        self._last: Observed | None = None

    def add(self, item: Item, now: float, by: str, undated: str) -> None:
        news = item.news
        assert isinstance(news, Observed)
        if self._sums.witnessed(item, now, dated=not undated):
            return
        key = key_of(news)
        said = self._said.get(key)
        if said is not None:
            said.count += news.count
            return
        if len(self._said) >= REMEMBERED:
            oldest = next((key for key, said in self._said.items() if said.shown), None)
            if oldest is None:
                self._others += news.count
                return
            del self._said[oldest]
        fields = {**news.fields, "said_by": by, **({"undated": undated} if undated else {})}
        marked = replace(item, news=replace(news, fields=fields, unconfirmed=True))
        self._said[key] = _Said(marked, now + WAIT, not undated, news.count)

    def over(self, now: float) -> list[Item]:
        """What has waited long enough, and no witness has told."""
        return list(self._over(now))

    def flush(self, now: float) -> list[Item]:
        for said in self._said.values():
            said.due = min(said.due, now)
        return self.over(now)

    def held(self, source: str) -> int | None:
        """The first of this source's lines that waits: whoever comes next begins there."""
        items = [said.item for said in self._said.values() if not said.shown]
        return min(
            (item.source_seq for item in items if item.source_seq is not None and origin_of(item.source) == source),
            default=None,
        )

    def _over(self, now: float) -> Iterator[Item]:
        if now >= self._window:
            yield from self._summary(now)
            self._window, self._shown = now + AGAIN, 0
        for key, said in list(self._said.items()):
            if now < said.due:
                continue
            if not said.count or self._sums.witnessed(said.item, now, dated=said.dated):
                del self._said[key]
            elif self._shown >= MOST:
                self._others += said.count
                del self._said[key]
            else:
                self._shown += 1
                news = said.item.news
                assert isinstance(news, Observed)
                self._last = news
                yield replace(said.item, news=replace(news, count=said.count))
                said.shown, said.due, said.count = True, now + AGAIN, 0

    def _summary(self, now: float) -> Iterator[Item]:
        if not self._others or self._last is None:
            return
        text = f"{self._others} more lines that any program may have written, and that no witness tells"
        kind = "agent.unconfirmed"
        yield say(Observed(node=self._last.node, kind=kind, text=text, count=self._others), now)
        self._others = 0
