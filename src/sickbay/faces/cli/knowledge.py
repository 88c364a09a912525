"""sickbay knowledge: what is known of a fault, from which source, and what it asks for."""

from difflib import get_close_matches
from fnmatch import fnmatchcase
from operator import attrgetter
from pathlib import Path
from typing import Any

import click

from sickbay.faces.cli.columns import Column, card, columns, count, hint
from sickbay.faces.cli.show import as_json, print_json
from sickbay.knowledge.load import load_tables
from sickbay.model.errors import BadInput
from sickbay.model.tables import Meaning, SxidRow, Tables, XidRow


@click.command("knowledge")
@click.argument("code", metavar="[CODE|GLOB]", required=False)
@click.option(
    "--knowledge", "file", metavar="FILE", type=click.Path(path_type=Path), help="With your own rows over it."
)
@as_json
def knowledge(code: str | None, file: Path | None, as_json: bool) -> None:
    """What a fault means, what it asks for, and who says so. A bare number is an Xid.

    \b
    sickbay knowledge 79
    sickbay knowledge sxid.12028
    sickbay knowledge 'nvlink.*' --json
    sickbay knowledge xid.74 --knowledge /etc/sickbay/knowledge.yaml
    """
    tables = load_tables(file)
    found = _found(code, tables)
    if as_json:
        shown = [_json(row) for row in found]
        print_json(shown[0] if code is not None and len(shown) == 1 and not _is_glob(code) else shown)
    elif code is not None and len(found) == 1:
        _print_one(found[0])
    else:
        columns(
            [
                *(Column(name, attrgetter(name)) for name in ("code", "severity", "remedy", "component")),
                Column("because", attrgetter("because"), cut=True),
            ],
            found,
        )
        hint(f"{count(len(found), 'fault')}; one of them with its sources: sickbay knowledge CODE")


def _is_glob(code: str) -> bool:
    return any(letter in code for letter in "*?[")


def _found(code: str | None, tables: Tables) -> list[Meaning]:
    """Raises BadInput where there is none."""
    rows = {row.code: row for row in tables.meanings()}
    if code is None:
        return list(rows.values())
    wanted = f"xid.{code}" if code.isascii() and code.isdigit() else code.lower().replace("xid ", "xid.")
    found = [row for name, row in rows.items() if fnmatchcase(name, wanted)]
    if not found:
        close = get_close_matches(wanted, rows, n=3)
        guess = f"did you mean {' or '.join(close)}?" if close else "'sickbay knowledge' lists all"
        raise BadInput(f"no fault is called {code!r}: {guess}")
    return found


def _json(row: Meaning) -> dict[str, Any]:
    numbered = row if isinstance(row, XidRow | SxidRow) else None
    return {
        "code": row.code,
        "class": row.monitor,
        "component": row.component,
        "severity": row.severity,
        "scope": row.scope,
        "remedy": row.remedy,
        "because": row.because,
        "source": row.source,
        "mnemonic": numbered.mnemonic if numbered else "",
        "positions": {who: said for who, said in numbered.positions.items() if said} if numbered else {},
        "notes": numbered.notes if numbered else "",
    }


def _print_one(row: Meaning) -> None:
    told = _json(row)
    card(
        row.code,
        row.severity,
        [
            ("what to do", row.remedy),
            ("because", row.because),
            ("component", f"{row.component} (scope {row.scope})"),
            ("mnemonic", told["mnemonic"]),
            ("class", row.monitor),
            ("notes", told["notes"]),
            *((f"says {who}", said) for who, said in told["positions"].items()),
            ("source", row.source),
        ],
    )
