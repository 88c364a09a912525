"""The agent's loop: calls each probe when something changed for it, or when its time has come."""

import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from sickbay.agent.commands import Commands
from sickbay.agent.complaints import complain
from sickbay.agent.outbox import Outbox, say
from sickbay.agent.probes import Probe
from sickbay.agent.watches import Watches
from sickbay.agent.watermark import Watermarks
from sickbay.model.facts import Observed

TURN = 1.0  # seconds; what is to be done now and then is done no oftener
SLEEP = 2.0  # seconds; a turn is never longer
SLACK = 0.1  # seconds, or a tenth of its period, that a probe may look early, so that one turn serves several
ASLEEP = 1.0  # seconds more than a turn may take: we were stopped ourselves
HANGS_AFTER = 30.0
TOLD_EVERY = 60.0  # seconds between two words about a probe that goes on failing

Wanted = Callable[[], Mapping[Path, tuple[str, int]]]
Handles = Callable[[], Mapping[int, str]]  # descriptors that can be read when there is something new, and for whom


def _none() -> Mapping[int, str]:
    return {}


def _due(probe: Probe) -> float:
    every = probe.now_every
    return every - min(SLACK, every / 10)


class Loop:
    """`wanted` lists the directories that call a probe; `asleep` is called when we find that we did not run."""

    def __init__(
        self,
        probes: Sequence[Probe],
        senses: Watermarks,
        outbox: Outbox,
        watches: Watches,
        wanted: Wanted,
        asleep: Callable[[float], None],
        handles: Handles = _none,
    ) -> None:
        self._probes = {probe.name: probe for probe in probes}
        self._senses = senses
        self._outbox = outbox
        self._watches = watches
        self._wanted = wanted
        self._handles = handles
        self._asleep = asleep
        self._looked = dict.fromkeys(self._probes, -1e9)
        self._called: set[str] = set(self._probes)
        self._failed: dict[str, str] = {}
        self._told: dict[str, float] = {}
        self._last = self._second = self._wait = 0.0
        self._hanging: dict[str, tuple[threading.Thread, float]] = {}
        self.ending = False

    def run(self, commands: Commands, each_second: Callable[[float], None]) -> None:
        self._last = self._second = time.monotonic()
        while not self.ending:
            try:
                self._turn(commands, each_second)
            except Exception as error:  # noqa: BLE001 - the loop's edge: it goes on, and does not spin
                complain(f"the loop: {type(error).__name__}: {error}")
                time.sleep(TURN)

    def _turn(self, commands: Commands, each_second: Callable[[float], None]) -> None:
        now = time.monotonic()
        if now - self._last > max(TURN, self._wait) + ASLEEP:
            self._asleep(now)
        self._last = now
        self._look(now)
        self._called |= self._watches.want(self._wanted())
        # One that has called is not listened to before it was looked at: it would call without end.
        self._watches.listen({h: name for h, name in self._handles().items() if name not in self._called})
        if now - self._second >= TURN:
            self._second = now
            commands.overdue(now)
            each_second(now)
        self._wait = self._until_next(time.monotonic())
        self._called |= self._watches.wait(self._wait)

    def _look(self, now: float) -> None:
        for name, probe in self._probes.items():
            since = now - self._looked[name]
            if since >= _due(probe) or (name in self._called and since >= probe.gap):
                self._called.discard(name)
                self._looked[name] = now
                self._guarded(probe, now)

    def _until_next(self, now: float) -> float:
        waits = [
            (probe.gap if name in self._called else probe.now_every) - (now - self._looked[name])
            for name, probe in self._probes.items()
        ]
        return max(0.0, min(SLEEP, *waits))

    def _guarded(self, probe: Probe, now: float) -> None:
        if not probe.may_hang:
            self._try(probe, now)
            return
        hanging = self._hanging.get(probe.name)
        if hanging is not None and hanging[0].is_alive():
            if now - hanging[1] > HANGS_AFTER:
                self._tell(probe, f"it has not come back for {HANGS_AFTER:g} s")
            return
        thread = threading.Thread(target=self._try, args=(probe, now), name=f"probe {probe.name}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            self._tell(probe, f"no thread can be started for it: {error}")
            return
        self._hanging[probe.name] = (thread, now)

    def _try(self, probe: Probe, now: float) -> None:
        """A probe that fails must not end the others; that it could not look is news, once."""
        try:
            if probe.witness:
                self._senses.read(probe)
            else:
                self._outbox.put(probe.look(now))
                if probe.told is not None and self._outbox.saved:
                    probe.told(now)
        except Exception as error:  # noqa: BLE001 - the loop's edge
            if self._tell(probe, f"{type(error).__name__}: {error}"):
                with suppress(OSError, ValueError):  # stderr may be gone
                    traceback.print_exc(file=sys.stderr)
        else:
            self._failed.pop(probe.name, None)

    def _tell(self, probe: Probe, why: str) -> bool:
        """Whether it is news. One that fails with other words each time is told now and then."""
        before, now = self._failed.get(probe.name), time.monotonic()
        if before == why or (before is not None and now - self._told[probe.name] < TOLD_EVERY):
            return False
        self._failed[probe.name], self._told[probe.name] = why, now
        text = f"the probe {probe.name} cannot look: {why}"
        self._outbox.put([say(Observed(node=self._outbox.voice.node, kind="probe.failed", text=text[:500]))])
        return True
