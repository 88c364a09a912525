"""The ranks of this node, as its supervisor lists them: do they make progress?"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sickbay.agent.deadline import BoundedCalls
from sickbay.agent.outbox import say
from sickbay.agent.probes.heartbeats import AttemptProgress, Beat
from sickbay.agent.probes.log_rules import OutputWatch
from sickbay.clusters.local.files import Paths, Rank, Status, read
from sickbay.model.facts import Hung, Observed, RuleOff
from sickbay.model.fleet import Incarnation, JobId, NodeId
from sickbay.model.job import RankState
from sickbay.model.protocol import Item

AttemptKey = tuple[JobId, int]
ANSWERS_WITHIN = 2.0  # seconds: with all that ranks wrote on a file system that does not answer, nothing is seen
AGAIN = 300.0  # seconds after which an attempt that keeps breaking a rule of its output is called hung again


@dataclass(slots=True)
class _WatchedRank:
    rank: Rank
    beat: Beat
    output: OutputWatch | None
    moved: float  # the monotonic moment from which a stall counts: its last progress, or our own waking up

    @property
    def unbegun(self) -> bool:
        """Nothing shows that it is alive: no heartbeat, no work, no save."""
        return self.beat.step is None and self.beat.work is None and not self.beat.saves

    def stalls(self, now: float) -> tuple[str, float]:
        """Why it hangs, and after how long that is said again; empty: it does not."""
        beat, still = self.beat, now - self.moved
        limit = self.rank.stall_after
        if beat.work is not None:
            why = f"{beat.work.what} has stood still at {beat.work.done} of {beat.work.of} bytes for {limit:g} s"
        elif beat.step is not None:
            why = f"no step after {beat.step} for {limit:g} s"
        else:
            awaited = self.unbegun and (self.rank.expects_heartbeats or beat.opened)
            limit = self.rank.start_within if awaited else 0.0
            why = f"no first heartbeat within {limit:g} s of its start"
        return (why, limit) if limit and still > limit else ("", 0.0)


class RankWatch:
    """Heartbeats, stalls and log rules. Our own pauses count against nobody.

    An attempt is called hung again only if it still is after as long again: somewhere else it may advance.
    """

    def __init__(self, paths: Paths, node: NodeId, incarnation: Incarnation, files: BoundedCalls | None = None) -> None:
        self._paths = paths
        self._node = node
        self._me = incarnation
        self._stamp: tuple[int, int] | None = None
        self._watched: dict[tuple[JobId, int, int], _WatchedRank] = {}
        self._progress: dict[AttemptKey, AttemptProgress] = {}
        self._hung: dict[AttemptKey, float] = {}  # those that were called hung, and from when on they are again
        self._complained: set[str] = set()
        self._off: set[tuple[JobId, int, str]] = set()  # log rules that are not used any more
        self._files = files or BoundedCalls("run directories", ANSWERS_WITHIN)
        self._blind = False
        self._gone: list[_WatchedRank] = []  # have ended, and their last words could not be read yet
        self.status: Status | None = None

    @property
    def directories(self) -> list[Path]:
        """Where heartbeats appear."""
        return [watched.beat.path.parent for watched in self._watched.values()]

    @property
    def restless(self) -> bool:
        """Output must be read though nothing calls us."""
        return any(watched.output is not None for watched in self._watched.values())

    def look(self, now: float) -> list[Item]:
        gone, self._gone = self._gone + self._list(now), []
        try:
            self._fetch((*self._watched.values(), *gone), now)
        except TimeoutError:
            self._gone, self._blind = gone, True
            raise
        found: list[Item] = []
        for watched in gone:
            found.extend(self._told(watched, now, ended=True))
            if watched.output is not None:
                watched.output.close()
        for watched in sorted(self._watched.values(), key=lambda one: one.rank.rank):
            found.extend(self._told(watched, now))
            found.extend(self._late(watched, now))
        found.extend(self._stands(now, gone))
        self._tidy()
        return found

    def _fetch(self, ranks: Sequence[_WatchedRank], now: float) -> None:
        """Reads what ranks wrote. Raises TimeoutError where that hangs, and then nobody has stood still meanwhile."""

        def fetch() -> list[_WatchedRank]:
            for watched in ranks:
                if watched.output is not None:
                    watched.output.fetch()
            return [watched for watched in ranks if watched.beat.read(now)]

        moved = self._files.call(fetch)
        if self._blind:
            self._blind = False
            self.restart(now)
        for watched in moved:
            watched.moved = now

    def restart(self, now: float) -> None:
        """The agent itself was stopped for a while: every timer begins again."""
        for watched in self._watched.values():
            watched.moved = now
            if watched.output is not None:
                watched.output.restart(now)

    def _list(self, now: float) -> list[_WatchedRank]:
        """Takes up ranks that are new; returns those that have ended."""
        try:
            found = self._paths.status.stat()
        except FileNotFoundError:
            return []
        stamp = (found.st_ino, found.st_mtime_ns)
        if stamp == self._stamp:
            return []
        self._stamp = stamp
        self.status = status = read(self._paths.status, Status)
        if status is None:
            return []
        running = {
            (rank.job, rank.attempt, rank.rank): rank
            for rank in status.ranks
            if rank.state is RankState.RUNNING and rank.boot_id == self._me.boot_id
        }
        for key in running.keys() - self._watched.keys():
            self._watched[key] = self._take_up(running[key], now)
        return [self._watched.pop(key) for key in self._watched.keys() - running.keys()]

    def _take_up(self, rank: Rank, now: float) -> _WatchedRank:
        run = self._paths.run(self._me.instance_id, rank.job, rank.attempt, rank.rank)
        output = OutputWatch(run / "output", rank.log_rules, now) if rank.log_rules else None
        return _WatchedRank(rank=rank, beat=Beat(run / "heartbeat.json"), output=output, moved=now)

    def _told(self, watched: _WatchedRank, now: float, *, ended: bool = False) -> list[Item]:
        """Steps are told by the node that has rank 0: by that rank, or the lowest there that has a heartbeat."""
        rank = watched.rank
        attempt = (rank.job, rank.attempt)
        here = [one for one in (*self._watched.values(), watched) if (one.rank.job, one.rank.attempt) == attempt]
        speaks = min((one.rank.rank for one in here if one.beat.step is not None), default=None)
        if speaks != rank.rank or (rank.rank != 0 and all(one.rank.rank != 0 for one in here)):
            return []
        progress = self._progress.setdefault(attempt, AttemptProgress(rank.job, rank.attempt))
        news = progress.tell(watched.beat, now, ended=ended)
        return [] if news is None else [say(news, watched.beat.since)]

    def _stands(self, now: float, gone: list[_WatchedRank]) -> list[Item]:
        """How attempts stand with their checkpoints: told by the node that has rank 0, by the lowest rank there."""
        speak: dict[AttemptKey, _WatchedRank] = {}
        for watched in sorted((*self._watched.values(), *gone), key=lambda one: one.rank.rank):
            attempt = (watched.rank.job, watched.rank.attempt)
            if watched.rank.rank == 0 or attempt in speak:
                before = speak.get(attempt)
                speak[attempt] = watched if before is None or not before.beat.body else before
        said = []
        for attempt, watched in speak.items():
            progress = self._progress.setdefault(attempt, AttemptProgress(*attempt))
            news = progress.tell_standing(watched.beat, now, ended=watched in gone)
            said += [] if news is None else [say(news, now)]
        return said

    def _late(self, watched: _WatchedRank, now: float) -> list[Item]:
        rank, attempt = watched.rank, (watched.rank.job, watched.rank.attempt)
        said: list[Item] = []
        why, again = watched.stalls(now)
        unbegun = bool(why) and watched.unbegun
        if unbegun and self._steps_here(attempt):
            why, unbegun = "", False  # perhaps only that one ever tells
        if watched.output is not None:
            watched.output.read(now)
            late = watched.output.late(now)
            why, unbegun = why or late, unbegun and not late
            said.extend(self._complaints(rank, watched.output))
        if why and now >= self._hung.get(attempt, now):
            self._hung[attempt] = now + (again or AGAIN)
            where = f"rank {rank.rank} on {self._node}"
            hung = Hung(job=rank.job, attempt=rank.attempt, because=f"{where}: {why}", unbegun=unbegun)
            said.append(say(hung, now))
        return said

    def _steps_here(self, attempt: AttemptKey) -> bool:
        mine = (one for one in self._watched.values() if (one.rank.job, one.rank.attempt) == attempt)
        return any(one.beat.step is not None for one in mine)

    def _complaints(self, rank: Rank, output: OutputWatch) -> list[Item]:
        """Once for each rule of an attempt; of an output that cannot be read as long as its words are the same."""
        said: list[Item] = []
        for watch in output.rules:
            if watch.trouble and (rank.job, rank.attempt, watch.rule.name) not in self._off:
                self._off.add((rank.job, rank.attempt, watch.rule.name))
                off = RuleOff(job=rank.job, attempt=rank.attempt, rule=watch.rule.name, because=watch.trouble)
                said.append(say(off))
        if output.trouble and output.trouble not in self._complained:
            self._complained.add(output.trouble)
            said.append(say(Observed(node=self._node, kind="agent.rule_unusable", text=output.trouble)))
        return said

    def _tidy(self) -> None:
        alive = {(watched.rank.job, watched.rank.attempt) for watched in self._watched.values()}
        self._hung = {attempt: until for attempt, until in self._hung.items() if attempt in alive}
        self._off = {off for off in self._off if off[:2] in alive}
        self._progress = {attempt: told for attempt, told in self._progress.items() if attempt in alive}

    def close(self) -> None:
        for watched in self._watched.values():
            if watched.output is not None:
                watched.output.close()
