"""`all_reduce_perf` of nccl-tests: where NCCL is built into it and to be found nowhere else."""

import re

from sickbay.agent.checks.apart import ExerciseOutcome, run_tool
from sickbay.agent.checks.network import TOOLS, find
from sickbay.model.checkup import Verdict

PLACES = (*TOOLS, "/opt/nccl-tests/build", "/usr/local/nccl-tests/build", "/opt/nccl-tests")
_WRONG = re.compile(r"#\s*Out of bounds values\s*:\s*(\d+)")
_SPEED = re.compile(r"#\s*Avg bus bandwidth\s*:\s*([\d.]+)")


def all_reduce_perf(ranks: int, until: float) -> ExerciseOutcome | None:
    """None: the tool is not there."""
    path = find("all_reduce_perf", PLACES)
    if not path:
        return None
    ended = run_tool([path, "-b", "1G", "-e", "1G", "-g", str(ranks), "-c", "1"], until)
    if ended.code is None:
        return ExerciseOutcome(Verdict.COULD_NOT_RUN, f"all_reduce_perf did not end within {ended.seconds:.0f} s")
    return judged(ended.out, ended.code, ended.last, ranks)


def judged(text: str, code: int, last: str, ranks: int) -> ExerciseOutcome:
    wrong, speed = _WRONG.search(text), _SPEED.search(text)
    if speed is None or wrong is None:
        return ExerciseOutcome(Verdict.COULD_NOT_RUN, f"all_reduce_perf ended with {code}: {last}")
    figures = {"ranks": float(ranks), "busbw_gbps": float(speed[1])}
    if int(wrong[1]):
        return ExerciseOutcome(Verdict.FAIL, f"all_reduce_perf: {wrong[1]} results out of bounds", figures)
    return ExerciseOutcome(Verdict.PASS, "", figures)
