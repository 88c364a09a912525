"""One fault, told by everything that can tell of it, in any order and however late: one observation, one incident."""

import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.thorough import THOROUGH
from tests.support.waiting import until
from tests.support.wards import Ward
from tests.unit.test_agent_kmsg import Ring
from tests.unit.test_nvml_probe import Machine

from sickbay.agent.node_probes import summed
from sickbay.agent.outbox import Outbox
from sickbay.agent.probes.counters import Counters
from sickbay.agent.probes.dcgm import Dcgm
from sickbay.agent.probes.dedup import BODIES, KINDS, Deduplicator
from sickbay.agent.probes.gpus import YIELD, Gpus
from sickbay.agent.probes.journal import JournalFollower, JournalPlace
from sickbay.agent.probes.kernel_log import KernelLog, LineSource, LogPlace
from sickbay.agent.probes.kmsg import Kmsg, KmsgPlace
from sickbay.agent.probes.system_log import LineTrust, SystemLog
from sickbay.agent.spool import AgentIdentity
from sickbay.engine.reception import Reception
from sickbay.model.facts import Observed
from sickbay.model.fault import Remedy
from sickbay.model.fleet import NodeId
from sickbay.model.protocol import Item, Report

PCI = "0000:00:06"  # of the recorded GPU
XID_79 = f"NVRM: Xid (PCI:{PCI}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
PAGE = 'DCGM_FI_DEV_XID_ERRORS{{gpu="0",UUID="{uuid}",{pci}device="nvidia0",Hostname="n"}} {number}\n'
TELLERS = ("kmsg", "journal", "messages", "nvml", "exporter", "lost", "aer")
WORDS = ("kmsg", "journal", "messages")  # what the kernel itself says
SLOWLY = settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


class Site(http.server.BaseHTTPRequestHandler):
    page = ""

    def do_GET(self) -> None:
        body = type(self).page.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


class Bench:
    """What takes long to begin and is shared: an NVML child over a played GPU, and a web server."""

    def __init__(self, machine: Machine, url: str) -> None:
        self.machine = machine
        self.machine.on_the_bus(1)
        self.nvml = machine.nvml()
        self.url = url
        self.events: list[list[int]] = []
        self.uuid = ""

    def heal(self) -> None:
        self.machine.script(events=self.events)

    def event(self) -> None:
        self.events.append([0, 0x8, 79])
        self.heal()

    def lose(self) -> None:
        self.machine.script(events=self.events, errors={"0:nvmlDeviceGetHandleByIndex": 15})


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    with pytest.MonkeyPatch.context() as patch:
        machine = Machine(tmp_path_factory.mktemp("machine"), patch)
        found = Bench(machine, f"http://127.0.0.1:{server.server_port}/metrics")
        found.uuid = found.nvml.read()[0].uuid
        yield found
        machine.close()
    server.shutdown()
    server.server_close()
    thread.join()


