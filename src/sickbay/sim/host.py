"""Hosts: who runs the real engine in virtual time, warm or cold, and how it crashes and comes back."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from random import Random

from sickbay.engine.clocks import SharedClock
from sickbay.engine.execute import Effects
from sickbay.engine.ingest import Ingest, Watcher
from sickbay.engine.lead import Engine, Setup
from sickbay.engine.reception import Reception
from sickbay.engine.view import Rules
from sickbay.model.clock import INGEST, LEADER, WatchedClock
from sickbay.model.errors import BadInput, StoreError, UnitRefused
from sickbay.model.facts import AnyNews, Fact, Outcome
from sickbay.model.fleet import Incarnation, NodeId
from sickbay.model.protocol import PROTO, Report
from sickbay.model.rows import Unit
from sickbay.ports.clock import Clock
from sickbay.ports.store import Store
from sickbay.sim.flaky import Crashed, FlakyStore
from sickbay.sim.schedule import Scheduler

Fate = Callable[[str], str]
RESTART = 5.0
AGAIN = 1.0
ROUNDS = 500
LANE_ROOM = 1000  # calls under way in one lane: virtual workers cost nothing


class VirtualExecutor:
    """Each call is two steps: its start, when the effect happens, and its end, when the outcome is known."""

    def __init__(self, host: "SimHost", rng: Random) -> None:
        self._host = host
        self._rng = rng

    def room(self, lane: str) -> int:
        return LANE_ROOM if lane else 0

    def submit(
        self, lane: str, call: Callable[[], Outcome], timeout: float, done: Callable[[Outcome], None], key: str
    ) -> None:
        life = self._host.life

        def start() -> None:
            if self._host.life != life:
                return  # it died before it could send
            outcome = call()
            self._host.later(self._rng.uniform(0.01, 0.3), lambda: end(outcome))

        def end(outcome: Outcome) -> None:
            if self._host.life == life:
                done(outcome)
                self._host.wake()

        self._host.later(self._rng.uniform(0.0, 0.05), start)


class InlineExecutor:
    """What a serverless host does: the call is made at once, and its outcome stored before the next step."""

    def room(self, lane: str) -> int:
        return 1 if lane else 0

    def submit(
        self, lane: str, call: Callable[[], Outcome], timeout: float, done: Callable[[Outcome], None], key: str
    ) -> None:
        done(call())


class SimHost:
    """One process with an engine. `cold`: it forgets everything after each event."""

    def __init__(
        self,
        name: str,
        *,
        store: Store,
        hands: Effects,
        rules: Rules,
        scheduler: Scheduler,
        clock: Clock,
        rng: Random,
        fate: Fate,
        cold: bool = False,
        lease_ttl: float = 60.0,
        forgiving: bool = False,
        written: Callable[[Unit], None] = lambda _unit: None,
        led: Callable[[int], None] = lambda _epoch: None,
        holder: Callable[[], str] | None = None,
        slices: Mapping[str, int] | None = None,
    ) -> None:
        """`holder` gives each life of the process a name of its own; else all of them have the host's."""
        self.name = name
        self.cold = cold
        self.life = 0
        self.up = True
        self.paused_until = 0.0
        self.crashes = 0
        self.rounds = 0
        self.store = FlakyStore(store, fate, written, led)
        self._hands = hands
        self._rules = rules
        self._scheduler = scheduler
        self._clock = SharedClock(self.store, clock)
        self._rng = rng
        self._setup = Setup(holder=name, lease_ttl=lease_ttl, strict=not forgiving)
        self._anew = holder
        self._slices = slices or {}
        self._busy = (0.0, 0)
        self._stalled_until = -60.0
        self._woken = False
        self._rename()
        self._engine = self._make()
        self._watchers = self._watching()

    def _rename(self) -> None:
        if self._anew is not None:
            self._setup = replace(self._setup, holder=self._anew())

    def _watching(self) -> dict[str, Watcher]:
        return {
            c: Watcher(self.store, s.cluster, self._clock, self._leads, slice_size=self._slices.get(c, 0))
            for c, s in self._hands.sites.items()
        }

    def _leads(self) -> bool:
        return self._engine.leads

    def _make(self) -> Engine:
        executor = InlineExecutor() if self.cold else VirtualExecutor(self, self._rng)
        return Engine(self.store, self._hands, self._rules, executor, self._clock, self._setup)

    def take(self, rules: Rules) -> None:
        """Go on by other rules, as a controller does that is told to read its file again."""
        self._rules = rules
        self._engine.take(self._hands, rules)
        self.wake()

    # --- running things in this process
    def later(self, seconds: float, act: Callable[[], object]) -> None:
        """Do it in this process: not while it is paused, and not after it has died."""
        life = self.life
        due = max(self._scheduler.now + seconds, self.paused_until)

        def run() -> None:
            if self.paused_until > self._scheduler.now:
                self._scheduler.at(self.paused_until, run)
            elif self.life == life:
                self._guarded(act)

        self._scheduler.at(due, run)

    def _guarded(self, act: Callable[[], object]) -> bool:
        """Whether it ran to its end."""
        try:
            act()
        except Crashed:
            self.crash()
            return False
        except UnitRefused:
            raise  # the store is well: it is this engine that cannot go on
        except StoreError:
            self.wake(AGAIN)
            return False
        return True

    def crash(self, down_for: float = RESTART) -> None:
        """The process ends: whatever it had not stored is gone. Another starts a little later."""
        self.life += 1
        self.crashes += 1
        self.up = False
        self._woken = False
        life = self.life
        self._scheduler.after(down_for, lambda: self._start(life))

    def _start(self, life: int) -> None:
        if self.life == life:
            self.up = True
            self._rename()
            self._engine = self._make()
            self._watchers = self._watching()
            self.wake()

    def pause(self, seconds: float) -> None:
        """The process stands still and does not know it."""
        self.paused_until = self._scheduler.now + seconds

    @property
    def trouble(self) -> str:
        return self._engine.trouble

    @property
    def undelivered(self) -> str:
        return self._engine.undelivered

    # --- what it does
    def hear(self, facts: list[Fact], pulses: dict[NodeId, Incarnation]) -> bool:
        """Reports arrive. False: nobody acknowledged them, the agents must keep them."""
        if not self.up or self.paused_until > self._scheduler.now:
            return False
        ingest = Ingest(self.store, self._clock, self._period, self._leads)
        alone = len(pulses) == 1 and not facts
        take = partial(self._receive, *next(iter(pulses.items()))) if alone else partial(ingest.take, facts, pulses)
        if not self._guarded(take):
            return False
        self.wake()
        return True

    def _receive(self, node: NodeId, voice: Incarnation) -> None:
        """A bare sign of life, however late, comes in where real ones do."""
        report = Report(
            proto=PROTO,
            node=node,
            instance_id=voice.instance_id,
            boot_id=voice.boot_id,
            agent_run="run",
            first_seq=1,
            mono_now=self._clock.mono(),
            wall_now=self._clock.wall(),
            watermark=self._clock.mono(),
        )
        Reception(self.store, self._clock, self._period / 2, leads=self._leads).receive(report)

    def report(self, report: Report) -> bool:
        """An agent's whole report comes in where real ones do. A refusal is an answer."""
        if not self.up or self.paused_until > self._scheduler.now:
            return False
        receive = Reception(self.store, self._clock, self._period / 2, leads=self._leads).receive
        with suppress(BadInput):
            self._guarded(partial(receive, report))
        self.wake()
        return True

    _period = 30.0

    def period(self, seconds: float) -> None:
        self._period = seconds

    def watch(self, cluster: str) -> None:
        if self.up and self.paused_until <= self._scheduler.now:
            self._guarded(self._engine.lead)  # the lease is kept as often as the cluster is read
            self._guarded(self._watchers[cluster].read)
            self.wake()

    def midway(self, cluster: str) -> bool:
        return self._watchers[cluster].midway

    def tell(self, key: str, news: AnyNews) -> bool:
        """A person's command. False: it was not acknowledged, the person must repeat it."""
        if not self.up or self.paused_until > self._scheduler.now:
            return False
        said = self._guarded(lambda: Ingest(self.store, self._clock).tell(key, news))
        self.wake()
        return said

    def wake(self, after: float = 0.0) -> None:
        if self.up and not self._woken:
            self._woken = True
            self.later(after, self._round)

    def stall(self, seconds: float) -> None:
        """Its rounds stand still, as in a flood of facts, while its watchers and doors, on other threads, go on."""
        self._stalled_until = self._scheduler.now + seconds

    @property
    def behind(self) -> bool:
        """Whether it stood still until a moment ago."""
        return self._scheduler.now < self._stalled_until + 60.0

    def _round(self) -> None:
        self._woken = False
        if self._stalled_until > self._scheduler.now:
            self.wake(self._stalled_until - self._scheduler.now)
            return
        self.rounds += 1
        if self.cold:
            self._engine = self._make()
        self._engine.lead()
        if self._engine.round():
            self._restless()
            self.wake()

    def _restless(self) -> None:
        """Every loop ends: an engine that works on and on without time passing is broken."""
        now = self._scheduler.now
        self._busy = (now, self._busy[1] + 1 if self._busy[0] == now else 1)
        if self._busy[1] > ROUNDS:
            sources = (INGEST, LEADER, *self._hands.sites)
            rows = self.store.load([f"clock:{source}" for source in sources]).values()
            readings = {v.row.source: v.row.reading for v in rows if isinstance(v.row, WatchedClock)}
            raise AssertionError(f"does not come to rest at t={now}: {self.store.due(readings, 5)}")
