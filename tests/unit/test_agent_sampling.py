"""Values for charts: one item for each moment, and lines that CloudWatch's agent reads."""

import json
import socket
from collections.abc import Mapping
from pathlib import Path

import pytest

from sickbay.agent.emf import EmfExport, lines
from sickbay.agent.sampling import Sampler
from sickbay.model.errors import BadInput
from sickbay.model.protocol import Measured


def broken() -> Mapping[str, float]:
    raise OSError("no such file")


def test_all_sources_of_a_moment_are_one_item() -> None:
    (item,) = Sampler([lambda: {"cpu.busy": 1.23456}, lambda: {"gpu.0.power": 300}]).look(5.0)
    assert item.mono == 5.0
    assert item.news == Measured(values={"cpu.busy": 1.235, "gpu.0.power": 300.0})


def test_a_source_that_fails_costs_the_others_nothing() -> None:
    (item,) = Sampler([broken, lambda: {"cpu.busy": 1.0}]).look(5.0)
    assert item.news == Measured(values={"cpu.busy": 1.0})


def test_that_nothing_could_be_measured_is_told() -> None:
    with pytest.raises(OSError, match="no such file"):
        Sampler([broken]).look(5.0)


def test_a_document_declares_what_it_holds_and_at_most_a_hundred() -> None:
    found = [json.loads(line) for line in lines("c/n1", {f"gpu.{n}.power": float(n) for n in range(130)}, 1.5)]
    assert len(found) == 2
    for one in found:
        (declared,) = one["_aws"]["CloudWatchMetrics"]
        assert declared["Namespace"] == "Sickbay"
        assert declared["Dimensions"] == [["node"]]
        assert len(declared["Metrics"]) <= 100
        assert all(isinstance(one[metric["Name"]], float) for metric in declared["Metrics"])
        assert (one["node"], one["_aws"]["Timestamp"]) == ("c/n1", 1500)


def test_values_reach_a_listening_agent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        export = EmfExport(f"tcp://127.0.0.1:{server.getsockname()[1]}", "c/n1")
        export({"cpu.busy": 2.0})
        connection, _ = server.accept()
        with connection, connection.makefile("rb") as stream:
            assert json.loads(stream.readline())["cpu.busy"] == 2.0
        export.close()


def test_an_agent_that_is_away_stops_nobody() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    export = EmfExport(f"tcp://127.0.0.1:{port}", "c/n1")
    export({"cpu.busy": 2.0})
    assert export.trouble


def test_a_file_is_followed_and_never_grows_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sickbay.agent.emf.LARGEST", 1000)
    export = EmfExport(str(tmp_path / "emf.log"), "c/n1")
    for _ in range(50):
        export({"cpu.busy": 2.0})
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 3000


@pytest.mark.parametrize("target", ["tcp://", "udp://:25888", "tcp://host:port"])
def test_a_target_that_is_none_is_refused_in_one_line(target: str) -> None:
    with pytest.raises(BadInput, match=r"write tcp://127\.0\.0\.1:25888 or a file"):
        EmfExport(target, "c/n1")
