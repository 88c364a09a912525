"""The metric families of GET /metrics: name, type, unit and meaning of each, and the text format (0.0.4) of Prometheus.

Names end in their unit; what only grows ends in `_total` and begins at zero with each process.
The table is `families.csv`.
"""

import csv
from collections.abc import Iterable, Iterator
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


class MeasuredSeries(NamedTuple):
    """Under which metric a series of an agent is told."""

    metric: str
    labels: str  # besides the node's, as they are written
    help: str


class MetricsPage:
    """Samples by family, each set of labels once."""

    def __init__(self) -> None:
        self._samples: dict[str, dict[str, float]] = {}  # by labels, as they are written
        self._measured: dict[str, list[str]] = {}  # lines
        self._helps: dict[str, str] = {}

    def add(self, name: str, value: float, *labels: str) -> None:
        """One of FAMILIES."""
        written = labels_of(zip(FAMILIES[name].labels, labels, strict=True))
        self._samples.setdefault(name, {})[written] = value

    def add_all(self, name: str, values: Iterable[tuple[tuple[str, ...], float]]) -> None:
        for labels, value in values:
            self.add(name, value, *labels)

    def add_measured(self, node: str, values: Iterable[tuple[MeasuredSeries, float]]) -> None:
        """All series of one node, as its agent named them. None takes the place of ours, or is told twice."""
        told: set[tuple[str, str]] = set()
        of_node = labels_of([("node", node)])
        for (metric, labels, help_), value in values:
            if metric in FAMILIES or (metric, labels) in told:
                continue
            told.add((metric, labels))
            lines = self._measured.get(metric)
            if lines is None:
                lines = self._measured[metric] = []
                self._helps[metric] = help_
            inside = f"{of_node},{labels}" if labels else of_node
            lines.append(f"{metric}{{{inside}}} {value:.15g}")

    def text(self) -> str:
        lines = [line for name in sorted(self._samples) for line in self._family(name)]
        for name in sorted(self._measured):
            lines += [f"# HELP {name} {_help(self._helps[name])}", f"# TYPE {name} gauge", *self._measured[name]]
        return "\n".join([*lines, ""])

    def _family(self, name: str) -> Iterator[str]:
        family = FAMILIES[name]
        yield f"# HELP {name} {_help(family.help)}"
        yield f"# TYPE {name} {family.kind}"
        for inside, value in sorted(self._samples[name].items()):
            yield f"{name}{{{inside}}} {value:.15g}" if inside else f"{name} {value:.15g}"


def labels_of(pairs: Iterable[tuple[str, str]]) -> str:
    return ",".join(f'{key}="{_escaped(text)}"' for key, text in pairs)


def _help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
