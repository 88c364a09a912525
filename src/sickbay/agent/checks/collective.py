"""An all-reduce over ranks: NCCL's own, or a ring over plain TCP whose sums are known beforehand.

The ring is the network test where neither NCCL nor a GPU is there. Rank 0 listens at the rendezvous address; every
other rank tells it where it listens itself, and gets the addresses of all and NCCL's identity. Afterwards rank 0
gathers what each rank found, so that all can say who it was. It is the trial of the pairwise search, too.
"""

import contextlib
import socket
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from typing import Any, Final

from sickbay.agent.checks import CouldNotRun, Result
from sickbay.agent.checks.meeting import COME, TELL, Meeting, NeverCame, dial, listening, meet

MOST_RANKS: Final = 4096


def nodes(wants: dict[str, Any]) -> Result:
    """One rank of the all-reduce over nodes: `rank`, `ranks`, `at`, `seconds`; `gpus` (by PCI) and `library` for NCCL.

    `cannot`: why this rank cannot take part as it should; then the others hear it too. `floor`: least GB/s;
    `floor_here`: if all ranks are on one machine.
    """
    number, ranks = int(wants["rank"]), int(wants["ranks"])
    if not 0 <= number < ranks <= MOST_RANKS or ranks < 2:
        raise CouldNotRun(f"rank {number} of {ranks}: there are 2 to {MOST_RANKS} ranks, counted from 0")
    seconds = float(wants.get("seconds", 60.0))
    until = time.monotonic() + seconds
    with contextlib.ExitStack() as stack:
        mine = stack.enter_context(listening("", 0))
        hello = {
            "rank": number, "port": mine.getsockname()[1], "host": socket.gethostname(),
            "gpus": wants.get("gpus") or [], "library": bool(wants.get("library")), "cannot": wants.get("cannot") or "",
        }  # fmt: skip
        make_identity = _identity(str(wants.get("library") or ""))
        try:
            meeting = meet(str(wants["at"]), ranks, hello, until - COME * seconds, make_identity, stack)
        except NeverCame as error:
            return Result(str(error))
        except (OSError, ValueError) as error:
            raise CouldNotRun(f"rank {number}: the ranks did not come together at {wants['at']}: {error}") from error
        if meeting.plan["cannot"]:
            raise CouldNotRun(meeting.plan["cannot"])
        mine.settimeout(seconds)
        found = _within(until - TELL * seconds, lambda: _work(meeting, mine, wants, until))
        floor = wants.get("floor")
        if floor is None and len(set(meeting.plan["who"])) == 1:
            floor = wants.get("floor_here")
        return meeting.conclude(found, until, floor)


def _identity(library: str) -> Callable[[], str]:
    def make() -> str:
        from sickbay.agent.cuda.nccl import identity

        return identity(library)

    return make


def _within(until: float, work: Callable[[], Result]) -> dict[str, Any]:
    """What came of it, also if it never comes back: NCCL waits for ever for a peer that is lost."""
    said: dict[str, Any] = {}

    def run() -> None:
        try:
            result = work()
            told: dict[str, Any] = {"because": result.because, "figures": dict(result.figures)}
        except CouldNotRun as error:
            told = {"because": str(error), "unrun": True}
        except Exception as error:  # noqa: BLE001 - whatever it is, the other ranks wait for a word
            told = {"because": str(error) or type(error).__name__}
        said.update(told)

    worker = threading.Thread(target=run, daemon=True)
    worker.start()
    worker.join(max(0.0, until - time.monotonic()))
    return dict(said) if said else {"because": "the all-reduce did not come to its end in time"}


