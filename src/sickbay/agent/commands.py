"""Commands: delivered at least once, carried out once.

What changes anything is written down, and synced, before it is begun; one that is found begun by an earlier run is
answered `unknown`, because nobody knows how far it came. A look changes nothing and may simply be done again.
"""

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from sickbay.agent.outbox import Outbox, say
from sickbay.model.facts import Observed
from sickbay.model.fleet import Incarnation
from sickbay.model.noun import Noun
from sickbay.model.protocol import (
    Answered,
    AnyOrder,
    Command,
    ItemNews,
    RunCheck,
    RunCollect,
    RunInject,
    RunLook,
    RunReboot,
    RunReset,
    RunSave,
)

REMEMBERED = 500  # commands whose answer is known
TOLD = 50  # of them, that a poll names
AGAIN = 30.0  # seconds after which one that comes again is answered again: the answer must have been lost
AT_ANY_TIME = (RunLook, RunSave)  # they disturb nothing, and doing them twice is doing them once
DEADLINES: dict[type, float] = {
    RunCheck: 7200.0,
    RunLook: 10.0,
    RunSave: 10.0,
    RunReset: 60.0,
    RunReboot: 30.0,  # until it is begun; its result is a new boot
    RunCollect: 180.0,
    RunInject: 10.0,
}  # seconds
SAID_WITHIN = 5.0  # seconds that an act waits for its own answer to leave the machine
LEVEL_DEADLINES = {1: 120.0, 2: 600.0, 3: 1800.0}


class Entry(Noun):
    """A line of the journal: a command that was begun (no result yet), or what was answered."""

    id: str
    result: str = ""
    text: str = ""


class Refuse(Exception):  # noqa: N818 - an answer, not a mistake
    """It was not carried out, and why."""


@dataclass(frozen=True, slots=True)
class Said:
    """News with words for the answer, and what is done once the answer has left: a reboot ends whoever answers."""

    news: Sequence[ItemNews] = ()
    text: str = ""
    after: Callable[[], None] | None = None


# Carries an order out, not beyond a monotonic moment, and returns what it has to say besides the answer.
Carry = Callable[[AnyOrder, float], Sequence[ItemNews] | Said]


