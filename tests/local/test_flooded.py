"""Slow and flooding clients against a real controller: training goes on, agents are heard, memory and logs bounded."""

import contextlib
import resource
import selectors
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.support.up_rig import Sickbay

pytestmark = pytest.mark.slow

DESCRIPTORS = 1024  # the usual limit of a shell
FLOOD = 1100
MEGABYTE = 1 << 20


class Flood:
    """So many connections that send half a head and wait; each that is ended is opened anew."""

    def __init__(self, url: str) -> None:
        self._port = int(url.rpartition(":")[2])
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="flood")
        self.opened = 0
        self._thread.start()

    def _run(self) -> None:
        chosen = selectors.DefaultSelector()
        while not self._stop.is_set():
            while len(chosen.get_map()) < FLOOD and not self._stop.is_set():
                with contextlib.suppress(OSError):
                    self._open(chosen)
            for key, _ in chosen.select(0.05):
                if isinstance(one := key.fileobj, socket.socket) and _is_ended(one):
                    chosen.unregister(one)
                    one.close()
        for key in list(chosen.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        chosen.close()

    def _open(self, chosen: selectors.BaseSelector) -> None:
        one = socket.create_connection(("127.0.0.1", self._port), timeout=1)
        self.opened += 1
        chosen.register(one, selectors.EVENT_READ)
        one.send(b"POST /v1/agent/report HTTP/1.1\r\nHost: x\r\nX-a: ")
        one.setblocking(False)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def _is_ended(one: socket.socket) -> bool:
    try:
        return not one.recv(4096)
    except BlockingIOError:
        return False
    except OSError:
        return True


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    """For what is started here; not for us, who open more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2 * FLOOD:
        pytest.skip(f"this user may open {hard} files, and the flood alone needs {FLOOD}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_training_goes_on_and_agents_are_heard_under_a_flood_of_slow_connections(
    tmp_path: Path, few_descriptors: None
) -> None:
    del few_descriptors
    rig = Sickbay(tmp_path / "state", nodes=2)
    try:
        rig.up()
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4 * FLOOD), hard))
        rig.ready()
        job = rig.train(100_000)
        begun = rig.reaches(job, 10)["step"]
        flood = Flood(rig.url)
        try:
            rig.until(lambda: flood.opened > 2 * FLOOD, 60, "the flood has filled all connections, and more")
            rig.reaches(job, begun + 100)  # for longer than an agent may be silent
            assert {node["state"] for node in rig.nodes()} == {"READY"}
            assert not rig.incidents()
            rig.inject("node-1", xid=94)  # what an agent reports is learned meanwhile
            rig.until(lambda: rig.incidents("local/node-1"), 30, "the agent's report opens an incident")
            assert psutil.Process(rig.pid).memory_info().rss < 400 * MEGABYTE
            assert psutil.Process(rig.pid).num_fds() < DESCRIPTORS
        finally:
            flood.stop()
        written = sum(
            file.stat().st_size for file in (rig.state / "up.out", rig.state / "controller.log") if file.exists()
        )
        assert written < MEGABYTE
        assert "as many as the limit of file descriptors allows" in (rig.state / "controller.log").read_text()
    finally:
        rig.down()
