"""A store that tells a census of each commit, as a controller's engine does."""

from collections.abc import Callable

from sickbay.adapters.stores.memory import MemoryStore
from sickbay.hosts.census import Census
from sickbay.model.rows import Unit


class CensusStore(MemoryStore):
    def __init__(self) -> None:
        self.virtual: Callable[[], float] = lambda: 0.0
        super().__init__(limits=True, now=self._virtual)
        self.census = Census()
        self.census.follow(self)

    def _virtual(self) -> float:
        return self.virtual()

    def commit(self, unit: Unit, epoch: int) -> int:
        version = super().commit(unit, epoch)
        self.census.committed(unit)
        return version
