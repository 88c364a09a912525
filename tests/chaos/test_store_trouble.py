"""A store that fails in the middle of an incident: nothing is lost, nothing is done twice, and one line says why."""

import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import pytest
from sqlalchemy import text

from sickbay.adapters.stores.sql import SqlStore, open_store
from sickbay.adapters.stores.sqlite import Sqlite
from sickbay.engine.lead import Engine, Setup
from sickbay.model.errors import StoreError, StoreUnavailable, UnusableStore
from sickbay.model.facts import Fact, Observed
from sickbay.model.fault import Remedy
from sickbay.model.fleet import JobId
from sickbay.model.incident import Phase
from sickbay.model.job import JobState
from sickbay.sim.hardware import SimDefect
from sickbay.sim.host import InlineExecutor
from sickbay.sim.job_behaviour import Programme
from sickbay.sim.simulation import Plan, Simulation
from sickbay.testing.store_nouns import fact

pytestmark = pytest.mark.slow

JOB = JobId("train")
HOUR = 3600.0
ONCE = frozenset({"cordon", "uncordon", "reboot", "start", "check.start"})

LOCKS_THE_FILE = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.read()
"""


class Server(Protocol):
    def get_uri(self) -> str: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...


def opened(url: str) -> SqlStore:
    store = open_store(url)
    assert isinstance(store, SqlStore)
    return store


def under_repair(store: SqlStore) -> Simulation:
    """The standard incident, half way: its node is about to be rebooted or boots."""
    sim = Simulation(Plan(nodes=3, gpus=2), store=store)
    sim.submit(JOB, Programme(steps=300, checkpoint_every=100), nodes=2)
    assert sim.run_until(lambda: bool(sim.jobs()) and sim.job(JOB).state is JobState.RUNNING, HOUR)
    sim.world.strike(min(sim.job(JOB).claim), SimDefect(code="xid.79", cured_by=Remedy.REBOOT))
    assert sim.run_until(lambda: any(i.phase is Phase.REPAIRING for i in sim.incidents()), HOUR)
    return sim


def ends_well(sim: Simulation) -> None:
    assert sim.run_until(sim.calm, HOUR * 5)
    assert [incident.phase for incident in sim.incidents()] == [Phase.RELEASED]
    assert sim.job(JOB).state is JobState.COMPLETE
    sim.run(60.0)
    sim.invariants.at_rest()
    done = Counter((e.what, e.subject) for e in sim.world.chronicle.events if e.what in ONCE)
    assert set(done.values()) == {1}, done


def one_line(caught: pytest.ExceptionInfo[StoreError]) -> str:
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqlStore]:
    store = opened(f"sqlite:///{path}")
    yield store
    store.close()


def writer(store: SqlStore) -> Callable[[str], object]:
    assert isinstance(store._db, Sqlite)
    connection = store._db._writer
    return lambda statement: connection.exec_driver_sql(statement).scalar()


def refuses(sim: Simulation) -> bool:
    try:
        sim.hosts[0]._engine.round()
    except UnusableStore as error:
        return "is full" in str(error)
    return False


def test_a_disk_that_fills_up_and_is_cleared_has_lost_nothing(store: SqlStore) -> None:
    sim = under_repair(store)
    sql = writer(store)
    sql(f"PRAGMA max_page_count = {sql('PRAGMA page_count')}")
    with pytest.raises(UnusableStore) as caught:
        store.append([fact(str(number), text="x" * 1000) for number in range(100)])
    assert "is full: nothing was written" in one_line(caught)
    # The last free bytes are used up little by little; from then on some unit has no room.
    assert sim.run_until(lambda: refuses(sim), HOUR)
    sim.run(600.0)
    assert refuses(sim)
    assert not sim.calm()
    sql("PRAGMA max_page_count = 1000000")
    ends_well(sim)


def test_a_file_locked_by_another_process_is_waited_for(store: SqlStore, path: Path) -> None:
    sim = under_repair(store)
    writer(store)("PRAGMA busy_timeout = 1")
    command = [sys.executable, "-c", LOCKS_THE_FILE, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(StoreUnavailable) as caught:
            store.append([fact("a")])
        assert "locked by another process" in one_line(caught)
        before = sim.incidents()
        sim.run(60.0)
        assert sim.incidents() == before, "whoever cannot write can still be read"
        other.stdin.close()
    ends_well(sim)


def next_life(sim: Simulation, store: SqlStore) -> Engine:
    """The engine of a process that is started on this store after the last one ended; as in production, not strict."""
    return Engine(store, sim.hands, sim.rules, InlineExecutor(), sim.clock, Setup(holder="the next"))


def tables(path: Path) -> dict[str, object]:
    """What is in the file, but for who leads, which every new life writes, and what cannot be read."""
    found: dict[str, object] = {}
    connection = sqlite3.connect(path)
    for name in ("waits", "wait_on", "facts", "pulses", "lines", "told", "versions"):
        found[name] = connection.execute(f"SELECT * FROM {name}").fetchall()
    connection.close()
    return found


def test_a_damaged_page_stops_the_engine_with_one_line_and_nothing_is_written(store: SqlStore, path: Path) -> None:
    sim = under_repair(store)
    sql = writer(store)
    sql("PRAGMA wal_checkpoint(TRUNCATE)")
    root = sql("SELECT rootpage FROM sqlite_master WHERE name = 'nouns'")
    size = sql("PRAGMA page_size")
    assert isinstance(root, int)
    assert isinstance(size, int)
    store.close()
    with path.open("r+b") as file:
        file.seek((root - 1) * size)
        file.write(b"\xff" * size)
    before, told = tables(path), list(sim.world.chronicle.told)
    again = opened(f"sqlite:///{path}")
    with pytest.raises(UnusableStore) as caught:
        next_life(sim, again).round()
    assert "is damaged" in one_line(caught)
    assert "restore it from a backup" in one_line(caught)
    again.close()
    assert tables(path) == before
    assert sim.world.chronicle.told == told


def test_a_row_that_cannot_be_read_is_set_aside_and_its_fact_stays_in_the_log(store: SqlStore, path: Path) -> None:
    """SQLite does not notice a body that was changed inside a page: we must, before anything is planned on it."""
    sim = under_repair(store)
    node = sim.incidents()[0].node
    news = Observed(node=node, kind="xid", fields={"xid": 79})
    store.append([Fact(id="about the damaged row", at=datetime.now(UTC), news=news)])
    store.close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE nouns SET body = substr(body, 1, 40) WHERE key = ?", (f"node:{node}",))
    connection.close()
    again = opened(f"sqlite:///{path}")
    next_life(sim, again).round()
    told = [line.text for line in again.story("operator:") if line.event == "set_aside"]
    assert any(f"the row node:{node} in the store cannot be read" in text for text in told)
    assert "about the damaged row" in [fact.id for fact in again.facts(after=0, limit=100_000)]
    assert again.load([f"node:{node}"])[f"node:{node}"].damage
    again.close()


def test_a_postgresql_server_that_is_restarted_in_the_middle_is_waited_for(postgres_rig: Server) -> None:
    store = opened(postgres_rig.get_uri())
    sim = under_repair(store)
    postgres_rig.stop()
    with pytest.raises(StoreUnavailable) as caught:
        store.load(["node:a"])
    one_line(caught)
    sim.scheduler.run(sim.scheduler.now + 60.0)  # not `sim.run`: what it checks it reads from the store
    assert sim._unheard
    postgres_rig.start()
    ends_well(sim)
    with store._db.reading() as connection:
        assert connection.execute(text("SELECT count(*) FROM facts")).scalar_one() > 20
    store.close()
