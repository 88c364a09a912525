"""Ranks in real processes, each on a "node": a directory of its own for what is near, and one directory for all.

Run as a program it is one rank: it begins, tells how, and does what it is told on its standard input, line by line.
"""

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from sickbay import train
from sickbay.train import beginning, committing, layout, peer_server, uploads


class Rank:
    """One rank in a process of its own."""

    def __init__(self, where: Path, attempt: int, rank: int, ranks: int, node: int, **settings: str) -> None:
        own = {name: value for name, value in os.environ.items() if not name.startswith("SICKBAY_")}
        own |= {
            "SICKBAY_CHECKPOINT_DIR": str(where / "far"),
            "SICKBAY_CHECKPOINT_NEAR": str(where / f"node-{node}"),
            "SICKBAY_ATTEMPT": str(attempt),
            "RANK": str(rank),
            "LOCAL_RANK": "0",
            "NODE_RANK": str(node),
            "WORLD_SIZE": str(ranks),
        } | settings
        self.rank = rank
        self.process = subprocess.Popen(
            [sys.executable, __file__], env=own, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def says(self) -> Any:
        line = self.process.stdout.readline()
        assert line, f"rank {self.rank} ended with {self.process.wait()}"
        return json.loads(line)

    def tell(self, act: str, *args: Any) -> None:
        self.process.stdin.write(json.dumps([act, *args]) + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        with suppress(BrokenPipeError):
            self.process.stdin.close()


class Gang:
    """All ranks of one attempt."""

    def __init__(self, where: Path, attempt: int, nodes: list[int], **settings: str) -> None:
        where.mkdir(exist_ok=True)
        self.ranks = [Rank(where, attempt, rank, len(nodes), node, **settings) for rank, node in enumerate(nodes)]
        self.begun: list[Any] = []

    def begin(self) -> Self:
        self.begun = [rank.says() for rank in self.ranks]
        return self

    @property
    def resumed(self) -> Any:
        told = [begun["resumed"] for begun in self.begun]
        assert all(one == told[0] for one in told)
        return told[0]

    def all(self, act: str, *args: Any) -> list[Any]:
        for rank in self.ranks:
            rank.tell(act, *args)
        return [rank.says() for rank in self.ranks]

    def kill(self) -> None:
        for rank in self.ranks:
            rank.kill()

    def end(self) -> None:
        for rank in self.ranks:
            rank.tell("end")
        assert [rank.says() for rank in self.ranks] == ["closed"] * len(self.ranks)
        assert [rank.process.wait(60) for rank in self.ranks] == [0] * len(self.ranks)


def go_wrong() -> None:
    """What this rank's world does to it."""
    if begin := os.environ.get("SICKBAY_TEST_UPLOADS"):  # far is out of reach, as it were, until this file is there
        uploads.MAY_BE_ASKED, uploads.AGAIN = 0.0, ()  # type: ignore[assignment]

        def ask(own: uploads.Uploads, *, of: Callable[..., Any] = uploads.Uploads._ask) -> Any:
            while not Path(begin).exists() and not own._stopping.wait(0.05):
                pass
            return of(own)

        uploads.Uploads._ask = ask  # type: ignore[method-assign,assignment]
    if gate := os.environ.get("SICKBAY_TEST_COMMITS"):  # not before this file is there
        committing.create_manifest = behind(gate, layout.create_manifest)  # type: ignore[assignment,attr-defined]
    if gate := os.environ.get("SICKBAY_TEST_CHOOSES"):
        beginning.create_lineage = behind(gate, layout.create_lineage)  # type: ignore[assignment,attr-defined]
    if os.environ.get("SICKBAY_TEST_LINKS") == "none":  # and the first rename of one fails
        failed: list[str] = []

        def rename(source: Path, target: Path, *, move: Callable[[Path, Path], None] = os.rename) -> None:
            if Path(target).name == "upload-0.json" and not failed:
                failed.append("once")
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            move(source, target)

        def link(*_: object) -> None:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

        os.link, os.rename = link, rename  # type: ignore[assignment]
        uploads.IDLE = 0.1
    if os.environ.get("SICKBAY_TEST_PEERS") == "deaf":  # no way leads to it
        address: Callable[..., str] = lambda _: f"127.0.0.{2 + int(os.environ['RANK'])}:9"  # noqa: E731
        peer_server.address_of = address  # type: ignore[attr-defined]


def behind(gate: str, create: Callable[[Path, Any], bool]) -> Callable[[Path, Any], bool]:
    def late(root: Path, content: Any) -> bool:
        while not Path(gate).exists():
            time.sleep(0.01)
        return create(root, content)

    return late


def main() -> None:
    go_wrong()
    try:
        checkpoints = train.Checkpoints(patience=float(os.environ.get("SICKBAY_TEST_PATIENCE", "30")))
    except train.CheckpointError as why:
        say({"resumed": f"{type(why).__name__}: {why}"})
        return
    said: dict[str, Any] = {"resumed": None if checkpoints.resumed is None else str(checkpoints.resumed)}
    said["skipped"] = [str(one) for one in checkpoints.skipped]
    if checkpoints.resumed is not None and checkpoints.resumed.world_size == checkpoints.world_size:
        said["state"] = checkpoints.load()
    say(said)
    for line in sys.stdin:
        act, *args = json.loads(line)
        try:
            say(perform(checkpoints, act, args))
        except train.CheckpointError as why:
            say(f"{type(why).__name__}: {why}")
        if act == "end":
            return


def perform(checkpoints: train.Checkpoints, act: str, args: list[Any]) -> Any:
    if act == "save":
        step, *more = args
        state = {"step": step, "rank": checkpoints.rank, "attempt": checkpoints.attempt}
        done = checkpoints.save(step, state | {"more": more} if more else state)
        if checkpoints._saves.thread is not None:
            checkpoints._saves.thread.join()
        if checkpoints._near is not None and not args[2:]:  # else: what is done behind it is not waited for
            checkpoints._near.copying.wait(30)
            checkpoints._saves.uploads.thinning.wait(30)

        return done
    if act == "leave_out":
        return checkpoints.leave_out(args[0], "as a test says")
    if act == "load":
        return checkpoints.load(*args)
    if act == "wait":
        checkpoints.wait()
        return "durable"
    checkpoints.__exit__(None, None, None)
    return "closed"


def say(what: Any) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main()
