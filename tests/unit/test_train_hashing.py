"""Files that are hashed while another writes them, and read again where that cannot be."""

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sickbay.train import disk
from sickbay.train.hashing import BUFFER, HashedFile, HashedFiles, hash_writes


class Plain:
    """A file system as DCP's writers have one."""

    @contextmanager
    def create_stream(self, path: Path, mode: str) -> Iterator[IO[bytes]]:
        with path.open(mode) as stream:
            yield stream

    def rename(self, path: Path, new_path: Path) -> None:
        path.rename(new_path)

    def rm_file(self, path: Path) -> None:
        path.unlink()

    def mkdir(self, path: Path) -> None:
        path.mkdir(parents=True)

    def exists(self, path: Path) -> bool:
        return path.exists()


class Writer:
    def __init__(self) -> None:
        self.fs = Plain()


@pytest.fixture
def files() -> HashedFiles:
    hashed = hash_writes(Writer())
    assert hashed is not None
    return hashed


PIECES = st.lists(st.sampled_from([0, 1, 100, BUFFER - 1, BUFFER, BUFFER + 1, 3 * BUFFER]), max_size=6)


@settings(deadline=None)  # it is the disk that is slow
@given(sizes=PIECES)
def test_the_sum_of_what_is_written_in_order_is_known_and_true(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int]
) -> None:
    path = tmp_path_factory.mktemp("sums") / "data"
    file = HashedFile(path)
    with io.BufferedWriter(file, BUFFER) as stream:
        for number, size in enumerate(sizes):
            assert stream.write(bytes([number]) * size) == size
            assert stream.tell() == sum(sizes[: number + 1])
    assert file.sum == disk.measure(path)


def test_the_sum_of_a_file_that_was_removed_is_forgotten(files: HashedFiles, tmp_path: Path) -> None:
    path = tmp_path / "data"
    with files.create_stream(path, "wb") as stream:
        stream.write(b"x" * 100)
    files.rm_file(path)
    path.write_bytes(b"y" * 100)
    assert files.sum_of(path) == disk.measure(path)


def test_a_file_may_be_an_array_of_numbers_as_well(tmp_path: Path) -> None:
    file = HashedFile(tmp_path / "data")
    with file:
        file.write(memoryview(bytearray(80)).cast("d"))
    assert file.sum == disk.measure(tmp_path / "data")


@pytest.mark.parametrize("how", ["seek", "truncate", "beside"])
def test_what_was_not_written_in_order_is_measured(files: HashedFiles, tmp_path: Path, how: str) -> None:
    path = tmp_path / "data"
    with files.create_stream(path, "wb") as stream:
        stream.write(b"x" * 100)
        if how == "seek":
            stream.seek(10)
            stream.write(b"y")
        elif how == "truncate":
            stream.flush()
            stream.truncate(50)
        else:
            with path.open("ab") as other:
                other.write(b"z")
    assert files.sum_of(path) == disk.measure(path)


def test_the_sum_follows_a_file_to_its_name_and_ends_with_it(files: HashedFiles, tmp_path: Path) -> None:
    aside, path = tmp_path / "data.tmp", tmp_path / "data"
    for text in (b"first", b"second and longer"):
        with files.create_stream(aside, "wb") as stream:
            stream.write(text)
        if files.exists(path):
            files.rm_file(path)
        files.rename(aside, path)
        assert files.sum_of(path) == disk.measure(path)
    path.write_bytes(b"somebody else")
    assert files.sum_of(path) == disk.measure(path)
    with files.create_stream(path, "rb") as stream:
        assert stream.read() == b"somebody else"


def test_no_directory_is_made_where_the_one_above_is_gone(files: HashedFiles, tmp_path: Path) -> None:
    files.mkdir(tmp_path / "step")
    files.mkdir(tmp_path / "step")
    with pytest.raises(FileNotFoundError):
        files.mkdir(tmp_path / "gone" / "step")


def test_a_writer_without_a_file_system_is_left_as_it_is() -> None:
    writer = object()
    assert hash_writes(writer) is None


FULL = """
import resource, sys
from pathlib import Path
from sickbay.train.hashing import HashedFiles
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
files, path = HashedFiles(None), Path(sys.argv[1])
try:
    with files.create_stream(path, "wb") as stream:
        try:
            stream.write(bytes(10_000_000))
        except OSError:
            raise RuntimeError("unexpected pos 704 vs 598") from None
except OSError as error:
    print(error.strerror, path.stat().st_size)
"""


def test_the_error_of_a_write_is_told_whatever_the_writer_makes_of_it(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "data")], check=True, capture_output=True, text=True, timeout=60
    )
    assert ran.stdout.split() == ["File", "too", "large", "4096"]


def test_what_is_closed_is_synced(tmp_path: Path) -> None:
    """A pipe cannot be synced: closing one shows that it is tried."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    file = HashedFile(tmp_path / "pipe")
    with pytest.raises(OSError, match="Invalid argument"):
        file.close()
    assert file.closed
    os.close(reader)
