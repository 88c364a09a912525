"""A real agent against a real front door: killed, cut off, flooded, on a full disk. Nothing is lost or doubled."""

import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.support.agent_rig import XID_79, FrontDoor, NodeRig, node_rig
from tests.support.rank_rig import here
from tests.support.waiting import until

from sickbay.agent.ranks.directory import RankFile
from sickbay.clusters.local.files import Rank, VirtualDefect
from sickbay.model.facts import Checked, Hung, Looked, Observed, Outcome, ResetDone, Stepped
from sickbay.model.fault import Remedy
from sickbay.model.fleet import Incarnation, JobId
from sickbay.model.protocol import RunCheck, RunLook, RunReset

pytestmark = pytest.mark.slow


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[NodeRig]:
    with node_rig(tmp_path) as one:
        yield one


@pytest.fixture
def door(rig: NodeRig) -> FrontDoor:
    return rig.door


def xid(number: int) -> str:
    """A line that no other line is like."""
    return f"NVRM: Xid (PCI:0000:18:00): {number}, pid='<unknown>', name=<unknown>, error"


def xids(door: FrontDoor) -> Counter[int | str]:
    found: Counter[int | str] = Counter()
    for news in door.news(Observed):
        if news.kind == "xid":
            found[news.fields["number"]] += news.count
    return found


def rank(rig: NodeRig, stall_after: float = 0.0) -> RankFile:
    return RankFile(job=JobId("j"), attempt=1, rank=0, boot_id=rig.seat.boot_id, stall_after=stall_after)


def _what_an_agent_knows(rig: NodeRig) -> Incarnation:
    """Its instance and its boot. Under which name the cluster keeps it, an agent cannot tell."""
    return replace(rig.seat.incarnation, uid="")


# --- the controller


def test_the_first_word_comes_at_once_and_then_a_pulse(rig: NodeRig, door: FrontDoor) -> None:
    rig.start()
    until(lambda: len(door.reports) >= 3)
    assert {report.incarnation for report in door.reports} == {_what_an_agent_knows(rig)}
    assert all(report.watermark > 0 for report in door.reports)
    assert [node for node, _ in door.store.voices(before=-1.0).heard] == [rig.seat.id]


def test_what_happens_while_the_controller_is_away_arrives_once_and_in_order(rig: NodeRig, door: FrontDoor) -> None:
    rig.start()
    until(lambda: door.reports)
    door.shut()
    for number in range(1, 51):
        rig.log(xid(number))
    until(lambda: rig.has_spooled)
    door.open()
    until(lambda: len(xids(door)) == 50)
    assert list(xids(door)) == list(range(1, 51))
    assert set(xids(door).values()) == {1}
    until(lambda: not rig.spool)


def test_a_controller_that_moved_is_found_again(rig: NodeRig, door: FrontDoor) -> None:
    rig.start()
    until(lambda: door.reports)
    door.shut()
    before, door.port = door.port, 0
    door.open()
    assert door.port != before
    rig.point_at(door.port)
    rig.log(XID_79)
    until(lambda: xids(door))


def test_an_answer_that_was_lost_makes_nothing_double(rig: NodeRig, door: FrontDoor) -> None:
    door.lose_answers = 3
    rig.start()
    rig.log(xid(1))
    until(lambda: len([report for report in door.reports if report.items]) >= 4)
    rig.log(xid(2))
    until(lambda: xids(door)[2])
    assert xids(door) == {1: 1, 2: 1}


@pytest.mark.parametrize("status", [500, 503, 404])
def test_a_controller_in_trouble_is_asked_again(rig: NodeRig, door: FrontDoor, status: int) -> None:
    door.status = status
    rig.start()
    rig.log(XID_79)
    until(lambda: f"cannot be reached: {status}" in rig.complaints)
    door.status = None
    until(lambda: xids(door))


