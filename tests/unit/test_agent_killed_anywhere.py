"""An agent that dies between any two of its steps: what was written to its logs is at the controller once, by count."""

import errno
import gzip
import os
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.agent_rig import XID_63, XID_79
from tests.support.thorough import examples

from sickbay.agent import places as places_module
from sickbay.agent import spool as spool_module
from sickbay.agent.outbox import Outbox
from sickbay.agent.places import Places
from sickbay.agent.probes import Probe
from sickbay.agent.probes.begins import begin_in_boot, begin_in_file
from sickbay.agent.probes.kernel_log import BootLog, KernelLog, LineSource, LogPlace
from sickbay.agent.probes.system_log import LineTrust, SystemLog
from sickbay.agent.spool import AgentIdentity
from sickbay.agent.watermark import Watermarks
from sickbay.model.facts import Observed
from sickbay.model.fleet import Incarnation, NodeId
from sickbay.model.protocol import Item, Report, fact_id

NODE = NodeId("c/n1")
ME = Incarnation(instance_id="i", boot_id="b")


class Controller:
    """Counts each item once, by its id, as Reception does."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.told: list[Observed] = []

    def take(self, box: Outbox, *, most: int = 1000, acknowledge: bool = True) -> None:
        while most > 0 and (batch := box.batch()) is not None:
            most -= 1
            me = batch.voice.incarnation
            items = tuple(msgspec.json.decode(line, type=Item) for line in batch.items)
            report = Report(
                proto=1, node=batch.voice.node, instance_id=me.instance_id, boot_id=me.boot_id,
                agent_run=batch.voice.agent_run, first_seq=batch.first, mono_now=0.0, wall_now=0.0, watermark=0.0,
            )  # fmt: skip
            for item in items:
                name = fact_id(report, item)
                if name not in self.counts and isinstance(item.news, Observed):
                    self.counts[name] = item.news.count if item.news.kind == "xid" else 0
                    self.told.append(item.news)
            if not acknowledge:
                return
            box.acknowledge(batch, batch.last)

    @property
    def events(self) -> int:
        return sum(self.counts.values())

    def kinds(self) -> list[str]:
        return [news.kind for news in self.told]


class Run:
    """One run of an agent; to kill it is to forget it."""

    def __init__(self, state: Path, files: Sequence[Path], name: str) -> None:
        self.places = Places(state)
        voice = AgentIdentity(node=NODE, incarnation=ME, agent_run=name)
        self.box = Outbox(state / "spool", voice, self.places)
        sources: list[LineSource] = []
        for file in files:
            if file.name == "kmsg":
                sources.append(BootLog(file, begin_in_boot(self.places, "kmsg", LogPlace(boot_id="b")).told))
            else:
                begin = begin_in_file(self.places, f"text:{file}", LogPlace(boot_id="b"))
                reading = LineTrust(trusted=True, own_zone=True)
                sources.append(SystemLog(file, begin.heard, reading, began=-1e9, told=begin.told))
        self.log = KernelLog(sources, NODE, lambda _: None)
        self.probe = Probe(
            "kernel_log", self.log.look, 2.0, witness=True, flush=self.log.flush, places=lambda: self.log.places
        )
        self.senses = Watermarks([self.probe], self.box)

    def look(self, now: float) -> None:
        found = self.log.look(now)
        self.box.put(found, self.log.places)

    def keep(self) -> None:
        self.box.keep(self.log.places)

    def kill(self) -> None:
        self.log.close()
        self.box.close()


class Agent:
    def __init__(self, root: Path, *files: Path) -> None:
        self.state = root / "state"
        self.files = files or (root / "kmsg",)
        self.runs = 0
        self.run = self.again()

    def again(self) -> Run:
        if self.runs:
            self.run.kill()
        self.runs += 1
        self.run = Run(self.state, self.files, f"r{self.runs}")
        return self.run

    def end(self, controller: Controller) -> None:
        """A last run that reads and tells everything."""
        run = self.again()
        run.look(1e6)
        run.look(1e6 + 5)
        run.box.put(run.log.flush(1e6 + 6), run.log.places)
        controller.take(run.box)
        run.kill()


def dated(text: str, ahead: float = 0.0) -> str:
    """As a log daemon writes it."""
    return f"{time.strftime('%b %e %H:%M:%S', time.localtime(time.time() + ahead))} host kernel: {text}"


def append(path: Path, text: str, times: int = 1) -> None:
    with path.open("a") as file:
        file.write(times * f"{text}\n")


def test_a_sum_that_was_told_is_not_told_again_by_the_next_run(tmp_path: Path) -> None:
    agent, controller = Agent(tmp_path), Controller()
    append(tmp_path / "kmsg", XID_63, 10)
    agent.run.look(10.0)
    agent.run.keep()
    agent.run.look(11.1)  # the sum of nine; killed before a place was kept
    controller.take(agent.run.box)
    agent.end(controller)
    assert controller.events == 10


def test_a_sum_of_one_kind_is_not_told_again_because_another_is_still_counted(tmp_path: Path) -> None:
    agent, controller = Agent(tmp_path), Controller()
    append(tmp_path / "kmsg", XID_63, 5)
    agent.run.look(10.0)
    append(tmp_path / "kmsg", XID_79, 5)
    agent.run.look(10.9)
    append(tmp_path / "kmsg", XID_63, 5)
    agent.run.look(11.1)  # the first sum of the one, while the other's second has not passed
    controller.take(agent.run.box)
    agent.end(controller)
    assert controller.events == 15


STEPS = [
    "write 63",
    "write 63",
    "write 79",
    "look",
    "look",
    "a second",
    "keep",
    "tell",
    "tell in vain",
    "kill",
    "rotate",
]


@pytest.mark.slow
@settings(max_examples=examples(150), deadline=None)
@given(steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(1, 9)), max_size=40))
def test_whatever_is_done_in_whatever_order_a_count_is_a_count(
    steps: list[tuple[str, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("agent")
    kmsg, messages = root / "kmsg", root / "messages"
    for file in (kmsg, messages):
        append(file, "begin")
    agent, controller = Agent(root, kmsg, messages), Controller()
    agent.run.look(10.0)
    agent.run.keep()
    now, written, turns = 10.0, 0, 0
    for step, number in steps:
        if step.startswith("write"):
            line = XID_63 if step == "write 63" else XID_79
            append(kmsg, line, number)
            # Of another device: what two files tell of one event is one event, which is not meant here.
            append(messages, dated(line.replace("0000:", "0001:")), number)
            written += 2 * number
        elif step == "look":
            now += number / 10
            agent.run.look(now)
        elif step == "a second":
            now += 1.1
        elif step == "keep":
            agent.run.keep()
        elif step.startswith("tell"):
            controller.take(agent.run.box, acknowledge=step == "tell")
        elif step == "kill":
            agent.again()
        else:
            turns += 1
            messages.rename(root / f"messages.{turns}")
            append(messages, f"begin {turns}")
    agent.end(controller)
    assert controller.events == written


@pytest.mark.parametrize("how", ["copied", "packed"])
def test_the_first_line_of_a_log_that_is_rotated_while_its_sum_is_counted_is_not_told_twice(
    tmp_path: Path, how: str
) -> None:
    messages = tmp_path / "messages"
    messages.touch()
    agent, controller = Agent(tmp_path, messages), Controller()
    agent.run.look(10.0)
    agent.run.keep()
    time.sleep(0.02)
    append(messages, dated(XID_79), 5)
    agent.run.look(11.0)  # one is told, four are counted: the place has not moved
    controller.take(agent.run.box)
    agent.run.kill()
    if how == "copied":
        shutil.copy(messages, tmp_path / "messages.1")
        os.truncate(messages, 0)
    else:
        (tmp_path / "messages.1.gz").write_bytes(gzip.compress(messages.read_bytes()))
        messages.unlink()
    time.sleep(0.02)
    append(messages, dated(XID_79), 5)
    agent.end(controller)
    assert controller.events == 10


# --- the disk


class Disk:
    """Fails when it is told to; each call of spool and places goes through it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fails: dict[str, int] = {}
        self.calls: list[str] = []
        self._patch = monkeypatch
        for module in (spool_module, places_module):
            layer = _Layer(self)
            monkeypatch.setattr(module, "os", layer)

    def call(self, name: str, real: Callable[..., int], *args: object) -> int:
        self.calls.append(name)
        if name in self.fails:
            raise OSError(self.fails[name], os.strerror(self.fails[name]))
        return real(*args)


