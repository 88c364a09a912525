"""Files of checkpoints on the disks of other ranks: what is given, what is taken, and what is refused."""

import errno
import logging
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.support.peer_rig import (
    NAME,
    PLACE,
    SECRET,
    Gate,
    Proxy,
    arriving,
    fetch,
    guests,
    put,
    source_of,
    visible,
)
from tests.support.waiting import until

from sickbay.train import disk, peer_server
from sickbay.train.layout import CheckpointName, RankPart, create_part, part_path, read_part, step_path
from sickbay.train.peer_channel import Channel
from sickbay.train.peer_server import SMALL
from sickbay.train.peers import Peer, RemoteFile, Server, reachable_host

pytestmark = pytest.mark.slow

BAD_NAMES = (
    "", ".", "..", "../rank-3.shard", "rank-3.shard/", "/etc/passwd", "a/b", "rank-3.shard\0", "rank-3.shard\n", "\0",
    ".incoming", "rank-03.shard", "rank--1.shard", "rank-٣.shard", "rank-3.shard.x", "RUN", "rank-3",
    "manifest.json", "x" * 10_000,
)  # fmt: skip
BAD_PLACES = ((0, 1), (-1, 1), (1, -1), (True, 1), ("1", 1), (1, 2**63), (1, 1.5), (None, 1), (1, "../../x"))


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MASTER_ADDR", "SICKBAY_PEER_HOST"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "near").mkdir()
    return tmp_path / "near"


@pytest.fixture
def server(root: Path) -> Iterator[Server]:
    server = Server(root, SECRET, reserve=0)
    yield server
    server.close()


@pytest.fixture
def peer(server: Server) -> Peer:
    return Peer(server.address, SECRET)


def raw(server: Server, request: dict[str, object]) -> dict[str, object]:
    """What a rank of the job hears that checks nothing before it asks."""
    host, _, port = server.address.rpartition(":")
    channel = Channel(socket.create_connection((host, int(port))), 5.0)
    try:
        channel.ask(SECRET, request)
        return channel.hear()
    finally:
        channel.close()


# --- given and taken


@pytest.mark.parametrize("size", [0, 1, SMALL, SMALL + 1, 9_000_001])
def test_what_is_put_lies_where_the_layout_says_and_is_given_back(
    root: Path, peer: Peer, tmp_path: Path, size: int
) -> None:
    source, total = source_of(tmp_path, size)
    peer.put(PLACE, NAME, source, total)
    assert visible(root) == [f"attempt-{PLACE.attempt}/step-{PLACE.step}/{NAME}"]
    assert disk.measure(step_path(root, PLACE) / NAME) == total
    assert fetch(peer) == total
    assert arriving(root) == []


def test_a_sealed_part_follows_its_shard_and_says_what_it_said(root: Path, peer: Peer, tmp_path: Path) -> None:
    source, total = source_of(tmp_path, 1000)
    disk.make(step_path(tmp_path, PLACE))
    create_part(tmp_path, PLACE, 3, RankPart({NAME: total}, "bytes", "a run"))
    sealed = part_path(tmp_path, PLACE, 3)
    peer.put(PLACE, NAME, source, total)
    peer.put(PLACE, sealed.name, sealed, disk.measure(sealed))
    assert read_part(root, PLACE, 3) == RankPart({NAME: total}, "bytes", "a run")


def test_a_file_is_read_in_pieces_of_any_size_and_then_no_more(peer: Peer, tmp_path: Path) -> None:
    source, total = source_of(tmp_path, 200_000)
    peer.put(PLACE, NAME, source, total)
    with peer.open(PLACE, NAME) as file:
        buffer = bytearray(100_000)
        pieces = [file.read(1), bytes(buffer[: file.readinto(buffer)]), file.read(10**15), file.read(), file.read(5)]
        assert file.readinto(buffer) == 0
    assert b"".join(pieces) == source.read_bytes()
    assert [len(piece) for piece in pieces] == [1, 100_000, 99_999, 0, 0]


def test_what_was_left_unread_is_no_end_of_the_file(peer: Peer, tmp_path: Path) -> None:
    source, total = source_of(tmp_path, 200_000)
    peer.put(PLACE, NAME, source, total)
    with peer.open(PLACE, NAME) as file:
        file.read(10)
    with pytest.raises(OSError, match=f"peer {peer.address}: attempt-2/step-40/rank-3.shard"):
        file.read(10)


