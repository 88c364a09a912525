"""An audit trail of what the engine wrote: what it knew when it sent an act, and since when it withholds what.

The world says what happened; this says what the engine could have known by then. Invariants compare the two, so that
"nobody could have known" is a question with an answer and not an excuse.
"""

from typing import TYPE_CHECKING, NamedTuple

from sickbay.brain.seat import kept_by_a_person
from sickbay.model.clock import WatchedClock
from sickbay.model.fleet import Brake, Node, Withhold, Withholding
from sickbay.model.incident import Incident, IncidentKind
from sickbay.model.intent import Intent, IntentState, Notify, nodes_of
from sickbay.model.job import Job
from sickbay.model.rows import AnyRow, Unit

if TYPE_CHECKING:
    from sickbay.sim.simulation import Simulation


class Sent(NamedTuple):
    """One sending of an intent. `known`: the cluster's time up to which the engine had read the cluster by then.

    `told`: that of the newest row of a node that it is about. A list is learned in pieces, and the cluster's clock
    moves with the last: who acts on a row of an earlier one takes the whole list to be known.
    """

    at: float
    known: float
    told: float
    intent: Intent
    incident: Incident | None


class Kept(NamedTuple):
    """Whether an incident's seat is out because a person wants it so, and since when that is so, or is no longer so."""

    by_a_person: bool
    since: float


class SeatKey(NamedTuple):
    cluster: str
    node: str = ""  # empty: any of its cluster


class Witness:
    """Hears of every unit that the store took. Costs what was written."""

    def __init__(self, sim: "Simulation") -> None:
        self._sim = sim
        self.rows: dict[str, AnyRow] = {}  # as last written, open or not
        self.open: dict[str, Incident | Job] = {}  # those of the rows that are open
        self.sent: dict[str, Sent] = {}  # by key of the intent, the latest sending
        self.notices: dict[str, Intent] = {}
        self.withheld: dict[str, tuple[float, Withhold]] = {}  # pause and exclude in force, and since when
        self.newcomers: set[str] = set()  # incidents that were opened as a newcomer's intake
        self.opened: dict[str, float] = {}  # incidents, and when each was first written
        self.tripped: dict[str, float] = {}  # brakes that are on, and since when
        self._kept: dict[str, Kept] = {}  # incidents

    def written(self, unit: Unit) -> list[tuple[AnyRow | None, AnyRow | None]]:
        """Takes the unit down; returns each row as it was before and as it is now."""
        changes: list[tuple[AnyRow | None, AnyRow | None]] = []
        for key, row in unit.writes.items():
            before = self.rows.get(key)
            if isinstance(row, Incident | Job) and row.open:
                self.open[key] = row
            else:
                self.open.pop(key, None)
            if row is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = row
            changes.append((before, row))
        for before, row in changes:
            self._note(before, row)
        return changes

    def _note(self, before: AnyRow | None, row: AnyRow | None) -> None:
        now = self._sim.scheduler.now
        match row:
            case Intent(act=Notify()):
                self.notices[row.key] = row
            case Intent(state=IntentState.SENT):
                again = isinstance(before, Intent) and before.sends == row.sends
                if not again:
                    known, told = self.read_to(row.cluster), self._told(row)
                    self.sent[row.key] = Sent(now, known, told, row, self._owner(row))
            case Withholding(rows=rows):
                self.withheld = {w.id: self.withheld.get(w.id, (now, w)) for w in rows}
            case Incident():
                self.opened.setdefault(row.id, now)
                kept = kept_by_a_person(row)
                if row.id not in self._kept or self._kept[row.id].by_a_person != kept:
                    self._kept[row.id] = Kept(kept, now)
                if row.kind is IncidentKind.INTAKE:
                    self.newcomers.add(row.id)
            case Brake(tripped_at=None):
                self.tripped.pop(f"{row.scope}:{row.signature}", None)
            case Brake():
                self.tripped.setdefault(f"{row.scope}:{row.signature}", now)
            case _:
                pass

    def kept_by_a_person(self, incident: str, at: float) -> bool:
        """Whether it was known at that moment that a person wants the incident's seat out."""
        kept = self._kept.get(incident, Kept(by_a_person=False, since=0.0))
        return kept.by_a_person if kept.since <= at else not kept.by_a_person

    def place_of(self, subject: str) -> SeatKey:
        """Where an incident, an intent or a row about one node is; a job may be anywhere in its cluster."""
        match self.rows.get(subject.removeprefix("send/")):
            case Intent(owner=owner) if owner:
                return self.place_of(owner)
            case Incident(node=node, cluster=cluster):
                return SeatKey(cluster, node)
            case Job(spec=spec):
                return SeatKey(spec.cluster)
            case _:
                name = subject.partition(":")[2]
                return SeatKey(name.partition("/")[0], name)

    def _owner(self, intent: Intent) -> Incident | None:
        row = self.rows.get(intent.owner)
        return row if isinstance(row, Incident) else None

    def read_to(self, cluster: str) -> float:
        """The cluster's time up to which it has been read."""
        row = self._sim.store.load([f"clock:{cluster}"])[f"clock:{cluster}"].row
        return row.as_of if isinstance(row, WatchedClock) else 0.0

    def _told(self, intent: Intent) -> float:
        rows = (self.rows.get(f"node:{node}") for node in nodes_of(intent.act))
        return max((row.as_of for row in rows if isinstance(row, Node)), default=0.0)

    def could_know(self, key: str, since: float) -> bool:
        """Whether the engine had read about something that came at `since` when it sent this act for the last time.

        Of an act that we did not see being sent (another process did) it is assumed that it could.
        """
        sent = self.sent.get(key)
        return sent is None or since <= max(sent.known, sent.told)
