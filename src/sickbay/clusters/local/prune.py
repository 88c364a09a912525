"""Retention: what is forgotten, so that the room's directory does not grow for ever."""

import shutil
import time
from collections.abc import Iterable
from pathlib import Path

from sickbay.clusters.local.attempts import Attempts
from sickbay.clusters.local.rack import Rack

ATTEMPTS = 50  # attempts that have ended stay listed until there are so many newer ones …
LISTED_FOR = 600.0  # … and so many seconds have passed
RUNS = 30  # outputs of ranks of attempts that are no longer listed, on each seat
BOOTS = 20  # kernel logs of an instance
INSTANCES = 5  # of each seat
REPAIRS = 100  # of each seat


def prune(room: Rack, attempts: Attempts) -> None:
    with attempts.held():
        everything = attempts.all()
        now = time.time()
        for position, attempt in enumerate(everything):
            newer = len(everything) - position - 1
            if attempt.closed_at is not None and newer >= ATTEMPTS and now - attempt.closed_at > LISTED_FOR:
                attempts.forget(attempt)
        listed = {attempt.name for attempt in attempts.all()}
    for name in room.names():
        # Without holding the seat, which a repair may do for long: what has just come is the newest and stays.
        seat, paths = room.seat(name), room.paths(name)
        instances = paths.seat / "instances"
        _keep(instances.iterdir(), INSTANCES, spare={seat.instance_id})
        _keep(
            (path for path in instances.glob("*/ranks/*") if path.name.rpartition(".")[0] not in listed),
            RUNS,
            spare=set(),
        )
        _keep(instances.glob("*/boots/*"), BOOTS, spare={seat.boot_id})
        _keep(paths.repairs.glob("*.json"), REPAIRS, spare=set())


def _keep(paths: Iterable[Path], most: int, spare: set[str]) -> None:
    """Remove all but the newest; those in `spare` stay and do not count."""
    aged = sorted((path for path in paths if path.name not in spare), key=_age)
    for path in aged[: max(0, len(aged) - most)]:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
