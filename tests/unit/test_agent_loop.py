"""The loop: probes are called when something changed or their time has come, and one that fails harms no other."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from tests.support.waiting import until

from sickbay.agent.command_journal import CommandJournal
from sickbay.agent.commands import Commands
from sickbay.agent.loop import Loop
from sickbay.agent.outbox import Outbox, say
from sickbay.agent.probes import Probe
from sickbay.agent.spool import AgentIdentity
from sickbay.agent.watches import CLOSED, MODIFIED, MOVED_TO, Watches
from sickbay.agent.watermark import Watermarks
from sickbay.model.facts import Observed
from sickbay.model.fleet import Incarnation, NodeId
from sickbay.model.protocol import Item

ME = Incarnation(uid="u", instance_id="i", boot_id="b")


class Counted:
    """A probe that counts its looks."""

    def __init__(self) -> None:
        self.looks = 0
        self.trouble = ""
        self.block: threading.Event | None = None

    def look(self, now: float) -> Sequence[Item]:
        assert now
        self.looks += 1
        if self.block is not None:
            self.block.wait(20)
        if self.trouble:
            raise ValueError(self.trouble)
        return []


@contextmanager
def looping(root: Path, probes: list[Probe], watched: dict[Path, tuple[str, int]] | None = None) -> Iterator[Outbox]:
    outbox = Outbox(root / "spool", AgentIdentity(node=NodeId("c/n1"), incarnation=ME, agent_run="r"))
    watches = Watches()
    senses = Watermarks([probe for probe in probes if probe.witness], outbox)
    loop = Loop(probes, senses, outbox, watches, wanted=lambda: watched or {}, asleep=lambda _: None)
    commands = Commands(CommandJournal(root / "commands"), outbox, ME, {})
    thread = threading.Thread(target=loop.run, args=(commands, lambda _: None))
    thread.start()
    try:
        yield outbox
    finally:
        loop.ending = True
        watches.ring()
        thread.join(10)
        watches.close()
        outbox.close()


def told(outbox: Outbox) -> list[str]:
    news = [msgspec.json.decode(entry.line, type=Item).news for entry in list(outbox._entries)]
    return [one.text for one in news if isinstance(one, Observed)]


def test_a_probe_looks_when_its_time_has_come(tmp_path: Path) -> None:
    often, seldom = Counted(), Counted()
    probes = [Probe("often", often.look, period=0.02), Probe("seldom", seldom.look, period=1000.0)]
    with looping(tmp_path, probes):
        until(lambda: often.looks > 10)
    assert seldom.looks == 1


@pytest.mark.parametrize("there_already", [True, False])
def test_a_probe_is_called_when_something_changes(tmp_path: Path, there_already: bool) -> None:
    probe, directory = Counted(), tmp_path / "watched"
    if there_already:
        directory.mkdir()
    watched = {directory: ("p", MODIFIED | MOVED_TO)}
    with looping(tmp_path, [Probe("p", probe.look, period=1000.0)], watched):
        until(lambda: probe.looks)
        directory.mkdir(exist_ok=True)
        before = probe.looks
        (directory / "file").write_text("x")
        until(lambda: probe.looks > before)


@pytest.mark.slow
def test_a_probe_that_is_called_without_end_keeps_its_gap(tmp_path: Path) -> None:
    probe = Counted()
    with looping(tmp_path, [Probe("p", probe.look, period=1000.0, gap=0.2)], {tmp_path: ("p", CLOSED)}):
        until(lambda: probe.looks)
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            (tmp_path / "file").write_text("x")
    assert probe.looks <= 5


def test_a_restless_probe_looks_often(tmp_path: Path) -> None:
    probe = Counted()
    with looping(tmp_path, [Probe("p", probe.look, period=1000.0, restless=lambda: True)]):
        until(lambda: probe.looks > 3)


def test_a_probe_that_fails_is_told_once_and_harms_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad, good = Counted(), Counted()
    bad.trouble = "no driver"
    probes = [Probe("bad", bad.look, period=0.02, witness=True), Probe("good", good.look, period=0.02)]
    with looping(tmp_path, probes) as outbox:
        until(lambda: bad.looks > 5 and good.looks > 5)
        assert told(outbox) == ["the probe bad cannot look: ValueError: no driver"]
        bad.trouble = ""
        seen = bad.looks
        until(lambda: bad.looks > seen + 1)
        bad.trouble = "no driver"
        until(lambda: len(told(outbox)) == 2)
    assert "no driver" in capsys.readouterr().err


def test_a_probe_that_hangs_keeps_nobody_waiting_and_is_not_begun_twice(tmp_path: Path) -> None:
    hangs, good = Counted(), Counted()
    hangs.block = threading.Event()
    probes = [Probe("hangs", hangs.look, period=0.02, may_hang=True), Probe("good", good.look, period=0.02)]
    with looping(tmp_path, probes):
        until(lambda: good.looks > 10)
        assert hangs.looks == 1
        hangs.block.set()
        until(lambda: hangs.looks > 3)


def test_the_watermark_is_that_of_the_witness_that_is_behind(tmp_path: Path) -> None:
    fine, broken = Counted(), Counted()
    outbox = Outbox(tmp_path, AgentIdentity(node=NodeId("c/n1"), incarnation=ME, agent_run="r"))
    senses = Watermarks([Probe("a", fine.look, 1.0, witness=True), Probe("b", broken.look, 1.0, witness=True)], outbox)
    senses.read_through()
    reached = senses.watermark
    assert reached > 0
    broken.trouble = "x"
    with pytest.raises(ValueError, match="x"):
        senses.read_through()
    assert senses.watermark == pytest.approx(reached, abs=0.05)
    assert fine.looks == 2
    outbox.close()


def test_a_probe_that_goes_on_failing_is_no_flood_whatever_it_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    probe = Counted()

    def look(now: float) -> Sequence[Item]:
        probe.trouble = f"it took {probe.looks} s"
        return probe.look(now)

    with looping(tmp_path, [Probe("bad", look, period=0.02)]) as outbox:
        until(lambda: probe.looks > 10)
        assert len(told(outbox)) == 1
    assert capsys.readouterr().err.count("Traceback") == 1


def test_a_probe_that_gets_no_thread_is_told_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    apart, good = Counted(), Counted()
    balking = threading.Event()
    balking.set()
    start = threading.Thread.start

    def begin(self: threading.Thread) -> None:
        if balking.is_set() and self.name == "probe apart":
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", begin)
    probes = [Probe("apart", apart.look, period=0.02, may_hang=True), Probe("good", good.look, period=0.02)]
    with looping(tmp_path, probes) as outbox:
        until(lambda: good.looks > 5)
        assert not apart.looks
        assert told(outbox) == ["the probe apart cannot look: no thread can be started for it: can't start new thread"]
        balking.clear()
        until(lambda: apart.looks > 2)


@pytest.mark.slow
def test_the_loop_outlives_whatever_its_parts_raise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, raised = Counted(), threading.Event()

    def wanted() -> dict[Path, tuple[str, int]]:
        if not raised.is_set():
            raised.set()
            raise OSError(24, "Too many open files")
        return {}

    outbox = Outbox(tmp_path / "spool", AgentIdentity(node=NodeId("c/n1"), incarnation=ME, agent_run="r"))
    watches = Watches()
    loop = Loop(
        [Probe("good", good.look, period=0.02)], Watermarks([], outbox), outbox, watches, wanted, lambda _: None
    )
    commands = Commands(CommandJournal(tmp_path / "commands"), outbox, ME, {})
    thread = threading.Thread(target=loop.run, args=(commands, lambda _: None))
    thread.start()
    until(lambda: good.looks > 5)
    loop.ending = True
    watches.ring()
    thread.join(10)
    watches.close()
    outbox.close()
    assert capsys.readouterr().err == "agent: the loop: OSError: [Errno 24] Too many open files\n"


@pytest.mark.parametrize("witness", [True, False])
@pytest.mark.parametrize("trouble", ["", "no driver"])
def test_a_probe_remembers_what_it_found_once_that_is_on_disk_and_not_before(
    tmp_path: Path, witness: bool, trouble: str
) -> None:
    spooled: list[bytes] = []
    looked = threading.Event()

    def look(_: float) -> list[Item]:
        if trouble and looked.is_set():
            raise ValueError(trouble)
        looked.set()
        return [say(Observed(node=NodeId("c/n1"), kind="dram.uncorrected", text="grew by 2"))]

    def remember(_: float) -> None:
        spooled.append(b"".join(file.read_bytes() for file in (tmp_path / "spool").iterdir() if file.is_file()))

    with looping(tmp_path, [Probe("counters", look, period=0.02, witness=witness, told=remember)]) as outbox:
        until(lambda: spooled if not trouble else any("no driver" in text for text in told(outbox)))
    assert all(b"grew by 2" in content for content in spooled)
    assert len(spooled) == 1 or not trouble
