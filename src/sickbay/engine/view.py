"""Rows as a round sees them, and a draft of what one unit changes."""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple, TypeVar

from sickbay.engine.indexes import FreeNodes, OpenJobs, RoomQueue, waits
from sickbay.model.clock import WatchedClock
from sickbay.model.errors import UnreadableRow
from sickbay.model.fleet import Capability, IncidentId, JobId, Ledger, Node, NodeId, Roster, pool_fits
from sickbay.model.incident import Incident, Room
from sickbay.model.intent import Intent
from sickbay.model.job import Attempt, Interruption, Job
from sickbay.model.notice import ChannelTraits
from sickbay.model.parts import stored, whole
from sickbay.model.plain_text import plain_text
from sickbay.model.policy import Policy
from sickbay.model.rows import AUDIT, AnyRow, AuditEntry, Line, Unit, Versioned, WaitMark, key_of, kind_of, tag_of
from sickbay.model.tables import Tables
from sickbay.ports.store import Store

RowType = TypeVar("RowType", bound=AnyRow)

CACHE_ROWS = 1_000_000  # also keys without a row: some for each of 100,000 nodes


class PoolAbilities(NamedTuple):
    """What can be done for the nodes of a pool whose machines are not those of its whole cluster."""

    can: frozenset[Capability]
    blind: frozenset[str]


@dataclass(frozen=True, slots=True)
class Rules:
    """What decisions are made with: policy, knowledge, and what each cluster can do."""

    policy: Policy
    tables: Tables
    policy_digest: str
    can: Mapping[str, frozenset[Capability]]
    blind: Mapping[str, frozenset[str]]
    checks_first: frozenset[str] = frozenset()  # clusters whose nodes are checked once that were there before us
    channels: Mapping[str, ChannelTraits] = field(default_factory=dict)  # of the notifiers that are configured
    pools: Mapping[str, Mapping[str, PoolAbilities]] = field(default_factory=dict)  # by cluster and glob of pools

    @property
    def digest(self) -> str:
        return f"{self.policy_digest}+{self.tables.digest}"

    def can_in(self, cluster: str, pool: str = "") -> frozenset[Capability]:
        """Of a node's pool, or, without one, what any pool of the cluster can do."""
        own = self._of_pool(cluster, pool)
        return own.can if own is not None else self.can.get(cluster, frozenset())

    def blind_in(self, cluster: str, pool: str = "") -> frozenset[str]:
        own = self._of_pool(cluster, pool)
        return own.blind if own is not None else self.blind.get(cluster, frozenset())

    def _of_pool(self, cluster: str, pool: str) -> PoolAbilities | None:
        named = self.pools.get(cluster, {}) if pool else {}
        return next((own for glob, own in named.items() if glob == "*" or pool_fits(pool, glob)), None)


