"""An agent that dies while lines wait for a witness: each is told once all the same, and no fault is told twice."""

import gzip
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.agent_rig import XID_63, XID_79
from tests.support.thorough import examples
from tests.support.waiting import until
from tests.unit.test_agent_journal import Journald, journald
from tests.unit.test_agent_killed_anywhere import ME, NODE, Controller, append, dated
from tests.unit.test_agent_kmsg import Ring

from sickbay.agent.outbox import Outbox
from sickbay.agent.places import Places
from sickbay.agent.probes.begins import begin_in_boot, begin_in_file
from sickbay.agent.probes.hearsay import AGAIN, WAIT
from sickbay.agent.probes.journal import JournalFollower, JournalPlace
from sickbay.agent.probes.kernel_log import KernelLog, LineSource, LogPlace
from sickbay.agent.probes.kmsg import Kmsg, KmsgPlace
from sickbay.agent.probes.system_log import LineTrust, SystemLog
from sickbay.agent.spool import AgentIdentity

__all__ = ["journald"]

TRUSTED = LineTrust(trusted=True, own_zone=True)
HEARSAY = LineTrust(own_zone=True)
DAY = 86_400.0
XID_94 = "NVRM: Xid (PCI:0000:3b:00): 94, pid=7, name=x, Contained: SM"


