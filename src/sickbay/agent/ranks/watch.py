"""Liveness of ranks, read from the rank directory: steps, saves, stalls, log rules, and how ranks end."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sickbay.agent.deadline import BoundedCalls
from sickbay.agent.outbox import say
from sickbay.agent.probes.heartbeats import AttemptProgress, Beat
from sickbay.agent.probes.log_rules import OutputWatch
from sickbay.agent.ranks.directory import (
    ALIVE,
    HEARTBEAT,
    NAMES,
    RANK_FILE,
    FoundRank,
    RankFile,
    names_in,
    of_boot,
    ranks_dir,
    read_rank,
    runner_of,
)
from sickbay.agent.ranks.exits import rank_ended, tail_of
from sickbay.model.facts import Hung, Observed, RankWaits, RuleOff
from sickbay.model.fleet import JobId, NodeId
from sickbay.model.job import OPEN_FOR
from sickbay.model.protocol import Item

AttemptKey = tuple[JobId, int]
RankKey = tuple[JobId, int, int]
ANSWERS_WITHIN = 2.0  # seconds: with all that ranks wrote on a file system that does not answer, nothing is seen
AGAIN = 300.0  # seconds after which an attempt that keeps breaking a rule of its output is called hung again
AT_ONCE = 256  # ranks of one user that are watched: nobody crowds the others out
COMPLAINTS = 50  # different ones that are told
UNMADE = 60.0  # seconds in which whoever makes a directory writes who it is
FRESH = 3600.0  # seconds: how a rank ended while no agent looked is told so long after


@dataclass(slots=True)
class _WatchedRank:
    run: Path
    rank: RankFile
    owner: int
    beat: Beat
    output: OutputWatch | None
    moved: float  # the monotonic moment from which a stall counts: its last progress, or our own waking up
    tail: str = ""  # once it is over

    @property
    def attempt(self) -> AttemptKey:
        return self.rank.job, self.rank.attempt

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


@dataclass(slots=True)
class _Listing:
    """What one look at the directory has shown."""

    new: list[FoundRank] = field(default_factory=list)
    over: dict[RankKey, RankFile] = field(default_factory=dict)
    passed: set[str] = field(default_factory=set)  # directories that need no further look
    waits: list[Path] = field(default_factory=list)  # those that are only being made
    wrong: dict[str, str] = field(default_factory=dict)


class RankWatch:
    """Heartbeats, stalls, log rules and ends. Our own pauses count against nobody.

    An attempt is called hung again only if it still is after as long again: somewhere else it may advance.
    """

    def __init__(self, base: Path, node: NodeId, boot_id: str, files: BoundedCalls | None = None) -> None:
        self._base = base
        self._node = node
        self._boot_id = boot_id
        self._watched: dict[RankKey, _WatchedRank] = {}
        self._passed: set[str] = set()
        self._waits: list[Path] = []
        self._progress: dict[AttemptKey, AttemptProgress] = {}
        self._hung: dict[AttemptKey, float] = {}  # those that were called hung, and from when on they are again
        self._tailed: set[AttemptKey] = set()  # whose last words were told
        self._owners: dict[AttemptKey, int] = {}
        self._complained: set[str] = set()
        self._off: set[tuple[JobId, int, str]] = set()  # log rules that are not used any more
        self._files = files or BoundedCalls("run directories", ANSWERS_WITHIN)
        self._blind = False
        self._gone: list[_WatchedRank] = []  # have ended, and their last words could not be read yet

    @property
    def directories(self) -> list[Path]:
        """Where heartbeats appear, and locks are given back."""
        return [*(watched.run for watched in self._watched.values()), *self._waits]

    @property
    def restless(self) -> bool:
        """Output must be read though nothing calls us."""
        return any(watched.output is not None for watched in self._watched.values())

    def look(self, now: float) -> list[Item]:
        found: list[Item] = []
        gone = self._gone
        try:
            listing = self._files.call(self._list)
            gone = self._gone = gone + self._taken(listing, now, found)
            self._fetch((*self._watched.values(), *gone), now)
            self._files.call(lambda: self._read_tails(gone))
        except TimeoutError:
            self._blind = True
            raise
        self._gone = []
        for watched in sorted(gone, key=lambda one: (one.rank.ended_at or 0.0, one.rank.rank)):
            found.extend(self._told(watched, now, ended=True))
            if watched.output is not None:
                watched.output.close()
        for watched in sorted(self._watched.values(), key=lambda one: one.rank.rank):
            found.extend(self._told(watched, now))
            found.extend(self._late(watched, now))
        found.extend(self._stands(now, gone))
        found.extend(self._ends(now, gone))
        self._tidy()
        return found

    # --- what is there
    def _list(self) -> _Listing:
        """New ranks, and those that are over. Changes nothing: whoever waited for it may have given up meanwhile."""
        listing = _Listing()
        known = {watched.run.name for watched in self._watched.values()}
        names = names_in(self._base)
        if len(names) >= NAMES:
            listing.wrong[""] = (
                f"{ranks_dir(self._base)} has {NAMES} directories or more: some ranks may not be watched"
            )
        listing.passed = self._passed.intersection(names)
        for name in names:
            if name in known or name in listing.passed:
                continue
            run = ranks_dir(self._base) / name
            try:
                found = read_rank(run)
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                listing.passed.add(name)
                listing.wrong[name] = f"rank directory {name[:200]} is not used: {error}"
                continue
            if found is None:
                if _is_new(run):
                    listing.waits.append(run)
                else:
                    listing.passed.add(name)
                continue
            if self._is_ours(found):
                listing.new.append(found)
            listing.passed.add(name)
        listing.new.sort(key=_taken_at)  # after our own start, too, an attempt is whose rank was there first
        for key, watched in self._watched.items():
            if runner_of(watched.run) is None:
                listing.over[key] = _last_word(watched)
        return listing

    def _is_ours(self, found: FoundRank) -> bool:
        """Of this boot, and alive or over since not long ago."""
        if not of_boot(found.file, self._boot_id):
            return False
        if runner_of(found.run) is not None:
            return True
        try:
            return time.time() - (found.run / RANK_FILE).stat(follow_symlinks=False).st_mtime < FRESH
        except OSError:
            return False

    def _taken(self, listing: _Listing, now: float, found: list[Item]) -> list[_WatchedRank]:
        """Takes up ranks that are new; returns those that have ended."""
        self._passed, self._waits = listing.passed, listing.waits
        for text in listing.wrong.values():
            found.extend(self._complaint(text))
        for new in listing.new:
            if why := self._refused(new):
                found.extend(self._complaint(why))
                continue
            self._owners[new.file.job, new.file.attempt] = new.owner
            self._watched[new.file.key] = _take_up(new, now)
            found.extend(self._waits_for(new.file))
        gone = []
        for key, file in listing.over.items():
            if (watched := self._watched.pop(key, None)) is not None:
                watched.rank = file
                gone.append(watched)
        return gone

    def _refused(self, new: FoundRank) -> str:
        """Why a rank is not watched: an attempt is one user's, and one user's are not without end."""
        who, mine = f"rank directory {new.run.name[:200]} is not used", new.owner
        if self._owners.get((new.file.job, new.file.attempt), mine) != mine:
            return f"{who}: another user runs ranks of that attempt here"
        if sum(watched.owner == mine for watched in self._watched.values()) >= AT_ONCE:
            return f"{who}: {AT_ONCE} ranks of user {mine} are watched already"
        return ""

    def _waits_for(self, rank: RankFile) -> list[Item]:
        """Said once of an attempt: what its first rank here says holds for those beside it."""
        here = [one for one in self._watched.values() if one.attempt == rank.key[:2]]
        if rank.rendezvous is None or rank.rendezvous >= OPEN_FOR or len(here) > 1:
            return []
        return [say(RankWaits(job=rank.job, attempt=rank.attempt, seconds=rank.rendezvous))]

    def _complaint(self, text: str) -> list[Item]:
        if text in self._complained or len(self._complained) >= COMPLAINTS:
            return []
        self._complained.add(text)
        return [say(Observed(node=self._node, kind="agent.rank_unusable", text=text[:500]))]

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

    # --- what is told of it
    def _told(self, watched: _WatchedRank, now: float, *, ended: bool = False) -> list[Item]:
        """Steps are told by the node that has rank 0: by that rank, or the lowest there that has a heartbeat."""
        rank, attempt = watched.rank, watched.attempt
        here = [one for one in (*self._watched.values(), watched) if one.attempt == attempt]
        speaks = min((one.rank.rank for one in here if one.beat.step is not None), default=None)
        if speaks != rank.rank or (rank.rank != 0 and all(one.rank.rank != 0 for one in here)):
            return []
        progress = self._progress.setdefault(attempt, AttemptProgress(*attempt))
        news = progress.tell(watched.beat, now, ended=ended)
        return [] if news is None else [say(news, watched.beat.since)]

    def _stands(self, now: float, gone: list[_WatchedRank]) -> list[Item]:
        """How attempts stand with their checkpoints: told by the node that has rank 0, by the lowest rank there."""
        speak: dict[AttemptKey, _WatchedRank] = {}
        for watched in sorted((*self._watched.values(), *gone), key=lambda one: one.rank.rank):
            attempt = watched.attempt
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
        rank, attempt = watched.rank, watched.attempt
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
        return any(one.beat.step is not None for one in self._watched.values() if one.attempt == attempt)

    def _complaints(self, rank: RankFile, output: OutputWatch) -> list[Item]:
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

    # --- how it ended
    def _read_tails(self, gone: list[_WatchedRank]) -> None:
        for watched in gone:
            if not watched.tail and _ended_badly(watched.rank):
                watched.tail = tail_of(watched.run)

    def _ends(self, now: float, gone: list[_WatchedRank]) -> list[Item]:
        """Each end in the order of its time; the last words of the first of an attempt here that ended badly."""
        said: list[Item] = []
        wall = time.time()
        for watched in sorted(gone, key=lambda one: (one.rank.ended_at or wall, one.rank.rank)):
            words = ""
            if _ended_badly(watched.rank) and watched.attempt not in self._tailed:
                self._tailed.add(watched.attempt)
                words = watched.tail
            ago = min(max(0.0, wall - (watched.rank.ended_at or wall)), FRESH)
            said.append(say(rank_ended(watched.rank, words), now - ago))
        return said

    def _tidy(self) -> None:
        alive = {watched.attempt for watched in self._watched.values()}
        self._hung = {attempt: until for attempt, until in self._hung.items() if attempt in alive}
        self._off = {off for off in self._off if off[:2] in alive}
        self._progress = {attempt: told for attempt, told in self._progress.items() if attempt in alive}
        self._tailed &= alive
        self._owners = {attempt: owner for attempt, owner in self._owners.items() if attempt in alive}

    def close(self) -> None:
        for watched in self._watched.values():
            if watched.output is not None:
                watched.output.close()


def _take_up(new: FoundRank, now: float) -> _WatchedRank:
    rules = new.file.log_rules
    output = OutputWatch(new.run / "output", rules, now) if rules else None
    beat = Beat(new.run / HEARTBEAT)
    return _WatchedRank(run=new.run, rank=new.file, owner=new.owner, beat=beat, output=output, moved=now)


def _last_word(watched: _WatchedRank) -> RankFile:
    """What whoever ran it has written last: it stands there before the lock is given back."""
    try:
        found = read_rank(watched.run)
    except (OSError, ValueError):
        found = None
    return found.file if found is not None and found.owner == watched.owner else watched.rank


def _is_new(run: Path) -> bool:
    try:
        return abs(time.time() - run.stat(follow_symlinks=False).st_mtime) < UNMADE
    except OSError:
        return False


def _taken_at(found: FoundRank) -> float:
    """When its place was taken: nobody can date a file's last change back."""
    try:
        return (found.run / ALIVE).stat(follow_symlinks=False).st_ctime
    except OSError:
        return math.inf


def _ended_badly(rank: RankFile) -> bool:
    return not rank.stopped and rank.exit_code != 0