def test_a_second_put_of_the_same_is_done_without_a_second_write(root: Path, peer: Peer, tmp_path: Path) -> None:
    source, total = source_of(tmp_path, 100_000)
    peer.put(PLACE, NAME, source, total)
    before = (step_path(root, PLACE) / NAME).stat()
    peer.put(PLACE, NAME, source, total)
    after = (step_path(root, PLACE) / NAME).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


@pytest.mark.parametrize("size", [100_000, 99_999])
def test_a_second_put_of_something_else_is_refused(root: Path, peer: Peer, tmp_path: Path, size: int) -> None:
    first, second = source_of(tmp_path, 100_000, "first"), source_of(tmp_path, size, "second")
    peer.put(PLACE, NAME, *first)
    with pytest.raises(FileExistsError, match=f"peer {peer.address}: .* has another file of that name"):
        peer.put(PLACE, NAME, *second)
    assert disk.measure(step_path(root, PLACE) / NAME) == first[1]


def test_who_asks_hears_that_it_is_busy_while_it_hashes_what_it_has(
    root: Path, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_server, "BUSY_EVERY", 0.01)
    source, total = source_of(tmp_path, 64_000_000)
    step_path(root, PLACE).mkdir(parents=True)
    os.link(source, step_path(root, PLACE) / NAME)
    asked = {"do": "put", **PLACE._asdict(), "name": NAME, **total._asdict()}
    assert raw(server, asked) == {"busy": True}
    put(server.address, source, total)


def test_what_is_not_there_is_said_by_name(peer: Peer) -> None:
    with pytest.raises(FileNotFoundError, match=f"peer {peer.address}: attempt-2/step-40/rank-3.shard: .*no such file"):
        peer.open(PLACE, NAME)


def test_nobody_there_is_an_error_that_names_the_peer(server: Server) -> None:
    server.close()
    with pytest.raises(ConnectionRefusedError, match=f"peer {server.address}: "):
        Peer(server.address, SECRET).open(PLACE, NAME)


@pytest.mark.parametrize("address", ["", "host", "host:", "host:x", ":5", "host:0", "host:70000", "host:٣", "a..b:5"])
def test_an_address_that_is_none_is_said(address: str) -> None:
    with pytest.raises(OSError, match="is no address"):
        Peer(address, SECRET).open(PLACE, NAME)


# --- what is refused


@pytest.mark.parametrize("name", BAD_NAMES)
def test_no_name_leaves_the_root(server: Server, tmp_path: Path, name: str) -> None:
    source, total = source_of(tmp_path, 10)
    peer, before = Peer(server.address, SECRET), sorted(tmp_path.rglob("*"))
    with pytest.raises(OSError, match="is no file of a checkpoint"):
        peer.put(PLACE, name, source, total)
    with pytest.raises(OSError, match="is no file of a checkpoint"):
        peer.open(PLACE, name)
    if len(name) < 1000:
        for do in ("put", "open"):
            asked = {"do": do, **PLACE._asdict(), "name": name, **total._asdict()}
            assert raw(server, asked)["errno"] == errno.EINVAL
    else:
        with pytest.raises(OSError, match=r"hung up|reset|[Bb]roken pipe"):
            raw(server, {"do": "open", **PLACE._asdict(), "name": name})
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("place", BAD_PLACES)
def test_no_number_leaves_the_root(server: Server, place: tuple[int, int], tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(OSError, match="is no file of a checkpoint"):
        Peer(server.address, SECRET).open(CheckpointName(*place), NAME)
    asked = {"do": "put", "attempt": place[0], "step": place[1], "name": NAME, "size": 0, "sha256": ""}
    assert raw(server, asked)["errno"] == errno.EINVAL
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "asked",
    [{}, {"do": "remove"}, {"do": ["open", 1]}, {"do": "put"}, {"do": "put", "size": -1, "sha256": ""},
     {"do": "put", "size": 10**1000, "sha256": ""},
     {"do": "put", "size": 1.0, "sha256": ""}, {"do": "put", "size": 1, "sha256": None}],
)  # fmt: skip
def test_what_another_version_might_ask_is_refused_in_words(server: Server, asked: dict[str, object]) -> None:
    answer = raw(server, {**PLACE._asdict(), "name": NAME, **asked})
    assert (answer["errno"], "version" in str(answer["why"])) == (errno.EPROTO, True)