class Node:
    """The eyes of an agent on one machine, over files, a pipe, a child and a page; its clock is the ward's."""

    def __init__(self, root: Path, bench: Bench, ward: Ward, node: NodeId, *, pci_on_page: bool = True) -> None:
        self.ward, self.bench, self.id = ward, bench, node
        self._pci = f'pci_bus_id="0000{PCI}.0",' if pci_on_page else ""
        self.ring = Ring()
        self.messages, self.journal = root / "messages", root / "journal"
        self.aer = root / "sys/bus/pci/devices" / f"{PCI}.0" / "aer_dev_fatal"
        self.aer.parent.mkdir(parents=True)
        for path in (root / "kmsg", self.messages, self.journal):
            path.touch()
        self.sums = Deduplicator()
        bench.heal()
        self.gpus = Gpus(
            bench.nvml, node, root / "gpus.json", machine=bench.machine.root, sums=self.sums
        )  # fmt: skip
        follow = ("sh", "-c", f"exec tail -n +1 -f {self.journal}")
        sources: list[LineSource] = [
            Kmsg(node, KmsgPlace(boot_id="b"), root / "kmsg", self.ring.read),
            JournalFollower(JournalPlace(boot_id="b"), follow),
            SystemLog(self.messages, LogPlace(boot_id="b"), wall=ward.sim.clock.wall),
        ]
        self.log = KernelLog(sources, node, self.gpus.device_at, self.sums)
        self.dcgm = Dcgm(node, exporter=bench.url)
        self.looks: Sequence[Callable[[float], Sequence[Item]]] = (
            self.log.look, self.gpus.look, self.gpus.tell_events, summed(self.dcgm.look, self.sums),
            Counters(node, root / "sys").look,
        )  # fmt: skip
        incarnation = ward.node(node).incarnation
        assert incarnation is not None
        self.voice = AgentIdentity(node=node, incarnation=incarnation, agent_run="r")
        self.outbox = Outbox(root / "spool", self.voice)
        self.reception = Reception(ward.sim.store, ward.sim.clock)
        self.told: list[Observed] = []
        self.page(0)
        self.set_aer(0)
        self.begin()

    @property
    def now(self) -> float:
        return 10_000.0 + self.ward.sim.scheduler.now

    def begin(self) -> None:
        """What stands in front of the fault, so that everybody has looked once."""
        self.entry("usb 1-1: new high-speed USB device number 2")
        self.look()
        assert not self.told

    # --- who tells
    def page(self, number: int) -> None:
        Site.page = PAGE.format(uuid=self.bench.uuid, pci=self._pci, number=number)

    def set_aer(self, count: int) -> None:
        self.aer.write_text(f"DLP {count}\nTOTAL_ERR_FATAL {count}\n")

    def entry(self, text: str) -> None:
        number = self.journal.read_text().count("\n") + 1
        entry = {
            "__CURSOR": f"s=0123456789abcdef;i={number:x}", "MESSAGE": text, "_TRANSPORT": "kernel",
            "SYSLOG_FACILITY": "0", "_BOOT_ID": "b",
            "__MONOTONIC_TIMESTAMP": str(int(self.now * 1e6)),
        }  # fmt: skip
        with self.journal.open("a") as file:
            file.write(json.dumps(entry) + "\n")
        until(lambda: f"i={number:x}" in msg_cursor(self.log, self.look))

    def tells(self, teller: str) -> None:
        if teller == "kmsg":
            self.ring.say(XID_79, stamp=self.now)
        elif teller == "journal":
            self.entry(XID_79)
        elif teller == "messages":
            date = time.strftime("%b %e %H:%M:%S", time.localtime(self.ward.sim.clock.wall()))
            with self.messages.open("a") as file:
                file.write(f"{date} gpu-7 kernel: [ 1234.500000] {XID_79}\n")
        elif teller == "nvml":
            self.bench.event()
            until(self._heard)
        elif teller == "exporter":
            self.page(79)
        elif teller == "lost":
            self.bench.lose()
        else:
            self.set_aer(1)
        self.look()

    def _heard(self) -> bool:
        self.look()
        return bool(self.gpus._events)

    # --- what becomes of it
    def look(self) -> None:
        now = self.now
        for look in self.looks:
            items = list(look(now))
            self.told += [item.news for item in items if isinstance(item.news, Observed)]
            self.outbox.put(items)

    def passes(self, seconds: float) -> None:
        """Time, with looks and reports as an agent has them."""
        self.ward.run(seconds)
        self.look()
        self.report()

    def report(self) -> None:
        me, batch = self.voice.incarnation, self.outbox.batch()
        if batch is None:
            return
        items = tuple(_decoded(line) for line in batch.items)
        self.reception.receive(
            Report(
                proto=1, node=self.id, uid=me.uid, instance_id=me.instance_id, boot_id=me.boot_id, agent_run="r",
                first_seq=batch.first, mono_now=self.now, wall_now=0.0, watermark=self.now, items=items,
            )
        )  # fmt: skip
        self.outbox.acknowledge(batch, batch.last)

    def close(self) -> None:
        self.log.close()
        self.outbox.close()
        self.bench.heal()


def _decoded(line: bytes) -> Item:
    return msgspec.json.decode(line, type=Item)


def msg_cursor(log: KernelLog, look: Callable[[], object]) -> str:
    look()
    place = log.places["journal"]
    assert hasattr(place, "cursor")
    return str(place.cursor)


def of_kind(told: Sequence[Observed], kind: str) -> list[Observed]:
    return [one for one in told if one.kind == kind]


