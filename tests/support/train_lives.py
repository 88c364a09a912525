"""Lives of a training that end, or stand still, at a chosen line of `sickbay.train`.

A process of its own, because it forks: each life is a child of it that counts the lines that it runs and sends itself
a signal at the one that was asked for. What it found is JSON on stdout.
"""

import json
import logging
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from shutil import copytree, rmtree
from types import FrameType
from typing import Any

from sickbay import train
from sickbay.train import foreign

OURS = f"{os.sep}sickbay{os.sep}train{os.sep}"
FINE, TOO_LATE, BROKEN = 0, 3, 4


def stopping(at: int, with_signal: signal.Signals) -> Callable[[FrameType, str, Any], Any]:
    """A trace function that signals this process when it comes to the `at`-th line."""
    lines = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        if OURS not in frame.f_code.co_filename:
            return None
        if event == "line":
            lines += 1
            if lines == at:
                os.kill(os.getpid(), with_signal)
        return trace

    return trace


def live(
    directory: Path,
    attempt: int,
    steps: Sequence[int],
    *,
    keep: int,
    at: int = 0,
    how: signal.Signals = signal.SIGKILL,
    rests_after: int = 0,
    near: Path | None = None,
    adopts: bool = False,
) -> tuple[int, int]:
    """Begin an attempt in a child and save these steps; its pid, and where it says what was committed.

    With `near` only every other step is waited for until it is uploaded; of the others it says when they are near.
    """
    ear, mouth = os.pipe()
    pid = os.fork()
    if pid:
        os.close(mouth)
        return pid, ear
    code = BROKEN
    try:
        trace = stopping(at, how)
        threading.settrace(trace)
        sys.settrace(trace)
        checkpoints = train.Checkpoints(directory, attempt=attempt, rank=0, world_size=1, keep=keep, near=near)
        os.write(mouth, f"begun {checkpoints.resumed.step if checkpoints.resumed else -1}\n".encode())
        for step in steps:
            (adopt if adopts else save)(checkpoints, step)
            if near is not None and checkpoints._saves.thread is not None:
                checkpoints._saves.thread.join()
                os.write(mouth, f"near {step}\n".encode())
                if step % 20:
                    continue
            checkpoints.wait()
            os.write(mouth, f"{step}\n".encode())
            if step == rests_after:
                os.kill(os.getpid(), signal.SIGSTOP)
        code = FINE
    except train.CheckpointError as error:
        os.write(mouth, f"error {error}\n".encode())
        code = TOO_LATE
    finally:
        os._exit(code)


def save(checkpoints: train.Checkpoints, step: int) -> None:
    checkpoints.save(step, {"attempt": checkpoints.attempt, "step": step, "weights": bytearray(300)})


def adopt(checkpoints: train.Checkpoints, step: int) -> None:
    with foreign.saving(checkpoints, step) as directory:
        for name in ("one", "two"):
            (directory / name).mkdir(parents=True)
            (directory / name / "state").write_bytes(bytes(300))


def heard(ear: int) -> list[str]:
    """Everything that a life had said when it ended."""
    with os.fdopen(ear, encoding="utf-8") as file:
        return file.read().splitlines()


def committed(said: list[str]) -> list[int]:
    return [int(line) for line in said if line.isdecimal()]


