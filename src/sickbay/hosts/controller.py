"""The controller: one process that reads clusters, runs the engine and keeps its clocks, on a few threads."""

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime

from sickbay.engine.clocks import SharedClock
from sickbay.engine.ingest import Ingest, Watcher
from sickbay.engine.lead import Engine, Setup
from sickbay.hosts.backend import Backend
from sickbay.hosts.changes import Changes
from sickbay.hosts.mirroring import Mirroring
from sickbay.model.clock import INGEST
from sickbay.model.errors import StoreError
from sickbay.model.facts import Outcome
from sickbay.model.policy import Policy
from sickbay.model.rows import Unit
from sickbay.ports.clock import Clock
from sickbay.ports.executor import Executor
from sickbay.ports.store import Store
from sickbay.wiring import WiredFleet

log = logging.getLogger("sickbay.controller")

# Seconds between two rounds when nothing wakes the engine: what falls due, and what another replica has taken into the
# store, is not met later than this.
AT_LEAST = 0.25
CANARY = 1.0  # seconds between two proofs that we can be heard
TIDY = 3600.0
TIDY_LOOK = 5.0
LOOK = 5.0  # seconds between two looks at what is planned and does not go out
AGAIN = 1.0  # after the store could not be used
LEASE = 30.0
ENDS_WITHIN = 15.0  # seconds that what is under way is given at the end
MIRROR = "mirror "  # begins the names of their threads and troubles
SLICE_EVERY = 0.05  # seconds between two slices of one read of a cluster: the engine learns in between


def replica_name() -> str:
    """A name that no other process has, nor had: in containers everybody is process 1, and hosts may share a name."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


class Waking:
    """An executor whose outcomes wake the engine's loop at once."""

    def __init__(self, inner: Executor, wake: Callable[[], None]) -> None:
        self._inner = inner
        self._wake = wake

    def room(self, lane: str) -> int:
        return self._inner.room(lane)

    def submit(
        self, lane: str, call: Callable[[], Outcome], timeout: float, done: Callable[[Outcome], None], key: str
    ) -> None:
        def told(outcome: Outcome) -> None:
            done(outcome)
            self._wake()

        self._inner.submit(lane, call, timeout, told, key)


