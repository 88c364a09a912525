"""How many incidents are decided in a second: from a fault's fact to the committed Quarantine."""

import sqlite3
import tempfile
import time
from pathlib import Path

from bench.figure import Figure, Line, Size
from bench.rig import Bench, store_of, xid
from sickbay.model.incident import Incident, Phase


def measure(kind: str, faults: int) -> float:
    """Incidents per second, over as many nodes as there are faults."""
    with store_of(kind) as store:
        bench = Bench.over(store)
        bench.populate(faults)
        bench.ingest.take([xid(number, 79, number, at=bench.clock.wall()) for number in range(faults)])
        start = time.perf_counter()
        bench.settle()
        seconds = time.perf_counter() - start
        decided = sum(
            isinstance(row.row, Incident) and row.row.phase is Phase.QUARANTINED
            for row in store.load(store.keys("incident", limit=faults)).values()
        )
        if decided != faults:
            raise RuntimeError(f"{decided} of {faults} faults were quarantined")
    return faults / seconds


def synced_commits(seconds: float) -> float:
    """Commits of one small row per second that a bare file takes, each synced."""
    with tempfile.TemporaryDirectory(prefix="sickbay-bench-") as directory:
        connection = sqlite3.connect(Path(directory) / "bare.db", isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE rows (key INTEGER PRIMARY KEY, body TEXT NOT NULL)")
        start, done = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            connection.execute("INSERT INTO rows (body) VALUES (?)", ("x" * 300,))
            done += 1
        connection.close()
        return done / (time.perf_counter() - start)


def run(size: Size) -> Figure:
    faults = size.pick(full=5_000, quick=500, tiny=20)
    few = size.pick(full=1_000, quick=200, tiny=20)
    memory, sqlite = measure("memory", faults), measure("sqlite", few)
    bare = synced_commits(size.pick(full=3, quick=1, tiny=1))
    return Figure(
        title="Decisions per second",
        about=(
            f"Nodes fail all at once (Xid 79; {faults:,} in memory, {few:,} on SQLite), limits and brakes are open. For"
            " each the fact is learned, the incident opened and planned, its Quarantine written down, marked as sent"
            " before the call, sent, and the call's outcome taken in, learned and planned. Two of these commits must"
            " be on the disk before the next step: SENT, and the outcome."
        ),
        lines=(
            Line("memory: incidents from fact to answered Quarantine", f"{memory:,.0f}/s"),
            Line("SQLite: incidents from fact to answered Quarantine", f"{sqlite:,.0f}/s"),
            Line("bare file: synced commits of one small row", f"{bare:,.0f}/s"),
            Line("bare synced commits for the time of one incident", f"{bare / sqlite:.1f}"),
        ),
    )
