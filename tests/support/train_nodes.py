"""Random attempts of a few ranks, each on a node with its own disk: killed, frozen, left alive, their disks lost.

    python tests/support/train_nodes.py DIRECTORY FIRST COUNT

Forks its ranks, and plays so many seeds. The oracle knows only what ranks have said of their steps and
which disks were lost, and reads LINEAGE for who began from what. What was durable by any rank's word, or near by the
word of all its ranks whose disks (or, with copies, their neighbours') take part, must be found by the next attempt, or
something newer.
"""

import json
import os
import random
import signal
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from typing import Any, NamedTuple

from tests.support import near_gang

ATTEMPTS = 5
Place = tuple[int, int]


class Rank:
    """A forked child that does what it is told."""

    def __init__(self, where: Path, attempt: int, rank: int, nodes: list[int], settings: dict[str, str]) -> None:
        own = {
            "SICKBAY_CHECKPOINT_DIR": str(where / "far"),
            "SICKBAY_CHECKPOINT_NEAR": str(where / f"node-{nodes[rank]}"),
            "SICKBAY_ATTEMPT": str(attempt),
            "RANK": str(rank),
            "NODE_RANK": str(nodes[rank]),
            "WORLD_SIZE": str(len(nodes)),
        } | settings
        orders, answers = os.pipe(), os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.dup2(orders[0], 0)
            os.dup2(answers[1], 1)
            os.closerange(3, 200)
            os.environ.update(own)
            sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
            with suppress(BaseException):
                near_gang.main()
            os._exit(0)
        os.close(orders[0])
        os.close(answers[1])
        self.orders, self.answers = os.fdopen(orders[1], "w"), os.fdopen(answers[0])

    def tell(self, act: str, *args: Any) -> None:
        with suppress(OSError):
            self.orders.write(json.dumps([act, *args]) + "\n")
            self.orders.flush()

    def says(self) -> Any:
        line = self.answers.readline()
        return json.loads(line) if line.endswith("\n") else None

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def end(self) -> None:
        self.signal(signal.SIGKILL)
        os.waitpid(self.pid, 0)
        for file in (self.orders, self.answers):
            with suppress(OSError):
                file.close()


class Attempt(NamedTuple):
    nodes: list[int]
    copies: bool
    ranks: list[Rank]
    near: dict[int, list[bool]]  # step → whose part is near, by rank
    durable: set[int]