def test_a_wrong_token_is_said_once_and_tried_again(rig: NodeRig, door: FrontDoor) -> None:
    right = rig.paths.token.read_text()
    rig.paths.token.write_text("wrong")
    rig.start()
    until(lambda: "does not accept our token" in rig.complaints)
    rig.paths.token.write_text(right)
    until(lambda: door.reports, within=20)
    assert rig.complaints.count("token") == 2  # one line, which quotes the controller


def test_one_report_that_is_refused_does_not_hold_up_the_others(rig: NodeRig, door: FrontDoor) -> None:
    door.refuse = lambda report: "not that one" if any("66," in repr(item.news) for item in report.items) else ""
    door.shut()
    rig.start()
    for number in (64, 65, 66, 67):
        rig.log(xid(number))
    until(lambda: rig.has_spooled)
    door.open()
    until(lambda: xids(door)[67])
    assert set(xids(door)) == {64, 65, 67}
    until(lambda: any(news.kind == "agent.refused" for news in door.news(Observed)))


# --- the kernel log


def test_half_a_line_waits_for_its_other_half(rig: NodeRig, door: FrontDoor) -> None:
    rig.start()
    until(lambda: door.reports)
    with rig.kmsg.open("ab", buffering=0) as kmsg:
        kmsg.write(XID_79[:40].encode())
        seen = len(door.reports)
        until(lambda: len(door.reports) > seen + 1)
        assert not xids(door)
        kmsg.write(XID_79[40:].encode() + b"\n")
    until(lambda: xids(door))
    assert door.texts() == [XID_79]


def test_a_flood_of_lines_becomes_few_reports(rig: NodeRig, door: FrontDoor) -> None:
    rig.start()
    until(lambda: door.reports)
    for _ in range(10):
        with rig.kmsg.open("a") as kmsg:
            kmsg.write(f"{XID_79}\n" * 5000)
    until(lambda: xids(door)[79] == 50_000, within=20)
    assert len(door.facts()) < 20


def test_lines_from_before_the_agent_are_read_and_a_new_boot_reads_its_own_log(rig: NodeRig, door: FrontDoor) -> None:
    rig.log(xid(1))
    rig.start()
    until(lambda: xids(door)[1])
    rig.end()
    rig.reboot("b-2")
    rig.log(xid(2))
    rig.start()
    until(lambda: xids(door)[2])
    assert xids(door) == {1: 1, 2: 1}
    boots = {news.fields["number"]: news.incarnation.boot_id for news in door.news(Observed)}
    assert boots == {1: "b-1", 2: "b-2"}


def test_what_was_not_said_before_a_reboot_is_said_under_the_boot_that_saw_it(rig: NodeRig, door: FrontDoor) -> None:
    door.shut()
    rig.start()
    rig.log(xid(1))
    until(lambda: rig.has_spooled)
    rig.kill()
    rig.reboot("b-2")
    door.open()
    rig.start()
    until(lambda: xids(door)[1])
    (news,) = door.news(Observed)
    assert (news.incarnation.boot_id, news.last_words) == ("b-1", False)
    until(lambda: door.reports[-1].boot_id == "b-2")


# --- death
def test_killed_at_any_moment_it_loses_nothing_and_doubles_nothing(rig: NodeRig, door: FrontDoor) -> None:
    dice = random.Random(4)
    written = 0
    for turn in range(12):
        agent = rig.start()
        end = time.monotonic() + dice.uniform(0.1, 0.6)
        while time.monotonic() < end:
            written += 1
            rig.log(xid(written))
            time.sleep(dice.uniform(0.0, 0.01))
        if turn % 3 == 0:
            door.lose_answers += 1
        agent.kill()
        agent.wait()
        if turn % 4 == 1:
            door.shut()
        elif turn % 4 == 2:
            door.open()
    rig.start()
    until(lambda: len(xids(door)) == written, within=20, what=f"{written} lines were written")
    assert set(xids(door).values()) == {1}
    until(lambda: not rig.spool)


def test_what_was_spooled_is_said_though_the_log_is_not_read_again(rig: NodeRig, door: FrontDoor) -> None:
    door.shut()
    agent = rig.start()
    rig.log(xid(1), xid(2))
    until(lambda: rig.kept_place() >= rig.kmsg.stat().st_size)
    agent.kill()
    agent.wait()
    rig.kmsg.unlink()
    door.open()
    rig.start()
    until(lambda: len(xids(door)) == 2)
    assert xids(door) == {1: 1, 2: 1}


