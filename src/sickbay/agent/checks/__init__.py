"""What exercises a node's hardware, by level. A new check is one more `Exercise` in the list of a place."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sickbay.model.checkup import Tested

PASS, FAIL, COULD_NOT_RUN = "pass", "fail", "could_not_run"


class CouldNotRun(Exception):  # noqa: N818 - a verdict, not a mistake
    """The test could not do what it is for: that is neither health nor sickness."""


@dataclass(frozen=True, slots=True)
class Exercise:
    """`run` exercises something, not beyond a monotonic moment, and says what is wrong, if anything is."""

    name: str
    level: int
    run: Callable[[float], str]


def examine(tests: Sequence[Exercise], level: int, until: float) -> tuple[str, str, tuple[Tested, ...]]:
    """All tests up to a level, so that all that is wrong is known: the verdict, why, and each by itself."""
    results = tuple(_run(test, until) for test in tests if test.level <= level)
    if not results:
        return COULD_NOT_RUN, f"there is no test of level {level} here", ()
    for verdict in (FAIL, COULD_NOT_RUN):
        found = [result for result in results if result.verdict == verdict]
        if found:
            return verdict, "; ".join(f"{result.name}: {result.because}" for result in found)[:1000], results
    return PASS, "", results


def _run(test: Exercise, until: float) -> Tested:
    began = time.monotonic()
    if began >= until:
        verdict, because = COULD_NOT_RUN, "no time was left for it"
    else:
        try:
            because = test.run(until)
            verdict = FAIL if because else PASS
        except (CouldNotRun, OSError) as error:
            verdict, because = COULD_NOT_RUN, str(error)
        except Exception as error:  # noqa: BLE001 - a broken test proves nothing, and must not end the agent
            verdict, because = COULD_NOT_RUN, f"{type(error).__name__}: {error}"
    return Tested(name=test.name, verdict=verdict, seconds=round(time.monotonic() - began, 3), because=because[:500])
