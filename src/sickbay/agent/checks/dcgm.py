"""`dcgmi diag`, levels 2 to 4, where DCGM is: pass, fail with the reason and the GPU, or could not run."""

import time
from collections.abc import Callable

from sickbay.agent.checks import CouldNotRun, Exercise
from sickbay.agent.dcgmi import Run, read_answer, run_dcgmi
from sickbay.knowledge.dcgm import COULD_NOT_RUN, UNREACHABLE
from sickbay.model.sign import Sign
from sickbay.signs.readers.dcgm_diag import DcgmDiag
from sickbay.signs.readers.dcgm_trial import FAIL, PASS, SKIP

# Seconds that DCGM may take: on eight GPUs about two minutes, half an hour, an hour and a half, and room for more.
WITHIN = {2: 900.0, 3: 3600.0, 4: 10_800.0}
SAID = 300


def dcgm_tests(run: Run = run_dcgmi) -> list[Exercise]:
    return [Exercise(f"dcgm_{level}", level, _diag(run, level, seconds)) for level, seconds in WITHIN.items()]


def _diag(run: Run, level: int, seconds: float) -> Callable[[float], str]:
    def exercise(until: float) -> str:
        left = min(seconds, until - time.monotonic())
        ran = run(("diag", "-r", str(level), "-j"), left)
        if ran.code is None:
            raise CouldNotRun(f"dcgmi diag -r {level} did not end within {left:.0f} s")
        return judged(ran.text, ran.code)

    return exercise


def judged(text: str, code: int) -> str:
    """What is wrong, by what dcgmi printed; empty if all that ran has passed. Raises `CouldNotRun`."""
    diag = DcgmDiag()
    signs = read_answer(diag, text)
    if diag.failures:
        return "; ".join(dict.fromkeys(_reason(sign) for sign in diag.failures))[:900]
    unable = [sign for sign in signs if sign.kind in {COULD_NOT_RUN, UNREACHABLE}]
    if unable:
        raise CouldNotRun(unable[0].text or unable[0].kind)
    passed, skipped, failed = (diag.results.get(status, 0) for status in (PASS, SKIP, FAIL))
    hardware = passed - diag.software_passed  # tests of the software alone prove nothing about a GPU
    if hardware <= 0:
        why = f"{skipped} tests were skipped" if skipped else "it printed no result of a test of the hardware"
        raise CouldNotRun(f"{why}: {' '.join(text.split())[:SAID]}" if not skipped else why)
    if code != 0 and not failed:
        raise CouldNotRun(f"dcgmi ended with code {code} though no test failed")
    return ""


def _reason(sign: Sign) -> str:
    device = sign.fields.get("device")
    where = "" if device is None else f" on GPU {device}"
    return f"{sign.kind}{where} ({sign.text})"
