"""The kernel's ring: every record once within a boot, whatever happens to the agent, and what was lost is said."""

import errno
import os
import socket
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.agent_rig import XID_63, XID_79
from tests.support.thorough import examples
from tests.support.waiting import until

from sickbay.agent.command_journal import CommandJournal
from sickbay.agent.commands import Commands
from sickbay.agent.loop import Loop
from sickbay.agent.outbox import Outbox
from sickbay.agent.probes import Probe
from sickbay.agent.probes.kernel_log import KernelLog, LogLine
from sickbay.agent.probes.kmsg import Kmsg, KmsgPlace
from sickbay.agent.spool import AgentIdentity
from sickbay.agent.watches import Watches
from sickbay.agent.watermark import Watermarks
from sickbay.model.facts import Observed
from sickbay.model.fleet import Incarnation, NodeId
from sickbay.model.protocol import Item
from sickbay.signs.prefixes import peel

NODE = NodeId("c/n1")
BOOT = "b"


class Ring:
    """A ring that overwrites its oldest records, read as the device is: one record per read, EPIPE after a loss."""

    def __init__(self, size: int = 1000) -> None:
        self.size = size
        self.records: list[tuple[int, bytes]] = []
        self.next = 0
        self._at: dict[int, int] = {}
        self.refuse: OSError | None = None

    def say(self, *lines: str, stamp: float = 1.0, prefix: str = "4") -> None:
        for line in lines:
            self.records.append((self.next, f"{prefix},{self.next},{int(stamp * 1e6)},-;{line}\n".encode()))
            self.next += 1
        del self.records[: max(0, len(self.records) - self.size)]

    def read(self, handle: int, size: int) -> bytes:
        assert size >= 8192  # the device refuses less than a record
        if self.refuse is not None:
            raise self.refuse
        first = self.records[0][0] if self.records else self.next
        at = self._at.setdefault(handle, first)
        if at < first:
            self._at[handle] = first
            raise BrokenPipeError(errno.EPIPE, "overwritten")
        if at >= self.next:
            raise BlockingIOError(errno.EAGAIN, "nothing new")
        self._at[handle] = at + 1
        return self.records[at - first][1]


@pytest.fixture
def device(tmp_path: Path) -> Path:
    path = tmp_path / "kmsg"
    path.touch()
    return path


def opened(ring: Ring, device: Path, place: KmsgPlace | None = None) -> Kmsg:
    return Kmsg(NODE, place or KmsgPlace(boot_id=BOOT), device, ring.read)


def texts(kmsg: Kmsg, now: float = 100.0) -> list[str]:
    return [line.text for line in kmsg.lines(now) if isinstance(line, Observed) or not line.told]


def test_it_reads_from_the_rings_start_so_that_what_came_before_the_agent_is_seen(device: Path) -> None:
    ring = Ring()
    ring.say("Linux version 6.8", XID_79)
    kmsg = opened(ring, device)
    (_, fault) = kmsg.lines(100.0)
    assert isinstance(fault, LogLine)
    assert (fault.text, fault.seq, fault.mono, fault.source) == (XID_79, 1, 1.0, "devkmsg")
    assert not texts(kmsg)
    kmsg.close()


def test_another_run_of_the_same_boot_does_not_see_it_again(device: Path) -> None:
    ring = Ring()
    ring.say("one", "two")
    first = opened(ring, device)
    assert texts(first) == ["one", "two"]
    ring.say("three")
    place = first.place()
    first.close()
    again = opened(ring, device, place)
    assert texts(again) == ["three"]
    again.close()


def test_what_was_overwritten_is_said_with_how_many(device: Path) -> None:
    ring = Ring(size=4)
    ring.say("one")
    kmsg = opened(ring, device)
    assert texts(kmsg) == ["one"]
    ring.say(*(f"line {n}" for n in range(10)))
    lost, *rest = kmsg.lines(100.0)
    assert isinstance(lost, Observed)
    assert (lost.kind, lost.fields["lost"]) == ("agent.lines_lost", 6)
    assert [line.text for line in rest] == [f"line {n}" for n in range(6, 10)]
    kmsg.close()


def test_what_was_overwritten_while_no_agent_ran_is_said_too(device: Path) -> None:
    ring = Ring(size=4)
    ring.say("one")
    first = opened(ring, device)
    texts(first)
    place = first.place()
    first.close()
    ring.say(*(f"line {n}" for n in range(10)))
    later = opened(ring, device, place)
    lost, *_ = later.lines(100.0)
    assert isinstance(lost, Observed)
    assert lost.fields["lost"] == 6
    later.close()


def test_a_record_that_arrives_while_we_wait_happened_now_though_the_rings_clock_has_strayed(device: Path) -> None:
    ring = Ring()
    ring.say("old", stamp=10.0)
    kmsg = opened(ring, device)
    assert [line.mono for line in kmsg.lines(5000.0) if isinstance(line, LogLine)] == [10.0]
    ring.say("new", stamp=4990.0)  # ten seconds behind our clock
    assert [line.mono for line in kmsg.lines(5001.0) if isinstance(line, LogLine)] == [5001.0]
    kmsg.close()