def ended(pid: int) -> int:
    """Exit code; negative: the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def stands(pid: int) -> bool:
    """True: it stands still. False: it ended before it came to its line."""
    _, status = os.waitpid(pid, os.WUNTRACED)
    return os.WIFSTOPPED(status)


def whole(directory: Path) -> tuple[int, int]:
    """The newest whole checkpoint (0, -1: none)."""
    found = train.latest_valid(directory)
    return (found.attempt, found.step) if found else (0, -1)


def must(fact: bool, *story: object) -> None:
    if not fact:
        raise AssertionError(" ".join(map(str, story)))


def killed(root: Path, every: int, first: int, *, adopts: bool = False) -> dict[str, int]:
    """kill -9 at every line of a second attempt: nothing that was committed is lost, and a third goes on from it."""
    template, directory = root / "template", root / "run"
    must(ended(live(template, 1, [10, 20, 30], keep=2, adopts=adopts)[0]) == FINE, "the first attempt")
    for deaths, at in enumerate(range(first, 1_000_000, every)):
        copytree(template, directory)
        pid, ear = live(directory, 2, [40, 50, 60], keep=2, at=at, adopts=adopts)
        code, said = ended(pid), heard(ear)
        newest = max(committed(said), default=30)
        attempt, step = whole(directory)
        must(newest <= step <= newest + 10, "line", at, said, "but latest_valid is", attempt, step)
        pid, ear = live(directory, 3, [step + 1], keep=2, adopts=adopts)
        said = heard(ear)
        must(ended(pid) == FINE and said == [f"begun {step}", f"{step + 1}"], "line", at, "then", said)
        must(whole(directory) == (3, step + 1), "line", at, whole(directory))
        rmtree(directory)
        if code == FINE:
            return {"deaths": deaths}
        must(code == -signal.SIGKILL, "line", at, "exit", code, said)
    raise AssertionError("it never came to an end")


def near_killed(root: Path, every: int, first: int) -> dict[str, int]:
    """kill -9 at every line of an attempt that saves on its node first: what is near, or uploaded, is found again.

    Then the node is lost, and what was uploaded is still there.
    """
    template, directory, near = root / "template", root / "run", root / "run" / "near"
    must(ended(live(template / "far", 1, [10, 20], keep=2, near=template / "near")[0]) == FINE, "the first attempt")
    resumed_near = 0
    for deaths, at in enumerate(range(first, 1_000_000, every)):
        copytree(template, directory)
        pid, ear = live(directory / "far", 2, [30, 40, 50], keep=2, at=at, near=near)
        code, said = ended(pid), heard(ear)
        kept = max((int(line.removeprefix("near ")) for line in said if line.startswith("near ")), default=20)
        durable = max(committed(said), default=20)
        must(whole(directory / "far")[1] >= durable, "line", at, said, "but latest_valid is", whole(directory / "far"))
        pid, ear = live(directory / "far", 3, [], keep=2, near=near)
        told = heard(ear)
        must(ended(pid) == FINE and told[0].startswith("begun "), "line", at, told)
        begun = int(told[0].removeprefix("begun "))
        must(kept <= begun <= kept + 10, "line", at, said, "but begun from", begun)
        resumed_near += begun > durable
        rmtree(near)
        durable = max(durable, whole(directory / "far")[1])
        pid, ear = live(directory / "far", 4, [60], keep=2, near=near)
        told = heard(ear)
        must(ended(pid) == FINE and int(told[0].removeprefix("begun ")) >= durable, "line", at, "without near", told)
        must(whole(directory / "far") == (4, 60), "line", at, whole(directory / "far"))
        rmtree(directory)
        if code == FINE:
            return {"deaths": deaths, "resumed_near": resumed_near}
        must(code == -signal.SIGKILL, "line", at, "exit", code, said)
    raise AssertionError("it never came to an end")


def frozen(root: Path, every: int, first: int, *, adopts: bool = False) -> dict[str, int]:
    """A first attempt stands still at every line, a second one begins, then the first goes on to its end."""
    stops = 0
    directory = root / "run"
    for at in range(first, 1_000_000, every):
        for saves in ((), (71, 72)):
            pid, ear = live(directory, 1, [10, 20, 30, 40], keep=2, at=at, how=signal.SIGSTOP, adopts=adopts)
            if not stands(pid):
                heard(ear)
                return {"stops": stops}
            stops += 1
            second, its_ear = live(directory, 2, saves, keep=2, adopts=adopts)
            must(ended(second) == FINE, "line", at, "second attempt")
            parent = int(heard(its_ear)[0].removeprefix("begun "))
            os.kill(pid, signal.SIGCONT)
            must(ended(pid) in {FINE, TOO_LATE}, "line", at, "the thawed one is broken")
            heard(ear)
            expected = (2, saves[-1]) if saves else (1, parent) if parent >= 0 else (0, -1)
            must(whole(directory) == expected, "line", at, whole(directory), "not", expected)
            third, its_ear = live(directory, 3, [], keep=2)
            must(ended(third) == FINE, "line", at, "third attempt")
            must(heard(its_ear) == [f"begun {expected[1]}"], "line", at, "third attempt")
            rmtree(directory)
    raise AssertionError("it never came to an end")


def near_frozen(root: Path, every: int, first: int) -> dict[str, int]:
    """The same where both save on one node first: the thawed one takes nothing away that the second goes on from."""
    stops, directory, near = 0, root / "run", root / "run" / "near"
    for at in range(first, 1_000_000, every):
        for saves in ((), (80,)):
            pid, ear = live(directory / "far", 1, [10, 20, 30, 40], keep=2, at=at, how=signal.SIGSTOP, near=near)
            if not stands(pid):
                heard(ear)
                return {"stops": stops}
            stops += 1
            second, its_ear = live(directory / "far", 2, saves, keep=2, near=near)
            must(ended(second) == FINE, "line", at, "second attempt")
            parent = int(heard(its_ear)[0].removeprefix("begun "))
            os.kill(pid, signal.SIGCONT)
            must(ended(pid) in {FINE, TOO_LATE}, "line", at, "the thawed one is broken")
            said = heard(ear)
            third, its_ear = live(directory / "far", 3, [100], keep=2, near=near)
            told, expected = heard(its_ear), saves[0] if saves else parent
            must(ended(third) == FINE and told[0] == f"begun {expected}", "line", at, expected, told, said)
            must(whole(directory / "far") == (3, 100), "line", at, whole(directory / "far"))
            rmtree(directory)
    raise AssertionError("it never came to an end")


def begun_over(root: Path, every: int, first: int) -> dict[str, int]:
    """A second attempt stands still at every line of its beginning, while the first goes on to save and to remove."""
    directory, began, refused = root / "run", 0, 0
    for at in range(first, 1_000_000, every):
        old, ear = live(directory, 1, [10, 20, 30, 40, 50], keep=1, rests_after=30)
        must(stands(old), "the first attempt did not come to its rest")
        second, its_ear = live(directory, 2, [], keep=1, at=at, how=signal.SIGSTOP)
        stopped = stands(second)
        os.kill(old, signal.SIGCONT)
        must(ended(old) in {FINE, TOO_LATE}, "line", at, "the first one is broken")
        newest = max(committed(heard(ear)))
        if stopped:
            os.kill(second, signal.SIGCONT)
            must(ended(second) in {FINE, TOO_LATE}, "line", at, "the second one is broken")
        (said,) = heard(its_ear)
        if said.startswith("begun "):
            began, parent = began + 1, int(said.removeprefix("begun "))
            must(parent >= 30, "line", at, "began from", parent)
            must(whole(directory) == (1, parent), "line", at, "began from", parent, "but now", whole(directory))
        else:
            refused += 1
        third, its_ear = live(directory, 3, [60], keep=1)
        told = heard(its_ear)
        must(ended(third) == FINE and int(told[0].removeprefix("begun ")) >= 30, "line", at, "third attempt", told)
        must(newest >= 30 and whole(directory) == (3, 60), "line", at, whole(directory))
        rmtree(directory)
        if not stopped:
            return {"began": began, "refused": refused}
    raise AssertionError("it never came to an end")


def both_frozen(root: Path, pairs: int, seed: int) -> dict[str, int]:
    """Two attempts, each stopped at a line by chance and thawed in turn, over a newest checkpoint that is corrupt.

    The second must then begin from one that the first may be about to remove: what it began from stays.
    """
    chance, directory = random.Random(seed), root / "run"
    began = refused = from_old = 0
    for _ in range(pairs):
        first, ear = live(directory, 1, [10, 20, 30], keep=1, at=chance.randint(400, 1100), how=signal.SIGSTOP)
        if not stands(first):
            heard(ear)
            rmtree(directory)
            continue
        for shard in directory.glob("attempt-1/step-[23]0/rank-0.shard"):
            shard.write_bytes(b"rot")
        second, its_ear = live(directory, 2, [], keep=1, at=chance.randint(1, 400), how=signal.SIGSTOP)
        stopped = stands(second)
        os.kill(first, signal.SIGCONT)
        ended(first)
        heard(ear)
        if stopped:
            os.kill(second, signal.SIGCONT)
        code = ended(second) if stopped else FINE
        (said,) = heard(its_ear)
        if said.startswith("begun "):
            parent = int(said.removeprefix("begun "))
            began, from_old = began + 1, from_old + (parent >= 0)
            must(whole(directory)[1] == parent, "began from", parent, "but now", whole(directory))
        else:
            must(code == TOO_LATE, said)
            refused += 1
        rmtree(directory)
    return {"began": began, "from_old": from_old, "refused": refused}


if __name__ == "__main__":
    logging.disable()
    scenes: dict[str, Callable[[Path, int, int], dict[str, int]]] = {
        "killed": killed,
        "near_killed": near_killed,
        "frozen": frozen,
        "near_frozen": near_frozen,
        "adopted_killed": partial(killed, adopts=True),
        "adopted_frozen": partial(frozen, adopts=True),
        "both_frozen": both_frozen,
        "begun_over": begun_over,
    }
    print(json.dumps(scenes[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))))
