"""An all-reduce over plain TCP: a ring of processes, on one machine or on many, whose sums are known beforehand.

The network test where neither NCCL nor a GPU is there, and the trial of the pairwise search. Rank 0 listens at the
rendezvous address; every other rank tells it where it listens itself, and gets the addresses of all. Over nodes
(`nodes`) such a meeting also hands out NCCL's identity, and afterwards gathers what each rank found, so that all can
say who it was.
"""

import contextlib
import json
import socket
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from typing import Any, Final

from sickbay.agent.checks import CouldNotRun, Result
from sickbay.agent.checks.meeting import COME, TELL, Meeting, NeverCame, dial, listening, meet, read_line
from sickbay.agent.checks.pairwise import PairTried, PairwiseVerdict, rounds

MOST_RANKS: Final = 4096


def rank(wants: dict[str, Any]) -> Result:
    """One process of the ring. `rank`, `ranks`, `at` (host:port of rank 0), `host` (where others reach this one)."""
    number, ranks = int(wants["rank"]), int(wants["ranks"])
    if not 0 <= number < ranks <= MOST_RANKS or ranks < 2:
        raise CouldNotRun(f"rank {number} of {ranks}: a ring has 2 to {MOST_RANKS} ranks, counted from 0")
    until = time.monotonic() + float(wants.get("seconds", 30.0))
    words = max(ranks, int(wants.get("mib", 16)) << 17) // ranks * ranks
    with contextlib.ExitStack() as stack:
        try:
            before, after = _ring(number, ranks, wants, until, stack)
        except (OSError, ValueError) as error:  # who never came may be well: it may not have been asked
            raise CouldNotRun(f"rank {number}: the ranks did not come together: {error}") from error
        try:
            return _reduce(number, ranks, before, after, words, int(wants.get("times", 3)))
        except TimeoutError:
            return Result(f"rank {number}: the rank before it went silent")
        except OSError as error:
            return Result(f"rank {number}: {error.strerror or error}")


def _ring(
    number: int, ranks: int, wants: dict[str, Any], until: float, stack: contextlib.ExitStack
) -> tuple[socket.socket, socket.socket]:
    """The connection from the rank before, and the one to the rank after."""
    host, _, port = str(wants["at"]).rpartition(":")
    mine = stack.enter_context(listening(str(wants.get("host") or ""), 0))
    place = [str(wants.get("host") or "127.0.0.1"), mine.getsockname()[1]]
    if number == 0:
        places = _gather(host, int(port), ranks, place, until, stack)
    else:
        meeting = stack.enter_context(dial(host, int(port), until))
        meeting.sendall((json.dumps([number, place]) + "\n").encode())
        places = json.loads(read_line(meeting))
    return _neighbours(number, places, mine, until, stack)


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


def _gather(
    host: str, port: int, ranks: int, mine: list[Any], until: float, stack: contextlib.ExitStack
) -> list[list[Any]]:
    places: dict[int, list[Any]] = {0: mine}
    callers = []
    with listening(host, port) as door:
        while len(places) < ranks:
            door.settimeout(max(0.1, until - time.monotonic()))
            try:
                caller = stack.enter_context(door.accept()[0])
            except TimeoutError:
                absent = [str(one) for one in range(ranks) if one not in places]
                raise TimeoutError(f"rank {', '.join(absent[:8])} never came") from None
            caller.settimeout(max(0.1, until - time.monotonic()))
            number, place = json.loads(read_line(caller))
            places[int(number)] = place
            callers.append(caller)
    whole = [places[one] for one in range(ranks)]
    for caller in callers:
        caller.sendall((json.dumps(whole) + "\n").encode())
    return whole


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


# --- over nodes


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


def search(nodes: Sequence[str], run_pair: Callable[[str, str], bool], *, again: int = 1) -> PairwiseVerdict:
    """Drives the pairwise search. A pair that fails is tried `again` times more: one that then passes is flaky.

    `run_pair` raises `CouldNotRun` where a pair cannot be tried; that blames nobody.
    """
    steps = rounds(nodes)
    try:
        step = next(steps)
        while True:
            step = steps.send(
                [PairTried(pair=pair, passed=tuple(_attempts(run_pair, *pair, again))) for pair in step.pairs]
            )
    except StopIteration as end:
        found: PairwiseVerdict = end.value
        return found


def _attempts(run_pair: Callable[[str, str], bool], one: str, other: str, again: int) -> list[bool]:
    passed: list[bool] = []
    while len(passed) <= again and not any(passed):
        try:
            passed.append(run_pair(one, other))
        except CouldNotRun:
            break
    return passed
