"""A read-only view of a store: rows by the words of the model, never written."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from itertools import islice
from typing import TypeVar, overload

from msgspec.structs import replace

from sickbay.brain.admit import limit_for
from sickbay.brain.endings import recorded
from sickbay.faces.answers import Estimate, PoolBudget, SeatOut
from sickbay.faces.turns import Turns
from sickbay.model.clock import Deadline, WatchedClock
from sickbay.model.errors import BadInput, NoSuchSubject
from sickbay.model.fleet import Brake, InForce, Ledger, Node, NodeId, Roster, Withholding
from sickbay.model.incident import Incident
from sickbay.model.intent import Intent
from sickbay.model.job import KEEP_ATTEMPTS, Attempt, Job
from sickbay.model.order import OrderRecord
from sickbay.model.parts import whole
from sickbay.model.policy import Policy
from sickbay.model.rows import IN_FORCE, TO_SEND, WITHHOLDING, AnyRow, Line
from sickbay.ports.store import Store

PAGE = 500  # rows that are read together
SUBJECTS = ("node", "job", "incident")
Kind = TypeVar("Kind", bound=AnyRow)


class Archive:
    def __init__(self, store: Store, policies: Mapping[str, Policy] | None = None) -> None:
        """`policies` by digest: the one that is in force is looked up among them."""
        self._store = store
        self._open_jobs: dict[str, list[Job]] = {}
        self._holders: dict[str, dict[str, list[Job]]] = {}
        self._out: dict[str, list[Node]] = {}
        in_force = self._row(InForce, IN_FORCE)
        self.policy = (policies or {}).get(in_force.policy) if in_force is not None else None
        found = (self._row(WatchedClock, key) for key in self._keys("clock"))
        self.clocks = {clock.source: clock for clock in found if clock is not None}
        heard = [clock.last for clock in self.clocks.values() if clock.last is not None]
        self.as_of = datetime.fromtimestamp(max(heard), UTC) if heard else None  # as far as this store knows

    # --- rows
    def _row(self, kind: type[Kind], key: str) -> Kind | None:
        row = whole(self._store.load([key]), self._store.load)[key].row
        return row if isinstance(row, kind) else None

    def _keys(self, kind: str) -> Iterator[str]:
        after = ""
        while page := self._store.keys(kind, after=after):
            yield from page
            after = page[-1]

    def node(self, node: str) -> Node | None:
        return self._row(Node, f"node:{node}")

    def job(self, job: str) -> Job | None:
        return self._row(Job, f"job:{job}")

    def incident(self, incident: str) -> Incident | None:
        return self._row(Incident, f"incident:{incident}")

    def order(self, order: str) -> OrderRecord | None:
        return self._row(OrderRecord, f"order:{order}")

    def intent(self, key: str) -> Intent | None:
        return self._row(Intent, f"intent:{key}") if key else None

    def attempts(self, job: Job) -> list[Attempt]:
        """Those on record, oldest first, and the one that is under way."""
        keys = [f"attempt:{job.id}/{n}" for n in range(max(1, job.attempt - KEEP_ATTEMPTS + 1), job.attempt + 1)]
        rows = self._store.load(keys)
        found = [row for key in keys if isinstance(row := rows[key].row, Attempt)]
        known = any(one.number == job.attempt for one in found)
        if known or not job.attempt or not job.open or not job.claim:
            return found
        return [*found, replace(recorded(None, job, job.submitted_at), ended_at=None, because="")]

    def names_of(self, attempt: Attempt) -> tuple[NodeId, ...]:
        """Of its nodes, as many as one row has."""
        roster = self._row(Roster, f"roster:{attempt.job}/{attempt.number}/0") if attempt.rosters else None
        return roster.nodes if roster is not None else attempt.names

    def withholding(self) -> Withholding:
        return self._row(Withholding, WITHHOLDING) or Withholding()

    def _rows(self, kind: type[Kind], keys: Iterable[str]) -> Iterator[Kind]:
        """Those that are there, read a page at a time."""
        for page in batched(keys, PAGE):
            found = whole(self._store.load(page), self._store.load)
            yield from (row for key in page if isinstance(row := found[key].row, kind))

    def brakes(self) -> list[Brake]:
        return list(self._rows(Brake, self._keys("brake")))

    def tripped(self) -> list[Brake]:
        return [brake for brake in self.brakes() if brake.tripped_at is not None]

    def nodes(self, pool: str = "") -> list[Node]:
        """All, or those of a pool by its qualified name."""
        return [node for node in self._rows(Node, self._keys("node")) if pool in {"", node.pool}]

    def unclaimable(self, pool: str) -> list[Node]:
        """The nodes of a pool that no job could be given now, whoever has them: read without all the others."""
        free = set(self._store.find(f"claimable:{pool}"))
        keys = (key for key in self._keys("node") if key not in free)
        return [node for node in self._rows(Node, keys) if node.pool == pool]

    def out_of(self, pool: str) -> list[Node]:
        """The nodes that use up what a pool may lack, in the order of their names; asked for again and again."""
        if pool not in self._out:
            self._out[pool] = [node for node in self.unclaimable(pool) if node.out]
        return self._out[pool]

    def open_incidents(self, pool: str) -> list[Incident]:
        return list(self._rows(Incident, self._store.find(f"open-incident:{pool}")))

    def open_jobs(self, cluster: str) -> list[Job]:
        if cluster not in self._open_jobs:
            self._open_jobs[cluster] = list(self._rows(Job, self._store.find(f"open-job:{cluster}")))
        return self._open_jobs[cluster]

    def turns(self, cluster: str) -> Turns:
        return Turns(self.open_jobs(cluster))

    def holders(self, node: Node) -> list[Job]:
        """Looked up, not searched: a list of a large fleet asks for each of its nodes."""
        if node.cluster not in self._holders:
            holders: dict[str, list[Job]] = {}
            for job in self.open_jobs(node.cluster):
                for claimed in job.claim:
                    holders.setdefault(claimed, []).append(job)
            self._holders[node.cluster] = holders
        return self._holders[node.cluster].get(node.id, [])

    def to_send(self, lane: str) -> int:
        """How many calls wait for a worker of this lane."""
        return len(self._store.find(f"{TO_SEND}{lane}"))

    def story(self, subject: str) -> Sequence[Line]:
        return self._store.story(subject)

    # --- what follows from them
    def budget(self, pool: str, used_by: Iterable[SeatOut] = ()) -> PoolBudget:
        ledger = self._row(Ledger, f"ledger:{pool}") or Ledger(pool=pool)
        limit = limit_for(pool, self.policy) if self.policy is not None else None
        size = (limit.size if limit is not None else None) or ledger.size
        return PoolBudget(
            pool=pool,
            size=size,
            out=ledger.out,
            may_be_out=limit.out(size) if limit is not None else None,
            repairing=ledger.repairing,
            may_be_repairing=limit.repairing(size) if limit is not None else None,
            held=ledger.held,
            used_by=list(used_by),
        )

    def estimate(self, deadline: Deadline | None) -> Estimate | None:
        """Reading + remaining, on the wall. Watched clocks stand still while their source is not heard."""
        clock = self.clocks.get(deadline.clock) if deadline is not None else None
        if deadline is None or clock is None or clock.last is None or self.as_of is None:
            return None
        since = self.still_since(clock)
        begin = datetime.fromtimestamp(clock.moved or clock.last, UTC) if since is None else self.as_of
        left = timedelta(seconds=max(0.0, deadline.at - clock.reading))
        return Estimate(about=iso(begin + left), clock=deadline.clock, stands_since=iso(since))

    def still_since(self, clock: WatchedClock) -> datetime | None:
        """Since when a source is not heard, measured by what the others have told since; None: it is heard."""
        if clock.last is None or self.as_of is None:
            return None
        # A source that answers too slowly is heard, but its clock does not move.
        last = datetime.fromtimestamp(clock.last if clock.moved is None else clock.moved, UTC)
        return last if self.as_of - last > timedelta(seconds=2 * clock.period + clock.took) else None

    # --- names
    def find(self, name: str) -> str:
        """The row key that a person means: node, job or incident, with or without its cluster. Raises BadInput."""
        kind, _, rest = name.partition(":")
        if kind in SUBJECTS and rest:
            return self._only(name, [key for key in self._named(rest) if key.startswith(f"{kind}:")])
        return self._only(name, self._named(name))

    def _named(self, name: str) -> list[str]:
        exact = [f"{kind}:{name}" for kind in SUBJECTS]
        found = [key for key in exact if self._store.load([key])[key].row is not None]
        return found or [key for key in self._keys("node") if key.rpartition("/")[2] == name] or self._newest(name)

    def _newest(self, name: str) -> list[str]:
        """Of several jobs of one name people mean the last that was submitted."""
        jobs = [job for job in self._rows(Job, self._keys("job")) if job.spec.name == name]
        return [f"job:{job.id}" for job in sorted(jobs, key=lambda job: job.submitted_at)[-1:]]

    def _only(self, asked: str, found: list[str]) -> str:
        if len(found) == 1:
            return found[0]
        if found:
            raise BadInput(f"{asked!r} is more than one: write {' or '.join(found)}")
        known = [key.partition(":")[2] for kind in SUBJECTS for key in self._keys(kind)]
        raise NoSuchSubject(unknown_name("node, job or incident", asked, known))


def batched(keys: Iterable[str], size: int) -> Iterator[list[str]]:
    left = iter(keys)
    while page := list(islice(left, size)):
        yield page


def unknown_name(what: str, name: str, known: Iterable[str], *, whole_names: bool = False) -> str:
    """The line about a name that nothing has, with the nearest ones that there are."""
    short = list(dict.fromkeys(one if whole_names else one.rpartition("/")[2] for one in known))
    # Without a cluster, and without the kind of row in front.
    bare = name if whole_names else name.rpartition("/")[2].rpartition(":")[2]
    close = get_close_matches(bare, short, n=3, cutoff=0.5)
    if close:
        hint = f"did you mean {', '.join(close)}?"
    elif short:
        hint = f"there are {', '.join(short[:3])}{' …' if len(short) > 3 else ''}"
    else:
        hint = "there is none at all"
    return f"there is no {what} {name!r}: {hint}"


@overload
def iso(at: datetime) -> str: ...
@overload
def iso(at: None) -> None: ...
@overload
def iso(at: datetime | None) -> str | None: ...
def iso(at: datetime | None) -> str | None:
    """Milliseconds are enough for people and never end differently."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z") if at is not None else None
