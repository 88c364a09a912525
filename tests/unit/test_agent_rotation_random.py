"""Property: however a log is rotated and whenever its reader dies, each line counts once.

A reader has two places, as `probes/begins.py` says: `told`, and an older one from which it reads again.
"""

import os
import random
import shutil
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.support.thorough import THOROUGH

from sickbay.agent.probes import log_file, one_file
from sickbay.agent.probes.log_file import FilePlace, LogFile

SEEDS = range(2000) if THOROUGH else range(60)


class TurningLog:
    """A log that is copied and cut off, or moved away and made anew. Its files are a moment apart, long ago."""

    def __init__(self, path: Path, dice: random.Random) -> None:
        self.path, self._dice = path, dice
        self._copies = dice.random() < 0.5  # a log is always turned in the same way
        self.lines = self._turns = 0
        self._clock = time.time() - 10_000.0
        self.path.touch()

    def write(self, count: int) -> None:
        with self.path.open("ab") as out:
            for _ in range(count):
                out.write(f"{self.lines} {'x' * self._dice.randrange(80)}\n".encode())
                self.lines += 1
        if count:
            self._date(self.path)

    def turn(self) -> None:
        self._turns += 1
        aside = self.path.with_name(f"{self.path.name}.{self._turns}")
        if self._copies:
            shutil.copy(self.path, aside)
            self._date(aside)
            os.truncate(self.path, 0)
        else:
            self.path.rename(aside)
            self.path.touch()
        self._date(self.path)

    def _date(self, path: Path) -> None:
        self._clock += self._dice.choice((0.01, 0.3, 2.0))
        os.utime(path, (self._clock, self._clock))


class MortalReader:
    """`place` and `told` are what is on its disk: `told` after each reading, the other one later, or not at all."""

    def __init__(self, path: Path, dice: random.Random) -> None:
        self._path, self._dice = path, dice
        self._file = LogFile(path, rotated=True)
        self.counted: Counter[int] = Counter()
        self.lost: list[str] = []
        self.read()
        self._place = self._told = self._file.place
        self._earlier: list[FilePlace] = [self._told]

    def read(self, *, some: bool = False) -> None:
        while True:
            for at, text in self._file.lines():
                if not self._file.was_told(at):
                    self.counted[int(text.split()[0])] += 1
            self.lost += self._file.lost
            self._file.lost.clear()
            if not self._file.behind or (some and self._dice.random() < 0.5):
                return

    def keep(self) -> None:
        self._told = self._file.place
        if self._file.rereading:
            return
        self._earlier = [*self._earlier[-3:], self._told]
        if self._dice.random() < 0.5:
            self._place = self._dice.choice(self._earlier)

    def die(self) -> None:
        self._file.close()
        told = self._told if self._told != self._place else None
        self._file = LogFile(self._path, self._place, told=told, rotated=True)


@pytest.mark.parametrize("seed", SEEDS)
def test_each_line_counts_once_however_it_is_rotated_and_whenever_the_reader_dies(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_file, "CHUNK", 4096)  # a backlog takes several turns
    monkeypatch.setattr(log_file, "QUIET", 0.0)  # whoever was moved away is not written to any more
    dice = random.Random(seed)
    log = TurningLog(tmp_path / "syslog", dice)
    log.write(5)
    reader = MortalReader(log.path, dice)
    for _ in range(dice.randrange(20, 120)):
        match dice.choices(("write", "turn", "read", "die"), (45, 15, 25, 15))[0]:
            case "write":
                log.write(dice.choice((0, 1, 5, 50, 300)))
            case "turn":
                log.turn()
            case "read":
                reader.read(some=dice.random() < 0.5)
                reader.keep()
            case "die":
                reader.die()
    for _ in range(3):
        reader.read()
    assert [n for n in range(log.lines) if reader.counted[n] != 1] == []
    # A file that was read to its end and has left the newest twenty since may have grown there: that is said.
    assert reader.lost == [] or THOROUGH