@pytest.mark.parametrize("level", ["attempt-2", "attempt-2/step-40", f"attempt-2/step-40/{NAME}"])
def test_no_link_leads_out_of_the_root(root: Path, peer: Peer, tmp_path: Path, level: str) -> None:
    outside, (source, total) = tmp_path / "outside", source_of(tmp_path, 10)
    (outside / "step-40").mkdir(parents=True)
    for path in (outside / "step-40" / NAME, outside / NAME):
        path.write_bytes(b"not for you")
    (root / level).parent.mkdir(parents=True, exist_ok=True)
    (root / level).symlink_to(outside / NAME if level.endswith("shard") else outside)
    with pytest.raises(OSError, match=r"leads out|symbolic links"):
        peer.open(PLACE, NAME)
    with pytest.raises(OSError, match=r"leads out|symbolic links"):
        peer.put(PLACE, NAME, source, total)
    assert (outside / NAME).read_bytes() == (outside / "step-40" / NAME).read_bytes() == b"not for you"


def test_a_pipe_in_place_of_a_file_hangs_nobody(root: Path, peer: Peer) -> None:
    step_path(root, PLACE).mkdir(parents=True)
    os.mkfifo(step_path(root, PLACE) / NAME)
    with pytest.raises(OSError, match="it is no file there"):
        peer.open(PLACE, NAME)


def test_contents_that_are_not_what_was_announced_leave_nothing(root: Path, peer: Peer, tmp_path: Path) -> None:
    source, total = source_of(tmp_path, 100_000)
    with pytest.raises(OSError, match=f"peer {peer.address}: .* another checksum") as refused:
        peer.put(PLACE, NAME, source, total._replace(sha256="0" * 64))
    assert refused.value.errno == errno.EBADMSG
    assert (sorted(root.iterdir()), arriving(root)) == ([root / ".incoming"], [])


def test_a_source_of_another_size_is_not_sent(root: Path, peer: Peer, tmp_path: Path) -> None:
    source, total = source_of(tmp_path, 10)
    with pytest.raises(OSError, match="has 10 bytes, not 11: nothing was sent"):
        peer.put(PLACE, NAME, source, total._replace(size=11))
    with pytest.raises(FileNotFoundError, match="nowhere"):
        peer.put(PLACE, NAME, tmp_path / "nowhere", total)
    assert visible(root) == []


def test_a_source_that_becomes_shorter_on_the_way_leaves_nothing(root: Path, server: Server, tmp_path: Path) -> None:
    source, total = source_of(tmp_path, 64_000_000)
    gate = Gate("up", 1_000_000)
    with Proxy(server.address, gate) as proxy, ThreadPoolExecutor(1) as pool:
        ended = pool.submit(put, proxy.address, source, total)
        assert gate.reached.wait(10)
        os.truncate(source, 2_000_000)
        gate.opened.set()
        with pytest.raises(OSError, match="became shorter while it was sent"):
            ended.result(20)
        until(lambda: guests(server) == 0)
    assert (visible(root), arriving(root)) == ([], [])


def test_a_file_that_becomes_shorter_while_it_is_given_is_an_error(root: Path, server: Server, tmp_path: Path) -> None:
    source, total = source_of(tmp_path, 64_000_000)
    put(server.address, source, total)
    with Peer(server.address, SECRET).open(PLACE, NAME, idle=5) as file:
        file.read(1000)
        os.truncate(step_path(root, PLACE) / NAME, 2_000_000)
        with pytest.raises(ConnectionError, match=f"hung up after [0-9]+ of {total.size} bytes"):
            file.read()


def test_a_disk_without_room_says_so_in_words(root: Path, tmp_path: Path) -> None:
    source, total = source_of(tmp_path, 1000)
    found = os.statvfs(root)
    server = Server(root, SECRET, reserve=found.f_blocks * found.f_frsize)
    try:
        with pytest.raises(OSError, match=rf"peer {server.address}: .* no room: .* GB are free, .* stay free") as full:
            put(server.address, source, total)
    finally:
        server.close()
    assert full.value.errno == errno.ENOSPC
    assert list(root.iterdir()) == []


