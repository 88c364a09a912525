"""Deterministic scheduler over real files: attempts that begin, save and remove are interleaved at every call.

    python tests/support/train_world.py KIND DIRECTORY FIRST COUNT

One thread for each attempt, and exactly one of them runs. Before each call that opens, lists, links, renames, creates
or removes a file (the interpreter's audit events) and before each look for a name, the seed says who goes on. The
world of a KIND goes wrong besides:

    calm      nothing but the order of calls
    stale     a client lists a directory as it was, and remembers what was not there, until it changes it itself, as
              network file systems do
    nolinks   as errors, on a file system without hard links
    errors    any call may fail once, with one of many errors
    remounted the directory is empty for a while, as if its disk had been unmounted, and then it is back
    adopted   as errors, and what is saved are files that other code writes into a directory of their own

In each an attempt may be killed at any call. What must hold is asserted on what happened: an attempt begins with the
newest checkpoint that was committed before its fence by an attempt that was not fenced yet itself, or it refuses.
"""

import errno
import json
import os
import random
import shutil
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from sickbay import train
from sickbay.train import beats, checkpoints, choosing, committing, disk, fencing, foreign, layout, saves

ERRORS = (errno.EIO, errno.ESTALE, errno.ENOSPC, errno.EACCES, errno.ETIMEDOUT, errno.EMFILE, errno.ENOENT, errno.EROFS)
EVENTS = {"open", "os.listdir", "os.scandir", "os.link", "os.rename", "os.remove", "os.mkdir", "os.rmdir"}
STEPS = 4  # saves of an attempt
ATTEMPTS = 3


class Over(BaseException):
    """The attempt is killed here."""


