"""Where agents are received: their reports become facts, and commands that wait for them go back with the reply."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from threading import Lock

from msgspec.structs import replace

from sickbay.engine.ingest import Ingest, alone
from sickbay.engine.view import moment
from sickbay.model.checkup import Verdict
from sickbay.model.clock import WatchedClock
from sickbay.model.errors import BadInput, StoreError, UnitRefused
from sickbay.model.facts import (
    AGENT_ANSWERED,
    AnyNews,
    Booted,
    CallResult,
    Checked,
    Fact,
    Inventory,
    Looked,
    Observed,
    Outcome,
    ResetDone,
)
from sickbay.model.fleet import Incarnation, Node, NodeId
from sickbay.model.intent import Intent, IntentState
from sickbay.model.protocol import (
    PROTO,
    Answered,
    AnyOrder,
    Command,
    CommandResult,
    Item,
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
    command_id,
    fact_id,
)
from sickbay.ports.clock import Clock
from sickbay.ports.metrics import Metrics
from sickbay.ports.store import Store

AT_ONCE = 20  # commands that ride on one reply
OLDEST = 366 * 86_400.0  # seconds: an agent's clock that says more is wrong, and some such moments have no date


class Reception:
    """Reports that arrive while another is being stored are stored together: many reports, one commit."""

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
        self._mutex = Lock()
        self._committing = Lock()
        self._batch = _Batch()

    def hear_every(self, seconds: float) -> None:
        """How often agents report from now on: they are told with each reply."""
        self._report_every = seconds
        self._ingest.period = 2 * seconds

    def receive(self, report: Report) -> Reply:
        """Stores what is new and acknowledges it; the reply carries commands. Raises BadInput, StoreError."""
        _refuse(report.proto)
        last = _in_order(report)
        answers = [item.news for item in report.items if isinstance(item.news, Answered)]
        answered = {answer.command for answer in answers}
        asked = self._asked(report.node, answered)
        facts = list(self._facts(report, asked))
        alive = self._alive(report)
        try:
            self._keep(facts, {} if alive is None else {report.node: alive})
        except UnitRefused as error:
            # The store is well: sending it again is no use, leaving out the item that it does not take is.
            raise BadInput(f"an item cannot be stored: {error}") from error
        self._measure(report)
        # Struck only after the facts are stored: whoever dies in between hears the answer again.
        self._strike(answered & asked.keys())
        return self._reply([command for command in asked.values() if command.id not in answered], ack=last)

    def _asked(self, node: NodeId, answered: set[str]) -> dict[str, Command]:
        """What waits for this node's agent, at least as far as the last that it has answered."""
        limit = AT_ONCE + len(answered)
        while True:
            waiting = {command.id: command for command in self._store.mail(node, limit=limit)}
            if len(waiting) < limit or answered <= waiting.keys():
                return waiting
            limit *= 4

    def commands(self, poll: Poll) -> Reply:
        """What waits for this agent that it does not have yet."""
        _refuse(poll.proto)
        # Those that it has must not hide the others.
        waiting = self._store.mail(poll.node, limit=AT_ONCE + len(poll.has))
        return self._reply([command for command in waiting if command.id not in poll.has])

    # --- facts
    def _facts(self, report: Report, asked: Mapping[str, Command]) -> Iterator[Fact]:
        received = self._clock.wall()
        open_still = dict(asked)
        for item in report.items:
            at = _happened(received, report, item)
            if isinstance(item.news, Measured) or (report.ended and isinstance(item.news, Inventory)):
                continue  # what a machine had in it under a boot that has ended says nothing of now
            if isinstance(item.news, Answered):
                # The first answer counts: an agent that died over its answer may add that it does not know.
                command = open_still.pop(item.news.command, None)
                news = _refused(item.news, command, report) if command is not None else _refused_late(item.news, report)
                if news is not None:
                    yield Fact(id=f"answered/{item.news.command}", at=at, news=news)
            else:
                yield Fact(id=fact_id(report, item), at=at, news=_signed(item, report))

    def _measure(self, report: Report) -> None:
        """What was measured is history beside the facts: a second delivery weighs a little more in a mean, no more."""
        if self._metrics is None:
            return
        received = self._clock.wall()
        for item in report.items:
            if isinstance(item.news, Measured):
                at = _happened(received, report, item)
                self._metrics.record(report.node, at, item.news.values)

    def _alive(self, report: Report) -> Incarnation | None:
        """Whose sign of life a report is. What was spooled under a boot that has ended is none."""
        if report.ended:
            return None
        incarnation = report.incarnation
        known = self._present.get(report.node)
        if known == incarnation:
            return known  # the very same value: stores tell at a glance that nothing has changed
        key = f"node:{report.node}"
        row = self._store.load([key])[key].row
        if isinstance(row, Node) and report.boot_id in row.ended_boots:
            return None
        if isinstance(row, Node) and incarnation.new_boot(row.incarnation):
            self._date(report)
        self._present[report.node] = incarnation
        return incarnation

    def _date(self, report: Report) -> None:
        """When a new boot began, stored before its first sign of life: jobs that are younger may run in it."""
        if 0.0 < report.mono_now < OLDEST:
            news = Booted(node=report.node, incarnation=report.incarnation)
            at = moment(self._clock.wall() - report.mono_now)
            self._store.append([Fact(id=f"booted/{report.node}/{report.boot_id}", at=at, news=news)])

    def _keep(self, facts: Sequence[Fact], pulses: Mapping[NodeId, Incarnation]) -> None:
        """Into the open batch; whoever may commit next commits all that has gathered meanwhile."""
        with self._mutex:
            batch = self._batch
            batch.add(facts, pulses)
        with self._committing:
            with self._mutex:
                mine = batch is self._batch
                if mine:
                    self._batch = _Batch()
            if mine:
                batch.error = self._commit(batch.facts, batch.pulses)
        if batch.error is None:
            return
        if batch.reports == 1:
            raise batch.error
        # Somebody else's facts may be what the store refuses: nobody answers for others.
        with self._committing:
            alone = self._commit(facts, pulses)
        if alone is not None:
            raise alone

    def _commit(self, facts: Sequence[Fact], pulses: Mapping[NodeId, Incarnation]) -> StoreError | None:
        try:
            self._ingest.take(facts, pulses)
        except StoreError as error:
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