class _Layer:
    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> object:
        real = getattr(os, name)
        if name in {"open", "write", "pwrite", "ftruncate", "posix_fallocate"}:
            return lambda *args: self._disk.call(name, real, *args)
        return real


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def test_the_place_does_not_move_before_the_spool_has_what_was_found(tmp_path: Path, disk: Disk) -> None:
    agent, controller = Agent(tmp_path), Controller()
    agent.run.keep()
    disk.fails = {"write": errno.ENOSPC}
    append(tmp_path / "kmsg", XID_79)
    agent.run.look(10.0)
    disk.fails = {}  # somebody makes room
    agent.run.keep()
    agent.end(controller)  # killed before anything was told
    assert controller.events == 1


@pytest.mark.parametrize("call", ["open", "write", "pwrite", "ftruncate", "posix_fallocate"])
@pytest.mark.parametrize("why", [errno.ENOSPC, errno.EIO, errno.EMFILE, errno.EROFS])
def test_a_call_that_fails_for_a_while_loses_nothing_and_doubles_nothing(
    tmp_path: Path, disk: Disk, call: str, why: int
) -> None:
    agent, controller = Agent(tmp_path), Controller()
    append(tmp_path / "kmsg", XID_79, 3)
    agent.run.look(10.0)
    agent.run.keep()
    disk.fails = {call: why, **({"write": why} if call == "ftruncate" else {})}
    append(tmp_path / "kmsg", XID_63, 3)
    agent.run.look(11.5)
    agent.run.keep()
    controller.take(agent.run.box)
    agent.run.look(13.0)
    disk.fails = {}
    append(tmp_path / "kmsg", XID_79, 3)
    agent.run.look(15.0)
    agent.run.keep()
    controller.take(agent.run.box, acknowledge=False)
    agent.end(controller)
    assert controller.events == 9
    assert not [path for path in (agent.state / "spool").glob("*.jsonl") if path.stat().st_size > 1 << 20]