class Journal:
    """Which commands were begun, and what was answered; on disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.known: OrderedDict[str, Entry] = OrderedDict()
        try:
            lines = path.read_bytes().split(b"\n")
        except FileNotFoundError:
            lines = []
        for line in filter(None, lines):
            try:
                entry = msgspec.json.decode(line, type=Entry)
            except msgspec.MsgspecError:
                continue  # cut off by the death that it did not survive: then the command was not begun
            self._remember(entry)

    def _remember(self, entry: Entry) -> None:
        self.known[entry.id] = entry
        self.known.move_to_end(entry.id)
        while len(self.known) > REMEMBERED:
            self.known.popitem(last=False)

    def note(self, entry: Entry) -> None:
        """On disk when it returns. Raises OSError."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            # It begins with a newline: half a line that a full disk left behind must not swallow this one.
            data = b"\n" + msgspec.json.encode(entry) + b"\n"
            if os.write(handle, data) != len(data):
                raise OSError("the disk took only a part of it")
            os.fsync(handle)
        finally:
            os.close(handle)
        self._remember(entry)

    def compact(self) -> None:
        """Only what is remembered, in a file that is replaced as a whole."""
        lines = [msgspec.json.encode(entry) for entry in self.known.values()]
        aside = self._path.with_suffix(".new")
        aside.parent.mkdir(parents=True, exist_ok=True)
        with aside.open("wb") as file:
            file.write(b"\n".join(lines) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        aside.rename(self._path)


@dataclass(slots=True)
class _Work:
    command: Command
    until: float
    over: bool = False
    at: float = field(default_factory=time.monotonic)


class Commands:
    def __init__(self, journal: Journal, outbox: Outbox, me: Incarnation, carry: Mapping[type, Carry]) -> None:
        self._journal = journal
        self._outbox = outbox
        self._me = me
        self._carry = carry
        self._lock = threading.Lock()
        self._one = threading.Lock()  # checks and resets disturb one another
        self._working: dict[str, _Work] = {}
        self._answered: OrderedDict[str, tuple[Answered, float]] = OrderedDict()

    def recover(self) -> None:
        """What an earlier run had begun: nobody knows how far it came."""
        text = "the agent ended while it carried this out"
        begun = [entry for entry in self._journal.known.values() if not entry.result]
        self._outbox.put([say(Answered(command=entry.id, result="unknown", text=text)) for entry in begun])
        with suppress(OSError):  # a full disk: then the next run says it again, and nobody minds
            for entry in begun:
                self._journal.note(Entry(id=entry.id, result="unknown", text=text))
            self._journal.compact()

    def has(self) -> tuple[str, ...]:
        """What need not be delivered again."""
        with self._lock:
            return (*self._working, *list(self._answered)[-TOLD:])

    def take(self, command: Command) -> None:
        """Returns at once; the answer goes into the outbox when there is one."""
        now = time.monotonic()
        with self._lock:
            if command.id in self._working:
                return
            answered = self._answered.get(command.id)
            known = self._journal.known.get(command.id)
            if answered is not None and now - answered[1] < AGAIN:
                return
            if known is not None:
                self._again(known, now)
                return
            work = _Work(command, now + _deadline(command.order))
            self._working[command.id] = work
        threading.Thread(target=self._run, args=(work,), name=f"command {command.id}", daemon=True).start()

    def _again(self, known: Entry, now: float) -> None:
        answer = Answered(command=known.id, result=known.result or "unknown", text=known.text)
        self._answered[known.id] = (answer, now)
        self._outbox.put([say(answer)])

    def _run(self, work: _Work) -> None:
        command = work.command
        try:
            if isinstance(command.order, AT_ANY_TIME):
                self._may_begin(work)
                said = self._carry[type(command.order)](command.order, work.until)
            else:
                said = self._alone(work)
        except Refuse as refusal:
            self._finish(work, (), "refused", str(refusal))
        except Exception as error:  # noqa: BLE001 - the loop's edge: whatever it is, the controller hears of it
            result = "refused" if isinstance(command.order, AT_ANY_TIME) else "unknown"
            self._finish(work, (), result, f"{type(error).__name__}: {error}"[:500])
        else:
            told = said if isinstance(said, Said) else Said(news=said)
            if self._finish(work, told.news, "done", told.text) and told.after is not None:
                self._afterwards(told.after)

    def _afterwards(self, act: Callable[[], None]) -> None:
        """With the answer gone, or after a while without: a controller that is away does not stop a repair."""
        self._outbox.emptied(SAID_WITHIN)
        try:
            act()
        except Exception as error:  # noqa: BLE001 - the thread's edge; the command itself was answered
            text = f"what a command began has failed: {type(error).__name__}: {error}"[:500]
            self._outbox.put([say(Observed(node=self._outbox.voice.node, kind="agent.failed", text=text))])

    def _alone(self, work: _Work) -> Sequence[ItemNews] | Said:
        if not self._one.acquire(timeout=max(0.0, work.at + work.command.expires_after - time.monotonic())):
            raise Refuse("another command is still being carried out")
        try:
            self._may_begin(work)
            self._write_down(work.command)
            return self._carry[type(work.command.order)](work.command.order, work.until)
        finally:
            self._one.release()

    def _may_begin(self, work: _Work) -> None:
        command = work.command
        if command.expect is not None and not self._me.agrees(command.expect):
            raise Refuse("another incarnation holds the seat")
        if time.monotonic() > work.at + command.expires_after:
            raise Refuse("its time is over")
        if type(command.order) not in self._carry:
            raise Refuse(f"this agent does not know how to carry out {type(command.order).__name__}")

    def _write_down(self, command: Command) -> None:
        try:
            self._journal.note(Entry(id=command.id))
        except OSError as error:
            raise Refuse(f"it could not be written down: {error.strerror or error}") from error

    def _finish(self, work: _Work, news: Sequence[ItemNews], result: str, text: str) -> bool:
        with self._lock:
            if work.over:
                return False  # answered as overdue
            work.over = True
            self._answer(work.command, news, result, text)
            return True

    def _answer(self, command: Command, news: Sequence[ItemNews], result: str, text: str) -> None:
        answer = Answered(command=command.id, result=result, text=text)
        # The result and the answer are one write: a death in between cannot leave one without the other.
        self._outbox.put([say(item) for item in (*news, answer)])
        if not isinstance(command.order, AT_ANY_TIME):
            with suppress(OSError):  # the answer is said; the next run would say "unknown", which nobody waits for then
                self._journal.note(Entry(id=command.id, result=result, text=text))
        self._working.pop(command.id, None)
        self._answered[command.id] = (answer, time.monotonic())
        while len(self._answered) > REMEMBERED:
            self._answered.popitem(last=False)

    def overdue(self, now: float) -> None:
        """Whoever hangs is left alone, and the controller is told that nobody knows."""
        with self._lock:
            for work in [work for work in self._working.values() if now > work.until + 1.0 and not work.over]:
                work.over = True
                result = "refused" if isinstance(work.command.order, AT_ANY_TIME) else "unknown"
                self._answer(work.command, (), result, "it did not end in time")


def _deadline(order: AnyOrder) -> float:
    if isinstance(order, RunCheck):
        return LEVEL_DEADLINES.get(order.level, DEADLINES[RunCheck])
    return DEADLINES[type(order)]
