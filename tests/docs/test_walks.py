"""The walks of docs/architecture.md lead through code that is there: every file, and every name in it."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
STEP = re.compile(r"`([a-z_/]+\.py)`\s+→\s+`([A-Za-z_.]+)`")
FILE = re.compile(r"`([a-z_/]+\.py)`")


def walks() -> dict[str, str]:
    section = PAGE.read_text(encoding="utf-8").partition("\n## Three walks\n")[2].partition("\n## ")[0]
    parts = re.split(r"^### (.+)$", section, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def names_in(file: Path) -> set[str]:
    """Its functions and classes, and the methods of these with the class in front."""
    found: set[str] = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = (one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))
            found |= {f"{node.name}.{one.name}" for one in methods}
    return found


def test_there_are_three_walks_each_a_numbered_list() -> None:
    assert len(walks()) == 3
    for walk in walks().values():
        numbers = [int(found) for found in re.findall(r"^(\d+)\. ", walk, flags=re.MULTILINE)]
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(numbers) >= 6


@pytest.mark.parametrize("name", sorted(walks()))
def test_every_step_of_a_walk_is_there(name: str) -> None:
    walk = walks()[name]
    steps = STEP.findall(walk)
    assert len(steps) >= 6
    for path in FILE.findall(walk):
        assert (ROOT / "src" / "sickbay" / path).is_file(), path
    for path, wanted in steps:
        assert wanted in names_in(ROOT / "src" / "sickbay" / path), f"{path} has no {wanted}"


def test_what_a_step_names_besides_is_in_one_of_the_files_of_its_walk() -> None:
    for walk in walks().values():
        known = set().union(*(names_in(ROOT / "src" / "sickbay" / path) for path in FILE.findall(walk)))
        besides = set(re.findall(r"`([a-z]+(?:_[a-z]+)+)`", walk))
        assert besides <= known
