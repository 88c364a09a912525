"""One name, one thing: a class that is found by its name is the one that was meant."""

import re
from collections import defaultdict
from pathlib import Path

import sickbay

SOURCE = Path(sickbay.__file__).parent


def test_a_class_name_stands_for_one_class() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for name in re.findall(r"^ *class (\w+)\b", path.read_text(encoding="utf-8"), flags=re.MULTILINE):
            places[name].append(str(path.relative_to(SOURCE)))
    assert len(places) > 500
    assert {name: where for name, where in places.items() if len(where) > 1} == {}
