"""Rank directory: the files that say which ranks run on a node, how far they are, and how they ended.

    <base>/node.json                        NodeFile: which node this is                                     the agent
    <base>/ranks/<job>.<attempt>.<rank>/    one rank of one attempt, made exclusively: never two     whoever runs it
        alive                               locked (fcntl.lockf) as long as whoever runs it lives    whoever runs it
        rank.json                           RankFile: who it is, then how it ended                   whoever runs it
        output, output.<offset>             what it wrote (agent/ranks/output.py)                    whoever runs it
        heartbeat.json                      how far it is; its path is $SICKBAY_HEARTBEAT                 the script
        stacks.signal, stacks.txt           the signal that makes it write its stacks, and where          the script
        save.asked                          it is asked to save                                            the agent

`<base>` is /run/sickbay on a real node. `ranks` is open to all users and sticky, as /tmp is: each makes directories of
his own there and touches nobody else's. What stands in a directory is believed of its owner only: no link is followed,
a file must be the owner's, a process must descend from whoever holds the lock. A rank lives as long as that lock is
held, which is the kernel's word and not a file's, and the same from one container to another.
"""

import fcntl
import os
import stat
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from sickbay.agent.user_files import NotPlain, opened, read_small
from sickbay.model.fleet import JobId
from sickbay.model.job import LogRule
from sickbay.model.noun import Noun
from sickbay.wire.file_locks import holder_of
from sickbay.wire.files import replace_file

BASE = Path("/run/sickbay")
VARIABLE = "SICKBAY_RANKS"  # another base
RANK_FILE, ALIVE, HEARTBEAT, SAVE_ASKED = "rank.json", "alive", "heartbeat.json", "save.asked"
OPEN_TO_ALL = 0o1777
ITS_OWNERS_ONLY = 0o700  # what a training writes is nobody else's to read
MOST = 1 << 16  # bytes of a rank.json
NAMES = 50_000  # directories that are looked at
LONGEST = 200  # characters of a job's id
RULES, PATTERN = 20, 1000  # log rules of a rank, and characters of a pattern


class NodeFile(Noun):
    """Which node this is, so that whoever starts a rank there needs no settings of his own."""

    node: str
    cluster: str
    boot_id: str


class RankFile(Noun):
    """One rank: who it is, what counts as a hang, and, once it is over, how it ended."""

    job: JobId
    attempt: int
    rank: int
    boot_id: str = ""  # the node's boot as its agent names it; empty: whoever runs the rank does not know
    pid: int = 0  # its main process, as whoever runs it numbers processes
    pid_space: int = 0  # the inode of the pid namespace in which that number counts
    began_at: float = 0.0  # wall
    stall_after: float = 0.0  # seconds without progress after which it hangs; 0: never
    start_within: float = 0.0  # seconds until its first heartbeat; 0: whenever it likes
    expects_heartbeats: bool = False  # else only once its script has shown that it uses sickbay.train
    log_rules: tuple[LogRule, ...] = ()
    rendezvous: float | None = None  # seconds that its launcher waits for the others, where its command says so
    ended_at: float | None = None  # wall; None: it runs, or whoever ran it was killed
    exit_code: int | None = None  # negative: the signal that ended it
    stopped: bool = False  # it was asked to end: its exit says nothing about it
    why: str = ""  # what ended it, where whoever ran it knows

    @property
    def key(self) -> tuple[JobId, int, int]:
        return self.job, self.attempt, self.rank


class FoundRank(NamedTuple):
    """One that was read, and whose it is."""

    run: Path
    file: RankFile
    owner: int  # a user id


def ranks_dir(base: Path) -> Path:
    return base / "ranks"


def rank_dir(base: Path, job: str, attempt: int, rank: int) -> Path:
    return ranks_dir(base) / name_of(job, attempt, rank)


def name_of(job: str, attempt: int, rank: int) -> str:
    """A job's id may have signs that no file name can have, and a name never begins with a dot."""
    plain = quote(job, safe="@:+")
    return f"{plain.replace('.', '%2E', 1) if plain.startswith('.') else plain}.{attempt}.{rank}"


def pid_space(pid: int | str = "self", proc: Path = Path("/proc")) -> int:
    """The pid namespace of a process; 0: it cannot be told."""
    try:
        return (proc / str(pid) / "ns" / "pid").stat().st_ino
    except OSError:
        return 0


# --- the agent's side


