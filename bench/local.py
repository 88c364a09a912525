"""A real `sickbay up` under the figures: a controller process, nodes with agents, and what is read from their files."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from tests.support.up_rig import Sickbay, running

from sickbay.clusters.local.files import LocalSeat, Paths, read

# Many faults within minutes are what a brake is for, and a node that fails ten times in a row is a lemon. Here both are
# the measurement's own doing, so they are open; all that lies between a fault and what follows it is the default's.
OPEN = """\
extends: default
limits:
  - {pool: "*", out_percent: 100, out_at_least: 1, repairing_percent: 100, repairing_at_least: 1, why: a bench}
brakes: []
"""
LADDER = """\
ladders:
  - why: Without strikes.
    rungs:
      - {do: reboot, tries: 1, deadline: 15m, verify: 2, verify_deadline: 15m, on_could_not_run: hold}
"""
PATIENCE = 60.0


@contextmanager
def up(nodes: int, policy: str, gpus: int = 2) -> Iterator[Sickbay]:
    """All nodes ready. Afterwards nothing of it is left."""
    with tempfile.TemporaryDirectory(prefix="sickbay-bench-") as directory:
        life = running(Path(directory) / "state", nodes=nodes, gpus=gpus, policy=policy)
        rig = next(life)
        try:
            yield rig
        finally:
            next(life, None)


def until(condition: Callable[[], bool], rig: Sickbay, what: str, every: float = 0.002) -> None:
    """Looks at files only, most of all: whoever asks the controller all the time measures their own questions."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError(f"not within {PATIENCE:.0f} s: {what}\n{rig.dump()}")
        time.sleep(every)


def seat(rig: Sickbay, node: str) -> LocalSeat:
    found = read(Paths(rig.state / "local", node.rpartition("/")[2]).seat_file, LocalSeat)
    assert found is not None
    return found


def kernel_log(rig: Sickbay, node: str) -> Path:
    """Of the boot that runs now."""
    holder = seat(rig, node)
    return Paths(rig.state / "local", holder.name).kmsg(holder.instance_id, holder.boot_id)


def wall(text: str) -> float:
    """The seconds of a time as the API writes it."""
    return datetime.fromisoformat(text).timestamp()
