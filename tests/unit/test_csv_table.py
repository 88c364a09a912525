"""The one CSV reader: a mistake names its file, line and column; and every row of our tables names its source."""

import csv
import re
from enum import StrEnum
from pathlib import Path

import pytest

import sickbay.knowledge
from sickbay.knowledge.csv_table import TableRow, read_table
from sickbay.model.errors import BadInput

DATA = Path(sickbay.knowledge.__file__).parent / "data"
KEYED = (
    "cluster_names.csv", "cluster_words.csv", "smi_words.csv", "smi_fields.csv", "gpu_limits.csv",
    "recovery_actions.csv",
    "dcgm_errors.csv", "dcgm_tests.csv", "dcgm_fields.csv", "dcgm_health.csv", "dcgm_policy.csv", "dcgm_categories.csv",
    "fabric_manager.csv", "device_counts.csv", "neuron_instances.csv",
)  # fmt: skip


class Colour(StrEnum):
    RED = "red"


def everything(row: TableRow) -> tuple[object, ...]:
    return (
        row.given("name"), row.whole("number"), row.number("size"), row.yes("flag"), row.word("colour", Colour),
        row.pattern("pattern", shorthands={"%digit%": "[0-9]"}).pattern,
    )  # fmt: skip


COLUMNS = ("name", "number", "size", "flag", "colour", "pattern")
HEAD = ",".join(COLUMNS) + "\n"


def test_what_is_asked_for_comes_as_its_type() -> None:
    assert read_table("t.csv", COLUMNS, everything, HEAD + '"a, b",3,0.5,yes,red,%digit%+\n') == [
        ("a, b", 3, 0.5, True, Colour.RED, "[0-9]+")
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name,number\n", "t.csv line 1: column size is missing; write name, number"),
        (HEAD + "a,1,1,yes,red,x\n ,1,1,yes,red,x\n", "t.csv line 3: name is empty"),
        (HEAD + "a,one,1,yes,red,x\n", "t.csv line 2: number 'one' is no number"),
        (HEAD + "a,1,-1,yes,red,x\n", "t.csv line 2: size '-1' is no number"),
        (HEAD + "a,1,1,maybe,red,x\n", "t.csv line 2: flag 'maybe'; write yes or no"),
        (HEAD + "a,1,1,yes,blue,x\n", "t.csv line 2: colour 'blue' is not known; write one of red"),
        (HEAD + "a,1,1,yes,red,(\n", "t.csv line 2: pattern is no regular expression"),
        (HEAD + "a,1,1\n", "t.csv line 2: write 6 fields"),
        (HEAD + "a,1,1,yes,red,x,y\n", "t.csv line 2: write 6 fields"),
        (HEAD + 'a,1,"1\n', "t.csv line 2: not CSV"),
    ],
)
def test_a_mistake_is_told_in_one_line_with_its_file_line_and_column(text: str, says: str) -> None:
    with pytest.raises(BadInput, match=f"^{re.escape(says)}") as refused:
        read_table("t.csv", COLUMNS, everything, text)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", KEYED)
def test_every_row_names_a_source_that_is_explained(name: str) -> None:
    explained = set(re.findall(r"^\| ([a-z0-9-]+) \|", (DATA / "SOURCES.md").read_text(encoding="utf-8"), re.MULTILINE))
    with (DATA / name).open(encoding="utf-8", newline="") as file:
        used = {key for row in csv.DictReader(file) for key in row["source"].split("; ")}
    assert used
    assert used <= explained
