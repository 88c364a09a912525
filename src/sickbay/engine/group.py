"""Group commit: many units are planned, each upon what the last one leaves, and committed together."""

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from sickbay.engine.aside import stops
from sickbay.engine.figures import LoopFigures
from sickbay.engine.view import Draft, View
from sickbay.model.rows import Unit
from sickbay.ports.store import Store

Builds = Iterator[tuple[str, Callable[[Draft], None]]]  # whose unit it is, and what fills it


class SharedCommit:
    """Units that share a commit, at most so many. The view runs ahead of the store while they are planned.

    What is written here is planned as ever, one unit after the other; only the store hears of them at once. A process
    that ends before the commit has done nothing; no effect is made before it.
    """

    def __init__(
        self,
        store: Store,
        view: View,
        draft: Callable[[], Draft],
        most: int,
        figures: LoopFigures,
        committed: Callable[[Unit], None] | None,
    ) -> None:
        self._store = store
        self._view = view
        self._draft = draft
        self._most = most
        self._figures = figures
        self._committed = committed
        self._units: dict[str, Unit] = {}
        self._bodies: list[Unit] = []  # the same, as they are stored
        self._done: list[str] = []
        self._alone: list[str] = []

    def commit(self, builds: Builds, epoch: int, *, durable: bool, in_order: bool) -> tuple[list[str], list[str]]:
        """Returns whose units were committed, and who must be done alone: what could not be planned, and from a refused
        unit on all that were planned upon it. `in_order`: whatever comes after one of those is left undone.
        """
        self._units, self._bodies, self._done, self._alone = {}, [], [], []
        for subject, build in builds:
            draft = self._draft()
            try:
                build(draft)
                unit = replace(draft.unit(), durable=durable)
            except Exception as error:  # otherwise tried again alone, where it is dealt with
                if stops(error):
                    raise
                self._alone.append(subject)
                if in_order:
                    break
                continue
            if not unit.empty:
                self._units[subject] = unit
                self._bodies.append(draft.body(unit))  # before the view has it: what is there decides what is written
                self._view.wrote(unit, -len(self._units))
            if len(self._units) >= self._most:
                self._flush(epoch)
                if in_order and self._alone:
                    break
        self._flush(epoch)
        return self._done, self._alone

    def _flush(self, epoch: int) -> None:
        subjects, units, bodies = list(self._units), list(self._units.values()), self._bodies
        self._units, self._bodies = {}, []
        if not units:
            return
        try:
            committed = self._store.commit_many(bodies, epoch)
        except Exception as error:
            self._view.forget()  # it has run ahead of the store
            if stops(error):
                raise
            # One of them cannot even be encoded: alone it will be known which.
            self._alone += subjects
            return
        written = len(committed.versions)
        self._done += subjects[:written]
        self._alone += subjects[written:]
        if committed.refused is None:
            self._view.confirm(units, committed.versions)
        else:
            self._figures.refused += 1
            self._view.forget(refused=True)
        if self._committed is not None:
            for unit in units[:written]:
                self._committed(unit)
