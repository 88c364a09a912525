"""What PostgreSQL alone can suffer: replicas that meet, connections that are lost."""

from collections.abc import Iterator
from threading import Thread

import pytest
from sqlalchemy import Connection, create_engine, event, make_url, text

from sickbay.adapters.stores.postgres import Postgres
from sickbay.adapters.stores.schema import NEWEST
from sickbay.adapters.stores.sql import SqlStore, open_store
from sickbay.model.errors import Fenced, StoreUnavailable, StoreUnknown, UnusableStore
from sickbay.testing.store_facts import N, eventually
from sickbay.testing.store_nouns import command, fact, node, writes
from sickbay.testing.store_rows import A

pytestmark = pytest.mark.slow


def opened(url: str) -> SqlStore:
    store = open_store(url)
    assert isinstance(store, SqlStore)
    return store


def database(store: SqlStore) -> Postgres:
    assert isinstance(store._db, Postgres)
    return store._db


@pytest.fixture
def replicas(postgres_url: str) -> Iterator[tuple[SqlStore, SqlStore]]:
    first, second = opened(postgres_url), opened(postgres_url)
    yield first, second
    first.close()
    second.close()


@pytest.fixture
def admin(postgres_url: str) -> Iterator[Connection]:
    engine = create_engine(make_url(postgres_url).set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def cut_all(admin: Connection) -> None:
    admin.execute(
        text("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
             " AND backend_type = 'client backend'")
    )  # fmt: skip


def somebody_waits(admin: Connection) -> bool | None:
    waiting = admin.execute(text("SELECT count(*) FROM pg_locks WHERE NOT granted")).scalar_one()
    return True if waiting else None


def test_any_replica_appends_and_the_leader_reads_it(replicas: tuple[SqlStore, SqlStore]) -> None:
    leader, other = replicas
    assert leader.lease("leader", 60.0) is not None
    assert other.lease("other", 60.0) is None
    assert other.append([fact("a")]) == 1
    assert leader.append([fact("a"), fact("b")]) == 1
    assert [each.id for each in leader.facts(0)] == ["a", "b"]


def test_a_command_that_one_replica_posts_is_handed_out_by_the_other(replicas: tuple[SqlStore, SqlStore]) -> None:
    leader, other = replicas
    leader.post([command("a"), command("b")])
    other.post([command("a"), command("c")])
    assert [each.id for each in other.mail(N)] == ["a", "b", "c"]
    other.strike(["a", "b"])
    assert [each.id for each in leader.mail(N)] == ["c"]


def test_a_fact_does_not_pass_one_that_is_still_being_written(
    replicas: tuple[SqlStore, SqlStore], admin: Connection
) -> None:
    slow, quick = replicas
    thread = Thread(target=quick.append, args=([fact("quick")],))
    with database(slow).writing(facts=True) as connection:
        connection.exec_driver_sql(slow._sql.append, [("slow", 0.0, b'{"id":"slow"}')])
        thread.start()
        eventually(lambda: somebody_waits(admin))
        assert list(quick.facts(0)) == []
    thread.join(timeout=10)
    with database(quick).reading() as connection:
        order = connection.execute(text("SELECT id FROM facts ORDER BY seq")).scalars().all()
    assert order == ["slow", "quick"]


def test_whoever_takes_the_lease_waits_for_a_commit_under_the_old_epoch(
    replicas: tuple[SqlStore, SqlStore], admin: Connection
) -> None:
    old, new = replicas
    first = old.lease("old", 0.0)
    assert first is not None
    taken: list[int] = []

    def take() -> None:
        lease = new.lease("new", 60.0)
        assert lease is not None
        taken.append(lease.epoch)

    thread = Thread(target=take)
    with database(old).writing(rows=True) as connection:
        assert connection.execute(old._sql.leads, {"epoch": first.epoch}).first() is not None
        thread.start()
        eventually(lambda: somebody_waits(admin))
        assert taken == []
    thread.join(timeout=10)
    assert taken[0] > first.epoch
    with pytest.raises(Fenced):
        old.commit(writes(node("a")), first.epoch)


def test_a_connection_lost_before_the_commit_means_that_nothing_was_written(
    replicas: tuple[SqlStore, SqlStore], admin: Connection
) -> None:
    store, _ = replicas
    lease = store.lease("me", 60.0)
    assert lease is not None
    cut_all(admin)
    with pytest.raises(StoreUnavailable) as caught:
        store.commit(writes(node("a")), lease.epoch)
    assert "\n" not in str(caught.value)
    assert store.load([A])[A].version == 0
    store.commit(writes(node("a")), lease.epoch)
    assert store.load([A])[A].row == node("a")


def test_an_answer_to_the_commit_that_was_lost_is_unknown(
    replicas: tuple[SqlStore, SqlStore], admin: Connection
) -> None:
    store, _ = replicas
    lease = store.lease("me", 60.0)
    assert lease is not None
    engine = database(store)._engine
    event.listen(engine, "commit", lambda _: cut_all(admin), once=True)
    with pytest.raises(StoreUnknown):
        store.commit(writes(node("a")), lease.epoch)
    store.commit(writes(node("a")), lease.epoch)


def test_a_server_that_cannot_be_reached_may_come_back() -> None:
    with pytest.raises(StoreUnavailable) as caught:
        open_store("postgresql://me:secret@127.0.0.1:1/none?connect_timeout=2")
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_database_that_does_not_exist_is_named(postgres_url: str) -> None:
    with pytest.raises(UnusableStore, match="create the database first"):
        open_store(make_url(postgres_url).set(database="nowhere").render_as_string(hide_password=False))


def test_a_store_of_a_newer_version_is_refused(postgres_url: str, admin: Connection) -> None:
    opened(postgres_url).close()
    admin.execute(text("UPDATE meta SET schema_version = :version"), {"version": NEWEST + 1})
    with pytest.raises(UnusableStore, match="newer Sickbay"):
        open_store(postgres_url)


def test_every_text_is_compared_byte_by_byte_whatever_the_locale(postgres_url: str, admin: Connection) -> None:
    opened(postgres_url).close()
    columns = admin.execute(
        text(
            "SELECT collation_name FROM information_schema.columns"
            " WHERE table_schema = current_schema() AND data_type = 'text'"
        )
    )
    assert set(columns.scalars()) == {"C"}


def test_whoever_only_reads_makes_no_schema(postgres_url: str) -> None:
    with pytest.raises(UnusableStore, match="is empty"):
        open_store(postgres_url, readonly=True)
    writer = opened(postgres_url)
    writer.append([fact("a")])
    reader = open_store(postgres_url, readonly=True)
    assert [each.id for each in reader.facts(0)] == ["a"]
    reader.close()
    writer.close()


def test_two_replicas_that_start_together_make_one_schema(postgres_url: str) -> None:
    stores: list[SqlStore] = []
    threads = [Thread(target=lambda: stores.append(opened(postgres_url))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert len(stores) == 3
    assert [store.append([fact("a")]) for store in stores] == [1, 0, 0]
    for store in stores:
        store.close()
