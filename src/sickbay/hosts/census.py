"""A read model of the fleet's present state, for metrics: fed by each commit, so that who asks reads no store."""

from collections.abc import Iterable, Iterator
from threading import Lock
from typing import TypeVar

from sickbay.hosts.tally import FleetTally
from sickbay.model.fleet import Brake, Ledger, Node, Withhold, Withholding
from sickbay.model.incident import Incident
from sickbay.model.intent import Intent
from sickbay.model.job import Job
from sickbay.model.parts import whole
from sickbay.model.rows import AnyRow, Unit
from sickbay.ports.store import Store

Kind = TypeVar("Kind", bound=AnyRow)
PAGE = 1000
WHOLE = ("node", "ledger", "brake", "withholding")  # kinds of which every row is kept
OPEN = {"incident": "open-incident:", "job": "open-job:"}  # of these only what is open: the tags that it carries


class Census:
    """The leader's alone: whoever does not lead hears of no commits, and is asked for nothing.

    `follow` and `committed` are called by the engine's thread, so that none is missed between them.
    """

    def __init__(self) -> None:
        self.tally = FleetTally()
        self.units = 0
        self.fed = False  # somebody tells it of commits
        self._rows: dict[str, AnyRow] = {}
        self._lock = Lock()

    def follow(self, store: Store) -> None:
        """Once for each term of leadership: everything as it is now; what changes from now on is told by commits."""
        self.seed(store)
        self.fed = True

    def seed(self, store: Store) -> None:
        rows = {key: row for keys in _pages(store) for key, row in _loaded(store, keys)}
        jobs = [row for row in rows.values() if isinstance(row, Job)]
        linked = [f"incident:{name}" for job in jobs for name in self.tally.linked(job)]
        known = [row for _, row in _loaded(store, linked) if isinstance(row, Incident)]
        with self._lock:
            self._rows = rows
            for incident in (*known, *(row for row in rows.values() if isinstance(row, Incident))):
                self.tally.know(incident)
            for job in jobs:
                self.tally.losses(job)

    def committed(self, unit: Unit) -> None:
        with self._lock:
            self.units += 1
            self.tally.count(unit.counts)
            for key, row in unit.writes.items():
                self._changed(key, row, created=unit.expect.get(key) == 0)

    def _changed(self, key: str, row: AnyRow | None, *, created: bool) -> None:
        before = self._rows.get(key)
        match row:
            case Incident():
                self.tally.incident(before if isinstance(before, Incident) else None, row, created=created)
                self._keep(key, row if row.open else None)
            case Job():
                self.tally.job(before if isinstance(before, Job) else None, row, created=created)
                self._keep(key, row if row.open else None)
            case Intent():
                self.tally.intent(before if isinstance(before, Intent) else None, row)
                self._keep(key, row if not row.state.over else None)
            case Node() | Ledger() | Brake() | Withholding():
                self._keep(key, row)
            case None:
                self._keep(key, None)
            case _:
                return
        if isinstance(row, Job) and not row.open:
            self.tally.forget_job(row)

    def _keep(self, key: str, row: AnyRow | None) -> None:
        if row is None:
            self._rows.pop(key, None)
        else:
            self._rows[key] = row

    def all_of(self, kind: type[Kind]) -> list[Kind]:
        with self._lock:
            return [row for row in self._rows.values() if isinstance(row, kind)]

    def incident(self, name: str | None) -> Incident | None:
        """One that is open."""
        row = self._rows.get(f"incident:{name}")
        return row if isinstance(row, Incident) else None

    def withheld(self) -> list[Withhold]:
        return [row for rows in self.all_of(Withholding) for row in rows.rows]


def _pages(store: Store) -> Iterator[Iterable[str]]:
    for kind in WHOLE:
        after = ""
        while page := store.keys(kind, after=after, limit=PAGE):
            yield page
            after = page[-1]
    for prefix in OPEN.values():
        for tag in store.tags(prefix):
            found = store.find(tag)
            yield from (found[at : at + PAGE] for at in range(0, len(found), PAGE))


def _loaded(store: Store, keys: Iterable[str]) -> Iterator[tuple[str, AnyRow]]:
    for key, found in whole(store.load(keys), store.load).items():
        if found.row is not None:
            yield key, found.row
