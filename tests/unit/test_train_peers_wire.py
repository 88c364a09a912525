"""What strangers and men in the middle can do to a transfer between ranks: end it, and nothing else."""

import hashlib
import json
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.peer_rig import DOWN, NAME, PLACE, SECRET, UP, Gate, Proxy, Rule, arriving, fetch, guests, put
from tests.support.waiting import until

from sickbay.train import disk, peer_channel, peer_server
from sickbay.train.layout import step_path
from sickbay.train.peer_channel import CHALLENGE, MAGIC
from sickbay.train.peer_server import STRANGERS
from sickbay.train.peers import Peer, Server

from tests.support.peer_rig import source_of, visible  # isort: skip

pytestmark = pytest.mark.slow

SIZE = 300_000
HELLO = len(MAGIC) + CHALLENGE


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
    server = Server(root, SECRET, reserve=0, idle=5.0)
    yield server
    server.close()


def knock(server: Server) -> socket.socket:
    host, _, port = server.address.rpartition(":")
    return socket.create_connection((host, int(port)), 10)


def hears(connection: socket.socket) -> bytes:
    """All that comes until the other side hangs up."""
    heard = b""
    with suppress(ConnectionResetError):
        while some := connection.recv(65536):
            heard += some
    return heard


def request_on(connection: socket.socket) -> bytes:
    """The frame in which a client asks for something, without its challenge."""
    heard = b""
    while len(heard) < CHALLENGE + 4 or len(heard) < CHALLENGE + 4 + int.from_bytes(heard[CHALLENGE:][:4], "big") + 32:
        heard += connection.recv(65536)
    return heard[CHALLENGE:]


