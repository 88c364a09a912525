"""Golden tables: what a shipped policy is expected to do, as data beside it."""

from pathlib import Path
from typing import Literal

from msgspec import inspect as mi

from sickbay.knowledge.yaml_places import YamlReader, compose, converted
from sickbay.model.errors import BadInput
from sickbay.model.noun import Noun
from sickbay.policy.load import shipped_files


class GoldenRow(Noun, forbid_unknown_fields=True):
    """The meaning of each word stands at the top of the files."""

    when: str
    evidence: tuple[str, ...]
    acts: tuple[str, ...]
    told: bool
    job: Literal["restarts", "fails", "waits", "untouched"]


def load_golden(name: str) -> tuple[GoldenRow, ...]:
    """The golden table of a shipped policy. Raises BadInput."""
    path = shipped_files()[name]
    table: Path = path.with_name(f"{path.stem}.golden.yaml")
    reader = YamlReader(table.name)
    node = compose(table.read_text(encoding="utf-8"), table.name)
    if node is None:
        raise BadInput(f"{table.name}: the table is empty: write rows")
    kind = tuple[GoldenRow, ...]
    rows: tuple[GoldenRow, ...] = converted(reader.read(node, mi.type_info(kind), ()), kind, reader.places)
    return rows
