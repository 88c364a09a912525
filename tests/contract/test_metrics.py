"""The Metrics port's contract, and what is the rings' own: a bounded size, and files that others damage."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sickbay.adapters.metrics.rings import RingMetrics
from sickbay.model.fleet import NodeId
from sickbay.testing.metrics_contract import MetricsContract

NODE = NodeId("c/n/1")


class TestRingMetrics(MetricsContract):
    @pytest.fixture
    def metrics(self, tmp_path: Path) -> RingMetrics:
        return RingMetrics(tmp_path / "metrics")


def now() -> datetime:
    return datetime.now(UTC)


def size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir())


def test_a_file_never_grows_with_time(tmp_path: Path) -> None:
    rings = RingMetrics(tmp_path)
    rings.record(NODE, now() - timedelta(days=30), {"a.b": 1.0})
    before = size(tmp_path)
    for hours in range(0, 30 * 24, 3):
        rings.record(NODE, now() - timedelta(hours=hours), {"a.b": 1.0})
    assert size(tmp_path) == before < 2 << 20


def test_what_was_kept_outlives_the_process(tmp_path: Path) -> None:
    RingMetrics(tmp_path).record(NODE, now(), {"a.b": 1.0})
    again = RingMetrics(tmp_path)
    assert list(again.series(NODE)) == ["a.b"]
    assert [point.mean for point in again.read(NODE, "a.b", now() - timedelta(hours=1), now())] == [1.0]


@pytest.mark.parametrize("damage", [b"", b"{", b"\0" * 100, b'{"version":9,"capacity":4,"names":[]}'])
def test_a_damaged_file_is_begun_anew(tmp_path: Path, damage: bytes) -> None:
    RingMetrics(tmp_path).record(NODE, now(), {"a.b": 1.0})
    (path,) = tmp_path.iterdir()
    path.write_bytes(damage)
    again = RingMetrics(tmp_path)
    assert not again.series(NODE)
    again.record(NODE, now(), {"a.c": 2.0})
    assert list(again.series(NODE)) == ["a.c"]


def test_a_place_that_cannot_be_written_to_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "metrics").write_text("in the way")
    rings = RingMetrics(tmp_path / "metrics")
    rings.record(NODE, now(), {"a.b": 1.0})
    assert rings.trouble
    assert not rings.series(NODE)
    assert dict(rings.latest()[NODE][1]) == {"a.b": 1.0}
