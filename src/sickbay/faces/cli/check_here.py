"""sickbay check without a name: the machine that it runs on."""

import os
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from types import FrameType
from typing import TYPE_CHECKING

import msgspec

from sickbay.faces.cli.columns import Column, columns, count, say
from sickbay.faces.cli.show import print_json, span
from sickbay.model.checkup import Tested
from sickbay.model.errors import BadInput

if TYPE_CHECKING:
    from sickbay.agent.checks import Exercise
    from sickbay.agent.checks.launched import Launch

FIGURES = 4  # that a line of the table shows; --json has them all
UNBOUNDED = 12_000.0  # seconds for a test that brings its own deadline
PASS = "pass"  # noqa: S105 - a verdict


def check_here(
    level: int, profile: str, only: Sequence[str], gpus: int | None, launch: "Launch | None" = None, *, as_json: bool
) -> int:
    from sickbay.agent.checks import examine
    from sickbay.agent.checks.node import ALL_REDUCE, node_tests

    if launch is None and ALL_REDUCE in only:
        raise BadInput(
            f"{ALL_REDUCE} needs the other ranks: start it by srun, torchrun or mpirun, "
            "or write --rank R --world N --at HOST:PORT"
        )
    tests, level, profile = chosen(node_tests(gpus, launch=launch), level, profile, only)
    until = time.monotonic() + sum(test.within or UNBOUNDED for test in tests)
    say(f"checking this machine: {count(len(tests), 'test')} …")
    with _ended_politely():
        verdict, because, results = examine(tests, level, until, profile, _tell)
    if as_json:
        found = {"node": socket.gethostname(), "level": level, "verdict": verdict, "because": because}
        print_json({**found, "tests": [_plain(one) for one in results]})
    else:
        _print(results)
        say(verdict)
    return 0 if verdict == PASS else 1


def who(
    rank: int | None, world: int | None, at: str | None, floor: float | None, within: float | None
) -> "Launch | None":
    """By flags, or as the launcher's environment says."""
    from sickbay.agent.checks.launched import Launch, is_place, launched

    told = launched(os.environ)
    if rank is not None and world is not None and at is not None:
        if rank >= world:
            raise BadInput(f"--rank {rank} of --world {world}: ranks are counted from 0, so write 0 to {world - 1}")
        told = Launch(rank, world, at)
    elif rank is not None or world is not None:
        raise BadInput("--rank, --world and --at belong together: write --rank R --world N --at HOST:PORT")
    elif at is not None:
        if told is None:
            raise BadInput("--at needs to know the ranks: write --rank R --world N too, or start it by srun or mpirun")
        told = replace(told, at=at)
    if at is not None and not is_place(at):
        raise BadInput(f"--at {at!r} is no address: write HOST:PORT, such as 10.0.0.1:29500")
    if told is None:
        for option, given in (("--floor", floor), ("--within", within)):
            if given is not None:
                raise BadInput(f"{option} is for all_reduce_nodes and --search: leave it out")
        return None
    return replace(told, floor=floor, seconds=within or told.seconds)


def chosen(
    tests: "Sequence[Exercise]", level: int, profile: str, only: Sequence[str]
) -> "tuple[list[Exercise], int, str]":
    """What will run. Whoever names tests gets them, whatever their level."""
    from sickbay.agent.checks import select
    from sickbay.agent.checks.profiles import UnknownProfile

    if only:
        if profile:
            raise BadInput("--only and --profile exclude each other: write one of them")
        names = [test.name for test in tests]
        for pattern in only:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise BadInput(f"there is no test {pattern!r} here: write one of {', '.join(names)}")
        named = [test for test in tests if any(fnmatchcase(test.name, pattern) for pattern in only)]
        some = [replace(test, contains=()) for test in named]  # both the short one and the long one, if both are named
        return some, max(level, *(test.level for test in some)), ""
    try:
        return select(tests, level, profile), level, profile
    except UnknownProfile as error:
        raise BadInput(str(error)) from error


@contextmanager
def _ended_politely() -> Iterator[None]:
    """Told to end it ends what it started first, as with ctrl-c."""

    def interrupt(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a signal handler
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _tell(name: str, tested: Tested | None) -> None:
    if tested is None:
        say(f"  {name} …")
    else:
        why = f": {tested.because}" if tested.because else ""
        say(f"  {name} {tested.verdict} ({span(tested.seconds)}){why}")


def _plain(tested: Tested) -> dict[str, object]:
    """Every key, also those that are empty: what a script reads should be there."""
    return {name: getattr(tested, name) for name in msgspec.structs.asdict(tested)}


def _print(results: Sequence[Tested]) -> None:
    columns(
        [
            Column("test", lambda one: one.name),
            Column("verdict", lambda one: one.verdict),
            Column("took", lambda one: span(one.seconds), right=True),
            Column("figures", lambda one: _figures(one.figures), cut=True),
            Column("because", lambda one: one.because),
        ],
        results,
    )


def _figures(figures: dict[str, float]) -> str:
    shown = [f"{name} {value:g}" for name, value in list(figures.items())[:FIGURES]]
    return ", ".join(shown) + (f" +{len(figures) - FIGURES}" if len(figures) > FIGURES else "")