def test_what_is_acknowledged_stays_in_the_spool_while_its_place_is_kept_nowhere_else(
    tmp_path: Path, disk: Disk
) -> None:
    agent, controller = Agent(tmp_path), Controller()
    agent.run.keep()
    disk.fails = {"pwrite": errno.EIO}
    append(tmp_path / "kmsg", XID_79, 5)
    agent.run.look(10.0)
    agent.run.look(12.0)  # the sum of four
    controller.take(agent.run.box)
    append(tmp_path / "kmsg", XID_79, 2)
    agent.end(controller)
    assert controller.events == 7


@pytest.mark.parametrize("number", range(40))
def test_a_disk_that_is_full_from_any_call_on_and_a_death_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    class Full(Disk):
        def call(self, name: str, real: Callable[..., int], *args: object) -> int:
            self.calls.append(name)
            # What has its room already can be written over.
            if len(self.calls) > number and name in {"write", "posix_fallocate"}:
                raise OSError(errno.ENOSPC, "full")
            return real(*args)

    controller = Controller()
    with monkeypatch.context() as patch:
        Full(patch)
        agent = Agent(tmp_path)
        agent.run.keep()
        for turn in range(4):
            append(tmp_path / "kmsg", XID_79, 3)
            agent.run.look(10.0 + 2 * turn)
            agent.run.look(11.1 + 2 * turn)
            controller.take(agent.run.box)
            agent.run.keep()
            if turn == 1:
                agent.again()
    some = (agent.state / "places").stat().st_size > 0
    agent.end(controller)
    # Where there is no room for a place at all, what was told is told again, but not lost.
    assert controller.events == 12 if some else controller.events >= 12
    assert some or number < 5


