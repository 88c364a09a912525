"""Supervisor of the NVML child: asks with a deadline, ends one that hangs, restarts it with exponential back-off."""

import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Event, Lock

import msgspec

from sickbay.agent.nvml.pipes import Late, PipeEnded, Process
from sickbay.agent.nvml.smi import SMI, read_xml
from sickbay.agent.nvml.trouble import CannotRead, Mismatch, NoDriver, NvmlHung, NvmlUnanswered, Slow
from sickbay.agent.nvml.wire import (
    Alive,
    AnySaid,
    At,
    Done,
    Failed,
    Happened,
    Lack,
    NvmlAbsent,
    NvmlRequest,
    NvmlWish,
    Read,
    Ready,
    Values,
)  # fmt: skip
from sickbay.model.gpu import GpuReading

__all__ = ["CannotRead", "Mismatch", "NoDriver", "Nvml", "NvmlHung", "NvmlTimeouts", "NvmlUnanswered", "Slow"]

CHILD = (sys.executable, "-m", "sickbay.agent.nvml")
EVENTS = 10_000  # held until somebody asks for them
_SAID: msgspec.json.Decoder[AnySaid] = msgspec.json.Decoder(AnySaid)


@dataclass(frozen=True, slots=True)
class NvmlTimeouts:
    """Seconds."""

    answer: float = 10.0  # for one answer about all devices
    start: float = 60.0  # to load NVML: without persistence mode the driver brings every GPU up first
    smi: float = 30.0  # for nvidia-smi, which without persistence mode brings every GPU up each time
    alive: float = 1.0  # for the thread of the child that calls nothing
    again_first: float = 1.0  # before a child is started anew; doubles each time
    again_most: float = 300.0


