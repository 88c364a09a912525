"""A log that is rotated, in every way that logrotate and daemons have: each line of it is told once."""

import errno
import gzip
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.support.agent_rig import XID_79

from sickbay.agent.probes import log_file, one_file
from sickbay.agent.probes.kernel_log import KernelLog, LogPlace
from sickbay.agent.probes.log_file import LogFile
from sickbay.agent.probes.system_log import LineTrust, SystemLog
from sickbay.model.facts import Observed
from sickbay.model.fleet import NodeId

NOW = 10_000.0
WALL = datetime(2026, 11, 16, 8, 0, 0, tzinfo=UTC).timestamp()


class Daemon:
    """Writes to the file that it has open until it is told to open it again, as rsyslogd does."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.written = 0
        self._handle = -1
        self.hup()

    def hup(self) -> None:
        self.end()
        self._handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def end(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)

    def raw(self, text: str) -> None:
        os.write(self._handle, text.encode())

    def say(self, number: int | None = None) -> None:
        self.written += 1
        when = time.strftime("%b %e %H:%M:%S", time.localtime(WALL))
        text = f"NVRM: Xid (PCI:0000:18:00): {number}, pid={self.written}, error" if number else f"usb {self.written}"
        self.raw(f"{when} gpu-7 kernel: {text}\n")


class Watcher:
    """The agent's look at one file, and its next run's."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.lost: list[str] = []
        self._open(None)

    def _open(self, place: LogPlace | None) -> None:
        reading = LineTrust(trusted=True, own_zone=True)
        self.source = SystemLog(
            self._path, place or LogPlace(boot_id="b"), reading, began=NOW - 3600, wall=lambda: WALL
        )
        self._log = KernelLog([self.source], NodeId("c/n"), lambda _: None)
        self._now = NOW

    def xids(self) -> list[int | str]:
        self._now += 10
        found = []
        for item in [*self._log.look(self._now), *self._log.flush(self._now)]:
            assert isinstance(item.news, Observed)
            if item.news.kind == "xid":
                found += item.news.count * [item.news.fields["number"]]
            elif item.news.kind == "agent.lines_lost":
                self.lost.append(item.news.text)
        return found

    def end(self) -> LogPlace:
        place = self._log.places[f"text:{self._path}"]
        assert isinstance(place, LogPlace)
        self._log.close()
        return place

    def files(self) -> list[one_file.OneFile]:
        return self.source._file._files

    def again(self, place: LogPlace) -> None:
        self._open(place)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "messages"


@pytest.fixture
def daemon(path: Path) -> Iterator[Daemon]:
    daemon = Daemon(path)
    yield daemon
    daemon.end()


@pytest.fixture
def watcher(path: Path, daemon: Daemon) -> Iterator[Watcher]:
    daemon.say()
    watcher = Watcher(path)
    assert watcher.xids() == []
    yield watcher
    watcher.end()