def open_to_all(base: Path, node: NodeFile) -> None:
    """Made by the agent when it starts, for all users. Raises OSError."""
    ranks = ranks_dir(base)
    ranks.mkdir(parents=True, exist_ok=True)
    found = ranks.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in {0, os.geteuid()}:
        raise NotPlain(f"{ranks} is no directory of root's or of the agent's own: remove it")
    if found.st_uid == os.geteuid():
        base.chmod(stat.S_IMODE(base.stat().st_mode) | 0o555)
        ranks.chmod(OPEN_TO_ALL)
    replace_file(base / "node.json", msgspec.json.encode(node), durable=False)
    (base / "node.json").chmod(0o644)


def names_in(base: Path) -> list[str]:
    """What there may be to read; nothing where there is no such directory."""
    names: list[str] = []
    try:
        with os.scandir(ranks_dir(base)) as entries:
            for entry in entries:
                if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                    names.append(entry.name)
                    if len(names) >= NAMES:
                        break
    except FileNotFoundError:
        return []
    return names


def read_rank(run: Path) -> FoundRank | None:
    """None: it is only being made. Raises OSError and ValueError, whose text says what is wrong there."""
    owner = run.stat(follow_symlinks=False).st_uid
    try:
        body = read_small(run / RANK_FILE, MOST)
    except FileNotFoundError:
        return None
    try:
        file = msgspec.json.decode(body, type=RankFile)
    except (msgspec.MsgspecError, RecursionError) as error:  # whoever nests it too deep
        raise ValueError(f"its {RANK_FILE} cannot be understood: {error}") from None
    if wrong := _mistake(run, file):
        raise ValueError(wrong)
    return FoundRank(run, file, owner)


def _mistake(run: Path, file: RankFile) -> str:
    if not 0 < len(file.job) <= LONGEST or not 0 < file.attempt < 1 << 31 or not 0 <= file.rank < 1 << 31:
        return f"its {RANK_FILE} names no rank of a job"
    if run.name != name_of(*file.key):
        return f"its {RANK_FILE} is that of {name_of(*file.key)[:LONGEST]}"
    if len(file.log_rules) > RULES or any(len(rule.pattern) > PATTERN for rule in file.log_rules):
        return f"it has more than {RULES} log rules, or one of more than {PATTERN} characters"
    if not 0 <= (file.rendezvous or 0.0) < 1e9:
        return "how long it waits for the others is no time"
    code = file.exit_code
    if not all(0 <= seconds < 1e9 for seconds in (file.stall_after, file.start_within)):
        return "a time after which it would hang is no time"
    if not -256 < (code or 0) < 256 or not abs(file.ended_at or 0.0) < 1e12:
        return "how it ended makes no sense"
    return ""


def runner_of(run: Path) -> int | None:
    """The pid of whoever runs the rank, 0 where it cannot be seen from here; None: it is over."""
    try:
        with opened(run / ALIVE, os.O_RDONLY) as handle:
            return holder_of(handle)
    except OSError:
        return None


def running(base: Path, boot_id: str) -> list[FoundRank]:
    """Those that live now, in this boot. What cannot be read is left out: the watch tells of it."""
    found: list[FoundRank] = []
    for name in names_in(base):
        run = ranks_dir(base) / name
        try:
            rank = read_rank(run)
        except (OSError, ValueError):
            continue
        lives = rank is not None and of_boot(rank.file, boot_id) and rank.file.ended_at is None
        if rank is not None and lives and runner_of(run) is not None:
            found.append(rank)
    return found


def of_boot(file: RankFile, boot_id: str) -> bool:
    return file.boot_id in {"", boot_id}


# --- the side of whoever runs a rank


class RankSeat:
    """The place of one rank, held by the lock on `alive`: given back by `close`, or by our own death."""

    def __init__(self, run: Path, *, taken_over: bool = False) -> None:
        """Raises FileExistsError where it was taken before, unless `taken_over`, and OSError."""
        run.parent.mkdir(parents=True, exist_ok=True)
        try:
            run.mkdir(ITS_OWNERS_ONLY)
        except FileExistsError:
            if not taken_over:
                raise
        self.run = run
        how = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._alive = os.open(run / ALIVE, how, 0o600)
        try:
            fcntl.lockf(self._alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._alive)
            raise

    def write(self, file: RankFile) -> None:
        """Who it is, or how it ended: that stands there before the lock is given back. Raises OSError."""
        replace_file(self.run / RANK_FILE, msgspec.json.encode(file), durable=False)

    def close(self) -> None:
        if self._alive >= 0:
            os.close(self._alive)
            self._alive = -1
