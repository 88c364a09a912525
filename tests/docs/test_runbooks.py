"""Whoever is woken by a notification finds a page about it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from sickbay.model.notice import CLOSED, DIGEST, TEST
from sickbay.model.notice import EVENTS as RATED

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "sickbay"
RUNBOOKS = ROOT / "docs" / "runbooks"
# Where the event's name stands in the call.
CALLS = {"tell": 1, "remind": 2}


def _events() -> dict[str, str]:
    """Every event that the engine can send, with a place that does: from the source, so that none is forgotten."""
    found: dict[str, str] = {}
    for file in sorted([*(SOURCE / "brain").glob("*.py"), *(SOURCE / "engine").glob("*.py")]):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            for name in _sent(node, tree):
                found[name] = f"{file.parent.name}/{file.name}"
    return found


def _sent(node: ast.AST, tree: ast.Module) -> Iterator[str]:
    if not isinstance(node, ast.Call):
        return
    called = node.func.id if isinstance(node.func, ast.Name) else ""
    keywords = {word.arg: word.value for word in node.keywords}
    if called == "Notify":
        yield from _words(keywords["event"], tree)
    elif called in CALLS and len(node.args) > CALLS[called]:
        yield from _words(node.args[CALLS[called]], tree)
    elif called == "Deferred":
        told = keywords.get("tell") or (node.args[2] if len(node.args) > 2 else None)
        yield from _words(told, tree) if told is not None else ()


def _words(value: ast.expr, tree: ast.Module) -> Iterator[str]:
    """The texts that an expression can be; of a variable, what it is given anywhere in its module."""
    match value:
        case ast.Constant(value=str(text)) if text:
            yield text
        case ast.IfExp(body=one, orelse=other):
            yield from (*_words(one, tree), *_words(other, tree))
        case ast.Name(id=name):
            for node in ast.walk(tree):
                if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
                    yield from (text for text in _words(node.value, tree) if text != name)


SENT = _events()
EVENTS = {**dict.fromkeys((CLOSED, DIGEST, TEST), "model/notice.py"), **SENT}


def test_the_events_are_found_in_the_source() -> None:
    assert {"held", "brake", "budget", "withheld", "vacancy", "job_failed", "check_failed"} <= SENT.keys()


def test_every_event_is_rated_and_the_page_says_how() -> None:
    assert EVENTS.keys() == RATED.keys()
    rows = (RUNBOOKS / "README.md").read_text(encoding="utf-8")
    assert [event for event, kind in RATED.items() if f"| [{event}]({event}.md) | {kind.severity} |" not in rows] == []


def test_every_event_has_its_runbook_and_every_runbook_its_event() -> None:
    pages = {page.stem for page in RUNBOOKS.glob("*.md")} - {"README"}
    assert EVENTS.keys() - pages == set(), "events without a page in docs/runbooks"
    assert pages - EVENTS.keys() == set(), "pages in docs/runbooks about events that nothing sends"


@pytest.mark.parametrize("event", sorted(EVENTS))
def test_a_runbook_says_what_it_means_where_to_look_and_what_to_do(event: str) -> None:
    text = (RUNBOOKS / f"{event}.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {event}: ")
    assert "**What it means.**" in text
    assert "\n## Look\n" in text
    assert "\n## Do" in text
    assert f"[{event}]({event}.md)" in (RUNBOOKS / "README.md").read_text(encoding="utf-8")
