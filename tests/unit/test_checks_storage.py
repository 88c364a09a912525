"""The look at shared storage: what passes, what fails, and what hangs."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.support.waiting import until

from sickbay.agent.checks import Exercise
from sickbay.agent.checks.storage import StorageLook, answer_check
from sickbay.model.checkup import StorageSeen, Verdict
from sickbay.model.fleet import Incarnation, NodeId
from sickbay.model.protocol import RunCheck

HANGS = "tests.unit.test_checks_storage:hang"


def hang(wants: dict[str, object]) -> None:
    """In the child: as whoever asks a file server that is down."""
    del wants
    time.sleep(600)


def look(*paths: Path | str, within: float = 20.0) -> list[StorageSeen]:
    return list(StorageLook(within=within)([str(path) for path in paths], time.monotonic() + 60))


def test_a_directory_that_can_be_written_passes_and_nothing_is_left_in_it(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("theirs")
    (found,) = look(tmp_path)
    assert (found.path, found.verdict, found.because, found.empty) == (str(tmp_path), Verdict.PASS, "", False)
    assert [one.name for one in tmp_path.iterdir()] == ["data"]
    (empty := tmp_path / "empty").mkdir()
    assert look(empty)[0].empty


def test_what_cannot_be_used_fails_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    missing, file, loop = look(tmp_path / "none" / "deeper", tmp_path / "file", tmp_path / "loop")
    assert (missing.verdict, missing.because) == (Verdict.FAIL, "it does not exist: is it mounted?")
    assert (file.verdict, file.because) == (Verdict.FAIL, "it is no directory")
    assert loop.verdict is Verdict.FAIL
    (closed,) = look("/proc/self")
    assert closed.verdict is Verdict.FAIL, "nothing can be written there, whoever asks"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_it_is_written_as_whom_it_belongs_to() -> None:
    """A file server trusts root less than anybody else; and what its owner may not write is not proven."""
    with TemporaryDirectory() as home:  # not below what pytest keeps to itself
        Path(home).chmod(0o711)
        theirs, locked = Path(home, "theirs"), Path(home, "locked")
        for place, mode in ((theirs, 0o700), (locked, 0o500)):
            place.mkdir()
            os.chown(place, 65534, 65534)
            place.chmod(mode)
        written, unproven = look(theirs, locked)
    assert (written.verdict, written.because) == (Verdict.PASS, "")
    assert unproven.verdict is Verdict.PASS
    assert "not proven" in unproven.because


@pytest.mark.slow
def test_one_that_hangs_is_found_within_its_time_and_keeps_no_other_waiting(tmp_path: Path) -> None:
    """A pipe in its place hangs whoever opens it, as a server that is down does."""
    os.mkfifo(tmp_path / "pipe")
    hung, well = look(tmp_path / "pipe", tmp_path, within=2.0)
    assert (hung.verdict, hung.because) == (Verdict.FAIL, "it does not answer within 2 s")
    assert well.verdict is Verdict.PASS


@pytest.fixture
def stuck() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield child
    child.kill()
    child.wait()


def test_nobody_is_sent_after_one_that_not_even_a_kill_has_ended(
    tmp_path: Path, stuck: subprocess.Popen[bytes]
) -> None:
    looks = StorageLook(within=20.0)
    looks._hung[str(tmp_path)] = stuck.pid  # as the kernel leaves one that waits for its server
    (found,) = looks([str(tmp_path)], time.monotonic() + 60)
    assert (found.verdict, found.because) == (Verdict.FAIL, "it still does not answer to an earlier look")
    stuck.kill()
    until(lambda: looks([str(tmp_path)], time.monotonic() + 60)[0].verdict is Verdict.PASS)


def test_a_look_that_dies_is_no_pass(tmp_path: Path) -> None:
    (found,) = StorageLook(within=20.0, job="no.such.module:at_all")([str(tmp_path)], time.monotonic() + 60)
    assert found.verdict is Verdict.COULD_NOT_RUN
    (found,) = StorageLook(within=0.5, job=HANGS)([str(tmp_path)], time.monotonic() + 60)
    assert found.verdict is Verdict.FAIL


def test_a_mount_that_the_agents_container_does_not_show_is_no_pass(tmp_path: Path) -> None:
    """Below it lies an empty directory of the container's, which answers at once."""
    for place in ("proc/1", "fsx", "data"):
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "proc/1/mounts").write_text("srv:/x /fsx nfs4 rw 0 0\n/dev/vda / ext4 rw 0 0\n")
    fsx, below, data = StorageLook(str(tmp_path))(["/fsx", "/fsx/llama", "/data"], time.monotonic() + 60)
    assert {fsx.verdict, below.verdict} == {Verdict.COULD_NOT_RUN}
    assert "HostToContainer" in fsx.because
    assert data.verdict is Verdict.PASS


ME, NODE = Incarnation(instance_id="i", boot_id="b"), NodeId("c/n0")
SICK = [Exercise("memory", 1, lambda _: "broken")]


def test_the_verdict_is_of_the_hardware_and_level_0_exercises_none() -> None:
    seen = (StorageSeen(path="/fsx", verdict=Verdict.FAIL, because="it does not exist"),)

    def answer(level: int, *storage: str) -> tuple[Verdict, tuple[StorageSeen, ...], int]:
        order = RunCheck(check="k", level=level, storage=storage)
        said = answer_check(order, SICK, time.monotonic() + 9, lambda _paths, _until: seen, NODE, ME)
        return said.verdict, said.storage, len(said.tests)

    assert answer(0, "/fsx") == (Verdict.PASS, seen, 0)
    assert answer(1, "/fsx") == (Verdict.FAIL, seen, 1)
    assert answer(1) == (Verdict.FAIL, (), 1)