def pack(path: Path, *, same_time: bool = True) -> None:
    """As logrotate does it: the file's times go along."""
    stat = path.stat()
    packed = path.with_name(f"{path.name}.gz")
    with gzip.open(packed, "wb") as file:
        file.write(path.read_bytes())
    path.unlink()
    if same_time:
        os.utime(packed, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def test_what_a_daemon_writes_to_the_old_file_before_its_hup_is_read(
    path: Path, daemon: Daemon, watcher: Watcher
) -> None:
    path.rename(path.with_name("messages-20261119"))
    path.touch()
    assert watcher.xids() == []  # the rename itself has woken the agent
    daemon.say(79)
    assert watcher.xids() == [79]
    daemon.hup()
    daemon.say(63)
    assert watcher.xids() == [63]


def test_the_next_run_reads_on_in_the_old_file_too(path: Path, daemon: Daemon, watcher: Watcher) -> None:
    path.rename(path.with_name("messages-20261119"))
    path.touch()
    assert watcher.xids() == []
    place = watcher.end()
    daemon.say(79)
    daemon.hup()
    daemon.say(63)
    watcher.again(place)
    assert watcher.xids() == [79, 63]
    assert not watcher.lost


def test_the_old_file_is_packed_at_once_and_the_agent_dies_meanwhile(
    path: Path, daemon: Daemon, watcher: Watcher
) -> None:
    path.rename(path.with_name("messages.1"))
    path.touch()
    assert watcher.xids() == []
    place = watcher.end()
    daemon.say(79)
    daemon.hup()
    pack(path.with_name("messages.1"))
    watcher.again(place)
    assert watcher.xids() == [79]
    assert not watcher.lost


def test_an_old_file_is_let_go_when_it_is_silent_and_the_new_one_grows(
    path: Path, daemon: Daemon, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.rename(path.with_name("messages.1"))
    path.touch()
    clock = time.monotonic()
    monkeypatch.setattr("sickbay.agent.probes.log_file.time.monotonic", lambda: clock)
    assert watcher.xids() == []
    clock += 1000
    assert watcher.xids() == []
    daemon.say(79)  # a daemon that was never told: the new file has nothing in it
    assert watcher.xids() == [79]
    assert open_files(path.parent) == 2
    daemon.hup()
    daemon.say(63)
    assert watcher.xids() == [63]
    clock += log_file.QUIET + 1
    watcher.xids()
    assert open_files(path.parent) == 1


def open_files(folder: Path) -> int:
    """How many descriptors the watcher has there: the daemon's write."""
    count = 0
    for link in Path("/proc/self/fd").iterdir():
        try:
            flags = int((Path("/proc/self/fdinfo") / link.name).read_text().split("flags:")[1].split()[0], 8)
            count += str(link.readlink()).startswith(str(folder)) and flags & os.O_ACCMODE == os.O_RDONLY
        except (OSError, IndexError):
            continue
    return count


def test_the_files_that_it_holds_are_bounded(path: Path, daemon: Daemon, watcher: Watcher) -> None:
    for turn in range(30):
        path.rename(path.with_name(f"messages.{turn}"))
        daemon.hup()
        daemon.say(79)
        assert watcher.xids() == [79]
    assert open_files(path.parent) <= log_file.MOST_OLD + 1


@pytest.mark.parametrize("packed", [False, True], ids=["as they are", "packed"])
@pytest.mark.parametrize("alive", [False, True], ids=["the agent was down", "the agent stood still"])
def test_several_rotations_at_once_are_read_in_order(
    path: Path, daemon: Daemon, watcher: Watcher, packed: bool, alive: bool
) -> None:
    place = None if alive else watcher.end()
    for turn, number in enumerate((79, 63, 48)):
        daemon.say(number)
        for old in (3, 2, 1):  # the chain: .1 becomes .2
            for ending in ("", ".gz"):
                moved = path.with_name(f"messages.{old}{ending}")
                if moved.exists():
                    moved.rename(path.with_name(f"messages.{old + 1}{ending}"))
        path.rename(path.with_name("messages.1"))
        daemon.hup()
        if packed:
            pack(path.with_name("messages.1"))
        time.sleep(0.02)  # files of one moment have no order
        assert turn < 3
    daemon.say(94)
    if place is not None:
        watcher.again(place)
    assert watcher.xids() == [79, 63, 48, 94]
    assert not watcher.lost


@pytest.mark.parametrize("times", [True, False], ids=["with its times", "as another program does"])
def test_a_file_that_was_read_is_not_read_again_when_it_is_packed(
    path: Path, daemon: Daemon, watcher: Watcher, times: bool
) -> None:
    daemon.say(79)
    assert watcher.xids() == [79]
    path.rename(path.with_name("messages.1"))
    pack(path.with_name("messages.1"), same_time=times)
    daemon.hup()
    daemon.say(63)
    assert watcher.xids() == [63]
    path.rename(path.with_name("messages.2"))
    daemon.hup()
    assert watcher.xids() == []


def test_a_file_that_is_just_being_packed_is_read_once(path: Path, daemon: Daemon, watcher: Watcher) -> None:
    daemon.say(48)
    for _ in range(500):
        daemon.raw(f"{os.urandom(50).hex()}\n")
    assert watcher.xids() == [48]
    place = watcher.end()
    daemon.say(79)
    path.rename(path.with_name("messages.1"))
    daemon.hup()
    packed = gzip.compress(path.with_name("messages.1").read_bytes())
    time.sleep(0.02)
    path.with_name("messages.1.gz").write_bytes(packed[: len(packed) // 2])  # its times are set at the end
    watcher.again(place)
    assert watcher.xids() == [79]
    path.with_name("messages.1.gz").write_bytes(packed)
    path.with_name("messages.1").unlink()
    daemon.say(63)
    assert watcher.xids() == [63]


def test_an_old_file_from_before_the_agent_is_not_taken_for_one_that_was_missed(path: Path, daemon: Daemon) -> None:
    daemon.say(79)
    path.rename(path.with_name("messages.1"))
    path.touch()
    daemon.say(63)  # to the old one
    watcher = Watcher(path)
    assert watcher.xids() == []
    daemon.hup()
    path.rename(path.with_name("messages.2"))  # with nothing in it
    daemon.hup()
    daemon.say(48)
    assert watcher.xids() == [48]


def test_logs_with_similar_names_are_others(path: Path, daemon: Daemon, watcher: Watcher) -> None:
    path.with_name("messages-audit.log").write_text(f"kernel: {XID_79}\n")
    path.rename(path.with_name("messages.1"))
    daemon.hup()
    daemon.say(63)
    assert watcher.xids() == [63]


def test_an_older_copy_that_begins_alike_is_not_taken_for_what_was_read(
    path: Path, daemon: Daemon, watcher: Watcher
) -> None:
    path.with_name("messages.1").write_bytes(path.read_bytes() + f"kernel: {XID_79}\n".encode())
    os.utime(path.with_name("messages.1"), (WALL - 86_400, WALL - 86_400))
    place = watcher.end()
    path.rename(path.with_name("messages.2.xz"))
    path.with_name("messages.2.xz").unlink()
    daemon.hup()
    daemon.say(63)
    watcher.again(place)
    assert watcher.xids() == [63]
    assert ["could not be found" in text for text in watcher.lost] == [True]


def test_what_cannot_be_found_after_a_rotation_is_said(path: Path, daemon: Daemon, watcher: Watcher) -> None:
    place = watcher.end()
    daemon.say(79)
    path.rename(path.with_name("messages.1.xz"))
    path.with_name("messages.1.xz").unlink()
    daemon.hup()
    daemon.say(63)
    watcher.again(place)
    assert watcher.xids() == [63]
    assert ["could not be found" in text for text in watcher.lost] == [True]
    watcher.xids()
    assert len(watcher.lost) == 1


def test_a_file_that_is_removed_while_its_daemon_writes_is_read_on(
    path: Path, daemon: Daemon, watcher: Watcher
) -> None:
    path.unlink()
    daemon.say(79)
    assert watcher.xids() == [79]
    daemon.hup()
    daemon.say(63)
    assert watcher.xids() == [63]


def test_half_a_line_at_a_rotation_gets_its_other_half(path: Path, daemon: Daemon, watcher: Watcher) -> None:
    daemon.raw(f"kernel: {XID_79[:30]}")
    assert watcher.xids() == []
    path.rename(path.with_name("messages.1"))
    path.touch()
    assert watcher.xids() == []
    daemon.raw(f"{XID_79[30:]}\n")
    assert watcher.xids() == [79]


def test_a_line_whose_end_never_comes_is_told_when_its_file_is_over(
    path: Path, daemon: Daemon, watcher: Watcher
) -> None:
    daemon.raw(f"kernel: {XID_79}")
    assert watcher.xids() == []
    shutil.copy(path, path.with_name("messages.1"))
    os.truncate(path, 0)
    assert watcher.xids() == [79]


# --- copied and cut off


def copytruncate(path: Path, name: str) -> None:
    shutil.copy(path, path.with_name(name))
    os.truncate(path, 0)


@pytest.mark.parametrize("packed", [False, True], ids=["as it is", "packed"])
@pytest.mark.parametrize("alive", [False, True], ids=["the agent was down", "the agent was there"])
def test_a_copy_is_read_to_its_end(path: Path, daemon: Daemon, watcher: Watcher, packed: bool, alive: bool) -> None:
    place = None if alive else watcher.end()
    daemon.say(79)
    copytruncate(path, "messages.1")
    if packed:
        pack(path.with_name("messages.1"))
    for _ in range(10):
        daemon.say(63)
    if place is not None:
        watcher.again(place)
    assert watcher.xids() == [79, *(10 * [63])]
    assert not watcher.lost


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("grows", [False, True])
def test_a_file_that_is_cut_off_while_an_older_one_is_still_read_is_found_in_its_copy(
    path: Path, daemon: Daemon, watcher: Watcher, packed: bool, grows: bool
) -> None:
    place = watcher.end()
    for _ in range(2 * one_file.CHUNK // 40):
        daemon.say()
    path.rename(path.with_name("messages.1"))
    daemon.hup()
    time.sleep(0.02)
    daemon.say(79)
    watcher.again(place)
    assert not list(watcher.source.lines(NOW))  # a part of the old one
    assert watcher.source.behind
    time.sleep(0.02)
    written = path.stat()
    copytruncate(path, "messages.2")
    copy = path.with_name("messages.2")
    os.utime(copy, ns=(written.st_atime_ns, written.st_mtime_ns))  # as logrotate leaves it
    if packed:
        pack(copy)
        os.utime(path.with_name("messages.2.gz"), ns=(written.st_atime_ns, written.st_mtime_ns))
    time.sleep(0.02)
    for _ in range(1 + 3 * grows):
        daemon.say(63)
    assert watcher.xids() == [79] + (1 + 3 * grows) * [63]


@pytest.mark.parametrize("turned", [False, True], ids=["of which a part is read", "of which nothing is read"])
def test_what_was_told_of_a_file_that_is_cut_off_is_told_of_its_copy(path: Path, turned: bool) -> None:
    def writes(*lines: str) -> None:
        with path.open("a") as file:
            file.writelines(f"{line}\n" for line in lines)

    def reads(file: LogFile) -> list[tuple[str, bool]]:
        found = [(text, file.was_told(at)) for at, text in file.lines()]
        while file.behind:
            found += [(text, file.was_told(at)) for at, text in file.lines()]
        return found

    writes("begin")
    before = LogFile(path, rotated=True)
    reads(before)
    begin = before.place
    many = [f"a line of the log {number}" for number in range(one_file.CHUNK // 10)]
    writes(*many)
    if turned:
        path.rename(path.with_name("messages.1"))
        path.touch()
    time.sleep(0.02)
    writes("one", "two")
    assert [text for text, _ in reads(before)] == [*many, "one", "two"]
    told = before.place
    before.close()
    writes("three")
    time.sleep(0.02)
    after = LogFile(path, begin, told=told, rotated=True)
    first = [(text, after.was_told(at)) for at, text in after.lines()]
    assert after.behind
    written = path.stat()
    copytruncate(path, "messages.2")
    os.utime(path.with_name("messages.2"), ns=(written.st_atime_ns, written.st_mtime_ns))
    time.sleep(0.02)
    writes("four")
    found = [*first, *reads(after)]
    assert [text for text, _ in found] == [*many, "one", "two", "three", "four"]
    assert [text for text, is_told in found if not is_told] == ["three", "four"]
    after.close()


def test_two_copies_are_read_in_order(path: Path, daemon: Daemon, watcher: Watcher) -> None:
    place = watcher.end()
    daemon.say(79)
    copytruncate(path, "messages.2")
    time.sleep(0.02)
    daemon.say(63)
    copytruncate(path, "messages.1")
    time.sleep(0.02)
    daemon.say(48)
    watcher.again(place)
    assert watcher.xids() == [79, 63, 48]


def test_lines_that_were_cut_off_before_they_were_read_are_said_to_be_lost(
    path: Path, daemon: Daemon, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_file, "CHUNK", 64)
    monkeypatch.setattr("sickbay.agent.probes.kernel_log.CHUNKS", 1)
    for _ in range(20):
        daemon.say()
    watcher.xids()
    os.truncate(path, 0)
    watcher.xids()
    assert ["before we had read it to its end" in text for text in watcher.lost] == [True]


def test_a_place_of_which_nothing_is_known_does_not_fit_every_file(path: Path) -> None:
    path.write_text("a" * 100 + "\n")
    inode = path.stat().st_ino
    with path.open("r+") as file:
        file.truncate(0)
        file.write(f"kernel: {XID_79}\n" + "b" * 200 + "\n")
    watcher = Watcher(path)
    watcher.again(LogPlace(boot_id="b", offset=101, inode=inode))
    assert watcher.xids() == [79]


def test_an_inode_that_was_given_to_another_file_is_no_proof(path: Path, watcher: Watcher) -> None:
    place = watcher.end()
    size = path.stat().st_size
    with path.open("r+") as file:
        file.truncate(0)
        file.write(f"kernel: {XID_79}\n")
        file.write("x" * (size - file.tell() - 1) + "\n")  # to the byte as long as it was
    watcher.again(place)
    assert watcher.xids() == [79]


def test_a_file_system_that_was_mounted_anew_does_not_tell_its_lines_again(daemon: Daemon, watcher: Watcher) -> None:
    daemon.say(79)
    assert watcher.xids() == [79]
    (file,) = watcher.files()
    file.device += 1  # the same file, on a device that has another number now
    daemon.say(63)
    assert watcher.xids() == [63]
    assert watcher.xids() == []


# --- trouble


@pytest.mark.parametrize("why", [errno.EMFILE, errno.EIO, errno.ESTALE])
@pytest.mark.parametrize("count", range(8))
def test_a_call_that_fails_in_the_middle_of_a_rotation_loses_and_doubles_nothing(
    path: Path, daemon: Daemon, watcher: Watcher, monkeypatch: pytest.MonkeyPatch, why: int, count: int
) -> None:
    daemon.say(79)
    path.rename(path.with_name("messages.1"))
    path.touch()
    daemon.say(63)
    daemon.hup()
    daemon.say(48)
    layer = _Failing(why, count)
    monkeypatch.setattr(one_file, "os", layer)
    found = []
    with suppress(OSError):
        found = watcher.xids()
    layer.left = -1
    found += watcher.xids() + watcher.xids()
    assert found == [79, 63, 48]
    assert not watcher.lost


class _Failing:
    """The n-th call to the disk fails, once."""

    def __init__(self, why: int, count: int) -> None:
        self._why, self.left = why, count

    def __getattr__(self, name: str) -> object:
        real = getattr(os, name)
        if name not in {"open", "pread", "fstat"}:
            return real

        def call(*args: object) -> object:
            self.left -= 1
            if self.left == -1:
                raise OSError(self._why, os.strerror(self._why))
            return real(*args)

        return call


@pytest.mark.parametrize("packed", [False, True], ids=["as it is", "packed"])
@pytest.mark.parametrize("copied", [False, True], ids=["moved away", "copied and cut off"])
@pytest.mark.parametrize("alive", [False, True], ids=["the agent was down", "the agent was there"])
def test_a_file_that_was_empty_when_it_was_seen_last_is_found_in_what_became_of_it(
    path: Path, daemon: Daemon, packed: bool, copied: bool, alive: bool
) -> None:
    watcher = Watcher(path)
    assert watcher.xids() == []
    place = None if alive else watcher.end()
    time.sleep(0.02)
    daemon.say(79)
    if copied:
        copytruncate(path, "messages.1")
    else:
        path.rename(path.with_name("messages.1"))
        daemon.hup()
    if packed:
        pack(path.with_name("messages.1"))
    time.sleep(0.02)
    daemon.say(63)
    if place is not None:
        watcher.again(place)
    assert watcher.xids() == [79, 63]
    assert watcher.xids() == []
    assert not watcher.lost
    watcher.end()