class View:
    """Rows by key, read once and remembered: only the leader writes rows, so what it wrote is what is there.

    After any doubt (a conflict, a lost answer, a new epoch) everything remembered is thrown away.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rows: dict[str, Versioned] = {}
        self._found: dict[str, list[str]] = {}
        self._jobs: dict[str, OpenJobs] = {}  # by tag
        self._free: dict[str, FreeNodes] = {}  # by pool
        self._queues: dict[str, RoomQueue] = {}  # by pool
        self._sure = True  # nothing was refused since we last wrote
        self._ahead: set[str] = set()  # keys of what is planned and not committed yet

    def get(self, key: str) -> Versioned:
        found = self._rows.get(key)
        if found is None:
            self.fetch([key])
            found = self._rows[key]
        return found

    def fetch(self, keys: Iterable[str]) -> None:
        missing = [key for key in keys if key not in self._rows]
        if missing:
            if len(self._rows) > CACHE_ROWS:
                self.forget()
            self._rows.update(whole(self._store.load(missing), self._store.load))

    def assume_new(self, key: str) -> None:
        """Nobody has written this row: its name was never given before. The commit proves it; after a doubt we look."""
        if self._sure:
            self._rows.setdefault(key, Versioned(row=None))

    def find(self, tag: str) -> Sequence[str]:
        found = self._found.get(tag)
        if found is None:
            keys = self._store.find(tag)
            if self._ahead:  # of these the store does not know yet
                theirs = {key for key in self._ahead if _tag(self._rows[key].row) == tag}
                keys = sorted({key for key in keys if key not in self._ahead} | theirs)
            self.fetch(keys)
            self._found[tag] = found = list(keys)
        return found

    def jobs(self, tag: str, *, readable: bool = False) -> OpenJobs:
        """The open jobs of a tag, by node. One that cannot be read may hold any of them: refused, but if `readable`."""
        index = self._jobs.get(tag)
        if index is None:
            index, jobs, damage = OpenJobs(), list[Job](), ""
            for key in self.find(tag):
                found = self.get(key)
                damage = damage or found.damage
                if isinstance(found.row, Job):
                    jobs.append(found.row)
            if damage and not readable:
                raise UnreadableRow(damage)
            self.fetch(key for job in jobs for lost in job.interruptions for key in rosters_of(job, lost))
            for job in jobs:
                index.put(key_of(job), None, job, self._roster)
            if not damage:
                self._jobs[tag] = index
        return index

    def free(self, pool: str) -> FreeNodes:
        """The claimable nodes of a pool, by what is free on them."""
        index = self._free.get(pool)
        if index is None:
            index = FreeNodes()
            for key in self.find(f"claimable:{pool}"):
                row = self.get(key).row
                if isinstance(row, Node):
                    jobs = self.jobs(jobs_near(row))
                    index.put(row.id, row, jobs.on(row.id), jobs.reserved(row.id, row.pool))
            self._free[pool] = index
        return index

    def queue(self, pool: str) -> RoomQueue:
        """The open incidents of a pool that wait for room within its limit."""
        queue = self._queues.get(pool)
        if queue is None:
            queue = RoomQueue()
            for key in self.find(f"open-incident:{pool}"):
                if isinstance(row := self.get(key).row, Incident):
                    queue.put(key, None, row)
            self._queues[pool] = queue
        return queue

    def _index(self, key: str, before: AnyRow | None, after: AnyRow | None) -> None:
        """Bring the indexes along with a row that is written."""
        if isinstance(before, Incident) or isinstance(after, Incident):
            rows = [each if isinstance(each, Incident) else None for each in (before, after)]
            for pool in {each.pool for each in rows if each is not None} & self._queues.keys():
                self._queues[pool].put(
                    key, *(each if each is not None and each.pool == pool else None for each in rows)
                )
            return
        if isinstance(before, Job) or isinstance(after, Job):
            was = before if isinstance(before, Job) and before.open else None
            now = after if isinstance(after, Job) and after.open else None
            for tag in {_tag(was), _tag(now)} & self._jobs.keys():
                left = was if _tag(was) == tag else None
                come = now if _tag(now) == tag else None
                for node in self._jobs[tag].put(key, left, come, self._roster):
                    self._refile(node)
        elif isinstance(before, Node) or isinstance(after, Node):
            if isinstance(before, Node) and before.pool in self._free:
                self._free[before.pool].put(before.id, None, {}, {})
            if isinstance(after, Node):
                self._refile(after.id)

    def _roster(self, job: Job, lost: Interruption) -> dict[NodeId, tuple[int, ...]]:
        rows = (self.get(key).row for key in rosters_of(job, lost))
        return {node: held for row in rows if isinstance(row, Roster) for node, held in row.held.items()}

    def _refile(self, node: NodeId) -> None:
        found = self._rows.get(f"node:{node}")
        row = found.row if found is not None else None
        if isinstance(row, Node) and row.pool in self._free:
            jobs = self.jobs(jobs_near(row))
            self._free[row.pool].put(node, row if row.claimable else None, jobs.on(node), jobs.reserved(node, row.pool))

    def keys(self, kind: str, after: str, limit: int) -> Sequence[str]:
        """A page of the keys of one kind as the store has them, with their rows fetched."""
        found = self._store.keys(kind, after=after, limit=limit)
        self.fetch(found)
        if self._ahead:
            last = found[-1] if len(found) == limit else None
            new = {key for key in self._ahead if kind_of(key) == kind and key > after and (last is None or key < last)}
            found = [key for key in sorted({*found, *new}) if self.get(key).version][:limit]
        return found

    def wrote(self, unit: Unit, version: int) -> None:
        """A unit was committed under this version, or, if it is −n, will be as the n-th of its group."""
        self._sure = version >= 0 or self._sure
        if version < 0:
            self._ahead.update(unit.writes.keys())
        rows = {key: self._rows.get(key) for key in unit.writes}
        for key, row in unit.writes.items():
            self._rows[key] = Versioned(row=row, version=version if row is not None else 0)
        if None in rows.values():  # one was read under a memory that has been thrown away since
            self._found.clear()
            self._jobs.clear()
            self._free.clear()
            self._queues.clear()
        for key, row in unit.writes.items():
            if (before := rows[key]) is None:
                continue
            if (was := _tag(before.row)) != (now := _tag(row)):
                if was in self._found:
                    del self._found[was][bisect_left(self._found[was], key)]
                if now in self._found:
                    insort(self._found[now], key)
            self._index(key, before.row, row)

    def confirm(self, units: Sequence[Unit], versions: Sequence[int]) -> None:
        """Units that were written here under −1, −2, … have been committed: these are their versions."""
        for number, (unit, version) in enumerate(zip(units, versions, strict=True), 1):
            for key in unit.writes:
                if self._rows[key].version == -number:
                    self._rows[key] = Versioned(row=self._rows[key].row, version=version)
        self._ahead.clear()
        self._sure = True

    def forget(self, *, refused: bool = False) -> None:
        self._sure = self._sure and not refused
        self._ahead.clear()
        self._rows.clear()
        self._found.clear()
        self._jobs.clear()
        self._free.clear()
        self._queues.clear()


def rosters_of(job: Job, lost: Interruption) -> list[str]:
    return [f"roster:{job.id}/{lost.attempt}/{number}" for number in range(lost.rosters)]


def jobs_near(node: Node) -> str:
    """The tag of the jobs that may claim a node."""
    return f"open-job:{node.cluster}"


def _tag(row: AnyRow | None) -> str:
    return "" if row is None else tag_of(row)


class Draft:
    """One unit in the making: every read is expected at commit, and watched by the wait that may follow."""

    def __init__(
        self,
        view: View,
        rules: Rules,
        clocks: Mapping[str, WatchedClock],
        now: datetime,
        newest: Mapping[str, WatchedClock] | None = None,
    ) -> None:
        """`clocks` as far as their facts are learned; `newest` as they stand (see `engine.clocks`)."""
        self._view = view
        self.rules = rules
        self.clocks = clocks
        self.newest = clocks if newest is None else newest
        self.readings = readings_of(clocks)  # by these it is judged what has passed
        self.present = readings_of(self.newest)  # from these it is set what will pass
        self.now = now
        self.expect: dict[str, int] = {}
        self.watched: set[str] = set()
        self.writes: dict[str, AnyRow | None] = {}
        self.waits: dict[str, WaitMark | None] = {}
        self.story: list[Line] = []
        self.counts: Counter[str] = Counter()
        self.changes = 0

    def read(self, kind: type[RowType], key: str, *, watch: bool = True) -> RowType | None:
        """The row as this unit sees it: its own writes first."""
        if watch:
            self.watched.add(key)
        row = self._row(key)
        if key not in self.writes:
            self.expect.setdefault(key, self.version(key))
        if row is not None and not isinstance(row, kind):
            raise TypeError(f"{key} is not a {kind.__name__}")
        return row

    def peek(self, kind: type[RowType], key: str) -> RowType | None:
        """An unprotected read: the row's version is not expected, so it may have changed when the unit is committed.

        Safe where nothing is decided by it, or where the unit expects the pool's ledger, which changes with it.
        """
        row = self._row(key)
        return row if isinstance(row, kind) else None

    def _row(self, key: str) -> AnyRow | None:
        if key in self.writes:
            return self.writes[key]
        found = self._view.get(key)
        if found.damage:
            raise UnreadableRow(found.damage)
        return found.row

    def version(self, key: str) -> int:
        """The row's version before this unit, 0 for none."""
        return self._view.get(key).version

    def before(self, kind: type[RowType], key: str) -> RowType | None:
        """The row as it was before this unit."""
        row = self._view.get(key).row
        return row if isinstance(row, kind) else None

    def fetch(self, keys: Iterable[str]) -> None:
        """Load what will be peeked at, all at once."""
        self._view.fetch(keys)

    def find(self, kind: type[RowType], tag: str) -> list[RowType]:
        """Rows of one tag. One that cannot be read is not there, but a job: nobody knows what it holds."""
        keys = self._view.find(tag)
        if kind is not Job:
            keys = [key for key in keys if self.readable(key)]
        rows = (self.peek(kind, key) for key in keys)
        return [row for row in rows if row is not None]

    def readable(self, key: str) -> bool:
        return key in self.writes or not self._view.get(key).damage

    def keys(self, kind: str, after: str = "", limit: int = 1000) -> Sequence[str]:
        """A page of the rows of one kind that were there before this unit, in order."""
        return self._view.keys(kind, after, limit)

    def unread(self, reads: int) -> None:
        """Take back all reads after the first so many: nothing followed from them, so nothing depends on them."""
        while len(self.expect) > reads:
            self.expect.popitem()

    def assume_new(self, key: str) -> None:
        """This name was never given before: the row need not be looked for, the commit expects that it is not there."""
        self._view.assume_new(key)

    def create(self, row: AnyRow) -> None:
        """Put a row whose key is numbered and was never given before."""
        self._view.assume_new(key_of(row))
        self.put(row)

    def put(self, row: AnyRow) -> None:
        key = key_of(row)
        self.changes += 1
        if key not in self.expect:
            self.expect[key] = self._view.get(key).version
        self.writes[key] = row

    def drop(self, key: str) -> None:
        self.changes += 1
        if key not in self.expect:
            self.expect[key] = self._view.get(key).version
        self.writes[key] = None

    def tell(self, text: str, *subjects: str, event: str = "", audit: AuditEntry | None = None) -> None:
        self.changes += 1
        told = (*subjects, AUDIT) if audit is not None else subjects
        self.story.append(Line(subjects=told, at=self.now, text=plain_text(text), event=event, audit=audit))

    def count(self, what: str) -> None:
        """Raise a counter of the controller's metrics, if and when this unit is committed."""
        self.counts[what] += 1

    # --- the words of the model
    def attempt(self, job: Job, number: int | None = None) -> Attempt | None:
        """The record of its present attempt, or of another. It changes with its job's row only, which is expected."""
        return self.peek(Attempt, f"attempt:{job.id}/{job.attempt if number is None else number}")

    def node(self, node: NodeId) -> Node | None:
        return self.read(Node, f"node:{node}")

    def incident(self, incident: IncidentId) -> Incident | None:
        return self.read(Incident, f"incident:{incident}")

    def job(self, job: JobId) -> Job | None:
        return self.read(Job, f"job:{job}")

    def intent(self, key: str) -> Intent | None:
        return self.read(Intent, f"intent:{key}") if key else None

    def ledger(self, pool: str) -> Ledger:
        return self.read(Ledger, f"ledger:{pool}") or Ledger(pool=pool)

    def shared(self, job: Job, lost: Interruption) -> dict[NodeId, tuple[int, ...]]:
        """The devices that an attempt had of nodes that it shared with others."""
        keys = [f"roster:{job.id}/{lost.attempt}/{number}" for number in range(lost.rosters)]
        rows = (self.peek(Roster, key) for key in keys)
        shared: dict[NodeId, tuple[int, ...]] = {}
        for row in rows:
            shared |= row.held if row is not None and row.devices else {}
        return shared

    def roster(self, job: Job, lost: Interruption) -> frozenset[NodeId]:
        """The nodes of an attempt that was interrupted."""
        rows = (self.peek(Roster, key) for key in rosters_of(job, lost))
        return frozenset(node for row in rows if row is not None for node in row.nodes)

    def turn(self, pool: str) -> None:
        """Expect the pool's ledger, so that claims take turns."""
        self.read(Ledger, f"ledger:{pool}", watch=False)

    def holders(self, node: Node, *, readable: bool = False) -> list[Job]:
        """Jobs that claim a node, in order. `readable`: to learn what is said of it; an act needs to know them all."""
        found = self._jobs(self._view.jobs(jobs_near(node), readable=readable).on(node.id))
        return [job for job in found if node.id in job.claim]

    def jobs_in(self, cluster: str, directory: str) -> list[Job]:
        """Open jobs of a cluster whose checkpoints are in a directory."""
        found = self._jobs(self._view.jobs(f"open-job:{cluster}", readable=True).sharing[directory])
        return [job for job in found if job.spec.cluster == cluster and job.directory == directory]

    def kept_on(self, node: Node) -> Mapping[str, tuple[int, ...]]:
        """Keys of jobs that a node is kept for, with the devices, as it was before this unit."""
        return self._view.jobs(jobs_near(node)).reserved(node.id, node.pool)

    def interrupted_on(self, node: Node) -> list[Job]:
        """Jobs that lost an attempt on a node, in order."""
        found = self._jobs(self._view.jobs(jobs_near(node), readable=True).interrupted_on(node.id))
        return [job for job in found if any(node.id in self.roster(job, lost) for lost in job.interruptions)]

    def waiting_jobs(self, node: Node) -> list[Job]:
        """Jobs that wait for nodes of the same pool."""
        found = self._jobs(self._view.jobs(jobs_near(node)).waiting[node.pool])
        return [job for job in found if waits(job) and job.pool == node.pool]

    def _jobs(self, keys: Iterable[str]) -> list[Job]:
        """Those of the index, and those that this unit has changed: of these the index does not know yet."""
        ours = (key for key, row in self.writes.items() if isinstance(row, Job))
        rows = (self.peek(Job, key) for key in sorted({*keys, *ours}))
        return [row for row in rows if row is not None and row.open]

    def open_jobs(self, pool: str, *, readable: bool = False) -> OpenJobs:
        """The index of the open jobs of a pool's cluster, as it was before this unit."""
        return self._view.jobs(f"open-job:{pool.split('/', 1)[0]}", readable=readable)

    def free(self, pool: str) -> FreeNodes:
        """As it was before this unit: what `touched` names must be looked at by itself."""
        return self._view.free(pool)

    def queue(self, pool: str, room: Room) -> Iterator[str]:
        """Keys of incidents that wait for room in a pool, in their order, as it was before this unit."""
        return iter(self._view.queue(pool).first(room))

    def touched(self) -> set[NodeId]:
        """Nodes that this unit has changed, or whose claims it has."""
        nodes: set[NodeId] = set()
        for key, row in self.writes.items():
            before = self._view.get(key).row
            nodes.update(each.id for each in (before, row) if isinstance(each, Node))
            jobs = [each for each in (before, row) if isinstance(each, Job)]
            if len(jobs) < 2 or jobs[0].claim != jobs[1].claim:
                nodes.update(node for each in jobs for node in each.claim)
        return nodes

    def reading(self, clock: str) -> float:
        """The present, for what is dated, or set from now on. What has passed is judged by `readings`."""
        return self.present.get(clock, 0.0)

    def can(self, cluster: str, pool: str = "") -> frozenset[Capability]:
        return self.rules.can_in(cluster, pool)

    @property
    def actions(self) -> int:
        """How full the unit is, as a store will count it."""
        tags = {key: _tag(self._view.get(key).row) for key in self.writes}
        unit = Unit(writes=self.writes, expect=self.expect, waits=self.waits, story=tuple(self.story))
        return unit.actions(tags)

    def unit(self) -> Unit:
        changed = {key: row for key, row in self.writes.items() if row is None or row != self._view.get(key).row}
        story = tuple(self.story)
        return Unit(writes=changed, expect=self.expect, waits=self.waits, story=story, counts=dict(self.counts))

    def body(self, unit: Unit) -> Unit:
        """The unit as it is stored: wide rows in parts."""
        return stored(unit, lambda key: self._view.get(key).row, self.now)


def readings_of(clocks: Mapping[str, WatchedClock]) -> dict[str, float]:
    return {source: clock.reading for source, clock in clocks.items()}


def moment(wall: float) -> datetime:
    return datetime.fromtimestamp(wall, UTC)
