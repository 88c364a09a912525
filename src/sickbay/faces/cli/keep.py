"""Export of a simulation's store to a file, so that `sickbay explain --store FILE` can be tried on it."""

from collections.abc import Iterator
from pathlib import Path

from sickbay.faces.story import weave
from sickbay.model.errors import BadInput
from sickbay.model.rows import AUDIT, KINDS, UNIT_ACTIONS, Line, Unit
from sickbay.ports.store import Store
from sickbay.wiring import open_store

BATCH = 40  # rows, each with its tag
STORY = 1_000_000
HOLDER = "keep"


def refuse_existing(file: str | None) -> None:
    """Before a long run, not after it."""
    if file is None:
        return
    if Path(file).exists():
        raise BadInput(f"{file} exists: remove it, or give another name")
    if not Path(file).absolute().parent.is_dir():
        raise BadInput(f"{file}: there is no directory {Path(file).parent}: make it, or give another name")


def keep(store: Store, file: str) -> None:
    """Copies facts, rows and the story. Waits are not copied: nothing is planned from a file that is kept."""
    refuse_existing(file)
    kept = open_store(f"sqlite:///{Path(file).absolute()}")
    try:
        lease = kept.lease(HOLDER, 600.0)
        if lease is None:
            raise BadInput(f"{file} is in use: give another name")
        for facts in _pages(store):
            kept.append(facts)  # type: ignore[arg-type]
        keys = list(_keys(store))
        for begin in range(0, len(keys), BATCH):
            rows = store.load(keys[begin : begin + BATCH])
            kept.commit(Unit(writes={key: found.row for key, found in rows.items()}), lease.epoch)
        lines = _story(store, keys)
        for some in _batches(lines):
            kept.commit(Unit(story=some), lease.epoch)
        kept.resign(HOLDER)
    finally:
        kept.close()


def _pages(store: Store) -> Iterator[list[object]]:
    after = 0
    while page := store.facts(after):
        yield list(page)
        after = page[-1].seq


def _batches(lines: list[Line]) -> Iterator[tuple[Line, ...]]:
    """Lines in units: each subject of a line takes room."""
    some: list[Line] = []
    room = UNIT_ACTIONS - 1
    for line in lines:
        if some and room < len(line.subjects):
            yield tuple(some)
            some, room = [], UNIT_ACTIONS - 1
        some.append(line)
        room -= max(1, len(line.subjects))
    if some:
        yield tuple(some)


def _keys(store: Store) -> Iterator[str]:
    for kind in KINDS:
        after = ""
        while page := store.keys(kind, after=after):
            yield from page
            after = page[-1]


def _story(store: Store, keys: list[str]) -> list[Line]:
    return weave({key: store.story(key, STORY) for key in [*keys, AUDIT]})
