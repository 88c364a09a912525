"""What a sound card of a kind measures: data/skus.csv. A kind that is not there is judged by its PCIe link only."""

import re
from functools import cache

from sickbay.knowledge.csv_table import TableRow, read_table
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


def read_skus(text: str | None = None) -> tuple[Sku, ...]:
    return tuple(read_table("skus.csv", COLUMNS, _sku, text))


def _sku(row: TableRow) -> Sku:
    figures = {name: row.number(name) for name in FIGURES if row[name]}
    floor = row.number("floor")
    if not 0 < floor < 1:
        raise row.wrong("floor: write a share between 0 and 1")
    row.pattern("match")
    return Sku(sku=row.given("sku"), match=row["match"], floor=floor, source=row.given("source"), **figures)


@cache
def _shipped() -> tuple[Sku, ...]:
    return read_skus()