class _Batch:
    """Reports that are stored together."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self.pulses: dict[NodeId, Incarnation] = {}
        self.reports = 0
        self.error: StoreError | None = None

    def add(self, facts: Sequence[Fact], pulses: Mapping[NodeId, Incarnation]) -> None:
        self.facts.extend(facts)
        self.pulses.update(pulses)
        self.reports += 1


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


def _refuse(proto: int) -> None:
    if proto != PROTO:
        raise BadInput(f"protocol {proto} is not spoken here: install an agent that speaks protocol {PROTO}")


def _happened(received: float, report: Report, item: Item) -> datetime:
    return moment(received - min(OLDEST, max(0.0, report.mono_now - item.mono)))


def _in_order(report: Report) -> int:
    """The last seq of a report whose items have no gaps."""
    for seq, item in enumerate(report.items, start=report.first_seq):
        if item.seq != seq:
            raise BadInput(f"item {item.seq} follows where {seq} must: send the items in order, none left out")
    return report.first_seq + len(report.items) - 1


def _signed(item: Item, report: Report) -> AnyNews:
    """An agent speaks for its own node and incarnation only."""
    news = item.news
    assert not isinstance(news, Answered | Measured)
    if isinstance(news, Observed):
        return replace(news, node=report.node, incarnation=report.incarnation, ended=news.ended or report.ended)
    if isinstance(news, Checked | Inventory | Looked | ResetDone):
        return replace(news, node=report.node, incarnation=report.incarnation)
    return replace(news, node=report.node)


def _refused_late(answer: Answered, report: Report) -> Outcome | None:
    """A refusal of what was struck after the agent had it: nothing came of it, and whoever waits for its end knows."""
    key = answer.command.removesuffix(command_id("", report.node))
    if answer.result is not CommandResult.REFUSED or key == answer.command:
        return None
    text = answer.text or "the agent refused it"
    return Outcome(key=key, result=CallResult.REJECTED, sends=0, text=text, node=report.node)


def _refused(answer: Answered, command: Command, report: Report) -> AnyNews | None:
    """What an answer means that brings no result of its own: a refusal, or the words of one who was asked something."""
    match command.order:
        case RunInject() | RunCollect() as order:
            word = "inject" if isinstance(order, RunInject) else "collect"
            fields: dict[str, str | int] = {"result": answer.result}
            return Observed(node=report.node, kind=AGENT_ANSWERED, fields=fields, text=f"{word}: {answer.text}")
        case _ if answer.result is CommandResult.DONE:
            return None
        case RunReboot() if answer.result is not CommandResult.REFUSED:
            return None  # it may yet come: its proof is another boot, and the rung's own deadline waits for that
        case RunReset(key=key) | RunReboot(key=key):
            text = answer.text or f"the agent says {answer.result}"
            return Outcome(key=key, result=CallResult.REJECTED, sends=0, text=text, node=report.node)
        case RunCheck(check=check, level=level):
            because = answer.text or f"the agent says {answer.result}"
            return Checked(
                check=check, node=report.node, verdict=Verdict.COULD_NOT_RUN, incarnation=report.incarnation,
                level=level, because=because,
            )  # fmt: skip
        case _:
            return None
