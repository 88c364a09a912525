"""What an agent cannot look at is one clear line and unknown: no crash, no 'healthy', no repair, and the rest works."""

import errno
import http.server
import os
import resource
import stat
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support.agent_rig import XID_63, XID_79, FrontDoor
from tests.support.waiting import until
from tests.unit.test_agent_node import dated, numbers, running

from sickbay.agent.checks import Exercise, examine
from sickbay.agent.node import sources_for
from sickbay.agent.outbox import Outbox, say
from sickbay.agent.places import Places
from sickbay.agent.probes.counters import Counters
from sickbay.agent.probes.dcgm import Dcgm
from sickbay.agent.probes.gpus import GRACE, Gpus
from sickbay.agent.probes.host import EdgeTriggered
from sickbay.agent.probes.kernel_log import AGAIN, KernelLog, LogPlace
from sickbay.agent.probes.kmsg import Kmsg, KmsgPlace
from sickbay.agent.probes.machine import Machine, word
from sickbay.agent.probes.system_log import LineTrust, SystemLog
from sickbay.agent.runtime import alone
from sickbay.agent.settings import AgentSettings
from sickbay.agent.spool import AgentIdentity
from sickbay.knowledge.load import load_tables
from sickbay.model.errors import BadInput
from sickbay.model.facts import Observed
from sickbay.model.fleet import Incarnation, NodeId
from sickbay.model.protocol import Item
from sickbay.signs.classify import classify

pytestmark = pytest.mark.slow

FIXTURES = Path(__file__).parent.parent / "fixtures"
SOURCE = Path(__file__).parent.parent.parent / "src"
NODE = NodeId("c/n1")
FAILED = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest "
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch"


