"""The Store port."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol

from sickbay.model.errors import StoreError
from sickbay.model.facts import Fact, Mark
from sickbay.model.fleet import Incarnation, NodeId
from sickbay.model.noun import Noun
from sickbay.model.rows import Lease, Line, Rows, Unit
from sickbay.ports.mail import Mail


class Pulse(Noun):
    """An agent's sign of life, on the ingest clock. Lives in a table of its own: it wakes nobody."""

    reading: float
    incarnation: Incarnation


class LivenessChanges(Noun):
    """What the pulses have to tell that the facts do not say yet."""

    silent: tuple[tuple[NodeId, Pulse], ...] = ()  # not heard for long enough, not told so far
    heard: tuple[tuple[NodeId, Pulse], ...] = ()  # new, back after silence, or under another incarnation


class Committed(NamedTuple):
    """What came of a group of units: the versions of those that were written, and why the one after them was not."""

    versions: tuple[int, ...]
    refused: StoreError | None = None


STORY = 1000  # lines of one subject that are shown at most, and kept of an open one whatever their age


class Store(Mail, Protocol):
    """Rows under keys with versions, units, numbered facts, pulses, a story, and a lease.

    Contract (proved by `sickbay.testing.store_contract` for every adapter):

    - A version is a positive number that never returns for its key, even after a deletion; 0 means "no row".
    - `commit` is all or nothing. It refuses with Conflict if any key of `unit.expect` has another version, with Fenced
      if `epoch` is not the lease's present epoch, with UnitTooLarge beyond the limits in `model.rows`: at most
      UNIT_ACTIONS as `Unit.actions` counts them, ITEM_BYTES for a row, UNIT_BYTES in all. Nothing else
      raises a version: a wait that is marked again does not. It returns the version that all rows it wrote now have.
    - `commit` and `append` refuse with Unstorable what would not come back as it was given (NaN is no JSON).
    - A row that is there and cannot be decoded is loaded with its version and its `damage`, beside all others; a fact
      that cannot be decoded is read as `Garbled`.
    - An `on` entry for a key that the same unit writes means the version after that commit: a unit's own writes do not
      make its own waits due.
    - What was acknowledged survives the death of the process, always. It survives a power cut, too, unless the unit is
      not `durable`, or an append brings neither facts nor news of pulses: those may be lost together with all that came
      after them, up to the next write that is not of this kind; never one without the others.
    - StoreUnavailable means nothing was written; StoreUnknown means it may have been. After either, whoever holds
      cached rows throws them away.
    - `append` numbers facts in order, drops those whose id it has, and writes marks and what was told of the pulses in
      the same transaction. It needs no lease: any replica may call it. Numbers may have gaps but a fact never appears
      below a number that was already read.
    - A deleted row's wait is gone with it.
    """

    # --- rows
    def load(self, keys: Iterable[str]) -> Rows:
        """The rows under these keys; a key without a row gives `Versioned(row=None, version=0)`."""
        ...

    def find(self, tag: str, limit: int | None = None) -> Sequence[str]:
        """Keys of the rows that carry this tag (`model.rows.tag_of`), in key order."""
        ...

    def tags(self, prefix: str) -> Sequence[str]:
        """The different tags that begin so and that some row carries, in order."""
        ...

    def keys(self, kind: str, after: str = "", limit: int = 1000) -> Sequence[str]:
        """A page of the keys of one kind, in order."""
        ...

    def commit(self, unit: Unit, epoch: int) -> int: ...

    def commit_many(self, units: Sequence[Unit], epoch: int) -> Committed:
        """Group commit: as if each unit were committed after the one before it, up to the first that is refused.

        A version −n in `expect` or `on` is the one that the n-th unit of the group was given (the first is 1). They
        wait for the disk once, unless none of them is `durable`. Fenced, StoreUnavailable and StoreUnknown
        are raised: any number of them, from the first on, may have been written.
        """
        ...

    def due(self, readings: Mapping[str, float], limit: int = 100) -> Sequence[str]:
        """Subjects whose deadline has passed, or whose wait read a row that has another version now; urgent first."""
        ...

    # --- facts
    def append(
        self,
        facts: Sequence[Fact],
        marks: Sequence[Mark] = (),
        told: Mapping[NodeId, Pulse | None] | None = None,
    ) -> int:
        """Adds facts; returns how many were new. Each mark moves its watched clock (`WatchedClock.heard`), creating it.

        A store with a time of its own dates marks by it, so that clocks of replicas that differ do not matter. The
        clock's row then names the newest fact that is stored.

        `told` says of which pulses the facts speak: a pulse that was told as heard, None as silent.
        """
        ...

    def time(self) -> float | None:
        """The store's own time, in seconds since the epoch; None: it has none but that of its processes."""
        ...

    def facts(self, after: int, limit: int = 500) -> Sequence[Fact]: ...

    def hear(self, pulses: Mapping[NodeId, Pulse]) -> None:
        """Takes down signs of life; one that was overtaken by a later reading changes nothing."""
        ...

    def voices(self, before: float, limit: int = 500) -> LivenessChanges:
        """`silent`: told as heard, and last heard before this reading."""
        ...

    # --- the story, the lease, and age
    def story(self, subject: str, limit: int = STORY) -> Sequence[Line]:
        """Oldest first; of a longer story the newest `limit` lines."""
        ...

    def lease(self, holder: str, ttl: float) -> Lease | None:
        """Takes, or keeps, the leadership for `ttl` seconds of the store's own time. None: another holds it.

        A holder that keeps its lease keeps its epoch; whoever takes it, also the same holder after it ran out, gets a
        new one, greater than all before.
        """
        ...

    def resign(self, holder: str) -> None:
        """Gives the lease back if this holder has it: its epoch is fenced from then on, taken or not."""
        ...

    def forget(self, before: datetime) -> int:
        """Retention: removes facts already planned, lines, ended intents and closed incidents and jobs older than this.

        Returns how many; never touches what is open (nor the newest STORY lines told under it and intents done for it,
        whatever their age), nor the rows that hold present state.
        """
        ...

    def close(self) -> None: ...
