"""The two databases behind `SqlStore`: how each is opened, read, written, and what its errors mean.

`reading` and `writing` are the only ways in. Whatever goes wrong below them comes out as one of the store's errors:
StoreUnavailable if it happened before the commit, StoreUnknown if the commit's own answer was lost, UnusableStore, in
one line for a human, where trying again will not help.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from sickbay.adapters.stores.schema import META, NEWEST, OLDEST, steps_after
from sickbay.model.errors import OlderStore, StoreError, UnusableStore

_ANY_ROW = text("SELECT 1 FROM nouns LIMIT 1")
_READ_META = text("SELECT schema_version FROM meta")
_WRITE_META = text("UPDATE meta SET schema_version = :version")


class Database(ABC):
    """What SqlStore needs of a database. Statements are shared; the few words that differ are here."""

    dialect: str
    in_keys: str  # a condition on the column before it: one of the keys given as the parameter `keys`
    placeholder: str  # of a parameter, in the driver's own style
    now: str  # what leases run on, in seconds
    wall: str  # the database's own time since the epoch; NULL where there is only that of the processes
    share: str  # a lock on the lease's row, held until the commit

    @abstractmethod
    def reading(self) -> AbstractContextManager[Connection]: ...

    @abstractmethod
    def writing(
        self, *, rows: bool = False, facts: bool = False, durable: bool = True
    ) -> AbstractContextManager[Connection]:
        """One transaction. `rows` and `facts` say what it changes, so that others who change the same come after it."""

    @abstractmethod
    def many(self, keys: Iterable[str]) -> Any:
        """The parameter `keys` of `in_keys`."""

    @abstractmethod
    def time(self) -> Mapping[str, float]:
        """The parameters of `now`: none where the database has a time of its own."""

    @abstractmethod
    def translated(self, error: DBAPIError, *, at_commit: bool) -> StoreError: ...

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def tables(self, connection: Connection) -> set[str]: ...

    @contextmanager
    def told_apart(self, *, at_commit: bool = False) -> Iterator[None]:
        """Turns what the driver raises into the store's own errors."""
        try:
            yield
        except DBAPIError as error:
            raise self.translated(error, at_commit=at_commit) from error

    def migrate(self, name: str) -> None:
        """Brings the schema up to date, in one transaction; refuses what a newer program has written."""
        with self.writing(rows=True) as connection:
            tables = self.tables(connection)
            version = self.version(connection, tables, name)
            for number, statements in steps_after(version, self.dialect):
                if number == 1:
                    connection.exec_driver_sql(META)
                    connection.exec_driver_sql("INSERT INTO meta (schema_version) VALUES (0)")
                for statement in statements:
                    connection.exec_driver_sql(statement)
                connection.execute(_WRITE_META, {"version": number})

    def refuse_other_versions(self, name: str) -> None:
        """For whoever only reads: it changes no schema under the program that writes."""
        with self.reading() as connection:
            if self.version(connection, self.tables(connection), name) != NEWEST:
                raise OlderStore(name)

    def version(self, connection: Connection, tables: set[str], name: str) -> int:
        if not tables:
            return 0
        if "meta" not in tables or "nouns" not in tables:
            raise UnusableStore(f"{name} holds tables that are not Sickbay's: give the store a database of its own")
        found = connection.execute(_READ_META).scalar_one()
        if found > NEWEST:
            raise UnusableStore(
                f"{name} was written by a newer Sickbay (schema {found}; this one knows {NEWEST}): upgrade this program"
            )
        if found < OLDEST and connection.execute(_ANY_ROW).first() is not None:
            # Read as if they were ours, open jobs would not be found, and a node would be repaired under one.
            raise UnusableStore(
                f"{name} was written by an older Sickbay (schema {found}), whose rows this one does not understand:"
                " end its jobs with that program, or give this one a new --state directory"
            )
        return int(found)
