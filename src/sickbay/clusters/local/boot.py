"""Entry point of a boot: takes the seat's lock, makes sure that the seat means this boot, becomes its supervisor."""

import argparse
import fcntl
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from sickbay.clusters.local.complaints import complain
from sickbay.clusters.local.files import BOOT_MARK, ClusterFile, LocalSeat, Paths, read
from sickbay.clusters.local.supervisor import Supervisor

LOCK_WAIT = 3.0  # seconds: the boot before us may still be dying

WRONG_USE, SUPERSEDED, TAKEN = 2, 4, 5  # exit codes


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    parser = argparse.ArgumentParser(prog="supervisor", description="One node of the local cluster.")
    parser.add_argument("--root", type=Path, required=True, help="the local cluster's directory")
    parser.add_argument("--seat", required=True, help="the name of the node")
    parser.add_argument("--boot", required=True, help="the boot id that seat.json names")
    given = parser.parse_args(arguments)
    sys.exit(begin(Paths(given.root.absolute(), given.seat), given.boot))


def begin(paths: Paths, boot_id: str) -> int:
    """Returns when the boot is over, with the exit code."""
    if not paths.seat_file.exists():
        return _refuse(WRONG_USE, f"{paths.seat_file} does not exist: --root and --seat must name a seat that does")
    lock = _lock(paths.alive)
    if lock is None:
        return _refuse(TAKEN, f"another boot of {paths.seat.name} still runs (it holds the lock on {paths.alive})")
    try:
        # Only now: whoever began a newer boot wrote it there before they waited for this lock.
        seat = read(paths.seat_file, LocalSeat)
        if seat is None or seat.boot_id != boot_id:
            newer = seat.boot_id if seat else "nothing"
            return _refuse(SUPERSEDED, f"seat {paths.seat.name} has gone on to boot {newer}: {boot_id} is over")
        os.environ[BOOT_MARK] = boot_id
        _supervisor(paths, seat).run()
        return 0
    finally:
        os.close(lock)


def _supervisor(paths: Paths, seat: LocalSeat) -> Supervisor:
    cluster = read(paths.root / "cluster.json", ClusterFile)
    if cluster is not None and cluster.kind == "here":
        from sickbay.clusters.local.here.supervisor import here_supervisor

        return here_supervisor(paths, seat)
    return Supervisor(paths, seat)


def _lock(alive: Path) -> int | None:
    """The lock is a property of this process: nobody here may open the file again, as closing it would let go."""
    handle = os.open(alive, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    deadline = time.monotonic() + LOCK_WAIT
    while True:
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() >= deadline:
                os.close(handle)
                return None
            time.sleep(0.02)
        else:
            return handle


def _refuse(code: int, text: str) -> int:
    complain(text)
    return code
