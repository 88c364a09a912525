"""Wrapper of one rank: runs a command as its child, passes everything through, and writes the rank directory.

What it cannot write there costs the watching and never the training: that is one line on standard error.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NamedTuple, NoReturn

from msgspec.structs import replace

from sickbay.agent.ranks.directory import (
    BASE,
    HEARTBEAT,
    OPEN_TO_ALL,
    VARIABLE,
    RankFile,
    RankSeat,
    name_of,
    pid_space,
    rank_dir,
    ranks_dir,
    runner_of,
)
from sickbay.agent.ranks.guard import GroupGuard
from sickbay.agent.ranks.marks import MARK, given, kill_marked, marked_by, without_other_jobs
from sickbay.agent.ranks.naming import NamedRank, name_rank, next_attempt, no_numbers, node_here
from sickbay.agent.ranks.output import OutputFile
from sickbay.agent.ranks.passing import Streams, fill_closed
from sickbay.agent.ranks.rendezvous import meeting_of, rendezvous, stands_alone, waits_for
from sickbay.model.fleet import JobId
from sickbay.model.job import LogRule
from sickbay.wire.commands import die_with

NOT_RUNNABLE, NOT_FOUND, SHELL = 126, 127, 128
PART = 1 << 20  # bytes of a part of the output: /run is memory
TRIES = 20  # for the next free number, where several begin at once
TO_GROUP = frozenset({signal.SIGTERM, signal.SIGINT})  # as a terminal would; others go to the process that was started
PASSED = (*TO_GROUP, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
ENDS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})


class Wrapped(NamedTuple):
    """What `sickbay run` was told."""

    command: tuple[str, ...]
    job: str = ""
    attempt: int | None = None
    rank: int | None = None
    stall_after: float = 0.0
    start_within: float = 0.0
    expects_heartbeats: bool = False
    log_rules: tuple[LogRule, ...] = ()


class InPlaceError(Exception):
    """This rank of this attempt has been here before."""


def run(asked: Wrapped, env: Mapping[str, str]) -> int:
    """Until the command has ended; returns its exit code as a shell tells it."""
    fill_closed()
    env = without_other_jobs(env)
    base = Path(env.get(VARIABLE) or BASE)
    node = node_here(base)
    named = name_rank(env, node, job=asked.job, attempt=asked.attempt, rank=asked.rank)
    if _is_watched(named, env):
        _become(asked.command, env)
    try:
        place = _take_place(base, named, asked, node.boot_id if node is not None else "", env)
    except InPlaceError as error:
        from sickbay.train.errors import RESTARTED_IN_PLACE  # here: with it comes all of sickbay.train

        anew = "the whole attempt must be started anew, under the next SICKBAY_ATTEMPT"
        _say(f"{error}: it ends with {RESTARTED_IN_PLACE}, and {anew}")
        return RESTARTED_IN_PLACE
    except (OSError, ValueError) as error:
        where = error.filename if isinstance(error, OSError) and error.filename else base
        why = (error.strerror or error) if isinstance(error, OSError) else error
        _say(f"the rank is not watched: {f'{where}: ' if isinstance(error, OSError) else ''}{why}")
        place = None
    for variable in no_numbers(env) if place is not None else ():
        _say(f"{variable}={env[variable][:80]!r} is no number: it counts for nothing")
    if place is not None and node is None:
        _say(f"the rank is not watched yet: no agent has been on this node (there is no {base / 'node.json'})")
    return WrappedRank(asked.command, given(env, _environment(env, place, asked.command)), place).run()


def _is_watched(named: NamedRank, env: Mapping[str, str]) -> bool:
    """Whoever has started us watches this very rank: the local cluster, or another `sickbay run` around us."""
    run_dir = Path(env.get("SICKBAY_HEARTBEAT", "")).parent
    mine = named.job and named.attempt is not None and run_dir.name == name_of(named.job, named.attempt, named.rank)
    return bool(mine) and runner_of(run_dir) is not None


def _become(command: tuple[str, ...], env: Mapping[str, str]) -> NoReturn:
    sys.stdout.flush()
    try:
        os.execvpe(command[0], command, env)  # noqa: S606 - the user's own command
    except OSError as error:
        sys.exit(_not_started(command[0], error))


class WrittenRank(NamedTuple):
    """Its directory, held, what stands in its rank.json, and where its output is kept."""

    seat: RankSeat
    file: RankFile
    output: OutputFile


def _take_place(base: Path, named: NamedRank, asked: Wrapped, boot_id: str, env: Mapping[str, str]) -> WrittenRank:
    """Raises InPlaceError, and OSError or ValueError with what is in the way of being watched."""
    if not named.job:
        raise ValueError(named.because)
    seat, attempt = _seat(base, named)
    full = {**env, **rendezvous(env, f"{named.job}.{attempt}", None)}
    file = RankFile(
        job=JobId(named.job),
        attempt=attempt,
        rank=named.rank,
        boot_id=boot_id,
        began_at=time.time(),
        stall_after=asked.stall_after,
        start_within=asked.start_within,
        expects_heartbeats=asked.expects_heartbeats,
        log_rules=asked.log_rules,
        rendezvous=waits_for(asked.command, full),
    )
    try:
        output = OutputFile(seat.run, part=PART)
        seat.write(file)
    except OSError:
        seat.close()
        raise
    return WrittenRank(seat, file, output)


def _seat(base: Path, named: NamedRank) -> tuple[RankSeat, int]:
    _make_base(base)
    if named.attempt is not None:
        run = rank_dir(base, named.job, named.attempt, named.rank)
        try:
            return RankSeat(run), named.attempt
        except FileExistsError:
            if run.stat(follow_symlinks=False).st_uid != os.geteuid():
                raise ValueError(f"{run} belongs to another user") from None
            raise InPlaceError(
                f"rank {named.rank} of attempt {named.attempt} of {named.job} has run on this node before"
            ) from None
    plain = name_of(named.job, 0, 0).removesuffix(".0.0")
    attempt = next_attempt(base, plain)
    for number in range(attempt, attempt + TRIES):
        with suppress(FileExistsError):
            seat = RankSeat(rank_dir(base, named.job, number, named.rank))
            _say(f"nobody counts the attempts of {named.job}: this is {number}, the next free number on this node")
            return seat, number
    raise ValueError(f"no free number for an attempt of {named.job} was found: set SICKBAY_ATTEMPT")


def _make_base(base: Path) -> None:
    """Where no agent has been yet: as it would make it, if we may."""
    ranks = ranks_dir(base)
    if not ranks.is_dir():
        ranks.mkdir(parents=True, exist_ok=True)
        ranks.chmod(OPEN_TO_ALL)


def _environment(env: Mapping[str, str], place: WrittenRank | None, command: tuple[str, ...]) -> dict[str, str]:
    if place is None:
        return {}
    attempt = f"{place.file.job}.{place.file.attempt}"
    meeting = None if stands_alone(command, env) else meeting_of(env, attempt)
    return {
        "SICKBAY_JOB_ID": place.file.job,
        "SICKBAY_ATTEMPT": str(place.file.attempt),
        "SICKBAY_HEARTBEAT": str(place.seat.run.absolute() / HEARTBEAT),
        **rendezvous(env, attempt, meeting),
    }


class WrappedRank:
    """The command as a child in a session of its own. What it leaves behind ends with it, and all of it with us."""

    def __init__(self, command: tuple[str, ...], env: Mapping[str, str], place: WrittenRank | None) -> None:
        self._command = command
        self._mark, words = marked_by(env.get(MARK, ""))
        self._env = {**env, MARK: words}
        self._place = place
        self._process: subprocess.Popen[bytes] | None = None
        self._waiting: list[int] = []  # signals that came before there was anybody to pass them on to
        self._asked_to_end = 0

    def run(self) -> int:
        streams = Streams(self._place.output if self._place is not None else None, self._is_over)
        # What is ignored (nohup, a background job of a shell) stays so, here and in the command.
        heeded = [number for number in PASSED if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._pass_on) for number in heeded}
        try:
            return self._run(streams)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            if self._place is not None:
                self._place.output.close()
                self._place.seat.close()

    def _run(self, streams: Streams) -> int:
        guard = _guard(self._mark)
        try:
            code, why = self._start_and_wait(streams, guard)
        finally:
            if guard is not None:
                guard.dismiss()
        self._write_end(code, why)
        return code if code >= 0 else SHELL - code

    def _start_and_wait(self, streams: Streams, guard: GroupGuard | None) -> tuple[int, str]:
        try:
            process = subprocess.Popen(  # noqa: S603 - the user's own command, no shell
                self._command, stdout=streams.out, stderr=streams.err, env=self._env, start_new_session=True,
                preexec_fn=die_with(os.getpid()),  # noqa: PLW1509 - there are no threads here
            )  # fmt: skip
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            code = _not_started(self._command[0], error)
            return code, f"{self._command[0]} could not be started: {error}"
        if guard is not None:
            guard.protect(process.pid)
        self._began(process)
        streams.begin()
        streams.pump(lambda: _has_ended(process.pid))
        # Before it is reaped: as long as it is a zombie its number, and that of its group, is nobody else's.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        kill_marked(self._mark)
        streams.finish()
        return process.wait(), ""

    def _is_over(self) -> bool:
        """It was asked to end and has."""
        return bool(self._asked_to_end) and (self._process is None or _has_ended(self._process.pid))

    def _began(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        for number in self._waiting:
            self._pass_on(number, None)
        if self._place is not None:
            known = replace(self._place.file, pid=process.pid, pid_space=pid_space())
            self._place = self._place._replace(file=known)
            self._write(known)

    def _write_end(self, code: int, why: str) -> None:
        if self._place is None:
            return
        asked = signal.Signals(self._asked_to_end).name if self._asked_to_end else ""
        why = why or (f"it was asked to end by {asked}" if asked else "")
        self._write(replace(self._place.file, ended_at=time.time(), exit_code=code, stopped=bool(asked), why=why[:500]))

    def _write(self, file: RankFile) -> None:
        assert self._place is not None
        try:
            self._place.seat.write(file)
        except OSError as error:
            _say(f"the agent cannot be told of this rank: {error.strerror or error}")

    def _pass_on(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - a signal handler
        if number in ENDS:
            self._asked_to_end = number
        if self._process is None:
            self._waiting.append(number)
            return
        with suppress(ProcessLookupError, PermissionError):
            if number in TO_GROUP:
                os.killpg(self._process.pid, number)
            else:
                os.kill(self._process.pid, number)


def _guard(mark: str) -> GroupGuard | None:
    try:
        return GroupGuard(mark)
    except OSError:
        return None  # no process to be had: the kernel still kills the command itself


def _has_ended(pid: int) -> bool:
    if os.getpid() == 1:
        _bury_others(pid)
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _bury_others(pid: int) -> None:
    """The first process of a container is given all orphans."""
    while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
        if found.si_pid == pid:
            return
        os.waitpid(found.si_pid, 0)


def _not_started(name: str, error: Exception) -> int:
    missing = isinstance(error, FileNotFoundError)
    why = "command not found" if missing else (getattr(error, "strerror", "") or str(error))
    _say(f"{name}: {why}")
    return NOT_FOUND if missing else NOT_RUNNABLE


def _say(text: str) -> None:
    with suppress(OSError):
        os.write(2, f"sickbay run: {' '.join(text.split())}\n".encode("utf-8", "replace"))
