"""The contract of the Metrics port, for every adapter.

class TestMyMetrics(MetricsContract):
    @pytest.fixture
    def metrics(self, tmp_path):
        return MyMetrics(tmp_path)
"""

from datetime import UTC, datetime, timedelta

from sickbay.model.fleet import NodeId
from sickbay.ports.metrics import Metrics

NODE, OTHER = NodeId("c/n1"), NodeId("c/n2")
HOUR = timedelta(hours=1)


def now() -> datetime:
    return datetime.now(UTC)


class MetricsContract:
    def test_what_was_recorded_is_read_back_in_order(self, metrics: Metrics) -> None:
        start = now() - timedelta(minutes=10)
        for n in range(60):
            metrics.record(NODE, start + n * timedelta(seconds=10), {"gpu.0.temperature": float(n)})
        points = metrics.read(NODE, "gpu.0.temperature", start - HOUR / 60, now())
        assert [point.mean for point in points] == [float(n) for n in range(60)]
        assert [point.at for point in points] == sorted(point.at for point in points)

    def test_an_hour_back_is_still_fine(self, metrics: Metrics) -> None:
        for seconds in (20, 10):
            metrics.record(NODE, now() - timedelta(seconds=seconds), {"cpu.busy": float(seconds)})
        since = now() - HOUR
        assert [point.mean for point in metrics.read(NODE, "cpu.busy", since, now())] == [20.0, 10.0]

    def test_values_of_one_moment_are_a_mean_and_a_highest(self, metrics: Metrics) -> None:
        at = now().replace(second=1, microsecond=0) - timedelta(minutes=5)
        for value in (1.0, 2.0, 6.0):
            metrics.record(NODE, at, {"cpu.busy": value})
        (point,) = metrics.read(NODE, "cpu.busy", at - timedelta(minutes=1), now())
        assert (point.mean, point.highest) == (3.0, 6.0)

    def test_what_is_older_than_the_fine_grain_is_there_in_a_coarser_one(self, metrics: Metrics) -> None:
        at = now() - timedelta(days=20)
        metrics.record(NODE, at, {"cpu.busy": 7.0})
        assert [point.mean for point in metrics.read(NODE, "cpu.busy", now() - timedelta(days=25), now())] == [7.0]
        assert not metrics.read(NODE, "cpu.busy", now() - HOUR / 2, now())

    def test_nodes_and_series_are_kept_apart(self, metrics: Metrics) -> None:
        metrics.record(NODE, now(), {"a.b": 1.0})
        metrics.record(OTHER, now(), {"a.c": 2.0})
        assert (list(metrics.series(NODE)), list(metrics.series(OTHER))) == (["a.b"], ["a.c"])
        assert not metrics.read(NODE, "a.c", now() - HOUR, now())
        assert not metrics.read(NodeId("c/unheard"), "a.c", now() - HOUR, now())

    def test_the_newest_values_of_all_nodes_are_at_hand(self, metrics: Metrics) -> None:
        metrics.record(NODE, now() - timedelta(seconds=20), {"a.b": 1.0})
        metrics.record(NODE, now(), {"a.b": 2.0})
        metrics.record(NODE, now() - timedelta(seconds=10), {"a.b": 3.0})
        assert dict(metrics.latest()[NODE][1]) == {"a.b": 2.0}

    def test_what_is_no_number_is_left_out(self, metrics: Metrics) -> None:
        metrics.record(NODE, now(), {"a.b": float("nan"), "a.c": float("inf"), "a.d": 1.0})
        assert list(metrics.series(NODE)) == ["a.d"]

    def test_many_series_are_taken_and_what_was_there_stays(self, metrics: Metrics) -> None:
        metrics.record(NODE, now(), {"first.one": 1.0})
        metrics.record(NODE, now(), {f"gpu.{n}.power": float(n) for n in range(300)})
        assert len(metrics.series(NODE)) == 301
        assert [point.mean for point in metrics.read(NODE, "first.one", now() - HOUR, now())] == [1.0]
        assert [point.mean for point in metrics.read(NODE, "gpu.299.power", now() - HOUR, now())] == [299.0]
