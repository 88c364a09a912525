"""Commands: delivered at least once, carried out once, for this node and this boot, within their time.

What changes anything is written down, and synced, before it is begun; one that is found begun by an earlier run is
answered `unknown`, because nobody knows how far it came. A look changes nothing and may simply be done again. What ends
this boot is answered `done` by the next one.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from sickbay.agent.command_journal import REMEMBERED, CommandJournal, JournaledCommand
from sickbay.agent.outbox import Outbox, say
from sickbay.model.fleet import Incarnation
from sickbay.model.protocol import (
    Answered,
    AnyOrder,
    Command,
    CommandResult,
    ItemNews,
    RunCheck,
    RunCollect,
    RunInject,
    RunLook,
    RunReboot,
    RunReset,
    RunSave,
)

TOLD = 50  # commands whose answer is known, that a poll names
AGAIN = 30.0  # seconds after which one that comes again is answered again: the answer must have been lost
# Each has a thread, also one that hangs after it was answered for. A controller that asks for more is told so; of looks
# half as many, so that those that hang on a sick driver keep no reset and no reboot away.
MOST_AT_ONCE = 32
AT_ANY_TIME = (RunLook, RunSave)  # they disturb nothing, and doing them twice is doing them once
ONE_BOOT = (RunReset, RunReboot)  # they say which boot is meant, or are not carried out
NO_BOOT = "unknown-"  # begins the name that a run gives to a boot whose own name cannot be read
# Seconds from its begin to its end. What waits before that waits no longer than `expires_after`; the engine gives a
# rung more than both together.
DEADLINES: dict[type, float] = {
    RunCheck: 6300.0,
    RunLook: 10.0,
    RunSave: 10.0,
    RunReset: 120.0,
    RunReboot: 300.0,  # until the machine is down: services take their time to stop
    RunCollect: 180.0,
    RunInject: 10.0,
}
SAID_WITHIN = 5.0  # seconds that an act waits for its own announcement to leave the machine
LEVEL_DEADLINES = {0: 120.0, 1: 120.0, 2: 600.0, 3: 1800.0}


class Refuse(Exception):  # noqa: N818 - an answer, not a mistake
    """It was not carried out, and why."""


class _TooLate(Exception):  # noqa: N818 - a state, not a mistake
    """It was answered for meanwhile: it is not begun any more."""


@dataclass(frozen=True, slots=True)
class CarriedOut:
    """News with words for the answer. `leave`: ends this boot, once the news have left; the next boot answers.

    `stays`: what is said where it is refused, to take the news back.
    """

    news: Sequence[ItemNews] = ()
    text: str = ""
    leave: Callable[[], None] | None = None
    stays: Sequence[ItemNews] = ()


# Carries an order out, not beyond a monotonic moment, and returns what it has to say besides the answer.
Carry = Callable[[AnyOrder, float], Sequence[ItemNews] | CarriedOut]


@dataclass(slots=True)
class _Work:
    command: Command
    expires: float  # when it must have begun
    ends: float = float("inf")  # when it must have ended, once it has begun
    whole: bool = False  # it must not be cut off in the middle
    answered: threading.Event = field(default_factory=threading.Event)
    over: bool = False  # its thread has come back, however late
    ahead_of: "_Work | None" = None  # what had not ended when it began

    @property
    def begun(self) -> bool:
        return self.ends < float("inf")


class Commands:
    def __init__(self, journal: CommandJournal, outbox: Outbox, me: Incarnation, carry: Mapping[type, Carry]) -> None:
        self._journal = journal
        self._outbox = outbox
        self._me = me
        self._carry = carry
        self._lock = threading.Lock()
        self._turn = threading.Condition()
        self._busy: _Work | None = None  # checks, resets and reboots disturb one another
        self._ending = False
        self._threads = 0
        self._working: dict[str, _Work] = {}
        self._answered: OrderedDict[str, tuple[Answered, float]] = OrderedDict()

    def recover(self) -> None:
        """What an earlier run had begun: nobody knows how far it came, but for what has ended its boot since."""
        ended = [self._ended(entry) for entry in self._journal.known.values() if not entry.result]
        answers = [Answered(command=e.id, result=e.result or CommandResult.UNKNOWN, text=e.text) for e in ended]
        self._outbox.put([say(answer) for answer in answers])
        with suppress(OSError):  # a full disk: then the next run says it again, and nobody minds
            for entry in ended:
                self._journal.note(entry)
            self._journal.compact()

    def _ended(self, entry: JournaledCommand) -> JournaledCommand:
        now = self._me.boot_id
        if not entry.leaving:
            return JournaledCommand(
                id=entry.id, result=CommandResult.UNKNOWN, text="the agent ended while it carried this out"
            )
        if now and entry.leaving != now and not now.startswith(NO_BOOT):
            return JournaledCommand(
                id=entry.id, result=CommandResult.DONE, text=f"boot {entry.leaving} has ended, this is {now}"
            )
        text = f"the agent ended when it was about to end boot {entry.leaving}, which goes on"
        return JournaledCommand(id=entry.id, result=CommandResult.UNKNOWN, text=text)

    def has(self) -> tuple[str, ...]:
        """What need not be delivered again."""
        with self._lock:
            return (*self._working, *list(self._answered)[-TOLD:])

    # --- in
    def take(self, command: Command) -> bool:
        """Returns at once; the answer goes into the outbox when there is one. Whether it was news."""
        now = time.monotonic()
        with self._lock:
            if self._is_known(command.id, now):
                return False
            work = _Work(command, now + command.expires_after)
            why = self._meant_for_others(command)
            most = MOST_AT_ONCE // 2 if isinstance(command.order, AT_ANY_TIME) else MOST_AT_ONCE
            if not why and self._threads >= most:
                why = f"too many at once: {self._threads} are being carried out"
            if why:
                self._answer(work, (), CommandResult.REFUSED, why)
                return True
            self._working[command.id] = work
            self._threads += 1
        thread = threading.Thread(target=self._run, args=(work,), name=f"command {command.id}"[:100], daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            with self._lock:
                self._threads -= 1
            self._finish(work, (), CommandResult.REFUSED, f"no thread can be started for it: {error}")
        return True

    def refuse(self, name: str, why: str) -> bool:
        """A command that cannot be understood. Whether it was news."""
        now = time.monotonic()
        with self._lock:
            if self._is_known(name, now):
                return False
            self._say(Answered(command=name, result=CommandResult.REFUSED, text=why), ())
            return True

    def _is_known(self, name: str, now: float) -> bool:
        if name in self._working:
            return True
        answered = self._answered.get(name)
        known = self._journal.known.get(name)
        if answered is not None and now - answered[1] < AGAIN:
            return True
        if known is not None:
            self._say(Answered(command=name, result=known.result or CommandResult.UNKNOWN, text=known.text), ())
        return known is not None

    def _meant_for_others(self, command: Command) -> str:
        expect = command.expect
        if command.node != self._outbox.voice.node:
            return f"it is for {command.node[:200]}, and this is {self._outbox.voice.node}"
        if expect is not None and not self._me.agrees(expect):
            return "another incarnation holds the seat"
        if isinstance(command.order, ONE_BOOT) and (expect is None or not expect.boot_id):
            return "it does not say which boot is meant"
        if type(command.order) not in self._carry:
            return f"this agent does not know how to carry out {type(command.order).__name__}"
        return ""

    # --- at work
    def _run(self, work: _Work) -> None:
        order = work.command.order
        try:
            if isinstance(order, AT_ANY_TIME):
                self._begin(work)
                said = self._carry[type(order)](order, work.ends)
            else:
                said = self._alone(work)
        except _TooLate:
            return
        except Refuse as refusal:
            self._finish(work, (), CommandResult.REFUSED, str(refusal))
        except TimeoutError as error:
            self._finish(work, (), CommandResult.UNKNOWN, str(error)[:500])
        except Exception as error:  # noqa: BLE001 - the loop's edge: whatever it is, the controller hears of it
            result = CommandResult.REFUSED if isinstance(order, AT_ANY_TIME) else CommandResult.UNKNOWN
            self._finish(work, (), result, f"{type(error).__name__}: {error}"[:500])
        else:
            told = said if isinstance(said, CarriedOut) else CarriedOut(news=said)
            self._finish(work, told.news, CommandResult.DONE, told.text)
        finally:
            with self._lock:
                self._threads -= 1

    def _alone(self, work: _Work) -> Sequence[ItemNews] | CarriedOut:
        order = work.command.order
        self._wait_for_others(work)
        try:
            self._begin(work)
            if not isinstance(order, RunReboot):  # until it leaves nothing has changed
                self._write_down(JournaledCommand(id=work.command.id))
            self._whole(work, isinstance(order, RunReset))
            said = self._carry[type(order)](order, work.ends)
            if isinstance(said, CarriedOut) and said.leave is not None:
                self._leave(work, said, said.leave)
            return said
        finally:
            with self._turn:
                work.whole, work.over = False, True
                while self._busy is not None and self._busy.over:
                    self._busy = self._busy.ahead_of
                self._turn.notify_all()

    def _wait_for_others(self, work: _Work) -> None:
        """A reboot also goes ahead of what has not ended in its time: it may be the only cure for that."""

        def free() -> bool:
            busy = self._busy
            return busy is None or (busy.answered.is_set() and isinstance(work.command.order, RunReboot))

        with self._turn:
            if not self._turn.wait_for(free, max(0.0, work.expires - time.monotonic())):
                raise Refuse("another command is still being carried out")
            work.ahead_of, self._busy = self._busy, work

    def _begin(self, work: _Work) -> None:
        now = time.monotonic()
        with self._lock:
            if work.answered.is_set():
                raise _TooLate
            if now > work.expires:
                raise Refuse("its time is over")
            work.ends = now + _deadline(work.command.order)

    def _write_down(self, entry: JournaledCommand) -> None:
        try:
            self._journal.note(entry)
        except OSError as error:
            raise Refuse(f"it could not be written down: {error.strerror or error}") from error

    def _whole(self, work: _Work, whole: bool) -> None:
        with self._turn:
            if whole and self._ending:
                raise Refuse("the agent is ending")
            work.whole = whole
            self._turn.notify_all()

    def _leave(self, work: _Work, said: CarriedOut, leave: Callable[[], None]) -> None:
        """Announces the end of this boot, writes it down, and calls for it. The answer is the next boot's.

        A controller that is away does not stop a repair: the announcement is waited for a while, and no longer.
        """
        self._whole(work, True)
        self._outbox.put([say(item) for item in said.news])
        self._outbox.emptied(SAID_WITHIN)
        try:
            self._write_down(JournaledCommand(id=work.command.id, leaving=self._me.boot_id))
            leave()
        except Refuse:
            self._outbox.put([say(item) for item in said.stays])
            raise
        self._whole(work, False)  # from here on nobody has to wait for it: it ends us
        if not work.answered.wait(max(0.0, work.ends - time.monotonic())):
            raise TimeoutError(f"{said.text}: it was called for, and this boot goes on")
        raise _TooLate

    # --- out
    def _finish(self, work: _Work, news: Sequence[ItemNews], result: CommandResult, text: str) -> None:
        with self._lock:
            if not work.answered.is_set():  # else it was answered as overdue
                self._answer(work, news, result, text)

    def _answer(self, work: _Work, news: Sequence[ItemNews], result: CommandResult, text: str) -> None:
        command = work.command
        work.answered.set()
        self._working.pop(command.id, None)
        self._say(Answered(command=command.id, result=result, text=text), news)
        if not isinstance(command.order, AT_ANY_TIME):
            with suppress(OSError):  # the answer is said; the next run would say "unknown", which nobody waits for then
                self._journal.note(JournaledCommand(id=command.id, result=result, text=text))
        with self._turn:
            self._turn.notify_all()

    def _say(self, answer: Answered, news: Sequence[ItemNews]) -> None:
        # The result and the answer are one write: a death in between cannot leave one without the other.
        self._outbox.put([say(item) for item in (*news, answer)])
        self._answered[answer.command] = (answer, time.monotonic())
        self._answered.move_to_end(answer.command)
        while len(self._answered) > REMEMBERED:
            self._answered.popitem(last=False)

    def overdue(self, now: float) -> None:
        """Whoever hangs is left alone, and the controller is told that nobody knows."""
        with self._lock:
            for work in list(self._working.values()):
                if not work.begun and now > work.expires + 1.0:
                    self._answer(work, (), CommandResult.REFUSED, "its time is over")
                elif now > work.ends + 1.0:
                    result = (
                        CommandResult.REFUSED if isinstance(work.command.order, AT_ANY_TIME) else CommandResult.UNKNOWN
                    )
                    self._answer(work, (), result, "it did not end in time")

    def finish(self) -> None:
        """Waits for what must not be cut off in the middle, as long as it may take; nothing like it is begun."""
        with self._turn:
            self._ending = True
            while (busy := self._busy) is not None and busy.whole and time.monotonic() < busy.ends:
                self._turn.wait(1.0)


def _deadline(order: AnyOrder) -> float:
    if isinstance(order, RunCheck):
        return LEVEL_DEADLINES.get(order.level, DEADLINES[RunCheck])
    return DEADLINES[type(order)]
