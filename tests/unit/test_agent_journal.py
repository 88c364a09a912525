"""journald through journalctl: every entry once, across the death of either, and the last words of a boot."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.agent_rig import XID_63, XID_79
from tests.support.waiting import until

from sickbay.agent.node import spooled
from sickbay.agent.outbox import Outbox
from sickbay.agent.probes.journal import MUTE, JournalFollower, JournalPlace, decoded
from sickbay.agent.probes.kernel_log import KernelLog, LogLine
from sickbay.agent.probes.last_words import MOST, last_words
from sickbay.agent.spool import AgentIdentity
from sickbay.model.facts import Observed
from sickbay.model.fleet import Incarnation, NodeId
from sickbay.model.protocol import Item

NODE = NodeId("c/n1")

# Plays journalctl: prints the entries of a file, from a cursor on, and follows it if told to.
PLAYED = """
import json, sys, time
words = sys.argv[1:]
after = words[words.index("--after-cursor") + 1] if "--after-cursor" in words else ""
boot = next((w.partition("=")[2] for w in words if w.startswith("--boot=")), "")
seen, deadline = not after, time.monotonic() + 30
with open({path!r}) as file:
    while time.monotonic() < deadline:
        line = file.readline()
        if line == "quit\\n":
            sys.exit(1)
        if line.endswith("\\n"):
            entry = json.loads(line)
            if seen and (not boot or entry.get("_BOOT_ID") == boot):
                print(line, end="", flush=True)
            seen = seen or entry["__CURSOR"] == after
        elif "--follow" not in words:
            break
        else:
            time.sleep(0.002)