def impostor(answer: Callable[[socket.socket], None]) -> tuple[socket.socket, str, threading.Thread]:
    """Something that listens where a server is expected, for one connection."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(10)
            answer(connection)

    thread = threading.Thread(target=serve)
    thread.start()
    return listener, "{}:{}".format(*listener.getsockname()), thread


def deceive(answer: Callable[[socket.socket], None], act: Callable[[str], object]) -> None:
    listener, address, thread = impostor(answer)
    try:
        act(address)
    finally:
        thread.join(20)
        listener.close()


# --- a wire that is cut, slow, or changes what it carries


def change(direction: str, position: int, what: Callable[[bytes, int], bytes]) -> Rule:
    """One change to the stream, where that byte is."""

    def rule(way: str, offset: int, chunk: bytes) -> bytes:
        at = position - offset
        return what(chunk, at) if way == direction and 0 <= at < len(chunk) else chunk

    return rule


def flip(chunk: bytes, at: int) -> bytes:
    return chunk[:at] + bytes([chunk[at] ^ 0x40]) + chunk[at + 1 :]


def repeat(chunk: bytes, at: int) -> bytes:
    return chunk[: at + 1] + chunk[at : at + 1] + chunk[at + 1 :]


def lose(chunk: bytes, at: int) -> bytes:
    return chunk[:at] + chunk[at + 1 :]


def cut(_chunk: bytes, _at: int) -> bytes:
    raise ConnectionError


CHANGES = {"flip": flip, "repeat": repeat, "lose": lose, "cut": cut}


def length_of_talk(act: Callable[[str], object], server: Server) -> dict[str, int]:
    with Proxy(server.address) as proxy:
        act(proxy.address)
        return {way: len(octets) for way, octets in proxy.seen.items()}


@pytest.mark.slow
@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("way", [UP, DOWN])
def test_no_byte_of_a_put_can_be_changed_unnoticed(root: Path, tmp_path: Path, way: str, kind: str) -> None:
    server = Server(root, SECRET, reserve=0, idle=0.25)
    source, total = source_of(tmp_path, 50)
    whole = step_path(root, PLACE) / NAME
    try:
        talk = length_of_talk(lambda address: put(address, source, total), server)
        whole.unlink()
        for position in range(0, talk[way], 3 if kind != "lose" else 41):  # a lost byte is waited for
            rule = change(way, position, CHANGES[kind])
            with Proxy(server.address, rule) as proxy:
                try:
                    put(proxy.address, source, total, idle=0.25)
                except OSError as error:
                    assert str(error).split("] ", 1)[1].startswith(f"peer {proxy.address}: ")  # noqa: PT017
                else:  # one of the last two bytes was said twice, and all that is due was said
                    assert kind == "repeat"
                    assert position >= talk[way] - 2
                    assert whole.exists()
            until(lambda: guests(server) == 0)
            assert not arriving(root)
            if whole.exists():  # only the last words were lost or changed; or more came than was asked for
                assert disk.measure(whole) == total
                whole.unlink()
    finally:
        server.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("way", [UP, DOWN])
def test_no_byte_of_a_small_file_that_is_opened_can_be_changed_unnoticed(
    root: Path, tmp_path: Path, way: str, kind: str
) -> None:
    server = Server(root, SECRET, reserve=0, idle=0.25)
    source, total = source_of(tmp_path, 50)
    put(server.address, source, total)
    try:
        talk = length_of_talk(lambda address: fetch(Peer(address, SECRET)), server)
        for position in range(0, talk[way], 3 if kind != "lose" else 41):  # a lost byte is waited for
            with Proxy(server.address, change(way, position, CHANGES[kind])) as proxy:
                try:
                    assert fetch(Peer(proxy.address, SECRET), idle=0.25) == total
                except OSError as error:
                    assert str(error).split("] ", 1)[1].startswith(f"peer {proxy.address}: ")  # noqa: PT017
                else:
                    assert kind == "repeat"
                    assert position >= talk[way] - 2
    finally:
        server.close()


@pytest.mark.parametrize(
    ("kind", "position"),
    [("flip", 400), ("flip", SIZE // 2), ("flip", SIZE - 1), ("repeat", 400), ("repeat", SIZE // 2), ("lose", 400)],
)
def test_contents_that_are_changed_on_the_way_are_not_kept(
    root: Path, server: Server, tmp_path: Path, position: int, kind: str
) -> None:
    source, total = source_of(tmp_path, SIZE)
    with (
        Proxy(server.address, change(UP, position, CHANGES[kind])) as proxy,
        pytest.raises(OSError, match=f"peer {proxy.address}: "),
    ):
        put(proxy.address, source, total, idle=0.5)
    until(lambda: guests(server) == 0)
    assert (visible(root), arriving(root)) == ([], [])


@pytest.mark.parametrize("position", [200, 1000, SIZE // 2, SIZE])
def test_a_file_that_is_cut_on_the_way_is_an_error_wherever_it_is(
    server: Server, tmp_path: Path, position: int
) -> None:
    source, total = source_of(tmp_path, SIZE)
    put(server.address, source, total)
    with (
        Proxy(server.address, change(DOWN, position, cut)) as proxy,
        pytest.raises(ConnectionError, match=f"peer {proxy.address}: "),
    ):
        fetch(Peer(proxy.address, SECRET))


def test_whoever_hashes_what_he_opens_sees_a_flipped_byte(server: Server, tmp_path: Path) -> None:
    source, total = source_of(tmp_path, SIZE)
    put(server.address, source, total)
    with Proxy(server.address, change(DOWN, SIZE // 2, flip)) as proxy:
        found = fetch(Peer(proxy.address, SECRET))
    assert found.size == total.size
    assert found != total


@pytest.mark.slow
def test_a_slow_wire_takes_as_long_as_it_takes(root: Path, server: Server, tmp_path: Path) -> None:
    def slow(way: str, _offset: int, chunk: bytes) -> bytes:
        time.sleep(0.25 if way == UP else 0)
        return chunk

    source, total = source_of(tmp_path, SIZE)
    began = time.monotonic()
    with Proxy(server.address, slow) as proxy:
        put(proxy.address, source, total, idle=1.0)
    assert time.monotonic() - began > 1.0
    assert visible(root) == [f"attempt-2/step-40/{NAME}"]


@pytest.mark.slow
@pytest.mark.parametrize(("way", "after"), [(DOWN, 0), (UP, 0), (UP, 100_000), (DOWN, HELLO)])
def test_a_wire_on_which_nothing_moves_is_an_error_in_time(
    root: Path, server: Server, tmp_path: Path, way: str, after: int
) -> None:
    source, total = source_of(tmp_path, 64_000_000)
    gate, began = Gate(way, after), time.monotonic()
    with Proxy(server.address, gate) as proxy:
        with pytest.raises(TimeoutError, match=f"peer {proxy.address}: .*nothing moved in time"):
            put(proxy.address, source, total, idle=0.5)
        assert 0.4 < time.monotonic() - began < 5
        gate.opened.set()
        until(lambda: guests(server) == 0)
    assert (visible(root), arriving(root)) == ([], [])


def test_a_put_whose_last_word_is_lost_is_done_all_the_same_and_may_be_done_again(
    root: Path, server: Server, tmp_path: Path
) -> None:
    source, total = source_of(tmp_path, SIZE)
    talk = length_of_talk(lambda address: put(address, source, total), server)
    (step_path(root, PLACE) / NAME).unlink()
    with (
        Proxy(server.address, change(DOWN, talk[DOWN] - 1, cut)) as proxy,
        pytest.raises(ConnectionError, match="peer"),
    ):
        put(proxy.address, source, total)
    assert disk.measure(step_path(root, PLACE) / NAME) == total
    put(server.address, source, total)


# --- who speaks


def test_another_secret_is_no_way_in_and_one_line_in_the_log(
    root: Path, server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, total = source_of(tmp_path, SIZE)
    put(server.address, source, total)
    stranger = Peer(server.address, "wrong horse battery staple")
    with caplog.at_level(logging.WARNING, "sickbay.train"):
        for _ in range(20):
            with pytest.raises(ConnectionError, match=rf"peer {server.address}: .*the same secret"):
                stranger.open(PLACE, NAME)
            with pytest.raises(ConnectionError, match="the same secret"):
                stranger.put(PLACE, "rank-4.shard", source, total)
    (record,) = caplog.records
    assert record.getMessage().startswith("peers: somebody at 127.0.0.1 was not served: its proof is wrong: ")
    assert len(visible(root)) == 1


def test_the_secret_is_never_on_the_wire(server: Server, tmp_path: Path) -> None:
    source, total = source_of(tmp_path, 50)
    with Proxy(server.address) as proxy:
        put(proxy.address, source, total)
        assert fetch(Peer(proxy.address, SECRET)) == total
        said = bytes(proxy.seen[UP] + proxy.seen[DOWN])
    assert b"rank-3.shard" in said
    for form in (SECRET.encode(), hashlib.sha256(SECRET.encode()).digest(), SECRET.encode()[:8]):
        assert form not in said


def test_what_a_client_said_once_is_no_way_in_for_who_says_it_again(root: Path, server: Server, tmp_path: Path) -> None:
    source, total = source_of(tmp_path, 50)
    with Proxy(server.address) as proxy:
        put(proxy.address, source, total)
        said = bytes(proxy.seen[UP])
    (step_path(root, PLACE) / NAME).unlink()
    for _ in range(3):
        with knock(server) as connection:
            connection.sendall(said)
            assert len(hears(connection)) <= HELLO
    assert visible(root) == []


def test_what_a_server_said_once_is_no_proof_for_who_says_it_again(server: Server, tmp_path: Path) -> None:
    source, total = source_of(tmp_path, 50)
    put(server.address, source, total)
    with Proxy(server.address) as proxy:
        fetch(Peer(proxy.address, SECRET))
        said = bytes(proxy.seen[DOWN])

    def repeat_it(connection: socket.socket) -> None:
        connection.sendall(said)
        hears(connection)

    def ask(address: str) -> None:
        with pytest.raises(OSError, match=f"peer {address}: .*its proof is wrong"):
            Peer(address, SECRET).open(PLACE, NAME)

    deceive(repeat_it, ask)


def test_who_reflects_a_proof_has_proven_nothing(tmp_path: Path) -> None:
    source, total = source_of(tmp_path, 64_000_000)
    heard = []

    def reflect(connection: socket.socket) -> None:
        connection.sendall(MAGIC + os.urandom(CHALLENGE))
        connection.sendall(request_on(connection))
        heard.append(hears(connection))

    def ask(address: str) -> None:
        with pytest.raises(OSError, match="its proof is wrong"):
            put(address, source, total)

    deceive(reflect, ask)
    assert heard == [b""]


def test_no_byte_of_a_file_goes_to_who_has_proven_nothing(tmp_path: Path) -> None:
    source, total = source_of(tmp_path, SIZE)
    heard = []

    def invite(connection: socket.socket) -> None:
        connection.sendall(MAGIC + os.urandom(CHALLENGE))
        request_on(connection)
        text = json.dumps({"send": True}).encode()
        connection.sendall(struct.pack(">I", len(text)) + text + bytes(32))
        heard.append(hears(connection))

    def ask(address: str) -> None:
        with pytest.raises(OSError, match="its proof is wrong"):
            put(address, source, total)

    deceive(invite, ask)
    assert heard == [b""]


@pytest.mark.parametrize(
    "greeting",
    [b"", b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n" * 9, bytes(1000), os.urandom(1000)],
)
def test_something_else_that_listens_there_is_said_to_be_that(greeting: bytes) -> None:
    def answer(connection: socket.socket) -> None:
        with suppress(OSError):
            connection.sendall(greeting)
            connection.shutdown(socket.SHUT_WR)
            hears(connection)

    def ask(address: str) -> None:
        with pytest.raises(OSError, match=rf"peer {address}: .*(no server of peers|hung up)"):
            Peer(address, SECRET).open(PLACE, NAME)

    deceive(answer, ask)


def test_an_answer_without_end_is_not_waited_for() -> None:
    def drip(connection: socket.socket) -> None:
        connection.sendall(MAGIC + bytes(CHALLENGE) + struct.pack(">I", 4096))
        with suppress(OSError):
            while True:
                connection.sendall(b" ")
                time.sleep(0.05)

    def ask(address: str) -> None:
        began = time.monotonic()
        with pytest.raises(TimeoutError, match=f"peer {address}"):
            Peer(address, SECRET).open(PLACE, NAME, idle=0.5)
        assert time.monotonic() - began < 5

    deceive(drip, ask)


def test_a_giant_frame_is_not_waited_for_by_a_client() -> None:
    def announce(connection: socket.socket) -> None:
        connection.sendall(MAGIC + bytes(CHALLENGE) + b"\xff\xff\xff\xff")
        hears(connection)

    def ask(address: str) -> None:
        with pytest.raises(OSError, match="announced 4294967295 bytes"):
            Peer(address, SECRET).open(PLACE, NAME)

    deceive(announce, ask)


# --- strangers


@pytest.mark.parametrize(
    "words",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 10,
        bytes(CHALLENGE) + b"\xff\xff\xff\xff",
        bytes(CHALLENGE) + struct.pack(">I", 4096) + bytes(4096 + 32),
        b"\xa5" * 10_000_000,
    ],
)
def test_garbage_gets_a_greeting_and_nothing_else(server: Server, words: bytes) -> None:
    with knock(server) as connection:
        with suppress(ConnectionError):
            connection.sendall(words)
        assert len(hears(connection)) <= HELLO
    until(lambda: guests(server) == 0)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300))
def test_no_words_without_the_secret_are_answered(words: bytes) -> None:
    server = shared_server()
    with knock(server) as connection:
        connection.sendall(words)
        connection.shutdown(socket.SHUT_WR)
        assert len(hears(connection)) <= HELLO


_shared: list[Server] = []


def shared_server() -> Server:
    return _shared[0]


@pytest.fixture(autouse=True, scope="module")
def one_for_all_examples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with closing(Server(tmp_path_factory.mktemp("shared"), SECRET, "127.0.0.1")) as server:
        _shared.append(server)
        yield


def test_strangers_who_say_nothing_keep_no_rank_out_and_cost_little(
    root: Path, server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, total = source_of(tmp_path, SIZE)
    before = threading.active_count()
    with caplog.at_level(logging.WARNING, "sickbay.train"), ExitStack() as stack:
        for n in range(8 * STRANGERS):
            connection = stack.enter_context(knock(server))
            if n % 2:
                connection.sendall(b"x")  # and no more
            if n % 50 == 0:
                put(server.address, source, total, name=f"rank-{n}.shard", idle=5.0)
        assert guests(server) <= STRANGERS + 1
        assert threading.active_count() - before <= STRANGERS + 2
        assert fetch(Peer(server.address, SECRET), name="rank-0.shard") == total
    assert len(caplog.records) <= 2
    assert len(visible(root)) == 6


def test_a_stranger_who_is_slow_has_to_leave_in_time(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_channel, "GREETING", 0.5)
    with closing(Server(root, SECRET)) as server, knock(server) as connection:
        began = time.monotonic()
        connection.settimeout(0.05)
        with suppress(ConnectionError):
            while guests(server) or time.monotonic() - began < 0.1:
                connection.sendall(b"x")
                with suppress(TimeoutError):
                    if connection.recv(100) == b"":
                        break
        assert 0.4 < time.monotonic() - began < 5


def test_who_scans_ports_costs_one_line(
    server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with caplog.at_level(logging.WARNING, "sickbay.train"):
        for _ in range(100):
            with knock(server) as connection:  # with RST, as scanners do
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        until(lambda: server._seldom._missed > 90)
        assert len(caplog.records) == 1
        monkeypatch.setattr(server._seldom, "_next", 0.0)  # ten seconds later
        knock(server).close()
        until(lambda: len(caplog.records) == 2)
    assert "more before" in caplog.records[1].getMessage()


@pytest.mark.slow
def test_all_places_taken_by_ranks_are_no_places_of_strangers(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_server, "STRANGERS", 4)
    source, total = source_of(tmp_path, 64_000_000)
    put(server.address, source, total)
    with ThreadPoolExecutor(8) as pool, ExitStack() as stack:
        opened = [stack.enter_context(Peer(server.address, SECRET).open(PLACE, NAME)) for _ in range(8)]
        for _ in range(20):
            stack.enter_context(knock(server))
        assert set(pool.map(lambda file: disk.Hashing(file).finish(), opened)) == {total}