def test_an_agent_that_is_told_to_end_says_its_last_words_first(rig: NodeRig, door: FrontDoor) -> None:
    rig.start()
    until(lambda: door.reports)
    rig.log(xid(1))
    until(lambda: xids(door))
    assert rig.end() == 0
    assert rig.complaints == ""


def test_two_agents_never_speak_for_one_node(rig: NodeRig, door: FrontDoor) -> None:
    first = rig.start()
    until(lambda: door.reports)
    second = rig.start()
    assert second.wait(10) == 2
    assert "another agent of this node is running" in rig.complaints
    assert first.poll() is None


def test_an_agent_of_a_boot_that_has_ended_does_not_start(rig: NodeRig) -> None:
    assert rig.start(SICKBAY_BOOT="b-0").wait(10) == 2
    assert "boot b-0 of n1 has ended" in rig.complaints


def test_a_seat_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sickbay.clusters.local.node", "--root", str(tmp_path), "--seat", "nobody"]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == 2
    assert said.stderr.startswith("agent: there is no seat 'nobody'")
    assert said.stderr.count("\n") == 1


def test_a_full_disk_is_said_and_survived(rig: NodeRig, door: FrontDoor) -> None:
    agent = rig.start()
    until(lambda: door.reports)
    before = resource.prlimit(agent.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(agent.pid, resource.RLIMIT_FSIZE, (0, before[1]))
    rig.log(xid(1))
    until(lambda: xids(door)[1])
    until(lambda: any("kept in memory only" in text for text in door.texts()))
    resource.prlimit(agent.pid, resource.RLIMIT_FSIZE, before)
    rig.log(xid(2))
    until(lambda: xids(door)[2])
    assert agent.poll() is None


# --- commands


def _looked(door: FrontDoor, look: str) -> bool:
    return any(news.look == look for news in door.news(Looked))


def test_a_look_comes_after_all_that_was_there_before_it(rig: NodeRig, door: FrontDoor) -> None:
    rig.start()
    until(lambda: door.polls)
    for turn in range(5):
        rig.log(xid(100 + turn))
        door.command(rig.seat, RunLook(look=f"l{turn}"), f"c{turn}")
        until(partial(_looked, door, f"l{turn}"))
        said = [fact.news for fact in door.facts()]
        at = next(n for n, news in enumerate(said) if isinstance(news, Looked) and news.look == f"l{turn}")
        before = {news.fields["number"] for news in said[:at] if isinstance(news, Observed)}
        assert 100 + turn in before
    until(lambda: not door.waiting(rig.seat))


def test_a_held_poll_brings_a_command_long_before_the_next_report(tmp_path: Path) -> None:
    with node_rig(tmp_path, report_every=60.0) as rig:
        rig.start()
        until(lambda: rig.door.polls)
        rig.door.command(rig.seat, RunReset(key="k"))
        until(lambda: rig.door.news(ResetDone))


def test_without_polls_commands_ride_on_replies_to_reports(tmp_path: Path) -> None:
    with node_rig(tmp_path, report_every=0.1, poll_for=0.0) as rig:
        rig.start()
        until(lambda: rig.door.reports)
        rig.door.command(rig.seat, RunLook(look="l"))
        until(lambda: rig.door.news(Looked))
        assert rig.door.polls == 0


def test_a_check_that_finds_a_defect_says_so_and_marks_what_it_provoked(rig: NodeRig, door: FrontDoor) -> None:
    rig.hardware.inject(VirtualDefect(name="gpu_off_bus", device=0, lines=(XID_79,), cured_by=Remedy.RESET_GPU))
    rig.start()
    until(lambda: door.polls)
    rig.log(xid(13))
    door.command(rig.seat, RunCheck(check="k1", level=1), "c1")
    (first,) = until(lambda: door.news(Checked))
    assert (first.verdict, first.because) == ("fail", "compute: gpu_off_bus on GPU 0")
    marked = {news.fields["number"]: news.fields.get("check") for news in door.news(Observed) if news.kind == "xid"}
    assert marked == {13: None, 79: "k1"}
    door.command(rig.seat, RunReset(key="r"), "c2")
    until(lambda: door.news(ResetDone))
    door.command(rig.seat, RunCheck(check="k2", level=1), "c3")
    until(lambda: len(door.news(Checked)) == 2)
    assert door.news(Checked)[1].verdict == "pass"
    assert [test.name for test in door.news(Checked)[1].tests] == ["devices", "compute"]
    until(lambda: not door.waiting(rig.seat))


def test_a_device_that_a_rank_holds_is_not_reset(rig: NodeRig, door: FrontDoor) -> None:
    rig.hardware.inject(VirtualDefect(name="x", device=0, cured_by=Remedy.RESET_GPU))
    rig.ranks(Rank(job=JobId("j"), attempt=1, rank=0, boot_id=rig.seat.boot_id, pid=1, devices=(0,)))
    rig.start()
    until(lambda: door.polls)
    door.command(rig.seat, RunReset(key="k", devices=(0,)))
    (outcome,) = until(lambda: door.news(Outcome))
    assert (outcome.key, outcome.result, outcome.text) == ("k", "rejected", "held by rank 0 of j")
    assert rig.hardware.defects()
    door.command(rig.seat, RunReset(key="other", devices=(1,)), "c2")
    until(lambda: door.news(ResetDone))
    assert rig.hardware.defects()


def test_a_check_for_another_incarnation_could_not_run(rig: NodeRig, door: FrontDoor) -> None:
    rig.start()
    older = Incarnation(uid="i-1", instance_id="i-1", boot_id="b-0")
    door.command(rig.seat, RunCheck(check="k", level=1), expect=older)
    (checked,) = until(lambda: door.news(Checked))
    assert (checked.verdict, checked.incarnation) == ("could_not_run", _what_an_agent_knows(rig))
    until(lambda: not door.waiting(rig.seat))


def test_an_agent_that_dies_over_a_check_says_that_it_could_not_run(rig: NodeRig, door: FrontDoor) -> None:
    agent = rig.start()
    until(lambda: door.polls)
    door.command(rig.seat, RunCheck(check="k", level=4))
    journal = rig.paths.agent(rig.seat.instance_id) / "commands.jsonl"
    until(lambda: journal.exists() and b'"c1"' in journal.read_bytes())
    agent.kill()
    agent.wait()
    rig.start()
    (checked,) = until(lambda: door.news(Checked))
    assert checked.verdict == "could_not_run"
    assert "the agent ended" in checked.because
    until(lambda: not door.waiting(rig.seat))


def test_a_long_check_does_not_keep_anything_else_from_being_said(rig: NodeRig, door: FrontDoor) -> None:
    rig.start()
    until(lambda: door.polls)
    door.command(rig.seat, RunCheck(check="k", level=4))
    until((rig.paths.agent(rig.seat.instance_id) / "commands.jsonl").exists)
    rig.log(XID_79)
    until(lambda: xids(door))
    door.command(rig.seat, RunLook(look="l"), "c2")
    until(lambda: door.news(Looked))
    assert not door.news(Checked)


# --- ranks
def test_steps_arrive_and_a_stall_is_a_hang(rig: NodeRig, door: FrontDoor) -> None:
    rig.start()
    until(lambda: door.reports)
    one = rank(rig, stall_after=1.5)
    run = rig.run_dir(one)
    rig.played.put(one)
    (run / ".beat").write_text('{"step": 7, "loss": 0.25}')
    (run / ".beat").rename(run / "heartbeat.json")
    (stepped,) = until(lambda: door.news(Stepped))
    assert (stepped.step, stepped.loss) == (7, 0.25)
    (hung,) = until(lambda: door.news(Hung))
    assert "no step after 7 for 1.5 s" in hung.because


def test_an_agent_that_was_stopped_itself_calls_nobody_hung(rig: NodeRig, door: FrontDoor) -> None:
    agent = rig.start()
    until(lambda: door.reports)
    one = rank(rig, stall_after=3.0)
    (rig.run_dir(one) / "heartbeat.json").write_text('{"step": 1}')
    rig.played.put(one)
    until(lambda: door.news(Stepped))
    agent.send_signal(signal.SIGSTOP)
    time.sleep(4.0)  # longer than the stall that must not be seen
    agent.send_signal(signal.SIGCONT)
    seen = len(door.reports)
    until(lambda: len(door.reports) > seen + 1)
    assert not door.news(Hung)
    until(lambda: door.news(Hung))  # it does stall, after all


SLEEPER = """
import faulthandler, fcntl, os, signal, sys, time
run = sys.argv[1]
alive = open(run + "/alive", "w")
fcntl.lockf(alive, fcntl.LOCK_EX)
def waits_for_nobody():
    while True:
        time.sleep(60)
if len(sys.argv) > 2:
    faulthandler.register(signal.SIGUSR1, file=open(run + "/stacks.txt", "a"), all_threads=True)
    open(run + "/stacks.signal", "w").write(str(int(signal.SIGUSR1)))
open(run + "/ready", "w").close()
waits_for_nobody()
"""


@pytest.mark.parametrize("answers", [True, False])
def test_the_stacks_of_a_hung_rank_are_collected(rig: NodeRig, door: FrontDoor, answers: bool) -> None:
    one = rank(rig)
    run = rig.run_dir(one)
    sleeper = subprocess.Popen([sys.executable, "-c", SLEEPER, str(run), *(["answer"] if answers else [])])
    try:
        until((run / "ready").exists)
        rig.played.write(run, here(one, sleeper.pid))
        rig.start()
        until(lambda: door.polls)
        door.command(rig.seat, RunLook(look="l", stacks_of=JobId("j")))
        (looked,) = until(lambda: door.news(Looked))
        assert looked.text.startswith("rank 0: sleeping")
        assert ("waits_for_nobody" in looked.text) is answers
        assert "python" in (run / "stacks.txt").read_text() or answers
        assert len(looked.text) <= 2000
        assert sleeper.poll() is None
    finally:
        sleeper.kill()
        sleeper.wait()


def test_a_rank_that_is_stopped_gets_no_signal_for_later(rig: NodeRig, door: FrontDoor) -> None:
    one = rank(rig)
    run = rig.run_dir(one)
    sleeper = subprocess.Popen([sys.executable, "-c", SLEEPER, str(run), "answer"])
    try:
        until((run / "ready").exists)
        os.kill(sleeper.pid, signal.SIGSTOP)
        rig.played.write(run, here(one, sleeper.pid))
        rig.start()
        until(lambda: door.polls)
        door.command(rig.seat, RunLook(look="l", stacks_of=JobId("j")))
        (looked,) = until(lambda: door.news(Looked))
        assert looked.text.startswith("rank 0: stopped")
        os.kill(sleeper.pid, signal.SIGCONT)
        os.kill(sleeper.pid, signal.SIGUSR1)
        until(lambda: "waits_for_nobody" in (run / "stacks.txt").read_text())
        assert (run / "stacks.txt").read_text().count("waits_for_nobody") == 1  # our own signal, none was waiting
    finally:
        sleeper.kill()
        sleeper.wait()


# --- cost
def test_an_idle_agent_costs_next_to_nothing(tmp_path: Path) -> None:
    import psutil

    with node_rig(tmp_path, report_every=5.0) as rig:
        agent = rig.start()
        until(lambda: rig.door.polls)
        process = psutil.Process(agent.pid)
        before = sum(process.cpu_times()[:2])
        end = time.monotonic() + 5.0
        while time.monotonic() < end:  # a supervisor's beat each second
            rig.ranks()
            time.sleep(1.0)
        used = sum(process.cpu_times()[:2]) - before
        assert used / 5.0 < 0.01
        assert process.memory_info().rss < 64 << 20
