"""Text logs: lines are dated by what they carry, rotation loses none, what is older than the boot means nothing."""

import shutil
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.agent_rig import XID_63, XID_79
from tests.support.thorough import examples

from sickbay.agent.commands import Refuse
from sickbay.agent.drill import Drills
from sickbay.agent.probes.kernel_log import KernelLog, LogPlace
from sickbay.agent.probes.system_log import LineTrust, SystemLog
from sickbay.model.facts import Observed
from sickbay.model.fleet import NodeId
from sickbay.model.protocol import Item

NODE = NodeId("c/n1")
NOW = 10_000.0  # on our monotonic clock
WALL = datetime(2026, 11, 16, 8, 0, 0, tzinfo=UTC).timestamp()
BOOTED = NOW - 3600.0


def syslog(text: str, ago: float = 0.0) -> str:
    return f"{time.strftime('%b %e %H:%M:%S', time.localtime(WALL - ago))} gpu-7 kernel: {text}\n"


def system_log(path: Path, place: LogPlace | None = None) -> SystemLog:
    reading = LineTrust(trusted=True, own_zone=True)
    return SystemLog(path, place or LogPlace(boot_id="b"), reading, began=BOOTED, wall=lambda: WALL)


def over(*logs: SystemLog) -> KernelLog:
    return KernelLog(logs, NODE, lambda _: None)


def told(items: list[Item]) -> list[tuple[int | str, float]]:
    """Which Xids, and when."""
    found = [(item.news, item.mono) for item in items if isinstance(item.news, Observed)]
    return [(news.fields["number"], mono) for news, mono in found if news.kind == "xid"]


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def numbers(log: KernelLog, now: float = NOW) -> list[int | str]:
    return [number for number, _ in told([*log.look(now), *log.flush(now)])]


@pytest.mark.parametrize(
    ("ago", "moment"),
    [
        (0.0, NOW),
        (0.5, NOW),  # the second in which it was written is not over
        (60.0, NOW - 59.0),
        (3600.0 + 7200.0, None),  # before the boot
        (3600.0 + 3.0, None),
        (3600.0 + 0.5, None),  # in the very second of the boot: the one before may have said it
        (3600.0 - 2.0, NOW - 3598.0),
        (-30.0, NOW),  # a daemon's clock that is a little ahead
    ],
)
def test_a_line_is_dated_by_what_it_carries(tmp_path: Path, ago: float, moment: float | None) -> None:
    path = tmp_path / "messages"
    append(path, syslog(XID_79, ago))
    log = over(system_log(path))
    found = told(log.look(NOW))
    assert [when for _, when in found] == ([] if moment is None else [pytest.approx(moment, abs=1.01)])
    log.close()


@pytest.mark.parametrize(
    ("stamp", "counts"),
    [
        ("2026-11-16T07:59:30.123456+00:00 gpu-7 kernel: ", True),
        ("2026-11-16T08:59:30.123456+01:00 gpu-7 kernel: ", True),
        ("2026-11-16T06:30:00+00:00 gpu-7 kernel: ", False),
        ("2025-11-16T07:59:30+00:00 gpu-7 kernel: ", False),
        ("Nov 18 08:00:00 gpu-7 kernel: ", False),  # no clock is two days ahead: that was last year
    ],
)
def test_dates_in_other_forms(tmp_path: Path, stamp: str, counts: bool) -> None:
    path = tmp_path / "messages"
    append(path, f"{stamp}{XID_79}\n")
    log = over(system_log(path))
    assert numbers(log) == ([79] if counts else [])
    assert not log.rest(NOW)
    log.close()


@pytest.mark.parametrize(
    ("stamp", "why"),
    [
        ("2026-12-24T07:59:30+00:00 gpu-7 kernel: ", "ahead of the clock"),
        ("Nov 17 07:53:20 gpu-7 kernel: ", "ahead of the clock"),
        ("kernel: ", "no date"),
        ("", "no date"),
    ],
)
def test_what_cannot_be_dated_is_told_with_that_word_and_does_nothing_though_the_file_is_trusted(
    tmp_path: Path, stamp: str, why: str
) -> None:
    path = tmp_path / "messages"
    append(path, f"{stamp}{XID_79}\n")
    log = over(system_log(path))
    assert not numbers(log)
    (item,) = log.rest(NOW)
    assert isinstance(item.news, Observed)
    assert item.news.unconfirmed
    assert why in str(item.news.fields["undated"])
    log.close()