class Controller:
    """`backend` is for faces; `canary` must prove, by being called, that reports can reach us. Start and stop once."""

    def __init__(
        self, store: Store, fleet: WiredFleet, executor: Executor, clock: Clock, changes: Changes, holder: str = ""
    ) -> None:
        self._store = store
        self._fleet = fleet
        self._clock = clock = SharedClock(store, clock)
        self._stopping = threading.Event()
        self._awake = threading.Event()
        self._untidy = threading.Event()
        self._oldest: datetime | None = None  # before which what is over may be forgotten
        self._threads: list[threading.Thread] = []
        clusters = {name: site.cluster for name, site in fleet.hands.sites.items()}
        policy = fleet.rules.policy
        policies = {fleet.rules.policy_digest: policy}
        self.backend = Backend(
            store,
            policy,
            policies,
            clusters,
            clock,
            self._awake.set,
            changes,
            fleet.breakable,
            fleet.metrics,
            leads=lambda: self.leads,
            notifiers=tuple(fleet.hands.notifiers),
        )
        self.backend.codes = frozenset(row.code for row in fleet.rules.tables.meanings())
        setup = Setup(holder=holder or replica_name(), lease_ttl=LEASE)
        waking = Waking(executor, self._awake.set)
        self._engine = Engine(store, fleet.hands, fleet.rules, waking, clock, setup, self._committed)
        self.backend.loop = self._engine.figures
        self._changes = changes
        self._mirrors = {
            name: Mirroring(store, changes, name, mirror, lambda: self._engine.epoch if self.leads else 0)
            for name, mirror in fleet.mirrors.items()
        }
        self._counted_in = 0  # the term of leadership that the census is of
        self._troubles: dict[str, str] = {}
        self._hear_at(policy)

    def _hear_at(self, policy: Policy) -> None:
        silence = policy.silence.agent.total_seconds()
        # The canary's period and the agents' must be the same: both clocks then leave out the same gaps (over twice the
        # period). If the canary counted an outage that reports do not, all agents would be silent the moment it ends.
        self._canary_every = min(CANARY, silence / 6)
        self._canary_period = silence / 3

    def take(self, fleet: WiredFleet) -> None:
        """Go on by the rules of this fleet, whose clusters are the same. From any thread. Raises BadInput."""
        self._engine.take(fleet.hands, fleet.rules)
        self.backend.take(fleet.rules.policy, fleet.rules.policy_digest)
        self.backend.codes = frozenset(row.code for row in fleet.rules.tables.meanings())
        self._hear_at(fleet.rules.policy)
        self._awake.set()

    @property
    def leads(self) -> bool:
        return self._engine.leads

    @property
    def trouble(self) -> str:
        """Why nothing goes on, in one line; empty while all is well. Each loop answers for itself: one that has nothing
        to write knows nothing of a disk that is full. A mirror comes last: nothing waits for it.
        """
        troubles = sorted(self._troubles.copy().items(), key=lambda known: known[0].startswith(MIRROR))
        return next((trouble for _, trouble in troubles), "")

    def start(self, canary: Callable[[], bool]) -> None:
        """`canary`: goes the way of a report, through whatever serves us; False when it did not arrive."""
        self._spawn("engine", self._run_engine)
        self._spawn("tidy", self._run_tidy)
        self._spawn("canary", lambda: self._run_canary(canary))
        for name in self._fleet.hands.sites:
            self._spawn(f"watch {name}", lambda name=name: self._run_watcher(name))  # type: ignore[misc]
        for name, mirroring in self._mirrors.items():
            # Nobody joins it at the end: a mirror that hangs may hang for ever.
            threading.Thread(target=mirroring.run, args=(self._stopping,), name=f"{MIRROR}{name}", daemon=True).start()

    def stop(self) -> None:
        self._stopping.set()
        self._awake.set()
        self._untidy.set()
        until = time.monotonic() + ENDS_WITHIN  # of all together: each cluster may hang, and is left alone then
        for thread in self._threads:
            thread.join(timeout=max(0.0, until - time.monotonic()))
        with self._guarded("the lease"):
            self._engine.resign()

    def _spawn(self, name: str, run: Callable[[], None]) -> None:
        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    @contextmanager
    def _guarded(self, what: str) -> Iterator[None]:
        """A loop outlives a store that cannot be used for a while (a full disk), and says so once."""
        try:
            yield
        except StoreError as error:
            self._note(what, str(error))
            self._stopping.wait(AGAIN)
        except Exception as error:
            log.exception("%s failed; it goes on", what)
            self._troubles[what] = f"{what} failed ({type(error).__name__}: {error}): the log says where"
            self._stopping.wait(AGAIN)
        else:
            self._note(what, "")

    def _note(self, what: str, trouble: str) -> None:
        before = self._troubles.get(what, "")
        if trouble:
            self._troubles[what] = trouble
        else:
            self._troubles.pop(what, None)
        if trouble != before:
            log.warning("%s: %s", what, trouble or "well again")

    def _committed(self, unit: Unit) -> None:
        self.backend.census.committed(unit)
        self._changes.committed(unit)

    def _count_anew(self) -> None:
        """Others may have written since we last led."""
        if self._engine.leads and self._engine.epoch != self._counted_in:
            self.backend.census.follow(self._store)
            self._counted_in = self._engine.epoch

    def _run_engine(self) -> None:
        renew, look, tidy = 0.0, 0.0, time.monotonic() + TIDY
        while not self._stopping.is_set():
            with self._guarded("the engine"):
                if time.monotonic() >= renew:
                    self._engine.lead()
                    renew = time.monotonic() + LEASE / 4
                self._count_anew()
                self._awake.clear()
                done = self._engine.round()
                if time.monotonic() >= look:
                    look = time.monotonic() + LOOK
                    self._note("effects", self._engine.trouble)
                    self._note("notices", self._engine.undelivered)
                    self._note_unheard()
                    for name, mirroring in self._mirrors.items():
                        self._note(f"{MIRROR}{name}", mirroring.trouble)
                if time.monotonic() >= tidy:
                    tidy = time.monotonic() + TIDY
                    self._oldest = self._engine.oldest()
                    self._untidy.set()
                if not done:
                    self._awake.wait(AT_LEAST)

    def _run_tidy(self) -> None:
        """Retention, beside the engine: however much there is to forget, no round waits for it."""
        while not self._stopping.is_set():
            with self._guarded("forgetting what is old"):
                asked = self._untidy.wait(TIDY_LOOK)
                self._untidy.clear()
                before = self._oldest
                if asked and before is not None and not self._stopping.is_set():
                    self._store.forget(before)

    def _note_unheard(self) -> None:
        """A source of facts that is not heard: each of them by itself, and only while we lead and can tell."""
        unheard = self._engine.unheard if self.leads else {}
        for source in (INGEST, *self._fleet.hands.sites):
            self._note(f"clock {source}", unheard.get(source, ""))

    def _run_watcher(self, name: str) -> None:
        cluster = self._fleet.hands.sites[name].cluster
        watcher = Watcher(self._store, cluster, self._clock, leads=lambda: self.leads)
        pause = self._fleet.pauses[name]
        while not self._stopping.is_set():
            with self._guarded(f"reading {name}"):
                if watcher.read():
                    self._awake.set()
                self._note(f"cluster {name}", watcher.trouble)
                if watcher.amid:
                    self._stopping.wait(SLICE_EVERY)
                else:
                    pause(cluster.period)

    def _run_canary(self, canary: Callable[[], bool]) -> None:
        """Our own voice moves the ingest clock: with few agents, or none, silence must still be measured."""
        ingest = Ingest(self._store, self._clock, period=self._canary_period, leads=lambda: self.leads)
        while not self._stopping.wait(self._canary_every):
            ingest.period = self._canary_period  # another policy may have been taken
            with self._guarded("the canary"):
                if canary():
                    ingest.take([])