class World:
    """Whose turn it is, and what happened."""

    def __init__(self, kind: str, root: Path, seed: int) -> None:
        self.kind, self.root, self.dice = kind, root, random.Random(f"{kind} {seed}")
        self.turn = threading.Condition()
        self.whose: int | None = None
        self.living: list[int] = []
        self.of_thread: dict[int, int] = {}
        self.fences: dict[int, int] = {}  # attempt → when the creation of its RUN began
        self.fenced_at: dict[int, int] = {}  # attempt → when it was surely there
        self.commits: list[tuple[int, int, int]] = []  # (when it was surely there, attempt, step)
        self.now = 0
        self.calls = 0
        self.fails: dict[int, int] = {}
        self.dies = {number: self.dice.randrange(20, 900) for number in (1, 2, 3) if self.dice.random() < 0.3}
        self.seen: dict[tuple[int, str], list[str]] = {}
        self.absent: dict[tuple[int, str], set[str]] = {}
        self.aside: Path | None = None
        self.hidden: range = range(0)
        self.told: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.busy = threading.local()
        if kind in {"errors", "adopted", "nolinks"}:
            self.fails = {self.dice.randrange(20, 900): self.dice.choice(ERRORS) for _ in range(3)}
        if kind == "remounted":
            start = self.dice.randrange(50, 900)
            self.hidden = range(start, start + self.dice.randrange(5, 200))

    # --- the calls

    def attempt(self) -> int | None:
        return self.of_thread.get(threading.get_ident())

    def call(self, event: str, path: str) -> None:
        """Before every call: others may go first, and the call may fail."""
        mine = self.attempt()
        if mine is None or getattr(self.busy, "inside", False) or not path.startswith(str(self.root)):
            return
        self.busy.inside = True
        try:
            self._step(mine, event, path)
        finally:
            self.busy.inside = False

    def _step(self, mine: int, event: str, path: str) -> None:
        self.give_way(mine)
        self.calls += 1
        self.now += 1
        self._remount()
        if event in {"os.link", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "created"}:
            directory = mine, os.path.dirname(path)  # noqa: PTH120
            self.seen.pop(directory, None)  # who changes a directory sees it
            self.absent.pop(directory, None)
        if self.calls in self.fails:
            number = self.fails.pop(self.calls)
            self.told["errors"] += 1
            raise OSError(number, os.strerror(number), path)
        if self.calls >= self.dies.get(mine, self.calls + 1):  # no call of the dead is made
            raise Over

    def give_way(self, mine: int) -> None:
        with self.turn:
            self.whose = self.dice.choice(self.living)
            self.turn.notify_all()
            if not self.turn.wait_for(lambda: self.whose == mine, timeout=60):
                self.wrong.append(f"attempt {mine} never got its turn")
                raise Over

    def _remount(self) -> None:
        if self.calls in self.hidden and self.aside is None:
            self.aside = self.root.with_name("aside")
            self.root.rename(self.aside)
            self.root.mkdir()
            self.told["unmounted"] += 1
        elif self.calls >= self.hidden.stop and self.aside is not None:
            shutil.rmtree(self.root)
            self.aside.rename(self.root)
            self.aside = None

    def listed(self, found: list[str], path: str) -> list[str]:
        """What this client remembers of the directory, if it has not changed it since."""
        mine = self.attempt()
        if self.kind != "stale" or mine is None or not path.startswith(str(self.root)):
            return found
        return self.seen.setdefault((mine, path), found)

    def there(self, path: Path, look: Callable[[Path], bool]) -> bool:
        mine = self.attempt()
        if self.kind != "stale" or mine is None:
            return look(path)
        absent = self.absent.setdefault((mine, str(path.parent)), set())
        if path.name not in absent and not look(path):
            absent.add(path.name)
        return path.name not in absent

    # --- what happened

    def newest_before(self, moment: int) -> int | None:
        """The step that an attempt must not fall behind, if its fence was begun at this moment."""
        live = [
            step
            for at, attempt, step in self.commits
            if at < moment and all(begun > at for other, begun in self.fences.items() if other > attempt)
        ]
        return max(live, default=None)

    # --- the attempts

    def run(self) -> None:
        starts = sorted(self.dice.randrange(400) for _ in range(ATTEMPTS))
        threads = [
            threading.Thread(target=self._life, args=(number, starts[number - 1]), daemon=True)
            for number in range(1, ATTEMPTS + 1)
        ]
        self.living = list(range(1, ATTEMPTS + 1))
        self.whose = 1
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        if any(thread.is_alive() for thread in threads):
            self.wrong.append("an attempt did not end")
        self._remount_for_good()
        self.seen.clear()
        self.absent.clear()
        self.fails.clear()
        self.living, self.whose = [ATTEMPTS + 1], ATTEMPTS + 1
        self.of_thread[threading.get_ident()] = ATTEMPTS + 1
        self._begin(ATTEMPTS + 1)
        del self.of_thread[threading.get_ident()]

    def _remount_for_good(self) -> None:
        self.hidden = range(0)
        if self.aside is not None:
            shutil.rmtree(self.root)
            self.aside.rename(self.root)
            self.aside = None

    def _life(self, number: int, start: int) -> None:
        self.of_thread[threading.get_ident()] = number
        with self.turn:
            self.turn.wait_for(lambda: self.whose == number)
        try:
            while self.calls < start and len(self.living) > 1 and min(self.living) < number:
                self.give_way(number)
            self._train(number)
        except Over:
            self.told["killed"] += 1
        finally:
            with self.turn:
                self.living.remove(number)
                if self.living:
                    self.whose = self.dice.choice(self.living)
                self.turn.notify_all()

    def _train(self, number: int) -> None:
        found = self._begin(number)
        if found is None:
            return
        first = found.resumed.step + 1 if found.resumed else 1
        for step in range(first, first + STEPS):
            try:
                self._save(found, step)
                found.wait()
            except train.Superseded:
                self.told["superseded"] += 1
                return
            except (train.CheckpointError, OSError):
                self.told["not saved"] += 1
            beats.saved(step)

    def _save(self, found: train.Checkpoints, step: int) -> None:
        state = {"step": step, "by": found.attempt}
        if self.kind != "adopted":
            found.save(step, state)
            return
        with foreign.saving(found, step) as directory:
            for name in ("one", "two"):
                (directory / name).mkdir(parents=True)
                (directory / name / "state.json").write_text(json.dumps(state))

    def _load(self, found: train.Checkpoints) -> Any:
        if self.kind != "adopted":
            return found.load()
        directory = foreign.resumed(found) or Path()
        one, two = (json.loads((directory / name / "state.json").read_text()) for name in ("one", "two"))
        return one if one == two else None

    def _begin(self, number: int) -> train.Checkpoints | None:
        been = max((step for _, _, step in self.commits), default=0)
        os.environ["SICKBAY_LAST_STEP"] = str(been)
        try:
            found = train.Checkpoints(self.root, attempt=number, rank=0, world_size=1, keep=self.dice.choice((1, 2, 3)))
        except train.Superseded:
            self.told["superseded"] += 1
            return None
        except train.CheckpointError as why:
            self.told["refused"] += 1
            if self.kind in {"calm", "stale"}:
                self.wrong.append(f"attempt {number} refuses in a calm world: {why}")
            return None
        expected = self.newest_before(self.fences[number])
        got = found.resumed.step if found.resumed else None
        self.told["begun"] += 1
        self.told["resumed"] += got is not None
        if got is None and not been and self.aside is not None:
            return None  # an empty disk, and a job that had made no step when it was started: nobody can know
        if expected is not None and (got is None or got < expected):
            self.wrong.append(f"attempt {number} goes on from {found.resumed}, though step {expected} was committed")
        if found.resumed is not None and not self._loads(found, found.resumed):
            return None
        return found

    def _loads(self, found: train.Checkpoints, resumed: train.Checkpoint) -> bool:
        try:
            state = self._load(found)
        except (train.CheckpointError, OSError):
            self.told["refused"] += 1
            return False
        if state != {"step": resumed.step, "by": resumed.attempt}:
            self.wrong.append(f"attempt {found.attempt} loaded another state than {resumed} had")
        return True