def test_a_line_without_a_date_that_comes_while_we_watch_has_happened_now(tmp_path: Path) -> None:
    path = tmp_path / "console"
    append(path, "[   12.345678] usb 1-1: new device\n")
    log = over(system_log(path))
    assert not numbers(log)
    append(path, f"[   99.345678] {XID_79}\n")
    assert told(log.look(NOW + 5)) == [(79, NOW + 5)]
    log.close()


def test_lines_from_before_the_agent_but_of_this_boot_are_seen(tmp_path: Path) -> None:
    path = tmp_path / "messages"
    append(path, syslog(XID_63, 7200.0) + syslog(XID_79, 600.0))
    log = over(system_log(path))
    assert numbers(log) == [79]
    log.close()


def test_the_next_run_goes_on_where_the_last_one_was(tmp_path: Path) -> None:
    path = tmp_path / "messages"
    append(path, syslog(XID_79))
    first = system_log(path)
    assert numbers(over(first)) == [79]
    place = first.place()
    first.close()
    append(path, syslog(XID_63))
    later = over(system_log(path, place))
    assert numbers(later) == [63]
    later.close()


@pytest.mark.parametrize("copied", [True, False], ids=["copied and cut off", "moved away"])
@pytest.mark.parametrize("away", [True, False], ids=["while no agent ran", "while it watched"])
def test_what_was_written_before_a_rotation_is_read(tmp_path: Path, copied: bool, away: bool) -> None:
    path = tmp_path / "messages"
    append(path, "".join(syslog(f"usb 1-1: device {n}") for n in range(20)))
    source = system_log(path)
    log = over(source)
    assert not numbers(log)
    place = source.place()
    append(path, syslog(XID_79))
    rotated = tmp_path / "messages-20261116"
    if copied:
        shutil.copy(path, rotated)
        path.write_text("")
    else:
        path.rename(rotated)
    append(path, syslog(XID_63))
    if away:
        log.close()
        log = over(system_log(path, place))
    assert [*numbers(log), *numbers(log, NOW + 1)] == [79, 63]
    log.close()


def test_what_waited_is_given_up_after_many_rotations_and_what_is_new_is_read_at_once(tmp_path: Path) -> None:
    """Whoever dies young would read the backlog again with each life, and never what stands behind it."""
    path = tmp_path / "messages"
    path.write_text(syslog(XID_79))
    first = system_log(path)
    log = over(first)
    numbers(log)
    waited = first.place()
    for number in range(9):
        path.rename(tmp_path / f"messages.{number}")
        path.write_text(syslog(XID_79))
        numbers(log)
    known = first.place()
    log.close()
    append(path, syslog(XID_63))
    reading = LineTrust(trusted=True, own_zone=True)
    again = SystemLog(path, waited, reading, began=BOOTED, wall=lambda: WALL, told=known)
    log = over(again)
    items = log.look(NOW)
    assert [item.news.fields["number"] for item in items if item.news.kind == "xid"] == [63]
    assert any("waited for a witness" in item.news.text for item in items)
    log.close()


def test_a_file_that_was_cut_off_and_has_outgrown_its_old_length_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "messages"
    append(path, syslog("usb 1-1: new device"))
    log = over(system_log(path))
    assert not numbers(log)
    path.write_text("".join([syslog(XID_79), *(syslog(f"usb 1-1: other {n}") for n in range(20))]))
    assert numbers(log) == [79]
    log.close()


def test_a_file_that_is_not_there_yet_is_no_trouble(tmp_path: Path) -> None:
    source = system_log(tmp_path / "messages")
    log = over(source)
    assert not numbers(log)
    assert source.watched[0] == tmp_path
    append(tmp_path / "messages", syslog(XID_79))
    assert source.watched[0] == tmp_path / "messages"
    assert numbers(log) == [79]
    log.close()


