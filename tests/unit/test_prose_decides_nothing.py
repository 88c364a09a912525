"""Values decide, prose does not: no code under src reads a reason back, and words on the wire are enums."""

import ast
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

import msgspec
import pytest

import sickbay
from sickbay.model.checkup import Verdict
from sickbay.model.cordon import cordon_of, incident_of, others_of
from sickbay.model.intent import OwnerKind
from sickbay.model.protocol import CommandResult
from sickbay.testing.store_nouns import intent

SRC = Path(sickbay.__file__).parent
# Where a reason is compared only to print it once, or where an empty one says that there is none.
DISPLAY = {
    ("engine/admission.py", "incident.wait.because != wait.because"),  # a reason that has changed is told anew
    ("agent/checks/collective.py", "found.because.removeprefix(f'rank {number}: ')"),  # its name is put before it
    ("faces/cli/stages.py", "because != self._because"),  # the same: printed when it changes
}
# Where a name is taken apart: once for each kind of name, in the noun that has it.
NAMES = {
    ("model/fleet.py", "self.id.split('/', 1)"),  # Node.name
    ("model/intent.py", "self.owner.partition(':')"),  # Intent.done_for
    ("model/intent.py", "self.subject.partition(':')"),  # Notify.about
    ("engine/notices.py", "intent.key.removesuffix(f'.{notice.to}')"),  # the key that all channels of a notice share
}
READERS = {
    "startswith",
    "endswith",
    "partition",
    "rpartition",
    "split",
    "rsplit",
    "removeprefix",
    "removesuffix",
    "find",
    "index",
    "count",
}


def _prose(node: ast.expr) -> bool:
    match node:
        case ast.Attribute(attr="because" | "diagnosis") | ast.Name(id="because"):
            return True
        case ast.Subscript(slice=ast.Constant(value="because")):
            return True
    return False


def _name(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in {"id", "owner", "scope", "key", "subject", "signature"}


def taken_apart(tree: ast.AST) -> Iterator[ast.expr]:
    """Calls that read what a thing is off its name."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=value, attr=attr)) if attr in READERS - {"count"} and _name(value):
                yield node


def reads(tree: ast.AST) -> Iterator[ast.expr]:
    """Comparisons with a reason, and calls that take one apart."""
    for node in ast.walk(tree):
        match node:
            case ast.Compare(left=left, comparators=others) if any(map(_prose, (left, *others))):
                yield node
            case ast.Call(func=ast.Attribute(value=value, attr=attr)) if attr in READERS and _prose(value):
                yield node
            case ast.Match(subject=subject) if _prose(subject):
                yield subject


@pytest.mark.parametrize(
    "line", ['"brake" in x.because', "row.because == because", 'x.because.startswith("by an")', "because in REASONS"]
)
def test_it_sees_each_way_to_read_a_reason(line: str) -> None:
    assert list(reads(ast.parse(line)))


@pytest.mark.slow
def test_no_reason_is_read_back() -> None:
    found = {
        (str(path.relative_to(SRC)), ast.unparse(node))
        for path in sorted(SRC.rglob("*.py"))
        for node in reads(ast.parse(path.read_text()))
    }
    assert found - DISPLAY == set()
    assert DISPLAY - found == set(), "these are gone: take them off the list"


@pytest.mark.slow
def test_no_name_is_taken_apart_but_by_the_noun_that_has_it() -> None:
    found = {
        (str(path.relative_to(SRC)), ast.unparse(node))
        for folder in ("model", "brain", "engine", "faces", "hosts", "sim", "adapters", "ports")
        for path in sorted((SRC / folder).rglob("*.py"))
        for node in taken_apart(ast.parse(path.read_text()))
    }
    assert found == NAMES


@pytest.mark.parametrize(
    ("kind", "known", "unknown"),
    [(Verdict, "pass", Verdict.COULD_NOT_RUN), (CommandResult, "refused", CommandResult.UNKNOWN)],
)
def test_an_agents_word_that_we_do_not_know_proves_nothing(kind: type[StrEnum], known: str, unknown: StrEnum) -> None:
    """An agent of another version, or one that is mad: its report is taken, and nobody is healthy for it."""
    assert msgspec.json.decode(b'"%s"' % known.encode(), type=kind) is kind(known)
    assert msgspec.json.decode(b'"odd"', type=kind) is unknown
    assert msgspec.json.decode(b'""', type=kind) is unknown


@pytest.mark.parametrize(
    ("owner", "kind"),
    [("", OwnerKind.NOBODY), ("incident:i1", OwnerKind.INCIDENT), ("job:a:b", OwnerKind.JOB),
     ("checkup:check-1", OwnerKind.CHECKUP)],
)  # fmt: skip
def test_the_owner_of_an_intent_is_read_in_one_place(owner: str, kind: OwnerKind) -> None:
    assert intent("k", owner=owner).done_for is kind


@pytest.mark.parametrize(("owner", "incident"), [("sickbay:i1", "i1"), ("other:rack 4", None), ("kubectl", None)])
def test_a_cordon_has_one_owner(owner: str, incident: str | None) -> None:
    assert incident_of(owner) == incident
    assert others_of((owner, cordon_of("i2"))) == (() if incident else (owner,))
    assert incident is None or cordon_of(incident) == owner
