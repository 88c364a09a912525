"""The leader: one engine at a time plans, commits and sends. It holds nothing that is not in the store."""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from msgspec.structs import replace

from sickbay.brain.retention import aged, cutoff
from sickbay.brain.submission import as_started
from sickbay.engine.apply import learn, reads_of
from sickbay.engine.aside import FACTS as FACTS_ASIDE
from sickbay.engine.aside import WORDS, set_aside, stops, take_back
from sickbay.engine.clocks import Clocks
from sickbay.engine.execute import Effects, Holders
from sickbay.engine.figures import LoopFigures
from sickbay.engine.group import Builds, SharedCommit
from sickbay.engine.ingest import Ingest, Together, voices
from sickbay.engine.plan import plan, prefetch
from sickbay.engine.seats import settle
from sickbay.engine.sending import send, wanted, withheld
from sickbay.engine.standstill import Deaf, tell_deaf
from sickbay.engine.view import Draft, Rules, View, moment, readings_of
from sickbay.model.clock import INGEST, LEADER, Standstill, WatchedClock
from sickbay.model.errors import BadInput, Conflict, Fenced, StoreError, UnusableStore
from sickbay.model.facts import CallResult, Fact, Mark, Outcome, PolicyInForce
from sickbay.model.fleet import Ages, Aside, Cursor, InForce, Node
from sickbay.model.intent import Intent, IntentState, StartJob, Strike, Verify, nodes_of
from sickbay.model.job import Job
from sickbay.model.notice import NoticeChannel
from sickbay.model.policy import Policy
from sickbay.model.protocol import command_id
from sickbay.model.rows import AGES, BACKING_OFF, CURSOR, IN_FORCE, TO_SEND, Unit
from sickbay.ports.clock import Clock
from sickbay.ports.executor import Executor
from sickbay.ports.store import Store

log = logging.getLogger("sickbay.engine")

REPLANS = 5
UNIT_FULL = 55  # of UNIT_ACTIONS: then a batch of facts is committed; one more fact, and what settles it, must fit
TO_SETTLE = 2  # actions that settling may add for each seat: one tag taken away, another given
FACTS = 500
PAGES = 8  # of facts in one round; then it is planning's turn
DUE = 200
STOOD_STILL = 1.0  # seconds from SENT to the call after which admission is asked once more
TICK = 10.0  # seconds between two marks of the leader's own clock
STUBBORN = 5  # sendings without effect, after which a person should know


@dataclass(frozen=True, slots=True)
class Setup:
    """Who this engine is, and how long its word holds."""

    holder: str
    lease_ttl: float = 30.0
    group: int = 100  # units that are committed together at most; 1: each waits for the disk by itself
    strict: bool = False  # raise what planning raises, instead of setting the subject aside


