"""The agent of a real machine: how it is put together, how it carries orders out, and the whole of it as a process."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from msgspec.structs import replace
from tests.support.agent_rig import TOKEN, XID_63, XID_79, FrontDoor
from tests.support.waiting import until

from sickbay.agent.bundle import KEEP, BundleParts, _listed, collect
from sickbay.agent.checks import Exercise
from sickbay.agent.command_journal import CommandJournal
from sickbay.agent.commands import DEADLINES, CarriedOut, Carry, Commands, Refuse
from sickbay.agent.drill import Drills
from sickbay.agent.node import NodeAgent, sources_for
from sickbay.agent.node_orders import RESET_TAKES, NodeOrders, NodeTools, holders, one_at_a_time
from sickbay.agent.node_probes import Made, ProbeContext, probes_for
from sickbay.agent.outbox import Outbox, say
from sickbay.agent.places import Places
from sickbay.agent.probes import Probe
from sickbay.agent.probes.dedup import Deduplicator
from sickbay.agent.probes.kernel_log import LogPlace
from sickbay.agent.probes.system_log import name_of
from sickbay.agent.settings import AgentSettings
from sickbay.agent.spool import AgentIdentity
from sickbay.agent.watchdog import Watchdog
from sickbay.agent.watermark import Watermarks
from sickbay.faces.cli.agent import agent
from sickbay.model.facts import Checked, Observed, Outcome, ResetDone, Stepped
from sickbay.model.fleet import Incarnation, JobId, NodeId
from sickbay.model.protocol import (
    Answered,
    AnyOrder,
    Command,
    CommandResult,
    Item,
    Measured,
    RunCheck,
    RunCollect,
    RunInject,
    RunLook,
    RunReboot,
    RunReset,
)

pytestmark = pytest.mark.slow

NODE = NodeId("c/n1")
ME = Incarnation(uid="i-1", instance_id="i-1", boot_id="b")
LATER = 1e12


def wish(tmp_path: Path, **more: Any) -> AgentSettings:
    places: dict[str, Any] = {"state": str(tmp_path / "state"), "ranks": str(tmp_path / "ranks")}
    return AgentSettings(url="http://x:1", node="c/n1", instance_id="i-1", **places, **more)


def ask(order: AnyOrder, name: str = "c1") -> Command:
    return Command(id=name, node=NODE, order=order, posted_at=datetime.now(UTC), expires_after=30.0, expect=ME)


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


class Ward:
    """Orders over a machine that the test plays: its commands are scripts, its processes a directory."""

    def __init__(self, root: Path, **more: Any) -> None:
        self.root = root
        (root / "proc/1").mkdir(parents=True)  # the first process: the tree is the machine's
        (root / "state").mkdir()
        self.outbox = Outbox(root / "spool", AgentIdentity(node=NODE, incarnation=ME, agent_run="r"))
        self.senses = Watermarks([Probe("log", lambda _: [], period=1.0, witness=True)], self.outbox)
        allow = more.pop("allow", ("reset", "reboot", "inject", "check"))
        self.log = root / "messages"
        self.log.touch()
        self.smi = script(root / "nvidia-smi", f'echo "$@" >> {root}/called')
        self.rebooter = script(root / "reboot", f"echo reboot >> {root}/called")
        settings = wish(root, allow=allow, token="tok3n-of-this-node")
        self.hands = NodeTools(
            settings=settings, node=NODE, me=ME, tests=self._tests, text_log=self.log,
            drills=Drills(root / "drills.json"),
            proc=root / "proc", reset=(str(self.smi), "--gpu-reset"), reboots=((str(self.rebooter),),),
        )  # fmt: skip

    def _tests(self) -> Sequence[Exercise]:
        return [Exercise("compute", 1, lambda _: ""), Exercise("memory", 2, lambda _: "a bit is stuck")]

    @property
    def carry(self) -> dict[type, Carry]:
        return NodeOrders(self.hands, self.senses).carry

    def process(self, pid: int, name: str, *devices: str) -> None:
        fd = self.root / "proc" / str(pid) / "fd"
        fd.mkdir(parents=True)
        (fd.parent / "comm").write_text(f"{name}\n")
        for number, device in enumerate(devices):
            (fd / str(number)).symlink_to(device)

    def gpu(self, address: str, minor: int) -> None:
        told = self.root / "proc/driver/nvidia/gpus" / address / "information"
        told.parent.mkdir(parents=True)
        told.write_text(f"Model: \t\t NVIDIA H200\nBus Type: \t PCIe\nDevice Minor: \t {minor}\nGPU Excluded:\t No\n")

    def said(self, kind: type) -> list[Any]:
        news = [msgspec.json.decode(entry.line, type=Item).news for entry in list(self.outbox._entries)]
        return [one for one in news if isinstance(one, kind)]

    @property
    def called(self) -> list[str]:
        path = self.root / "called"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def ward(tmp_path: Path) -> Ward:
    return Ward(tmp_path)


# --- orders


def test_a_reset_that_ends_well_is_its_own_proof(ward: Ward) -> None:
    said = ward.carry[RunReset](RunReset(key="k", devices=(0, 3)), LATER)
    assert said == [ResetDone(key="k", node=NODE, incarnation=ME)]
    assert ward.called == ["--gpu-reset -i 0,3"]


def test_a_reset_is_refused_while_a_process_holds_the_gpu(ward: Ward) -> None:
    ward.process(77, "python3", "/dev/null", "/dev/nvidia3", "/dev/nvidiactl")
    with pytest.raises(Refuse, match=r"held by python3 \(pid 77\) has /dev/nvidia3"):
        ward.carry[RunReset](RunReset(key="k", devices=(3,)), LATER)
    with pytest.raises(Refuse, match="held by"):
        ward.carry[RunReset](RunReset(key="k"), LATER)
    assert not ward.called
    ward.gpu("0000:18:00.0", 0)
    ward.carry[RunReset](RunReset(key="k", devices=(0,)), LATER)


def test_who_lets_go_by_itself_and_we_ourselves_do_not_keep_a_gpu_from_its_reset(ward: Ward) -> None:
    ward.process(9, "nvidia-persiste", "/dev/nvidia0")
    ward.process(10, "sickbay", "/dev/nvidia0")
    assert holders((0,), ward.root / "proc", ours=(10,)) == []


@pytest.mark.parametrize(
    ("text", "says"),
    [("echo 'GPU 00000000:18:00.0 is currently in use by one or more other processes'; exit 3", "in use by"),
     ("echo 'Unable to reset'; exit 255", "ended with 255: Unable to reset")],
)  # fmt: skip
def test_a_reset_that_fails_is_no_reset(ward: Ward, text: str, says: str) -> None:
    script(ward.smi, text)
    with pytest.raises(Refuse, match=says):
        ward.carry[RunReset](RunReset(key="k"), LATER)


def test_a_reset_that_takes_too_long_is_answered_for_and_never_killed_in_the_middle(
    ward: Ward, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DEADLINES, RunReset, 60.5)
    script(ward.smi, f"echo begun >> {ward.root}/called; sleep 2.5; echo finished >> {ward.root}/called")
    commands = Commands(CommandJournal(tmp_path / "commands.jsonl"), ward.outbox, ME, ward.carry)
    commands.take(ask(RunReset(key="k")))
    until(lambda: ward.called == ["begun"])
    commands.overdue(time.monotonic() + 70.0)
    assert [news.result for news in ward.said(Answered)] == ["unknown"]
    until(lambda: ward.called == ["begun", "finished"])
    until(lambda: not [thread for thread in threading.enumerate() if thread.name == "command c1"])


def test_a_reset_that_cannot_end_in_its_time_is_not_begun(ward: Ward) -> None:
    with pytest.raises(Refuse, match="too little of its time is left"):
        ward.carry[RunReset](RunReset(key="k"), time.monotonic() + 30.0)
    assert not ward.called


def test_a_reset_waits_for_one_that_an_agent_before_has_left_behind(ward: Ward) -> None:
    lock = Path(ward.hands.settings.state, "reset.lock")
    with one_at_a_time(lock, LATER), pytest.raises(Refuse, match="an earlier reset on this machine has not ended"):
        ward.carry[RunReset](RunReset(key="k"), time.monotonic() + RESET_TAKES + 0.3)
    assert not ward.called
    script(ward.smi, f"sleep 1.2 & echo $! >> {ward.root}/called")  # what it starts has the lock as well
    ward.carry[RunReset](RunReset(key="k"), LATER)
    with pytest.raises(Refuse, match="has not ended"), one_at_a_time(lock, time.monotonic()):
        pass
    with one_at_a_time(lock, LATER):
        assert len(ward.called) == 1


def test_a_reset_that_cannot_be_started_is_refused(ward: Ward) -> None:
    ward.smi.write_text("#!/no/such/interpreter\n")
    with pytest.raises(Refuse, match="cannot be started"):
        ward.carry[RunReset](RunReset(key="k"), LATER)


def test_a_gpu_is_held_by_its_own_device_file_whatever_its_index(ward: Ward) -> None:
    """As on machines whose driver was given the GPUs in another order than the bus has them."""
    for index, minor in enumerate((2, 3, 0, 1)):
        ward.gpu(f"0000:{0x10 + index:02x}:00.0", minor)
    ward.process(77, "python3", "/dev/nvidia2")
    assert holders((0,), ward.root / "proc") == ["python3 (pid 77) has /dev/nvidia2"]
    assert holders((2,), ward.root / "proc") == []
    assert holders((1, 3), ward.root / "proc") == []


def test_where_the_device_file_of_a_gpu_is_not_known_whoever_has_any_holds_it(ward: Ward) -> None:
    ward.gpu("0000:10:00.0", 0)
    ward.process(77, "python3", "/dev/nvidia5")
    assert holders((0,), ward.root / "proc") == []
    assert holders((0, 5), ward.root / "proc") == ["python3 (pid 77) has /dev/nvidia5"]
    (ward.root / "proc/driver/nvidia/gpus/0000:10:00.0/information").write_text("Model: x\n")
    assert holders((0,), ward.root / "proc") == ["python3 (pid 77) has /dev/nvidia5"]


@pytest.mark.parametrize(
    ("order", "what"),
    [(RunReset(key="k"), "reset"), (RunReboot(key="k"), "reboot"), (RunInject(key="k", line=XID_79), "inject"),
     (RunCheck(check="k", level=1), "check")],
)  # fmt: skip
def test_what_is_not_allowed_is_refused_with_what_to_write(tmp_path: Path, order: Any, what: str) -> None:
    ward = Ward(tmp_path, allow=())
    with pytest.raises(Refuse, match=rf"write allow: \[{what}\]"):
        ward.carry[type(order)](order, LATER)
    assert not ward.called


def test_a_check_brings_its_verdict_and_figures(ward: Ward) -> None:
    said = ward.carry[RunCheck](RunCheck(check="k", level=2), LATER)
    assert isinstance(said, Sequence)
    (checked,) = said
    assert isinstance(checked, Checked)
    assert (checked.verdict, checked.because) == ("fail", "memory: a bit is stuck")


def test_a_reboot_is_announced_before_it_happens_and_answered_by_nobody_here(ward: Ward, tmp_path: Path) -> None:
    commands = Commands(CommandJournal(tmp_path / "commands.jsonl"), ward.outbox, ME, ward.carry)
    commands.take(ask(RunReboot(key="k", reason="xid.79")))
    until(lambda: ward.said(Observed))
    assert [news.kind for news in ward.said(Observed)] == ["node.going_down"]
    assert not ward.called  # its announcement has not left yet
    batch = ward.outbox.batch()
    assert batch is not None
    ward.outbox.acknowledge(batch, batch.last)
    until(lambda: ward.called == ["reboot"])
    assert ward.said(Answered) == []
    assert CommandJournal(tmp_path / "commands.jsonl").known["c1"].leaving == ME.boot_id
    commands.overdue(time.monotonic() + 1000.0)


def test_a_reboot_that_fails_is_refused_and_its_announcement_taken_back(ward: Ward) -> None:
    script(ward.rebooter, "echo 'Access denied'; exit 1")
    said = ward.carry[RunReboot](RunReboot(key="k"), LATER)
    assert isinstance(said, CarriedOut)
    assert said.leave is not None
    with pytest.raises(Refuse, match="ended with 1: Access denied"):
        said.leave()
    assert [(news.kind, news.fields) for news in said.stays] == [("node.going_down", {"seconds": 0})]


def test_an_injected_line_is_in_the_watched_file(ward: Ward) -> None:
    said = ward.carry[RunInject](RunInject(key="k", line=XID_79), LATER)
    assert isinstance(said, CarriedOut)
    assert ward.log.read_text().endswith(f" kernel: {XID_79}\n")
    with pytest.raises(Refuse, match="the kernel says no such thing"):
        ward.carry[RunInject](RunInject(key="k", line="hello"), LATER)
    ward.hands = NodeTools(settings=ward.hands.settings, node=NODE, me=ME, tests=list)
    with pytest.raises(Refuse, match="watches no text log"):
        ward.carry[RunInject](RunInject(key="k", line=XID_79), LATER)


def test_a_look_says_when_everything_has_been_read(ward: Ward) -> None:
    began = time.monotonic()
    ward.carry[RunLook](RunLook(look="l", settle=0.05), LATER)
    assert ward.senses.watermark >= began + 0.05


# --- the bundle


def packed(bundle: Path) -> dict[str, bytes]:
    with tarfile.open(bundle) as tar:
        return {name.partition("/")[2]: tar.extractfile(name).read() for name in tar.getnames()}


def test_a_bundle_has_what_people_ask_for_and_no_secret(ward: Ward) -> None:
    token_file = ward.root / "token"
    token_file.write_text("f1le-token\n")
    settings = replace(ward.hands.settings, token_file=str(token_file))
    state = Path(settings.state)
    (state / "kmsg.json").write_text('{"seq": 7}')
    commands = {
        "said.txt": ("sh", "-c", "echo tok3n-of-this-node f1le-token 'Authorization: Bearer abcdef' password=hunter2"),
        "none.txt": ("/nonexistent/command",),
        "slow.txt": ("sleep", "30"),
    }  # fmt: skip
    found = collect(state, settings, time.monotonic() + 1.0, BundleParts(commands=commands))
    assert (found.path.stat().st_mode & 0o777, found.size) == (0o600, found.path.stat().st_size)
    assert set(found.missing) >= {"none.txt", "slow.txt"}
    parts = packed(found.path)
    assert {"versions.json", "settings.json", "said.txt", "agent/kmsg.json"} <= parts.keys()
    everything = b"".join(parts.values())
    for secret in (b"tok3n-of-this-node", b"f1le-token", b"abcdef", b"hunter2"):
        assert secret not in everything


def test_a_bundle_follows_no_link_waits_for_no_pipe_and_has_no_secret_of_a_file(ward: Ward) -> None:
    state = Path(ward.hands.settings.state)
    (ward.root / "shadow").write_text("root:$6$hash")
    (state / "kmsg.json").symlink_to(ward.root / "shadow")
    os.mkfifo(state / "pipe.json")
    (state / "fence.json").write_text('{"because": "curl -u a:hunter2", "api_key": "hunter2"}')
    linked = ward.root / "messages.old"
    linked.symlink_to(ward.root / "shadow")
    files = {"messages.txt": ward.log, "old.txt": linked, "log.d": ward.root}
    ward.log.write_text("export WANDB_API_KEY=hunter2\n")
    found = collect(state, ward.hands.settings, LATER, BundleParts(commands={}, files=files))
    parts = packed(found.path)
    assert {"old.txt", "log.d", "agent/kmsg.json", "agent/pipe.json"} <= set(found.missing)
    assert b'"api_key": "(removed)"' in parts["agent/fence.json"]
    everything = b"".join(parts.values())
    assert b"hunter2" not in everything
    assert b"$6$hash" not in everything


def test_a_segment_that_was_reported_while_it_is_listed_keeps_no_bundle_away(ward: Ward) -> None:
    assert _listed(ward.root / "r1.jsonl") == b"r1.jsonl gone"


def test_what_a_killed_agent_left_of_a_bundle_goes_with_the_next(ward: Ward) -> None:
    state = Path(ward.hands.settings.state)
    (state / "bundles").mkdir(parents=True)
    half = state / "bundles" / ".sickbay-c-n1-20260101T000000Z.tar.gz.0123456789ab"
    half.write_bytes(b"half")
    found = collect(state, ward.hands.settings, LATER, BundleParts(commands={}, files={}))
    assert list((state / "bundles").iterdir()) == [found.path]


def test_a_bundle_has_the_end_of_what_is_long_and_no_more_than_its_size(
    ward: Ward, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sickbay.agent.bundle.PART", 1000)
    monkeypatch.setattr("sickbay.agent.bundle.WHOLE", 4000)
    ward.log.write_text("".join(f"line {number}\n" for number in range(1000)))
    commands = {f"{number}.txt": ("cat", str(ward.log)) for number in range(10)}
    found = collect(
        Path(ward.hands.settings.state), ward.hands.settings, LATER, BundleParts(commands=commands, files={})
    )
    parts = packed(found.path)
    assert parts["0.txt"].endswith(b"line 999\n")
    assert max(map(len, parts.values())) <= 1000
    assert sum(map(len, parts.values())) <= 4000


def test_a_command_of_a_bundle_that_hangs_is_ended_with_all_that_it_began(
    ward: Ward, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sickbay.agent.bundle.TAKES", 0.3)
    began = time.monotonic()
    commands = {"slow.txt": ("sh", "-c", "sleep 30 & sleep 30")}
    found = collect(
        Path(ward.hands.settings.state), ward.hands.settings, LATER, BundleParts(commands=commands, files={})
    )
    assert "slow.txt" in found.missing
    assert time.monotonic() - began < 10


def test_the_latest_few_bundles_are_kept(ward: Ward) -> None:
    state = Path(ward.hands.settings.state)
    for number in range(5):
        found = collect(state, ward.hands.settings, LATER, BundleParts(commands={}))
        found.path.rename(found.path.with_name(f"sickbay-old-{number}.tar.gz"))
        os.utime(state / "bundles" / f"sickbay-old-{number}.tar.gz", (number, number))
    collect(state, ward.hands.settings, LATER, BundleParts(commands={}))
    assert len(list((state / "bundles").iterdir())) == KEEP


def test_the_answer_to_collect_says_where(ward: Ward, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sickbay.agent.bundle.COMMANDS", {})
    said = ward.carry[RunCollect](RunCollect(key="k"), LATER)
    assert isinstance(said, CarriedOut)
    (news,) = said.news
    assert isinstance(news, Observed)
    assert Path(str(news.fields["path"])).stat().st_size == news.fields["size"]
    assert str(news.fields["path"]) in said.text


# --- how it is put together


def test_a_probe_that_cannot_be_made_is_one_line_and_the_rest_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(where: ProbeContext, made: Made) -> None:  # noqa: ARG001 - a Maker
        raise RuntimeError("no driver")

    def fine(where: ProbeContext, made: Made) -> None:  # noqa: ARG001 - a Maker
        made.probes.append(Probe("fine", lambda _: [], period=1.0))

    made = probes_for(ProbeContext(wish(tmp_path), NODE, Deduplicator()), [("GPUs", broken), ("x", fine)])
    assert [probe.name for probe in made.probes] == ["fine"]
    assert made.troubles == ["GPUs cannot be watched: RuntimeError: no driver"]
    assert capsys.readouterr().err.count("\n") == 1


def test_the_sources_are_those_that_the_settings_name(tmp_path: Path) -> None:
    named = wish(tmp_path, sources=("kmsg", "/var/log/here", "journal"))
    assert [source.name for source in sources_for(named, Places(tmp_path), NODE, "b")] == [
        "devkmsg",
        "text:/var/log/here",
        "journal",
    ]
    assert "auto" not in [source.name for source in sources_for(wish(tmp_path), Places(tmp_path), NODE, "b")]


def test_systemd_hears_ready_and_signs_of_life(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.bind(str(tmp_path / "notify"))
        line.settimeout(5)
        told = Watchdog({"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "4000000"})
        told.ready("here\nand there")
        assert line.recv(100) == b"READY=1\nSTATUS=here and there"
        for now in (100.0, 101.0, 102.5):
            told.alive(now)
        told.ending()
        assert [line.recv(100) for _ in range(3)] == [b"WATCHDOG=1", b"WATCHDOG=1", b"STOPPING=1"]
    Watchdog({}).ready()
    told.ready()  # nobody listens any more: no harm


def test_a_systemd_that_reads_nothing_any_more_holds_nobody_up(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.bind(str(tmp_path / "notify"))
        told = Watchdog({"NOTIFY_SOCKET": str(tmp_path / "notify")})
        queue = int(Path("/proc/sys/net/unix/max_dgram_qlen").read_text())

        def go_on() -> None:
            for number in range(queue + 3):
                told.status(str(number))

        speaks = threading.Thread(target=go_on, daemon=True)
        speaks.start()
        speaks.join(20)
        assert not speaks.is_alive()


def test_the_watchdog_is_not_fed_by_an_agent_whose_reporter_does_not_live(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.bind(str(tmp_path / "notify"))
        line.settimeout(5)
        told = Watchdog({"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "4000000"})
        agent = NodeAgent(wish(tmp_path, sources=(str(tmp_path / "messages"),), gpus=0, metrics=0.0), told)
        agent._each_second(100.0)  # neither reporter nor poller has been started
        agent._life.reporter.start()
        agent._each_second(200.0)  # nobody polls
        told.ending()
        assert line.recv(100) == b"STOPPING=1"
        agent._life.reporter.finish(5.0)
        agent._ending()
        agent._outbox.close()


# --- no room


def test_where_there_is_no_room_measurements_go_then_steps_and_faults_are_summed_up(tmp_path: Path) -> None:
    box = Outbox(tmp_path, AgentIdentity(node=NODE, incarnation=ME, agent_run="r"), most_items=100)
    for number in range(60):
        box.put([say(Measured(values={"gpu.0.temperature": 40.0 + number}), 1.0)])
        box.put([say(Stepped(job=JobId("j"), attempt=1, step=number), 1.0)])
        box.put(
            [say(Observed(node=NODE, kind="xid", fields={"number": 79, "pid": number}, text=f"line {number}"), number)]
        )
    box.put([say(Answered(command="c", result=CommandResult.DONE), 1.0)])
    news = [msgspec.json.decode(entry.line, type=Item).news for entry in box._entries]
    assert len(news) <= 100
    assert sum(one.count for one in news if isinstance(one, Observed) and one.kind == "xid") == 60
    assert len([one for one in news if isinstance(one, Measured)]) < len(
        [one for one in news if isinstance(one, Stepped)]
    )
    assert [one.result for one in news if isinstance(one, Answered)] == ["done"]
    box.close()


def test_no_number_of_faults_is_lost_though_there_is_room_for_few(tmp_path: Path) -> None:
    box = Outbox(tmp_path, AgentIdentity(node=NODE, incarnation=ME, agent_run="r"), most_items=50)
    for number in range(1000):
        fields: dict[str, str | int] = {"number": 70 + number % 7, "pci": f"0000:{number % 200:02x}:00"}
        box.put([say(Observed(node=NODE, kind="xid", fields=fields, text=XID_79), float(number))])
    kept = [msgspec.json.decode(entry.line, type=Item) for entry in box._entries]
    faults = [item for item in kept if isinstance(item.news, Observed) and item.news.kind == "xid"]
    assert len(kept) <= 60
    counts = [item.news.count for item in faults]
    assert sum(counts) == 1000
    assert {item.news.fields["number"] for item in faults} == set(range(70, 77))
    assert min(item.mono for item in faults) == 0.0
    box.close()
    again = Outbox(tmp_path, AgentIdentity(node=NODE, incarnation=ME, agent_run="r2"), most_items=50)
    batch = again.batch()
    assert batch is not None
    again.close()


def test_an_earlier_runs_spool_is_cut_down_to_its_faults_before_anything_of_it_goes(tmp_path: Path) -> None:
    old = Outbox(tmp_path, AgentIdentity(node=NODE, incarnation=ME, agent_run="r1"))
    for number in range(50):
        old.put([say(Measured(values={f"series.{n}": float(number) for n in range(20)}), 1.0)])
    old.put([say(Observed(node=NODE, kind="xid", fields={"number": 79}, text=XID_79), 1.0)])
    old.close()
    new = Outbox(tmp_path, AgentIdentity(node=NODE, incarnation=ME, agent_run="r2"), most_bytes=2000)
    batch = new.batch()
    assert batch is not None
    assert batch.voice.agent_run == "r1"
    assert [msgspec.json.decode(line, type=Item).news.kind for line in batch.items] == ["xid"]
    new.close()


# --- as a process


@contextmanager
def running(root: Path, door: FrontDoor, **more: str) -> Iterator[subprocess.Popen[bytes]]:
    environment = {
        **os.environ, "SICKBAY_URL": f"http://127.0.0.1:{door.port}", "SICKBAY_TOKEN": TOKEN, "SICKBAY_NODE": "c/n1",
        "SICKBAY_INSTANCE_ID": "i-1", "SICKBAY_STATE": str(root / "state"), "SICKBAY_SOURCES": str(root / "messages"),
        "SICKBAY_METRICS": "off", "SICKBAY_TRUST_LOGS": "true", **more,
    }  # fmt: skip
    command = [sys.executable, "-m", "sickbay", "agent", "--config", str(root / "agent.yaml")]
    with (root / "agent.err").open("ab") as errors:
        process = subprocess.Popen(command, env=environment, stderr=errors)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def door(tmp_path: Path) -> Iterator[FrontDoor]:
    (tmp_path / "agent.yaml").write_text("allow: [inject]\n")
    (tmp_path / "messages").touch()
    front = FrontDoor()
    front.open()
    yield front
    front.shut()


def numbers(door: FrontDoor) -> list[int]:
    return [news.fields["number"] for news in door.news(Observed) if news.kind == "xid" and not news.unconfirmed]


def dated(text: str) -> str:
    return f"{time.strftime('%b %e %H:%M:%S')} {os.uname().nodename} kernel: {text}\n"


def test_the_agent_reports_a_line_once_across_its_own_death_and_ends_politely(tmp_path: Path, door: FrontDoor) -> None:
    (tmp_path / "messages").write_text(dated(XID_79))
    name = name_of(tmp_path / "messages")
    with running(tmp_path, door) as process:
        until(lambda: numbers(door) == [79], 20, (tmp_path / "agent.err").read_text())
        assert TOKEN not in Path(f"/proc/{process.pid}/environ").read_text()
        assert TOKEN not in Path(f"/proc/{process.pid}/cmdline").read_text()
        until(lambda: (place := Places(tmp_path / "state").of(name, LogPlace)) is not None and place.offset > 0)
    with running(tmp_path, door) as process:
        with (tmp_path / "messages").open("a") as log:
            log.write(dated(XID_63))
        until(lambda: numbers(door) == [79, 63], 20)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert {report.boot_id for report in door.reports} == {boot}


def test_a_drill_goes_the_whole_way_though_what_else_stands_in_the_log_does_not_count(
    tmp_path: Path, door: FrontDoor
) -> None:
    with running(tmp_path, door, SICKBAY_TRUST_LOGS="false"):
        until(lambda: door.reports, 20)
        order = RunInject(key="k", line=XID_79)
        with (tmp_path / "messages").open("a") as log:
            log.write(dated(XID_63))
        door.store.post([Command(id="c1", node=NODE, order=order, posted_at=datetime.now(UTC), expires_after=30.0)])
        door.posted.set()
        until(lambda: numbers(door) == [79], 20)
        until(lambda: not list(door.store.mail(NODE)))
        assert f"kernel: {XID_79}" in (tmp_path / "messages").read_text()


@pytest.mark.parametrize(("next_boot", "result"), [("boot-2", "done"), ("boot-1", "unknown")])
def test_a_reboot_goes_the_whole_way_to_the_next_boot(
    tmp_path: Path, door: FrontDoor, next_boot: str, result: str
) -> None:
    programs, boot = tmp_path / "bin", tmp_path / "boot_id"
    programs.mkdir()
    script(programs / "systemctl", f"echo $1 >> {tmp_path}/called")
    boot.write_text("boot-1")
    # Nothing else is on its path: no machine is rebooted by this test.
    given = {"PATH": str(programs), "SICKBAY_ALLOW": "reboot", "SICKBAY_BOOT_ID_FILE": str(boot)}
    (tmp_path / "agent.yaml").write_text("")
    with running(tmp_path, door, **given) as process:
        until(lambda: door.reports, 20)
        me = Incarnation(instance_id="i-1", boot_id="boot-1")
        order = replace(ask(RunReboot(key="k"), "k/c/n1"), expect=me)
        door.store.post([order])
        door.posted.set()
        until((tmp_path / "called").exists, 20)
        process.kill()  # as the machine goes down
        process.wait()
    assert "node.going_down" in [news.kind for news in door.news(Observed)]
    boot.write_text(next_boot)
    with running(tmp_path, door, **given):
        said = until(lambda: [item.news for report in door.reports for item in report.items
                              if isinstance(item.news, Answered)], 20)  # fmt: skip
        assert [news.result for news in said] == [result]
        until(lambda: not list(door.store.mail(NODE)))
    assert (tmp_path / "called").read_text() == "reboot\n"
    assert not door.news(Outcome)


def test_two_agents_of_one_node_do_not_run_at_once(tmp_path: Path, door: FrontDoor) -> None:
    with running(tmp_path, door):
        until(lambda: door.reports, 20)
        with running(tmp_path, door) as second:
            assert second.wait(20) == 2
        assert "another agent of this node is running" in (tmp_path / "agent.err").read_text()


def test_a_boot_that_ended_is_noted_and_nothing_of_it_is_read_where_nobody_listened(
    tmp_path: Path, door: FrontDoor
) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "boot.json").write_text('{"boot_id":"older","uid":"i-1","instance_id":"i-1"}')
    with running(tmp_path, door):
        until(lambda: door.reports, 20)
    assert json.loads((tmp_path / "state" / "boot.json").read_text())["boot_id"] != "older"


# --- one look


def once(tmp_path: Path, *words: str) -> Any:
    environment = {"SICKBAY_INSTANCE_ID": "i-1", "SICKBAY_STATE": str(tmp_path), "SICKBAY_GPUS": "0",
                   "SICKBAY_SOURCES": str(tmp_path / "messages"), "SICKBAY_TOKEN": "s3cret",
                   "SICKBAY_TRUST_LOGS": "true"}  # fmt: skip
    (tmp_path / "agent.yaml").touch()
    return CliRunner().invoke(agent, ["--config", str(tmp_path / "agent.yaml"), *words], env=environment)


def test_one_look_prints_what_is_wrong_and_exits_1(tmp_path: Path) -> None:
    (tmp_path / "messages").write_text(dated(XID_79))
    found = once(tmp_path, "--once", "--json")
    assert found.exit_code == 1
    rows = [row for row in json.loads(found.stdout) if row["code"] == "xid.79"]
    assert [(row["severity"], row["remedy"], row["count"]) for row in rows] == [("fatal", "reboot", 1)]
    text = once(tmp_path, "--once")
    assert "xid.79" in text.stdout
    assert text.exit_code == 1


def test_one_look_by_who_may_not_read_the_journal_says_so_and_does_not_call_it_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mute = tmp_path / "journalctl"
    mute.write_text("#!/bin/sh\nexec sleep 60\n")
    mute.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("sickbay.agent.probes.journal.FIRST_WORD", 0.1)
    found = once(tmp_path, "--once", "--set", "sources=journal")
    assert "run the agent as root or in the group systemd-journal" in found.stdout
    assert found.exit_code == 1


def test_one_look_shows_what_nobody_confirms_as_that(tmp_path: Path) -> None:
    (tmp_path / "messages").write_text(dated(XID_79))
    found = once(tmp_path, "--once", "--json", "--set", "trust_logs=false")
    (row,) = (row for row in json.loads(found.stdout) if row["code"] == "xid.79")
    assert row["unconfirmed"]
    assert "unconfirmed" in once(tmp_path, "--once", "--set", "trust_logs=false").stdout


def test_all_settings_are_printed_with_their_reasons_and_without_secrets(tmp_path: Path) -> None:
    found = once(tmp_path, "--print-settings")
    assert found.exit_code == 0
    assert "s3cret" not in found.stdout
    assert "# Default off: a network that fails must not stop training." in found.stdout
    assert json.loads(once(tmp_path, "--print-settings", "--json").stdout)["gpus"] == 0
