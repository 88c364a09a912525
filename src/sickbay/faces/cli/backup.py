"""sickbay backup: a copy of the store while the controller works with it."""

from pathlib import Path
from typing import Any

import click

from sickbay.faces.archive import iso
from sickbay.faces.cli.columns import count, show_one
from sickbay.faces.cli.show import as_json
from sickbay.faces.cli.up import state_option
from sickbay.model.errors import BadInput
from sickbay.model.rows import KINDS
from sickbay.ports.store import Store

PG_DUMP = "this copies SQLite stores; copy PostgreSQL with: pg_dump --format=custom --file=FILE URL"


@click.command("backup")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@state_option
@click.option("--store", metavar="FILE", help="A SQLite store elsewhere, instead of the one in the state directory.")
@as_json
def backup(file: Path, state: Path | None, store: str | None, as_json: bool) -> None:
    """Copy the store into FILE while the controller works with it, and check the copy.

    The copy is of one moment, one file, and only its owner may read it. To go back to it: end the controller, put the
    copy in the place of sickbay.db (and remove sickbay.db-wal and sickbay.db-shm), and start the controller again. What
    has happened since is looked for before anything is done (docs/backup.md).

    \b
    Examples:
      sickbay backup sickbay-monday.db
      sickbay backup /backups/sickbay-$(date +%F).db --state /var/lib/sickbay
    """
    from sickbay.hosts.state import default_state
    from sickbay.wiring import back_up, open_store

    if store is not None and "://" in store and not store.startswith("sqlite:///"):
        raise BadInput(PG_DUMP)
    source = (state or default_state()).absolute() / "sickbay.db" if store is None else Path(store)
    if store is not None and store.startswith("sqlite:///"):
        source = Path(store.removeprefix("sqlite:///"))
    made = back_up(source, file)
    kept = open_store(f"sqlite:///{file.absolute()}", readonly=True)  # it opens, and what is in it can be read
    try:
        read = {kind: _count(kept, kind) for kind in KINDS}
    finally:
        kept.close()
    counts = {f"{kind}s": read[kind] for kind in ("node", "job", "incident")}
    answer = {"file": str(file), "of": str(source), "at": iso(made), "bytes": file.stat().st_size, **counts}
    show_one(answer, _show, as_json=as_json)


def _count(store: Store, kind: str) -> int:
    """Each row is read: one that cannot be decoded is found now, and not on the day when the copy is needed."""
    number, after = 0, ""
    while page := store.keys(kind, after=after):
        damaged = [found.damage for found in store.load(page).values() if found.damage]
        if damaged:
            raise BadInput(f"the copy is there, but not all of it can be read: {damaged[0]}")
        number, after = number + len(page), page[-1]
    return number


def _show(answer: dict[str, Any]) -> None:
    what = ", ".join(count(answer[f"{kind}s"], kind) for kind in ("node", "job", "incident"))
    click.echo(f"{answer['file']}: {answer['bytes'] / 1e6:.1f} MB, whole and readable: {what}")