def test_what_other_programs_say_is_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "messages"
    append(path, f"Nov 16 08:00:00 gpu-7 python3[77]: {XID_79}\nNov 16 08:00:00 gpu-7 docker[1]: saw {XID_79}\n")
    log = over(system_log(path))
    assert not numbers(log)
    log.close()


def test_its_items_never_become_last_words(tmp_path: Path) -> None:
    path = tmp_path / "messages"
    append(path, syslog(XID_79))
    log = over(system_log(path))
    (item,) = log.look(NOW)
    assert item.source.startswith("text:")
    log.close()


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.text(max_size=60), max_size=10))
def test_no_text_breaks_it(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    path = tmp_path_factory.mktemp("logs") / "messages"
    path.write_bytes("\n".join([*lines, syslog(XID_79)]).encode(errors="replace"))
    log = over(system_log(path))
    log.look(NOW)
    log.close()


# --- the drill


def test_a_drill_writes_what_the_watcher_reads(tmp_path: Path) -> None:
    path = tmp_path / "messages"
    path.touch()
    drills = Drills(tmp_path / "drills.json")
    log = KernelLog([SystemLog(path, LogPlace(boot_id="b"), drills=drills)], NODE, lambda _: None)
    drills.inject(path, XID_79, "gpu-7")
    assert path.read_text().endswith(f" gpu-7 kernel: {XID_79}\n")
    (item, blind) = log.look(time.monotonic())
    assert isinstance(blind.news, Observed)
    assert isinstance(item.news, Observed)
    assert (item.news.fields["number"], item.news.unconfirmed) == (79, False)
    log.close()


def test_a_drill_counts_though_the_next_run_of_the_agent_is_the_first_to_read_it(tmp_path: Path) -> None:
    path = tmp_path / "messages"
    path.touch()
    Drills(tmp_path / "drills.json").inject(path, XID_79)
    path.rename(tmp_path / "messages.1")  # and the log was rotated meanwhile
    path.touch()
    place = LogPlace(boot_id="b", inode=(tmp_path / "messages.1").stat().st_ino)
    log = over(SystemLog(path, place, drills=Drills(tmp_path / "drills.json")))
    assert numbers(log, time.monotonic()) == [79]
    log.close()


def test_whoever_copies_the_line_of_a_drill_has_no_drill(tmp_path: Path) -> None:
    path = tmp_path / "messages"
    path.touch()
    drills = Drills(tmp_path / "drills.json")
    drills.inject(path, XID_79)
    append(path, path.read_text().replace("79", "48") + path.read_text())
    log = over(SystemLog(path, LogPlace(boot_id="b"), drills=drills))
    assert numbers(log, time.monotonic()) == [79]
    assert [number for number, _ in told(log.rest(time.monotonic()))] == [48]
    log.close()


def test_nor_has_who_copies_the_whole_file(tmp_path: Path) -> None:
    path, copy = tmp_path / "messages", tmp_path / "syslog"
    path.touch()
    drills = Drills(tmp_path / "drills.json")
    drills.inject(path, XID_79)
    copy.write_text(path.read_text())
    log = over(SystemLog(copy, LogPlace(boot_id="b"), drills=drills))
    assert numbers(log, time.monotonic()) == []
    assert [number for number, _ in told(log.rest(time.monotonic()))] == [79]
    log.close()


@pytest.mark.parametrize("line", ["", "hello", "all is well", 3000 * "x", "rm -rf /"])
def test_a_drill_writes_only_what_the_kernel_says(tmp_path: Path, line: str) -> None:
    path = tmp_path / "messages"
    path.touch()
    with pytest.raises(Refuse):
        Drills(tmp_path / "drills.json").inject(path, line)
    assert not path.read_text()


def test_a_drill_cannot_write_two_lines(tmp_path: Path) -> None:
    path = tmp_path / "messages"
    path.touch()
    Drills(tmp_path / "drills.json").inject(path, f"{XID_79}\nNov 16 08:00:00 x sudo: root")
    assert path.read_text().count("\n") == 1
