"""Where facts enter: reports of agents, commands, and reads of clusters. None of it plans.

Any replica takes reports and commands; only the leader reads clusters.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from threading import Lock
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from sickbay.brain.identity import devices_with
from sickbay.engine.door import cut
from sickbay.engine.view import moment
from sickbay.model.clock import INGEST, WatchedClock
from sickbay.model.errors import EffectError
from sickbay.model.facts import (
    AgentHeard,
    AgentSilent,
    AnyNews,
    Fact,
    JobSeen,
    JobVanished,
    Mark,
    NodeSeen,
    NodeVanished,
)
from sickbay.model.fleet import Cursor, Incarnation, JobId, Node, NodeId, pool_of
from sickbay.model.job import Job, JobState, RankState
from sickbay.model.parts import whole
from sickbay.model.rows import CURSOR
from sickbay.ports.clock import Clock
from sickbay.ports.cluster import Cluster, Deltas, Lost, Told
from sickbay.ports.store import Pulse, Store

SLICE = 500
SHOWN = frozenset({JobState.GATING, JobState.RUNNING, JobState.STOPPING})  # a list must have what was shown once
Said = NodeSeen | NodeVanished | JobSeen | JobVanished
Thing = TypeVar("Thing")


class Behind(NamedTuple):
    """Of whom more is stored than their rows have learned."""

    nodes: set[NodeId]
    jobs: set[JobId]


def alone() -> bool:
    """For a process that has no others beside it: it leads."""
    return True


class Ingest:
    """Takes facts into the store and moves the watched clock of their source."""

    def __init__(self, store: Store, clock: Clock, period: float = 10.0, leads: Callable[[], bool] = alone) -> None:
        """`leads`: whether this replica leads now. Where the store has no time of its own, only the leader's counts."""
        self._store = store
        self._clock = clock
        self.period = period
        self._leads = leads

    def take(self, facts: Sequence[Fact], pulses: Mapping[NodeId, Incarnation] | None = None) -> int:
        """Reports of agents. That they arrive at all is what moves the ingest clock."""
        mark = Mark(source=INGEST, at=self._clock.wall(), period=self.period)
        counts = self._leads() or self._store.time() is not None
        if pulses:  # before the clock moves: whoever dies in between has not made anybody silent
            known = _clock(self._store, INGEST)
            reading = known.heard(mark.at).reading if counts else known.reading
            self._store.hear({node: Pulse(reading=reading, incarnation=inc) for node, inc in pulses.items()})
        return self._store.append(list(map(cut, facts)), [mark] if counts else [])

    def tell(self, key: str, news: AnyNews) -> None:
        """One fact that is no report: a command, an outcome. It says nothing about whether agents can be heard."""
        self._store.append([cut(Fact(id=key, at=moment(self._clock.wall()), news=news))])


