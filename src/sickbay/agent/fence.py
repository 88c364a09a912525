"""Self-fencing: a node that hears neither its controller nor its cluster for too long stops taking work.

Never by default. Time is the monotonic clock's, and only while we ran ourselves: an agent that was stopped has not
listened. What is to be done is written down first, so that it is done once and a later run can undo it.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread

import msgspec

from sickbay.agent.complaints import complain
from sickbay.agent.setting_values import SelfFence
from sickbay.model.noun import Noun
from sickbay.wire.commands import run_bounded
from sickbay.wire.files import replace_file

MARK = Path("/run/sickbay/fenced")  # what is written where no command is named: others may watch for it
COMMAND_TAKES = 120.0  # seconds
PROBE_TAKES = 20.0
ASK_EVERY = 30.0  # seconds between two questions to the cluster, and only while the controller is silent
STEP = 5.0  # seconds between two turns that count at most: more, and we were asleep

Run = Callable[[Sequence[str], float], int]
Tell = Callable[[str, str], None]  # kind and text of an observation


class FenceState(Noun):
    """On disk. `state`: begun (the command may have run), fenced, undoing."""

    state: str
    boot_id: str
    because: str = ""


def run(words: Sequence[str], within: float) -> int:
    """The exit code; 124 where it took too long, 127 where there is no such command."""
    try:
        code = run_bounded(words, within, spare=True).code  # a daemon that an operator's command started lives on
    except OSError:
        return 127
    return 124 if code is None else code


def answers(url: str, within: float = PROBE_TAKES) -> bool:
    """Whoever answers at all, and be it with a refusal, is there."""
    import urllib.error  # here: large, and few agents fence
    import urllib.request

    try:
        with urllib.request.urlopen(url, timeout=within):  # noqa: S310 - settings take http and https only
            return True
    except urllib.error.HTTPError as error:
        error.close()
        return error.code < 500
    except (OSError, ValueError):
        return False


class FenceKeeper:
    """`turn` is called every second or so. What may take long, asking and fencing, runs beside the loop."""

    def __init__(
        self,
        settings: SelfFence,
        state: Path,
        boot_id: str,
        tell: Tell,
        *,
        run: Run = run,
        mark: Path = MARK,
        beside: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        self._settings = settings
        self._file = state / "fence.json"
        self._boot_id = boot_id
        self._tell = tell
        self._run = run
        self._mark = mark
        self._beside = beside or _in_a_thread
        self._silent = 0.0  # seconds of our own running time without a word from anybody
        self._last: float | None = None
        self._asked = -1e9
        self._busy = False
        self._cluster_heard = False
        self._fenced = self._read()

    @property
    def fenced(self) -> bool:
        return self._fenced is not None

    def turn(self, now: float, *, heard: bool) -> None:
        """`heard`: the controller has answered lately."""
        gap = 0.0 if self._last is None else now - self._last
        self._last = now
        if heard or self._cluster_heard:
            self._silent, self._cluster_heard = 0.0, False
            if self._fenced is not None and not self._busy:
                self._go(self._unfence)
            return
        # A gap that is longer than a turn was no listening: a stopped machine is no reason to fence it.
        self._silent += min(max(gap, 0.0), STEP)
        if self._busy:
            return
        if now - self._asked >= ASK_EVERY:
            self._asked = now
            self._go(self._ask)
        elif self._fenced is None and self._silent >= self._settings.after:
            self._go(self._fence)

    def _go(self, act: Callable[[], None]) -> None:
        self._busy = True

        def guarded() -> None:
            try:
                act()
            except Exception as error:  # noqa: BLE001 - the thread's edge
                complain(f"self-fencing: {type(error).__name__}: {error}")
            finally:
                self._busy = False

        try:
            self._beside(guarded)
        except RuntimeError as error:  # no thread can be started: the next turn tries again
            self._busy = False
            complain(f"self-fencing: {error}")

    def _ask(self) -> None:
        wants = self._settings
        asked = bool(wants.probe) and self._run(wants.probe, PROBE_TAKES) == 0
        self._cluster_heard = asked or (bool(wants.probe_url) and answers(wants.probe_url))

    def _fence(self) -> None:
        self._ask()  # once more: what follows stops work
        if self._cluster_heard:
            return
        because = f"neither controller nor cluster was heard for {self._silent:.0f} s"
        if not self._write(FenceState(state="begun", boot_id=self._boot_id, because=because)):
            return  # what cannot be written down is not done: nobody could undo it
        words = self._settings.command
        if words:
            code = self._run(words, COMMAND_TAKES)
            done = f"{' '.join(words)} ended with {code}"
        else:
            self._mark.parent.mkdir(parents=True, exist_ok=True)
            self._mark.write_text(f"{because}\n")
            done = f"{self._mark} was written"
        self._write(FenceState(state="fenced", boot_id=self._boot_id, because=because))
        self._tell("agent.fenced", f"this node takes no more work: {because}; {done}")

    def _unfence(self) -> None:
        assert self._fenced is not None
        self._write(FenceState(state="undoing", boot_id=self._boot_id, because=self._fenced.because))
        words = self._settings.undo
        code = self._run(words, COMMAND_TAKES) if words else 0
        self._mark.unlink(missing_ok=True)
        if code != 0:
            self._tell("agent.fenced", f"heard again, but {' '.join(words)} ended with {code}: it is tried again")
            return
        self._file.unlink(missing_ok=True)
        self._fenced = None
        self._tell("agent.unfenced", "heard again: this node takes work as before")

    def _read(self) -> FenceState | None:
        """What an earlier run has done, or begun: either way it is to be undone when somebody is heard."""
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=FenceState)
        except (OSError, msgspec.MsgspecError):
            return None

    def _write(self, fenced: FenceState) -> bool:
        try:
            replace_file(self._file, msgspec.json.encode(fenced))
        except OSError as error:
            complain(f"self-fencing cannot be written down: {error}")
            return False
        self._fenced = fenced
        return True


def _in_a_thread(act: Callable[[], None]) -> None:
    Thread(target=act, name="fence", daemon=True).start()
