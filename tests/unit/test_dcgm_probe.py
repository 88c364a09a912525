"""Watching DCGM live: against small programs that print what dcgmi prints, hang or fail, and a real web server."""

import http.server
import os
import stat
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.agent_rig import left_by
from tests.unit.test_dcgm_documents import SAMPLES, sample

from sickbay.agent.dcgmi import Listener, Ran, fetch, run_dcgmi
from sickbay.agent.outbox import say
from sickbay.agent.probes.dcgm import PERIOD, Dcgm, dcgm_probe
from sickbay.knowledge.dcgm import fields
from sickbay.model.facts import Observed
from sickbay.model.fleet import NodeId
from sickbay.model.protocol import Item
from sickbay.signs.readers.exporter import page_of

pytestmark = pytest.mark.slow

NODE = NodeId("c/n1")
QUIET = "#Entity   XIDER  EDVTL\nID\nGPU 0     0      0\nGPU 1     0      0\n"


class Program:
    """A dcgmi whose answers are files that a test may change while it is watched. It writes down how it was called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "dcgmi"
        self.answer("health", sample("health_ok.json"))
        self.answer("dmon", QUIET)
        self.answer("policy", "Policy successfully set.\n")
        self.path.write_text(
            f'#!/bin/sh\necho "$*" >> {folder}/calls\n'
            f'[ "$1 $2" = "policy --reg" ] && exec cat {folder}/violations\n'
            f'[ "$1 $2" = "health -s" ] && echo "Health monitor systems set successfully." && exit 0\n'
            f'[ -e {folder}/hangs ] && exec sleep 1000\n'
            f'[ -e {folder}/fails ] && cat {folder}/fails && exit 255\n'
            f'cat {folder}/"$1"\n'
        )  # fmt: skip
        self.path.chmod(self.path.stat().st_mode | stat.S_IXUSR)

    def answer(self, command: str, text: str) -> None:
        (self.folder / command).write_text(text)

    @property
    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()

    def watch(self, seconds: float = 5.0, **more: object) -> Dcgm:
        return Dcgm(NODE, partial(run_dcgmi, program=str(self.path)), seconds=seconds, **more)  # type: ignore[arg-type]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


def news(items: list[Item]) -> list[tuple[str, object]]:
    assert all(isinstance(item.news, Observed) and item.news.node == NODE for item in items)
    return [(item.news.kind, item.news.fields.get("device")) for item in items if isinstance(item.news, Observed)]


def test_a_healthy_node_is_no_news_and_all_conditions_are_registered_once(program: Program) -> None:
    watch = program.watch()
    assert not watch.look(0.0)
    assert not watch.look(1.0)
    assert sum(call == "health -s a" for call in program.calls) == 1
    (policy,) = (call for call in program.calls if call.startswith("policy --set"))
    assert all(f" {option}" in policy for option in ("-e", "-p", "-M", "-T", "-P", "-n", "-x"))


def test_an_incident_is_told_once_and_again_when_it_comes_back(program: Program) -> None:
    watch = program.watch()
    program.answer("health", sample("health_sick.json"))
    assert sorted(news(watch.look(0.0))) == [("gpu.ecc_uncorrected", 1), ("nvlink.down", 1)]
    assert not watch.look(1.0)
    program.answer("health", sample("health_ok.json"))
    assert not watch.look(2.0)
    program.answer("health", sample("health_sick.json"))
    assert len(watch.look(3.0)) == 2


def test_an_older_dcgm_that_prints_a_table_is_understood(program: Program) -> None:
    program.answer("health", sample("health_sick.txt"))
    assert ("gpu.remap_failed", 3) in news(program.watch().look(0.0))


def test_links_that_a_card_does_not_have_are_not_down(program: Program) -> None:
    program.answer("health", sample("health_sick.json"))
    assert news(program.watch(has_links=lambda: False).look(0.0)) == [("gpu.ecc_uncorrected", 1)]


def test_a_counter_that_grows_and_a_new_last_xid_are_news(program: Program) -> None:
    watch = program.watch()
    watch.look(0.0)
    program.answer("dmon", QUIET.replace("GPU 1     0      0", "GPU 1     94     2"))
    assert sorted(news(watch.look(1.0))) == [("gpu.ecc_uncorrected", 1), ("xid", 1)]
    assert not watch.look(2.0)


def test_an_xid_from_before_the_first_look_is_history(program: Program) -> None:
    program.answer("dmon", QUIET.replace("GPU 1     0 ", "GPU 1     79"))
    watch = program.watch()
    assert not watch.look(0.0)
    assert not watch.look(1.0)


@pytest.mark.parametrize(
    "words",
    [
        "Error: unable to establish a connection to the specified host: localhost\n",
        "Error: Unable to connect to host engine. Host engine connection invalid/disconnected.\n",
        "dcgmi: error while loading shared libraries: libdcgm.so.4: cannot open shared object file\n",
        "Error: Unable to check health watches. Return: API version mismatch\n",
        "",
    ],
)
def test_a_dcgm_that_does_not_answer_is_told_once_and_is_no_broken_gpu(program: Program, words: str) -> None:
    watch = program.watch()
    (program.folder / "fails").write_text(words)
    assert news(watch.look(0.0)) == [("dcgm.unreachable", None)]
    assert not watch.look(1.0)
    (program.folder / "fails").unlink()
    program.answer("health", sample("health_sick.json"))
    assert ("gpu.ecc_uncorrected", 1) in news(watch.look(2.0))
    assert sum(call == "health -s a" for call in program.calls) == 3  # it may have forgotten what it was to watch


def test_what_was_found_before_a_trouble_is_told_in_spite_of_it(program: Program) -> None:
    program.answer("health", sample("health_sick.json"))
    program.answer("dmon", "Error: Unknown field identifier\n")
    found = news(program.watch().look(0.0))
    assert ("gpu.ecc_uncorrected", 1) in found
    assert found[-1] == ("dcgm.unreachable", None)


def test_a_host_engine_that_hangs_costs_a_deadline_and_leaves_nothing_behind(program: Program) -> None:
    (program.folder / "hangs").touch()
    watch = program.watch(seconds=0.3)
    assert news(watch.look(0.0)) == [("dcgm.unreachable", None)]
    assert not left_by(program.folder)


def test_a_program_that_is_not_there_is_told_once(tmp_path: Path) -> None:
    watch = Dcgm(NODE, partial(run_dcgmi, program=str(tmp_path / "none")))
    assert news(watch.look(0.0)) == [("dcgm.unreachable", None)]
    assert not watch.look(1.0)


def test_an_endless_answer_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "dcgmi"
    path.write_text("#!/bin/sh\nexec yes\n")
    path.chmod(0o755)
    ran = run_dcgmi(("health",), 0.5, program=str(path))
    assert ran.code is None
    assert len(ran.text) < 8 << 20


def test_a_violated_policy_is_heard_at_once(program: Program) -> None:
    pipe = program.folder / "violations"
    os.mkfifo(pipe)
    listener = Listener(str(program.path))
    watch = program.watch(listener=listener)
    assert not watch.look(0.0)
    with pipe.open("w") as file:
        file.write("Listening for violations.\nTimestamp: Mon Nov 16 08:00:00 2026\nXID error 79 detected.\nTimest")
        file.flush()
        found: list[Item] = []
        until = time.monotonic() + 10
        while not found and time.monotonic() < until:
            found = watch.look(time.monotonic())
        assert news(found) == [("xid", None)]
    watch.close()
    assert not left_by(program.folder)


def test_a_listener_that_ends_is_not_started_again_at_once(program: Program) -> None:
    (program.folder / "violations").write_text("Error: Cannot register to receive policy violations\n")
    listener = Listener(str(program.path))
    until = time.monotonic() + 10
    while "policy --reg" not in (program.calls if (program.folder / "calls").exists() else []):
        listener.look(100.0)
        assert time.monotonic() < until
    for second in range(50):
        listener.look(100.0 + second)
    assert program.calls.count("policy --reg") == 1
    listener.close()


class Site(http.server.BaseHTTPRequestHandler):
    page = ""
    status = 200

    def do_GET(self) -> None:
        body = type(self).page.encode()
        self.send_response(type(self).status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def site() -> Iterator[tuple[type[Site], str]]:
    class Own(Site):
        pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Own)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield Own, f"http://127.0.0.1:{server.server_port}/metrics"
    server.shutdown()
    server.server_close()
    thread.join()


def test_an_exporter_is_watched_by_its_page(site: tuple[type[Site], str]) -> None:
    own, url = site
    watch = Dcgm(NODE, exporter=url)
    own.page = sample("exporter_ok.txt")
    assert not watch.look(0.0)
    own.page = sample("exporter_sick.txt")
    found = watch.look(1.0)
    assert sorted(news(found), key=str) == sorted(
        [("gpu.ecc_uncorrected", 0), ("gpu.remap_pending", 0), ("gpu.remap_failed", 1), ("gpu.thermal_slowdown", 1),
         ("gpu.hot", 1), ("nvlink.errors", 0), ("xid", 0), ("xid", 1)], key=str)  # fmt: skip
    assert not watch.look(2.0)
    assert {item.news.fields["number"] for item in found if item.news.kind == "xid"} == {79, 94}


def test_one_more_xid_in_the_window_is_news_and_one_less_is_not(site: tuple[type[Site], str]) -> None:
    own, url = site
    watch = Dcgm(NODE, exporter=url)
    line = 'DCGM_EXP_XID_ERRORS_COUNT{gpu="0",UUID="GPU-1",window_size_in_ms="300000",xid="13"}'
    counts: list[list[int]] = []
    for count in (1, 3, 2, 2, 0, 1):
        own.page = f"{line} {count}\n"
        counts.append([item.news.count for item in watch.look(float(len(counts))) if isinstance(item.news, Observed)])
    assert counts == [[1], [2], [], [], [], [1]]


def test_an_exporter_that_fails_is_dcgm_unreachable_once(site: tuple[type[Site], str]) -> None:
    own, url = site
    watch = Dcgm(NODE, exporter=url)
    own.status, own.page = 500, "no"
    assert news(watch.look(0.0)) == [("dcgm.unreachable", None)]
    own.status, own.page = 200, "go_goroutines 7\n"
    assert not watch.look(1.0)
    own.page = sample("exporter_ok.txt")
    assert not watch.look(2.0)
    assert news(Dcgm(NODE, exporter="http://127.0.0.1:1/metrics").look(0.0)) == [("dcgm.unreachable", None)]


def test_an_address_that_is_none_says_what_to_write() -> None:
    with pytest.raises(OSError, match="write http://host:9400/metrics"):
        fetch("file:///etc/passwd", 1.0)


def test_there_is_a_probe_only_where_there_is_something_to_ask(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: Program
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert dcgm_probe(NODE) is None
    made = dcgm_probe(NODE, exporter="http://127.0.0.1:9400/metrics")
    assert made is not None
    assert (made[0].name, made[0].period, made[0].may_hang) == ("dcgm", PERIOD, True)
    monkeypatch.setenv("PATH", str(program.folder))
    assert dcgm_probe(NODE) is not None


def test_nonsense_of_any_kind_is_unknown_and_never_a_fault() -> None:
    for text in ("", "{", "{}", "[]", "null", "\x00" * 100, "| a | b |", (SAMPLES / "diag3.json").read_text()):
        watch = Dcgm(NODE, lambda _, __, said=text: Ran(code=0, text=said))  # type: ignore[misc]
        assert set(news(watch.look(0.0))) <= {("dcgm.unreachable", None)}


ODD_NAMES = (*sorted({field.name for field in fields()}), "DCGM_EXP_XID_ERRORS_COUNT",
             "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L3", "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL")  # fmt: skip
VALUES = st.sampled_from(
    ["0", "1", "-1", "nan", "inf", "1e308", "9" * 30, "9" * 5000, "9223372036854775794", "18446744073709551615",
     "4294967295", "N/A", "\x1b[2J", "\udcff", "ff", "3.5"]
)  # fmt: skip


@given(
    st.lists(VALUES, min_size=len(ODD_NAMES), max_size=len(ODD_NAMES)), st.sampled_from(["GPU-1", "\x1b[2J\u202e", ""])
)
def test_no_page_of_an_exporter_breaks_the_probe_or_tells_what_cannot_be(values: list[str], uuid: str) -> None:
    watch = Dcgm(NODE, exporter="http://nobody/")
    for rotated in (values, values[1:] + values[:1], values):
        lines = [f'{name}{{gpu="0",UUID="{uuid}",modelName="NVIDIA H200",xid="79"}} {value}'
                 for name, value in zip(ODD_NAMES, rotated, strict=True)]  # fmt: skip
        page = page_of("\n".join(lines))
        for sign in [*watch._changed(page.readings), *watch._counts(page)]:
            item = say(Observed(node=NODE, kind=sign.kind, fields=sign.fields, text=sign.text, count=sign.count))
            assert msgspec.json.decode(msgspec.json.encode(item), type=Item).news == item.news
            assert 1 <= sign.count <= 10**9
            assert isinstance(item.news, Observed)
            assert item.news.text.isprintable()


@given(st.text(max_size=300) | st.lists(VALUES, max_size=30).map(" ".join), st.sampled_from([0, 1, None]))
def test_no_answer_of_dcgmi_leaves_the_probe_as_an_exception(text: str, code: int | None) -> None:
    watch = Dcgm(NODE, run=lambda _arguments, _seconds: Ran(code=code, text=text))
    for now in (0.0, 10.0):
        for item in watch.look(now):
            assert msgspec.json.decode(msgspec.json.encode(item), type=Item).news == item.news