class Engine:
    """Facts in, decisions out. `round` may be interrupted anywhere: the next one, here or elsewhere, goes on."""

    def __init__(
        self,
        store: Store,
        hands: Effects,
        rules: Rules,
        executor: Executor,
        clock: Clock,
        setup: Setup,
        committed: Callable[[Unit], None] | None = None,
    ) -> None:
        """`committed` hears of every unit after its commit; it must be quick and may not fail."""
        _refuse_short_lease(setup, rules.policy)
        self._store = store
        self._hands = hands
        self._rules = rules
        self._executor = executor
        self._clock = clock
        self._setup = setup
        self._committed = committed
        self.figures = LoopFigures()
        self._view = View(store)
        self._group = SharedCommit(store, self._view, self._draft, setup.group, self.figures, committed)
        self._clocks = Clocks()
        self._deaf = Deaf()
        self._epoch = 0
        self._lease_until = 0.0
        self._full: dict[str, float] = {}  # lanes that had no room for what is planned, and since when
        self._ingest = Ingest(store, clock)
        self._aside: set[str] | None = None  # subjects that are set aside; None: not read yet
        self._outcomes = Together(store, clock)
        self._taken: deque[tuple[Effects, Rules]] = deque()  # what was handed in since the last round

    def take(self, hands: Effects, rules: Rules) -> None:
        """Decide by other rules from the next round on; every wait is looked at again by them (`PolicyInForce`).

        Deadlines that run are rows, and stay what they are. From any thread. Raises BadInput.
        """
        _refuse_short_lease(self._setup, rules.policy)
        self._taken.append((hands, rules))

    # --- leadership

    def lead(self) -> bool:
        """Take or keep the lease. The holder counts its time from before it asked."""
        asked = self._clock.mono()
        lease = self._store.lease(self._setup.holder, self._setup.lease_ttl)
        if lease is None:
            self._epoch, self._lease_until = 0, 0.0
            return False
        if lease.epoch != self._epoch:
            self._view.forget()  # others may have written since we last led
            self._clocks = Clocks()
            self._deaf = Deaf()
            self._aside = None
        self._epoch = lease.epoch
        self._lease_until = asked + lease.ttl
        return True

    def resign(self) -> None:
        """Hand the lease over at once, when this process ends. A call that has not begun is not made any more."""
        self._epoch, self._lease_until = 0, 0.0
        self._store.resign(self._setup.holder)

    @property
    def epoch(self) -> int:
        """The term of leadership; 0: none."""
        return self._epoch

    @property
    def leads(self) -> bool:
        return self._epoch > 0 and self._clock.mono() < self._lease_until

    # --- a round

    def round(self) -> int:
        """Learn what is new, plan what is due, send what is planned. Returns how much was done; 0: at rest."""
        if not self.leads and not self.lead():
            return 0
        while self._taken:
            self._hands, self._rules = self._taken.popleft()
        began = self._clock.mono()
        self.figures.rounds += 1
        try:
            done = voices(self._store, self._clock, self._rules.policy.silence.agent.total_seconds())
            self._clocks.newest = self._read_clocks()
            self._tick()
            done += self._learn_all()
            done += self._plan_due()
            done += self._dispatch()
        except Fenced:
            self._epoch = 0
            self._view.forget()
            return 0
        except StoreError:
            self._view.forget()  # it may have happened: read before anything else
            raise
        finally:
            self.figures.seconds += self._clock.mono() - began
        return done

    def oldest(self, keep: timedelta | None = None) -> datetime | None:
        """Before which moment what is over may be forgotten (`Store.forget`); None: nothing is so old.

        `keep`: for so long; None: as the policy says.
        For hosts to ask now and then: each answer marks the day, in the store. Forgetting itself is for another thread.
        """
        if not self.leads:
            return None
        keep = self._rules.policy.retention.history if keep is None else keep
        reading, wall = readings_of(self._clocks.newest).get(INGEST, 0.0), self._clock.wall()
        self._commit(partial(_mark_age, reading=reading, wall=wall, keep=keep))
        row = self._view.get(AGES).row
        return cutoff(row, reading, wall, keep) if isinstance(row, Ages) else None

    def _read_clocks(self) -> Mapping[str, WatchedClock]:
        rows = self._store.load([f"clock:{source}" for source in (INGEST, LEADER, *self._hands.sites)])
        return {v.row.source: v.row for v in rows.values() if isinstance(v.row, WatchedClock)}

    def _tick(self) -> None:
        """Move our own clock: a notice that failed is tried again also when nobody can be heard, then above all."""
        known, wall = self._clocks.newest.get(LEADER), self._clock.wall()
        if known is None or known.last is None or abs(wall - known.last) >= TICK:
            self._store.append([], [Mark(source=LEADER, at=wall, period=TICK)])

    def _heard(self) -> list[str]:
        """Sources that say something of the world: all but ourselves."""
        return [source for source in self._clocks.newest if source != LEADER]

    def _draft(self) -> Draft:
        return Draft(self._view, self._rules, self._clocks.learned, moment(self._clock.wall()), self._clocks.newest)

    def _commit(self, build: Callable[[Draft], None], *, durable: bool = False) -> bool:
        """Plan and commit one unit; a refused one is planned again from a fresh view.

        What follows from stored facts is not fsynced: the commit of SENT is, and that covers all commits before it.
        """
        for _ in range(REPLANS):
            draft = self._draft()
            build(draft)
            unit = draft.unit()
            if unit.empty:
                return False
            try:
                version = self._store.commit(draft.body(replace(unit, durable=durable)), self._epoch)
            except Conflict:
                self.figures.refused += 1
                self._view.forget(refused=True)
                continue
            self._view.wrote(unit, version)
            if self._committed is not None:
                self._committed(unit)
            return True
        raise Conflict("a unit was refused again and again")

    def _together(
        self, builds: Builds, *, durable: bool = False, in_order: bool = False
    ) -> tuple[list[str], list[str]]:
        return self._group.commit(builds, self._epoch, durable=durable, in_order=in_order)

    def _learn_all(self) -> int:
        """Facts in order, many in one unit, and how far we are with them in the same unit."""
        self._clocks.recall(self._cursor())
        done = 0
        for _ in range(PAGES):
            facts = list(self._store.facts(after=self._cursor().at, limit=FACTS))
            done += self._learn_page(facts)
            if len(facts) < FACTS:
                break
        self._clocks.advance(self._cursor().at)
        self._own_rules()
        self._heed_clocks()
        return done

    def _heed_clocks(self) -> None:
        """Every clock is looked after from its first move on."""
        for source in self._heard():
            if self._view.get(subject := f"standstill:{source}").row is None:
                self._try(subject, partial(plan, subject=subject), "could not be planned")
        mono = self._clock.mono()
        self._deaf.heard({source: self._clocks.newest[source].reading for source in self._heard()}, mono)
        if self._deaf.to_tell(mono, self._rules.policy.pace.held_reminder.total_seconds()):
            self._commit(tell_deaf)

    @property
    def unheard(self) -> Mapping[str, str]:
        """Sources that have not been heard for long, and why. Of the last round."""
        rows = [self._view.get(f"standstill:{source}").row for source in self._heard()]
        told = {row.source: row.because for row in rows if isinstance(row, Standstill) and row.because}
        return {**dict.fromkeys(self._heard(), self._deaf.because), **told} if self._deaf.because else told

    def _cursor(self) -> Cursor:
        found = self._view.get(CURSOR)
        if found.damage:
            raise UnusableStore(found.damage)  # from the first fact on everything would be learned again
        return found.row if isinstance(found.row, Cursor) else Cursor()

    def _learn_page(self, facts: list[Fact]) -> int:
        self._view.fetch(dict.fromkeys(key for fact in facts for key in reads_of(fact.news)))
        page = facts
        done = self._learn_together(facts)
        facts = facts[done:]
        while facts:
            taken = 0

            def build(draft: Draft, batch: list[Fact] = facts) -> None:
                nonlocal taken
                taken = self._learn_some(draft, batch)

            try:
                self._commit(build)
            except Exception as error:
                if self._setup.strict or stops(error):
                    raise
                taken = self._learn_carefully(facts)
            facts = facts[taken:]
            done += taken
        self.figures.learned(page)
        return done

    def _learn_together(self, facts: list[Fact]) -> int:
        """A page as a group of units, up to the first that cannot be learned; how many facts that were."""
        taken: list[int] = []

        def builds() -> Builds:
            rest = facts
            while rest:
                some = 0

                def build(draft: Draft, batch: list[Fact] = rest) -> None:
                    nonlocal some
                    some = self._learn_some(draft, batch)

                yield str(len(taken)), build
                taken.append(some)
                rest = rest[some:]

        done, _ = self._together(builds(), in_order=True)
        return sum(taken[int(number)] for number in done)

    def _learn_some(self, draft: Draft, facts: Iterable[Fact]) -> int:
        draft.read(Cursor, CURSOR, watch=False)
        taken = 0
        last = 0
        for fact in facts:
            changes, reads = draft.changes, len(draft.expect)
            learn(draft, fact)
            taken, last = taken + 1, fact.seq
            if draft.changes == changes:
                draft.unread(reads)  # most facts are noise: one that changes nothing takes no room in the unit
            elif draft.actions + TO_SETTLE * sum(isinstance(row, Node) for row in draft.writes.values()) >= UNIT_FULL:
                break
        draft.put(self._clocks.kept(last))
        settle(draft)
        return taken

    def _learn_carefully(self, facts: list[Fact]) -> int:
        """A batch cannot be learned: one fact at a time, and the one that cannot is set aside; a person is told."""
        for n, fact in enumerate(facts):
            try:
                self._commit(partial(self._learn_one, fact=fact))
            except Exception as error:
                if stops(error):
                    raise
                log.exception("fact_set_aside", extra={"fact": fact.id})
                self._commit(partial(self._skip, fact=fact, error=error))
                return n + 1
        return len(facts)

    def _learn_one(self, draft: Draft, fact: Fact) -> None:
        self._learn_some(draft, [fact])

    def _skip(self, draft: Draft, fact: Fact, error: Exception) -> None:
        draft.put(self._clocks.kept(fact.seq))
        set_aside(draft, FACTS_ASIDE, f"the fact {fact.id[:WORDS]} could not be learned", error, wait=False)

    def _own_rules(self) -> None:
        """The policy in force is a row: a changed one makes every wait due."""
        row = self._view.get(IN_FORCE).row
        if isinstance(row, InForce) and (row.policy, row.knowledge) == (
            self._rules.policy_digest,
            self._rules.tables.digest,
        ):
            return
        rules = self._rules
        news = PolicyInForce(policy=rules.policy_digest, knowledge=rules.tables.digest, name=rules.policy.name)
        number = self._view.get(IN_FORCE).version
        self._ingest.tell(f"policy/{news.policy}/{news.knowledge}/{number}", news)

    def _plan_due(self) -> int:
        due = list(self._store.due(readings_of(self._clocks.learned), DUE))
        if self._setup.group > 1:
            prefetch(self._view, due)
        asides = self._asides()
        _, alone = self._together((each, partial(plan, subject=each)) for each in due if each not in asides)
        for subject in [*alone, *(each for each in due if each in asides)]:
            self._try(subject, partial(plan, subject=subject), "could not be planned")
        return len(due)

    def _try(self, subject: str, build: Callable[[Draft], None], what: str, *, sends: bool = False) -> bool:
        """Commit what follows for one subject. If that cannot be done this one is set aside, and all others go on."""
        name = f"send/{subject}" if sends else subject
        try:
            done = self._commit(build, durable=sends)
        except Exception as error:
            if self._setup.strict or stops(error):
                raise
            log.exception("subject_set_aside", extra={"subject": name})
            aside = partial(set_aside, subject=name, what=f"{subject} {what}", error=error, wait=not sends)
            self._commit(aside)
            self._asides().add(name)
            return False
        if name in self._asides():
            self._commit(partial(take_back, subject=name))
            self._asides().discard(name)
        return done

    def _asides(self) -> set[str]:
        """Whatever is set aside now: few, read once in each term of leadership."""
        if self._aside is None:
            self._aside = set()
            after = ""
            while page := self._store.keys("aside", after=after):
                self._aside.update(key.removeprefix("aside:") for key in page)
                after = page[-1]
        return self._aside

    # --- effects

    def _dispatch(self) -> int:
        """Send what is planned: SENT is committed before the call, and only while our lease outlasts the call.

        All that go out now wait for the disk together, and are called after it.
        """
        again: list[str] = []
        done, alone = self._together(self._to_send(again), durable=True)
        for key in (*alone, *again):
            if self._try(key, partial(send, key=key), "could not be sent", sends=True):
                done.append(key)
        for key in done:
            self._submit(key)
        return len(done)

    def _to_send(self, again: list[str]) -> Builds:
        """Lane by lane, as many as its workers take now: one that is full or hangs hides nothing of the others.

        `again` takes those that were set aside and are to be tried once more, alone.
        """
        full: dict[str, float] = {}
        for tag in self._store.tags(TO_SEND):
            lane = tag.removeprefix(TO_SEND)
            room = self._executor.room(lane)
            if room <= 0:
                full[lane] = self._full.get(lane, self._clock.mono())
            for key in self._store.find(tag, DUE) if room > 0 else ():
                intent = self._view.get(key).row
                if not isinstance(intent, Intent) or not self._outlasts(intent) or self._rests(f"send/{key}"):
                    continue
                if f"send/{key}" in self._asides():
                    again.append(key)
                    continue
                yield key, partial(send, key=key)
                room -= self._is_sent(key)
                if room <= 0:
                    break
        self._full = full

    def _rests(self, name: str) -> bool:
        """Set aside, and not to be tried again yet."""
        row = self._view.get(f"aside:{name}").row if name in self._asides() else None
        return isinstance(row, Aside) and not row.again.passed(readings_of(self._clocks.learned))

    @property
    def trouble(self) -> str:
        """What keeps effects from going out, in one line; empty while they do."""
        patience = self._rules.policy.pace.call_timeout.total_seconds()
        hung = [lane for lane, since in self._full.items() if self._clock.mono() - since > patience]
        if hung:
            return f"no worker is free for {', '.join(sorted(hung))}: its calls hang"
        for tag in self._store.tags(BACKING_OFF):
            for key in self._store.find(tag, 1):
                intent = self._view.get(key).row
                if isinstance(intent, Intent) and intent.sends >= STUBBORN:
                    return f"{intent.lane} does not go through, it is tried again: {intent.answer}"
        return ""

    @property
    def undelivered(self) -> str:
        """Channels that took no notice when they were last asked, in one line; empty while all do."""
        rows = [self._view.get(f"channel:{name}").row for name in self._hands.notifiers]
        failing = [row for row in rows if isinstance(row, NoticeChannel) and row.failing]
        said = "; ".join(f"{row.name} takes no notices ({row.failing[:100]})" for row in failing[:2])
        more = f"; and {len(failing) - 2} more channels" if len(failing) > 2 else ""
        return f"{said}{more}: see 'sickbay notices --failed'; try it with 'sickbay notify test'" if said else ""

    def _outlasts(self, intent: Intent) -> bool:
        """Whether our lease outlasts the call."""
        return self._lease_until - self._clock.mono() > intent.call_timeout

    def _is_sent(self, key: str) -> bool:
        intent = self._view.get(key).row
        return isinstance(intent, Intent) and intent.state is IntentState.SENT

    def _submit(self, key: str) -> None:
        intent = self._view.get(key).row
        if not isinstance(intent, Intent) or intent.state is not IntentState.SENT:
            return
        job = self._view.get(f"job:{intent.act.job}").row if isinstance(intent.act, StartJob) else None
        known = replace(job, spec=as_started(job, self._rules.policy)) if isinstance(job, Job) else None
        call = partial(self._perform, intent, known, self._holders(intent), self._epoch, self._clock.mono())
        done = partial(self._answered, intent.sends)
        self._executor.submit(intent.lane, call, intent.call_timeout, done, intent.key)

    def _holders(self, intent: Intent) -> Holders:
        """Whoever changes hands or boots while a gate is open calls its job: the present ones are those that are meant.

        They are not kept in the intent: a gang has thousands.
        """
        if not isinstance(intent.act, Verify) or intent.expect is not None:
            return {}
        self._view.fetch(f"node:{node}" for node in intent.act.nodes)
        rows = {node: self._view.get(f"node:{node}").row for node in intent.act.nodes}
        return {node: row.incarnation for node, row in rows.items() if isinstance(row, Node)}

    def _perform(self, intent: Intent, job: Job | None, holders: Holders, epoch: int, sent: float) -> Outcome:
        """On the worker, right before the call: since SENT was committed this process may have stood still."""
        why = ""
        if self._epoch != epoch or not self._outlasts(intent):
            why = "the lease ran out before the call"
        elif self._clock.mono() - sent > STOOD_STILL and not self._still_admitted(intent):
            why = "it waited for its call and is not admitted any more"
        if why:
            return Outcome(key=intent.key, result=CallResult.TRANSIENT, sends=intent.sends, text=why)
        if isinstance(intent.act, Strike):
            return self._strike(intent, intent.act)
        return self._hands.perform(intent, job, holders)

    def _strike(self, intent: Intent, act: Strike) -> Outcome:
        outcome = partial(Outcome, key=intent.key, sends=intent.sends)
        key = f"intent:{act.intent}"
        try:
            withdrawn = self._store.load([key])[key].row
            if isinstance(withdrawn, Intent):
                self._store.strike([command_id(act.intent, node) for node in nodes_of(withdrawn.act)])
        except StoreError as error:  # it may have been struck: doing it again does no harm
            return outcome(result=CallResult.TRANSIENT, text=str(error))
        return outcome(result=CallResult.DONE)

    def _still_admitted(self, intent: Intent) -> bool:
        """From the store as it is, beside the round: the view is not this thread's."""
        draft = Draft(View(self._store), self._rules, self._clocks.learned, moment(self._clock.wall()))
        try:
            return wanted(draft, intent) and withheld(draft, intent) is None
        except StoreError:
            return False

    def _answered(self, sends: int, outcome: Outcome) -> None:
        """An outcome that the executor made (a time-out) does not know which sending it answers."""
        self.report(replace(outcome, sends=sends))

    def report(self, outcome: Outcome) -> None:
        """An effect's outcome comes back as a fact; if it cannot be stored, the intent's doubt covers it."""
        try:
            told = self._outcomes if self._setup.group > 1 else self._ingest
            told.tell(f"outcome/{outcome.key}/{outcome.sends}/{outcome.result}", outcome)
        except StoreError:
            log.warning("outcome_lost", extra={"intent": outcome.key})


def _refuse_short_lease(setup: Setup, policy: Policy) -> None:
    timeout = policy.pace.call_timeout.total_seconds()
    if setup.lease_ttl <= timeout:
        raise BadInput(
            f"a lease of {setup.lease_ttl:g} s does not outlast pace.call_timeout ({timeout:g} s), so nothing "
            f"would ever be sent; make the lease at least {2 * timeout + 10:g} s"
        )


def _mark_age(draft: Draft, reading: float, wall: float, keep: timedelta) -> None:
    ages = draft.read(Ages, AGES, watch=False) or Ages()
    if (marked := aged(ages, reading, wall, keep)) != ages:
        draft.put(marked)
