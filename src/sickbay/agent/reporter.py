"""Report loop and long poll: sends what is in the outbox, one report at a time, and hands on what comes back.

Both threads outlive whatever a controller answers. A try that stores nothing is followed by a pause (back-off), at
least a fifth of a second and at most five; so is a poll that brings nothing new.
"""

import random
import time
from collections.abc import Callable
from threading import Event, Thread
from typing import Protocol

import msgspec

from sickbay.agent.complaints import complain
from sickbay.agent.limits import UsableReply
from sickbay.agent.outbox import Batch, Outbox, replace_items, say
from sickbay.agent.transport import POLL, REPORT, Away, ControllerLine, Denied, NotJoined, ReportRefused
from sickbay.model.facts import Observed
from sickbay.model.protocol import PROTO, Command, Poll

COALESCE = 0.001  # seconds; what comes later gathers by itself while the report is under way
REPORT_TAKES = 10.0  # seconds after which a report counts as lost
POLL_TAKES = 10.0  # seconds more than it is held
SLOWLY = 5.0
SOONEST, LATEST = 0.2, 5.0  # seconds between two tries
# New commands that are taken at once, and then each second. A node gets a handful; each costs a thread and an answer.
AT_ONCE, A_SECOND = 100, 10.0
# Seconds without a try that ended as tries end: answered, refused, nobody there. More than the longest of them takes,
# with the pause before it; after that a restart is the only thing left to try.
STUCK_AFTER = 300.0


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
                complain(text)


class Taker(Protocol):
    """Who carries commands out. Each says whether it was news."""

    def take(self, command: Command) -> bool: ...

    def refuse(self, name: str, why: str) -> bool: ...


class Throttle:
    """Rate limit (a token bucket) before the taker. A command beyond it is left, and is delivered again."""

    def __init__(self, taker: Taker) -> None:
        self._taker = taker
        self._room = float(AT_ONCE)
        self._at = time.monotonic()

    def hand_on(self, reply: UsableReply) -> bool:
        """Whether any of its commands was news. Only those take room."""
        now = time.monotonic()
        self._room, self._at = min(AT_ONCE, self._room + A_SECOND * (now - self._at)), now
        before = self._room
        for command in reply.commands:
            if self._room >= 1.0:
                self._room -= self._taker.take(command)
        for each in reply.unread:
            if self._room >= 1.0:
                self._room -= self._taker.refuse(each.id, each.why)
        return self._room < before


