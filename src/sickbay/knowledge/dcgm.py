"""What DCGM's numbers and sentences mean: its error codes, tests, watches, policies and fields as tables.

DCGM breaks its sentences in the middle of words to fit a box, so sentences are compared without spaces.
"""

import re
from functools import cache

from sickbay.knowledge.csv_table import TableRow, read_table
from sickbay.model.noun import Noun
from sickbay.model.sign import Fields, Sign

NOTHING = "-"  # in a table: DCGM says it, and it is no fault
XID, SXID = "xid", "sxid"
LINK = "link"  # the kind of a field that each NVLink has
UNREACHABLE, COULD_NOT_RUN = "dcgm.unreachable", "dcgm.could_not_run"
# What says nothing about the hardware: a test that ends with one of these has neither passed nor failed.
NO_VERDICT = frozenset({UNREACHABLE, COULD_NOT_RUN, "dcgm.config", "gpu.persistence_off", "dcgm.imex"})
LONGEST = 20_000  # characters of one message; DCGM's own limit is below
PIECES = 256  # messages in one cell

_GPU = re.compile(r"gpu(?:id)?:?(\d{1,3})", re.ASCII)
_SWITCH = re.compile(r"nvswitch(?:physicalid)?(\d{1,4})", re.ASCII)
_LINK = re.compile(r"link(\d{1,3})|port(\d{1,3})", re.ASCII)
_NUMBER = {XID: re.compile(r"xid:?(?:error)?:?(\d{1,5})", re.ASCII), SXID: re.compile(r"sxid:?(\d{1,6})", re.ASCII)}
_NEXT = re.compile(r",(?=gpu\d)", re.ASCII)
_SPACE = re.compile(r"\s+")


class DcgmMessage(Noun):
    """One thing that DCGM says. `words`: alternatives, each a row of pieces that follow one another."""

    code: str
    words: tuple[tuple[str, ...], ...]
    name: str = ""
    severity: str = ""


class Field(Noun):
    """A field of DCGM and where it goes in a `GpuReading`; `kind` says how its value is written."""

    id: int  # 0: not asked for with `dcgmi dmon`
    name: str
    short: str  # the head of its column in `dcgmi dmon`
    reading: str
    kind: str


def squeezed(text: str) -> str:
    return _SPACE.sub("", text[:LONGEST]).lower()


def said(pieces: tuple[str, ...], text: str) -> bool:
    """Do these stand in a squeezed text, in this order?"""
    at = 0
    for piece in pieces:
        at = text.find(piece, at)
        if at < 0:
            return False
        at += len(piece)
    return True


def words_in(row: TableRow) -> tuple[tuple[str, ...], ...]:
    """The cell `words`: alternatives behind bars, each a row of pieces with stars between them."""
    alternatives = (tuple(filter(None, map(squeezed, words.split("*")))) for words in row["words"].split("|"))
    return tuple(filter(None, alternatives))


@cache
def errors() -> tuple[tuple[DcgmMessage, ...], dict[int, DcgmMessage]]:
    """All rows in the order in which sentences are compared, and those that have a number."""

    def message(row: TableRow) -> tuple[str, DcgmMessage]:
        known = DcgmMessage(code=row["code"], words=words_in(row), name=row["name"], severity=row["severity"])
        return row["id"], known

    rows = read_table("dcgm_errors.csv", ("id", "name", "severity", "code", "words"), message)
    return tuple(row for _, row in rows), {int(number): row for number, row in rows if number}


@cache
def tests() -> dict[str, str]:
    return dict(read_table("dcgm_tests.csv", ("test", "code"), lambda row: (row["test"], row["code"])))


@cache
def categories() -> dict[int, str]:
    return dict(read_table("dcgm_categories.csv", ("id", "code"), lambda row: (row.whole("id"), row["code"])))


@cache
def systems() -> dict[str, tuple[str, str]]:
    """A watched system → what its failure means, what its warning means."""
    columns = ("system", "failure", "warning")
    return {
        row[0]: (row[1], row[2])
        for row in read_table("dcgm_health.csv", columns, lambda row: [row[c] for c in columns])
    }


@cache
def policies() -> tuple[DcgmMessage, ...]:
    def message(row: TableRow) -> DcgmMessage:
        return DcgmMessage(code=row.given("code"), words=words_in(row))

    return tuple(read_table("dcgm_policy.csv", ("code", "words"), message))


@cache
def fields() -> tuple[Field, ...]:
    def field(row: TableRow) -> Field:
        return Field(
            id=row.whole("id") if row["id"] else 0,
            name=row["name"],
            short=row["short"],
            reading=row["reading"],
            kind=row["kind"],
        )

    return tuple(read_table("dcgm_fields.csv", ("id", "name", "short", "reading", "kind"), field))


def code_of_test(name: str) -> str:
    """What it means that this test failed and nothing says why."""
    return tests().get(_plain(name), "dcgm.diag_failed")


def known_test(name: str) -> bool:
    return _plain(name) in tests()


def _plain(name: str) -> str:
    return name.strip().lower().replace("_", " ")


def messages(text: str, number: int | None = None, category: int | None = None) -> list[Sign]:
    """Signs in one message of DCGM; several stand in one where it ran out of room. Empty: not known."""
    found: list[Sign] = []
    for piece in _NEXT.split(squeezed(text), maxsplit=PIECES):
        told = _message(piece, number, category)
        if told is not None and told not in found:
            found.append(told)
    return found


def _message(text: str, number: int | None, category: int | None) -> Sign | None:
    rows, numbered = errors()
    # Sentences first: one number stands for several causes (an error of CUDA is a busy GPU, or one that is lost).
    known = next((row for row in rows if row.code and any(said(words, text) for words in row.words)), None)
    code = known.code if known is not None else ""
    if not code and number is not None and number in numbered:
        code = numbered[number].code
    if not code and category is not None:
        code = categories().get(category, "")
    if not code or code == NOTHING:
        return None
    return told_as(code, text)


def told_as(code: str, text: str) -> Sign | None:
    """A code of the tables with what a squeezed sentence names; None if a number that it needs is not there."""
    fields: Fields = {}
    kind, _, fixed = code.partition(":")
    if kind in _NUMBER:
        number = fixed or (found[1] if (found := _NUMBER[kind].search(text)) else "")
        if not number or int(number) == 0:
            return None
        fields["number"] = int(number)
        if kind == SXID:
            fields["severity"] = "fatal"
    if gpu := _GPU.search(text):
        fields["device"] = int(gpu[1])
    if kind.startswith(("nvlink.", "dcgm.nvswitch")):
        if switch := _SWITCH.search(text):
            fields["switch"] = int(switch[1])
        if link := _LINK.search(text):
            fields["link"] = int(link[1] or link[2])
    return Sign(kind=kind, fields=fields)
