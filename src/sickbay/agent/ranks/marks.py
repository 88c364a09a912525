"""Process marks: a word in the environment of all that a command has started, also of what left its process group.

torchrun starts each worker in a session of its own, so the group that the command leads is not all of it. A job that is
submitted from within a job (sbatch) has its environment, too, and is another: nothing of that counts there.
"""

import os
import signal
from collections.abc import Mapping
from contextlib import suppress

from sickbay.wire.proc import environment, others

MARK = "SICKBAY_RUN"  # of each `sickbay run` that is around a process, the outermost first
GAVE = "SICKBAY_GAVE"  # the job of Slurm in which a `sickbay run` gave which variables
SLURM_JOB = "SLURM_JOB_ID"
ROUNDS = 20  # whoever is killed may have started another just before


def marked_by(outer: str) -> tuple[str, str]:
    """A word of our own, and the variable's value for what we start."""
    mine = os.urandom(8).hex()
    return mine, f"{outer}:{mine}" if outer else mine


def given(env: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """The environment with more in it, and with a word of what that is."""
    if not more:
        return dict(env)
    names = {*filter(None, env.get(GAVE, "").partition(":")[2].split(",")), *more}
    return {**env, **more, GAVE: f"{env.get(SLURM_JOB, '')}:{','.join(sorted(names))}"}


def without_other_jobs(env: Mapping[str, str]) -> Mapping[str, str]:
    """What a `sickbay run` of the job that submitted this one gave is left out."""
    job, _, names = env.get(GAVE, "").partition(":")
    if not names or job == env.get(SLURM_JOB, ""):
        return env
    theirs = {*names.split(","), GAVE, MARK}
    return {name: value for name, value in env.items() if name not in theirs}


def kill_marked(mark: str) -> None:
    """All that carry it, except ourselves. No import happens here: a fork may call it."""
    for _ in range(ROUNDS):
        found = _marked(mark.encode(), os.environ.get(SLURM_JOB, "").encode())
        if not found:
            return
        for pid in found:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def _marked(mark: bytes, job: bytes) -> list[int]:
    begins, of_job = f"{MARK}=".encode(), f"{SLURM_JOB}=".encode()
    found = []
    for pid in others():
        with suppress(OSError):
            words = list(environment(pid))
            carries = any(word.startswith(begins) and mark in word[len(begins) :].split(b":") for word in words)
            if carries and next((word[len(of_job) :] for word in words if word.startswith(of_job)), b"") == job:
                found.append(int(pid))
    return found
