"""What exercises a node's hardware, by level. A new check is one more `Exercise` in the list of a place."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sickbay.agent.checks.profiles import UnknownProfile, wanted
from sickbay.model.checkup import Tested, Verdict

# What a test can prove well. A test that names none of them is taken to prove something of everything.
COMPONENTS = ("compute", "memory", "thermal", "pcie", "nvlink", "network", "cpu", "dram", "disk")


class CouldNotRun(Exception):  # noqa: N818 - a verdict, not a mistake
    """The test could not do what it is for: that is neither health nor sickness."""

    def __init__(self, because: str, figures: Mapping[str, float] | None = None) -> None:
        super().__init__(because)
        self.figures = dict(figures or {})


@dataclass(frozen=True, slots=True)
class Result:
    """`because`: what is wrong; empty if nothing is. `figures`: what was measured, by name with its unit."""

    because: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Exercise:
    """`run` exercises something, not beyond a monotonic moment, and says what is wrong, if anything is.

    `within`: seconds that it may take at most. `components`: what it proves. `contains`: shorter tests, which need not
    run beside it.
    """

    name: str
    level: int
    run: Callable[[float], str | Result]
    within: float | None = None
    components: tuple[str, ...] = ()
    contains: tuple[str, ...] = ()


Tell = Callable[[str, Tested | None], None]  # a test begins (None), and ends


def select(tests: Sequence[Exercise], level: int, profile: str = "") -> list[Exercise]:
    """Those up to a level; with a profile, of the higher levels those that it asks for. Raises `UnknownProfile`."""
    want = wanted(profile)
    chosen = [test for test in tests if want.takes(test.name, test.level, test.components, level)]
    contained = {name for test in chosen for name in test.contains}
    return [test for test in chosen if test.name not in contained]


def examine(
    tests: Sequence[Exercise], level: int, until: float, profile: str = "", tell: Tell | None = None
) -> tuple[Verdict, str, tuple[Tested, ...]]:
    """All tests up to a level, so that all that is wrong is known: the verdict, why, and each by itself."""
    try:
        chosen = select(tests, level, profile)
    except UnknownProfile as error:
        return Verdict.COULD_NOT_RUN, str(error), ()
    results = tuple(_told(test, until, tell) for test in chosen)
    if not results:
        return Verdict.COULD_NOT_RUN, f"there is no test of level {level} here", ()
    for verdict in (Verdict.FAIL, Verdict.COULD_NOT_RUN):
        found = [result for result in results if result.verdict == verdict]
        if found:
            return verdict, "; ".join(f"{result.name}: {result.because}" for result in found)[:1000], results
    return Verdict.PASS, "", results


def _told(test: Exercise, until: float, tell: Tell | None) -> Tested:
    if tell is not None:
        tell(test.name, None)
    result = _run(test, until)
    if tell is not None:
        tell(test.name, result)
    return result


def _run(test: Exercise, until: float) -> Tested:
    began = time.monotonic()
    figures: Mapping[str, float] = {}
    if began >= until:
        verdict, because = Verdict.COULD_NOT_RUN, "no time was left for it"
    else:
        try:
            result = test.run(until if test.within is None else min(until, began + test.within))
            because, figures = (result, {}) if isinstance(result, str) else (result.because, result.figures)
            verdict = Verdict.FAIL if because else Verdict.PASS
        except CouldNotRun as error:
            verdict, because, figures = Verdict.COULD_NOT_RUN, str(error), error.figures
        except OSError as error:
            verdict, because = Verdict.COULD_NOT_RUN, str(error)
        except Exception as error:  # noqa: BLE001 - a broken test proves nothing, and must not end the agent
            verdict, because = Verdict.COULD_NOT_RUN, f"{type(error).__name__}: {error}"
    return Tested(
        name=test.name,
        verdict=verdict,
        seconds=round(time.monotonic() - began, 3),
        because=because[:500],
        figures={name: round(value, 3) for name, value in figures.items()},
    )
