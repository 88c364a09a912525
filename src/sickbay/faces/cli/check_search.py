"""sickbay check --search: which host breaks a collective, by two rounds of pairs, from this machine."""

import json
import random
import re
import shlex
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Final

from sickbay.agent.checks.apart import start_child
from sickbay.agent.checks.pairwise import Pair, PairTried, PairwiseVerdict, Round, rounds
from sickbay.faces.cli.columns import Column, columns, count, say
from sickbay.faces.cli.show import clean, print_json
from sickbay.model.errors import BadInput
from sickbay.wire.commands import Child, ChildEnd, finish_all

TEMPLATE: Final = "ssh {host}"
AT_ONCE: Final = 64  # pairs: twice as many connections from here
WITHIN: Final = 60.0  # seconds for a pair, without the way there and back
WAY: Final = 30.0  # seconds in which a host answers at all
LOOK_EVERY: Final = 0.02
AGAIN: Final = 1  # a pair that fails is tried once more: one that then passes is flaky, and blames nobody
PORTS: Final = (20_000, 29_999)
PASS, FAIL, COULD_NOT_RUN, MIXED = "pass", "fail", "could_not_run", "sometimes"
# What goes to the other side's shell must mean nothing to it.
_HOST = re.compile(r"(?:[A-Za-z0-9_.][A-Za-z0-9_.\-]*@)?[A-Za-z0-9_.][A-Za-z0-9_.\-]*(?:/[A-Za-z0-9_.\-]+)?\Z")
_ADDRESS = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.\-]*\Z")


@dataclass(frozen=True, slots=True)
class Reach:
    """How a command runs on a host, and where other hosts reach that one."""

    template: Sequence[str]
    addresses: dict[str, str]
    within: float = WITHIN
    floor: float | None = None
    rest: Callable[[], None] = lambda: time.sleep(LOOK_EVERY)  # between two looks; raises when told to end

    def start(self, host: str, *words: str) -> Child:
        return start_child([*(part.replace("{host}", host) for part in self.template), "sickbay", *words])

    def ranks(self, pair: Pair) -> Iterator[Child]:
        """One after the other, so that whoever starts them can end the first if the second cannot be started."""
        at = f"{self.addresses[pair[0]]}:{random.randint(*PORTS)}"  # noqa: S311 - any port will do
        floor = () if self.floor is None else ("--floor", f"{self.floor:g}")
        for rank, host in enumerate(pair):
            yield self.start(
                host, "check", "--only", "all_reduce_nodes", "--rank", str(rank), "--world", "2", "--at", at,
                "--within", f"{self.within:g}", *floor, "--json",
            )  # fmt: skip


@dataclass(slots=True)
class PairTrial:
    """One pair: each attempt passed or not; `unrun` says why there is none."""

    pair: Pair
    passed: list[bool] = field(default_factory=list)
    because: str = ""
    unrun: int = 0
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        return any(self.passed) or len(self.passed) > AGAIN or self.unrun > AGAIN

    @property
    def verdict(self) -> str:
        if not self.passed:
            return COULD_NOT_RUN
        return PASS if all(self.passed) else MIXED if any(self.passed) else FAIL

    def plain(self) -> dict[str, Any]:
        return {
            "hosts": list(self.pair), "verdict": self.verdict, "because": self.because, "tries": self.passed,
            "figures": self.figures,
        }  # fmt: skip


def check_search(hosts: str, template: str | None, within: float | None, floor: float | None, *, as_json: bool) -> int:
    words, addresses = template_of(template or TEMPLATE), addresses_of(hosts)
    with _ends_between() as rest:
        reach = Reach(words, addresses, within or WITHIN, floor, rest)
        away = unreachable(reach)
        for host, why in away.items():
            say(f"{host} cannot be reached: {clean(why)}")
        here = [host for host in reach.addresses if host not in away]
        tried, verdict = searched(here, reach)
    found = _plain(tried, verdict, away)
    if as_json:
        print_json(found)
    else:
        _print(found, reach.addresses)
    return 0 if not found["bad"] and not found["unknown"] else 1


