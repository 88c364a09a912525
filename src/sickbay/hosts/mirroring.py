"""Reconciliation of a cluster's mirror with the rows: level-triggered, by the leader, on a thread of its own.

What has changed is coalesced: a subject that changed ten thousand times since it was shown is shown once, as it is now.
A mirror that fails is tried again with back-off; one that hangs stalls this thread and nothing else.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from threading import Event
from typing import TypeVar

import msgspec

from sickbay.brain.showing import job_shown, node_shown
from sickbay.hosts.changes import Changes
from sickbay.model.errors import EffectError, Gone, Rejected, StoreError, Transient
from sickbay.model.fleet import JobId, Node, NodeId, cluster_of
from sickbay.model.incident import Incident
from sickbay.model.job import Job
from sickbay.model.parts import whole
from sickbay.model.rows import AnyRow
from sickbay.model.shown import SHOWN_LINES, AnyShown
from sickbay.ports.mirror import Mirror
from sickbay.ports.store import Store

log = logging.getLogger("sickbay.mirror")

SLICE = 100  # subjects that are read and shown together
SLICE_EVERY = 0.05  # seconds between two slices
RECONCILE = 3600.0  # seconds after which everything is shown anew: others may have changed what is shown
LATEST = 60.0  # seconds between two tries at most
HUNG = 15.0  # seconds without an answer after which a person is told
AnyAnswer = TypeVar("AnyAnswer")


class Mirroring:
    """One cluster's. `term`: the term of leadership, 0 while we do not lead; each begins with everything."""

    def __init__(
        self,
        store: Store,
        changes: Changes,
        cluster: str,
        mirror: Mirror,
        term: Callable[[], int],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._changes = changes
        self._cluster = cluster
        self._mirror = mirror
        self._term = term
        self._now = now
        self._begun = 0  # the term in which all is known
        self._seq = 0
        self._walk: Iterator[str] | None = None  # what is left of a pass over all rows
        self._leftovers: set[str] = set()  # shown by somebody before this pass, not met in it so far
        self._again_at = 0.0
        self._missed = False  # changes, since the present pass began
        self._pending: dict[str, None] = {}
        self._tries: dict[str, tuple[int, float]] = {}  # of subjects that failed: how often, and not before when
        self._failures = 0  # one after the other
        self._not_before = 0.0
        self._last: dict[str, int] = {}  # digests of what was shown in this pass
        self._holders: defaultdict[NodeId, set[JobId]] = defaultdict(set)
        self._claims: dict[JobId, frozenset[NodeId]] = {}
        self._refused: dict[str, str] = {}
        self._failed = ""
        self._asked: tuple[float, str] | None = None  # the call that is under way

    @property
    def trouble(self) -> str:
        """Why it does not show what is, in one line; empty: it does. For another thread."""
        asked, mirror = self._asked, f"the mirror of {self._cluster}"
        if asked is not None and (since := self._now() - asked[0]) > HUNG:
            return f"{mirror} has not answered for {since:.0f} s about {asked[1]}: it shows what was"
        if self._failed:
            return f"{mirror} shows what was: {self._failed}; it is tried again"
        for subject, why in list(self._refused.items())[:1]:
            return f"{mirror} refuses {len(self._refused)}, such as {subject}: {why}"
        return ""

    def run(self, stopping: Event) -> None:
        while not stopping.is_set():
            try:
                more = self.step()
            except Exception as error:
                if stopping.is_set():  # the store is closed by now
                    return
                if not isinstance(error, EffectError | StoreError):
                    log.exception("mirroring %s failed; it goes on", self._cluster)
                self._fail(f"{type(error).__name__}: {error}" if not isinstance(error, EffectError) else str(error))
                more = False
            stopping.wait(SLICE_EVERY if more else self._mirror.period)

    def step(self) -> bool:
        """One slice. True: there is more to show now."""
        term = self._term()
        if term != self._begun:
            self._begin(term)
        if not term or self._now() < self._not_before:
            return False
        self._follow_feed()
        if self._walk is None and self._now() >= self._again_at:
            self._begin_pass()
        self._go_on_with_pass(SLICE - len(self._due()))
        for subject, value in self._read(self._due()[:SLICE]):
            if self._term() != term or not self._settle(subject, value):
                return False
        if not self._tries and self._failed:  # while it was away it may have lost what it showed
            self._failures, self._failed, self._again_at = 0, "", 0.0
        return self._walk is not None or self._now() >= self._again_at or bool(self._due())

    def _due(self) -> list[str]:
        now = self._now()
        return [each for each in self._pending if each not in self._tries or self._tries[each][1] <= now]

    # --- what is to be shown
    def _begin(self, term: int) -> None:
        """Others may have shown and changed anything since we last led."""
        self._begun, self._walk, self._again_at, self._not_before = term, None, 0.0, 0.0
        self._pending, self._tries, self._failures = {}, {}, 0
        self._holders, self._claims = defaultdict(set), {}
        self._last, self._refused, self._failed = {}, {}, ""
        self._seq = self._changes.seq

    def _follow_feed(self) -> None:
        news = self._changes.since(self._seq)
        if news is None:  # more than are kept: whatever it was, a whole pass that begins after this meets it
            self._seq, self._again_at, self._missed = self._changes.seq, 0.0, True
            return
        for item in news:
            self._seq = item.seq
            if item.kind in {"node", "incident", "job"}:
                self._pend(f"{item.kind}:{item.id}")
            elif item.line is not None:
                for subject in item.line.subjects:
                    if subject.startswith("job:"):
                        self._pend(subject)

    def _pend(self, subject: str) -> None:
        if not subject.startswith("node:") or cluster_of(NodeId(subject[5:])) == self._cluster:
            self._pending[subject] = None

    def _begin_pass(self) -> None:
        """Everything, jobs first: whose nodes they hold is shown with the nodes."""
        self._leftovers = self._ask("what it shows", lambda: set(self._mirror.shown()))  # it may be a generator
        self._last, self._refused, self._missed = {}, {}, False
        self._walk = (key for kind in ("job", "node") for key in self._keys(kind))

    def _keys(self, kind: str) -> Iterator[str]:
        after = ""
        while page := self._store.keys(kind, after=after):
            yield from page
            after = page[-1]

    def _go_on_with_pass(self, most: int) -> None:
        """What has changed is shown before what has not."""
        if self._walk is None or most <= 0:
            return
        met = list(islice(self._walk, most))
        for key in met:
            self._leftovers.discard(key)
            self._pend(key)
        if not met:
            for subject in self._leftovers:
                self._pend(subject)
            self._walk, self._leftovers = None, set()
            self._again_at = 0.0 if self._missed else self._now() + RECONCILE

    def _read(self, subjects: Iterable[str]) -> Iterator[tuple[str, AnyShown | None]]:
        """Each with what is to be shown of it now; None: nothing any more."""
        wanted = list(subjects)
        rows = self._load(wanted)
        for damaged in wanted:
            if damaged not in rows:
                self._drop(damaged)  # the engine tells a person of it
        ill = [f"incident:{row.incident}" for row in rows.values() if isinstance(row, Node) and row.incident]
        incidents = self._load(ill)
        for subject, row in rows.items():
            match row:
                case Incident():
                    self._drop(subject)
                    self._pend(f"node:{row.node}")
                case Job() if row.spec.cluster == self._cluster:
                    self._note_claim(row.id, frozenset(row.claim) if row.open else frozenset())
                    yield subject, job_shown(row, self._store.story(subject, limit=SHOWN_LINES))
                case Node():
                    incident = incidents.get(f"incident:{row.incident}")
                    held = self._holders.get(row.id, set())
                    yield subject, node_shown(row, incident if isinstance(incident, Incident) else None, tuple(held))
                case None if not subject.startswith("incident:"):
                    self._note_claim(JobId(subject.partition(":")[2]), frozenset())
                    yield subject, None
                case _:
                    self._drop(subject)  # another cluster's, or an incident that is over and forgotten

    def _load(self, keys: Iterable[str]) -> dict[str, AnyRow | None]:
        wanted = list(keys)
        found = whole(self._store.load(wanted), self._store.load)
        return {key: found[key].row for key in wanted if not found[key].damage}

    def _note_claim(self, job: JobId, claim: frozenset[NodeId]) -> None:
        """The nodes that a job has come to or left show it."""
        was = self._claims.get(job, frozenset())
        for node in was ^ claim:
            (self._holders[node].add if node in claim else self._holders[node].discard)(job)
            self._pend(f"node:{node}")
        if claim:
            self._claims[job] = claim
        else:
            self._claims.pop(job, None)

    # --- showing it
    def _settle(self, subject: str, value: AnyShown | None) -> bool:
        """Shows it, unless it is shown. False: the mirror has failed, and is let alone for a while."""
        digest = hash(msgspec.json.encode(value))
        if self._last.get(subject) == digest:
            self._drop(subject)
            return True
        try:
            if value is None:
                self._ask(subject, lambda: self._mirror.remove(subject))
            else:
                self._ask(subject, lambda: self._mirror.show(value))
        except Rejected as error:
            self._drop(subject)
            self._last[subject] = digest  # not before it changes, or all is shown anew
            if not isinstance(error, Gone):  # what it would be shown on is not there: as good as shown
                self._refused[subject] = str(error)
            return True
        except Exception as error:
            if not isinstance(error, EffectError):
                log.exception("showing %s failed; it goes on", subject)
            self._pending[subject] = self._pending.pop(subject, None)  # behind all others: it may be its own fault
            tries = self._tries.get(subject, (0, 0.0))[0] + 1
            self._tries[subject] = tries, self._now() + _delay(tries)
            self._fail(
                f"{subject}: {error or type(error).__name__}", error.after if isinstance(error, Transient) else 0.0
            )
            return False
        self._drop(subject)
        self._failures = 0
        if value is None:
            self._last.pop(subject, None)
        else:
            self._last[subject] = digest
        self._refused.pop(subject, None)
        return True

    def _drop(self, subject: str) -> None:
        self._pending.pop(subject, None)
        self._tries.pop(subject, None)

    def _ask(self, what: str, call: Callable[[], AnyAnswer]) -> AnyAnswer:
        self._asked = self._now(), what
        try:
            return call()
        finally:
            self._asked = None

    def _fail(self, why: str, after: float = 0.0) -> None:
        self._failures += 1
        self._failed = why
        self._not_before = self._now() + max(after, _delay(self._failures))


def _delay(tries: int) -> float:
    return min(LATEST, 2.0 ** min(tries - 1, 10))
