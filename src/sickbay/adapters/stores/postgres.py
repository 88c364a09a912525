"""PostgreSQL: any replica appends, one leads."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import URL, Connection, create_engine, event, text
from sqlalchemy.exc import DBAPIError

from sickbay.adapters.stores.database import Database
from sickbay.model.errors import BadInput, StoreError, StoreUnavailable, StoreUnknown, UnusableStore

# Locks of this application, held until the end of a transaction. Any two numbers do; these spell "sick" and a digit.
ROWS_LOCK = 0x7369636B01
FACTS_LOCK = 0x7369636B02

# Our transactions take milliseconds and hold locks that everybody needs. A process that stands still inside one
# (stopped, suspended with its machine, cut off) would keep its successor from the lease for as long as it stands.
STANDSTILL_SECONDS = 5
_stand_not_still = f"SET idle_in_transaction_session_timeout = '{STANDSTILL_SECONDS}s'"
# One that stops between two messages of a statement is not idle to the server; since PostgreSQL 17 that ends, too.
_end_at_last = f"SET transaction_timeout = '{2 * STANDSTILL_SECONDS}s'"
TRANSACTION_TIMEOUT_SINCE = 170_000

_lock = text("SELECT pg_advisory_xact_lock(:lock)")
_lazily = text("SET LOCAL synchronous_commit = off")
_tables = text("SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema()")

# Classes of SQLSTATE that trying again does not mend: https://www.postgresql.org/docs/current/errcodes-appendix.html
_LASTING = {
    "28": "was refused: check user and password",
    "3D": "does not exist: create the database first",
    "42": "does not let us use its tables: check the user's rights and that the schema is Sickbay's own",
    "53100": "has a full disk: nothing was written; make room there",
    "XX001": "has damaged data: restore it from a backup",
    "XX002": "has a damaged index: rebuild or restore it",
}
# A connection that is refused has no SQLSTATE, only words.
_REFUSED = {"does not exist": "3D", "authentication failed": "28", "no password supplied": "28", "pg_hba.conf": "28"}


class Postgres(Database):
    """Leases and marks run on the database's time: replicas need not agree on theirs."""

    dialect = "postgresql"
    in_keys = "= ANY(:keys)"
    placeholder = "%s"
    now = "extract(epoch FROM clock_timestamp())::double precision"
    wall = now
    share = "FOR SHARE"  # who takes the lease waits for commits under the old epoch, and they for it

    def __init__(self, url: URL, *, readonly: bool = False) -> None:
        self._name = url.render_as_string(hide_password=True)
        try:
            self._engine = create_engine(url.set(drivername="postgresql+psycopg"), pool_size=5, max_overflow=10)
        except ImportError as error:
            raise BadInput("PostgreSQL needs its driver: pip install 'sickbay[postgres]'") from error
        event.listen(self._engine, "connect", _on_connect)
        self._reading_engine = self._engine.execution_options(isolation_level="AUTOCOMMIT")
        try:
            if readonly:
                self.refuse_other_versions(self._name)
            else:
                self.migrate(self._name)
        except BaseException:
            self.close()
            raise

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        with self.told_apart(), self._reading_engine.connect() as connection:
            yield connection

    @contextmanager
    def writing(self, *, rows: bool = False, facts: bool = False, durable: bool = True) -> Iterator[Connection]:
        with self.told_apart():
            connection = self._engine.connect()
        try:
            with self.told_apart():
                if not durable:
                    connection.execute(_lazily)
                if facts:
                    # A number is drawn when a row is inserted, but shows when its transaction ends. Without this lock
                    # a slow replica's fact could appear below a number that the leader has already planned past, and
                    # would never be read. Taken before the rows' lock by everybody, so that nobody waits in a circle.
                    connection.execute(_lock, {"lock": FACTS_LOCK})
                if rows:
                    # Those who change rows come one after the other: what a unit expects to be absent cannot be locked
                    # by a row lock.
                    connection.execute(_lock, {"lock": ROWS_LOCK})
                yield connection
            with self.told_apart(at_commit=True):
                connection.commit()
        finally:
            connection.close()

    def many(self, keys: Iterable[str]) -> list[str]:
        return list(keys)

    def time(self) -> Mapping[str, float]:
        return {}

    def tables(self, connection: Connection) -> set[str]:
        return set(connection.execute(_tables).scalars())

    def translated(self, error: DBAPIError, *, at_commit: bool) -> StoreError:
        state = getattr(error.orig, "sqlstate", None) or ""
        why = str(error.orig).strip().split("\n", 1)[0]
        if not state:
            why = str(error.orig).strip().rsplit("FATAL:", 1)[-1].strip().split("\n", 1)[0]
            state = next((code for words, code in _REFUSED.items() if words in why), "")
        for lasting in (state, state[:2]):
            if lasting and lasting in _LASTING:
                return UnusableStore(f"{self._name} {_LASTING[lasting]} ({why})")
        if at_commit and (error.connection_invalidated or not state or state.startswith(("08", "57P"))):
            return StoreUnknown(f"{self._name}: the commit's answer was lost ({why})")
        return StoreUnavailable(f"{self._name}: {why}")

    def close(self) -> None:
        self._engine.dispose()


def _on_connect(connection: Any, _record: object) -> None:
    connection.execute(_stand_not_still)
    if connection.info.server_version >= TRANSACTION_TIMEOUT_SINCE:
        connection.execute(_end_at_last)
    connection.commit()  # else it would be taken back with the first transaction that is
