"""Hearsay: lines that any program may have written (text logs, /dev/kmsg) wait for a witness, debounced and bounded.

A witness is a source in which only the kernel or the driver speaks (the ring's kernel facility, journald's trusted
fields, NVML). What it tells as well is its fault, and an echo here. What no witness tells is shown once as unconfirmed;
whoever floods a log can neither fill the reports with it nor hide a real fault, which is counted without asking here.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from sickbay.agent.outbox import say
from sickbay.agent.probes.dedup import Deduplicator, Key, key_of
from sickbay.model.facts import Observed
from sickbay.model.protocol import Item

WAIT = 10.0  # seconds that a witness is given: a log daemon is often faster than a child that asks NVML
AGAIN = 3600.0  # seconds in which the same words are counted and not shown again
MOST = 20  # different ones that are shown in that time; of the others only how many there were
REMEMBERED = 200


@dataclass(slots=True)
class _Said:
    item: Item  # of the first of these lines, and by its name they are told
    due: float
    dated: bool
    count: int


class Hearsay:
    """What waits does so on one of two sides of a cut: whoever reads again from there meets the same lines together,
    under the same name, and what was told of them is known by it."""

    def __init__(self, sums: Deduplicator) -> None:
        self._sums = sums
        self._early: dict[Key, _Said] = {}  # waits since before the cut
        self._late: dict[Key, _Said] = {}
        self._shown: dict[Key, _Said] = {}  # and how often it was said again since
        self._others = 0  # lines beyond what is shown
        self._window, self._how_many = 0.0, 0
        self._last: Observed | None = None

    def add(self, item: Item, now: float, by: str, undated: str) -> None:
        news = item.news
        assert isinstance(news, Observed)
        if self._sums.witnessed(item, now, dated=not undated):
            return
        key = key_of(news)
        said = self._late.get(key)
        if said is not None:
            said.count += news.count
            return
        if len(self._early) + len(self._late) + len(self._shown) >= REMEMBERED:
            if not self._shown:
                self._others += news.count
                return
            self._others += self._shown.pop(next(iter(self._shown))).count
        fields = {**news.fields, "said_by": by, **({"undated": undated} if undated else {})}
        marked = replace(item, news=replace(news, fields=fields, unconfirmed=True))
        self._late[key] = _Said(marked, now + WAIT, not undated, news.count)

    @property
    def decided(self) -> bool:
        """Nothing that was said before the cut waits any more."""
        return not self._early

    def cut(self) -> None:
        """What is said from now on is not counted with what was said before."""
        assert self.decided
        self._early, self._late = self._late, {}

    def over(self, now: float) -> list[Item]:
        """What has waited long enough, and no witness has told."""
        return list(self._over(now))

    def flush(self, now: float) -> list[Item]:
        for said in (*self._early.values(), *self._late.values(), *self._shown.values()):
            said.due = min(said.due, now)
        return [*self.over(now), *self._summary(now)]

    def _over(self, now: float) -> Iterator[Item]:
        if now >= self._window:
            yield from self._summary(now)
            self._window, self._how_many = now + AGAIN, 0
        for waiting in (self._early, self._late):
            for key in [key for key, said in waiting.items() if now >= said.due]:
                yield from self._decide(key, waiting.pop(key), now)
        for key in [key for key, said in self._shown.items() if now >= said.due]:
            again = self._shown.pop(key)
            if again.count:
                yield from self._show(key, again, now)

    def _decide(self, key: Key, said: _Said, now: float) -> Iterator[Item]:
        if self._sums.witnessed(said.item, now, dated=said.dated):
            return
        shown = self._shown.get(key)
        if shown is None:
            yield from self._show(key, said, now)
        else:  # named anew: under its old name it was told
            shown.item, shown.count = said.item, shown.count + said.count

    def _show(self, key: Key, said: _Said, now: float) -> Iterator[Item]:
        news = said.item.news
        assert isinstance(news, Observed)
        if self._how_many >= MOST:
            self._others += said.count
            return
        self._how_many += 1
        self._last = news
        yield replace(said.item, news=replace(news, count=said.count))
        self._shown[key] = _Said(said.item, now + AGAIN, said.dated, 0)

    def _summary(self, now: float) -> Iterator[Item]:
        if not self._others or self._last is None:
            return
        text = f"{self._others} more lines that any program may have written, and that no witness tells"
        kind = "agent.unconfirmed"
        yield say(Observed(node=self._last.node, kind=kind, text=text, count=self._others), now)
        self._others = 0
