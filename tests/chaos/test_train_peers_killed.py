"""Ranks that are killed or frozen in the middle of a transfer: an error in time at the other end, and no half file."""

import errno
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import pytest
from tests.support.peer_rig import DOWN, NAME, PLACE, SECRET, UP, Gate, Proxy, arriving, fetch, guests, put
from tests.support.waiting import until

from sickbay.train import disk, peer_shelf
from sickbay.train.layout import step_path
from sickbay.train.peers import Peer, Server

from tests.support.peer_rig import source_of, visible  # isort: skip

pytestmark = pytest.mark.slow

IDLE = 1.0
SIZE = 40_000_000  # more than all buffers between two processes hold
RANK = """
import resource, sys
from pathlib import Path
from sickbay.train import disk, peer_shelf
from sickbay.train.layout import CheckpointName
from sickbay.train.peers import Peer, Server
what, secret, place, name, idle = sys.argv[1], sys.argv[2], CheckpointName(2, 40), "rank-3.shard", 1.0
if what == "serve":
    if limit := int(sys.argv[4]):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    print(Server(Path(sys.argv[3]), secret, reserve=0, idle=idle).address, flush=True)
    sys.stdin.read()
    sys.exit()
try:
    if what == "put":
        source = Path(sys.argv[4])
        Peer(sys.argv[3], secret).put(place, name, source, disk.measure(source), idle=idle)
    else:
        with Peer(sys.argv[3], secret).open(place, name, idle=idle) as file:
            assert disk.Hashing(file).finish().size == file.size
    print("whole", flush=True)
except OSError as error:
    print("OSError", error, flush=True)
"""


class Ranks:
    """Processes of a test, all ended with it."""

    def __init__(self) -> None:
        self.all: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str | Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", RANK, arguments[0], SECRET, *arguments[1:]]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.all.append(process)
        return process

    def serve(self, root: Path, limit: int = 0) -> tuple[subprocess.Popen[str], str]:
        process = self.start("serve", root, str(limit))
        return process, process.stdout.readline().strip()

    def end(self) -> None:
        for process in self.all:
            process.kill()
            process.communicate()


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ranks]:
    for name in ("MASTER_ADDR", "SICKBAY_PEER_HOST"):
        monkeypatch.delenv(name, raising=False)
    ranks = Ranks()
    yield ranks
    ranks.end()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "near").mkdir()
    return tmp_path / "near"


def words_of(process: subprocess.Popen[str]) -> str:
    return process.communicate(timeout=30)[0]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
@pytest.mark.parametrize("act", ["put", "open"])
def test_a_client_that_is_lost_half_way_leaves_nothing_and_keeps_no_place(
    ranks: Ranks, root: Path, tmp_path: Path, act: str, how: signal.Signals
) -> None:
    source, total = source_of(tmp_path, SIZE)
    gate = Gate(UP if act == "put" else DOWN, 4_000_000)
    with closing(Server(root, SECRET, reserve=0, idle=IDLE)) as server, Proxy(server.address, gate) as proxy:
        if act == "open":
            put(server.address, source, total)
        client = ranks.start(act, proxy.address, source)
        assert gate.reached.wait(30)
        client.send_signal(how)
        gate.opened.set()
        began = time.monotonic()
        until(lambda: guests(server) == 0)
        assert time.monotonic() - began < IDLE + 4
        assert visible(root) == ([] if act == "put" else [f"{PLACE}/{NAME}"])
        assert arriving(root) == []
        client.send_signal(signal.SIGCONT)
        assert words_of(client).split(" [")[0] == ("" if how is signal.SIGKILL else "OSError")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
@pytest.mark.parametrize("act", ["put", "open"])
def test_a_server_that_is_lost_half_way_is_an_error_in_time(
    ranks: Ranks, root: Path, tmp_path: Path, act: str, how: signal.Signals
) -> None:
    source, total = source_of(tmp_path, SIZE)
    process, address = ranks.serve(root)
    if act == "open":
        put(address, source, total)
    gate = Gate(UP if act == "put" else DOWN, 4_000_000)
    with Proxy(address, gate) as proxy, ThreadPoolExecutor(1) as pool:
        peer = Peer(proxy.address, SECRET)
        do = partial(peer.put, PLACE, NAME, source, total) if act == "put" else partial(fetch, peer)
        ended = pool.submit(do, idle=IDLE)
        assert gate.reached.wait(30)
        process.send_signal(how)
        gate.opened.set()
        began = time.monotonic()
        with pytest.raises(OSError, match=f"peer {proxy.address}: {PLACE}/{NAME}: "):
            ended.result(30)
        assert time.monotonic() - began < IDLE + 4
        assert visible(root) == ([] if act == "put" else [f"{PLACE}/{NAME}"])
    process.send_signal(signal.SIGCONT)
    if how is signal.SIGSTOP:
        until(lambda: not arriving(root))
        assert fetch_or_none(address) == (None if act == "put" else total)
    Server(root, SECRET).close()
    assert arriving(root) == []
    assert visible(root) == ([] if act == "put" else [f"{PLACE}/{NAME}"])


