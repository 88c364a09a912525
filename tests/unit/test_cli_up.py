"""sickbay up, off a terminal and as a picture."""

import io

import pytest
from click.testing import CliRunner
from rich.console import Console, ConsoleDimensions

from sickbay.faces.cli.main import main
from sickbay.faces.cli.picture import picture
from sickbay.faces.cli.up import Fleet


def test_off_a_terminal_it_prints_plain_lines_and_ends_by_itself() -> None:
    result = CliRunner().invoke(main, ["up", "--for", "1", "--speed", "600", "--nodes", "8"])
    assert result.exit_code == 0, result.output
    assert "submitted as large" in result.stdout
    assert "RUNNING" in result.stdout
    assert "\x1b" not in result.stdout


@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 30), (160, 50)])
def test_the_picture_fits_the_terminal_and_shows_every_node(width: int, height: int) -> None:
    fleet = Fleet(nodes=24, seed=0, speed=60)
    fleet.advance(10)
    console = Console(width=width, height=height, file=io.StringIO(), color_system=None)
    with console.capture() as captured:
        console.print(picture(fleet.sim, fleet.news(), ConsoleDimensions(width, height), 60))
    lines = captured.get().rstrip("\n").split("\n")
    assert len(lines) == height
    assert all(len(line) <= width for line in lines)
    shown = "\n".join(lines)
    for number in range(24):
        assert f"{number:04d}" in shown
    for word in ("budget:", "open incidents", "what happened", "ready", "large", "RUNNING"):
        assert word in shown
    assert "REPAIRING" in shown  # within ten seconds something has broken


def test_a_fleet_tells_each_line_once() -> None:
    fleet = Fleet(nodes=8, seed=1, speed=60)
    seen = []
    for _ in range(20):
        fleet.advance(1)
        seen += fleet.news()
    assert len(seen) > 10
    subjects = [f"incident:{i.id}" for i in fleet.sim.incidents()] + [f"job:{j.id}" for j in fleet.sim.jobs()]
    whole = [line for subject in subjects for line in fleet.sim.store.story(subject) if line.event == "opened"]
    assert sum(told.event == "opened" for told in seen) == len(whole) > 0
