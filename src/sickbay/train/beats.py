"""The heartbeat: a small file that says how far this rank is. The agent of the node reads it."""

import ctypes
import json
import math
import os
import threading
from collections.abc import Callable, Sequence
from operator import index
from pathlib import Path
from time import monotonic
from typing import cast

PATH = os.environ.get("SICKBAY_HEARTBEAT", "")
HERE, RENAME_EXCHANGE = -100, 2  # AT_FDCWD and the flag, as the kernel's headers have them
WORDS = 500  # characters of a reason
EVERY = 1.0  # seconds between two words about a long piece of work
ANEW = frozenset({"save_failed", "busy", "done", "of"})  # what is said only while it is so
MANY = 20  # reasons that are told; the rest is in LINEAGE

_known: dict[str, object] = {
    "rank": int(rank) if (rank := os.environ.get("RANK", "")).isdecimal() else 0,
    "attempt": int(attempt) if (attempt := os.environ.get("SICKBAY_ATTEMPT", "")).isdecimal() else None,
    "resumed_from": None,
    "skipped": [],
}
_last: dict[str, object] = {}  # what the last heartbeat said besides
_work: dict[str, object] = {}  # the long piece of work that is under way
_asked: list[tuple[str, int]] = []  # the ask that no save has answered yet, and the step at which it came
_told = [0.0]  # when such a piece of work was last told of
_told_of: list[str] = []  # the directory whose checkpoints the heartbeat tells of
_lock = threading.RLock()  # of the file and of what it says: a save tells from a thread of its own
# Below a launcher such as torchrun all workers of a node share one file: the first of them writes it.
_silent = not PATH or ("TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("LOCAL_RANK", "0") != "0")


def tells_of(directory: str) -> bool:
    """Of the directory of the job, or else of the first one that the script uses: it may keep others besides."""
    own = os.environ.get("SICKBAY_CHECKPOINT_DIR")
    if not _told_of or (own and str(Path(own).absolute()) == directory):
        _told_of[:] = [directory]
    return _told_of == [directory]


def ended(directory: str) -> None:
    """A script that is done with these checkpoints may go on with others."""
    if _told_of == [directory]:
        _told_of.clear()


def began(attempt: int, rank: int, resumed_from: int | None, skipped: Sequence[object], of: str = "") -> None:
    """What every heartbeat of this process says from now on. `of`: the other job that saved what it resumed from."""
    told = [str(one) for one in skipped[:MANY]]
    if len(skipped) > MANY:
        told.append(f"… and {len(skipped) - MANY} more")
    # Its fence is there before anything is begun from, so an older attempt that is still alive can do no harm.
    with _lock:
        _known.update(attempt=attempt, rank=rank, resumed_from=resumed_from, skipped=told, fenced=True)
        _known.update(directory=_told_of[0] if _told_of else "", opened=True)
        _known.pop("resumed_of", None)
        if of:
            _known.update(resumed_of=of)
        _again({})  # from now on a first heartbeat is awaited


def busy(what: str, done: int, of: int) -> None:
    """A long piece of work, in bytes, before the first step or between two: it is no hang while `done` grows.

    Told once a second at most; its end, if it was told of at all.
    """
    now, over = monotonic(), done >= of
    if _silent or (not _work if over else now - _told[0] < EVERY):
        return
    _told[0] = now
    with _lock:
        _work.clear()
        if not over:
            _work.update(busy=what, done=done, of=of)
        _again({"busy": what, "done": done, "of": of})


def asked(ident: str) -> None:
    """This process was asked to save: what it saves from this step on is the answer."""
    with _lock:
        step = _last.get("step")
        _asked[:] = [(ident, step if isinstance(step, int) else 0)]


def saved(step: int) -> None:
    """The newest checkpoint that is committed: told at once, since a script that ends after it has no next step."""
    with _lock:
        _known.update(saved=step)
        _answer(step)
        _known.pop("save_failed", None)
        _again({})


def _answer(step: int) -> None:
    """A save of this step is what it was asked for; not so one that was under way by then, of an earlier step."""
    if _asked and step >= _asked[0][1]:
        _known.update(answered=_asked.pop()[0])


def save_failed(step: int, why: str) -> None:
    """From now on every heartbeat says that this step was not saved, until one is."""
    with _lock:
        _known.update(save_failed=f"step {step}: {why}"[:WORDS])
        _work.clear()
        _again({})


def listens() -> None:
    """Every heartbeat says from now on that this script can be asked to save."""
    with _lock:
        _known.update(listens=True)
        _again({})


def _again(also: dict[str, object]) -> None:
    """The last heartbeat once more, with what is known by now."""
    if not _silent:
        beat = {name: value for name, value in _last.items() if name not in ANEW}
        _write(_encoded({"pid": os.getpid(), **beat, **_known, **_work, **also}))


def heartbeat(step: int, loss: float | None = None, **more: object) -> None:
    """Say that `step` is done. Call it once per step; outside Sickbay it does nothing.

    A script with checkpoints of its own says where it began: `heartbeat(step, loss, resumed_from=40)`.
    """
    try:
        step = index(step)
    except TypeError:
        raise TypeError(f"a step is a whole number, not {step!r}") from None
    if _silent:
        return
    global _last  # noqa: PLW0603  # one file, one last heartbeat
    beat: dict[str, object] = {"step": step, "loss": None, "pid": os.getpid()}
    if loss is not None:
        _put_loss(beat, loss)
    with _lock:
        if _asked and isinstance(kept := more.get("saved"), int):  # a script with checkpoints of its own
            _answer(kept)
        _last = {**beat, **_known, **_work, **more}
        _write(_encoded(_last))


def _encoded(beat: dict[str, object]) -> bytes:
    try:
        return json.dumps(beat, default=_plain, allow_nan=False).encode()
    except (ValueError, TypeError):  # not a number, or a key that is no text, somewhere in it
        return json.dumps({name: _finite(value) for name, value in beat.items()}, default=_plain).encode()


def _put_loss(beat: dict[str, object], loss: float) -> None:
    number = float(loss)  # also of a tensor
    if math.isfinite(number):
        beat["loss"] = number
    else:
        beat["loss_is"] = str(number)  # JSON has no word for it


def _finite(value: object) -> object:
    """Text for what JSON cannot say."""
    try:
        json.dumps(value, default=_plain, allow_nan=False)
    except (ValueError, TypeError):
        return str(value)
    return value


def _plain(value: object) -> object:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return str(value)


def _write(text: bytes) -> None:
    """Whole or not at all, but not durable: it is news, and a full disk must not end a training."""
    aside = f"{PATH}.{os.getpid()}"
    try:
        handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            whole = os.write(handle, text) == len(text)
        finally:
            os.close(handle)
        if whole:
            _put(aside)
    except OSError:
        return


def _put(aside: str) -> None:
    """ext4 begins to write a file out when it is renamed over another, which costs more than all the rest together.

    It does not when the two change places (auto_da_alloc in the kernel's ext4 documentation; renameat2(2)).
    """
    if _exchange is not None and _exchange(HERE, os.fsencode(aside), HERE, os.fsencode(PATH), RENAME_EXCHANGE) == 0:
        os.unlink(aside)  # noqa: PTH108  # a Path costs more than the system call
    else:
        os.rename(aside, PATH)  # noqa: PTH104  # the first one, or a system that cannot exchange


def _find_exchange() -> Callable[[int, bytes, int, bytes, int], int] | None:
    try:
        return cast("Callable[[int, bytes, int, bytes, int], int]", ctypes.CDLL(None).renameat2)
    except (OSError, AttributeError, TypeError):
        return None


_exchange = _find_exchange()


def _anew() -> None:
    """In a child: the thread that held the lock is not there."""
    global _lock  # noqa: PLW0603
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_anew)