class Node:
    """A ring, a text log that is trusted and one that is not, over any number of runs of an agent."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ring = Ring()
        self.trusted, self.messages = root / "trusted", root / "messages"
        for path in (root / "kmsg", self.trusted, self.messages):
            append(path, "begin")
        self.controller = Controller()
        self.journal: tuple[str, ...] | None = None
        self.now = 100_000.0
        self.trusting = False  # what all say who write there
        self.runs = 0
        self.again()

    def again(self) -> None:
        """Kill -9, and the next run."""
        self.kill()
        self.runs += 1
        self.run = Run(self)

    def kill(self) -> None:
        if self.runs:
            self.run.kill()

    def look(self, after: float = 0.0) -> None:
        self.now += after
        self.run.box.put(self.run.log.look(self.now), self.run.log.places)

    def keep(self) -> None:
        self.run.box.keep(self.run.log.places)

    def tell(self) -> None:
        self.controller.take(self.run.box)

    def end(self) -> None:
        self.again()
        for after in (0.0, 2.0, WAIT, WAIT):
            self.look(after)
        self.tell()
        self.kill()

    def told(self, *, unconfirmed: bool) -> Counter[str]:
        found: Counter[str] = Counter()
        for news in self.controller.told:
            if news.kind == "xid" and news.unconfirmed == unconfirmed:
                found[f"{news.fields['pci']} {news.fields['number']}"] += news.count
        return found


class Run:
    """One run of an agent."""

    def __init__(self, node: Node) -> None:
        places = Places(node.root / "state")
        voice = AgentIdentity(node=NODE, incarnation=ME, agent_run=f"r{node.runs}")
        self.box = Outbox(node.root / "state" / "spool", voice, places)
        sources: list[LineSource] = []
        if node.journal is None:
            node.ring._at.clear()  # whoever opens it begins at its start
            records = begin_in_boot(places, "devkmsg", KmsgPlace(boot_id="b"))
            ring = node.ring.read
            trust = node.trusting
            sources.append(Kmsg(NODE, records.told, node.root / "kmsg", ring, trusted=trust, heard=records.heard))
        else:
            entries = begin_in_boot(places, "journal", JournalPlace(boot_id="b1"))
            sources.append(JournalFollower(entries.heard, node.journal, told=entries.told))
        for path, reading in ((node.trusted, TRUSTED), (node.messages, TRUSTED if node.trusting else HEARSAY)):
            begin = begin_in_file(places, f"text:{path}", LogPlace(boot_id="b"))
            sources.append(SystemLog(path, begin.heard, reading, began=-1e9, told=begin.told))
        self.log = KernelLog(sources, NODE, lambda _: None)

    def kill(self) -> None:
        self.log.close()
        self.box.close()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.kill()


def test_a_line_that_waits_for_a_witness_is_told_though_the_agent_dies_meanwhile(node: Node) -> None:
    node.look()
    append(node.messages, dated(XID_79))
    node.look(1.0)
    node.keep()
    node.end()
    assert node.told(unconfirmed=True) == {"0000:18:00 79": 1}


def test_so_is_what_a_program_wrote_to_the_ring(node: Node) -> None:
    node.look()
    node.ring.say(XID_79, prefix="12")
    node.look(1.0)
    node.keep()
    node.end()
    assert node.told(unconfirmed=True) == {"0000:18:00 79": 1}


def test_and_a_line_of_a_trusted_log_that_cannot_be_dated(node: Node) -> None:
    node.look()
    append(node.trusted, dated(XID_79, DAY))
    node.look(1.0)
    node.keep()
    node.end()
    assert node.told(unconfirmed=True) == {"0000:18:00 79": 1}


def test_a_line_that_waits_holds_up_no_sum_of_another_log(node: Node) -> None:
    node.look()
    append(node.messages, dated(XID_63))
    append(node.trusted, dated(XID_79), 5)
    node.look(1.0)
    node.look(2.0)  # the sum of four; the other waits still
    node.tell()
    node.end()
    assert node.told(unconfirmed=False) == {"0000:18:00 79": 5}
    assert node.told(unconfirmed=True) == {"0000:2a:00 63": 1}


def test_a_line_that_waits_holds_up_no_sum_of_its_own_log(node: Node) -> None:
    node.look()
    append(node.trusted, dated(XID_63, DAY))
    append(node.trusted, dated(XID_79), 5)
    node.look(1.0)
    node.look(2.0)
    append(node.trusted, dated(XID_79), 2)
    node.look(3.0)
    node.tell()
    node.end()
    assert node.told(unconfirmed=False) == {"0000:18:00 79": 7}
    assert node.told(unconfirmed=True) == {"0000:2a:00 63": 1}


def test_what_was_told_as_unconfirmed_is_not_told_again_nor_is_its_number(node: Node) -> None:
    node.look()
    append(node.messages, dated(XID_94))
    node.look(1.0)
    append(node.messages, dated(XID_79), 3)
    node.look(1.0)
    append(node.messages, dated(XID_79), 2)
    append(node.messages, dated(XID_63))
    node.look(6.0)
    node.look(WAIT - 6.0)  # the five are told, and what waits longer keeps the place before them
    node.tell()
    assert node.told(unconfirmed=True) == {"0000:3b:00 94": 1, "0000:18:00 79": 5}
    node.end()
    assert node.told(unconfirmed=True) == {"0000:3b:00 94": 1, "0000:18:00 79": 5, "0000:2a:00 63": 1}


@pytest.mark.parametrize("gone", [(), (0,), (0, 1), (1,), (4,), (6,), (2, 3, 4, 5, 6)])
def test_whatever_a_rotation_took_away_since_a_line_began_to_wait_no_fault_is_lost_or_told_twice(
    node: Node, gone: Sequence[int]
) -> None:
    node.look()
    append(node.trusted, dated(XID_63, DAY))
    node.look(1.0)
    for turn in range(6):
        append(node.trusted, dated(XID_79), 3)
        node.look(0.1)
        node.look(1.1)
        node.trusted.rename(node.root / f"trusted.{turn}")
        append(node.trusted, f"begin {turn}")
        node.look(0.1)
        node.keep()
    append(node.trusted, dated(XID_79), 3)
    node.look(0.1)
    append(node.trusted, dated(XID_94))  # told while the others are counted: it is known by its name alone
    node.look(0.1)
    node.tell()
    node.run.kill()
    append(node.trusted, dated(XID_79), 5)
    node.trusted.rename(node.root / "trusted.6")
    for turn in gone:
        (node.root / f"trusted.{turn}").unlink()
    append(node.trusted, dated(XID_79), 20)
    node.end()
    # What was counted and not told yet, and what nobody had read, is in the last of them.
    assert node.told(unconfirmed=False) == {"0000:18:00 79": 46 if 6 not in gone else 38, "0000:3b:00 94": 1}
    assert node.told(unconfirmed=True) == {"0000:2a:00 63": 1} or {0, 4, 6} & {*gone}
    assert ("agent.lines_lost" in node.controller.kinds()) == bool({4, 6} & {*gone})


def test_an_agent_that_dies_again_before_it_could_read_its_logs_again_has_lost_and_doubled_nothing(node: Node) -> None:
    node.look()
    append(node.trusted, dated(XID_63, DAY))
    append(node.trusted, dated(XID_79), 5)
    node.ring.say(XID_94, prefix="12")
    node.look(1.0)
    node.look(2.0)
    node.tell()
    away = node.trusted.rename(node.root / "elsewhere")
    node.ring.refuse = PermissionError(1, "not now")
    node.again()
    node.look()
    node.keep()
    away.rename(node.trusted)
    node.ring.refuse = None
    append(node.trusted, dated(XID_79), 2)
    node.end()
    assert node.told(unconfirmed=False) == {"0000:18:00 79": 7}
    assert node.told(unconfirmed=True) == {"0000:2a:00 63": 1, "0000:3b:00 94": 1}


def test_a_line_that_waits_is_told_though_a_file_from_before_it_is_removed(node: Node) -> None:
    append(node.trusted, dated(XID_79))
    node.look()
    node.trusted.rename(node.root / "trusted.1")
    append(node.trusted, "begin")
    node.look(1.0)
    append(node.trusted, dated(XID_63, DAY))
    node.look(1.0)
    node.tell()
    node.keep()
    node.run.kill()
    (node.root / "trusted.1").unlink()
    append(node.trusted, dated(XID_79), 2)
    node.end()
    assert node.told(unconfirmed=False) == {"0000:18:00 79": 3}
    assert node.told(unconfirmed=True) == {"0000:2a:00 63": 1}
    assert node.controller.kinds().count("agent.lines_lost") == 1


@pytest.mark.parametrize("packed", [False, True])
def test_a_log_that_was_cut_off_twice_while_a_line_waits_loses_and_doubles_no_fault(node: Node, packed: bool) -> None:
    node.look()
    append(node.trusted, dated(XID_63, DAY))
    append(node.trusted, dated(XID_79), 3)
    node.look(0.1)
    node.look(1.1)
    copied(node.trusted, 1, packed=packed)
    node.look(0.1)
    node.keep()
    node.run.kill()
    append(node.trusted, dated(XID_79), 5)
    copied(node.trusted, 2, packed=packed)
    append(node.trusted, dated(XID_79), 2)
    node.end()
    assert node.told(unconfirmed=False) == {"0000:18:00 79": 10}
    assert node.told(unconfirmed=True) == {"0000:2a:00 63": 1}


def copied(path: Path, turn: int, *, packed: bool) -> None:
    """Copied and cut off. Times of files are told apart."""
    time.sleep(0.01)
    copy = path.with_name(f"{path.name}.{turn}")
    shutil.copy(path, copy)
    os.truncate(path, 0)
    if packed:
        pack(copy)
    time.sleep(0.01)


def pack(path: Path) -> None:
    about = path.stat()
    beside = path.with_name(f"{path.name}.gz")
    beside.write_bytes(gzip.compress(path.read_bytes()))
    os.utime(beside, ns=(about.st_atime_ns, about.st_mtime_ns))
    path.unlink()


def test_the_place_moves_though_something_always_waits(node: Node) -> None:
    node.look()
    for number in range(12):
        append(node.messages, dated(XID_79.replace("18:00", f"{number:02x}:00")))
        node.look(5.0)
        node.keep()
    end = node.messages.stat().st_size
    begin = begin_in_file(Places(node.root / "state"), f"text:{node.messages}", LogPlace(boot_id="b"))
    assert begin.told.offset == end
    assert end / 2 < begin.heard.offset < end


def test_words_that_are_told_again_after_an_hour_are_news_to_the_controller(node: Node) -> None:
    for _ in range(int((AGAIN + 120) / 30)):
        append(node.messages, dated(XID_79))
        node.look(30.0)
        node.tell()
    assert [news.count > 1 for news in node.controller.told if news.unconfirmed] == [False, True]


def test_a_line_that_waits_has_no_fault_of_the_journal_told_twice_and_its_echoes_stay_echoes(
    node: Node, journald: Journald
) -> None:
    def reads(text: str) -> Callable[[], bool]:
        def read() -> bool:
            node.look()
            node.tell()
            return any(text in news.text for news in node.controller.told)

        return read

    node.journal = journald.command
    node.again()
    node.look()
    append(node.messages, dated(XID_63))  # it waits
    node.look()
    for _ in range(5):
        journald.say(XID_79)
    journald.say(XID_94)
    until(reads("fallen off"))
    until(reads("Contained"))
    append(node.messages, dated(XID_79))  # an echo
    node.look(2.0)  # the sum of four
    node.tell()
    node.again()
    node.look()  # before journalctl has begun
    node.keep()
    node.again()
    journald.say(XID_79)
    journald.say(XID_79.replace("18:00", "1a:00"))
    until(reads("1a:00"))
    node.look(WAIT + 2.0)
    node.look(WAIT + 2.0)
    node.tell()
    assert node.told(unconfirmed=False) == {"0000:18:00 79": 6, "0000:3b:00 94": 1, "0000:1a:00 79": 1}
    assert node.told(unconfirmed=True) == {"0000:2a:00 63": 1}


def test_what_waited_for_a_witness_counts_where_the_next_run_is_told_to_trust_it(node: Node) -> None:
    node.look()
    append(node.messages, dated(XID_63))
    node.ring.say(XID_94, prefix="12", stamp=node.now)
    append(node.trusted, dated(XID_79))
    node.look(1.0)
    node.tell()
    node.trusting = True
    node.end()
    assert node.told(unconfirmed=False) == {"0000:18:00 79": 1, "0000:2a:00 63": 1, "0000:3b:00 94": 1}
    assert not node.told(unconfirmed=True)


def test_what_counted_is_not_told_again_where_the_next_run_is_told_not_to_trust_it(node: Node) -> None:
    node.trusting = True
    node.again()
    node.look()
    append(node.messages, dated(XID_63), 3)
    node.ring.say(XID_94, prefix="12", stamp=node.now)
    append(node.trusted, dated(XID_79, DAY))
    node.look(1.0)
    node.look(2.0)
    node.tell()
    node.trusting = False
    node.end()
    assert node.told(unconfirmed=False) == {"0000:2a:00 63": 3, "0000:3b:00 94": 1}
    assert node.told(unconfirmed=True) == {"0000:18:00 79": 1}


STEPS = [
    "trusted",
    "trusted",
    "forged",
    "undated",
    "ring",
    "program",
    "look",
    "look",
    "wait",
    "keep",
    "tell",
    "kill",
    "rotate",
    "pack",
]


@pytest.mark.slow
@settings(max_examples=examples(150), deadline=None)
@given(steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(1, 9)), max_size=40), copies=st.booleans())
def test_whatever_is_done_in_whatever_order_faults_are_counted_and_hearsay_is_told(
    steps: list[tuple[str, int]], copies: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    node = Node(tmp_path_factory.mktemp("node"))
    node.look()
    node.keep()
    faults, hearsay = Counter[str](), Counter[str]()
    turns, words = 0, count()

    def write(kind: str, number: int) -> None:
        # Each of a device of its own: what two sources tell of one event is one event, which is not meant here.
        domain = {"trusted": "0001", "forged": "0002", "undated": "0003", "ring": "0004", "program": "0005"}[kind]
        device = f"{domain}:{number:02x}:00"
        line = XID_79.replace("0000:18:00", device)
        if kind == "trusted":  # two logs that begin with the very same lines are one to whoever goes by what they say
            line = f"{line} {next(words)}"
        (faults if kind in {"trusted", "ring"} else hearsay)[f"{device} 79"] += 1
        if kind in {"ring", "program"}:
            node.ring.say(line, prefix="4" if kind == "ring" else "12", stamp=node.now)
        else:
            append(node.messages if kind == "forged" else node.trusted, dated(line, DAY * (kind == "undated")))

    for step, number in steps:
        if step == "look":
            node.look(number / 10)
        elif step == "wait":
            node.look(number * 2.0)
        elif step == "keep":
            node.keep()
        elif step == "tell":
            node.tell()
        elif step == "kill":
            node.again()
        elif step in {"rotate", "pack"}:  # always in the same way
            turns += 1
            path = node.trusted if number % 2 else node.messages
            if copies:
                copied(path, turns, packed=step == "pack")
                continue
            time.sleep(0.005)
            moved = path.rename(path.with_name(f"{path.name}.{turns}"))
            if step == "pack":
                pack(moved)
            append(path, f"begin {turns}")
        else:
            for _ in range(number):
                write(step, number % 3)
    node.end()
    assert node.told(unconfirmed=False) == faults
    told = node.told(unconfirmed=True)
    assert told.keys() == hearsay.keys()
    assert not told - hearsay, "more than there were"