world: World | None = None


def hear(event: str, arguments: Sequence[Any]) -> None:
    if world is not None and event in EVENTS and world.attempt() is not None:
        path = arguments[1] if event in {"os.link", "os.rename"} else arguments[0]
        if isinstance(path, str | bytes | os.PathLike):
            created = event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_CREAT
            world.call("created" if created else event, os.fsdecode(path))


def wrapped(owner: Any, name: str, with_: Callable[..., Any]) -> None:
    setattr(owner, name, with_(getattr(owner, name)))


def install() -> None:
    """Hooks into a process that does nothing else."""

    def begins(create: Callable[..., bool]) -> Callable[..., bool]:
        def create_fence(root: Path, fence: layout.RunFile) -> bool:
            before = world.now
            if ours := create(root, fence):
                world.fences[fence.attempt] = before
            return ours

        return create_fence

    def commits(create: Callable[..., bool]) -> Callable[..., bool]:
        def create_manifest(root: Path, manifest: layout.Manifest) -> bool:
            if ours := create(root, manifest):
                world.commits.append((world.now, *manifest.place))
            return ours

        return create_manifest

    def looking(exists: Callable[[Path], bool]) -> Callable[[Path], bool]:
        def look(path: Path) -> bool:
            if world is None:
                return exists(path)
            world.call("look", str(path))
            return world.there(path, exists)

        return look

    def reading(read: Callable[[Path], bytes]) -> Callable[[Path], bytes]:
        def read_bytes(path: Path) -> bytes:
            if world is not None and not world.there(path, os.path.exists):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            return read(path)

        return read_bytes

    def linking(link: Callable[..., None]) -> Callable[..., None]:
        def linked(aside: Path, path: Path) -> None:
            if world is not None and world.kind == "nolinks" and not os.path.exists(path):  # noqa: PTH110
                raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path))
            link(aside, path)

        return linked

    def listing(listdir: Callable[..., list[str]]) -> Callable[..., list[str]]:
        def listed(path: Any = ".") -> list[str]:
            found = listdir(path)
            return found if world is None else list(world.listed(found, os.fsdecode(path)))

        return listed

    def starting(start: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
        def begin(thread: threading.Thread) -> None:
            mine, run = world.attempt() if world else None, thread.run
            if mine is not None:

                def as_attempt() -> None:
                    world.of_thread[threading.get_ident()] = mine
                    with suppress(Over):
                        run()
                    world.of_thread.pop(threading.get_ident(), None)

                thread.run = as_attempt  # type: ignore[method-assign]
            start(thread)

        return begin

    wrapped(fencing, "create_fence", begins)
    wrapped(committing, "create_manifest", commits)
    wrapped(disk, "exists", looking)
    wrapped(os, "listdir", listing)
    wrapped(os, "link", linking)
    wrapped(Path, "read_bytes", reading)
    wrapped(threading.Thread, "start", starting)
    choosing.READ_AGAIN = (0.0,)  # type: ignore[assignment]
    saves.AGAIN = (0.0,)  # type: ignore[assignment]
    checkpoints.atexit.register = lambda *_: None  # type: ignore[attr-defined]
    sys.addaudithook(hear)


def main(kind: str, directory: str, first: str, count: str) -> None:
    global world  # noqa: PLW0603  # the hooks are the process's own
    install()
    told: Counter[str] = Counter()
    for seed in range(int(first), int(first) + int(count)):
        root = Path(directory) / str(seed) / "ck"
        root.mkdir(parents=True)
        os.environ["SICKBAY_CHECKPOINT_DIR"] = str(root)
        world = World(kind, root, seed)
        world.run()
        told += world.told
        told["calls"] += world.calls
        if world.wrong:
            sys.exit(f"{kind} {seed}: {'; '.join(world.wrong)}")
        world = None
        shutil.rmtree(root.parent)
    print(json.dumps(told))


if __name__ == "__main__":
    import logging

    logging.disable(logging.CRITICAL)
    main(*sys.argv[1:])
