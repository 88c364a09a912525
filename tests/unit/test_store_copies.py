"""A copy of a store that is in use, and what becomes of it when it is opened to go on from."""

import sqlite3
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from sickbay.adapters.stores.copies import BEGAN, back_up
from sickbay.adapters.stores.sql import open_store
from sickbay.faces.cli.main import main
from sickbay.model.errors import BadInput
from sickbay.model.facts import Fact, Observed
from sickbay.model.fault import Remedy
from sickbay.model.fleet import JobId, NodeId
from sickbay.model.intent import Intent, IntentState, Notify, Repair
from sickbay.model.job import Job, JobSpec, JobState
from sickbay.model.rows import TO_SEND, Line, Unit, WaitMark
from sickbay.ports.store import Store

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
NODE = NodeId("c/a")


def fact(name: str) -> Fact:
    return Fact(id=name, at=NOON, news=Observed(node=NODE, kind="xid"))


def intent(key: str, act: Repair | Notify, state: IntentState = IntentState.PLANNED) -> Intent:
    return Intent(
        key=key, owner="incident:i1", cluster="c", pool="c/p", act=act, because="x", planned_at=NOON, clock="c",
        call_timeout=10.0, patience=60.0, state=state,
    )  # fmt: skip


def job(state: JobState) -> Job:
    spec = JobSpec(name="j", cluster="c", pool="p")
    closed = NOON if state.terminal else None
    return Job(id=JobId(state.lower()), spec=spec, submitted_at=NOON, state=state, acts=7, closed_at=closed)


@pytest.fixture
def at_home(tmp_path: Path) -> Path:
    store = open_store(f"sqlite:///{tmp_path / 'sickbay.db'}")
    store.append([fact("one"), fact("two")])
    lease = store.lease("me", 30.0)
    assert lease is not None
    rows = [
        intent("i1.1", Repair(node=NODE, rung=Remedy.REBOOT)),
        intent("i1.2", Notify(event="held", subject="incident:i1", text="x")),
        intent("i1.0", Repair(node=NODE, rung=Remedy.RESET_GPU), IntentState.SEEN),
    ]
    writes = {f"intent:{row.key}": row for row in rows}
    jobs = {f"job:{row.id}": row for row in (job(JobState.RUNNING), job(JobState.COMPLETE))}
    waits: dict[str, WaitMark | None] = {"job:running": WaitMark(on={"job:running": 0})}
    story = (Line(subjects=("job:running",), at=NOON, text="told"),)
    store.commit(Unit(writes={**writes, **jobs}, waits=waits, story=story), lease.epoch)
    copy = tmp_path / "copy.db"
    back_up(tmp_path / "sickbay.db", copy)  # in use: nobody has closed it
    store.close()
    return copy


def row(store: Store, key: str) -> Intent | Job:
    found = store.load([key])[key].row
    assert isinstance(found, Intent | Job)
    return found


def test_a_copy_can_be_looked_at_and_is_what_it_was_and_its_owners_alone(at_home: Path) -> None:
    assert stat.S_IMODE(at_home.stat().st_mode) == 0o600
    assert sorted(path.name for path in at_home.parent.glob("*copy*")) == ["copy.db"]
    store = open_store(f"sqlite:///{at_home}", readonly=True)
    assert [one.id for one in store.facts(after=0)] == ["one", "two"]
    assert row(store, "job:running").acts == 7
    assert [line.text for line in store.story("job:running")] == ["told"]
    store.close()


def test_whoever_goes_on_from_it_gives_no_number_a_second_time(at_home: Path) -> None:
    store = open_store(f"sqlite:///{at_home}")
    store.append([fact("three")])
    (third,) = store.facts(after=2)
    assert third.seq > (datetime(2026, 1, 1, tzinfo=UTC).timestamp() - BEGAN) * 1000
    lease = store.lease("me", 30.0)
    assert lease is not None
    assert lease.epoch > 1_000_000
    assert row(store, "job:running").acts > 1_000_000
    assert row(store, "job:complete").acts == 7
    store.close()


def test_what_was_planned_counts_as_sent_and_a_notice_is_told(at_home: Path) -> None:
    store = open_store(f"sqlite:///{at_home}")
    repair = row(store, "intent:i1.1")
    assert isinstance(repair, Intent)
    assert (repair.state, repair.sends) == (IntentState.SENT, 1)
    assert repair.seen_by is not None
    assert store.find(f"{TO_SEND}c/Repair") == []
    assert row(store, "intent:i1.2").state is IntentState.PLANNED
    assert row(store, "intent:i1.0").state is IntentState.SEEN
    assert list(store.due({})) == ["job:running"]
    store.close()


def test_it_is_renewed_once_and_each_copy_of_it_anew(at_home: Path) -> None:
    again = at_home.with_name("again.db")
    again.write_bytes(at_home.read_bytes())
    numbers = []
    for file in (at_home, at_home, again):
        store = open_store(f"sqlite:///{file}")
        numbers.append(row(store, "job:running").acts)
        store.close()
    assert numbers[0] == numbers[1] != numbers[2]