def test_no_permission_is_one_clear_line(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        with socket.socket(socket.AF_UNIX) as listening:  # not even root may open a socket's name
            listening.bind(str(tmp_path / "kmsg"))
            with pytest.raises(OSError, match="kmsg"):
                texts(Kmsg(NODE, KmsgPlace(boot_id=BOOT), tmp_path / "kmsg"))
        return
    path = tmp_path / "kmsg"
    path.touch(mode=0o000)
    with pytest.raises(PermissionError, match="CAP_SYSLOG"):
        texts(Kmsg(NODE, KmsgPlace(boot_id=BOOT), path))


def test_a_ring_that_cannot_be_read_is_told_once_and_the_other_source_goes_on(
    tmp_path: Path, device: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from sickbay.agent.probes.kernel_log import LogPlace
    from sickbay.agent.probes.system_log import SystemLog

    ring = Ring()
    ring.refuse = PermissionError(errno.EPERM, "not permitted")
    text = tmp_path / "messages"
    text.write_text(f"Nov 16 08:00:00 host kernel: {XID_79}\n")
    boot = SystemLog(text, LogPlace(boot_id=BOOT), began=-1e9)
    log = KernelLog([opened(ring, device), boot], NODE, lambda _: None)
    failed, blind = (item.news.text for item in log.look(100.0) if isinstance(item.news, Observed))
    assert "devkmsg cannot be read" in failed
    assert "trust_logs: true" in blind
    (said,) = log.look(110.0)
    assert isinstance(said.news, Observed)
    assert (said.news.kind, said.news.unconfirmed) == ("xid", True)
    ring.refuse = None
    ring.say(XID_63)
    assert [item.source for item in log.look(120.0)] == ["devkmsg"]
    assert "devkmsg cannot be read" in capsys.readouterr().err
    log.close()


def test_when_no_source_can_be_read_nobody_has_looked(device: Path) -> None:
    ring = Ring()
    ring.refuse = PermissionError(errno.EPERM, "not permitted")
    log = KernelLog([opened(ring, device)], NODE, lambda _: None)
    with pytest.raises(PermissionError):
        log.look(100.0)
    log.close()


@given(st.binary(max_size=300))
@settings(max_examples=examples(200), deadline=None)
def test_no_record_whatever_breaks_the_reader(record: bytes) -> None:
    kmsg = Kmsg(NODE, KmsgPlace(boot_id=BOOT))
    for line in kmsg._record(record, 1.0):
        assert isinstance(line, LogLine | Observed)


def test_what_the_kernel_wrote_as_codes_is_read_as_written() -> None:
    kmsg = Kmsg(NODE, KmsgPlace(boot_id=BOOT))
    (line,) = kmsg._record(
        rb"4,0,1000000,-;NVRM: \x22GPU\x22 caf\xc3\xa9 \xzz" + b"\n SUBSYSTEM=pci\n DEVICE=+pci:1\n", 9.0
    )
    assert isinstance(line, LogLine)
    assert line.text.startswith('NVRM: "GPU" caf')
    assert line.text.endswith(r"\xzz")


def test_what_could_end_a_line_stays_as_the_kernel_wrote_it() -> None:
    kmsg = Kmsg(NODE, KmsgPlace(boot_id=BOOT))
    (line,) = kmsg._record(rb"6,0,1000000,-;x\x0dNVRM: a\x0ab \x1b[2K \x5cx0d \xc3\xa9 \x7f" + b"\n", 9.0)
    assert isinstance(line, LogLine)
    assert line.text == r"x\x0dNVRM: a\x0ab \x1b[2K \x0d é \x7f"


# --- the loop wakes at once


def more_than(outbox: Outbox, number: int) -> bool:
    return len(outbox._entries) > number


@pytest.fixture
def packets() -> Iterator[tuple[socket.socket, Kmsg]]:
    """A descriptor that gives one record per read, and can be waited for, as the device is."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    theirs.setblocking(False)
    kmsg = Kmsg(NODE, KmsgPlace(boot_id=BOOT))
    kmsg._handle = theirs.fileno()
    yield ours, kmsg
    kmsg._handle = None
    ours.close()
    theirs.close()


def test_a_record_reaches_the_outbox_within_milliseconds(tmp_path: Path, packets: tuple[socket.socket, Kmsg]) -> None:
    ours, kmsg = packets
    me = Incarnation(uid="u", instance_id="i", boot_id=BOOT)
    outbox = Outbox(tmp_path / "spool", AgentIdentity(node=NODE, incarnation=me, agent_run="r"))
    log = KernelLog([kmsg], NODE, lambda _: None)
    probe = Probe("kernel_log", log.look, period=30.0, gap=0.002, witness=True)
    watches, senses = Watches(), Watermarks([probe], outbox)
    loop = Loop([probe], senses, outbox, watches, wanted=dict, asleep=lambda _: None,
                handles=lambda: dict.fromkeys(log.handles, "kernel_log"))  # fmt: skip
    commands = Commands(CommandJournal(tmp_path / "c"), outbox, outbox.voice.incarnation, {})
    thread = threading.Thread(target=loop.run, args=(commands, lambda _: None))
    thread.start()
    try:
        took = []
        for number in range(20):
            began = time.monotonic()
            ours.send(
                f"4,{number},1,-;NVRM: Xid (PCI:0000:{number:02x}:00): 79, GPU has fallen off the bus.\n".encode()
            )
            until(partial(more_than, outbox, number), what="the record is told")
            took.append(time.monotonic() - began)
        assert sorted(took)[10] < 0.05, took  # with room for a busy machine; a look every second would take half of one
    finally:
        loop.ending = True
        watches.ring()
        thread.join(10)
        watches.close()
        outbox.close()


def test_what_a_fault_means_is_told_with_its_number_in_the_ring(device: Path) -> None:
    ring = Ring()
    ring.say("usb 1-1: new device", XID_79)
    log = KernelLog([opened(ring, device)], NODE, lambda _: 3)
    (item,) = log.look(50.0)
    assert isinstance(item, Item)
    assert isinstance(item.news, Observed)
    assert (item.news.kind, item.news.fields["number"], item.news.fields["device"]) == ("xid", 79, 3)
    assert (item.source, item.source_seq) == ("devkmsg", 1)
    assert peel(item.news.text).body == XID_79
    log.close()
