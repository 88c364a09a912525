"""Deduplication: what repeats is told at once and then as a number, and what two sources tell of one event is one.

One of these is shared by all sources of a node that count by themselves: kernel ring, journal, NVML, text files that
are trusted. Its memory is bounded.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from msgspec.structs import replace

from sickbay.model.facts import Observed
from sickbay.model.protocol import Item

SUM_UP = 1.0  # seconds: what repeats is told at once, and then as a number
KINDS = 1000  # different events that are counted at a time
# Seconds between two moments that are one event, as sources date it. One that has no date of its own dates it by when
# it looks; one that was away, or a log daemon that lags, tells it hours later, under the moment when it happened.
ECHO = 60.0
REMEMBERED = 86_400.0  # seconds for which it is known that an event was told
STRETCHES = 4  # of time in which one event was told, that are remembered
BODIES = 64  # different texts of one event that are told apart
NAMES = 1000  # by which devices are known
SURE = frozenset({"pci", "uuid"})
LONG = 240  # characters of a text that are compared: daemons cut long lines at different places
DECIDES = frozenset({"advice", "follows", "resolution"})  # fields that only the kernel's own words have
# Who met it and in which of its cores: a fault that kills a hundred ranks, or that every core meets, is one fault.
NOT_THE_EVENT = frozenset({"pid", "name", "gpc", "tpc"})

Key = tuple[object, ...]


@dataclass(slots=True)
class _Repeats:
    until: float
    item: Item | None = None
    count: int = 0


@dataclass(slots=True)
class _Echoes:
    """How often each source has told of one event; it has happened as often as the most talkative one says.

    `first` and `last`: between which moments it happened. `heard`: when somebody told of it last.
    """

    first: float
    last: float
    heard: float
    told: dict[str, int] = field(default_factory=dict)
    most: int = 0
    bodies: dict[int, None] = field(default_factory=dict)

    def near(self, moment: float, now: float) -> bool:
        return self.first - ECHO <= moment <= self.last + ECHO or now - self.heard <= ECHO


class Deduplicator:
    def __init__(self) -> None:
        self._repeats: dict[Key, _Repeats] = {}
        self._echoes: OrderedDict[Key, list[_Echoes]] = OrderedDict()
        self._known_as: OrderedDict[Key, dict[str, Any]] = OrderedDict()  # a name of a device → all, and the first
        self._lock = Lock()  # probes of several threads share it

    def add(self, item: Item, now: float, body: str = "") -> list[Item]:
        """What is to be told of this now. `body`: its text without any prefix; empty: it was no line of a log."""
        news = item.news
        if not isinstance(news, Observed):
            return [item]
        with self._lock:
            fresh = self._fresh(item, news, body, now)
            if not fresh:
                return []
            news = news if fresh == news.count else replace(news, count=fresh)
            return list(self._sum_up(replace(item, news=news), news, now))

    def recall(self, item: Item, now: float, body: str) -> None:
        """What an earlier run has told: whoever tells it again is an echo."""
        if isinstance(item.news, Observed):
            with self._lock:
                self._fresh(item, item.news, body, now)

    def witnessed(self, item: Item, now: float, *, dated: bool) -> bool:
        """Whether this event was told. `dated`: about when this one says that it happened, else at any time."""
        assert isinstance(item.news, Observed)
        with self._lock:
            known = self._echoes.get(self._event(item.news, learn=False), ())
            return any(not dated or echoes.near(item.mono, now) for echoes in known)

    def over(self, now: float) -> list[Item]:
        """What has been counted long enough; with it goes all that is held, so that a place can be kept behind it."""
        with self._lock:
            while self._echoes and now - next(iter(self._echoes.values()))[-1].heard > REMEMBERED:
                self._echoes.popitem(last=False)
            due = {key: repeats for key, repeats in self._repeats.items() if now >= repeats.until}
            for key in due:
                del self._repeats[key]
            if not any(repeats.item is not None for repeats in due.values()):
                return []
            held = {k: repeats for k, repeats in {**due, **self._repeats}.items() if repeats.item is not None}
            self._repeats.update((key, _Repeats(until=now + SUM_UP)) for key in held)
            return [_told(repeats) for repeats in held.values()]

    def flush(self) -> list[Item]:
        """All that was held back."""
        with self._lock:
            held = [_told(repeats) for repeats in self._repeats.values() if repeats.item is not None]
            self._repeats.clear()
            return held

    @property
    def holding(self) -> bool:
        """Something is counted that has not been told yet."""
        with self._lock:
            return any(repeats.item is not None for repeats in self._repeats.values())

    # --- one event, several sources
    def _fresh(self, item: Item, news: Observed, body: str, now: float) -> int:
        """How many of these no other source has told yet; 0: it is an echo."""
        origin = origin_of(item.source)
        echoes = self._stretch(self._event(news), min(item.mono, now), now)
        count = echoes.told[origin] = echoes.told.get(origin, 0) + news.count
        text = hash(" ".join(body.split())[:LONG]) if body else None
        # Words that nobody has said yet are no echo, whoever has said more about the same device before; and after a
        # source that has no words (NVML, DCGM) those count that change what is to be done.
        more_said = bool(echoes.bodies or DECIDES & news.fields.keys())
        new_words = text is not None and text not in echoes.bodies and len(echoes.bodies) < BODIES and more_said
        if text is not None and len(echoes.bodies) < BODIES:
            echoes.bodies[text] = None
        more, echoes.most = count - echoes.most, max(count, echoes.most)
        return news.count if new_words else max(0, min(more, news.count))

    def _stretch(self, key: Key, moment: float, now: float) -> _Echoes:
        """The stretch of time in which this event was told before, or a new one."""
        stretches = self._echoes.setdefault(key, [])
        self._echoes.move_to_end(key)
        while len(self._echoes) > KINDS:
            self._echoes.popitem(last=False)
        found = next((one for one in reversed(stretches) if one.near(moment, now)), None)
        if found is None:
            found = _Echoes(moment, moment, now)
            stretches.append(found)
            del stretches[:-STRETCHES]
        found.first, found.last, found.heard = min(found.first, moment), max(found.last, moment), now
        return found

    def _event(self, news: Observed, *, learn: bool = True) -> Key:
        """What every source of an event knows of it: NVML has the number and the device, and no register of it."""
        fields = news.fields
        where = self._where(fields, learn=learn)
        rest: tuple[object, ...] = () if where else key_of(news)[1:]
        return (news.kind, fields.get("number", ""), where, fields.get("mig", ""), *rest)

    def _where(self, fields: Mapping[str, str | int], *, learn: bool) -> Key:
        """Sources know one device by different names: the kernel by its address, DCGM by its number and UUID."""
        names = _names(fields)
        if not names:
            return ()
        sure = {name: value for name, value in names.items() if name in SURE}
        known = (self._known_as[name] for name in names.items() if name in self._known_as)
        # Numbers are given anew when a GPU has left the bus: one with another address is another.
        same = (one for one in known if all(one.get(name, value) == value for name, value in sure.items()))
        who = next(same, None) or {"": next(iter(names.items()))}
        if not learn:
            unproven: Key = who[""]
            return unproven
        who.update(names)
        for name in names.items():
            self._known_as[name] = who
            self._known_as.move_to_end(name)
        while len(self._known_as) > NAMES:
            self._known_as.popitem(last=False)
        first: Key = who[""]
        return first

    # --- one source, many repetitions
    def _sum_up(self, item: Item, news: Observed, now: float) -> Iterator[Item]:
        key = key_of(news)
        repeats = self._repeats.get(key)
        # A number is told by `over` alone: whoever else calls here would tell it without the place behind it.
        if repeats is None or (now >= repeats.until and repeats.item is None):
            if len(self._repeats) < KINDS or key in self._repeats:
                self._repeats[key] = _Repeats(until=now + SUM_UP)
            yield item
            return
        # Named by its last line: all before it has been told by whoever tells this name, so a double hides nothing.
        first = repeats.item or item
        repeats.item = replace(first, source=item.source, source_seq=item.source_seq)
        repeats.count += news.count


def key_of(news: Observed) -> Key:
    return (news.kind, *(pair for pair in sorted(news.fields.items()) if pair[0] not in NOT_THE_EVENT))


def _names(fields: Mapping[str, str | int]) -> dict[str, object]:
    """The surest first."""
    found: dict[str, object] = {"pci": _address(str(fields["pci"]))} if "pci" in fields else {}
    return found | {name: fields[name] for name in ("uuid", "device") if fields.get(name, "") != ""}


def _address(pci: str) -> str:
    """Sources write one address in several ways: 0000:b9:00, 00000000:B9:00.0."""
    head, _, _ = pci.lower().partition(".")
    domain, colon, rest = head.partition(":")
    return f"{domain.lstrip('0')}:{rest}" if colon and rest.count(":") == 1 else head


def origin_of(source: str) -> str:
    """A source that began anew is the same source still."""
    return source.partition("+")[0]


def _told(repeats: _Repeats) -> Item:
    item = repeats.item
    assert item is not None
    assert isinstance(item.news, Observed)
    return replace(item, news=replace(item.news, count=repeats.count))
