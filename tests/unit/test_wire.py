"""Files that are replaced as a whole, and commands that end at their deadline with all that they started."""

import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sickbay.agent.command_journal import CommandJournal, JournaledCommand
from sickbay.agent.fence import FenceKeeper
from sickbay.agent.setting_values import SelfFence
from sickbay.wire.commands import run_bounded
from sickbay.wire.files import replace_file, replacing

Synced = list[tuple[str, bool]]  # what was synced: a file or a directory; whether the new file had its name then


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Synced]:
    seen: list[tuple[str, int]] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        kind = "directory" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file"
        seen.append((kind, os.fstat(handle).st_ino))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    return lambda path: [(kind, inode in {path.stat().st_ino, path.parent.stat().st_ino}) for kind, inode in seen]


WHOLE = [("file", True), ("directory", True)]


def test_a_durable_file_is_synced_and_then_the_name_that_leads_to_it(
    tmp_path: Path, synced: Callable[[Path], Synced]
) -> None:
    path = tmp_path / "new" / "file"
    replace_file(path, b"1")
    assert synced(path) == WHOLE
    replace_file(path, b"2", durable=False)
    assert synced(path) == [("file", False), ("directory", True)]
    assert path.read_bytes() == b"2"


def test_that_a_node_is_fenced_outlives_a_power_cut(tmp_path: Path, synced: Callable[[Path], Synced]) -> None:
    wants = SelfFence(after=10.0, command=("true",), probe=("false",))
    keeper = FenceKeeper(wants, tmp_path, "b1", lambda *_: None, run=lambda *_: 1, beside=lambda act: act())
    keeper.turn(0.0, heard=False)
    for second in range(1, 9):
        keeper.turn(5.0 * second, heard=False)
    assert keeper.fenced
    assert synced(tmp_path / "fence.json")[-2:] == WHOLE


def test_commands_that_were_carried_out_outlive_a_power_cut(tmp_path: Path, synced: Callable[[Path], Synced]) -> None:
    path = tmp_path / "state" / "commands"
    journal = CommandJournal(path)
    journal.note(JournaledCommand(id="c1"))
    assert synced(path) == WHOLE
    journal.note(JournaledCommand(id="c2"))
    assert synced(path) == [*WHOLE, ("file", True)]
    journal.compact()
    assert synced(path)[-2:] == WHOLE


def test_what_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(TypeError), replacing(path) as file:
        file.writelines([b"half", None])  # type: ignore[list-item]
    (tmp_path / "directory").mkdir()
    with pytest.raises(OSError, match="directory"):
        replace_file(tmp_path / "directory", b"x")
    assert path.read_bytes() == b"old"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["directory", "file"]


def test_a_replaced_file_is_its_owners_only(tmp_path: Path) -> None:
    replace_file(tmp_path / "secret", b"x")
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600


SLEEPER = "sleep 600 & echo $!; "


def lives(pid: str) -> bool:
    """Whether it is still there after a moment in which a killed one ends."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{int(pid)}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        if state in "ZX":
            return False
        time.sleep(0.01)
    return True


def test_a_command_that_does_not_end_is_killed_with_all_that_it_started() -> None:
    began = time.monotonic()
    ended = run_bounded(["sh", "-c", SLEEPER + "wait"], 0.5)
    assert ended.code is None
    assert time.monotonic() - began < 5
    assert not lives(ended.out)


@pytest.mark.parametrize("spare", [False, True])
def test_what_a_command_left_behind_lives_on_only_if_it_may(spare: bool) -> None:
    ended = run_bounded(["sh", "-c", SLEEPER], 10.0, spare=spare)
    assert ended.code == 0
    assert lives(ended.out) == spare
    if spare:
        os.kill(int(ended.out), 9)


def test_of_much_output_the_end_is_read() -> None:
    ended = run_bounded(["sh", "-c", "yes | head -c 9000000; echo end; echo error >&2"], 30.0, merged=True)
    assert len(ended.out) == 4 << 20
    assert ended.out.endswith("\nend\nerror\n")
    assert ended.err == ""
