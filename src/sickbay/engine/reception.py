"""Where agents are received: their reports become facts, and commands that wait for them go back with the reply."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock

from msgspec.structs import replace

from sickbay.engine.ingest import Ingest, alone
from sickbay.engine.oddities import Oddities
from sickbay.engine.report_facts import OLDEST, facts_of, happened, last_seq, refuse_unknown
from sickbay.engine.view import moment
from sickbay.model.clock import WatchedClock
from sickbay.model.errors import BadInput, UnitRefused
from sickbay.model.facts import Booted, Fact
from sickbay.model.fleet import Incarnation, Node, NodeId
from sickbay.model.intent import Intent, IntentState
from sickbay.model.protocol import (
    Answered,
    AnyOrder,
    Command,
    Measured,
    Poll,
    Reply,
    Report,
    RunCheck,
    RunCollect,
    RunInject,
    RunLook,
    RunReboot,
    RunReset,
    RunSave,
)
from sickbay.model.rows import Rows
from sickbay.ports.clock import Clock
from sickbay.ports.metrics import Metrics
from sickbay.ports.store import Store

AT_ONCE = 20  # commands that ride on one reply
TRIES = 2  # reports of a group in a row that cannot be stored by themselves either: then it is the store


@dataclass(slots=True)
class Arrival:
    """One report on its way into the store."""

    report: Report
    ack: int = 0
    facts: Sequence[Fact] = ()
    alive: Incarnation | None = None  # whose sign of life it is
    asked: Mapping[str, Command] = field(default_factory=dict)  # what waits for this agent
    answered: frozenset[str] = frozenset()
    error: Exception | None = None  # why it was not stored


class Reception:
    """Group commit: what is received together is stored in one transaction, and each report is answered by itself."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        report_every: float = 5.0,
        poll_for: float = 20.0,
        metrics: Metrics | None = None,
        leads: Callable[[], bool] = alone,
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._clock = clock
        self._report_every = report_every
        self._poll_for = poll_for
        self._ingest = Ingest(store, clock, period=2 * report_every, leads=leads)
        self._present: dict[NodeId, Incarnation] = {}  # whose voice counted last: a cache, asked again when it differs
        self._committing = Lock()
        self.oddities = Oddities()

    def hear_every(self, seconds: float) -> None:
        """How often agents report from now on: they are told with each reply."""
        self._report_every = seconds
        self._ingest.period = 2 * seconds

    def receive(self, report: Report) -> Reply:
        """Stores what is new and acknowledges it; the reply carries commands. Raises BadInput, StoreError."""
        answer = self.receive_all([report])[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def receive_all(self, reports: Sequence[Report]) -> list[Reply | Exception]:
        """An answer for each report, in their order; a report that cannot be taken spoils no other. Each is of another
        node: what one is told depends on what the one before it has answered.
        """
        arrivals = [Arrival(report) for report in reports]
        try:
            self._read(arrivals)
        except Exception as error:  # noqa: BLE001 - whoever waits for an answer hears why there is none
            return [error for _ in arrivals]
        self._keep([each for each in arrivals if each.error is None])
        return [each.error or self._answer(each) for each in arrivals]

    def _read(self, arrivals: Sequence[Arrival]) -> None:
        """What is to be stored of each. Two reads for all of them, and none for those that say nothing new."""
        mailed = self._store.mailed({each.report.node for each in arrivals})
        strange = {f"node:{each.report.node}" for each in arrivals if self._is_strange(each.report)}
        rows = self._store.load(sorted(strange)) if strange else {}
        received = self._clock.wall()
        for each in arrivals:
            report = each.report
            self.oddities.note(report, received)
            try:
                refuse_unknown(report.proto)
                each.ack = last_seq(report)
                answers = [item.news for item in report.items if isinstance(item.news, Answered)]
                each.answered = frozenset(answer.command for answer in answers)
                each.asked = self._asked(report.node, each.answered) if report.node in mailed else {}
                each.facts = list(facts_of(report, each.asked, received))
            except Exception as error:  # noqa: BLE001 - the others are well
                each.error = error
        self._recognize([each for each in arrivals if each.error is None], rows)

    def _answer(self, arrival: Arrival) -> Reply | Exception:
        """It is stored: what was measured goes beside it, and what waits for its agent goes back."""
        try:
            self._measure(arrival.report)
            # Struck only after the facts are stored: whoever dies in between hears the answer again.
            self._strike(arrival.answered & arrival.asked.keys())
            left = [command for command in arrival.asked.values() if command.id not in arrival.answered]
            return self._reply(left, ack=arrival.ack)
        except Exception as error:  # noqa: BLE001 - it sends it again, and is a double then
            return error

    def _asked(self, node: NodeId, answered: Collection[str]) -> dict[str, Command]:
        """What waits for this node's agent, at least as far as the last that it has answered."""
        limit = AT_ONCE + len(answered)
        while True:
            waiting = {command.id: command for command in self._store.mail(node, limit=limit)}
            if len(waiting) < limit or waiting.keys() >= set(answered):
                return waiting
            limit *= 4

    def commands(self, poll: Poll) -> Reply:
        """What waits for this agent that it does not have yet."""
        refuse_unknown(poll.proto)
        # Those that it has must not hide the others.
        waiting = self._store.mail(poll.node, limit=AT_ONCE + len(poll.has))
        return self._reply([command for command in waiting if command.id not in poll.has])

    # --- facts
    def _measure(self, report: Report) -> None:
        """What was measured is history beside the facts: a second delivery weighs a little more in a mean, no more."""
        if self._metrics is None:
            return
        received = self._clock.wall()
        for item in report.items:
            if isinstance(item.news, Measured):
                at = happened(received, report, item)
                self._metrics.record(report.node, at, item.news.values)

    def _is_strange(self, report: Report) -> bool:
        """Whether its node's row must be read to know whose voice it is."""
        return not report.ended and self._present.get(report.node) != report.incarnation

    def _recognize(self, arrivals: Sequence[Arrival], rows: Rows) -> None:
        """Whose sign of life each report is. What was spooled under a boot that has ended is none."""
        booted: list[Fact] = []
        heard: dict[NodeId, Incarnation] = {}
        for each in arrivals:
            report = each.report
            if report.ended:
                continue
            if not self._is_strange(report):
                each.alive = self._present[report.node]  # the very same value: stores tell at a glance that it is
                continue
            row = rows[f"node:{report.node}"].row
            if isinstance(row, Node) and report.boot_id in row.ended_boots:
                continue
            incarnation = report.incarnation
            if isinstance(row, Node) and incarnation.new_boot(row.incarnation):
                booted += self._began(report)
            each.alive = heard[report.node] = incarnation
        if booted:  # stored before their first sign of life: jobs that are younger may run in them
            self._store.append(booted)
        self._present.update(heard)

    def _began(self, report: Report) -> Iterator[Fact]:
        """When a new boot began."""
        if 0.0 < report.mono_now < OLDEST:
            news = Booted(node=report.node, incarnation=report.incarnation)
            at = moment(self._clock.wall() - report.mono_now)
            yield Fact(id=f"booted/{report.node}/{report.boot_id}", at=at, news=news)

    def _keep(self, arrivals: Sequence[Arrival]) -> None:
        """Together; if the store refuses that, each by itself: nobody answers for what others report.

        A store that is away is not asked once for each of them: the others hear what the last one heard.
        """
        error = self._commit(arrivals) if arrivals else None
        if error is None or len(arrivals) == 1:
            for each in arrivals:
                each.error = error
            return
        failed = 0
        for each in arrivals:
            if failed < TRIES:
                error = self._commit([each])
                failed = 0 if error is None or isinstance(error, BadInput) else failed + 1
            each.error = error

    def _commit(self, arrivals: Sequence[Arrival]) -> Exception | None:
        facts = [fact for each in arrivals for fact in each.facts]
        pulses = {each.report.node: each.alive for each in arrivals if each.alive is not None}
        try:
            with self._committing:
                self._ingest.take(facts, pulses)
        except UnitRefused as error:
            # The store is well: sending it again is no use, leaving out the item that it does not take is.
            return BadInput(f"an item cannot be stored: {error}")
        except Exception as error:  # noqa: BLE001 - they hear it who have sent it
            return error
        return None

    # --- commands
    def _reply(self, commands: Sequence[Command], ack: int = 0) -> Reply:
        """What is still wanted goes along, with the time that is left to it; what is not is struck."""
        intents = self._intents(commands)
        fresh, stale = [], []
        for command in commands:
            intent = intents.get(_behind(command.order))
            if intent is not None and intent.state is IntentState.PLANNED:
                continue  # it is to be sent once more, and may be held back before that
            left = command.expires_after - self._age(command, intent)
            if left > 0 and (intent is None or _in_flight(intent)):
                fresh.append(replace(command, expires_after=left))
            else:
                stale.append(command.id)
        self._strike(stale)
        return Reply(ack=ack, commands=tuple(fresh[:AT_ONCE]), report_every=self._report_every, poll_for=self._poll_for)

    def _intents(self, commands: Sequence[Command]) -> dict[str, Intent]:
        """The intents behind these commands, by key: a letter must not outlive its intent, whatever clocks say."""
        keys = {key for command in commands if (key := _behind(command.order))}
        if not keys:
            return {}
        rows = self._store.load([f"intent:{key}" for key in sorted(keys)])
        return {each.row.key: each.row for each in rows.values() if isinstance(each.row, Intent)}

    def _age(self, command: Command, intent: Intent | None) -> float:
        """Seconds since it was sent, on the clock that its intent's time runs on; the wall's only where it has none."""
        if intent is None:
            return max(0.0, (moment(self._clock.wall()) - command.posted_at).total_seconds())
        key = f"clock:{intent.clock}"
        clock = self._store.load([key])[key].row
        return max(0.0, clock.reading - intent.sent_at) if isinstance(clock, WatchedClock) else 0.0

    def _strike(self, ids: Collection[str]) -> None:
        if ids:
            self._store.strike(ids)


def _behind(order: AnyOrder) -> str:
    """The key of the intent that asks for it; empty: a person does, beside all intents."""
    match order:
        case RunCheck(check=key) | RunLook(look=key) | RunSave(save=key) | RunReset(key=key) | RunReboot(key=key):
            return key
        case RunCollect() | RunInject():
            return ""


def _in_flight(intent: Intent) -> bool:
    """Whether what it asks for may still begin."""
    return not (intent.state.over or intent.withdrawn or intent.refused)