def test_what_a_killed_controller_left_beside_the_store_is_not_read_into_the_copy(
    at_home: Path, tmp_path: Path
) -> None:
    """A -wal that was forgotten there would undo the restore without a word, or tear it."""
    home = tmp_path / "sickbay.db"
    store = open_store(f"sqlite:///{home}")
    store.append([fact("since")])
    left = {end: home.with_name(home.name + end).read_bytes() for end in ("-wal", "-shm")}
    store.close()
    home.write_bytes(at_home.read_bytes())
    for end, what in left.items():
        home.with_name(home.name + end).write_bytes(what)
    restored = open_store(f"sqlite:///{home}")
    assert [one.id for one in restored.facts(after=0)] == ["one", "two"]
    assert row(restored, "job:running").acts > 1_000_000
    restored.append([fact("later")])
    restored.close()
    assert [one.id for one in open_store(f"sqlite:///{home}", readonly=True).facts(after=0)] == ["one", "two", "later"]


def test_what_a_killed_controller_left_of_its_own_is_read(at_home: Path, tmp_path: Path) -> None:
    """Also in the moment in which a copy has just become a store of its own."""
    home = tmp_path / "killed.db"
    store = open_store(f"sqlite:///{at_home}")
    store.append([fact("since")])
    for end in ("", "-wal", "-shm"):
        home.with_name(home.name + end).write_bytes(at_home.with_name(at_home.name + end).read_bytes())
    acts = row(store, "job:running").acts
    store.close()
    again = open_store(f"sqlite:///{home}")
    assert [one.id for one in again.facts(after=0)] == ["one", "two", "since"]
    assert row(again, "job:running").acts == acts
    again.close()


def test_a_name_that_is_taken_is_not_given_away_though_nothing_is_seen_behind_it(at_home: Path, tmp_path: Path) -> None:
    """As what comes there while the copy is made: the copy is linked, not renamed."""
    target = tmp_path / "same.db"
    target.symlink_to(tmp_path / "nowhere")
    with pytest.raises(BadInput, match="is there already"):
        back_up(at_home, target)
    assert target.is_symlink()
    assert list(tmp_path.glob(".same*")) == []


def test_a_row_that_cannot_be_read_is_said_of_whatever_kind_it_is(at_home: Path, tmp_path: Path) -> None:
    for key in ("intent:i1.1", "job:running"):
        file = tmp_path / f"{key.partition(':')[0]}.db"
        file.write_bytes(at_home.read_bytes())
        with sqlite3.connect(file) as connection:
            connection.execute("UPDATE nouns SET body = ? WHERE key = ?", (b"{", key))
        told = CliRunner().invoke(main, ["backup", str(file.with_suffix(".copy")), "--store", str(file)])
        assert told.exit_code == 2, told.output
        assert key in told.output


def test_an_existing_file_is_not_written_over_and_a_missing_store_is_said(at_home: Path, tmp_path: Path) -> None:
    before = at_home.read_bytes()
    with pytest.raises(BadInput, match="is there already"):
        back_up(tmp_path / "sickbay.db", at_home)
    assert at_home.read_bytes() == before
    with pytest.raises(BadInput, match="is not there"):
        back_up(tmp_path / "nothing.db", tmp_path / "x.db")
    with pytest.raises(BadInput, match="cannot be written"):
        back_up(tmp_path / "sickbay.db", tmp_path / "no" / "x.db")


@pytest.mark.usefixtures("at_home")
def test_a_damaged_store_gives_no_copy(tmp_path: Path) -> None:
    with (tmp_path / "sickbay.db").open("r+b") as file:
        file.seek(8192)
        file.write(b"\xff" * 40_000)
    with pytest.raises(BadInput, match="could not be copied"):
        back_up(tmp_path / "sickbay.db", tmp_path / "bad.db")
    assert not (tmp_path / "bad.db").exists()


def test_the_command_says_what_is_in_the_copy_and_what_to_do_for_postgresql(at_home: Path, tmp_path: Path) -> None:
    told = CliRunner().invoke(main, ["backup", str(tmp_path / "b.db"), "--state", str(tmp_path), "--json"])
    assert told.exit_code == 0, told.output
    assert '"jobs": 2' in told.output
    refused = CliRunner().invoke(main, ["backup", "x.db", "--store", "postgresql://u@h/d"])
    assert refused.exit_code == 2
    assert "pg_dump" in refused.output
    with sqlite3.connect(at_home) as connection:
        assert connection.execute("PRAGMA user_version").fetchone()[0] > 0


def test_a_clock_that_cannot_be_read_keeps_no_copy_from_being_gone_on_from(at_home: Path) -> None:
    with sqlite3.connect(at_home) as connection:
        connection.execute(
            "INSERT INTO nouns SELECT 'clock:c', '', version, opened, owner, ended, '{' FROM nouns LIMIT 1"
        )
    store = open_store(f"sqlite:///{at_home}")
    assert row(store, "job:running").acts > 1_000_000
    assert store.load(["clock:c"])["clock:c"].damage
    store.close()
