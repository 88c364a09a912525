"""Agreement (all-reduce) of the ranks that save together: all of them do it, or none.

What DCP does is collective, so that a rank that stays away makes the others wait. What can keep one rank away is
therefore told to all of them first, on a group of its own on gloo: other groups may be in use in other threads, and
those of GPUs would make the host wait for the GPU.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from enum import IntEnum
from importlib import import_module
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from sickbay.train.asked import should_end, should_save
from sickbay.train.checkpoints import Checkpoints
from sickbay.train.errors import CheckpointError
from sickbay.train.sharing import allowance
from sickbay.train.staging import Staging

torch: Any = import_module("torch")
dist: Any = import_module("torch.distributed")

LIMIT = 2400.0  # seconds: `patience` and `budget` of Checkpoints, as they are by default
ONCE = 30.0  # seconds within which the ranks of one job get one signal


class RankStanding(IntEnum):
    """What a rank says of itself; the worst counts."""

    READY = 0
    BUSY = 1  # its save before has not ended
    FAILED = 2  # it counts like any other save that fails
    REFUSES = 3  # it raises an error


class RankVerdict(NamedTuple):
    standing: RankStanding
    rank: int  # one that is the reason


class Ranks:
    """The ranks of one Checkpoints, and what saving needs on each of them."""

    def __init__(self, checkpoints: Checkpoints, process_group: Any) -> None:
        self.rank, self.patience = checkpoints.rank, checkpoints.patience
        self.limit = checkpoints.patience + checkpoints.budget
        self.of = (_world(), process_group)
        self.talking = talking_group(process_group, self.limit)
        self.staging = Staging()
        self.written: Future[Any] | None = None  # what is being written, which needs the staged memory and the group
        self._own: Any = None
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sickbay-dcp")

    def agree(self, step: object, standing: RankStanding) -> RankVerdict:
        """What all ranks will do about this step, the same on each of them."""
        if self.talking is None:
            return RankVerdict(standing, self.rank)
        number = step if isinstance(step, int) and 0 <= step < 1 << 62 else 0  # it is refused, and that is what counts
        told = torch.tensor([standing << 32 | self.rank, number, -number], dtype=torch.int64)
        try:
            dist.all_reduce(told, op=dist.ReduceOp.MAX, group=self.talking)
        except RuntimeError as error:
            raise CheckpointError(
                f"the ranks could not agree on step {step} within {self.limit:g} s (patience and budget), as one of"
                f" them ended or did not come to it: {in_one_line(error)}"
            ) from error
        worst, most, least = told.tolist()
        verdict = RankVerdict(RankStanding(worst >> 32), worst & 0xFFFFFFFF)
        if most != -least and verdict.standing is not RankStanding.REFUSES:
            raise CheckpointError(f"one rank is at step {-least}, another at step {most}: all must save the same steps")
        return verdict

    def group(self, size: float) -> Any:
        """For DCP alone, which uses it in another thread than ours. `size`: bytes that a rank reads or writes."""
        if self.talking is not None and self._own is None:
            self._own = _new_group(self.of[1], self.patience + allowance(size))
        return self._own

    def begin(self, write: Callable[[Any], Any]) -> Future[Any]:
        """In the background, when all ranks have agreed: the first time it is collective."""
        self.written = self._pool.submit(write, self.group(self.staging.size))
        return self.written

    def still_writing(self, budget: float) -> bool:
        """Mostly not: the thread of Checkpoints waits for it too, but that one may have failed before."""
        if self.written is None:
            return False
        try:
            self.written.exception(budget)
        except TimeoutError:
            return True
        self.written = None
        return False


_of: WeakKeyDictionary[Checkpoints, Ranks] = WeakKeyDictionary()
_talking: dict[Any, Any] = {}


def ranks_of(checkpoints: Checkpoints, process_group: Any) -> Ranks:
    """The first time it is collective."""
    known = _of.get(checkpoints)
    if known is None or known.of != (_world(), process_group):
        _check(checkpoints, process_group)
        known = _of[checkpoints] = Ranks(checkpoints, process_group)
    return known


def _check(checkpoints: Checkpoints, process_group: Any) -> None:
    mine = f"rank {checkpoints.rank} of {checkpoints.world_size}"
    if _world() is None:
        if checkpoints.world_size > 1:
            raise CheckpointError(
                f"this is {mine}, and DCP needs to reach the others: call torch.distributed.init_process_group first"
            )
        return
    rank, size = dist.get_rank(process_group), dist.get_world_size(process_group)
    if (rank, size) != (checkpoints.rank, checkpoints.world_size):
        raise CheckpointError(
            f"the checkpoints are of {mine}, the process group is of rank {rank} of {size}: give both the same ranks"
        )


def _world() -> Any:
    return dist.group.WORLD if dist.is_available() and dist.is_initialized() else None


def talking_group(process_group: Any, limit: float) -> Any:
    """The group on which these ranks agree, always in the thread that trains. None: there is one rank."""
    world = _world()
    if world is None or dist.get_world_size(process_group) <= 1:
        return None
    key = (world, process_group, limit)
    if key not in _talking:
        for other in [known for known in _talking if known[0] is not world]:
            _asking.pop(_talking.pop(other), None)
        _talking[key] = _new_group(process_group, limit)
    return _talking[key]


def _new_group(process_group: Any, limit: float) -> Any:
    """Of the same ranks. A limit that is over ends the group for all of them, so that all are told."""
    timeout = timedelta(seconds=limit)
    if process_group is None or process_group is _world():
        return dist.new_group(backend="gloo", timeout=timeout)
    ranks = dist.get_process_group_ranks(process_group)
    return dist.new_group(ranks, backend="gloo", timeout=timeout, use_local_synchronization=True)


class Asking:
    """Whether one of the ranks was asked to save before its end, as all of them hear it at the same call."""

    heard = False  # of an end, in any group

    def __init__(self, group: Any) -> None:
        self._group = group
        self.ending = False  # one of them has got a SIGTERM, and all have heard of it
        self._under_way: tuple[Any, Any] | None = None
        self._agreed = float("-inf")

    def ask(self, *, now: bool) -> bool:
        try:
            answer = self._answer()
            ending = (
                should_end()
            )  # asked before: a signal in between is a wish to save now, and an end at the next call
            # A signal to all ranks reaches each at another moment: it is one wish, and has been followed.
            mine = should_save() and not (answer or time.monotonic() - self._agreed < ONCE)
            # Those who leave save what came after the last save, too.
            told = torch.tensor([mine or (ending and not Asking.heard), ending], dtype=torch.int64)
            self._under_way = dist.all_reduce(told, op=dist.ReduceOp.MAX, group=self._group, async_op=True), told
            answer = (now and self._answer()) or answer
        except RuntimeError as error:
            raise CheckpointError(
                f"the ranks could not agree whether to save, as one of them ended or did not ask: {in_one_line(error)}"
            ) from error
        if answer:
            self._agreed = time.monotonic()
        return answer

    def _answer(self) -> bool:
        if self._under_way is None:
            return False
        (work, told), self._under_way = self._under_way, None
        work.wait()
        save, end = told.tolist()
        self.ending = self.ending or bool(end)
        Asking.heard = Asking.heard or self.ending
        return bool(save)


_asking: dict[Any, Asking] = {}


def asking_of(process_group: Any) -> Asking | None:
    """None: there is one rank."""
    group = talking_group(process_group, LIMIT)
    return None if group is None else _asking.setdefault(group, Asking(group))


def in_one_line(error: BaseException) -> str:
    """DCP's errors hold those of all ranks, with tracebacks."""
    failures = getattr(error, "failures", None)
    if failures:
        rank, (cause, _) = min(failures.items())
        return f"rank {rank}: {in_one_line(cause)}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
