"""The metric families of GET /metrics: name, type, unit and meaning of each, and the text format (0.0.4) of Prometheus.

Names end in their unit; what only grows ends in `_total` and begins at zero with each process.
The table is `families.csv`.
"""

import csv
from collections.abc import Iterable, Iterator, Mapping
from importlib.resources import files
from typing import NamedTuple

TEXT = "text/plain; version=0.0.4; charset=utf-8"


class Family(NamedTuple):
    """One metric. `labels` in the order in which their values are given."""

    name: str
    kind: str  # counter | gauge
    help: str
    labels: tuple[str, ...] = ()
    everywhere: bool = False  # also told by a controller that does not lead


def _families() -> Iterator[Family]:
    text = (files("sickbay.faces.api") / "families.csv").read_text(encoding="utf-8")
    for row in csv.DictReader(text.splitlines(), strict=True):
        labels = tuple(row["labels"].split())
        yield Family(row["name"], row["kind"], row["help"], labels, everywhere=row["told_by"] == "all")


FAMILIES = {family.name: family for family in _families()}


class MetricsPage:
    """Samples by family, each set of labels once."""

    def __init__(self) -> None:
        self._samples: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
        self._measured: dict[str, str] = {}

    def add(self, name: str, value: float, *labels: str) -> None:
        """One of FAMILIES."""
        self._put(name, tuple(zip(FAMILIES[name].labels, labels, strict=True)), value)

    def add_all(self, name: str, values: Iterable[tuple[tuple[str, ...], float]]) -> None:
        for labels, value in values:
            self.add(name, value, *labels)

    def add_measured(self, name: str, labels: Mapping[str, str], value: float, help_: str) -> None:
        """A series that an agent named: it never takes the place of ours."""
        if name not in FAMILIES:
            self._measured[name] = help_
            self._put(name, tuple(labels.items()), value)

    def _put(self, name: str, labels: tuple[tuple[str, str], ...], value: float) -> None:
        self._samples.setdefault(name, {})[labels] = value

    def text(self) -> str:
        return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        for name in sorted(self._samples):
            family = FAMILIES.get(name) or Family(name, "gauge", self._measured.get(name, ""))
            yield f"# HELP {name} {_help(family.help)}"
            yield f"# TYPE {name} {family.kind}"
            for labels, value in sorted(self._samples[name].items()):
                inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels)
                yield f"{name}{{{inside}}} {value:.15g}" if inside else f"{name} {value:.15g}"


def _help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
