"""Sends what is in the outbox, one report at a time, and hands on the commands that come back."""

import random
import sys
import time
from collections.abc import Callable
from threading import Event, Thread

import msgspec

from sickbay.agent.outbox import Batch, Outbox, replace_items, say
from sickbay.agent.transport import POLL, REPORT, Away, Denied, Line, Refused
from sickbay.model.facts import Observed
from sickbay.model.protocol import PROTO, Command, Poll, Reply

COALESCE = 0.001  # seconds; what comes later gathers by itself while the report is under way
REPORT_TAKES = 10.0  # seconds after which a report counts as lost
SLOWLY = 5.0
SOONEST, LATEST = 0.2, 5.0  # seconds between two tries


class Backoff:
    """Each try later than the one before, and never all agents at once."""

    def __init__(self) -> None:
        self._pause = SOONEST

    def next(self, latest: float = LATEST) -> float:
        pause = min(self._pause, latest)
        self._pause = min(LATEST, 2 * pause)
        return pause * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, guards nothing

    def reset(self) -> None:
        self._pause = SOONEST


class Grumbles:
    """Says on stderr what is wrong, once, and again only when it has become something else."""

    def __init__(self) -> None:
        self._last = ""

    def say(self, text: str) -> None:
        if text != self._last:
            self._last = text
            if text:
                print(f"agent: {text}", file=sys.stderr, flush=True)


class Reporter(Thread):
    """`watermark` tells how far kernel log and devices have been read; `take` gets every command that arrives."""

    def __init__(
        self, outbox: Outbox, line: Line, watermark: Callable[[], float], take: Callable[[Command], None]
    ) -> None:
        super().__init__(name="reporter", daemon=True)
        self._outbox = outbox
        self._line = line
        self._watermark = watermark
        self._take = take
        self._ending = Event()
        self._backoff = Backoff()
        self._grumbles = Grumbles()
        self._smaller: int | None = None  # the controller refuses some item of the batch: how many are tried now
        self.heard = Event()  # the controller has answered, and nothing has gone wrong since
        self.report_every = 5.0
        self.poll_for = 0.0

    def run(self) -> None:
        due = 0.0  # the first word goes out at once
        while not self._ending.is_set():
            self._outbox.wait(due, self._ending.is_set)
            if self._ending.is_set():
                return
            if not self._outbox.empty:
                self._ending.wait(COALESCE)
            pause = self._guarded()
            due = time.monotonic() + self.report_every
            if pause:
                self._ending.wait(pause)
                due = 0.0

    def _guarded(self) -> float:
        """Whatever goes wrong here, a token that is no text or an address that is none, the agent goes on trying."""
        try:
            return self._turn()
        except Exception as error:  # noqa: BLE001 - the thread's edge
            self.heard.clear()
            self._grumbles.say(f"no report can be sent: {type(error).__name__}: {error}")
            return self._backoff.next(self.report_every)

    def _turn(self) -> float:
        """One report. Returns how long to wait before the next try; 0: all is well."""
        batch = self._outbox.batch()
        if batch is not None and self._smaller is not None:
            batch = replace_items(batch, batch.items[: self._smaller])
        try:
            reply = self._line.ask(REPORT, self.encode(batch), REPORT_TAKES)
        except Away as error:
            self.heard.clear()
            self._grumbles.say(f"the controller cannot be reached: {error}")
            return self._backoff.next(self.report_every)
        except Denied as error:
            self.heard.clear()
            self._grumbles.say(f"the controller does not accept our token: {error}")
            return SLOWLY
        except Refused as error:
            return self._narrow(batch, str(error))
        self._smaller = None
        self._grumbles.say("")
        self._backoff.reset()
        self._answered(batch, reply)
        return 0.0

    def _answered(self, batch: Batch | None, reply: Reply) -> None:
        if batch is not None:
            self._outbox.acknowledge(batch, min(reply.ack, batch.last))
        self.report_every = max(0.05, reply.report_every)
        self.poll_for = reply.poll_for
        self.heard.set()
        for command in reply.commands:
            self._take(command)

    def _narrow(self, batch: Batch | None, why: str) -> float:
        """One item that cannot be taken must not hold up all the others: it is found, left out, and that is said."""
        self._grumbles.say(f"the controller refuses a report: {why}")
        if batch is None:
            return SLOWLY
        if len(batch.items) > 1:
            self._smaller = len(batch.items) // 2
            return SOONEST
        self._smaller = None
        news = Observed(node=self._outbox.voice.node, kind="agent.refused", text=f"a report was refused: {why}"[:500])
        if b'"agent.refused"' not in batch.items[0]:
            self._outbox.put([say(news)])
        self._outbox.acknowledge(batch, batch.last)
        return SOONEST

    def encode(self, batch: Batch | None) -> bytes:
        voice = self._outbox.voice if batch is None else batch.voice
        items = () if batch is None else batch.items
        return msgspec.json.encode(
            {
                "proto": PROTO,
                "node": voice.node,
                "instance_id": voice.incarnation.instance_id,
                "boot_id": voice.incarnation.boot_id,
                "agent_run": voice.agent_run,
                "first_seq": 1 if batch is None else batch.first,
                "mono_now": time.monotonic(),
                "wall_now": time.time(),
                "watermark": self._watermark(),
                "ended": not voice.incarnation.same_boot(self._outbox.voice.incarnation),
                "items": [msgspec.Raw(item) for item in items],
            }
        )

    def finish(self, within: float) -> None:
        """The last words of this run, if they can be said in so many seconds; the spool keeps what cannot."""
        until = time.monotonic() + within
        self._ending.set()
        self._outbox.wake()
        self.join(within)
        while self.heard.is_set() and not self._outbox.empty and not self.is_alive() and time.monotonic() < until:
            if self._guarded():
                return


class Poller(Thread):
    """Asks for commands on a line of its own while the controller holds polls."""

    def __init__(
        self,
        poll: Callable[[], Poll],
        line: Line,
        reporter: Reporter,
        take: Callable[[Command], None],
    ) -> None:
        super().__init__(name="poller", daemon=True)
        self._poll = poll
        self._line = line
        self._reporter = reporter
        self._take = take
        self._ending = Event()
        self._backoff = Backoff()

    def run(self) -> None:
        while not self._ending.is_set():
            # Only who is heard may expect an answer: the reporter tries, and grumbles, for both.
            if not self._reporter.heard.wait(1.0) or self._reporter.poll_for <= 0:
                self._ending.wait(0.2)
                continue
            try:
                reply = self._line.ask(POLL, msgspec.json.encode(self._poll()), self._reporter.poll_for + 10.0)
            except Exception:  # noqa: BLE001 - the thread's edge; the reporter says what is wrong with the line
                self._ending.wait(self._backoff.next())
                continue
            self._backoff.reset()
            if self._ending.is_set():
                return  # carried out by nobody: it will be delivered to whoever comes next
            for command in reply.commands:
                self._take(command)
            self._reporter.poll_for = reply.poll_for

    def finish(self) -> None:
        self._ending.set()
