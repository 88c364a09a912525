"""Jobs that follow one another in one directory and end, or stand still, at a chosen line of `sickbay.train`.

A process of its own, because it forks (see `train_lives`). What it found is JSON on stdout.
"""

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from shutil import copytree, rmtree
from tempfile import TemporaryDirectory

from tests.support.train_lives import BROKEN, FINE, TOO_LATE, committed, ended, heard, must, save, stands, stopping

from sickbay import train
from sickbay.train import layout
from sickbay.train.numbering import owner_of
from sickbay.train.validity import examine

AFTER_A = {"SICKBAY_CONTINUES": "a/3"}


def lives(
    directory: Path,
    job: str,
    attempt: int,
    steps: Sequence[int],
    told: dict[str, str] | None = None,
    *,
    at: int = 0,
    how: signal.Signals = signal.SIGKILL,
) -> tuple[int, int]:
    """An attempt of a job in a child, as its cluster starts it; its pid, and where it says what was committed."""
    ear, mouth = os.pipe()
    pid = os.fork()
    if pid:
        os.close(mouth)
        return pid, ear
    code = BROKEN
    try:
        os.environ |= {"SICKBAY_CHECKPOINT_DIR": str(directory), "SICKBAY_JOB_ID": job, "SICKBAY_ATTEMPT": str(attempt)}
        os.environ |= told or {}
        trace = stopping(at, how)
        threading.settrace(trace)
        sys.settrace(trace)
        checkpoints = train.Checkpoints(keep=2)
        os.write(mouth, f"begun {checkpoints.resumed.step if checkpoints.resumed else -1}\n".encode())
        for step in steps:
            save(checkpoints, step)
            checkpoints.wait()
            os.write(mouth, f"{step}\n".encode())
        code = FINE
    except train.CheckpointError as error:
        os.write(mouth, f"error {type(error).__name__} {error}\n".encode())
        code = TOO_LATE
    finally:
        os._exit(code)


def began(said: list[str]) -> int | None:
    return next((int(line.removeprefix("begun ")) for line in said if line.startswith("begun ")), None)


def whole_at(directory: Path, step: int) -> bool:
    """Whether some attempt has a whole checkpoint of this step."""
    numbers = (n for n in layout.attempts(directory) if step in layout.steps(directory, n))
    return any(examine(directory, layout.CheckpointName(n, step))[0] is not None for n in numbers)


def never_mixed(directory: Path, *stories: object) -> None:
    """Every attempt goes on from one of its own job."""
    for number in layout.begun(directory):
        lineage = layout.read_lineage(directory, number)
        if lineage is not None and lineage.parent is not None:
            own, theirs = owner_of(directory, number), owner_of(directory, lineage.parent.attempt)
            must(own == theirs, "attempt", number, "of", own, "goes on from", lineage.parent, "of", theirs, *stories)


def killed(root: Path, every: int, first: int) -> dict[str, int]:
    """kill -9 at every line of a job that continues another from a step of its own choice: all goes on from there."""
    template, directory = root / "template", root / "run"
    must(ended(lives(template, "a", 1, [10, 20])[0]) == FINE, "the first job")
    told = AFTER_A | {"SICKBAY_FROM_STEP": "10"}
    for deaths, at in enumerate(range(first, 1_000_000, every)):
        copytree(template, directory)
        pid, ear = lives(directory, "b", 1, [11, 12, 13], told, at=at)
        code, said = ended(pid), heard(ear)
        saved = max(committed(said), default=10)
        pid, ear = lives(directory, "b", 2, [14], told)
        then = heard(ear)
        must(ended(pid) == FINE, "line", at, then)
        parent = began(then)
        must(parent is not None and saved <= parent <= min(saved + 9, 13), "line", at, said, then)
        must(whole_at(directory, 20), "line", at, "what was left on wish is gone")
        pid, ear = lives(directory, "stranger", 1, [99])
        must(ended(pid) == TOO_LATE and heard(ear)[0].startswith("error NotOurs"), "line", at, "a stranger began")
        rmtree(directory)
        if code == FINE:
            return {"deaths": deaths}
        must(code == -signal.SIGKILL, "line", at, "exit", code, said)
    raise AssertionError("it never came to an end")


def late(root: Path, every: int, first: int) -> dict[str, int]:
    """The last attempt of a job stands still at every line while another continues it: its word counts no more."""
    template, directory = root / "template", root / "run"
    must(ended(lives(template, "a", 1, [10])[0]) == FINE, "the first attempt")
    for stops, at in enumerate(range(first, 1_000_000, every)):
        copytree(template, directory)
        pid, ear = lives(directory, "a", 3, [20, 30], at=at, how=signal.SIGSTOP)
        if not stands(pid):
            heard(ear)
            return {"stops": stops}
        second, its_ear = lives(directory, "b", 1, [71], AFTER_A)
        said = heard(its_ear)
        must(ended(second) == FINE and (began(said) or 0) >= 10, "line", at, said)
        os.kill(pid, signal.SIGCONT)
        must(ended(pid) in {FINE, TOO_LATE}, "line", at, "the thawed one is broken", heard(ear))
        third, its_ear = lives(directory, "b", 2, [], AFTER_A)
        said = heard(its_ear)
        must(ended(third) == FINE and began(said) == 71, "line", at, "then", said)
        rmtree(directory)
    raise AssertionError("it never came to an end")


def strangers(root: Path, every: int, first: int) -> dict[str, int]:
    """A job stands still at every line in a new directory, and a strange one begins: weights are never mixed."""
    directory, both = root / "run", 0
    for stops, at in enumerate(range(first, 1_000_000, every)):
        pid, ear = lives(directory, "a", 1, [10, 20], at=at, how=signal.SIGSTOP)
        if not stands(pid):
            heard(ear)
            return {"stops": stops, "began_first": both}
        second, its_ear = lives(directory, "b", 1, [11])
        refused = ended(second) == TOO_LATE
        said = heard(its_ear)
        must(not refused or said[0].startswith("error NotOurs"), "line", at, said)
        both += not refused
        os.kill(pid, signal.SIGCONT)
        ends = ended(pid)
        first_said = heard(ear)
        must(ends == FINE if refused else ends == TOO_LATE, "line", at, "a", first_said, "b", said)
        goes_on = set()
        for attempt, job in ((2, "a"), (2, "b"), (3, "a"), (3, "b"), (4, "a"), (4, "b")):
            again, ear = lives(directory, job, attempt, [100 * attempt])
            heard(ear)
            if ended(again) == FINE:
                goes_on.add(job)
        must(goes_on == {"a" if refused else "b"}, "line", at, "a", first_said, "b", said, "then", goes_on)
        never_mixed(directory, "line", at)
        rmtree(directory)
    raise AssertionError("it never came to an end")


SCENES = {scene.__name__: scene for scene in (killed, late, strangers)}


def main() -> None:
    logging.disable()
    name, root, *numbers = sys.argv[1:]
    with TemporaryDirectory(dir=root) as directory:
        sys.stdout.write(json.dumps(SCENES[name](Path(directory), *map(int, numbers))))


if __name__ == "__main__":
    main()