def fetch_or_none(address: str) -> disk.Sum | None:
    try:
        return fetch(Peer(address, SECRET))
    except FileNotFoundError:
        return None


# Down come 48 bytes of greeting, a word of 50 that it may be sent, and the last one.
@pytest.mark.parametrize(("way", "after"), [(UP, 1000), (UP, SIZE - 100_000), (UP, SIZE), (DOWN, 100)])
def test_a_server_that_is_killed_anywhere_has_all_of_a_file_or_none(
    ranks: Ranks, root: Path, tmp_path: Path, way: str, after: int
) -> None:
    source, total = source_of(tmp_path, SIZE)
    process, address = ranks.serve(root)
    gate = Gate(way, after)
    with Proxy(address, gate) as proxy, ThreadPoolExecutor(1) as pool:
        ended = pool.submit(put, proxy.address, source, total, idle=IDLE)
        assert gate.reached.wait(30)
        process.kill()
        process.wait()
        gate.opened.set()
        with suppress(OSError):  # the last word may have been on the way
            ended.result(30)
            assert visible(root)
    if visible(root):
        assert disk.measure(step_path(root, PLACE) / NAME) == total
    with closing(Server(root, SECRET, reserve=0)) as server:
        assert arriving(root) == []
        put(server.address, source, total)
        assert fetch(Peer(server.address, SECRET)) == total


def test_a_server_that_is_frozen_before_it_says_a_word_is_an_error_in_time(ranks: Ranks, root: Path) -> None:
    process, address = ranks.serve(root)
    process.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=f"peer {address}: "):
        fetch(Peer(address, SECRET), idle=IDLE)
    assert IDLE * 0.9 < time.monotonic() - began < IDLE + 4


def test_a_disk_that_fails_half_way_is_told_as_that_and_not_as_a_connection_that_was_lost(
    ranks: Ranks, root: Path, tmp_path: Path
) -> None:
    source, total = source_of(tmp_path, SIZE)
    _, address = ranks.serve(root, limit=5_000_000)
    for _ in range(3):
        with pytest.raises(OSError, match=f"peer {address}: {PLACE}/{NAME}: File too large") as told:
            put(address, source, total, idle=10.0)
        assert told.value.errno == errno.EFBIG
    assert (visible(root), arriving(root)) == ([], [])


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Sixty-four megabytes, mounted for this test."""
    directory, mount = tmp_path / "disk", shutil.which("mount")
    directory.mkdir()
    command = [str(mount), "-t", "tmpfs", "-o", "size=64m", "sickbay-test", str(directory)]
    made = subprocess.run(command, check=False, capture_output=True, text=True) if mount else None
    if made is None or made.returncode:
        pytest.skip(f"no small disk could be mounted here: {made.stderr.strip() if made else 'no mount command'}")
    yield directory
    subprocess.run([str(shutil.which("umount")), "-l", str(directory)], check=True)


@pytest.mark.parametrize(("reserve", "why"), [(16 << 20, "its disk has no room"), (0, "No space left on device")])
def test_a_disk_that_others_fill_meanwhile_keeps_its_reserve(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reserve: int, why: str
) -> None:
    monkeypatch.setattr(peer_shelf, "SYNC_EVERY", 1 << 20)
    source, total = source_of(tmp_path, 40 << 20)
    gate = Gate(UP, 8 << 20)
    with (
        closing(Server(small_disk, SECRET, "127.0.0.1", reserve=reserve)) as server,
        Proxy(server.address, gate) as proxy,
        ThreadPoolExecutor(1) as pool,
    ):
        if not reserve:
            monkeypatch.setattr(peer_shelf, "SYNC_EVERY", 1 << 30)
        ended = pool.submit(put, proxy.address, source, total)
        assert gate.reached.wait(30)
        (small_disk / "others").write_bytes(bytes(32 << 20))
        gate.opened.set()
        with pytest.raises(OSError, match=f"peer {proxy.address}: {PLACE}/{NAME}: {why}") as full:
            ended.result(30)
        assert full.value.errno == errno.ENOSPC
        until(lambda: guests(server) == 0)
        assert (visible(small_disk), arriving(small_disk)) == ([], [])
        (small_disk / "others").unlink()
        put(server.address, source, total)
