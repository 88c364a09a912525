"""The ranks of one node: real processes, each in a session and process group of its own.

A rank is gone only when nothing of it lives: its main process, its group, and whatever left the group but carries the
rank's mark in its environment.
"""

import errno
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from sickbay.agent.ranks.directory import HEARTBEAT, RankFile, RankSeat, pid_space
from sickbay.agent.ranks.output import Capture
from sickbay.agent.ranks.rendezvous import MeetingPlace, rendezvous, stands_alone, waits_for
from sickbay.clusters.local import processes
from sickbay.clusters.local.complaints import complain
from sickbay.clusters.local.files import BOOT_MARK, Paths, Rank, RankPlan, StartRanks
from sickbay.model.errors import BadInput
from sickbay.model.fleet import JobId
from sickbay.model.job import RankState
from sickbay.wire.commands import die_with
from sickbay.wire.env_files import read_env_file

# <job>.<attempt>.<rank>.<boot>, in the environment of everything that a rank starts; with the boot, because another
# cluster on this machine may well have a job of the same name.
RANK_MARK = "SICKBAY_RANK"
# All that a rank has of its node's own environment: the rest is that of whoever started the node, and may be secret.
OF_THE_NODE = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR")
LOCALE = "LC_"

NOT_FOUND = 127
NOT_RUNNABLE = 126
# The node could not, whatever the command is: that is nobody's exit code.
_NODE_TROUBLE = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT})

_SOON, _LATER = 0.02, 1.0  # seconds between two looks at processes that we have killed


class _Living:
    """A rank that is not gone yet."""

    def __init__(self, noun: Rank, process: "subprocess.Popen[bytes]", capture: Capture, place: "_Place") -> None:
        self.noun = noun
        self.place = place
        self.process = process
        self.capture = capture
        self.mark = f"{RANK_MARK}={_mark(noun)}"
        self.kill_at: float | None = None  # monotonic
        self.ended = False  # its main process has
        self.killed = False  # something had to be killed after that
        self.look_at = 0.0
        self.patience = _SOON


class _Place:
    """Its directory, as the agent reads it. What cannot be written there costs the watching, not the rank."""

    def __init__(self, seat: RankSeat, file: RankFile) -> None:
        self.seat = seat
        self.file = file

    def begun(self, pid: int) -> None:
        self.file = replace(self.file, pid=pid, pid_space=pid_space())
        self._write()

    def over(self, rank: Rank) -> None:
        self.file = replace(
            self.file, ended_at=rank.ended_at, exit_code=rank.exit_code, stopped=rank.stopped, why=rank.why
        )
        self._write()
        self.seat.close()

    def _write(self) -> None:
        try:
            self.seat.write(self.file)
        except OSError as error:
            complain(f"{self.seat.run.name}: the agent cannot be told of it: {error}")