class Nvml:
    """Any thread may ask. `kill` ends a process by its id."""

    def __init__(
        self,
        command: Sequence[str] = CHILD,
        smi: Sequence[str] = SMI,
        patience: NvmlTimeouts = NvmlTimeouts(),  # noqa: B008 - frozen
        kill: Callable[[int], None] = lambda pid: os.kill(pid, signal.SIGKILL),
    ) -> None:
        self._command, self._smi = tuple(command), tuple(smi)
        self._patience = patience
        self._kill = kill
        self._lock = Lock()
        self._child: Process | None = None
        self._ready = False
        self._stuck: Process | None = None  # cannot be killed: one is enough
        self._at: At | None = None
        self._number = 0
        self._failures = 0
        self._not_before = 0.0
        self._trouble: CannotRead | None = None  # why there is no child now
        self._smi_late = False
        self._without = ""  # NVML cannot be had here, nvidia-smi may
        self._aside = ""
        self._present = Event()  # nobody has asked us to step aside
        self._present.set()
        self._events: deque[Happened] = deque(maxlen=EVENTS)

    # --- asking
    def read(self, deadline: float | None = None) -> list[GpuReading]:
        """Everything about every device. Raises CannotRead, and what is under it, within about `deadline` seconds."""
        with self._turn(deadline) as until:
            if self._available(until):
                return self._converse(NvmlWish.READ, until)[0]
            return self._from_smi(until)

    def metrics(self, deadline: float | None = None) -> dict[str, float]:
        """A few values of each device (`gpu.0.temperature`). None where there is only nvidia-smi: it costs a lot."""
        with self._turn(deadline, patient=False) as until:
            return self._converse(NvmlWish.METRICS, until)[1] if self._available(until) else {}

    def events(self) -> list[Happened]:
        """What NVML told by itself since the last call."""
        if self._lock.acquire(blocking=False):  # else whoever asks reads them now
            try:
                if self._child is not None and self._ready:
                    self._drain(self._child)
            finally:
                self._lock.release()
        told: list[Happened] = []
        with suppress(IndexError):  # others may take some at the same time
            while True:
                told.append(self._events.popleft())
        return told

    @contextmanager
    def aside(self, why: str) -> Iterator[None]:
        """While this is held nobody of ours has the devices open: a GPU that somebody holds cannot be reset.

        Whoever asks meanwhile waits as long as for an answer: a reset is no reason to say that nobody can look.
        """
        with self._lock:
            self._aside = why
            self._present.clear()
            self._end_child()
        try:
            yield
        finally:
            with self._lock:
                if self._aside == why:  # else we have been closed meanwhile
                    self._aside = ""
            self._present.set()

    def close(self) -> None:
        with self._lock:
            self._aside = "the agent ends"
            self._end_child()

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    @property
    def descriptor(self) -> int | None:
        """Can be read when NVML tells something by itself: then ask for `events`."""
        return self._child.descriptor if self._child is not None and self._ready else None

    # --- one at a time
    @contextmanager
    def _turn(self, deadline: float | None, *, patient: bool = True) -> Iterator[float]:
        wait = self._patience.answer if deadline is None else deadline
        until = time.monotonic() + wait
        if not self._present.wait(wait if patient else 0.0):
            raise CannotRead(f"the GPUs are not read now: {self._aside}")
        if deadline is None:  # the driver that has just reset a GPU brings it up first
            until = time.monotonic() + wait
        if not self._lock.acquire(timeout=max(0.0, until - time.monotonic())):
            raise CannotRead("the GPUs are being read by another, who does not come back")
        try:
            if self._aside:
                raise CannotRead(f"the GPUs are not read now: {self._aside}")
            yield until
        finally:
            self._lock.release()

    def _available(self, until: float) -> bool:
        """Whether a child that has loaded NVML is there; False: only nvidia-smi can help."""
        if self._stuck is not None:
            if not self._stuck.gone:
                raise self._again()
            self._stuck = None
        if self._child is None:
            if time.monotonic() < self._not_before:
                if self._without:
                    return False
                raise self._again()
            self._ready, self._at, self._without = False, None, ""
            try:
                self._child = Process(self._command)
            except OSError as error:
                raise self._failed(CannotRead(f"the process that asks NVML cannot be started: {error}")) from None
        return self._ready or self._wait_until_ready(self._child, until)

    def _wait_until_ready(self, child: Process, until: float) -> bool:
        try:
            said = self._hear(child, until)
        except Late:
            waited = time.monotonic() - child.started
            if waited < self._patience.start:
                raise CannotRead("NVML is still being loaded") from None
            raise self._failed(
                NvmlHung(f"loading NVML does not come to an end (after {self._patience.start:g} s)", None)
            ) from None
        if isinstance(said, NvmlAbsent):
            self._absent(said)
            return False
        self._ready = isinstance(said, Ready)
        return self._ready or self._wait_until_ready(child, until)

    def _absent(self, said: NvmlAbsent) -> None:
        """Raises, unless nvidia-smi may still know something."""
        why = f"NVML: {said.why}"
        if said.lack in {Lack.MODULE, Lack.LIBRARY}:
            self._failed(CannotRead(why))
            self._without = why
            return
        sort = {Lack.DRIVER: NoDriver, Lack.MISMATCH: Mismatch}.get(said.lack, CannotRead)
        raise self._failed(sort(why))

    # --- a conversation
    def _converse(self, wish: NvmlWish, until: float) -> tuple[list[GpuReading], dict[str, float]]:
        child = self._child
        assert child is not None
        number = self._send(child, wish)
        readings: list[GpuReading] = []
        values: dict[str, float] = {}
        self._at = None
        while True:
            try:
                said = self._hear(child, until)
            except Late:
                raise self._hung(child, readings) from None
            match said:
                case At():
                    self._at = said
                case Read():
                    readings.append(said.reading)
                case Values():
                    values |= said.values
                case Failed() if said.number == number:
                    raise self._failed(CannotRead(f"NVML: {said.why}"))
                case Done() if said.number == number:
                    self._failures, self._trouble = 0, None
                    return readings, values
                case _:
                    pass  # of an answer that nobody waits for any more

    def _send(self, child: Process, wish: NvmlWish) -> int:
        self._number += 1
        try:
            child.send(msgspec.json.encode(NvmlRequest(wish=wish, number=self._number)) + b"\n")
        except PipeEnded as ended:
            raise self._crashed(ended) from None
        return self._number

    def _hear(self, child: Process, until: float) -> AnySaid:
        """The next thing said that is no event. Raises Late, and CannotRead where the child is no more."""
        while True:
            try:
                said = _SAID.decode(child.line(until))
            except PipeEnded as ended:
                raise self._crashed(ended) from None
            except msgspec.MsgspecError as error:
                raise self._failed(CannotRead(f"the process that asks NVML speaks nonsense: {error}")) from None
            if not isinstance(said, Happened):
                return said
            self._events.append(said)

    def _drain(self, child: Process) -> None:
        try:
            while True:
                self._hear(child, 0.0)
        except (Late, CannotRead):
            return

    # --- trouble
    def _hung(self, child: Process, readings: Sequence[GpuReading]) -> CannotRead:
        """Is it NVML that does not come back, or a machine so busy that the child did not get to run?"""
        at = self._at
        where = "NVML" if at is None else f"GPU {at.device}{f' at {at.pci}' if at.pci else ''}"
        before = self._trouble
        if self._in_nvml(child):
            return self._failed(NvmlHung(f"{where} does not answer: whoever asks it hangs", at, readings))
        if isinstance(before, NvmlUnanswered) and before.device == (None if at is None else at.device):
            return self._failed(NvmlHung(f"{where} does not answer, time after time", at, readings))
        return self._failed(Slow(f"{where} did not answer in time", at, readings))

    def _in_nvml(self, child: Process) -> bool:
        try:
            number = self._send(child, NvmlWish.ALIVE)
            until = time.monotonic() + self._patience.alive
            while True:
                said = self._hear(child, until)
                if isinstance(said, Alive) and said.number == number:
                    return said.since > 0
        except (Late, CannotRead):
            return False

    def _crashed(self, ended: PipeEnded) -> CannotRead:
        where = "" if self._at is None else f" while it asked GPU {self._at.device}"
        return self._failed(CannotRead(f"the process that asks NVML ended{where}: {ended}"))

    def _failed(self, trouble: CannotRead) -> CannotRead:
        self._trouble = trouble
        wait = min(self._patience.again_most, self._patience.again_first * 2.0 ** min(self._failures, 30))
        self._failures += 1
        self._not_before = time.monotonic() + wait
        if not self._end_child():
            trouble = NvmlHung(f"{trouble}; its process cannot be killed, so it is left alone", self._at)
            self._trouble = trouble
        return trouble

    def _again(self) -> CannotRead:
        """The same trouble as before: nothing has been asked since."""
        trouble = self._trouble
        assert trouble is not None
        again = type(trouble).__new__(type(trouble))
        again.__dict__.update(trouble.__dict__)
        again.args = trouble.args
        return again

    def _end_child(self) -> bool:
        child, self._child, self._ready = self._child, None, False
        if child is None or child.end(self._kill):
            return True
        self._stuck = child
        return False

    def _from_smi(self, until: float) -> list[GpuReading]:
        try:
            readings = read_xml(self._smi, max(until, time.monotonic() + self._patience.smi), self._give_up)
        except Late:
            again, self._smi_late = self._smi_late, True
            why = f"nvidia-smi does not come back{', time after time' if again else ''}"
            raise self._failed((NvmlHung if again else Slow)(why, None)) from None
        except FileNotFoundError:
            raise NoDriver(f"{self._without}; and there is no {self._smi[0]}") from None
        except (OSError, PipeEnded, ValueError) as error:
            raise CannotRead(f"{self._without}; and {self._smi[0]} is of no help: {error}") from None
        self._smi_late = False
        return readings

    def _give_up(self, process: Process) -> None:
        if not process.end(self._kill):
            self._stuck = process
