"""What a sound card of a kind measures: data/skus.csv. A kind that is not there is judged by its PCIe link only."""

import csv
import io
import re
from functools import cache

import msgspec

from sickbay.knowledge.shipped import shipped
from sickbay.model.errors import BadInput
from sickbay.model.noun import Noun

FIGURES = (
    "memory_gib", "h2d_gbps", "d2h_gbps", "d2d_gbps", "p2p_gbps", "tensor_tflops", "plain_tflops", "load_tflops",
    "busbw_gbps", "nvlinks",
)  # fmt: skip
COLUMNS = ("sku", "match", *FIGURES, "floor", "source")

# GB/s of one lane and direction, by generation: what is left of the line rate after its encoding.
LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
LANE_FLOOR = 0.5  # ours: headers, small payloads and a far socket take their share; half of it is lost by a fault only


class Sku(Noun):
    """Bandwidths in GB/s (10⁹ bytes), rates in TFLOP/s; `d2d` counts bytes read and written. None: nobody says."""

    sku: str
    match: str
    floor: float  # the share of an expectation that a sound card always reaches
    source: str
    memory_gib: float | None = None
    h2d_gbps: float | None = None
    d2h_gbps: float | None = None
    d2d_gbps: float | None = None
    p2p_gbps: float | None = None
    tensor_tflops: float | None = None
    plain_tflops: float | None = None
    load_tflops: float | None = None
    busbw_gbps: float | None = None
    nvlinks: float | None = None

    def least(self, figure: str) -> float | None:
        """The floor of a figure, where something is known of it."""
        expected = getattr(self, figure) if figure in FIGURES else None
        return None if expected is None else expected * self.floor


def sku_of(name: str) -> Sku | None:
    """By the name that the driver gives the card; the first row that matches."""
    return next((sku for sku in _shipped() if re.search(sku.match, name)), None)


def link_floor(generation: int | None, width: int | None) -> float | None:
    """What every sound card moves at least over a link of that kind, in GB/s."""
    lane = LANE.get(generation or 0)
    return None if lane is None or not width else lane * width * LANE_FLOOR


def read_skus(text: str, name: str = "skus.csv") -> tuple[Sku, ...]:
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
    if missing:
        raise BadInput(f"{name} line 1: column {missing[0]} is missing; write {', '.join(COLUMNS)}")
    found = []
    for row in reader:
        where = f"{name} line {reader.line_num}"
        given = {column: value for column, value in row.items() if value}
        try:
            sku = msgspec.convert(given, Sku, strict=False)
            re.compile(sku.match)
        except (msgspec.ValidationError, re.error) as error:
            raise BadInput(f"{where}: {error}; write {', '.join(COLUMNS)}, figures as numbers") from error
        if not sku.source or not 0 < sku.floor < 1:
            raise BadInput(f"{where}: every row names its source, and a floor between 0 and 1")
        found.append(sku)
    return tuple(found)


@cache
def _shipped() -> tuple[Sku, ...]:
    return read_skus(shipped("skus.csv"))