class Reporter(Thread):
    """`watermark` tells how far kernel log and devices have been read; `taker` gets every command that arrives."""

    def __init__(self, outbox: Outbox, line: ControllerLine, watermark: Callable[[], float], taker: Taker) -> None:
        super().__init__(name="reporter", daemon=True)
        self._outbox = outbox
        self._line = line
        self._watermark = watermark
        self._throttle = Throttle(taker)
        self._ending = Event()
        self._due = 0.0  # the first word goes out at once
        self._backoff = Backoff()
        self._grumbles = Grumbles()
        self._smaller: int | None = None  # the controller refuses some item of the batch: how many are tried now
        self.heard = Event()  # the controller has stored what we last said, and nothing has gone wrong since
        self.left_at = time.monotonic()  # when a try last ended as tries end
        self.report_every = 5.0
        self.poll_for = 0.0

    def well(self, now: float) -> bool:
        """Whether reports leave, or would if there were a controller: no restart brings one back."""
        return self.is_alive() and now - self.left_at < STUCK_AFTER

    def run(self) -> None:
        while not self._ending.is_set():
            pause = self._guarded(self._round)
            self._due = 0.0 if pause else time.monotonic() + self.report_every
            if pause:
                self._ending.wait(pause)

    def _round(self) -> float:
        self._outbox.wait(self._due, self._ending.is_set)
        if self._ending.is_set():
            return 0.0
        if not self._outbox.empty:
            self._ending.wait(COALESCE)
        return self._turn()

    def _guarded(self, act: Callable[[], float]) -> float:
        """Whatever goes wrong here, the agent goes on trying."""
        try:
            return act()
        except Exception as error:  # noqa: BLE001 - the thread's edge
            self.heard.clear()
            self._grumbles.say(f"no report can be sent: {type(error).__name__}: {error}")
            return self._backoff.next()

    def _turn(self) -> float:
        """One report. Returns how long to wait before the next try; 0: all is well."""
        batch = self._outbox.batch()
        if batch is not None and self._smaller is not None:
            batch = replace_items(batch, batch.items[: self._smaller])
        body = self.encode(batch)
        try:
            return self._answered(batch, self._line.ask(REPORT, body, REPORT_TAKES))
        except Away as error:
            return self._unheard(f"the controller cannot be reached: {error}", self._backoff.next())
        except NotJoined as error:
            return self._unheard(str(error), min(SLOWLY, max(SOONEST, error.again)))
        except Denied as error:
            return self._unheard(f"the controller does not accept our token: {error}", SLOWLY)
        except ReportRefused as error:
            return self._narrow(batch, str(error), own=error.own)
        finally:
            self.left_at = time.monotonic()

    def _unheard(self, why: str, pause: float) -> float:
        self.heard.clear()
        self._grumbles.say(why)
        return pause

    def _answered(self, batch: Batch | None, reply: UsableReply) -> float:
        if batch is not None and not batch.first <= reply.ack <= batch.last:
            # Who stores nothing, or claims to have what was never sent, has heard nothing and is not obeyed.
            raise Away(f"of the items {batch.first} to {batch.last} it acknowledges {str(reply.ack)[:40]}")
        self._smaller = None
        self._grumbles.say("")
        self.report_every = reply.report_every
        self.poll_for = reply.poll_for
        self.heard.set()
        if batch is not None:
            self._outbox.acknowledge(batch, reply.ack)
        self._throttle.hand_on(reply)
        if batch is not None and reply.ack < batch.last:
            return self._backoff.next()
        self._backoff.reset()
        return 0.0

    def _narrow(self, batch: Batch | None, why: str, *, own: bool) -> float:
        """One item that cannot be taken must not hold up all the others: it is found, left out, and that is said."""
        self._grumbles.say(f"the controller refuses a report: {why}")
        if batch is None:
            return self._unheard(f"the controller refuses even a sign of life: {why}", SLOWLY)
        if len(batch.items) > 1:
            self._smaller = len(batch.items) // 2
            return SOONEST
        if not own or not self._takes_others():
            return SLOWLY  # it is not this item that is refused: nothing is left out
        self._smaller = None
        text = f"a report was refused: {why}"[:500]
        news = Observed(node=self._outbox.voice.node, kind="agent.refused", text=text)
        if b'"agent.refused"' not in batch.items[0]:
            self._outbox.put([say(news)])
        self._outbox.acknowledge(batch, batch.last)
        return SOONEST

    def _takes_others(self) -> bool:
        """Whether the controller takes a report without items: then it is the item that it does not take."""
        try:
            self._line.ask(REPORT, self.encode(None), REPORT_TAKES)
        except (Away, Denied, ReportRefused) as error:
            self._unheard(f"the controller refuses even a sign of life: {error}", SLOWLY)
            return False
        return True

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
            if self._guarded(self._turn):
                return


class Poller(Thread):
    """Asks for commands on a line of its own while the controller holds polls."""

    def __init__(self, poll: Callable[[], Poll], line: ControllerLine, reporter: Reporter, taker: Taker) -> None:
        super().__init__(name="poller", daemon=True)
        self._poll = poll
        self._line = line
        self._reporter = reporter
        self._throttle = Throttle(taker)
        self._ending = Event()
        self._backoff = Backoff()

    def run(self) -> None:
        while not self._ending.is_set():
            # Only who is heard may expect an answer: the reporter tries, and grumbles, for both.
            if not self._reporter.heard.wait(1.0) or self._reporter.poll_for <= 0:
                self._ending.wait(0.2)
                continue
            try:
                news = self._turn()
            except Exception:  # noqa: BLE001 - the thread's edge; the reporter says what is wrong with the line
                news = False
            if news:
                self._backoff.reset()
            else:
                self._ending.wait(self._backoff.next())

    def _turn(self) -> bool:
        """One poll: whether it was held as long as was said, or brought something new. Who does neither is asked
        less and less often.
        """
        held_for, began = self._reporter.poll_for, time.monotonic()
        reply = self._line.ask(POLL, msgspec.json.encode(self._poll()), held_for + POLL_TAKES)
        if self._ending.is_set():
            return True  # carried out by nobody: it will be delivered to whoever comes next
        self._reporter.poll_for = reply.poll_for
        return self._throttle.hand_on(reply) or time.monotonic() - began > min(held_for, LATEST) / 2

    def finish(self) -> None:
        self._ending.set()
