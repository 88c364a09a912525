"""Reading the kernel log as it grows: every line that means something, once, whatever happens to the file."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.agent_rig import XID_63, XID_79

from sickbay.agent.outbox import say
from sickbay.agent.probes.dedup import BODIES, KINDS, Deduplicator
from sickbay.agent.probes.kernel_log import BootLog, KernelLog, LogPlace
from sickbay.agent.probes.log_file import LONGEST, LogFile
from sickbay.clusters.local.devices import bus, device_at
from sickbay.model.facts import Observed
from sickbay.model.fleet import NodeId
from sickbay.model.protocol import Item

NODE = NodeId("c/n1")


def append(path: Path, data: str | bytes) -> None:
    with path.open("ab") as file:
        file.write(data.encode() if isinstance(data, str) else data)


def read_all(file: LogFile) -> list[str]:
    found = [text for _, text in file.lines()]
    while file.behind:
        found += [text for _, text in file.lines()]
    return found


def numbers(items: list[Item]) -> list[tuple[int | str, int]]:
    assert all(isinstance(item.news, Observed) for item in items)
    return [(item.news.fields["number"], item.news.count) for item in items if isinstance(item.news, Observed)]


def kernel_log(path: Path, place: LogPlace | None = None) -> KernelLog:
    return KernelLog([BootLog(path, place or LogPlace(boot_id="b"))], NODE, device_at)


def place_of(log: KernelLog) -> LogPlace:
    found = log.places["kmsg"]
    assert isinstance(found, LogPlace)
    return found


def test_a_line_is_read_when_its_newline_has_come(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = LogFile(path)
    assert not read_all(file)  # there is none yet
    append(path, "one\ntw")
    assert list(file.lines()) == [(0, "one")]
    append(path, "o")
    assert not read_all(file)
    append(path, "\nthree\n")
    assert list(file.lines()) == [(4, "two"), (8, "three")]
    file.close()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(alphabet="aö€\r\x00 b", max_size=40), max_size=20), st.lists(st.integers(1, 30), max_size=30))
def test_however_the_bytes_arrive_the_lines_are_the_same(lines: list[str], pieces: list[int]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "log"
        data = "".join(f"{line}\n" for line in lines).encode()
        file, found, at = LogFile(path), list[tuple[int, str]](), 0
        for size in (*pieces, len(data)):
            append(path, data[at : at + size])
            at += size
            found += file.lines()
        file.close()
        assert [text for _, text in found] == lines
        for offset, text in found:
            assert data[offset:].startswith(text.encode() + b"\n")


def test_a_file_that_is_cut_off_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "log"
    append(path, "one\ntwo\n")
    file = LogFile(path)
    read_all(file)
    path.write_text("new\n")
    assert read_all(file) == ["new"]
    assert file.generation == 1
    file.close()


def test_what_was_written_before_a_file_was_moved_away_is_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "log"
    append(path, "one\n")
    file = LogFile(path)
    read_all(file)
    append(path, "two\n")
    path.rename(tmp_path / "log.1")
    append(tmp_path / "log.1", "three\n")
    assert read_all(file) == ["two", "three"]
    append(path, "four\n")
    assert read_all(file) == ["four"]
    file.close()


def test_a_line_without_end_does_not_fill_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = LogFile(path)
    for _ in range(20):
        append(path, LONGEST * "x")
        assert not read_all(file)
        assert all(len(one.partial) <= LONGEST for one in file._files)
    append(path, "end\nnext\n")
    assert read_all(file) == ["next"]
    file.close()


def test_only_what_the_driver_says_is_reported_with_its_device_and_its_place(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    append(path, f"[ 1.0] Linux version\n[ 2.0] {XID_79}\n[ 3.0] python: Xid 79 is bad\n")
    log = kernel_log(path)
    (item,) = log.look(10.0)
    assert isinstance(item.news, Observed)
    assert (item.news.kind, item.news.fields["number"], item.news.fields["device"]) == ("xid", 79, 0)
    assert (item.source, item.source_seq, item.mono) == ("kmsg", 21, 10.0)
    log.close()


def test_every_virtual_device_is_found_at_its_address() -> None:
    assert [device_at(bus(n)) for n in range(20)] == list(range(20))


def test_the_next_run_goes_on_where_the_last_one_was_and_names_lines_alike(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    append(path, f"{XID_79}\n{XID_63}\n")
    first, second = kernel_log(path), kernel_log(path)
    assert [item.source_seq for item in first.look(1.0)] == [item.source_seq for item in second.look(2.0)]
    later = kernel_log(path, place_of(first))
    append(path, f"{XID_79}\n")
    assert [item.source_seq for item in later.look(3.0)] == [len(XID_79) + len(XID_63) + 2]
    for log in (first, second, later):
        log.close()


def all_of_it(log: KernelLog, now: float) -> list[Item]:
    """One look reads for so long only."""
    found = log.look(now)
    while log.behind:
        found += log.look(now)
    return found


def test_a_flood_is_told_at_once_and_then_as_a_number(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    log = kernel_log(path)
    append(path, 10_000 * f"{XID_79}\n")
    assert numbers(all_of_it(log, 1.0)) == [(79, 1)]
    append(path, 500 * f"{XID_79}\n" + f"{XID_63}\n")
    assert numbers(all_of_it(log, 1.5)) == [(63, 1)]
    assert numbers(log.look(2.1)) == [(79, 10_499)]
    append(path, f"{XID_79}\n")
    assert numbers(log.look(2.2)) == []
    assert numbers(log.flush(2.3)) == [(79, 1)]  # a look is answered with all that is known
    assert numbers(log.flush(2.4)) == []
    log.close()


def test_what_is_held_back_is_read_again_by_the_next_run(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    append(path, 5 * f"{XID_79}\n")
    log = kernel_log(path)
    first = log.look(1.0)
    after = kernel_log(path, place_of(log))  # killed before the rest was told
    counts = {item.source_seq: count for item in first for _, count in numbers([item])}
    for item in (*after.look(9.0), *after.flush(9.0)):
        counts.setdefault(item.source_seq, item.news.count if isinstance(item.news, Observed) else 0)
    assert sum(counts.values()) == 5
    log.close()
    after.close()


def test_a_log_that_began_anew_gives_its_lines_other_names(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    append(path, f"{XID_79}\n")
    log = kernel_log(path)
    (before,) = log.look(1.0)
    os.truncate(path, 0)
    assert not log.look(3.0)
    append(path, f"{XID_79}\n")
    (after,) = log.look(9.0)
    assert (before.source_seq, after.source_seq) == (0, 0)
    assert before.source != after.source
    assert place_of(log).generation == 1
    log.close()


# --- one event, several sources


def seen(source: str, text: str, seq: int = 0, at: float = 1.0, **fields: str | int) -> Item:
    given = {"number": 79, "pci": "0000:18:00", **fields}
    return say(Observed(node=NODE, kind="xid", fields=given, text=text), at, source, seq)


def counts(items: list[Item]) -> list[int]:
    return [item.news.count for item in items if isinstance(item.news, Observed)]


def test_the_same_event_through_every_source_is_one() -> None:
    sums = Deduplicator()
    told = sums.add(seen("devkmsg", XID_79, 7), 1.0, XID_79)
    told += sums.add(seen("journal+1", XID_79, 99), 1.01, XID_79)
    told += sums.add(seen("text:/var/log/messages", f"Nov 16 08:00:00 h kernel: {XID_79}", 5), 3.0, XID_79)
    told += sums.add(seen("", "NVML: Xid 79", pci="00000000:18:00.0"), 3.1)
    told += [*sums.over(10.0), *sums.flush()]
    assert [(item.source, count) for item, count in zip(told, counts(told), strict=True)] == [("devkmsg", 1)]


def test_the_number_is_that_of_the_source_that_saw_most() -> None:
    sums = Deduplicator()
    told = [item for n in range(3) for item in sums.add(seen("journal", XID_79, n), 1.0, XID_79)]
    told += [item for n in range(5) for item in sums.add(seen("devkmsg", XID_79, n), 1.1, XID_79)]
    told += sums.flush()
    assert sum(counts(told)) == 5


def test_other_words_of_another_source_are_no_echo() -> None:
    sums = Deduplicator()
    told = sums.add(seen("devkmsg", XID_79, link=6), 1.0, XID_79)
    told += sums.add(seen("text:/m", "another", link=9), 1.1, "NVRM: another text about the same device")
    assert len(told) == 2


def test_the_same_event_a_while_later_is_told_again() -> None:
    sums = Deduplicator()
    assert sums.add(seen("devkmsg", XID_79), 1.0, XID_79)
    list(sums.over(100.0))
    assert sums.add(seen("text:/m", XID_79, at=100.0), 100.0, XID_79)


@pytest.mark.parametrize("late", [61.0, 3600.0, 20 * 3600.0])
def test_what_a_lagging_source_dates_by_its_happening_is_an_echo_however_late_it_comes(late: float) -> None:
    sums = Deduplicator()
    told = sums.add(seen("devkmsg", XID_79), 1.0, XID_79)
    told += sums.add(seen("devkmsg", XID_79, at=1.0 + late / 2), 1.0 + late / 2, XID_79)
    list(sums.over(late))
    told += sums.add(seen("text:/m", XID_79, at=1.5), late, XID_79)
    told += sums.add(seen("text:/m", XID_79, at=1.5 + late / 2), late + 1, XID_79)
    assert [item.source for item in told] == ["devkmsg", "devkmsg"] if late > 120 else len(told) == 2
    assert sums.add(seen("text:/m", XID_79, at=late + 200), late + 200, XID_79), "the next one is news"


@pytest.mark.slow
def test_800_000_copies_of_29_messages_are_29_observations_with_counts() -> None:
    sums = Deduplicator()
    events = [seen("devkmsg", XID_79, pci=f"0000:{n:02x}:00") for n in range(29)]
    told = [item for n in range(80_000) for item in sums.add(events[n % 29], 1.0, "body")]
    assert counts(told) == 29 * [1]
    rest = [*sums.over(3.0)]
    assert len(rest) == 29
    assert sum(counts([*told, *rest])) == 80_000


@pytest.mark.slow
def test_its_memory_is_bounded() -> None:
    sums = Deduplicator()
    for n in range(20_000):
        sums.add(seen("devkmsg", XID_79, pci=f"{n:04x}:18:00"), 1.0, f"body {n}")
        sums.add(seen("devkmsg", XID_79), 1.0, f"body {n}")
    assert len(sums._repeats) <= KINDS
    assert len(sums._echoes) <= KINDS
    assert max(len(one.bodies) for stretches in sums._echoes.values() for one in stretches) <= BODIES


def test_a_line_that_counts_counts_for_as_many(tmp_path: Path) -> None:
    path = tmp_path / "log"
    append(path, "EDAC MC0: 5 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (channel:1 slot:0)\n")
    (item,) = kernel_log(path).look(0.0)
    assert isinstance(item.news, Observed)
    assert (item.news.kind, item.news.count) == ("dram.corrected", 5)