def test_without_a_word_about_it_a_part_of_the_disk_stays_free(root: Path, tmp_path: Path) -> None:
    found, (source, _) = os.statvfs(root), source_of(tmp_path, 0)
    size = int(found.f_bavail * found.f_frsize * 0.9999)
    os.truncate(source, size)  # a hole
    server = Server(root, SECRET)
    try:
        with pytest.raises(OSError, match="no room"):
            put(server.address, source, disk.Sum(size, "0" * 64))
    finally:
        server.close()


def test_on_a_disk_that_was_unmounted_nothing_is_made(root: Path, peer: Peer, tmp_path: Path) -> None:
    root.rename(tmp_path / "elsewhere")
    root.mkdir()
    with pytest.raises(OSError, match="is its disk still mounted"):
        peer.put(PLACE, NAME, *source_of(tmp_path, 10))
    assert list(root.iterdir()) == []


def test_what_a_dead_server_had_begun_to_receive_is_swept_away_and_what_a_living_one_receives_is_not(
    root: Path, server: Server, tmp_path: Path
) -> None:
    source, total = source_of(tmp_path, 64_000_000)
    gate = Gate("up", 8_000_000)
    with Proxy(server.address, gate) as proxy, ThreadPoolExecutor(1) as pool:
        ended = pool.submit(put, proxy.address, source, total)
        until(lambda: any(path.stat().st_size for path in arriving(root)))
        (root / ".incoming" / "rank-9.shard.dead").write_bytes(b"half")
        Server(root, SECRET).close()
        assert [path.name[:13] for path in arriving(root)] == [f"{NAME}."]
        gate.opened.set()
        ended.result(20)
    assert fetch(Peer(server.address, SECRET)) == total


# --- many at once


def test_many_clients_at_once_are_served_whole(root: Path, server: Server, tmp_path: Path) -> None:
    sources = [source_of(tmp_path, 300_000 + n, f"source-{n}") for n in range(32)]

    def there_and_back(n: int) -> bool:
        put(server.address, *sources[n], name=f"rank-{n}.shard")
        return fetch(Peer(server.address, SECRET), name=f"rank-{n}.shard") == sources[n][1]

    with ThreadPoolExecutor(32) as pool:
        assert all(pool.map(there_and_back, range(32)))
    assert (len(visible(root)), arriving(root)) == (32, [])


def test_of_many_who_put_the_same_all_succeed_and_of_different_ones_the_first(
    root: Path, server: Server, tmp_path: Path
) -> None:
    same, other = source_of(tmp_path, 2_000_000, "same"), source_of(tmp_path, 2_000_000, "other")

    def brought(n: int) -> str:
        try:
            put(server.address, *(other if n % 4 == 0 else same))
        except FileExistsError:
            return "refused"
        return (other if n % 4 == 0 else same)[1].sha256

    with ThreadPoolExecutor(16) as pool:
        ends = list(pool.map(brought, range(16)))
    kept = disk.measure(step_path(root, PLACE) / NAME).sha256
    assert set(ends) == {kept, "refused"}
    assert ends.count(kept) in {4, 12}
    assert (visible(root), arriving(root)) == ([f"attempt-2/step-40/{NAME}"], [])


def test_more_than_it_can_serve_are_told_to_come_again(
    server: Server, peer: Peer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_server, "SERVED", 2)
    source, total = source_of(tmp_path, 64_000_000)
    peer.put(PLACE, NAME, source, total)
    until(lambda: guests(server) == 0)
    with peer.open(PLACE, NAME), peer.open(PLACE, NAME):
        with pytest.raises(OSError, match="it serves 2 others already") as busy:
            peer.open(PLACE, NAME)
        assert busy.value.errno == errno.EBUSY
    until(lambda: guests(server) == 0)
    assert fetch(peer) == total


# --- where it listens, and its end


def test_it_listens_at_loopback_where_nobody_speaks_of_other_machines(server: Server) -> None:
    assert server.address.startswith("127.0.0.1:")
    assert reachable_host() == "127.0.0.1"


@pytest.mark.parametrize("master", ["127.0.0.1", "localhost"])
def test_it_listens_at_loopback_where_the_master_is(master: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", master)
    assert reachable_host() in {"127.0.0.1", "::1"}


def test_it_listens_where_the_way_to_the_master_begins(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))  # an address for documents: nothing is sent there
        except OSError as error:
            pytest.skip(f"this machine has no way to anywhere: {error}")
        ours = probe.getsockname()[0]
    for master in (ours, "198.51.100.1"):
        monkeypatch.setenv("MASTER_ADDR", master)
        assert reachable_host() == ours
    server = Server(root, SECRET)
    try:
        host, _, port = server.address.rpartition(":")
        assert host == ours
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", int(port)), 5)
    finally:
        server.close()