class World:
    def __init__(self, where: Path, seed: int) -> None:
        self.where, self.dice = where, random.Random(seed)
        self.lost: dict[int, int] = Counter()  # node → how often its disk was
        self.disks: dict[int, list[int]] = {}  # attempt → how often each rank's disk had been lost when it began
        self.attempts: dict[int, Attempt] = {}
        self.alive: list[Attempt] = []
        self.told: Counter[str] = Counter()
        self.step = 0

    # --- the oracle

    def lineage(self, number: int) -> Any:
        path = self.where / "far" / f"attempt-{number}" / "LINEAGE"
        return json.loads(path.read_text()) if path.exists() else None

    def is_near(self, place: Place, nodes: list[int]) -> bool:
        attempt, step = place
        of = self.attempts[attempt]
        parts = of.near.get(step, [False])
        return all(parts) and all(self._held(attempt, rank, nodes) for rank in range(len(of.nodes)))

    def _held(self, attempt: int, rank: int, nodes: list[int]) -> bool:
        of = self.attempts[attempt]
        holders = [rank, (rank + 1) % len(of.nodes)] if of.copies else [rank]
        return any(of.nodes[one] in nodes and self.lost[of.nodes[one]] == self.disks[attempt][one] for one in holders)

    def way(self) -> list[tuple[int, int]]:
        """Attempts of the lineage and up to which step they count, the newest first."""
        begun = [number for number in self.attempts if self.lineage(number)]
        way: list[tuple[int, int]] = []
        number, upto = max(begun, default=0), 10**9
        while number:
            way.append((number, upto))
            parent = self.lineage(number)["parent"]
            number, upto = (parent["attempt"], parent["step"]) if parent else (0, 0)
        return way

    def expected(self, nodes: list[int]) -> Place | None:
        for number, upto in self.way():
            of = self.attempts[number]
            steps = of.durable | {step for step in of.near if self.is_near((number, step), nodes)}
            if fit := [step for step in steps if step <= upto]:
                return number, max(fit)
        return None

    def origin(self, place: Place) -> int:
        """Which attempt had trained it: a parent may have been saved again."""
        attempt, step = place
        while step not in self.attempts[attempt].near:
            parent = self.lineage(attempt)["parent"]
            assert parent["step"] == step, f"{place} comes from nowhere"
            attempt = parent["attempt"]
        return attempt

    # --- what happens

    def play(self) -> None:
        copies, nodes = self.dice.random() < 0.5, list(range(self.dice.choice((2, 3))))
        for number in range(1, ATTEMPTS + 1):
            if number > 1 and self.dice.random() < 0.3:
                self.dice.shuffle(nodes)
            if number > 1 and self.dice.random() < 0.15:
                nodes[self.dice.randrange(len(nodes))] = 10 * number
            if number > 1 and self.dice.random() < 0.15:
                nodes = nodes[:2] if len(nodes) > 2 else [*nodes, 10 * number + 1]
            older, self.alive = self.alive, []
            found = self.begin(number, list(nodes), copies=copies)
            if found is not None:
                self.train(number, found, older)
            self.end(number)
            for attempt in older:
                self.bury(attempt)
            self.lose_disks(nodes)
        for attempt in self.alive:
            self.bury(attempt)

    def begin(self, number: int, nodes: list[int], *, copies: bool) -> int | None:
        settings = {"SICKBAY_CHECKPOINT_COPIES": str(int(copies)), "SICKBAY_TEST_PATIENCE": "20"}
        if self.dice.random() < 0.4:
            settings["SICKBAY_TEST_UPLOADS"] = "none"
        expected, way = self.expected(nodes), [one for one, _ in self.way()]
        self.disks[number] = [self.lost[node] for node in nodes]
        ranks = [Rank(self.where, number, rank, nodes, settings) for rank in range(len(nodes))]
        attempt = self.attempts[number] = Attempt(nodes, copies, ranks, {}, set())
        if self.dice.random() < 0.1:
            ranks[self.dice.randrange(len(ranks))].signal(signal.SIGKILL)
            self.told["killed as it began"] += 1
            return None
        begun = [rank.says() for rank in ranks]
        resumed = begun[0]["resumed"]
        assert all(one["resumed"] == resumed for one in begun), begun
        if resumed is not None and not resumed.startswith("attempt-"):
            self.told["refused"] += 1
            print("refused", resumed, file=sys.stderr)
            return None
        self.told["begun"] += 1
        if resumed is None:
            assert expected is None, f"attempt {number} begins anew, not from {expected}"
            return 0
        place = tuple(int(part.split("-")[1]) for part in resumed.split("/"))
        self.told["near" if self.lineage(number)["near"] else "far"] += 1
        if expected is not None:
            rank_of = (way.index(place[0]), -place[1]), (way.index(expected[0]), -expected[1])
            assert rank_of[0] <= rank_of[1], f"attempt {number} goes on from {place}, not from {expected}"
        for rank, one in enumerate(begun):
            if "state" in one:
                state = {"step": place[1], "rank": rank, "attempt": self.origin((place[0], place[1]))}
                assert one["state"] == state, f"attempt {number} loaded {one['state']} of {place}, not {state}"
        attempt.near.clear()
        return place[1]

    def train(self, number: int, step: int, older: list[Attempt]) -> None:
        of = self.attempts[number]
        for _ in range(self.dice.randrange(6)):
            step += 1
            for attempt in older:
                for rank in attempt.ranks:
                    rank.signal(signal.SIGCONT)
                    rank.tell("save", 1000 + step)
            of.near[step] = [False] * len(of.ranks)
            for rank in of.ranks:
                rank.tell("save", step)
            if self.dice.random() < 0.2:
                of.ranks[self.dice.randrange(len(of.ranks))].signal(signal.SIGKILL)
                return
            of.near[step] = [rank.says() is True for rank in of.ranks]
            if self.dice.random() < 0.3 and not self.wait(of, step):
                return

    def wait(self, of: Attempt, step: int) -> bool:
        """Some rank may be killed before it has said anything."""
        for rank in of.ranks:
            rank.tell("wait")
        victim = self.dice.choice(of.ranks) if self.dice.random() < 0.3 else None
        if victim is not None:
            victim.signal(signal.SIGKILL)
            for rank in of.ranks:  # what they had said before they end
                rank.signal(signal.SIGKILL)
        said = [rank.says() for rank in of.ranks]
        if "durable" in said:
            of.durable.add(step)
            self.told["durable"] += 1
        return victim is None and said == ["durable"] * len(said)

    def end(self, number: int) -> None:
        of, how = self.attempts[number], self.dice.random()
        if how < 0.2:
            self.told["left alive"] += 1
            self.alive.append(of)
        elif how < 0.4:
            self.told["frozen"] += 1
            for rank in of.ranks:
                rank.signal(signal.SIGSTOP)
            self.alive.append(of)
        else:
            self.bury(of)

    def bury(self, of: Attempt) -> None:
        for rank in of.ranks:
            rank.end()
        of.ranks.clear()

    def lose_disks(self, nodes: list[int]) -> None:
        for node in nodes:
            if self.dice.random() < 0.12:
                self.told["disks lost"] += 1
                self.lost[node] += 1
                rmtree(self.where / f"node-{node}", ignore_errors=True)


def main(directory: str, first: str, count: str) -> None:
    told: Counter[str] = Counter()
    for seed in range(int(first), int(first) + int(count)):
        where = Path(directory) / str(seed)
        where.mkdir(parents=True)
        world = World(where, seed)
        try:
            world.play()
        except BaseException as why:
            raise AssertionError(f"seed {seed}: {why}") from why
        finally:
            for attempt in world.attempts.values():
                for rank in attempt.ranks:
                    with suppress(OSError):
                        rank.end()
        told += world.told
        rmtree(where)
    print(json.dumps(told))


if __name__ == "__main__":
    import logging

    logging.disable()
    main(*sys.argv[1:])