@pytest.mark.slow
@given(
    st.permutations(TELLERS).flatmap(lambda order: st.tuples(st.just(order), st.integers(1, len(order)))),
    st.lists(st.sampled_from((0.0, 0.3, 2.0, 8.0)), min_size=len(TELLERS), max_size=len(TELLERS)),
    st.booleans(),
)
@SLOWLY
def test_the_same_fault_through_every_source_is_one_incident(
    tmp_path_factory: pytest.TempPathFactory,
    bench: Bench,
    chosen: tuple[list[str], int],
    delays: list[float],
    pci_on_page: bool,
) -> None:
    order, how_many = chosen
    ward = Ward(nodes=4, gpus=1)
    seen = Node(tmp_path_factory.mktemp("node"), bench, ward, ward.nodes[0], pci_on_page=pci_on_page)
    tellers = order[:how_many]
    try:
        for teller, delay in zip(tellers, delays, strict=False):
            seen.tells(teller)
            seen.report()
            seen.passes(delay)
        seen.passes(YIELD + 1.0)
    finally:
        seen.close()
    xids = of_kind(seen.told, "xid")
    tell_xid = {"kmsg", "journal", "nvml", "exporter"} & set(tellers)
    assert [one.count for one in xids if not one.unconfirmed] == ([1] if tell_xid else [])
    assert len(of_kind(seen.told, "gpu.lost")) == ("lost" in tellers)
    ward.run(30)
    found = ward.incidents(ward.nodes[0])
    alone = tellers == ["messages"]  # any program could have written it
    assert len(found) == (not alone), [one.fault.code for one in found]
    if tell_xid:
        assert found[0].remedy is Remedy.REBOOT
        assert any("Xid" in line for line in (found[0].fault.evidence, *found[0].evidence))
    ward.rests()
    assert len(ward.incidents(ward.nodes[0])) == (not alone)
    if tell_xid:
        assert ward.rungs(ward.nodes[0]) == ["reboot"], (tellers, delays, ward.story(ward.nodes[0]))


def test_a_second_witness_while_the_reboot_is_under_way_does_not_make_it_a_failed_one(
    tmp_path: Path, bench: Bench
) -> None:
    """NVML finds the GPU lost half a minute after the Xid; the boot that says so is the one that is being ended."""
    ward = Ward(nodes=4, gpus=1)
    seen = Node(tmp_path, bench, ward, ward.nodes[0])
    try:
        seen.tells("kmsg")
        seen.report()
        ward.reaches(ward.nodes[0], "REPAIRING")
        seen.tells("lost")
        seen.report()
    finally:
        seen.close()
    ward.rests()
    (found,) = ward.incidents(ward.nodes[0])
    assert any("gpu.lost" in line for line in found.evidence)
    assert ward.rungs(ward.nodes[0]) == ["reboot"]


@pytest.mark.parametrize("late", [70.0, 600.0])
@pytest.mark.parametrize("echo", ["messages", "exporter", "nvml"])
def test_an_echo_that_comes_minutes_late_opens_no_second_incident(
    tmp_path: Path, bench: Bench, late: float, echo: str
) -> None:
    ward = Ward(nodes=4, gpus=1)
    seen = Node(tmp_path, bench, ward, ward.nodes[0])
    date = ward.sim.clock.wall()
    try:
        seen.tells("kmsg")
        seen.passes(late)
        if echo == "messages":  # a daemon writes the moment of the message, however late it writes
            stamp = time.strftime("%b %e %H:%M:%S", time.localtime(date))
            seen.messages.write_text(f"{stamp} gpu-7 kernel: {XID_79}\n")
        elif ward.phase(ward.nodes[0]) != "RELEASED":
            seen.tells(echo)
        seen.passes(YIELD + 1.0)
    finally:
        seen.close()
    ward.rests()
    (found,) = ward.incidents(ward.nodes[0])
    assert (found.fault.code, ward.rungs(ward.nodes[0])) == ("xid.79", ["reboot"])


def test_the_kernels_words_are_the_evidence(tmp_path: Path, bench: Bench) -> None:
    ward = Ward(nodes=4, gpus=1)
    seen = Node(tmp_path, bench, ward, ward.nodes[0])
    try:
        for teller in ("nvml", "kmsg", "exporter", "journal", "messages", "lost"):
            seen.tells(teller)
        seen.passes(YIELD + 1.0)
    finally:
        seen.close()
    (xid,) = of_kind(seen.told, "xid")
    assert xid.text == XID_79
    assert xid.fields["device"] == 0
    ward.run(30)
    assert ward.incident(ward.nodes[0]).fault.evidence == XID_79


# --- one source alone, and many


def seen_by(source: str, *, times: int = 1, **fields: str | int) -> Item:
    news = Observed(node=NodeId("c/n"), kind="xid", fields={"number": 79, **fields}, count=times)
    return Item(seq=0, mono=1.0, source=source, source_seq=None, news=news)


def named(source: str, names: dict[str, str | int]) -> Item:
    news = Observed(node=NodeId("c/n"), kind="xid", fields={"number": 79, **names})
    return Item(seq=0, mono=1.0, source=source, source_seq=None, news=news)


NAMES: tuple[dict[str, str | int], ...] = (
    {"pci": "0000:18:00"}, {"pci": "00000000:18:00.0", "device": 2}, {"uuid": "GPU-1", "device": 2},
    {"pci": "00000000:18:00.0", "uuid": "GPU-1", "device": 2},
)  # fmt: skip