"""


class Journald:
    def __init__(self, root: Path) -> None:
        self.path = root / "journal"
        self.path.touch()
        self.command = (sys.executable, "-c", PLAYED.format(path=str(self.path)))
        self._number = 0

    def say(self, text: str | list[int], *, boot: str = "b1", mono: float = 5.0, wall: float = 1_000_005.0) -> None:
        self._number += 1
        entry = {
            "__CURSOR": f"s=0123456789abcdef;i={self._number:x};b={boot};m=1;t=1;x=1",
            "__REALTIME_TIMESTAMP": str(int(wall * 1e6)), "__MONOTONIC_TIMESTAMP": str(int(mono * 1e6)),
            "_SOURCE_MONOTONIC_TIMESTAMP": str(int(mono * 1e6)), "_BOOT_ID": boot, "_TRANSPORT": "kernel",
            "SYSLOG_FACILITY": "0",
            "SYSLOG_IDENTIFIER": "kernel", "MESSAGE": text,
        }  # fmt: skip
        with self.path.open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def quit(self) -> None:
        with self.path.open("a") as file:
            file.write("quit\n")


@pytest.fixture
def journald(tmp_path: Path) -> Journald:
    return Journald(tmp_path)


def reading(journal: JournalFollower) -> Callable[[], list[LogLine]]:
    found: list[LogLine] = []

    def read() -> list[LogLine]:
        found.extend(line for line in journal.lines(time.monotonic()) if isinstance(line, LogLine))
        return found

    return read


def has_read(read: Callable[[], list[LogLine]], expected: list[str]) -> bool:
    return [line.text for line in read()] == expected


def test_entries_are_read_as_they_come_with_the_journals_own_number(journald: Journald) -> None:
    journald.say("Linux version 6.8")
    journald.say(XID_79, mono=1.5)
    journal = JournalFollower(JournalPlace(boot_id="b1"), journald.command)
    read = reading(journal)
    until(lambda: len(read()) == 2)
    line = read()[1]
    assert (line.text, line.mono, line.source, line.seq) == (XID_79, 1.5, "journal+01234567", 2)
    assert journal.handle is not None
    journald.say(XID_63)
    until(lambda: len(read()) == 3)
    journal.close()
    assert journal.handle is None


def test_another_run_goes_on_behind_the_last_entry(journald: Journald) -> None:
    journald.say("one")
    journald.say("two")
    first = JournalFollower(JournalPlace(boot_id="b1"), journald.command)
    read = reading(first)
    until(lambda: len(read()) == 2)
    place = first.place()
    assert place is not None
    first.close()
    journald.say("three")
    again = JournalFollower(place, journald.command)
    read = reading(again)
    until(partial(has_read, read, ["three"]))
    again.close()


def test_a_journalctl_that_ends_is_told_and_started_again_where_it_was(journald: Journald) -> None:
    journald.say("one")
    journal = JournalFollower(JournalPlace(boot_id="b1"), journald.command)
    read = reading(journal)
    until(lambda: len(read()) == 1)
    journald.quit()

    def ended() -> bool:
        try:
            read()
        except OSError:
            return True
        return False

    until(ended)
    assert not list(journal.lines(time.monotonic()))  # not at once
    journald.path.write_text(journald.path.read_text().replace("quit\n", ""))
    journald.say(XID_79)
    journal._start_after = 0.0
    until(lambda: [line.text for line in read()] == ["one", XID_79])
    journal.close()


def test_no_journalctl_is_one_clear_line() -> None:
    journal = JournalFollower(JournalPlace(boot_id="b1"), ("/nonexistent/journalctl",))
    with pytest.raises(OSError, match="there is no /nonexistent/journalctl here"):
        list(journal.lines(1.0))


def test_a_message_that_is_no_text_is_read_all_the_same(journald: Journald) -> None:
    journald.say(list(XID_79.encode() + b"\xff"))
    journal = JournalFollower(JournalPlace(boot_id="b1"), journald.command)
    log = KernelLog([journal], NODE, lambda _: None)
    found: list[Item] = []

    def read() -> list[Item]:
        found.extend(log.look(time.monotonic()))
        return found

    (item,) = until(read)
    assert isinstance(item.news, Observed)
    assert item.news.fields["number"] == 79
    log.close()


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(line: bytes) -> None:
    decoded(line)


# --- last words


@pytest.mark.parametrize("by", ["cursor", "stamp"])
def test_last_words_are_what_that_boot_said_after_the_agents_place(journald: Journald, by: str) -> None:
    journald.say(XID_63, mono=50.0, wall=1_000_050.0)
    journald.say(XID_79, mono=99.0, wall=1_000_099.0)
    journald.say("NVRM: Xid (PCI:0000:18:00): 48, DBE", boot="b2", mono=1.0, wall=1_000_200.0)
    first = json.loads(journald.path.read_text().splitlines()[0])["__CURSOR"]
    place: dict[str, str | float] = {"cursor": first} if by == "cursor" else {"stamp": 50.0}
    found = last_words("b1", command=journald.command, **place)  # type: ignore[arg-type]
    assert [(line.text, line.mono) for line in found.lines] == [(XID_79, 99.0)]
    assert found.zero == 1_000_000.0


def test_a_journal_that_does_not_answer_does_not_keep_the_agent_from_beginning() -> None:
    with pytest.raises(TimeoutError, match=r"within 0\.2 s"):
        last_words("b1", cursor="x", command=(sys.executable, "-c", "import time; time.sleep(30)"), within=0.2)


def test_last_words_are_said_first_under_their_own_boot_and_on_our_clock(tmp_path: Path) -> None:
    ended = Incarnation(uid="u", instance_id="i", boot_id="b1")
    voice = AgentIdentity(node=NODE, incarnation=Incarnation(uid="u", instance_id="i", boot_id="b2"), agent_run="r2",
                  machine_boot="b2", zero=2_000.0)  # fmt: skip
    lines = [LogLine(XID_79, 99.0, "journal", 7, proven=True), LogLine("usb 1-1: new", 99.1, "journal", 8)]
    assert spooled(lines, tmp_path, voice, ended, 1_000.0) == 1
    outbox = Outbox(tmp_path, voice)
    batch = outbox.batch()
    assert batch is not None
    assert batch.voice.incarnation == ended
    (item,) = (msgspec.json.decode(line, type=Item) for line in batch.items)
    assert isinstance(item.news, Observed)
    assert (item.news.last_words, item.source, item.source_seq) == (True, "journal", 7)
    assert item.mono == 99.0 + 1_000.0 - 2_000.0
    outbox.acknowledge(batch, batch.last)
    assert outbox.empty
    outbox.close()
    assert not os.listdir(tmp_path)  # noqa: PTH208 - names are enough


MEMORY = """
import resource, sys
from sickbay.agent.probes.last_words import last_words
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = last_words("b1", stamp=1.0, command=(sys.argv[1],))
grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
print(len(found.lines), found.lines[-1].text[:11], grown, sep=" | ")
"""


@pytest.mark.slow
def test_a_boot_that_said_very_much_is_read_in_little_memory(tmp_path: Path) -> None:
    """The interesting lines alone are many; of them the newest are kept."""
    entry = {"__CURSOR": "s=1;i=1", "__REALTIME_TIMESTAMP": "1", "__MONOTONIC_TIMESTAMP": "1", "_BOOT_ID": "b1",
             "_SOURCE_MONOTONIC_TIMESTAMP": "9000000", "_TRANSPORT": "kernel", "SYSLOG_FACILITY": "0"}  # fmt: skip
    for name, text in (("dull", "x" * 2000), ("fault", f"{XID_79} {'y' * 900}")):
        (tmp_path / name).write_text(json.dumps(entry | {"MESSAGE": text}))
    journalctl = tmp_path / "journalctl"
    said = "".join(f'yes "$(cat {tmp_path / name})" | head -n 10000\n' for name in ("dull", "fault"))
    journalctl.write_text(f"#!/bin/sh\n{said}")
    journalctl.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(journalctl)], capture_output=True, text=True, timeout=60, check=True
    )
    lines, begin, grown = done.stdout.split(" | ")
    assert (int(lines), begin) == (MOST, "NVRM: Xid (")
    assert int(grown) < 15


def test_last_words_in_the_middle_of_many_others_are_found_whatever_their_form(journald: Journald) -> None:
    for n in range(50):
        journald.say(f"usb 1-1: device {n}", mono=60.0 + n)
    journald.say(list(XID_63.encode() + b"\xff"), mono=120.0)
    journald.say("a café", mono=121.0)
    journald.say(XID_79, mono=122.0)
    journald.say('Bad mode in "Error" handler detected, code 0xbe000000', mono=123.0)
    found = last_words("b1", command=journald.command, stamp=50.0)
    assert [line.mono for line in found.lines] == [120.0, 122.0, 123.0]
    assert all(line.proven and line.bare for line in found.lines)
    assert found.zero == 1_000_005.0 - 123.0


def test_last_words_that_a_program_wrote_into_the_ring_are_none(tmp_path: Path) -> None:
    ended = Incarnation(uid="u", instance_id="i", boot_id="b1")
    voice = AgentIdentity(node=NODE, incarnation=ended, agent_run="r2", machine_boot="b1", zero=0.0)
    assert spooled([LogLine(XID_79, 99.0, "journal", 7)], tmp_path, voice, ended, 0.0) == 0


def test_a_journal_that_shows_nothing_of_this_boot_is_one_that_may_not_be_read(journald: Journald) -> None:
    """`journalctl` says nothing of the kernel to a user without the right, and goes on saying nothing."""
    journal = JournalFollower(JournalPlace(boot_id="b1"), journald.command)
    until(lambda: list(journal.lines(100.0)) == [] and journal.handle is not None)
    assert not list(journal.lines(100.0 + MUTE))
    with pytest.raises(PermissionError, match="systemd-journal"):
        list(journal.lines(101.0 + MUTE))
    journald.say("Linux version 6.8")

    def spoken() -> bool:
        try:
            return any(isinstance(line, LogLine) for line in journal.lines(102.0 + MUTE))
        except PermissionError:
            return False

    until(spoken)
    assert not list(journal.lines(103.0 + MUTE))
    journal.close()