def _work(meeting: Meeting, mine: socket.socket, wants: dict[str, Any], until: float) -> Result:
    number, plan = meeting.number, meeting.plan
    if plan["id"]:
        from sickbay.agent.cuda.nccl import join

        before = sum(len(one) for one in plan["gpus"][:number])
        total = sum(len(one) for one in plan["gpus"])
        return join(
            {**wants, "gpus": plan["gpus"][number], "first": before, "total": total, "id": plan["id"]}
        )  # fmt: skip
    ranks = len(plan["places"])
    words = max(ranks, int(wants.get("mib", 16)) << 17) // ranks * ranks
    with contextlib.ExitStack() as stack:
        try:
            before_it, after_it = _neighbours(number, plan["places"], mine, until, stack)
        except OSError as error:
            return Result(f"cannot reach {meeting.name((number + 1) % ranks)}: {error.strerror or error}")
        try:
            found = _reduce(number, ranks, before_it, after_it, words, int(wants.get("times", 3)))
            return Result(found.because.removeprefix(f"rank {number}: "), found.figures)  # its name is put before it
        except TimeoutError:
            return Result(f"{meeting.name((number - 1) % ranks)} went silent")
        except OSError as error:
            return Result(f"{error.strerror or error} ({meeting.name((number - 1) % ranks)})")


def _neighbours(
    number: int, places: Sequence[Sequence[Any]], mine: socket.socket, until: float, stack: contextlib.ExitStack
) -> tuple[socket.socket, socket.socket]:
    mine.settimeout(max(0.1, until - time.monotonic()))
    next_host, next_port = places[(number + 1) % len(places)]
    after = stack.enter_context(dial(next_host, next_port, until))
    before = stack.enter_context(mine.accept()[0])
    for one in (before, after):
        one.settimeout(max(0.1, until - time.monotonic()))
    return before, after


def _reduce(number: int, ranks: int, before: socket.socket, after: socket.socket, words: int, times: int) -> Result:
    """Ring all-reduce of whole numbers in 64 bits: word i of rank r is r + i % 7; the sum is known."""
    part = words // ranks
    expected = _repeated([ranks * (ranks - 1) // 2 + ranks * step for step in range(7)], words)
    best = 0.0
    for _ in range(times):
        values = _repeated([number + step for step in range(7)], words)
        began = time.monotonic()
        for step in range(2 * (ranks - 1)):
            give = (number - step) % ranks if step < ranks - 1 else (number + 1 - (step - ranks + 1)) % ranks
            take = (give - 1) % ranks
            got = _exchange(before, after, memoryview(values)[give * part : (give + 1) * part], part)
            if step < ranks - 1:
                got = _sum(values[take * part : (take + 1) * part], got)
            values[take * part : (take + 1) * part] = got
        best = max(best, words * 8 / (time.monotonic() - began) / 1e9)
        if values != expected:
            wrong = next(at for at, (one, other) in enumerate(zip(values, expected, strict=True)) if one != other)
            return Result(f"rank {number}: word {wrong} of the sum is {values[wrong]}, not {expected[wrong]}")
    return Result("", {"ranks": float(ranks), "algbw_gbps": best, "busbw_gbps": best * 2 * (ranks - 1) / ranks})


def _sum(one: "array[int]", other: "array[int]") -> "array[int]":
    """As two very long numbers: no word of ours is near its 64 bits, so none carries into the next."""
    size = len(one) * 8
    whole = int.from_bytes(one.tobytes(), "little") + int.from_bytes(other.tobytes(), "little")
    return array("q", whole.to_bytes(size + 8, "little")[:size])


def _repeated(cycle: Sequence[int], words: int) -> "array[int]":
    return (array("q", cycle) * (words // len(cycle) + 1))[:words]


def _exchange(before: socket.socket, after: socket.socket, give: memoryview, words: int) -> "array[int]":
    """Sends to the rank after while the rank before sends: both wait for nobody else."""
    trouble: list[OSError] = []

    def send() -> None:
        try:
            after.sendall(give)
        except OSError as error:
            trouble.append(error)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    got = array("q", bytes(words * 8))
    view, done = memoryview(got).cast("B"), 0
    while done < len(view):
        count = before.recv_into(view[done:])
        if not count:
            raise OSError("the rank before it broke off")
        done += count
    sender.join()
    if trouble:
        raise trouble[0]
    return got
