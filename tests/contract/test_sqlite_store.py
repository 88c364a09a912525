"""What SQLite alone can suffer: processes that die or meet on one file, damaged files, full disks."""

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from sickbay.adapters.stores.memory import MemoryStore
from sickbay.adapters.stores.schema import NEWEST
from sickbay.adapters.stores.sql import SqlStore, open_store
from sickbay.adapters.stores.sqlite import Sqlite
from sickbay.model.errors import BadInput, UnusableStore
from sickbay.model.fleet import Ledger
from sickbay.model.rows import Unit
from sickbay.testing.store_nouns import command, fact, line, node, pulse, writes
from sickbay.testing.store_rows import A, B

COMMITS_FOR_EVER = """
import sys
from itertools import count
from sickbay.adapters.stores.sql import open_store
from sickbay.model.fleet import Ledger
from sickbay.model.rows import Unit
from sickbay.testing.store_nouns import command, fact, line
store = open_store(sys.argv[1])
epoch = store.lease("child", 60.0).epoch
for turn in count(1):
    store.append([fact(f"{turn}-{part}") for part in range(3)])
    store.commit(Unit(writes={"ledger:p": Ledger(pool="p", turn=turn)}, story=(line(str(turn), "ledger:p"),)), epoch)
    print(turn, flush=True)
"""

HOLDS_THE_FILE = """
import sys
from sickbay.adapters.stores.sql import open_store
store = open_store(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""


def child(script: str, url: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db"


def one_line(caught: pytest.ExceptionInfo[UnusableStore]) -> str:
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.slow
def test_everything_acknowledged_is_there_after_kill_9(url: str) -> None:
    with child(COMMITS_FOR_EVER, url) as process:
        assert process.stdout is not None
        for _ in range(30):
            acknowledged = int(process.stdout.readline())
        process.kill()
        for late in process.stdout:
            acknowledged = int(late) if late.endswith("\n") else acknowledged
    store = open_store(url)
    ledger = store.load(["ledger:p"])["ledger:p"].row
    assert isinstance(ledger, Ledger)
    assert acknowledged <= ledger.turn <= acknowledged + 1
    assert [told.text for told in store.story("ledger:p")] == [str(turn + 1) for turn in range(ledger.turn)]
    kept = {each.id for each in store.facts(0, limit=10**6)}
    assert kept >= {f"{turn}-{part}" for turn in range(1, acknowledged + 1) for part in range(3)}
    store.close()


@pytest.mark.slow
def test_a_second_process_is_refused_in_one_line_that_names_the_first(url: str) -> None:
    with child(HOLDS_THE_FILE, url) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "open\n"
        with pytest.raises(UnusableStore) as caught:
            open_store(url)
        assert f"is in use by process {process.pid}" in one_line(caught)
        process.stdin.close()
        process.wait(timeout=10)
    open_store(url).close()


@pytest.mark.parametrize("reader_first", [False, True], ids=["", "opened before anybody wrote"])
def test_whoever_only_reads_takes_no_lock_and_sees_what_was_committed(url: str, *, reader_first: bool) -> None:
    open_store(url).close()
    early = open_store(url, readonly=True)
    store = open_store(url)
    lease = store.lease("me", 60.0)
    assert lease is not None
    late = open_store(url, readonly=True)
    reader, other = (early, late) if reader_first else (late, early)
    other.close()
    store.commit(Unit(writes={A: node("a")}, story=(line("told", A),)), lease.epoch)
    assert reader.load([A]) == store.load([A])
    assert list(reader.story(A)) == [line("told", A)]
    with pytest.raises(UnusableStore) as caught:
        reader.append([fact("a")])
    assert "opened for reading only" in one_line(caught)
    reader.close()
    store.close()


def test_a_file_of_the_first_schema_is_brought_up_to_date_and_loses_nothing(url: str, tmp_path: Path) -> None:
    store = open_store(url)
    store.append([fact("a")])
    store.close()
    with closing(sqlite3.connect(tmp_path / "store.db")) as connection:
        connection.execute("DROP TABLE letters")
        connection.execute("UPDATE meta SET schema_version = 1")
        connection.commit()
    again = open_store(url)
    assert [each.id for each in again.facts(0)] == ["a"]
    again.post([command("look")])
    assert list(again.mail(command("look").node)) == [command("look")]
    again.close()
    with closing(sqlite3.connect(tmp_path / "store.db")) as connection:
        assert connection.execute("SELECT schema_version FROM meta").fetchall() == [(NEWEST,)]


def test_rows_of_an_older_schema_are_refused_not_misread(url: str, tmp_path: Path) -> None:
    store = open_store(url)
    lease = store.lease("me", 30.0)
    assert lease is not None
    store.commit(Unit(writes={A: node("a")}), lease.epoch)
    store.close()
    with closing(sqlite3.connect(tmp_path / "store.db")) as connection:
        connection.execute("UPDATE meta SET schema_version = 2")
        connection.commit()
    with pytest.raises(UnusableStore) as caught:
        open_store(url)
    assert "written by an older Sickbay" in one_line(caught)


def test_a_leader_that_died_does_not_keep_the_lease_from_the_next(url: str) -> None:
    store = open_store(url)
    first = store.lease("the dead", 3600.0)
    assert first is not None
    store.close()
    store = open_store(url)
    second = store.lease("the next", 60.0)
    assert second is not None
    assert second.epoch > first.epoch
    store.close()


def test_a_full_disk_loses_nothing_and_leaves_nothing_half_done(url: str) -> None:
    store = open_store(url)
    assert isinstance(store, SqlStore)
    lease = store.lease("me", 60.0)
    assert lease is not None
    store.commit(writes(node("a")), lease.epoch)
    writer = store._db._writer  # type: ignore[attr-defined]
    pages = writer.exec_driver_sql("PRAGMA page_count").scalar_one()
    writer.exec_driver_sql(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(UnusableStore) as caught:
        store.commit(writes(node("a", ready=False), node("b", domain="x" * 300_000)), lease.epoch)
    assert "is full" in one_line(caught)
    with pytest.raises(UnusableStore):
        store.append([fact(f"{number}", text="x" * 10_000) for number in range(10)])
    assert store.load([A])[A].row == node("a")
    assert store.load([B])[B].row is None
    assert list(store.facts(0)) == []
    writer.exec_driver_sql("PRAGMA max_page_count = 1000000")
    assert store.append([fact("after")]) == 1
    store.commit(writes(node("b")), lease.epoch)
    store.close()


def test_a_file_that_is_no_database_is_refused_and_left_as_it_was(tmp_path: Path, url: str) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(b"these are my holiday photographs" * 100)
    with pytest.raises(UnusableStore) as caught:
        open_store(url)
    assert "damaged or no SQLite file" in one_line(caught)
    assert path.read_bytes() == b"these are my holiday photographs" * 100


def test_a_damaged_file_is_named_as_such_when_it_is_read(tmp_path: Path, url: str) -> None:
    store = open_store(url)
    store.append([fact(str(number), text="x" * 500) for number in range(200)])
    store.close()
    path = tmp_path / "store.db"
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 4096))
    with pytest.raises(UnusableStore) as caught:
        open_store(url).facts(0)
    assert "damaged" in one_line(caught)


def test_a_store_of_a_newer_version_is_refused(tmp_path: Path, url: str) -> None:
    open_store(url).close()
    with sqlite3.connect(tmp_path / "store.db") as connection:
        connection.execute(f"UPDATE meta SET schema_version = {NEWEST + 1}")
    connection.close()
    for readonly in (False, True):
        with pytest.raises(UnusableStore) as caught:
            open_store(url, readonly=readonly)
        assert "newer Sickbay" in one_line(caught)


def test_a_database_of_another_program_is_refused(tmp_path: Path, url: str) -> None:
    with sqlite3.connect(tmp_path / "store.db") as connection:
        connection.execute("CREATE TABLE albums (name)")
    connection.close()
    with pytest.raises(UnusableStore) as caught:
        open_store(url)
    assert "not Sickbay's" in one_line(caught)


def test_reading_where_there_is_no_store_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(UnusableStore) as caught:
        open_store(url, readonly=True)
    assert "cannot read" in one_line(caught)
    assert not (tmp_path / "store.db").exists()
    (tmp_path / "store.db").touch()
    with pytest.raises(UnusableStore) as caught:
        open_store(url, readonly=True)
    assert "is empty" in one_line(caught)


@pytest.fixture
def someone_else() -> Iterator[None]:
    """Root may write everywhere: become nobody for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def sealed() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="sickbay-sealed-"))
    directory.chmod(0o555)
    yield directory
    directory.chmod(0o755)
    shutil.rmtree(directory)


