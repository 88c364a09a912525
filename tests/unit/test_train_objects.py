"""What every object store promises, as one suite over fsspec's memory, a directory, and S3 over HTTP."""

import errno
import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import pytest
from tests.support.object_rigs import ENVIRONMENT, ODD, DirectoryRig, MemoryRig, Rig, S3Rig, Service, running_service

from sickbay.train import disk, objects
from sickbay.train.errors import CheckpointError, SourceDamaged
from sickbay.train.objects import ahead, payload

pytestmark = pytest.mark.slow

MB = 1024 * 1024
KEY = "attempt-2/step-50/rank-0.shard"
SIZES = (0, 1, 300_000, 3 * MB + 7)


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service() as running:
        yield running


@pytest.fixture(params=["memory", "file", "s3"])
def rig(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    monkeypatch.setattr(ahead, "CHUNK", 256 * 1024)
    if request.param == "memory":
        return MemoryRig()
    if request.param == "file":
        return DirectoryRig(tmp_path)
    service = request.getfixturevalue("service")
    for name, value in {**ENVIRONMENT, "AWS_ENDPOINT_URL": service.url}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sickbay.train.objects.s3_upload.PART", MB)
    monkeypatch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", 1)
    return S3Rig(service)


def some(size: int, seed: int = 1) -> bytes:
    return hashlib.shake_128(bytes([seed])).digest(size)


def sum_of(content: bytes) -> disk.Sum:
    return disk.Sum(len(content), hashlib.sha256(content).hexdigest())


def read(store: objects.Objects, key: str = KEY) -> bytes:
    with store.open(key) as file:
        return file.read()


def cut_up(content: bytes) -> Iterator[memoryview]:
    """One buffer, used again for every part."""
    buffer = bytearray(100_000)
    for start in range(0, len(content), len(buffer)):
        part = content[start : start + len(buffer)]
        buffer[: len(part)] = part
        yield memoryview(buffer)[: len(part)]


# --- round trips


def test_what_was_put_comes_back_and_is_told_with_its_sum(rig: Rig) -> None:
    store = rig.connect("pre/fix")
    for size in SIZES:
        content = some(size)
        halves: list[bytes | bytearray] = [content[: size // 2], bytearray(content[size // 2 :])]
        assert store.put(KEY, halves) == sum_of(content)
        assert store.size_of(KEY) == size
        with store.open(KEY) as file:
            hashing = disk.Hashing(cast(disk.ByteStream, file))
            hashing.read(size // 3)
            assert hashing.finish() == sum_of(content)
        assert rig.names() == [f"pre/fix/{KEY}"]


def test_a_generator_may_use_its_memory_again(rig: Rig) -> None:
    store = rig.connect()
    for size in SIZES:
        content = some(size)
        assert store.put(KEY, cut_up(content)) == sum_of(content)
        assert read(store) == content
        assert store.put(KEY, cut_up(content), sum_of(content)) == sum_of(content)


def test_a_file_is_put_and_its_progress_is_told(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> None:
    store, source = rig.connect(), tmp_path_factory.mktemp("near") / "rank-0.shard"
    for size in SIZES:
        content = some(size)
        source.write_bytes(content)
        done: list[int] = []
        store.put_file(KEY, source, sum_of(content), done.append)
        assert sum(done) == size
        assert read(store) == content


def test_another_one_takes_the_place_of_what_was_there(rig: Rig) -> None:
    store = rig.connect()
    for content in (some(3 * MB), some(10), some(2 * MB, seed=2), b""):
        store.put(KEY, [content])
        assert read(store) == content
    assert rig.names() == [KEY]


def test_prefix_and_keys_may_hold_odd_characters(rig: Rig) -> None:
    store = rig.connect(ODD)
    for content in (b"small", some(2 * MB)):
        store.put(f"{ODD}/{ODD}", [content])
        assert read(store, f"{ODD}/{ODD}") == content
    assert store.list("") == store.list(ODD) == [f"{ODD}/{ODD}"]
    assert rig.names() == [f"{ODD}/{ODD}/{ODD}"]
    store.remove_all(ODD)
    assert (store.list(""), store.size_of(f"{ODD}/{ODD}")) == ([], None)


def test_several_threads_use_one_store_at_once(rig: Rig) -> None:
    store = rig.connect()

    def there_and_back(number: int) -> bool:
        content = some(MB + number * 300_000, seed=number)
        store.put(f"step-{number}/shard", cut_up(content) if number % 2 else [content])
        return read(store, f"step-{number}/shard") == content

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(there_and_back, range(6)))


# --- looking, listing, removing


def test_what_is_not_there_is_told_apart_from_what_cannot_be_looked_at(rig: Rig) -> None:
    store = rig.connect("pre")
    assert (store.size_of(KEY), store.list(""), store.list("attempt-2")) == (None, [], [])
    with pytest.raises(FileNotFoundError, match="there is no such object"):
        store.open(KEY)
    store.put(KEY, [b"x"])
    assert store.size_of("attempt-2/step-50") is None


def test_a_bucket_that_is_missing_is_neither_empty_nor_made(rig: Rig, tmp_path: Path) -> None:
    if isinstance(rig, DirectoryRig):
        store = objects.connect(f"file://{tmp_path}/nowhere")
    else:
        store = objects.connect(rig.url.replace("bucket-", "no-bucket-"))
    for act in (
        lambda: store.size_of(KEY),
        lambda: store.open(KEY),
        lambda: store.list(""),
        lambda: store.list("attempt-1"),
        lambda: store.remove_all("attempt-1"),
    ):
        with pytest.raises(OSError, match="there is no") as caught:
            act()
        assert (type(caught.value), caught.value.errno) == (OSError, errno.ENODEV)
    if isinstance(rig, MemoryRig):
        return  # its buckets are made by whoever writes
    for content in (b"x", some(2 * MB)):
        with pytest.raises(OSError, match="there is no") as caught:
            store.put(KEY, [content])
        assert caught.value.errno == errno.ENODEV
    assert not (tmp_path / "nowhere").exists()


def test_a_prefix_ends_at_a_slash(rig: Rig) -> None:
    store, beside = rig.connect("pre"), rig.connect("prefix")
    keys = ["step-5/a", "step-5/b/c", "step-50/a", "step-5.old/a", "step-5"[:-1] + "/a"]
    for key in keys:
        store.put(key, [b"x"])
    beside.put("step-5/a", [b"x"])
    assert store.list("step-5") == ["step-5/a", "step-5/b/c"]
    assert store.list("") == sorted(keys)
    store.remove_all("step-5")
    store.remove_all("step-5")
    assert store.list("") == [*sorted(keys)[:1], "step-5.old/a", "step-50/a"]
    assert beside.list("") == ["step-5/a"]
    with pytest.raises(ValueError, match="no key"):
        store.remove_all("")


@pytest.mark.slow
def test_more_than_a_thousand_are_listed_and_removed(rig: Rig) -> None:
    names = [f"pre/step-1/rank-{number}.shard" for number in range(1003)]
    if isinstance(rig, S3Rig):
        backend: Any = import_module("moto.s3.models").s3_backends["123456789012"]["aws"]
        for name in names:
            backend.put_object(rig.bucket, name, b"")
    else:
        for name in names:
            rig.write(name, b"")
    store = rig.connect("pre")
    store.put("step-10/rank-0.shard", [b"x"])
    assert len(store.list("")) == 1004
    assert store.list("step-1") == sorted(name.removeprefix("pre/") for name in names)
    store.remove_all("step-1")
    assert rig.names() == ["pre/step-10/rank-0.shard"]


def test_a_key_leads_nowhere_else(rig: Rig) -> None:
    store = rig.connect()
    for key in ("", "/a", "a/", "a//b", "../a", "a/./b", "a/.."):
        for act in (store.size_of, store.open, lambda key: store.put(key, [b""])):
            with pytest.raises(ValueError, match="no key"):
                act(key)


# --- failures


def damaged_by(act: Callable[[], object]) -> str:
    with pytest.raises(SourceDamaged) as caught:
        act()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("before", [None, b"before"])
def test_a_file_that_is_not_what_was_written_is_named_and_not_stored(
    rig: Rig, before: bytes | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    store, source = rig.connect(), tmp_path_factory.mktemp("near") / "rank-0.shard"
    if before is not None:
        store.put(KEY, [before])
    for size in (10, 3 * MB):
        content = some(size)
        for found, why in (
            (content[:-1] + bytes([content[-1] ^ 1]), f"{source} is corrupt"),
            (content[:-1], f"{source} is torn ({size - 1} of {size} bytes)"),
            (content + b"x", f"{source} is too long ({size + 1} of {size} bytes)"),
        ):
            source.write_bytes(found)
            assert why in damaged_by(partial(store.put_file, KEY, source, sum_of(content)))
        assert "corrupt" in damaged_by(partial(store.put, KEY, [some(size, seed=9)], sum_of(content)))
        assert "torn" in damaged_by(partial(store.put, KEY, cut_up(content[:-1]), sum_of(content)))
    assert rig.names() == ([] if before is None else [KEY])
    assert before is None or read(store) == before
    if isinstance(rig, S3Rig):
        assert rig.uploads() == []


def test_a_file_that_is_missing_is_named(rig: Rig, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        rig.connect().put_file(KEY, tmp_path / "gone", disk.Sum(1, ""))
    assert caught.value.filename in {tmp_path / "gone", str(tmp_path / "gone")}


def test_a_failure_amid_leaves_what_was_there(rig: Rig) -> None:
    store = rig.connect()
    store.put(KEY, [b"before"])

    def parts(count: int) -> Iterator[bytes]:
        for _ in range(count):
            yield some(100_000)
        raise RuntimeError("the training failed")

    for count in (0, 1, 25):
        with pytest.raises(RuntimeError, match="the training failed"):
            store.put(KEY, parts(count))
    assert (rig.names(), read(store)) == ([KEY], b"before")
    if isinstance(rig, S3Rig):
        assert rig.uploads() == []


@pytest.mark.parametrize("kind", ["memory.MemoryFileSystem", "local.LocalFileSystem"])
def test_what_reads_back_as_something_else_was_not_stored(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = MemoryRig() if kind.startswith("memory") else DirectoryRig(tmp_path)
    place = f"fsspec.implementations.{kind}.cat_file"
    monkeypatch.setattr(place, lambda _fs, _path, start, end: bytes(end - start))
    with pytest.raises(OSError, match="does not hold what was written into it") as caught:
        rig.connect().put(KEY, [some(1000)])
    assert caught.value.errno == errno.EIO
    assert rig.names() == []


def test_a_directory_that_cannot_be_listed_is_not_taken_for_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DirectoryRig(tmp_path).connect()
    store.put(KEY, [b"x"])
    scandir = os.scandir

    def refused(path: Any) -> Any:
        if str(path).endswith("step-50"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)
    for look in (partial(store.list, ""), partial(store.list, "attempt-2"), partial(store.remove_all, "attempt-2")):
        with pytest.raises(PermissionError):
            look()


def test_one_that_changes_while_it_is_read_is_an_error_and_never_a_mixture(rig: Rig) -> None:
    store, old, new = rig.connect(), some(4 * MB), some(4 * MB, seed=2)
    store.put(KEY, [old])
    with store.open(KEY) as file:
        head = file.read(10)
        rig.write(KEY, new)
        with pytest.raises(OSError, match="was replaced while it was read") as caught:
            head += file.read()
        with pytest.raises(OSError, match="was replaced"):  # and it stays one
            file.read(1)
    assert caught.value.errno == errno.ESTALE
    assert head == old[:10]
    assert read(store) == new


def test_one_that_is_removed_while_it_is_read_is_an_error(rig: Rig) -> None:
    store = rig.connect()
    store.put(KEY, [some(4 * MB)])
    with store.open(KEY) as file:
        file.read(10)
        store.remove_all("attempt-2")
        with pytest.raises(OSError, match=r"was replaced|there is no such object"):
            file.read()


KILLED = """
import sys, pathlib
from sickbay.train import disk, objects
if sys.argv[1].startswith("s3"):
    from sickbay.train.objects import s3_upload
    s3_upload.PART = 1 << 20
store = objects.connect(sys.argv[1])
def parts():
    for number in range(40):
        yield bytes(300_000)
    print("begun", flush=True)
    sys.stdin.read()
store.put("attempt-2/step-50/rank-0.shard", parts())
"""


def test_of_a_process_that_is_killed_nothing_is_visible_and_the_rest_can_be_removed(rig: Rig) -> None:
    if isinstance(rig, MemoryRig):
        pytest.skip("memory does not outlive its process")
    store = rig.connect("pre")
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, f"{rig.url}/pre"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "begun\n"
        process.kill()
    assert (store.list(""), store.size_of(KEY)) == ([], None)
    with pytest.raises(FileNotFoundError):
        store.open(KEY)
    left = [key for key, _ in store.unfinished("attempt-2")] if isinstance(rig, S3Rig) else rig.names()  # type: ignore[attr-defined]
    assert len(left) == 1
    assert isinstance(rig, S3Rig) or left[0].endswith(".partial")
    store.remove_all("attempt-2/step-5")
    assert store.list("") == []
    store.remove_all("attempt-2/step-50")
    assert (rig.names(), rig.uploads() if isinstance(rig, S3Rig) else []) == ([], [])


AT_EXIT = """
import atexit, sys, threading
from sickbay.train import objects
if sys.argv[1].startswith("s3"):
    from sickbay.train.objects import s3_upload
    s3_upload.PART = 1 << 20
store = objects.connect(sys.argv[1])
if len(sys.argv) > 2:
    store.size_of("x/y")
@atexit.register
def last():
    store.put("last", [bytes(3 << 20)])
    with store.open("last") as file:
        print(len(file.read()))
"""


@pytest.mark.parametrize("used_before", [False, True])
def test_a_process_that_ends_may_still_store_its_last_checkpoint(rig: Rig, used_before: bool) -> None:
    if isinstance(rig, MemoryRig):
        pytest.skip("memory does not outlive its process")
    command = [sys.executable, "-c", AT_EXIT, rig.url, *(["used"] if used_before else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (f"{3 << 20}\n", "")
    assert rig.connect().size_of("last") == 3 << 20


def test_in_a_directory_every_name_on_the_way_to_an_object_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync, synced = os.fsync, set[str]()

    def recorded(handle: int) -> None:
        fsync(handle)
        synced.add(str(Path(f"/proc/self/fd/{handle}").readlink()))

    monkeypatch.setattr(os, "fsync", recorded)
    DirectoryRig(tmp_path).connect().put(KEY, [b"x"])
    directories = {str(path) for path in Path(KEY).parents}
    assert {str(tmp_path / name) for name in directories} <= synced


# --- urls


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("bucket/prefix", "is written as s3://BUCKET/PREFIX"),
        ("", "is written as s3://BUCKET/PREFIX"),
        ("s3:///prefix", "names no bucket"),
        ("s3://", "names no bucket"),
        ("s3://b u/x", "names no bucket"),
        ("memory://", "write memory://BUCKET/PREFIX"),
        ("gs:///x", "write gs://BUCKET/PREFIX"),
        ("file://relative/path", "write file:///DIRECTORY"),
        ("file:///", "write file:///DIRECTORY"),
        ("file:///a::memory://b", "write file:///DIRECTORY"),
        ("nonsense://x/y", "nonsense"),
        ("s3a://bucket/x", "write s3://bucket/x"),
        ("S3N://bucket/x", "write s3://bucket/x"),
        ("https://bucket.s3.amazonaws.com/x", "is written as s3://BUCKET/PREFIX"),
        ("http://minio:9000/bucket/x", ", with AWS_ENDPOINT_URL where it is not Amazon"),
        ("s3://bucket/a/../b", "'..'"),
        ("s3://bucket/a\nb", "control characters"),
        ("s3://AKIAX:hushhush@bucket/x", "user before its @"),
        ("s3://hushhush@bucket/x", "user before its @"),
        ("az://c:hushhush@account/x", "user before its @"),
        ("abfs://c:hushhush@account/x", "user before its @"),
        ("s3://bucket/x?X-Amz-Signature=hushhush", "query"),
    ],
)
def test_a_url_that_cannot_be_is_refused_in_one_line_without_its_secrets(url: str, why: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        objects.connect(url)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "hushhush" not in f"{caught.value!r} {caught.value.__cause__!r}"


@pytest.mark.parametrize(
    ("url", "library", "install"),
    [
        ("s3://bucket/x", "boto3", "pip install 'sickbay[s3]'"),
        ("memory://bucket/x", "fsspec", "pip install 'sickbay[objects]'"),
    ],
)
def test_a_library_that_is_missing_is_named_with_what_to_install(
    url: str, library: str, install: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("sickbay.train.objects.")]:
        # The package's own names, too: an import binds them anew, and what comes back later is the modules of before.
        monkeypatch.delattr(objects, name.rpartition(".")[2])
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(CheckpointError) as caught:
        objects.connect(url)
    assert library in str(caught.value)
    assert install in str(caught.value)


def test_the_url_that_is_kept_is_the_one_that_was_given_without_its_last_slash(rig: Rig) -> None:
    assert rig.connect("a/b/").url == f"{rig.url}/a/b"


# --- read-ahead and its threads


def numbered(start: int, size: int, _unwanted: threading.Event) -> bytes:
    return bytes((start + index) % 251 for index in range(size))


def test_ranges_arrive_in_order_and_only_so_many_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "CHUNK", 100)
    threads, quota = ahead.Threads(4, "test"), ahead.Quota(300)
    asked: list[int] = []

    def fetch(start: int, size: int, unwanted: threading.Event) -> bytes:
        asked.append(start)
        return numbered(start, size, unwanted)

    first = ahead.ReadAhead(1050, fetch, threads, quota, width=8)
    assert first.read(1) == b"\0"
    second = ahead.ReadAhead(1050, fetch, threads, quota, width=8)
    assert second.read(1) == b"\0"  # the quota is used up, but what is needed now is always fetched
    assert len(asked) <= 1 + 3 + 1
    whole = b"".join(iter(lambda: second.read(70), b""))
    assert b"\0" + whole == numbered(0, 1050, threading.Event())
    first.close()
    assert quota.take(300)


def test_threads_take_work_after_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = ahead.Threads(2, "test")
    assert threads.submit(lambda: 1).result() == 1
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert threads.submit(lambda: 2).result(timeout=10) == 2


def test_where_no_thread_can_be_started_the_caller_does_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refused)
    assert ahead.Threads(2, "test").submit(threading.current_thread).result() is threading.current_thread()


def test_a_part_is_hashed_before_the_whole_so_that_a_flipped_bit_shows() -> None:
    held = payload.HeldPayload([b"abc", b"", b"def"])
    piece = held.piece(4)
    assert piece is not None
    assert (piece.size, piece.read_at(1, 9), piece.read_at(3, 9)) == (4, b"bc", b"d")
    assert piece.sha256 == hashlib.sha256(b"abcd").digest()
    assert held.piece(4).size == 2
    assert held.piece(4) is None
    assert held.sum() == sum_of(b"abcdef")