def test_a_person_has_the_last_word_on_where_it_listens(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "198.51.100.1")
    monkeypatch.setenv("SICKBAY_PEER_HOST", "127.0.0.5")
    server = Server(root, SECRET)
    server.close()
    assert server.address.startswith("127.0.0.5:")


def test_a_name_of_the_master_that_is_loopback_only_here_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found = [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", ("127.0.1.1", 9))]  # as /etc/hosts has it on Debian
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    monkeypatch.setenv("MASTER_ADDR", "node-0")
    with caplog.at_level(logging.WARNING, "sickbay.train"):
        assert reachable_host().startswith("127.")
    assert "set SICKBAY_PEER_HOST" in caplog.text


def test_an_address_of_the_sixth_version_stands_in_brackets(root: Path, tmp_path: Path) -> None:
    try:
        server = Server(root, SECRET, "::1", reserve=0)
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    try:
        assert server.address.startswith("[::1]:")
        source, total = source_of(tmp_path, 100_000)
        put(server.address, source, total)
        assert fetch(Peer(server.address, SECRET)) == total
    finally:
        server.close()


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "0", "[::]", "::ffff:0.0.0.0", "::%lo"])
def test_it_never_listens_at_every_address(root: Path, host: str) -> None:
    with pytest.raises(OSError, match="set SICKBAY_PEER_HOST"):
        Server(root, SECRET, host)


@pytest.mark.parametrize("host", ["a..b", "198.51.100.77"])
def test_an_address_that_is_not_ours_is_one_line_that_says_what_to_do(root: Path, host: str) -> None:
    with pytest.raises(OSError, match=f"{host}.*set SICKBAY_PEER_HOST"):
        Server(root, SECRET, host)


def test_a_master_that_nobody_knows_is_one_line_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "a..b")
    with pytest.raises(OSError, match=r"MASTER_ADDR 'a\.\.b' is not known here .*set SICKBAY_PEER_HOST"):
        reachable_host()


def test_a_secret_that_could_be_guessed_and_a_root_that_is_not_there_are_refused(root: Path) -> None:
    with pytest.raises(ValueError, match="at least 16 characters"):
        Server(root, "secret")
    with pytest.raises(FileNotFoundError):
        Server(root / "nowhere", SECRET)


def of_peers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("sickbay-peer")]


def test_closing_leaves_no_thread_and_no_socket(root: Path, tmp_path: Path) -> None:
    source, total = source_of(tmp_path, 64_000_000)
    before = len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").exists() else None
    server, gate = Server(root, SECRET, reserve=0), Gate("up", 1_000_000)
    with (
        socket.create_connection(("127.0.0.1", int(server.address.rpartition(":")[2]))),  # says nothing
        Proxy(server.address, gate) as proxy,
        ThreadPoolExecutor(1) as pool,
    ):
        ended = pool.submit(put, proxy.address, source, total)
        assert gate.reached.wait(10)
        server.close()
        server.close()
        assert of_peers() == []
        gate.opened.set()
        with pytest.raises(OSError, match=f"peer {proxy.address}"):
            ended.result(20)
    assert (visible(root), arriving(root)) == ([], [])
    if before is not None:
        assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_forked_child_that_closes_it_leaves_it_to_its_parent(server: Server, peer: Peer, tmp_path: Path) -> None:
    source, total = source_of(tmp_path, 64_000_000)
    peer.put(PLACE, NAME, source, total)
    with peer.open(PLACE, NAME) as file:
        child = os.fork()
        if child == 0:
            server.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert disk.Hashing(file).finish() == total
    assert fetch(peer) == total


def test_a_remote_file_that_hangs_up_early_says_so_each_time_it_is_asked() -> None:
    pieces = [b"abc"]

    def receive(buffer: memoryview) -> int:
        piece = pieces.pop() if pieces else b""
        buffer[: len(piece)] = piece
        return len(piece)

    file = RemoteFile(10, receive, lambda: None, "peer x")
    for _ in range(2):
        with pytest.raises(ConnectionResetError, match="peer x: it hung up after 3 of 10 bytes"):
            file.read()