@contextmanager
def _ends_between() -> Iterator[Callable[[], None]]:
    """Told to end, it ends at the next rest: in the middle of a start it would lose the process that it just made."""
    told: list[int] = []

    def hear(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a signal handler
        told.append(signum)

    def rest() -> None:
        if not told:
            time.sleep(LOOK_EVERY)
        if told:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield rest
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def template_of(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise BadInput(f"--with {text!r} cannot be read ({error}): write a command such as 'ssh {{host}}'") from error
    if not any("{host}" in word for word in words):
        raise BadInput(f"--with {text!r} does not say where the host goes: write {{host}}, such as 'ssh {{host}}'")
    return words


def addresses_of(text: str) -> dict[str, str]:
    """`HOST` or `HOST=ADDRESS`: the name for the template, and the address at which other hosts reach it."""
    found: dict[str, str] = {}
    for one in (part.strip() for part in text.split(",")):
        host, _, address = one.partition("=")
        address = address or host.rpartition("@")[2]
        if not _HOST.match(host) or not _ADDRESS.match(address):
            raise BadInput(f"--search {one!r} is no host: write names with commas between, or NAME=ADDRESS")
        if host in found:
            raise BadInput(f"--search names {host} twice: name each host once")
        found[host] = address
    if len(found) < 2:
        raise BadInput("--search needs at least two hosts to make a pair: write HOST,HOST")
    return found


# --- trying


def unreachable(reach: Reach) -> dict[str, str]:
    """Asked first, so that later a host without an answer is one that was there before."""
    away: dict[str, str] = {}
    waiting = list(reach.addresses)
    while waiting:
        some, waiting = waiting[: 2 * AT_ONCE], waiting[2 * AT_ONCE :]
        with _children() as children:
            for host in some:
                children.append(_started(reach.start, host, "--version"))
            until = time.monotonic() + WAY
            while time.monotonic() < until and not all(child.ended() for child in children):
                reach.rest()
            mine = list(children)
            children.clear()
            ended = finish_all(mine, 0.0)
        away.update({host: why for host, one in zip(some, ended, strict=True) if (why := _no_answer(one))})
    return away


def _no_answer(ended: ChildEnd) -> str:
    if ended.code is None:
        return f"no answer within {WAY:.0f} s"
    if ended.code == 0 and "sickbay" in ended.out:
        return ""
    if ended.code == 127:
        return f"sickbay is not to be found there: {ended.last}"
    return (
        f"the command ended with {ended.code}: {ended.last}" if ended.last else f"the command ended with {ended.code}"
    )


def _started(start: Callable[..., Child], *args: str) -> Child:
    try:
        return start(*args)
    except OSError as error:
        raise BadInput(f"--with: {error.filename or 'the command'} cannot be run here: {error.strerror}") from error


@contextmanager
def _children() -> Iterator[list[Child]]:
    """Whatever is in the list when it ends is ended with it."""
    children: list[Child] = []
    try:
        yield children
    finally:
        finish_all(children, 0.0)


def searched(hosts: Sequence[str], reach: Reach) -> tuple[list[list[PairTrial]], PairwiseVerdict]:
    """Drives the two rounds, and tells after each what it showed."""
    steps = rounds(hosts)
    tried: list[list[PairTrial]] = []
    try:
        step: Round = next(steps)
        while True:
            say(f"round {len(tried) + 1}: {count(len(step.pairs), 'pair')} …")
            tried.append([trial for wave in step.waves for trial in _wave(wave, reach)])
            _tell(len(tried), tried[-1])
            step = steps.send([PairTried(pair=one.pair, passed=tuple(one.passed)) for one in tried[-1]])
    except StopIteration as end:
        verdict: PairwiseVerdict = end.value
        return tried, verdict


def _tell(number: int, trials: Sequence[PairTrial]) -> None:
    passed = sum(trial.verdict == PASS for trial in trials)
    suspects = ", ".join(_suspects(trials))
    say(
        f"round {number}: {passed} of {count(len(trials), 'pair')} passed{'; suspects: ' if suspects else ''}{suspects}"
    )


def _suspects(trials: Sequence[PairTrial]) -> list[str]:
    """Whoever passed with nobody."""
    fine = {host for trial in trials if trial.verdict == PASS for host in trial.pair}
    return list(dict.fromkeys(host for trial in trials for host in trial.pair if host not in fine))


def _wave(pairs: Sequence[Pair], reach: Reach) -> list[PairTrial]:
    """Its pairs side by side, so many at once; each until it passed, or failed often enough."""
    trials = [PairTrial(pair) for pair in pairs]
    waiting, running = list(trials), dict[int, tuple[PairTrial, list[Child], float]]()
    try:
        while waiting or running:
            while waiting and len(running) < AT_ONCE:
                trial, mine = waiting.pop(0), list[Child]()
                running[id(trial)] = (trial, mine, time.monotonic() + reach.within + WAY)
                for child in reach.ranks(trial.pair):
                    mine.append(child)
            for trial, mine, until in list(running.values()):
                if all(child.ended() for child in mine) or _settled(mine) or time.monotonic() >= until:
                    del running[id(trial)]
                    judge(trial, finish_all(mine, 0.0))
                    if not trial.over:
                        waiting.append(trial)
            reach.rest()
    finally:
        finish_all([child for _, mine, _ in running.values() for child in mine], 0.0)
    return trials


def _settled(children: Sequence[Child]) -> bool:
    """One side could not take part, so that the other waits for nobody; it holds a port, and no GPU yet."""
    return any(child.ended() and _verdict(child.so_far())[0] == COULD_NOT_RUN for child in children)


def judge(trial: PairTrial, ended: Sequence[ChildEnd]) -> None:
    """A side without a verdict never came, or went away: it was reached before. That is a failed pair."""
    said = [_said(one) for one in ended]
    verdicts = [verdict for verdict, _, _ in said]
    why = "; ".join(
        dict.fromkeys(f"{host}: {because}" for host, (_, because, _) in zip(trial.pair, said, strict=True) if because)
    )
    if all(verdict == PASS for verdict in verdicts):
        trial.passed.append(True)
        trial.figures = {key: value for key, value in said[0][2].items() if isinstance(value, (int, float))}
    # Whoever says that it could not take part explains why the other waited in vain.
    elif COULD_NOT_RUN in verdicts:
        trial.unrun += 1
        trial.because = why
    else:
        trial.passed.append(False)
        trial.because = why


def _said(ended: ChildEnd) -> tuple[str, str, dict[str, Any]]:
    verdict, because, figures = _verdict(ended.out)
    if verdict:
        return verdict, because, figures
    if ended.code is None:
        return "", f"no verdict within {ended.seconds:.0f} s", {}
    return "", f"ended with {ended.code} and no verdict" + (f": {ended.last}" if ended.last else ""), {}


def _verdict(out: str) -> tuple[str, str, dict[str, Any]]:
    """What a side says of its test; empty: nothing that can be read."""
    try:
        test = json.loads(out[out.index("{") :])["tests"][0]  # a login may greet first
        return str(test["verdict"]), str(test["because"]), dict(test["figures"])
    except (ValueError, KeyError, TypeError, IndexError):
        return "", "", {}


# --- telling


def _plain(tried: Sequence[Sequence[PairTrial]], verdict: PairwiseVerdict, away: dict[str, str]) -> dict[str, Any]:
    why = {**verdict.unknown, **{host: f"cannot be reached: {because}" for host, because in away.items()}}
    for trial in (trial for trials in tried for trial in trials):
        for host in trial.pair:
            if host in verdict.bad or (host in why and trial.verdict == COULD_NOT_RUN):
                why[host] = trial.because
    because = verdict.because
    if away:
        gone = f"cannot tell of {', '.join(away)}: not reached"
        because = gone if not verdict.bad and not verdict.good else f"{because}; {gone}"
    return {
        "rounds": [{"pairs": [trial.plain() for trial in trials]} for trials in tried],
        "bad": list(verdict.bad),
        "good": list(verdict.good),
        "suspects": _suspects(tried[0]) if tried else [],
        "unknown": [*verdict.unknown, *away],
        "unreachable": list(away),
        "why": {host: clean(text) for host, text in why.items()},
        "because": because,
    }


def _print(found: dict[str, Any], hosts: dict[str, str]) -> None:
    places = {host: name for name in ("bad", "good", "unknown") for host in found[name]}
    because = Column("because", lambda host: found["why"].get(host, ""), cut=True)
    columns([Column("host", str), Column("verdict", places.__getitem__), because], list(hosts))
    say(found["because"])