def test_a_sum_that_was_told_while_the_disk_was_full_is_not_told_again_though_the_answer_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(Disk):
        def call(self, name: str, real: Callable[..., int], *args: object) -> int:
            if name == "open" and isinstance(args[1], int) and args[1] & os.O_EXCL:  # no new segment
                raise OSError(errno.ENOSPC, "full")
            return real(*args)

    agent, controller = Agent(tmp_path), Controller()
    with monkeypatch.context() as patch:
        Full(patch)
        append(tmp_path / "kmsg", XID_79, 3)
        agent.run.look(10.0)
        append(tmp_path / "kmsg", XID_79, 3)
        agent.run.look(11.1)
        controller.take(agent.run.box, acknowledge=False)
        append(tmp_path / "kmsg", XID_79, 3)
        agent.run.look(11.5)
    agent.end(controller)
    assert controller.events == 9


def test_room_for_a_full_disk_is_taken_again_before_anything_more_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(Disk):
        def call(self, name: str, real: Callable[..., int], *args: object) -> int:
            if name == "posix_fallocate" or (name == "open" and isinstance(args[1], int) and args[1] & os.O_EXCL):
                raise OSError(errno.ENOSPC, "full")
            return real(*args)

    agent, controller = Agent(tmp_path), Controller()

    def fault(at: float) -> None:
        append(tmp_path / "kmsg", XID_79, 3)
        agent.run.look(at)
        agent.run.look(at + 2.0)

    with monkeypatch.context() as patch:
        Full(patch)
        fault(10.0)  # into the reserve
        controller.take(agent.run.box)
    agent.run.keep()  # there is room, and nothing to tell
    with monkeypatch.context() as patch:
        Full(patch)
        fault(100.0)
        controller.take(agent.run.box, acknowledge=False)
        append(tmp_path / "kmsg", XID_79, 3)
        agent.end(controller)
    assert controller.events == 9


# --- killed in a call


class Killed(BaseException):
    """As SIGKILL: nothing of the agent catches it."""


@pytest.mark.parametrize("how", ["before", "half", "after"])
@pytest.mark.parametrize("number", range(36))
def test_killed_in_any_call_to_the_disk_it_loses_nothing_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, how: str
) -> None:
    class Deadly(Disk):
        def call(self, name: str, real: Callable[..., int], *args: object) -> int:
            self.calls.append(name)
            if len(self.calls) != number + 1:
                return real(*args)
            if how == "half" and name in {"write", "pwrite"}:
                real(args[0], memoryview(args[1])[: len(args[1]) // 2], *args[2:])  # type: ignore[arg-type]
            elif how == "after":
                real(*args)
            raise Killed

    controller = Controller()
    files = (tmp_path / "kmsg", tmp_path / "messages")
    for file in files:
        append(file, "begin")
    with monkeypatch.context() as patch:
        Deadly(patch)
        agent: Agent | None = None
        with suppress(Killed):
            agent = Agent(tmp_path, *files)
            for turn in range(5):
                append(files[0], XID_79, 3)
                append(files[1], dated(XID_63), 3)
                agent.run.look(10.0 + 2 * turn)
                agent.run.keep()
                agent.run.look(11.1 + 2 * turn)
                controller.take(agent.run.box, acknowledge=turn != 1)
                if turn == 2:
                    files[1].rename(tmp_path / "messages.1")
                    append(files[1], "begin again")
    agent = agent or Agent(tmp_path, *files)
    agent.end(controller)
    written = sum(file.read_text().count("NVRM") for file in tmp_path.glob("*") if file.is_file())
    assert controller.events == written