def program(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def disrupting(news: list[Observed]) -> list[str]:
    """What would take the node out of service."""
    tables = load_tables()
    found = [classify(one, tables) for one in news]
    return [fault.code for fault in found if fault is not None and fault.remedy.disrupts]


@pytest.fixture
def door(tmp_path: Path) -> Iterator[FrontDoor]:
    (tmp_path / "agent.yaml").write_text("allow: []\n")
    (tmp_path / "messages").touch()
    front = FrontDoor()
    front.open()
    yield front
    front.shut()


@contextmanager
def answering(answer: Callable[[http.server.BaseHTTPRequestHandler], None]) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


# --- the whole agent, as a process


def said(door: FrontDoor) -> list[Observed]:
    return [news for news in door.news(Observed) if news.kind not in {"xid", "gpus.none"}]


class Trouble:
    """What is wrong with a machine: programs that stand in for its own, and the environment of its agent."""

    def __init__(self, *, expect: str, programs: dict[str, str] | None = None, script: str = "", **given: str) -> None:
        self.expect, self.programs, self.script, self.given = expect, programs or {}, script, given


TROUBLES = {
    "no driver, and there must be GPUs": Trouble(expect="river", script='{"init": 9}', SICKBAY_GPUS="8"),
    "no library and no nvidia-smi": Trouble(expect="nvidia-smi", SICKBAY_GPUS="8", script="none"),
    "driver and library do not fit": Trouble(
        expect="mismatch", script='{"init": 18}', programs={"nvidia-smi": f"echo '{MISMATCH}'; exit 18"},
        SICKBAY_GPUS="8",
    ),
    "nvidia-smi has failed": Trouble(
        expect="has failed", script="none", programs={"nvidia-smi": f'echo "{FAILED}"; exit 9'}, SICKBAY_GPUS="8"
    ),
    "no GPU is there yet": Trouble(expect="0 of 8", script='{"devices": 0}', SICKBAY_GPUS="8"),
    "dcgmi cannot connect": Trouble(
        expect="DCGM does not answer", script='{"init": 9}',
        programs={"dcgmi": "echo 'Error: unable to establish a connection to the specified host: localhost'; exit 234"},
    ),
    "dcgmi lacks its library": Trouble(
        expect="DCGM does not answer", script='{"init": 9}',
        programs={"dcgmi": "echo 'dcgmi: error while loading shared libraries: libdcgm.so.4' >&2; exit 127"},
    ),
    "an exporter that nobody runs": Trouble(
        expect="DCGM does not answer", script='{"init": 9}', SICKBAY_DCGM_URL="http://127.0.0.1:1/metrics"
    ),
    "no ring": Trouble(expect="kmsg", script='{"init": 9}', SICKBAY_SOURCES="kmsg,{messages}"),
    "no journal": Trouble(expect="journalctl", script='{"init": 9}', SICKBAY_SOURCES="journal,{messages}"),
    "a directory in a log's place": Trouble(
        expect="directory", script='{"init": 9}', SICKBAY_SOURCES="{root}/folder,{messages}"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TROUBLES)
def test_a_trouble_is_one_line_and_unknown_and_the_rest_works(tmp_path: Path, door: FrontDoor, name: str) -> None:
    trouble = TROUBLES[name]
    (tmp_path / "folder").mkdir()
    (tmp_path / "bin").mkdir()
    for program_name, text in trouble.programs.items():
        program(tmp_path / "bin", program_name, text)
    if name == "no ring" and os.access("/dev/kmsg", os.R_OK):
        pytest.skip("the ring of this machine may be read")
    given = {key: value.format(root=tmp_path, messages=tmp_path / "messages") for key, value in trouble.given.items()}
    given["PATH"] = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    if name == "no journal":
        given["PATH"] = str(tmp_path / "bin")
    if trouble.script == "none":  # a package that cannot be imported: as if it were not installed
        (tmp_path / "none").mkdir()
        (tmp_path / "none" / "pynvml.py").write_text("raise ImportError('no pynvml')\n")
        given["PYTHONPATH"] = os.pathsep.join((str(tmp_path / "none"), str(SOURCE)))
    else:
        (tmp_path / "script.json").write_text(trouble.script)
        given["NVML_SCRIPT"] = str(tmp_path / "script.json")
        given["PYTHONPATH"] = os.pathsep.join((str(FIXTURES / "nvml"), str(SOURCE)))
    with running(tmp_path, door, **given) as process:
        try:
            until(lambda: [one for one in said(door) if trouble.expect in one.text], 20)
        except AssertionError as error:
            raise AssertionError(_told(door, tmp_path)) from error
        with (tmp_path / "messages").open("a") as log:
            log.write(dated(XID_79))
        until(lambda: numbers(door) == [79], 20, _told(door, tmp_path))
        assert process.poll() is None
        process.terminate()
        assert process.wait(15) == 0
    about = [one for one in said(door) if trouble.expect in one.text]
    assert max(Counter(one.text for one in about).values()) == 1
    assert all("\n" not in one.text and len(one.text) <= 500 for one in said(door))
    assert {one.kind for one in about} <= {"probe.failed", "dcgm.unreachable"}
    assert not disrupting(said(door))
    assert not any("healthy" in one.text for one in said(door))


def _told(door: FrontDoor, root: Path) -> str:
    return f"{[one.text for one in said(door)]} {(root / 'agent.err').read_text()}"


# --- logs


def observed(items: list[Item]) -> list[Observed]:
    return [item.news for item in items if isinstance(item.news, Observed)]


def test_a_ring_that_refuses_is_one_line_and_the_text_log_is_read(tmp_path: Path) -> None:
    (tmp_path / "kmsg").touch(mode=0o000)
    (tmp_path / "messages").write_text(dated(XID_79))

    def refuses(_handle: int, _size: int) -> bytes:
        raise PermissionError(1, "Operation not permitted")

    ring = Kmsg(NODE, KmsgPlace(boot_id="b"), tmp_path / "kmsg", refuses)
    log = KernelLog(
        [ring, SystemLog(tmp_path / "messages", LogPlace(boot_id="b"), LineTrust(trusted=True))], NODE, lambda _: None
    )
    now = time.monotonic()
    first = observed(log.look(now))
    assert [one.kind for one in first] == ["probe.failed", "xid"]
    assert not disrupting(first[:1])
    for later in range(1, 30):
        assert not observed(log.look(now + later * AGAIN / 2))
    log.close()


def test_a_stderr_that_was_closed_costs_no_line_that_was_read_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "messages").write_text(dated(XID_79))
    (tmp_path / "kern.log").mkdir()
    logs = [
        SystemLog(tmp_path / name, LogPlace(boot_id="b"), LineTrust(trusted=True)) for name in ("messages", "kern.log")
    ]
    log = KernelLog(logs, NODE, lambda _: None)
    reader, writer = os.pipe()
    os.close(reader)
    with monkeypatch.context() as gone, os.fdopen(writer, "w", 1) as broken:
        gone.setattr(sys, "stderr", broken)
        assert [one.kind for one in observed(log.look(time.monotonic()))] == ["xid", "probe.failed"]
        with suppress(OSError):
            broken.close()
    log.close()


def test_a_text_log_that_becomes_a_directory_and_comes_back_is_followed_again(tmp_path: Path) -> None:
    path, other = tmp_path / "messages", tmp_path / "kern.log"
    path.touch()
    other.write_text(dated(XID_63))
    log = KernelLog(
        [SystemLog(one, LogPlace(boot_id="b"), LineTrust(trusted=True)) for one in (path, other)], NODE, lambda _: None
    )
    now = time.monotonic()
    assert [one.fields["number"] for one in observed(log.look(now))] == [63]
    path.unlink()
    assert not observed(log.look(now + 1))
    path.mkdir()
    told = observed(log.look(now + 2)) + observed(log.look(now + 3))
    assert [one.kind for one in told] == ["probe.failed"]
    assert "directory" in told[0].text
    path.rmdir()
    path.write_text(dated(XID_79))
    again = observed(log.look(now + 3 + AGAIN))
    assert [one.fields.get("number") for one in again if one.kind == "xid"] == [79]
    log.close()


def test_when_nothing_can_be_read_nobody_has_looked(tmp_path: Path) -> None:
    (tmp_path / "messages").mkdir()
    log = KernelLog(
        [SystemLog(tmp_path / "messages", LogPlace(boot_id="b"), LineTrust(trusted=True))], NODE, lambda _: None
    )
    with pytest.raises(OSError, match="directory"):
        log.look(time.monotonic())
    log.close()


def test_sources_that_are_not_there_are_still_sources(tmp_path: Path) -> None:
    settings = AgentSettings(url="http://x:1", node=NODE, instance_id="i", sources=("kmsg", "journal", "/no/such/log"))
    found = sources_for(settings, Places(tmp_path), NODE, "b")
    assert [source.name for source in found] == ["devkmsg", "journal", "text:/no/such/log"]


# --- GPUs, DCGM, /sys


def test_no_gpu_just_after_the_start_is_unknown_and_no_reboot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.unit.test_nvml_probe import Machine as Played

    machine = Played(tmp_path, monkeypatch)
    machine.on_the_bus(8)
    machine.script(devices=0)
    gpus: Gpus = machine.gpus(expected=8)
    for now in (0.0, 10.0, GRACE - 1.0):
        with pytest.raises(Exception, match=r"0 of 8 GPUs answer.*not judged yet"):
            gpus.look(now)
    machine.script(devices=8)
    assert not [one for one in observed(gpus.look(GRACE + 10.0)) if one.kind == "gpu.count"]
    machine.close()


def _never(request: http.server.BaseHTTPRequestHandler) -> None:
    request.connection.settimeout(20)
    with suppress(OSError):  # whoever asked hangs up
        request.rfile.read(1)
    request.close_connection = True


def _with(status: int, body: bytes) -> Callable[[http.server.BaseHTTPRequestHandler], None]:
    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    return answer


@pytest.mark.parametrize(
    "answer",
    [_with(500, b"collector failed"), _with(200, b"\x00\xff garbage \x80"), _with(200, b"<html>nginx</html>"),
     _with(200, b""), _with(404, b"not here"), _never],
    ids=["500", "garbage", "html", "empty", "404", "never"],
)  # fmt: skip
def test_an_exporter_that_fails_says_nothing_about_the_gpus(
    answer: Callable[[http.server.BaseHTTPRequestHandler], None],
) -> None:
    with answering(answer) as url:
        watch = Dcgm(NODE, exporter=url, seconds=0.5)
        found = observed(watch.look(0.0)) + observed(watch.look(10.0))
        watch.close()
    assert [one.kind for one in found] == ["dcgm.unreachable"]
    assert not disrupting(found)
    assert "\n" not in found[0].text


def test_a_sys_that_answers_with_errors_is_nobodys_fault(tmp_path: Path) -> None:
    """A process's own memory refuses to be read at its begin with EIO, as a dead card's files do."""
    dead = Path("/proc/self/mem")
    assert word(dead) == ""
    for name in ("bus/pci/devices/0000:18:00.0", "class/infiniband/mlx5_0/ports/1", "class/net/eth0"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "class/net/eth0/device").mkdir()
    for name in (
        "bus/pci/devices/0000:18:00.0/aer_dev_fatal", "bus/pci/devices/0000:18:00.0/vendor",
        "bus/pci/devices/0000:18:00.0/class", "bus/pci/devices/0000:18:00.0/current_link_width",
        "class/infiniband/mlx5_0/ports/1/state", "class/net/eth0/carrier",
    ):  # fmt: skip
        (tmp_path / name).symlink_to(dead)
    counters = Counters(NODE, tmp_path)
    machine = Machine(tmp_path, tmp_path / "proc", (str(tmp_path / "not there"),))
    looks = (machine.ports, machine.carriers, machine.lanes, machine.fabric_manager, machine.memory, machine.space,
             machine.hung)  # fmt: skip
    standing = EdgeTriggered(NODE, looks)
    for now in (0.0, 700.0, 1400.0):
        assert not counters.look(now)
        assert not standing.look(now)


def test_what_cannot_be_seen_any_more_is_not_well_again(tmp_path: Path) -> None:
    """A port that is down and then cannot be read is not told as up, and not told as down a second time."""
    state = tmp_path / "class/infiniband/mlx5_0/ports/1/state"
    state.parent.mkdir(parents=True)
    standing = EdgeTriggered(NODE, (Machine(tmp_path, tmp_path).ports,))
    kinds = []
    for number, text in enumerate(("4: ACTIVE", "1: DOWN", "1: DOWN", "4: ACTIVE", "1: DOWN")):
        state.write_text(text)
        kinds.append([one.kind for one in observed(standing.look(float(number)))])
    assert kinds == [[], ["ib.link_down"], [], [], ["ib.link_down"]]


# --- a full disk


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no full device")
def test_a_full_disk_loses_no_fault_while_the_agent_lives(tmp_path: Path) -> None:
    voice = AgentIdentity(node=NODE, incarnation=Incarnation(uid="u", instance_id="i", boot_id="b"), agent_run="r")
    box = Outbox(tmp_path / "spool", voice)
    box.put([say(Observed(node=NODE, kind="xid", fields={"number": 63}, text=XID_63), 1.0)])
    for file in (tmp_path / "spool").glob("*.jsonl"):
        file.unlink()
        file.symlink_to("/dev/full")
    box.put([say(Observed(node=NODE, kind="xid", fields={"number": 79}, text=XID_79), 2.0)])
    batch = box.batch()
    assert batch is not None
    assert len(batch.items) == 2
    box.acknowledge(batch, batch.last)
    box.close()


def test_an_agent_whose_state_cannot_be_written_any_more_reports_what_it_sees(tmp_path: Path, door: FrontDoor) -> None:
    with running(tmp_path, door) as process:
        until(lambda: door.reports, 20)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        for number, line in enumerate((XID_63, XID_79), 1):
            with (tmp_path / "messages").open("a") as log:
                log.write(dated(line))
            until(partial(_so_many, door, number), 20)
        assert numbers(door) == [63, 79]
        assert process.poll() is None
        process.terminate()
        assert process.wait(15) == 0
    assert disrupting([one for one in door.news(Observed) if one.kind != "xid"]) == []


@pytest.mark.parametrize("code", [errno.EROFS, errno.ENOSPC, errno.EIO])
def test_an_agent_starts_on_a_disk_that_takes_nothing_and_is_still_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    opens = os.open

    def refuses(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if flags & os.O_CREAT:
            raise OSError(code, os.strerror(code), str(path))
        return opens(path, flags, *more, **named)

    monkeypatch.setattr("os.open", refuses)
    monkeypatch.setattr("sickbay.agent.runtime.ALONE_WITHIN", 0.05)
    with alone(tmp_path), pytest.raises(BadInput, match="another agent"), alone(tmp_path):
        pass


def test_a_state_directory_that_may_not_be_written_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(path: Any, *_: Any) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr("os.open", refuses)
    with pytest.raises(BadInput, match=r"state: .* may not be written .*run the agent as root"), alone(tmp_path):
        pass


def _so_many(door: FrontDoor, wanted: int) -> bool:
    return len(numbers(door)) == wanted


REFUSED = """
import os, sys
from pathlib import Path
from sickbay.agent.probes.kernel_log import KernelLog
from sickbay.agent.probes.kmsg import Kmsg, KmsgPlace
from sickbay.model.fleet import NodeId
ring = Kmsg(NodeId("c/n"), KmsgPlace(boot_id="b"), Path(sys.argv[1]))
if os.geteuid() == 0:  # who may do everything becomes somebody who may not
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    KernelLog([ring], NodeId("c/n"), lambda _: None).look(1.0)
except PermissionError as error:
    print(error)
"""


def test_a_ring_that_a_user_may_not_open_is_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    ring = tmp_path / "kmsg"
    ring.touch(mode=0o000)
    done = subprocess.run(
        [sys.executable, "-c", REFUSED, str(ring)], env={"PYTHONPATH": str(SOURCE)}, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert not done.stderr
    (line,) = done.stdout.splitlines()
    assert "CAP_SYSLOG" in line
    assert str(ring) in line


def test_a_profile_that_nobody_knows_has_not_passed() -> None:
    verdict, because, tests = examine([Exercise("x", 1, lambda _: "")], 1, time.monotonic() + 5, "no-such-profile")
    assert verdict == "could_not_run"
    assert "no-such-profile" in because
    assert not tests


# --- settings


@pytest.mark.parametrize(
    ("text", "says"),
    [("url: controller", "url"), ("gpus: many", "gpus"), ("sources: [syslog]", "sources"), ("allow: [all]", "allow"),
     ("metrics: often", "metrics"), ("self_fence: {after: 1s}", "self_fence"), ("node: 'a b c'", "node"),
     ("dcgm_url: here", "dcgm_url"), ("mounts: [fsx]", "mounts"), ("colour: blue", "colour"),
     ("- a\n- b", "agent.yaml"),
     ("{", "agent.yaml")],
)  # fmt: skip
def test_a_wrong_setting_is_one_line_that_names_it(tmp_path: Path, text: str, says: str) -> None:
    config = tmp_path / "agent.yaml"
    config.write_text(f"{text}\n")
    done = _agent(tmp_path, "--config", str(config), "--url", "http://127.0.0.1:1", "--print-settings")
    assert done.returncode == 2
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert says in lines[0]


def _agent(root: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, "SICKBAY_STATE": str(root / "state"), "XDG_CONFIG_HOME": str(root)}
    env.pop("SICKBAY_URL", None)
    command = [sys.executable, "-m", "sickbay", "agent", *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