@given(st.permutations(NAMES))
def test_a_device_is_one_by_whichever_of_its_names_once_they_are_known(order: Sequence[dict[str, str | int]]) -> None:
    sums = Deduplicator()
    sums.add(Item(seq=0, mono=1.0, news=Observed(node=NodeId("c/n"), kind="gpu.hot", fields=NAMES[-1])), 1.0)
    told = [one for n, names in enumerate(order) for one in sums.add(named(f"s{n}", names), 1.0)]
    assert len(told) == 1


def test_another_device_is_never_an_echo_though_it_has_the_others_old_number() -> None:
    sums = Deduplicator()
    assert sums.add(seen_by("a", pci="0000:18:00", device=0), 1.0)
    # The first one is gone, and the driver counts anew.
    assert sums.add(seen_by("b", pci="0000:2a:00", device=0), 2.0)
    assert sums.add(seen_by("c", pci="0000:3b:00", uuid="GPU-3"), 2.0)
    assert not sums.add(seen_by("d", uuid="GPU-3"), 2.0)


def test_what_a_page_counts_and_the_kernel_prints_is_counted_once() -> None:
    for first, second in pairwise(("page", "kernel", "page")):
        sums, told = Deduplicator(), list[Item]()
        for who in (first, second):
            page = who == "page"
            items = [seen_by(who, times=3, pci="0000:18:00")] if page else 3 * [seen_by(who, pci="0000:18:00")]
            told += [one for item in items for one in sums.add(item, 1.0, "words" if who == "kernel" else "")]
        told += sums.flush()
        assert sum(one.news.count for one in told if isinstance(one.news, Observed)) == 3


def test_words_that_change_what_is_to_be_done_are_told_though_nvml_was_first() -> None:
    sums = Deduplicator()
    assert sums.add(seen_by("nvml", pci="0000:18:00"), 1.0)
    assert not sums.add(seen_by("devkmsg", pci="0000:18:00"), 1.0, "plain words")
    sums = Deduplicator()
    assert sums.add(seen_by("nvml", pci="0000:18:00"), 1.0)
    assert sums.add(seen_by("devkmsg", pci="0000:18:00", advice="reboot"), 1.0, "Xid 154 …")


MESSAGES = [
    XID_79.replace(PCI, f"0000:{n:02x}:00").replace("79", str(number))
    for n, number in enumerate((79, 48, 63, 94, 95, 31, 13, 43, 45, 74) * 3)
][:29]  # fmt: skip


def flooded(copies: int, path: Path) -> tuple[list[Observed], Deduplicator, list[int]]:
    """A file with so many lines, read through while it grows; and how much there was to remember meanwhile."""
    sums = Deduplicator()
    log = KernelLog(
        [SystemLog(path, LogPlace(boot_id="b"), LineTrust(trusted=True))], NodeId("c/n"), lambda _: None, sums
    )
    told: list[Observed] = []
    sizes: list[int] = []
    block = "".join(f"[ 1234.500000] {MESSAGES[n % 29]}\n" for n in range(29 * 200))
    written, now = 0, 100.0
    with path.open("a") as file:
        while written < copies:
            some = min(copies - written, 29 * 200)
            file.write(block if some == 29 * 200 else "".join(block.splitlines(keepends=True)[:some]))
            file.flush()
            written += some
            while True:
                told += [one.news for one in log.look(now) if isinstance(one.news, Observed)]
                if not log.behind:
                    break
            sizes.append(len(sums._repeats) + len(sums._echoes) + len(sums._known_as))
            now += 0.0001
    told += [one.news for one in log.flush(now) if isinstance(one.news, Observed)]
    log.close()
    return told, sums, sizes


@pytest.mark.parametrize("copies", [8_000, pytest.param(800_000 if THOROUGH else 100_000, marks=pytest.mark.slow)])
def test_many_copies_of_29_messages_are_29_observations_with_counts(tmp_path: Path, copies: int) -> None:
    told, sums, sizes = flooded(copies, tmp_path / "messages")
    assert len(told) == 2 * 29  # each at once, and then the number of its repetitions
    assert sum(one.count for one in told) == copies
    by_message: dict[Any, int] = {}
    for one in told:
        key = (one.fields["number"], one.fields["pci"])
        by_message[key] = by_message.get(key, 0) + one.count
    assert len(by_message) == 29
    assert max(by_message.values()) - min(by_message.values()) <= 1
    assert max(sizes) <= 3 * 29
    assert all(len(echoes.bodies) <= BODIES for stretches in sums._echoes.values() for echoes in stretches)
    assert len(sums._echoes) <= KINDS