class NodeRanks:
    """All ranks of this boot. Single-threaded: the supervisor's loop calls it, nothing here ever blocks."""

    def __init__(
        self,
        paths: Paths,
        instance_id: str,
        boot_id: str,
        selector: selectors.BaseSelector,
        *,
        told_boot: str = "",
    ) -> None:
        """`told_boot`: what the node's agent calls this boot, where it has another name for it."""
        self._told_boot = told_boot or boot_id
        self._paths = paths
        self._instance_id = instance_id
        self._boot_id = boot_id
        self._selector = selector
        self._living: list[_Living] = []
        self._gone: list[Rank] = []
        self._stopped: set[tuple[JobId, int]] = set()

    @property
    def nouns(self) -> tuple[Rank, ...]:
        return (*self._gone, *(living.noun for living in self._living))

    @property
    def gone(self) -> tuple[Rank, ...]:
        return tuple(self._gone)

    @property
    def running(self) -> tuple[Rank, ...]:
        return tuple(living.noun for living in self._living)

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(living.process.pid for living in self._living)

    def forget(self, keep: Iterable[Rank]) -> None:
        """Drop all that are gone but these."""
        self._gone = list(keep)

    def remember(self, gone: Iterable[Rank]) -> None:
        """Ranks of earlier boots."""
        self._gone.extend(gone)

    def start(self, order: StartRanks) -> tuple[Rank, ...]:
        """Start those that this boot has not seen yet. One that cannot be started is gone at once, and says why."""
        seen = {(rank.job, rank.attempt, rank.rank) for rank in self.nouns if rank.boot_id == self._boot_id}
        new = [plan for plan in order.ranks if (order.job, order.attempt, plan.rank) not in seen]
        return tuple(self._start(order, plan) for plan in new)

    def stop(self, job: JobId, attempt: int, grace: float, why: str = "it was asked to stop") -> None:
        """Ask politely; `turn` ends what is left after `grace`. A start that arrives later starts nothing."""
        self._stopped.add((job, attempt))
        for living in self._living:
            if (living.noun.job, living.noun.attempt) == (job, attempt):
                self._stop(living, grace, why)

    def stop_all(self, grace: float, why: str) -> None:
        for living in self._living:
            self._stop(living, grace, why)

    def kill(self, rank: Rank, why: str) -> None:
        """At once, and not because anybody asked it to stop."""
        for living in self._living:
            if _same(living.noun, rank) and not self._has_ended(living):
                living.noun = replace(living.noun, why=why)
                processes.kill_group(living.process.pid)

    def turn(self, now: float) -> bool:
        """Notice ends, kill what is overdue, bury what is dead. True: something changed."""
        for living in self._living:
            if not self._has_ended(living) and living.kill_at is not None and now >= living.kill_at:
                processes.kill_group(living.process.pid)
                living.kill_at = now + _LATER
        due = [living for living in self._living if living.ended and now >= living.look_at]
        if not due:
            return False
        left = processes.find((living.process.pid for living in due), (living.mark for living in due))
        buried = False
        for living in due:
            mine = [pid for pid, found in left.items() if found in {str(living.process.pid), living.mark}]
            if mine:
                processes.kill(mine)
                living.killed = True
                living.look_at = now + living.patience
                living.patience = min(2 * living.patience, _LATER)
            elif living.killed:
                # A process that was forked while we looked may have been missed: look once more.
                living.killed = False
                living.look_at = now + _SOON
            else:
                self._bury(living)
                buried = True
        return buried

    def end(self) -> None:
        """Kill what is left and wait for it: the supervisor ends."""
        deadline = time.monotonic() + _LATER
        while self._living and time.monotonic() < deadline:
            for living in self._living:
                if not self._has_ended(living):
                    processes.kill_group(living.process.pid)
            self.turn(time.monotonic())
            time.sleep(0.005)

    def due(self) -> float | None:
        """The monotonic moment at which `turn` has something to do by itself."""
        moments = [
            living.look_at if living.ended else living.kill_at
            for living in self._living
            if living.ended or living.kill_at is not None
        ]
        return min((moment for moment in moments if moment is not None), default=None)

    def run_dir(self, rank: Rank) -> Path:
        return self._paths.run(self._instance_id, rank.job, rank.attempt, rank.rank)

    def _start(self, order: StartRanks, plan: RankPlan) -> Rank:
        noun = Rank(
            job=order.job,
            attempt=order.attempt,
            rank=plan.rank,
            boot_id=self._boot_id,
            devices=plan.devices,
            began_at=time.time(),
        )
        if (order.job, order.attempt) in self._stopped:
            return self._not_started(noun, None, "it was stopped before it began", stopped=True)
        try:
            place = _Place(RankSeat(self.run_dir(noun), taken_over=True), _rank_file(order, noun, self._told_boot))
        except OSError as error:
            return self._not_started(noun, None, f"the node could not make its directory: {error}")
        try:
            capture = Capture(self.run_dir(noun))
        except OSError as error:
            place.seat.close()
            return self._not_started(noun, None, f"the node could not keep its output: {error}")
        try:
            process = self._spawn(order, noun, plan, capture)
        except (OSError, ValueError, subprocess.SubprocessError, BadInput) as error:
            code, why = _verdict(error, order)
            capture.write(f"{why}\n".encode())
            place.seat.close()
            return self._not_started(noun, code, why, tail=capture.finish())
        capture.close_writer()
        living = _Living(replace(noun, pid=process.pid), process, capture, place)
        place.begun(process.pid)
        self._living.append(living)
        self._selector.register(capture.reader, selectors.EVENT_READ, lambda: self._listen(living))
        return living.noun

    def _spawn(self, order: StartRanks, noun: Rank, plan: RankPlan, capture: Capture) -> "subprocess.Popen[bytes]":
        if not order.command:
            raise FileNotFoundError(errno.ENOENT, "no command was given", "")
        return subprocess.Popen(  # noqa: S603 - starting what the user submitted is what it is for
            order.command,
            stdin=subprocess.DEVNULL,
            stdout=capture.writer,
            stderr=capture.writer,
            cwd=order.cwd or self.run_dir(noun),
            env=self._environment(order, noun, plan),
            start_new_session=True,
            preexec_fn=die_with(os.getpid()),  # noqa: PLW1509 - the supervisor has no threads
        )

    def _environment(self, order: StartRanks, noun: Rank, plan: RankPlan) -> Mapping[str, str]:
        own = {name: value for name, value in os.environ.items() if name in OF_THE_NODE or name.startswith(LOCALE)}
        filed = [read_env_file(path) for path in order.env_files]
        given = {**own, **{name: value for file in filed for name, value in file.items()}, **order.env}
        return {
            **given,
            **_meeting(given, order),
            "RANK": str(plan.rank),
            "LOCAL_RANK": str(plan.local_rank),
            "NODE_RANK": str(order.node_rank),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # as the driver and its tools number them
            "CUDA_VISIBLE_DEVICES": ",".join(map(str, plan.devices)),
            "SICKBAY_JOB_ID": order.job,
            "SICKBAY_ATTEMPT": str(order.attempt),
            "SICKBAY_HEARTBEAT": str(self.run_dir(noun) / HEARTBEAT),
            RANK_MARK: _mark(noun),
            BOOT_MARK: self._boot_id,
        }

    def _not_started(self, noun: Rank, code: int | None, why: str, *, tail: str = "", stopped: bool = False) -> Rank:
        gone = replace(
            noun,
            state=RankState.GONE,
            ended_at=time.time(),
            exit_code=code,
            why=why,
            tail=tail,
            stopped=stopped,
        )
        self._gone.append(gone)
        return gone

    def _listen(self, living: _Living) -> None:
        if not living.capture.turn():
            self._selector.unregister(living.capture.reader)

    def _stop(self, living: _Living, grace: float, why: str) -> None:
        if self._has_ended(living):
            return  # it was not our stop that ended it
        overdue = time.monotonic() + max(grace, 0.0)
        if not living.noun.stopped:
            living.noun = replace(living.noun, stopped=True, why=living.noun.why or why)
            processes.kill_group(living.process.pid, signal.SIGTERM)
        living.kill_at = overdue if living.kill_at is None else min(living.kill_at, overdue)

    def _has_ended(self, living: _Living) -> bool:
        if not living.ended and processes.has_ended(living.process.pid):
            living.ended = True
            living.look_at = 0.0
        return living.ended

    def _bury(self, living: _Living) -> None:
        with suppress(KeyError):
            self._selector.unregister(living.capture.reader)
        code = living.process.wait()  # a zombie until now, so this does not wait
        self._living.remove(living)
        gone = replace(
            living.noun,
            state=RankState.GONE,
            ended_at=time.time(),
            exit_code=code,
            tail=living.capture.finish(),
        )
        self._gone.append(gone)
        living.place.over(gone)