class Together:
    """Group commit of facts that are told one by one: whoever comes while another's append waits for the disk goes with
    the next. Alone it is appended at once; on many threads as many share a sync as came during the last one.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._told: list[Fact] = []
        self._telling = Lock()  # of the list
        self._appending = Lock()

    def tell(self, key: str, news: AnyNews) -> None:
        """Returns when it is stored, by this thread or by another."""
        with self._telling:
            self._told.append(cut(Fact(id=key, at=moment(self._clock.wall()), news=news)))
        with self._appending:
            with self._telling:
                facts, self._told = self._told, []
            if facts:
                self._store.append(facts)


def _clock(store: Store, source: str) -> WatchedClock:
    row = store.load([f"clock:{source}"])[f"clock:{source}"].row
    return row if isinstance(row, WatchedClock) else WatchedClock(source=source, period=10.0)


def voices(store: Store, clock: Clock, silence: float) -> int:
    """Turn what the pulses tell into facts: who fell silent, who is heard again, who came back as another."""
    reading = _clock(store, INGEST).reading
    heard = store.voices(reading - silence)
    if not heard.silent and not heard.heard:
        return 0
    at = moment(clock.wall())
    facts: list[Fact] = []
    told: dict[NodeId, Pulse | None] = {}
    for node, pulse in heard.silent:
        facts.append(Fact(id=f"silent/{node}/{pulse.reading}", at=at, news=AgentSilent(node=node, since=pulse.reading)))
        told[node] = None
    for node, pulse in heard.heard:
        news = AgentHeard(node=node, incarnation=pulse.incarnation)
        facts.append(Fact(id=f"heard/{node}/{pulse.incarnation.boot_id}/{pulse.reading}", at=at, news=news))
        told[node] = pulse
    return store.append(facts, told=told)


class Watcher:
    """Reads one cluster: deltas from a cursor; when the cursor is lost, the whole, in slices between other rounds.

    It reads only while this replica leads: several that list everything would be a load on the cluster, and each would
    lose the other's cursor.
    """

    def __init__(
        self,
        store: Store,
        cluster: Cluster,
        clock: Clock,
        leads: Callable[[], bool] = alone,
        slice_size: int = 0,
    ) -> None:
        self._store = store
        self._slices_of = slice_size  # 0: SLICE
        self._cluster = cluster
        self._clock = clock
        self._leads = leads
        self._slices: Iterator[tuple[list[Fact], list[Mark]]] | None = None
        # Whoever takes over lists everything once; and if jobs were missing, once more tells whether they have gone.
        self._list_again = True
        self._began = 0.0  # the present read, on the monotonic clock
        self.trouble = ""  # why the cluster could not be read the last time

    @property
    def amid(self) -> bool:
        """Whether slices of a read are left."""
        return self._slices is not None

    def read(self) -> int:
        """One read. A cluster that cannot be read moves no clock: nothing runs out meanwhile. Returns new facts."""
        if not self._leads():
            self._slices, self._list_again, self.trouble = None, True, ""
            return 0
        try:
            if self._slices is not None:
                return self._next_slice(self._slices)
            return self._read_on()
        except EffectError as error:
            self._slices = None
            self.trouble = str(error)
            return 0
        except Exception:
            # The store failed: this slice may not have been stored, so the cursor must not move past it, and the list
            # counts for nothing. Or an adapter has a defect: a list that broke off has no next slice, ever.
            self._list_again = self._list_again or self._slices is not None
            self._slices = None
            raise

    @property
    def midway(self) -> bool:
        """Whether slices of a list are left to be told: the next step reads nothing."""
        return self._slices is not None

    def _read_on(self) -> int:
        known = _clock(self._store, self._cluster.id)
        self._began = self._clock.mono()
        again = self._list_again and known.cursor is not None
        found = Lost() if again else self._cluster.watch(known.cursor)
        self.trouble = ""
        if isinstance(found, Lost):
            self._list_again = True  # until all of it is stored: a list that ends early is one that was not read
            self._slices = self._compare(first=known.cursor is None)
            return self._next_slice(self._slices)
        return self._deltas(found)

    def _deltas(self, found: Deltas) -> int:
        at = moment(self._clock.wall())
        facts = [
            self._told(news, at)
            if isinstance(news, Told)
            else Fact(id=f"{self._cluster.id}/{found.cursor}/{n}", at=_dated(news, at), news=self._signed(news))
            for n, news in enumerate(found.news)
        ]
        return self._append(facts, [self._mark(found.cursor, found.as_of)])

    def _signed(self, news: Said) -> Said:
        """With the name of who says it: two clusters may have a job of one id."""
        return replace(news, cluster=self._cluster.id) if isinstance(news, JobSeen | JobVanished) else news

    def _told(self, told: Told, now: datetime) -> Fact:
        """Named by the far side: a list that says it again is no second fact."""
        return Fact(id=f"{self._cluster.id}/told/{told.id}", at=min(told.at, now), news=told.news)

    def _append(self, facts: Sequence[Fact], marks: Sequence[Mark]) -> int:
        """A read may have taken so long that another leads by now, who has read further: then it counts for nothing,
        and if we lead again, everything is listed again. A slice that is left out would never be told.
        """
        if self._leads():
            return self._store.append(list(map(cut, facts)), marks)
        self._slices, self._list_again = None, True
        return 0

    def _mark(self, cursor: str, as_of: float) -> Mark:
        return Mark(
            source=self._cluster.id,
            at=self._clock.wall(),
            period=self._cluster.period,
            took=self._clock.mono() - self._began,
            cursor=cursor,
            as_of=as_of,
        )

    def _next_slice(self, slices: Iterator[tuple[list[Fact], list[Mark]]]) -> int:
        for facts, marks in slices:
            told = self._append(facts, marks)
            if marks and self._slices is slices:
                self._slices = None  # that was the last one
            return told
        return 0

    def _compare(self, *, first: bool) -> Iterator[tuple[list[Fact], list[Mark]]]:
        """What a snapshot says that the rows do not. Cursor and clock move with the last slice only: those before it
        say nothing newer than the snapshot, and what must show itself on the cluster cannot have shown itself in them.
        """
        listed = self._cluster.snapshot()
        wall = moment(self._clock.wall())
        # Each list speaks for itself: what an earlier one said at the same cursor may have been set aside since.
        stem = f"{self._cluster.id}/{listed.cursor}/whole/{wall.timestamp():.3f}"
        behind = self._behind()
        slices: list[list[Fact]] = []
        for n, some in enumerate(_sliced(listed.nodes, self._slices_of or SLICE)):
            rows = self._store.load(f"node:{seen.node}" for seen in some)
            changed = [s for s in some if s.node in behind.nodes or _differs(rows[f"node:{s.node}"].row, s)]
            slices.append(
                [
                    Fact(
                        id=f"{stem}/{n}/{seen.node}",
                        at=wall,
                        news=replace(seen, first_connection=first),
                    )
                    for seen in changed
                ]
            )
        for some_jobs in _sliced(listed.jobs, self._slices_of or SLICE):
            rows = whole(self._store.load(f"job:{seen.job}" for seen in some_jobs), self._store.load)
            news = [s for s in some_jobs if s.job in behind.jobs or _says_more(rows[f"job:{s.job}"].row, s)]
            slices.append([Fact(id=f"{stem}/job/{s.job}/{s.attempt}", at=_dated(s, wall), news=self._signed(s))
                           for s in news])  # fmt: skip
        slices.extend(
            [self._told(told, wall) for told in some] for some in _sliced(listed.told, self._slices_of or SLICE)
        )
        present = {seen.job for seen in listed.jobs}
        missing = [JobVanished(job=job, as_of=listed.as_of, sure=False, cluster=self._cluster.id)
                   for job in self._missing(present, listed.as_of)]  # fmt: skip
        slices.extend([Fact(id=f"{stem}/missing/{job.job}/{job.as_of}", at=wall, news=job) for job in some]
                      for some in _sliced(missing, self._slices_of or SLICE))  # fmt: skip
        slices.append([Fact(id=f"{stem}/gone/{node}", at=wall, news=NodeVanished(node=node, as_of=listed.as_of))
                       for node in self._vanished({seen.node for seen in listed.nodes}, behind)])  # fmt: skip
        for facts in filter(None, slices[:-1]):
            yield facts, []
        self._list_again = bool(missing) or not behind.jobs <= present
        yield slices[-1], [self._mark(listed.cursor, listed.as_of)]

    def _behind(self) -> Behind:
        """Of whom more is stored than their rows have learned: what these say is no reason to leave anything out.

        The cursor is read before the rows are: what is learned in between counts as not learned.
        """
        row = self._store.load([CURSOR])[CURSOR].row
        after = row.at if isinstance(row, Cursor) else 0
        nodes, jobs, more = set[NodeId](), set[JobId](), True
        while more:
            facts = self._store.facts(after=after, limit=SLICE)
            for fact in facts:
                after = fact.seq
                match fact.news:
                    case NodeSeen(node=node) | NodeVanished(node=node) if node.startswith(f"{self._cluster.id}/"):
                        nodes.add(node)
                    case JobSeen(job=job, cluster=cluster) if cluster in {"", self._cluster.id}:
                        jobs.add(job)
                    case JobVanished(job=job):
                        jobs.add(job)
                    case _:
                        pass
            more = len(facts) == SLICE
        return Behind(nodes, jobs)

    def _vanished(self, present: set[NodeId], behind: Behind) -> Iterator[NodeId]:
        yield from sorted(behind.nodes - present)
        after = ""
        while page := self._store.keys("node", after=after):
            rows = self._store.load(page)
            for key in page:
                row = rows[key].row
                mine = isinstance(row, Node) and row.cluster == self._cluster.id and row.incarnation is not None
                if isinstance(row, Node) and mine and row.id not in present | behind.nodes:
                    yield row.id
            after = page[-1]

    def _missing(self, present: set[JobId], as_of: float) -> Iterator[JobId]:
        """Open jobs that this cluster has shown and this list does not have.

        Of one that is known to have vanished no list says more; listed again and again a cluster is hardly read at all.
        """
        for keys in _sliced(self._store.find(f"open-job:{self._cluster.id}"), SLICE):
            for found in self._store.load(keys).values():
                row = found.row
                if (
                    isinstance(row, Job)
                    and row.id not in present
                    and row.state in SHOWN
                    and not row.vanished
                    and 0 < row.ranks_as_of < as_of
                ):
                    yield row.id


def _dated(news: AnyNews, otherwise: datetime) -> datetime:
    return news.end.at if isinstance(news, JobSeen) and news.end is not None else otherwise


def _differs(row: object, seen: NodeSeen) -> bool:
    if not isinstance(row, Node):
        return True
    known = (row.registered, row.ready, row.cordons, row.unmanaged, row.pool, row.domain, row.linked, row.devices)
    pool, devices = pool_of(seen.cluster, seen.pool), devices_with(row.devices, seen.devices)
    cordons, linked = tuple(sorted(seen.cordons)), row.linked if seen.linked is None else seen.linked
    return known != (seen.incarnation, seen.ready, cordons, seen.unmanaged, pool, seen.domain, linked, devices)


def _says_more(row: object, seen: JobSeen) -> bool:
    """Whether a job's row would learn anything from what a list says of it."""
    if not isinstance(row, Job):
        return seen.spec is not None and seen.end is None
    if seen.attempt != row.attempt:
        return seen.attempt > row.attempt
    if not row.open:
        return False
    ranks = any(row.ranks.get(node) not in {state, RankState.GONE} for node, state in seen.ranks.items())
    end = seen.end is not None and (row.end is None or bool(seen.end.tail and not row.end.tail))
    return ranks or end or row.missing_as_of is not None or not row.ranks_as_of


def _sliced(things: Sequence[Thing], size: int) -> Iterator[Sequence[Thing]]:
    for start in range(0, len(things), size):
        yield things[start : start + size]
