"""The picture of the fleet, and how it lives with a controller that comes and goes."""

import io
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console, ConsoleDimensions
from tests.support.canned import AT, CUT, Answer, Canned, fleet, incident, job, node, serving

from sickbay.faces.cli.client import Client, ServerEvent
from sickbay.faces.cli.picture import picture
from sickbay.faces.cli.show import told_of
from sickbay.faces.cli.top import FleetView
from sickbay.faces.cli.watch import watching

TOLD = {"at": AT, "what": "decided", "about": "incident:i12", "text": "reboots \x1b[2J it", "event": "repair"}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Canned]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("SICKBAY_TOKEN", "secret")
    with serving() as canned:
        monkeypatch.setenv("SICKBAY_URL", canned.url)
        yield canned


@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 30), (160, 50)])
@pytest.mark.parametrize("jobs", [0, 3, 200])
def test_the_picture_fits_the_terminal_and_shows_every_node(width: int, height: int, jobs: int) -> None:
    states = ["READY", "OUT", "SUSPECT", "HELD", "LOST", "UNKNOWN", "INTAKE", "READY"]
    drawn = fleet(
        nodes=[node(f"n-{n:04d}", state=states[n % 8]) for n in range(24)],
        jobs=[job(f"large-{n}") for n in range(jobs)],
        incidents=[incident(f"i{n}", because="a reason " * 30) for n in range(jobs)],
        brakes=[{"scope": "pool:gpu", "signature": "xid.79", "tripped_at": AT, "goes_off": None, "nodes": []}],
    )
    console = Console(width=width, height=height, file=io.StringIO(), color_system=None)
    with console.capture() as captured:
        console.print(picture(drawn, [told_of(TOLD)] * 50, ConsoleDimensions(width, height), head="here"))
    lines = captured.get().rstrip("\n").split("\n")
    assert len(lines) == height
    assert all(len(line) <= width for line in lines)
    shown = "\n".join(lines)
    for number in range(24):
        assert f"{number:04d}" in shown
    words = ["budget:", "open incidents", "what happened", "ready", "brake on: xid.79", "decided", "q ends it"]
    for word in [*words, *(["large-0", "RUNNING", "REPAIRING"] if jobs else ["none yet"])]:
        assert word in shown
    assert "\x1b" not in shown
    assert jobs < 200 or "more" in shown


def test_a_fleet_of_nothing_has_a_picture_too() -> None:
    empty = fleet(nodes=[], jobs=[], incidents=[], budgets=[])
    console = Console(width=80, height=24, file=io.StringIO(), color_system=None)
    with console.capture() as captured:
        console.print(picture(empty, [], ConsoleDimensions(80, 24), head="here"))
    assert "none yet" in captured.get()


def test_the_view_stays_when_the_controller_goes_and_returns(server: Canned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sickbay.faces.cli.top.AT_MOST_EVERY", 0.0)
    server.says("GET /v1/fleet", fleet(), CUT, CUT, CUT, CUT, fleet(nodes=[]))
    view = FleetView(Client(server.url))
    view.hear([ServerEvent("changed", "r-1", {"kind": "node"})])
    view.refresh()
    assert "does not answer since" in view.trouble
    assert len(view.fleet["nodes"]) == 2  # as it was last known
    view.refresh()
    assert view.trouble
    view.refresh()
    assert not view.trouble
    assert view.fleet["nodes"] == []


def test_a_quiet_fleet_is_not_asked_for_again_and_again(server: Canned) -> None:
    server.says("GET /v1/fleet", fleet())
    view = FleetView(Client(server.url))
    for _ in range(10):
        view.hear([ServerEvent("told", "r-1", TOLD), ServerEvent("told", "r-2", {**TOLD, "event": "intent"})])
        view.refresh()
    assert len(server.asked) == 1
    assert len(view.ticker) == 10  # the small ones are left out


@pytest.mark.slow
def test_events_are_heard_again_after_the_stream_was_lost(server: Canned) -> None:
    def stream(number: int) -> Answer:
        text = f'id: r-{number}\nevent: changed\ndata: {{"kind": "node", "id": "{number}"}}\n\n'
        return Answer(text.encode(), media="text/event-stream")

    server.says("GET /v1/events", stream(1), CUT, Answer({"error": "starting"}, 503), stream(2), stream(2))
    heard: list[str] = []
    until = time.monotonic() + 15
    with watching(Client(server.url), lambda event: event.name == "changed") as watch:
        while "2" not in heard and time.monotonic() < until:
            heard += [str(event.data.get("id")) for event in watch.wait(0.5) if event.name == "changed"]
    assert heard[:2] == ["1", "2"]
    assert [one.headers.get("last-event-id") for one in server.asked][:2] == [None, "r-1"]


def test_on_a_terminal_it_lives_until_q_and_leaves_it_as_it_was(server: Canned) -> None:
    server.says("GET /v1/fleet", fleet())
    told = b'id: r-1\nevent: told\ndata: {"at": "%s", "what": "done", "about": "job:x", "text": "TICKED"}\n\n'
    server.says("GET /v1/events", Answer(told % AT.encode(), media="text/event-stream"))
    terminal, inside = pty.openpty()
    top = subprocess.Popen(
        [str(Path(sys.executable).with_name("sickbay")), "top"],
        stdin=inside, stdout=inside, stderr=inside, start_new_session=True,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"},
    )  # fmt: skip
    os.close(inside)
    shown, until, pressed = b"", time.monotonic() + 20, False
    try:
        while time.monotonic() < until:
            ready, _, _ = select.select([terminal], [], [], 0.1)
            if ready:
                try:
                    piece = os.read(terminal, 65536)
                except OSError:  # the other side has ended
                    break
                if not piece:
                    break
                shown += piece
            if not pressed and b"TICKED" in shown and b"train-1a2b3" in shown:
                os.write(terminal, b"q")
                pressed = True
    finally:
        os.close(terminal)
        if not pressed:
            top.kill()
        code = top.wait(timeout=20)
    assert pressed, shown[-2000:]
    assert code == 0
    assert b"\x1b[?1049h" in shown  # a screen of its own
    assert b"\x1b[?1049l" in shown  # and back
