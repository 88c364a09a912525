"""One name, one thing: a class that is found by its name is the one that was meant."""

import ast
from collections import defaultdict
from pathlib import Path

import sickbay

SOURCE = Path(sickbay.__file__).parent


def test_a_class_name_stands_for_one_class() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    twice = {name: where for name, where in places.items() if len(where) > 1}
    assert not twice
