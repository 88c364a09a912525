"""Retention in the rank directory: /run is memory, and a node that is never rebooted starts ranks for years.

A rank that is over keeps its output while it is one of the newest, and its place, which keeps it from being started a
second time, much longer. Only files that belong there are removed: what else a user has put there is his.
"""

import os
import re
import time
from contextlib import suppress
from pathlib import Path

from sickbay.agent.ranks.directory import RANK_FILE, names_in, ranks_dir, runner_of

OUTPUTS = 32  # ranks that are over and keep their output
PLACES = 1000  # and that keep their directory
REST = 3600.0  # seconds after its end in which nothing of a rank is touched
EVERY = 600.0  # seconds between two looks

_OUTPUT = re.compile(r"output(\.\d+)?|stacks\.txt")
_OURS = re.compile(r"output(\.\d+)?|stacks\.(txt|signal)|rank\.json|alive|heartbeat\.json(\.\d+)?|save\.asked|\..*")


def tidy(base: Path, now: float | None = None) -> None:
    """Nothing is raised: what cannot be removed stays."""
    ended: list[tuple[float, Path]] = []
    now = time.time() if now is None else now
    for name in names_in(base):
        run = ranks_dir(base) / name
        with suppress(OSError):
            over_at = (run / RANK_FILE).stat(follow_symlinks=False).st_mtime
            if now - over_at > REST and runner_of(run) is None:
                ended.append((over_at, run))
    ended.sort(reverse=True)
    for _, run in ended[PLACES:]:
        _remove(run, _OURS)
        with suppress(OSError):
            run.rmdir()
    for _, run in ended[OUTPUTS:PLACES]:
        _remove(run, _OUTPUT)


def _remove(run: Path, names: re.Pattern[str]) -> None:
    """In that very directory, wherever a link in its place might lead."""
    with suppress(OSError):
        directory = os.open(run, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            for name in os.listdir(directory):  # noqa: PTH208 - by its handle
                if names.fullmatch(name):
                    with suppress(OSError):
                        os.unlink(name, dir_fd=directory)
        finally:
            os.close(directory)