@pytest.mark.usefixtures("someone_else")
def test_a_directory_that_cannot_be_written_is_named(sealed: Path) -> None:
    with pytest.raises(UnusableStore) as caught:
        open_store(f"sqlite:///{sealed}/store.db")
    assert f"cannot write {sealed}/store.db" in one_line(caught)


def test_a_directory_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnusableStore) as caught:
        open_store(f"sqlite:///{tmp_path}/nowhere/store.db")
    assert "check that the directory exists" in one_line(caught)


def test_commits_are_on_the_disk_before_they_are_acknowledged(url: str) -> None:
    store = open_store(url)
    assert isinstance(store, SqlStore)
    assert isinstance(store._db, Sqlite)
    store.hear({})
    store.hear({node("a").id: pulse(1.0)})  # pulses alone may be lost, and leave the setting as it was
    assert store._db._writer.exec_driver_sql("PRAGMA synchronous").scalar_one() == 2
    assert store._db._writer.exec_driver_sql("PRAGMA journal_mode").scalar_one() == "wal"
    store.close()


@pytest.mark.parametrize("wrong", ["", "store.db", "mysql://host/db", "redis://host", "nonsense://"])
def test_a_url_that_names_no_store_says_what_to_write(wrong: str) -> None:
    with pytest.raises(BadInput, match="sqlite:///path/to/file"):
        open_store(wrong)


def test_a_url_names_its_store() -> None:
    assert isinstance(open_store("memory:"), MemoryStore)
    store = open_store("sqlite://")
    assert isinstance(store, SqlStore)
    assert store.append([fact("a")]) == 1
    store.close()
