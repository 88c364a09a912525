"""Do ranks make progress: heartbeats, stalls, log rules."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.rank_rig import PlayedRanks, over

from sickbay.agent.ranks.directory import RankFile, rank_dir, ranks_dir
from sickbay.agent.ranks.exits import RUNNER_KILLED
from sickbay.agent.ranks.retention import tidy
from sickbay.agent.ranks.watch import RankWatch
from sickbay.clusters.local.files import write
from sickbay.model.facts import Checkpointed, Hung, Observed, RankEnded, RankWaits, RuleOff, Stepped
from sickbay.model.fleet import JobId, NodeId
from sickbay.model.job import LogRule
from sickbay.model.protocol import ItemNews

JOB = JobId("j")
NODE, BOOT = NodeId("c/n1"), "b"


class Room:
    """A node whose ranks, and whoever runs them, are played by the test."""

    def __init__(self, root: Path) -> None:
        self.base = root / "base"
        self.watch = RankWatch(self.base, NODE, BOOT)
        self.played = PlayedRanks(self.base)

    def ranks(self, *ranks: RankFile) -> None:
        self.played.put(*ranks)

    def run(self, rank: int = 0, attempt: int = 1) -> Path:
        return self.played.make(rank_dir(self.base, JOB, attempt, rank))

    def beat(self, step: Any, rank: int = 0, attempt: int = 1, **more: Any) -> None:
        write(self.run(rank, attempt) / "heartbeat.json", {"step": step, **more}, durable=False)

    def busy(self, what: str, done: int, of: int, **more: Any) -> None:
        write(self.run() / "heartbeat.json", {"busy": what, "done": done, "of": of, **more}, durable=False)

    def look(self, now: float) -> list[ItemNews]:
        """All but how ranks ended."""
        return [news for news in self.said(now) if not isinstance(news, RankEnded)]

    def said(self, now: float) -> list[ItemNews]:
        return [item.news for item in self.watch.look(now)]

    def ends(self, now: float) -> list[RankEnded]:
        return [news for news in self.said(now) if isinstance(news, RankEnded)]

    def steps(self, now: float) -> list[int]:
        return [news.step for news in self.look(now) if isinstance(news, Stepped)]

    def hangs(self, now: float) -> list[str]:
        return [news.because for news in self.look(now) if isinstance(news, Hung)]


def rank(number: int = 0, attempt: int = 1, **more: Any) -> RankFile:
    return RankFile(**{"job": JOB, "attempt": attempt, "rank": number, "boot_id": BOOT, "pid": 1, **more})


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    one = Room(tmp_path)
    yield one
    one.played.close()


def test_the_first_step_is_told_at_once_and_later_ones_once_a_second(room: Room) -> None:
    room.ranks(rank())
    assert room.steps(10.0) == []
    room.beat(41, resumed_from=40, skipped=["attempt-1/step-41: torn"], loss=0.5)
    (first,) = room.look(10.1)
    assert first == Stepped(
        job=JOB, attempt=1, step=41, resumed_from=40, skipped=("attempt-1/step-41: torn",), loss=0.5
    )
    room.beat(42)
    assert room.steps(10.2) == []
    room.beat(43)
    assert room.steps(11.2) == [43]
    assert room.steps(19.0) == []


def test_the_last_step_is_told_when_the_rank_ends(room: Room) -> None:
    room.ranks(rank())
    room.beat(1)
    assert room.steps(1.0) == [1]
    room.beat(9)
    room.ranks(over(rank()))
    assert room.steps(1.1) == [9]
    assert room.steps(1.2) == []


def test_an_attempt_of_another_boot_is_nobodys_business(room: Room) -> None:
    room.ranks(rank(boot_id="older", stall_after=1.0))
    room.beat(5)
    assert room.look(1.0) == []
    assert room.look(99.0) == []


def test_rank_0_speaks_for_the_job_or_the_lowest_beside_it_that_can(room: Room) -> None:
    room.ranks(rank(0), rank(1), rank(2))
    room.beat(7, rank=2)
    room.beat(8, rank=1)
    assert room.steps(1.0) == [8]
    room.beat(9, rank=0)
    assert room.steps(3.0) == [9]


def test_a_node_without_rank_0_tells_no_steps_but_stalls(room: Room) -> None:
    room.ranks(rank(3, stall_after=5.0))
    room.beat(7, rank=3)
    assert room.look(1.0) == []
    (because,) = room.hangs(6.5)
    assert because == "rank 3 on c/n1: no step after 7 for 5 s"


@pytest.mark.parametrize("body", ["{", "[]", "null", '{"step": "x"}', '{"step": true}', '{"step": 1.5}', "\x00"])
def test_a_heartbeat_that_makes_no_sense_is_ignored(room: Room, body: str) -> None:
    room.ranks(rank())
    (room.run() / "heartbeat.json").write_text(body)
    assert room.look(1.0) == []


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), "bad", None])
def test_a_loss_that_is_no_number_is_left_out(room: Room, loss: Any) -> None:
    room.ranks(rank())
    (room.run() / "heartbeat.json").write_text(
        json.dumps({"step": 3, "loss": loss, "skipped": "x", "resumed_from": "y"})
    )
    assert room.look(1.0) == [Stepped(job=JOB, attempt=1, step=3)]


@pytest.mark.parametrize(("said", "fenced"), [({"fenced": True}, True), ({"fenced": "yes"}, False), ({}, False)])
def test_that_older_attempts_can_commit_nothing_is_believed_only_if_it_is_said_plainly(
    room: Room, said: dict[str, Any], fenced: bool
) -> None:
    room.ranks(rank())
    room.beat(3, **said)
    assert room.look(1.0) == [Stepped(job=JOB, attempt=1, step=3, fenced=fenced)]


def test_a_rank_that_stalls_is_called_hung_and_again_only_after_as_long_again(room: Room) -> None:
    room.ranks(rank(stall_after=10.0))
    assert room.hangs(500.0) == []  # nothing counts before the first step
    room.beat(1)
    assert room.hangs(501.0) == []
    room.beat(1, loss=1.0)  # the same step is no progress
    assert room.hangs(511.5) == ["rank 0 on c/n1: no step after 1 for 10 s"]
    assert room.hangs(521.0) == []
    assert len(room.hangs(522.0)) == 1
    assert room.hangs(523.0) == []


def test_a_first_heartbeat_that_does_not_come_is_a_hang_where_a_job_promises_one(room: Room) -> None:
    asked: dict[str, Any] = {"stall_after": 5.0, "start_within": 60.0, "expects_heartbeats": True}
    room.ranks(rank(0, **asked), rank(1, stall_after=5.0))
    assert room.hangs(100.0) == []
    assert room.hangs(160.0) == []
    (said,) = [news for news in room.look(161.0) if isinstance(news, Hung)]
    assert said.because == "rank 0 on c/n1: no first heartbeat within 60 s of its start"
    assert said.unbegun


def test_a_job_that_promises_no_heartbeat_is_never_late_with_it_until_its_script_opens_its_checkpoints(
    room: Room,
) -> None:
    room.ranks(rank(stall_after=5.0, start_within=60.0))
    assert room.hangs(0.0) == []
    assert room.hangs(10_000.0) == []
    (room.run() / "heartbeat.json").write_text(json.dumps({"pid": 1, "opened": True, "directory": "/ck"}))
    assert room.look(10_001.0)[0] == Checkpointed(job=JOB, attempt=1, opened=True, directory="/ck")
    assert room.hangs(10_062.0) == ["rank 0 on c/n1: no first heartbeat within 60 s of its start"]


def test_a_script_that_only_saves_is_alive_without_heartbeats(room: Room) -> None:
    room.ranks(rank(stall_after=5.0, start_within=60.0, expects_heartbeats=True))
    (room.run() / "heartbeat.json").write_text(json.dumps({"pid": 1, "opened": True, "saved": 40}))
    room.look(0.0)
    assert room.hangs(1000.0) == []


def test_ranks_beside_one_that_tells_its_steps_need_not_tell_any(room: Room) -> None:
    room.ranks(*(rank(n, stall_after=500.0, start_within=60.0, expects_heartbeats=True) for n in (0, 1)))
    room.look(0.0)
    room.beat(1, rank=0)
    assert room.hangs(100.0) == []


def test_who_is_busy_and_advances_does_not_hang_before_the_first_step_or_after_it(room: Room) -> None:
    room.ranks(rank(stall_after=10.0, start_within=10.0))
    told: list[Checkpointed] = []
    for now in range(50):
        room.busy("verifying attempt-1/step-40", now, 50)
        said = room.look(100.0 + now)
        assert [news for news in said if isinstance(news, Hung)] == []
        told += [news for news in said if isinstance(news, Checkpointed)]
    assert [news.done for news in told] == list(range(0, 50, 5))
    assert told[0] == Checkpointed(job=JOB, attempt=1, busy="verifying attempt-1/step-40", done=0, of=50)
    assert room.hangs(159.0) == []
    assert room.hangs(159.5) == [
        "rank 0 on c/n1: verifying attempt-1/step-40 has stood still at 49 of 50 bytes for 10 s"
    ]
    room.beat(41)
    room.look(200.0)
    room.busy("saving attempt-2/step-41", 1, 50, step=41)
    room.look(209.0)
    assert room.hangs(218.0) == []
    assert "stood still" in room.hangs(219.5)[0]


def test_work_that_goes_back_is_no_progress_and_work_that_is_done_is_over(room: Room) -> None:
    room.ranks(rank(stall_after=10.0, start_within=30.0, expects_heartbeats=True))
    room.busy("verifying a", 5, 9)
    room.look(0.0)
    room.busy("verifying a", 2, 9)
    assert "stood still" in room.hangs(10.5)[0]
    room.busy("verifying a", 9, 9)
    (over,) = room.look(12.0)
    assert over == Checkpointed(job=JOB, attempt=1)
    assert room.hangs(40.0) == []
    assert room.hangs(43.0) == ["rank 0 on c/n1: no first heartbeat within 30 s of its start"]


def test_what_is_saved_and_what_failed_is_told_by_rank_0(room: Room) -> None:
    room.ranks(rank(0), rank(1))
    room.beat(7, rank=1, saved=1)
    room.beat(7, saved=5, listens=True)
    assert Checkpointed(job=JOB, attempt=1, saved=5, listens=True) in room.look(1.0)
    room.beat(7, saved=5, listens=True)
    assert room.look(1.1) == []
    room.beat(7, saved=5, save_failed="step 6: No space left", listens=True)
    (failed,) = room.look(2.2)
    assert failed == Checkpointed(job=JOB, attempt=1, saved=5, failed="step 6: No space left", listens=True)
    room.beat(7, saved=8, listens=True)
    room.ranks(over(rank()), rank(1))
    assert Checkpointed(job=JOB, attempt=1, saved=8, listens=True) in room.look(2.3)


@pytest.mark.parametrize(
    "said",
    [{"saved": "x"}, {"saved": 2**70}, {"save_failed": 5}, {"busy": "x", "done": -1, "of": 5}, {"busy": 7, "of": 5},
     {"busy": "x", "done": 1.5, "of": 5}, {"busy": "x", "done": 5, "of": 5}, {"listens": "yes"}, {"busy": "", "of": 5}],
)  # fmt: skip
def test_what_makes_no_sense_about_checkpoints_is_not_told(room: Room, said: dict[str, Any]) -> None:
    room.ranks(rank())
    room.beat(3, **said)
    assert room.look(1.0) == [Stepped(job=JOB, attempt=1, step=3)]


def test_every_rank_is_watched(room: Room) -> None:
    room.ranks(rank(0, stall_after=10.0), rank(1, stall_after=10.0))
    room.beat(1, rank=0)
    room.beat(1, rank=1)
    room.look(0.0)
    room.beat(2, rank=0)
    room.look(9.0)
    assert room.hangs(10.5) == ["rank 1 on c/n1: no step after 1 for 10 s"]


def test_the_next_attempt_may_hang_too(room: Room) -> None:
    for attempt in (1, 2):
        room.ranks(rank(attempt=attempt, stall_after=10.0))
        room.beat(1, attempt=attempt)
        room.look(100.0 * attempt)
        assert len(room.hangs(100.0 * attempt + 11.0)) == 1


def test_our_own_pause_counts_against_nobody(room: Room) -> None:
    rule = LogRule(name="loss", pattern="loss", starts_within=10.0)
    room.ranks(rank(stall_after=10.0, log_rules=(rule,)))
    room.beat(1)
    room.look(1.0)
    room.watch.restart(300.0)
    assert room.hangs(300.0) == []
    assert room.hangs(309.0) == []
    assert len(room.hangs(311.0)) == 1
    room.watch.close()


def test_a_log_rule_wants_its_line_by_a_time_and_again(room: Room) -> None:
    rule = LogRule(name="loss", pattern=r"loss=\d", starts_within=10.0, recurs_within=5.0)
    room.ranks(rank(log_rules=(rule,)))
    output = room.run() / "output"
    output.write_text("starting\n")
    assert room.watch.look(0.0) == []
    assert room.watch.restless
    append(output, "loss=3\n")
    assert room.hangs(9.0) == []
    append(output, "nothing new\n")
    assert room.hangs(13.0) == []
    assert room.hangs(14.5) == ["rank 0 on c/n1: log rule 'loss': no line matched for 5 s"]
    room.watch.close()


def test_a_log_rule_whose_line_never_comes_is_a_hang(room: Room) -> None:
    rule = LogRule(name="ready", pattern="ready", starts_within=10.0)
    room.ranks(rank(log_rules=(rule,)))
    room.look(0.0)
    assert room.hangs(10.5) == ["rank 0 on c/n1: log rule 'ready': no line matched within 10 s of the start"]
    room.watch.close()


def test_a_line_that_came_once_is_enough_where_nothing_must_recur(room: Room) -> None:
    rule = LogRule(name="ready", pattern="ready", starts_within=10.0)
    room.ranks(rank(log_rules=(rule,)))
    append(room.run() / "output", "ready\n")
    room.look(1.0)
    assert room.hangs(1000.0) == []
    room.watch.close()


@pytest.mark.parametrize("pattern", ["(", "(a+)+$"])
def test_a_pattern_that_cannot_be_used_is_said_once_and_never_a_hang(room: Room, pattern: str) -> None:
    room.ranks(rank(log_rules=(LogRule(name="bad", pattern=pattern, starts_within=1.0),)))
    append(room.run() / "output", 40 * "a" + "!\n")
    (said,) = room.look(0.0)
    assert isinstance(said, RuleOff)
    assert (said.job, said.attempt, said.rule) == (JOB, 1, "bad")
    assert said.because.startswith("its pattern ")
    assert room.look(50.0) == []
    room.watch.close()


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_a_script_that_saves_at_every_step_is_told_of_once_a_second(room: Room) -> None:
    room.ranks(rank())
    told = []
    for number in range(100):
        room.beat(number, saved=number, save_failed="" if number % 2 else f"step {number}: full", listens=True)
        told += [news for news in room.look(10.0 + number / 50) if isinstance(news, Checkpointed)]
    assert 2 <= len(told) <= 4
    room.ranks()
    (last,) = [news for news in room.look(12.0) if isinstance(news, Checkpointed)]
    assert (last.saved, last.failed) == (99, "")


def test_an_answer_to_an_ask_is_told_at_once(room: Room) -> None:
    room.ranks(rank())
    room.beat(1, listens=True)
    room.look(10.0)
    room.beat(2, listens=True, saved=2, answered="job.j.1")
    assert [news.answered for news in room.look(10.1) if isinstance(news, Checkpointed)] == ["job.j.1"]


# --- how ranks end


def test_how_each_rank_ended_is_told_once_in_the_order_of_their_ends_with_the_words_of_the_first_bad_one(
    room: Room,
) -> None:
    room.ranks(*(rank(n) for n in range(4)))
    assert room.ends(1.0) == []
    for n in range(4):
        append(room.run(n) / "output", f"\x1b[31mlast of {n}\x1b[0m\nof two lines\n")
    first = replace(over(rank(2), -11, why="fell"), ended_at=1000.0)
    room.ranks(over(rank(0), 1), over(rank(1)), first, over(rank(3), 143, stopped=True))
    told = room.ends(2.0)
    assert [(end.rank, end.exit_code, end.stopped) for end in told] == [
        (2, -11, False), (0, 1, False), (1, 0, False), (3, 143, True),
    ]  # fmt: skip
    assert [end.tail for end in told] == ["last of 2\nof two lines\n", "", "", ""]
    assert (told[0].why, told[0].job, told[0].attempt) == ("fell", JOB, 1)
    assert room.ends(3.0) == []


def test_a_rank_whose_runner_was_killed_ended_in_a_way_that_nobody_knows(room: Room) -> None:
    room.ranks(rank())
    room.look(1.0)
    room.ranks()
    (ended,) = room.ends(2.0)
    assert (ended.exit_code, ended.stopped, ended.why) == (None, False, RUNNER_KILLED)


def test_the_end_of_an_output_is_read_across_the_beginning_of_a_new_part(room: Room) -> None:
    room.ranks(rank())
    room.look(1.0)
    append(room.run() / "output.000000000000000", "long ago\n")
    append(room.run() / "output.000000000000009", "x" * 20_000 + "\n")
    append(room.run() / "output", "the end\n")
    room.ranks(over(rank(), 1))
    (ended,) = room.ends(2.0)
    assert (len(ended.tail), ended.tail[-9:]) == (16 * 1024, "\nthe end\n")


def test_a_file_of_the_users_own_beside_an_output_hides_no_end(room: Room) -> None:
    room.ranks(rank())
    room.look(1.0)
    append(room.run() / "output", "the end\n")
    append(room.run() / "output.²", "a digit that is no number\n")
    room.ranks(over(rank(), 1))
    assert [end.tail for end in room.ends(2.0)] == ["the end\n"]


@pytest.mark.parametrize(("ago", "told"), [(60.0, True), (7200.0, False)])
def test_an_end_that_no_agent_saw_is_told_if_it_is_fresh(room: Room, ago: float, told: bool) -> None:
    room.ranks(over(rank(), 9))
    stamp = time.time() - ago
    os.utime(room.run() / "rank.json", (stamp, stamp))
    room.look(1.0)
    assert [end.exit_code for end in room.ends(2.0)] == ([9] if told else [])


# --- whose directories they are


def refusals(room: Room, now: float) -> list[str]:
    return [news.text for news in room.said(now) if isinstance(news, Observed)]


def test_another_users_rank_of_an_attempt_is_not_believed(room: Room) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    room.ranks(rank(0, stall_after=1.0))
    room.look(0.0)
    forged = rank(1, start_within=1.0, expects_heartbeats=True)
    room.ranks(rank(0, stall_after=1.0), forged)
    for path in (room.run(1), *room.run(1).iterdir()):
        os.chown(path, 65534, 65534)
    (refused,) = refusals(room, 1.0)
    assert "another user runs ranks of that attempt here" in refused
    assert room.hangs(100.0) == []


@pytest.mark.parametrize(("own", "forged"), [(0, 1), (1, 0)])
def test_whose_an_attempt_is_stays_so_when_the_agent_is_started_anew(room: Room, own: int, forged: int) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    room.ranks(rank(own))
    room.ranks(rank(own), rank(forged))
    for path in (room.run(forged), *room.run(forged).iterdir()):
        os.chown(path, 65534, 65534)
    room.look(1.0)
    assert list(room.watch._watched) == [(JOB, 1, own)]


@pytest.mark.parametrize(
    "body",
    [b"{", b"[]", b'{"job": "j", "attempt": 1, "rank": 9}', b'{"job": "", "attempt": 1, "rank": 0}',
     b'{"job": "j", "attempt": 1, "rank": 0, "stall_after": -1}',
     b'{"job": "j", "attempt": 1, "rank": 0, "stall_after": 1e400}', b"\xff" * 200_000,
     b'{"deep":' + b"[" * 60_000],
)  # fmt: skip
def test_a_rank_file_that_makes_no_sense_is_told_once_and_watched_by_nobody(room: Room, body: bytes) -> None:
    room.ranks(rank(1))
    (room.run(0) / "rank.json").write_bytes(body)
    assert len(refusals(room, 1.0)) == 1
    assert refusals(room, 2.0) == []
    room.beat(3, rank=1)
    assert list(room.watch._watched) == [(JOB, 1, 1)]


def test_a_directory_that_nobody_fills_is_not_looked_at_for_ever(room: Room) -> None:
    """Anybody may make fifty thousand of them."""
    for name, age in (("j.1.0", 10.0), ("j.2.0", 1000.0)):
        made = room.played.make(ranks_dir(room.base) / name)
        os.utime(made, (time.time() - age, time.time() - age))
    room.look(1.0)
    assert room.watch.directories == [ranks_dir(room.base) / "j.1.0"]
    room.ranks(rank())
    room.look(2.0)
    assert list(room.watch._watched) == [(JOB, 1, 0)]


def test_one_user_crowds_nobody_out(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sickbay.agent.ranks.watch.AT_ONCE", 3)
    room.ranks(*(rank(n) for n in range(5)))
    assert len(refusals(room, 1.0)) == 2
    assert len(room.watch._watched) == 3


def test_a_link_in_the_place_of_a_ranks_directory_is_not_gone_into(room: Room, tmp_path: Path) -> None:
    room.ranks(rank())
    aside = tmp_path / "aside"
    room.run().rename(aside)
    room.run(0).rmdir()
    (room.base / "ranks" / "j.1.0").symlink_to(aside)
    assert room.said(1.0) == []
    assert not room.watch._watched


def test_old_ranks_lose_their_output_and_older_ones_their_place_and_nobody_else_anything(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sickbay.agent.ranks.retention.OUTPUTS", 1)
    monkeypatch.setattr("sickbay.agent.ranks.retention.PLACES", 2)
    alive = rank(9)
    room.ranks(alive, *(over(rank(n)) for n in range(4)))
    for n in (0, 1, 2, 3, 9):
        append(room.run(n) / "output", "words")
        old = time.time() - 10_000 - n
        os.utime(room.run(n) / "rank.json", (old, old))
    append(room.run(2) / "the user's own", "words")
    tidy(room.base)
    there = {path.name: sorted(inside.name for inside in path.iterdir()) for path in (room.base / "ranks").iterdir()}
    whole = ["output", "rank.json"]
    assert there == {
        "j.1.0": whole, "j.1.1": ["rank.json"], "j.1.2": ["the user's own"], "j.1.9": ["alive", *whole],
    }  # fmt: skip


@pytest.mark.parametrize(("seconds", "told"), [(600.0, [600.0]), (1800.0, []), (None, [])])
def test_a_launcher_that_gives_the_others_up_sooner_than_a_repair_takes_is_told_once(
    room: Room, seconds: float | None, told: list[float]
) -> None:
    room.ranks(rank(0, rendezvous=seconds), rank(1, rendezvous=seconds))
    said = [*room.said(1.0), *room.said(2.0)]
    assert [news.seconds for news in said if isinstance(news, RankWaits)] == told
