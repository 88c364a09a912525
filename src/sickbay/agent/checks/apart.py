"""Tests that run apart, each in a process of its own: `python -m sickbay.agent.checks.apart JOB WISHES`.

A GPU, a disk or a file system that hangs takes that process with it only; at the deadline it is killed, and the
verdict says so. What it found comes back as one JSON object.
"""

import contextlib
import importlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sickbay.agent.checks import CouldNotRun, Result
from sickbay.model.checkup import Verdict
from sickbay.wire.commands import Child, ChildEnd, die_with, finish_all

JOBS = {
    "gpu.kernel": "sickbay.agent.cuda.patterns:kernel",
    "gpu.memory_some": "sickbay.agent.cuda.patterns:memory_some",
    "gpu.memory": "sickbay.agent.cuda.patterns:memory",
    "gpu.matrix": "sickbay.agent.cuda.products:matrix",
    "gpu.bandwidth": "sickbay.agent.cuda.moves:bandwidth",
    "gpu.peers": "sickbay.agent.cuda.moves:peers",
    "gpu.sustained": "sickbay.agent.cuda.products:sustained",
    "gpu.nccl": "sickbay.agent.cuda.nccl:all_reduce",
    "cpu": "sickbay.agent.checks.stress:cpu",
    "dram": "sickbay.agent.checks.stress:dram",
    "disk": "sickbay.agent.checks.disk:exercise",
}


@dataclass(frozen=True, slots=True)
class ExerciseOutcome:
    verdict: Verdict
    because: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)


def start_child(argv: Sequence[str], env: Mapping[str, str] | None = None) -> Child:
    """Without the agent's limit of memory, and the first to go where memory is short."""
    child = Child(argv, env)
    with contextlib.suppress(OSError, ValueError):
        most = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.prlimit(child.pid, resource.RLIMIT_DATA, (most, most))
    path = f"/proc/{child.pid}/oom_score_adj"
    with contextlib.suppress(OSError), open(path, "w", encoding="ascii") as score:  # noqa: PTH123
        score.write("500")
    return child


def run_tool(argv: Sequence[str], until: float) -> ChildEnd:
    return start_child(argv).finish(until)


def start(job: str, wishes: Mapping[str, Any]) -> Child:
    # Every GPU is seen, whatever this process was restricted to: they are named by their place on the bus.
    env = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    return start_child([sys.executable, "-m", "sickbay.agent.checks.apart", job, json.dumps(wishes)], env)


def outcome(ended: ChildEnd, seconds: float) -> ExerciseOutcome:
    if ended.stuck:
        return ExerciseOutcome(
            Verdict.COULD_NOT_RUN, f"it hung in the kernel: not even a kill ended it within {ended.seconds:.0f} s"
        )
    if ended.code is None:
        return ExerciseOutcome(Verdict.COULD_NOT_RUN, f"it did not end within {seconds:.0f} s and was killed")
    try:
        said = json.loads(ended.out)
        return ExerciseOutcome(Verdict(said["verdict"]), said["because"], said["figures"])
    except (ValueError, KeyError, TypeError):
        died = f"signal {-ended.code} ended it" if ended.code < 0 else f"it ended with {ended.code} and no verdict"
        return ExerciseOutcome(Verdict.COULD_NOT_RUN, f"{died}: {ended.last}" if ended.last else died)


def apart(jobs: Sequence[tuple[str, Mapping[str, Any]]], until: float) -> list[ExerciseOutcome]:
    """Side by side, each until its verdict or the deadline."""
    began = time.monotonic()
    children: list[Child] = []
    try:
        children.extend(start(job, wishes) for job, wishes in jobs)
    except BaseException:
        finish_all(children, 0.0)
        raise
    return [outcome(ended, until - began) for ended in finish_all(children, until)]


def alone(job: str, wishes: Mapping[str, Any], until: float) -> Result:
    """One test that is the whole exercise."""
    return judged(apart([(job, wishes)], until)[0])


def judged(found: ExerciseOutcome) -> Result:
    if found.verdict == Verdict.COULD_NOT_RUN:
        raise CouldNotRun(found.because, found.figures)
    return Result(found.because, found.figures)


def together(names: Sequence[str], found: Sequence[ExerciseOutcome]) -> Result:
    """Of several alike (`GPU 0`, `GPU 1` …): what failed, else what could not run, and all figures."""
    figures = {
        f"{name.lower().replace(' ', '.')}.{key}": value
        for name, one in zip(names, found, strict=True)
        for key, value in one.figures.items()
    }
    for verdict in (Verdict.FAIL, Verdict.COULD_NOT_RUN):
        bad: dict[str, list[str]] = {}
        for name, one in zip(names, found, strict=True):
            if one.verdict == verdict:
                bad.setdefault(one.because, []).append(name)
        if bad:
            because = "; ".join(_says(who, why) for why, who in bad.items())
            return judged(ExerciseOutcome(verdict, because, figures))
    return Result("", figures)


def _says(who: Sequence[str], why: str) -> str:
    """`GPU 0 is used by …`, `GPU 0, GPU 3: …`."""
    return f"{', '.join(who)}{' ' if why.startswith('is ') else ': '}{why}"


# --- in the child


def perform(job: str, wishes: dict[str, Any]) -> ExerciseOutcome:
    from sickbay.agent.cuda.driver import Sick

    module, _, name = JOBS.get(job, job).partition(":")
    exercise: Callable[[dict[str, Any]], Result] = getattr(importlib.import_module(module), name)
    try:
        result = exercise(wishes)
    except Sick as error:
        return ExerciseOutcome(Verdict.FAIL, str(error))
    except CouldNotRun as error:
        return ExerciseOutcome(Verdict.COULD_NOT_RUN, str(error), error.figures)
    except OSError as error:
        return ExerciseOutcome(Verdict.COULD_NOT_RUN, str(error))
    return ExerciseOutcome(Verdict.FAIL if result.because else Verdict.PASS, result.because, result.figures)


def main() -> int:
    die_with(os.getppid())()  # no test goes on for nobody
    answer = os.dup(1)
    os.dup2(2, 1)  # libraries print; the verdict is alone on its stream
    found = perform(sys.argv[1], json.loads(sys.argv[2]))
    said = {"verdict": found.verdict, "because": found.because, "figures": dict(found.figures)}
    os.write(answer, json.dumps(said).encode())
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # a driver's library may hang while it is unloaded, after all has been said
