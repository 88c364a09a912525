"""What users write (heartbeats, output, names of processes) is read as if they meant ill."""

import json
import os
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.rank_rig import over
from tests.support.waiting import until
from tests.unit.test_agent_ranks import BOOT, NODE, Room, rank

from sickbay.agent.deadline import BoundedCalls
from sickbay.agent.node import look_in_time
from sickbay.agent.outbox import say
from sickbay.agent.probes import Probe
from sickbay.agent.probes.heartbeats import AttemptProgress, Beat
from sickbay.agent.rank_stacks import RunningRank, collect_stacks
from sickbay.agent.ranks.watch import RankWatch
from sickbay.agent.user_files import append, read_small
from sickbay.model.facts import Checkpointed, Hung, Observed, Stepped
from sickbay.model.fleet import JobId, NodeId
from sickbay.model.job import LogRule
from sickbay.model.protocol import Item, ItemNews

pytestmark = pytest.mark.slow

SECRET = '{"step": 666}'


def fifo(path: Path) -> None:
    os.mkfifo(path)


def listener(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        here = Path.cwd()
        os.chdir(path.parent)  # the name of a socket has room for a hundred characters
        try:
            one.bind(path.name)
        finally:
            os.chdir(here)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def secret(path: Path) -> None:
    beside = path.parent.parent / "secret.json"
    beside.write_text(SECRET)
    path.symlink_to(beside)


def huge(path: Path) -> None:
    path.write_text('{"step": 5}')
    os.truncate(path, 10 << 30)


def another_users(path: Path) -> None:
    path.write_text(SECRET)
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(path, 65534, 65534)


def loop(path: Path) -> None:
    path.symlink_to(path)


TRAPS: list[Callable[[Path], None]] = [fifo, listener, endless, secret, huge, another_users, loop, Path.mkdir]


def steps_seen(room: Room) -> list[int | None]:
    return [one.beat.step for _, one in sorted(room.watch._watched.items())]


def within(seconds: float, work: Callable[[], Any]) -> Any:
    """What it gives; fails where it does not come back."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()), daemon=True)
    thread.start()
    thread.join(seconds)
    assert found, "it did not come back, or it failed"
    return found[0]


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    one = Room(tmp_path)
    yield one
    one.played.close()


@pytest.mark.parametrize("trap", TRAPS)
def test_a_heartbeat_that_is_no_plain_file_of_the_ranks_own_is_not_read(
    room: Room, trap: Callable[[Path], None]
) -> None:
    room.ranks(rank(0), rank(0, attempt=2, start_within=5.0, expects_heartbeats=True))
    trap(room.run(0, 2) / "heartbeat.json")
    room.beat(7, rank=0)
    assert within(5.0, lambda: room.steps(1.0)) == [7]
    assert within(5.0, lambda: room.hangs(10.0)) == ["rank 0 on c/n1: no first heartbeat within 5 s of its start"]
    (room.run(0, 2) / "heartbeat.json").rename(room.run(0, 2) / "aside")
    room.beat(8, attempt=2)
    assert within(5.0, lambda: room.watch.look(20.0)) is not None
    assert steps_seen(room) == [7, 8]


def test_a_directory_that_is_a_link_is_not_gone_into(tmp_path: Path) -> None:
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "heartbeat.json").write_text("{}")
    (tmp_path / "run").symlink_to(tmp_path / "others")
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        read_small(tmp_path / "run" / "heartbeat.json")
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        append(tmp_path / "run" / "heartbeat.json", "x")


BODIES = [
    "[" * 100_000, '{"a":' * 100_000, '{"step": ' + "9" * 5000 + "}", '{"step": 1e300}', '{"step": -5}',
    '{"step": NaN}', '{"step": 1' + "0" * 30 + "}", "\ufeff{}", '"\\ud800"',
]  # fmt: skip


@pytest.mark.parametrize("body", BODIES)
def test_a_heartbeat_of_nonsense_is_no_step_and_blinds_nobody(room: Room, body: str) -> None:
    room.ranks(rank(0), rank(1))
    (room.run(1) / "heartbeat.json").write_text(body, encoding="utf-8")
    room.beat(7, rank=0)
    assert room.steps(1.0) == [7]
    assert steps_seen(room) == [7, None]


ODD = ["1" + "0" * 400, "1e999", "-1e999", "NaN", "true", '"x"', "[[[[[]]]]]", "-1", '{"a": 1}', '"\\ud800\\u001b[2J"']


@pytest.mark.parametrize("field", ["loss", "resumed_from", "skipped", "saved", "save_failed", "done", "of", "busy"])
@pytest.mark.parametrize("value", ODD)
def test_an_odd_value_beside_a_step_costs_the_value_and_not_the_step(room: Room, field: str, value: str) -> None:
    room.ranks(rank())
    (room.run() / "heartbeat.json").write_text(f'{{"step": 4, "{field}": {value}}}')
    found = room.look(1.0)
    assert [news.step for news in found if isinstance(news, Stepped)] == [4]
    sound(found)


def sound(found: list[ItemNews]) -> None:
    """It can be sent, and shown on a terminal."""
    for news in found:
        line = msgspec.json.encode(Item(seq=1, mono=0.0, news=news))
        assert msgspec.json.decode(line, type=Item).news == news
        assert all(text.isprintable() for text in texts(msgspec.to_builtins(news)))


def texts(value: object) -> list[str]:
    if isinstance(value, dict):
        return [text for one in value.values() for text in texts(one)]
    if isinstance(value, list | tuple):
        return [text for one in value for text in texts(one)]
    return [value] if isinstance(value, str) else []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
KEYS = ("step", "loss", "resumed_from", "skipped", "fenced", "saved", "save_failed", "busy", "done", "of", "answered")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(KEYS), JSON) | JSON | st.binary(max_size=60))
def test_no_heartbeat_breaks_its_reader_and_nothing_absurd_leaves_it(tmp_path: Path, body: Any) -> None:
    path = tmp_path / "heartbeat.json"
    path.write_bytes(body if isinstance(body, bytes) else json.dumps(body).encode())
    beat, progress = Beat(path), AttemptProgress(JobId("j"), 1)
    beat.read(1.0)
    told = [news for news in (progress.tell(beat, 1.0), progress.tell_standing(beat, 1.0)) if news is not None]
    sound([say(news).news for news in told])
    for news in told:
        if isinstance(news, Stepped):
            assert 0 <= news.step < 2**63


@pytest.mark.parametrize("trap", [fifo, listener, endless, huge, loop, Path.mkdir])
def test_output_that_is_no_plain_file_is_said_once_and_is_nobodys_hang(
    room: Room, trap: Callable[[Path], None]
) -> None:
    rules = (LogRule(name="step", pattern="step", starts_within=5.0),)
    room.ranks(rank(0), rank(1, log_rules=rules))
    trap(room.run(1) / "output")
    room.beat(7, rank=0)
    found = within(5.0, lambda: room.look(1.0))
    assert [news.step for news in found if isinstance(news, Stepped)] == [7]
    if trap is not huge:
        assert [news.kind for news in found if isinstance(news, Observed)] == ["agent.rule_unusable"]
        assert within(5.0, lambda: room.look(20.0)) == []


def test_a_run_directory_that_hangs_is_told_and_counts_against_no_rank(room: Room) -> None:
    files, come_back = BoundedCalls("run directories", 0.05), threading.Event()
    room.watch = RankWatch(room.base, NODE, BOOT, files)
    room.ranks(rank(0, stall_after=5.0))
    room.beat(7)
    assert room.steps(1.0) == [7]
    with pytest.raises(TimeoutError):  # a file system on which the read of a file does not return
        files.call(lambda: come_back.wait(30))
    room.beat(8)
    with pytest.raises(TimeoutError, match="run directories still do not answer"):
        room.look(100.0)
    come_back.set()
    until(lambda: answers(files))
    assert room.steps(101.0) == [8]
    assert room.hangs(105.0) == []
    assert room.hangs(107.0) == ["rank 0 on c/n1: no step after 8 for 5 s"]


def test_a_rank_that_writes_millions_of_empty_lines_does_not_keep_the_agent_from_everything_else(room: Room) -> None:
    room.ranks(rank(log_rules=(LogRule(name="step", pattern="step", starts_within=5.0),)))
    (room.run() / "output").write_bytes(b"\n" * 250_000 + b"step\n")
    began = time.process_time()
    assert room.hangs(10.0) == []  # what is not read yet is no silence
    assert time.process_time() - began < 1.0
    now = 10.0
    (watched,) = room.watch._watched.values()
    while watched.output is not None and watched.output.behind:
        now += 0.1
        assert room.hangs(now) == []
    assert room.hangs(now + 100.0) == []


def answers(files: BoundedCalls) -> bool:
    try:
        return files.call(lambda: True)
    except TimeoutError:
        return False


def test_the_last_step_of_a_rank_that_ended_while_nobody_could_look_is_told(room: Room) -> None:
    files, come_back = BoundedCalls("run directories", 0.05), threading.Event()
    room.watch = RankWatch(room.base, NODE, BOOT, files)
    room.ranks(rank())
    room.beat(1)
    assert room.steps(1.0) == [1]
    room.beat(9)
    room.ranks(over(rank()))
    with pytest.raises(TimeoutError):
        files.call(lambda: come_back.wait(30))
    with pytest.raises(TimeoutError):
        room.look(2.0)
    come_back.set()
    until(lambda: answers(files))
    assert room.steps(3.0) == [9]


def test_a_call_with_a_deadline_gives_what_it_gives_and_raises_what_it_raises() -> None:
    deadline = BoundedCalls("files", 5.0)
    assert deadline.call(lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        deadline.call(lambda: 1 // 0)
    assert deadline.call(lambda: 6) == 6


def test_a_call_with_a_deadline_that_got_no_thread_gets_one_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def balks(self: threading.Thread) -> None:  # noqa: ARG001 - in the place of start
        raise RuntimeError("can't start new thread")

    deadline = BoundedCalls("files", 5.0)
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", balks)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            deadline.call(lambda: 5)
    assert deadline.call(lambda: 5) == 5


def test_a_single_look_at_a_machine_does_not_wait_for_a_card_that_hangs() -> None:
    come_back = threading.Event()

    def look(_: float) -> list[Item]:
        come_back.wait(30)
        return []

    probe = Probe("ports", look, period=10.0, may_hang=True)
    with pytest.raises(TimeoutError, match="the devices of ports do not answer"):
        look_in_time(probe, 0.05)
    come_back.set()
    assert look_in_time(probe, 5.0) == []


# --- what we write beside what users write


def test_stacks_are_written_through_no_link_and_into_no_pipe(room: Room, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("as it was")
    run = room.run()
    (run / "stacks.txt").symlink_to(precious)
    with subprocess.Popen(["sleep", "60"]) as process:
        ranks = [RunningRank(0, process.pid, run)]
        text = within(5.0, lambda: collect_stacks(ranks, time.monotonic() + 2))
        (run / "stacks.txt").unlink()
        for name in ("stacks.txt", "stacks.signal"):
            os.mkfifo(run / name)
        within(5.0, lambda: collect_stacks(ranks, time.monotonic() + 2))
        process.kill()
    assert "rank 0" in text
    assert precious.read_text() == "as it was"


def test_a_file_that_we_begin_for_a_user_is_his_to_go_on_with(tmp_path: Path) -> None:
    append(tmp_path / "stacks.txt", "what the kernel says\n")
    assert stat.S_IMODE((tmp_path / "stacks.txt").stat().st_mode) == 0o666


EVIL = "a\x1b[2J\x1b]0;owned\x07\r\nNVRM: Xid\u202e\u2028\ud800\x9b31m\x00"


@pytest.mark.parametrize(
    "news",
    [
        Observed(node=NodeId("c/n"), kind="os.hung_task", text=EVIL, fields={"name": EVIL, "pid": 5}),
        Hung(job=JobId("j"), attempt=1, because=EVIL),
        Stepped(job=JobId("j"), attempt=1, step=1, skipped=(EVIL, "fine")),
        Checkpointed(job=JobId("j"), attempt=1, failed=EVIL, busy=EVIL, answered=EVIL),
    ],
)
def test_no_control_character_gets_past_the_door(news: ItemNews) -> None:
    item = say(news)
    sound([item.news])
    assert any("a\\x1b[2J" in text for text in texts(msgspec.to_builtins(item.news)))


def test_plain_text_goes_through_as_it_is() -> None:
    news = Observed(node=NodeId("c/n"), kind="x", text="GPU 3: 89 °C, größer", fields={"name": "python3", "n": 1})
    assert say(news).news is news
