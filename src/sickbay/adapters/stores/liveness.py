"""Pulses in memory: which agents have something to tell by their voice or their silence."""

from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heappush, heapreplace

from sickbay.model.fleet import Incarnation, NodeId
from sickbay.ports.store import Pulse


class _Echo:
    """One agent: its last pulse, and what the facts say of it."""

    __slots__ = ("hushed_at", "pulse", "told")

    def __init__(self, pulse: Pulse) -> None:
        self.pulse = pulse
        self.told: Incarnation | None = None  # the incarnation that was told as heard
        self.hushed_at: float | None = None  # the last reading when its silence was told

    @property
    def news(self) -> bool:
        if self.hushed_at is None:
            return self.pulse.incarnation != self.told
        return self.pulse.reading > self.hushed_at


class Liveness:
    """Who fell silent, by a lazy heap: a pulse changes nothing in it, stale entries are put right in `silent()`."""

    def __init__(self) -> None:
        self._echoes: dict[NodeId, _Echo] = {}
        self._news: set[NodeId] = set()
        self._quiet: list[tuple[float, NodeId]] = []  # one entry per node that may fall silent, its reading or older
        self._listed: set[NodeId] = set()

    def hear(self, pulses: Mapping[NodeId, Pulse]) -> None:
        echoes = self._echoes
        for node, pulse in pulses.items():
            echo = echoes.get(node)
            if echo is None:
                echo = echoes[node] = _Echo(pulse)
            elif pulse.reading < echo.pulse.reading:
                continue  # overtaken on its way
            else:
                same = pulse.incarnation is echo.pulse.incarnation and echo.hushed_at is None
                echo.pulse = pulse
                if same:
                    continue  # by far the most common: still alive, and what was told of it still holds
            self._sort(node, echo)

    def tell(self, node: NodeId, pulse: Pulse | None) -> None:
        echo = self._echoes.get(node)
        if echo is None:
            return
        if pulse is None:
            echo.hushed_at = echo.pulse.reading
        else:
            echo.told, echo.hushed_at = pulse.incarnation, None
        self._sort(node, echo)

    def _sort(self, node: NodeId, echo: _Echo) -> None:
        if echo.news:
            self._news.add(node)
        else:
            self._news.discard(node)
        if echo.hushed_at is None and echo.told is not None and node not in self._listed:
            self._listed.add(node)
            heappush(self._quiet, (echo.pulse.reading, node))

    def forget(self, known: Callable[[NodeId], bool]) -> int:
        """Removes those whose silence was told and whose node is gone."""
        old = [n for n, echo in self._echoes.items() if echo.hushed_at is not None and not echo.news and not known(n)]
        for node in old:
            del self._echoes[node]
        if old:  # no entry may outlive its agent: one that begins anew may begin at an earlier reading
            self._quiet = [entry for entry in self._quiet if entry[1] in self._echoes]
            heapify(self._quiet)
            self._listed.intersection_update(self._echoes)
        return len(old)

    def heard(self, limit: int) -> tuple[tuple[NodeId, Pulse], ...]:
        if not self._news:  # a set that was large once is slow to walk even when it is empty
            return ()
        return tuple((node, self._echoes[node].pulse) for node in sorted(self._news)[:limit])

    def silent(self, before: float, limit: int) -> tuple[tuple[NodeId, Pulse], ...]:
        found: list[tuple[NodeId, Pulse]] = []
        quiet, echoes = self._quiet, self._echoes
        while quiet and quiet[0][0] < before and len(found) < limit:
            reading, node = quiet[0]
            echo = echoes.get(node)
            if echo is None or echo.hushed_at is not None or echo.told is None:
                heappop(quiet)
                self._listed.discard(node)
            elif echo.pulse.reading != reading:
                heapreplace(quiet, (echo.pulse.reading, node))
            else:
                heappop(quiet)
                found.append((node, echo.pulse))
        for node, pulse in found:
            heappush(self._quiet, (pulse.reading, node))
        return tuple(found)
