"""What somebody who starts and ends a cluster is told."""

import re
from pathlib import Path

import pytest
from tests.support.manual import reading

pytestmark = pytest.mark.slow


def test_whoever_serves_elsewhere_says_where_and_a_second_one_says_what_to_do(tmp_path: Path) -> None:
    with reading(tmp_path / "home") as reader:
        first = reader.run("SICKBAY_URL= sickbay up --detach --nodes 1 --port 0")
        assert first.returncode == 0, first.stderr
        (address,) = re.findall(r"serving on (\S+),", first.stdout)
        assert f"export SICKBAY_URL={address}\n" in first.stdout
        assert reader.run(f"SICKBAY_URL={address} sickbay nodes").returncode == 0
        again = reader.run("sickbay up --detach --port 0")  # what it asks for is there
        assert (again.returncode, again.stderr) == (0, "")
        assert f"serving on {address} already" in again.stdout
        assert reader.run("sickbay up --detach").returncode == 0
        second = reader.run("sickbay up --detach --nodes 2")
        assert second.returncode == 2
        assert len(second.stderr.splitlines()) == 1
        assert "already" in second.stderr
        assert "sickbay down" in second.stderr


def test_down_says_what_ended_and_a_second_time_that_nothing_ran(tmp_path: Path) -> None:
    with reading(tmp_path / "home") as reader:
        assert reader.run("sickbay down").returncode == 1  # there is no state at all
        reader.run("sickbay up --detach --nodes 2 --port 0")
        assert "the controller and 2 nodes ended" in reader.run("sickbay down").stdout
        again = reader.run("sickbay down")
        assert again.returncode == 0
        assert "nothing was running" in again.stdout


def test_a_newcomer_is_told_of_by_its_nodes_name_and_not_by_its_incidents(tmp_path: Path) -> None:
    with reading(tmp_path / "home") as reader:
        reader.follow("sickbay up --detach --nodes 1")  # who is there at first is nobody's newcomer
        reader.run("sickbay down")
        reader.follow("sickbay up --detach --nodes 2")
        told = tmp_path / "home" / "state" / "up.log"  # what it would have shown on a terminal
        reader.until(lambda: "fit for work" in told.read_text())
        said = told.read_text()
    assert re.search(r"done +node-1 +new here: checked, and fit for work", said), said
    assert not re.search(r"node-0 +new here", said), said
    assert not re.search(r" n\d+ ", said), said
    assert "sickbay submit --name mine" in said
    assert "{job}" not in said
