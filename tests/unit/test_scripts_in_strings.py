"""Scripts that tests hand to other processes as text: no type checker reads them, so a rename must not pass them by."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
IMPORT = re.compile(r"^from (sickbay[\w.]*) import ([\w, ]+)", re.MULTILINE)


def imported_in_strings() -> set[tuple[str, str, str]]:
    """(file, module, name)"""
    found = set()
    for path in TESTS.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if "from sickbay" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                for module, names in IMPORT.findall(node.value):
                    found |= {(path.name, module, name.split(" as ")[0].strip()) for name in names.split(",")}
    return found


def defined_in(module: str) -> set[str]:
    """Read, not imported: some need libraries that are not here."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None, module
    names: set[str] = set()
    for node in ast.walk(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))):
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                names.add(node.name)
            case ast.Name(ctx=ast.Store()):
                names.add(node.id)
            case ast.Import() | ast.ImportFrom():
                names |= {alias.asname or alias.name for alias in node.names}
            case _:
                pass
    return names | {path.stem for path in Path(spec.origin).parent.iterdir()}


@pytest.mark.slow
def test_what_a_script_in_a_string_imports_exists() -> None:
    found = imported_in_strings()
    missing = [row for row in sorted(found) if row[2] not in defined_in(row[1])]
    assert len(found) > 20
    assert not missing