def _meeting(given: Mapping[str, str], order: StartRanks) -> dict[str, str]:
    """For a command that is a torchrun: where it meets those on the other nodes, all of them on this machine."""
    each = max(1, int(order.env.get("LOCAL_WORLD_SIZE", "1")))
    nodes, host = int(order.env.get("WORLD_SIZE", "1")) // each, order.env.get("MASTER_ADDR", "127.0.0.1")
    met = MeetingPlace(max(1, nodes), order.node_rank, host, int(order.env.get("MASTER_PORT", "0")))
    local = {} if "PET_LOCAL_ADDR" in given else {"PET_LOCAL_ADDR": host}
    meets = met.port and not stands_alone(order.command, given)
    return {**rendezvous(given, f"{order.job}.{order.attempt}", met if meets else None), **local}


def _rank_file(order: StartRanks, noun: Rank, boot_id: str) -> RankFile:
    return RankFile(
        job=noun.job,
        attempt=noun.attempt,
        rank=noun.rank,
        boot_id=boot_id,
        began_at=noun.began_at,
        stall_after=order.stall_after,
        start_within=order.start_within,
        expects_heartbeats=order.expects_heartbeats,
        log_rules=order.log_rules,
        rendezvous=waits_for(order.command, {**order.env, **_meeting(order.env, order)}),
    )


def _mark(rank: Rank) -> str:
    return f"{rank.job}.{rank.attempt}.{rank.rank}.{rank.boot_id}"


def _same(one: Rank, other: Rank) -> bool:
    return (one.job, one.attempt, one.rank, one.boot_id) == (other.job, other.attempt, other.rank, other.boot_id)


def _verdict(error: Exception, order: StartRanks) -> tuple[int | None, str]:
    """Exit code and reason of a command that could not be started, as a shell would put it."""
    name = order.command[0] if order.command else ""
    if isinstance(error, BadInput):
        return NOT_RUNNABLE, f"sickbay: {error}"
    if not isinstance(error, OSError):
        return NOT_RUNNABLE, f"{name}: {error}"
    if error.errno in _NODE_TROUBLE:
        return None, f"the node could not start it: {error.strerror}"
    if order.cwd and error.filename is not None and str(error.filename) == order.cwd != name:
        return NOT_RUNNABLE, f"cd: {order.cwd}: {error.strerror}"
    if not order.command:
        return NOT_FOUND, "no command was given: write one after --"
    if error.errno == errno.ENOENT:
        return NOT_FOUND, f"{name}: command not found"
    return NOT_RUNNABLE, f"{name}: {error.strerror}"
