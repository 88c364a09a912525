"""Commands are delivered at least once and carried out once; what nobody knows is called unknown."""

import resource
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.support.waiting import until
from tests.unit.test_agent_outbox import full_disk

from sickbay.agent.command_journal import CommandJournal, JournaledCommand
from sickbay.agent.commands import DEADLINES, MOST_AT_ONCE, CarriedOut, Carry, Commands, Refuse
from sickbay.agent.outbox import Outbox
from sickbay.agent.spool import AgentIdentity
from sickbay.model.checkup import Verdict
from sickbay.model.facts import Checked, Looked, Observed
from sickbay.model.fleet import Incarnation, NodeId
from sickbay.model.protocol import (
    Answered,
    AnyOrder,
    Command,
    CommandResult,
    Item,
    ItemNews,
    RunCheck,
    RunLook,
    RunReboot,
    RunReset,
)

NODE = NodeId("c/n1")
ME = Incarnation(uid="u", instance_id="i", boot_id="b")
LOOK, CHECK, RESET, REBOOT = RunLook(look="l"), RunCheck(check="k", level=1), RunReset(key="r"), RunReboot(key="b")
NEXT_BOOT = Incarnation(uid="u", instance_id="i", boot_id="b2")


def command(order: AnyOrder = CHECK, name: str = "c1", **more: Any) -> Command:
    given: dict[str, Any] = {"posted_at": datetime.now(UTC), "expires_after": 30.0, "expect": ME, **more}
    return Command(id=name, node=NODE, order=order, **given)


class Desk:
    """An agent's commands, with hands that count what they do."""

    def __init__(self, state: Path, run: str = "r1", me: Incarnation = ME) -> None:
        self.left = threading.Event()
        self.leave_trouble: Exception | None = None
        self.state = state
        self.outbox = Outbox(state / "spool", AgentIdentity(node=NODE, incarnation=me, agent_run=run))
        self.done: list[AnyOrder] = []
        self.may_end = threading.Event()
        self.may_end.set()
        self.trouble: Exception | None = None
        carry: dict[type, Carry] = {
            RunLook: self._carry, RunCheck: self._carry, RunReset: self._carry, RunReboot: self._reboot,
        }  # fmt: skip
        self.commands = Commands(CommandJournal(state / "commands.jsonl"), self.outbox, me, carry)

    def _carry(self, order: AnyOrder, until: float) -> Sequence[ItemNews]:
        self.done.append(order)
        self.may_end.wait(max(0.0, until - time.monotonic()))
        if self.trouble is not None:
            raise self.trouble
        if isinstance(order, RunCheck):
            return [Checked(check=order.check, node=NODE, verdict=Verdict.PASS, incarnation=ME)]
        return [Looked(look="l", node=NODE, incarnation=ME)]

    def _reboot(self, order: AnyOrder, until: float) -> CarriedOut:  # noqa: ARG002 - a Carry
        def leave() -> None:
            self.done.append(order)
            self.left.set()
            if self.leave_trouble is not None:
                raise self.leave_trouble

        down = Observed(node=NODE, kind="node.going_down")
        return CarriedOut(news=[down], text="rebooting", leave=leave, stays=[replace(down, text="refused")])

    def heard(self) -> None:
        """The controller stores all that was said."""
        batch = until(self.outbox.batch)
        self.outbox.acknowledge(batch, batch.last)

    def said(self) -> list[ItemNews]:
        with self.outbox._more:  # threads of commands put in what they have to say
            lines = [entry.line for entry in self.outbox._entries]
        return [msgspec.json.decode(line, type=Item).news for line in lines]

    def answers(self) -> list[tuple[str, str]]:
        return [(news.command, news.result) for news in self.said() if isinstance(news, Answered)]

    def answered(self, wanted: int = 1) -> list[tuple[str, str]]:
        until(lambda: len(self.answers()) >= wanted)
        return self.answers()


def test_a_command_that_comes_often_is_carried_out_once(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.may_end.clear()
    for _ in range(5):
        desk.commands.take(command())
    assert desk.commands.has() == ("c1",)
    desk.may_end.set()
    assert desk.answered() == [("c1", "done")]
    desk.commands.take(command())
    assert desk.done == [CHECK]
    assert desk.commands.has() == ("c1",)
    assert [type(news) for news in desk.said()] == [Checked, Answered]


# --- for this node, this boot, within its time


def test_what_is_for_another_node_is_refused(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.commands.take(replace(command(RESET, expect=None), node=NodeId("c/OTHER")))
    desk.commands.take(replace(command(LOOK, name="c2"), node=NodeId("c/OTHER")))
    assert desk.answered(2) == [("c1", "refused"), ("c2", "refused")]
    assert not desk.done


@pytest.mark.parametrize("order", [RESET, REBOOT])
@pytest.mark.parametrize("expect", [None, Incarnation(uid="u", instance_id="i")], ids=["nobody", "no boot"])
def test_a_reset_and_a_reboot_say_which_boot_they_mean(
    tmp_path: Path, order: AnyOrder, expect: Incarnation | None
) -> None:
    desk = Desk(tmp_path)
    desk.commands.take(command(order, expect=expect))
    assert desk.answered() == [("c1", "refused")]
    assert "which boot" in desk.said()[0].text
    assert not desk.done


def test_what_waited_has_its_whole_time_from_its_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check ends just before the reset's time to begin is over: the reset is not left with the rest of it."""
    monkeypatch.setitem(DEADLINES, RunReset, 2.0)
    ends: list[float] = []
    desk = Desk(tmp_path)

    def reset(order: AnyOrder, end: float) -> Sequence[ItemNews]:  # noqa: ARG001 - a Carry
        ends.append(end - time.monotonic())
        return []

    desk.commands._carry = {**desk.commands._carry, RunReset: reset}
    desk.may_end.clear()
    desk.commands.take(command(name="check"))
    until(lambda: desk.done)
    desk.commands.take(command(RESET, name="reset", expires_after=5.0))
    time.sleep(0.5)
    desk.may_end.set()
    desk.answered(2)
    assert 1.5 < ends[0] <= 2.0


def test_what_was_answered_for_while_it_waited_is_not_begun_any_more(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.may_end.clear()
    desk.commands.take(command(name="check"))
    until(lambda: desk.done)
    desk.commands.take(command(RESET, name="reset"))
    until(lambda: "reset" in desk.commands.has())
    desk.commands.overdue(time.monotonic() + 40.0)
    assert desk.answers() == [("reset", "refused")]
    desk.may_end.set()
    assert desk.answered(2)[1] == ("check", "done")
    until(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("command")])
    assert desk.done == [CHECK]


@pytest.mark.slow
def test_thousands_at_once_have_few_threads_and_the_rest_is_refused(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.may_end.clear()
    before = threading.active_count()
    for number in range(1000):
        desk.commands.take(command(CHECK, name=f"l{number}"))
    assert threading.active_count() - before <= MOST_AT_ONCE
    refused = [news for news in desk.said() if isinstance(news, Answered)]
    assert len(refused) == 1000 - MOST_AT_ONCE
    assert all(news.result == "refused" and "too many at once" in news.text for news in refused)
    desk.may_end.set()
    desk.answered(1000)
    assert len(desk.done) == MOST_AT_ONCE


def test_looks_that_hang_are_few_and_keep_no_reset_away(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.may_end.clear()
    desk.commands._carry = {**desk.commands._carry, RunReset: lambda *_: []}
    before = threading.active_count()
    for number in range(100):
        desk.commands.take(command(LOOK, name=f"l{number}"))
        until(lambda: not any(work.ends == float("inf") for work in list(desk.commands._working.values())))
        desk.commands.overdue(time.monotonic() + 100.0)  # answered for, and hanging on
    assert threading.active_count() - before <= MOST_AT_ONCE // 2
    desk.commands.take(command(RESET, name="reset"))
    until(lambda: ("reset", "done") in desk.answers())
    desk.may_end.set()


def test_a_command_that_gets_no_thread_is_refused_and_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def balks(self: threading.Thread) -> None:  # noqa: ARG001 - in the place of start
        raise RuntimeError("can't start new thread")

    desk = Desk(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", balks)
        desk.commands.take(command(RESET))
    assert desk.answers() == [("c1", "refused")]
    desk.commands.take(command(CHECK, name="c2"))
    assert desk.answered(2)[1] == ("c2", "done")
    assert desk.done == [CHECK]


def test_one_that_cannot_be_understood_is_refused_once(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    assert desk.commands.refuse("new", "no such order: dance")
    assert not desk.commands.refuse("new", "no such order: dance")
    assert desk.answers() == [("new", "refused")]
    assert "new" in desk.commands.has()


def test_where_nobody_knows_what_was_carried_out_nothing_is(tmp_path: Path) -> None:
    (tmp_path / "commands.jsonl").mkdir()  # as unreadable as a file on a sick disk
    desk = Desk(tmp_path)
    desk.commands.recover()
    desk.commands.take(command(RESET))
    desk.commands.take(command(LOOK, name="look"))
    assert sorted(desk.answered(2)) == [("c1", "refused"), ("look", "done")]
    assert desk.done == [LOOK]


# --- what ends this boot


def test_a_reboot_is_answered_by_the_next_boot(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.commands.take(command(REBOOT))
    until(desk.said)
    assert not desk.left.is_set(), "its announcement has not left"
    desk.heard()
    assert desk.left.wait(10)
    assert CommandJournal(tmp_path / "commands.jsonl").known["c1"] == JournaledCommand(id="c1", leaving="b")
    desk.commands.take(command(REBOOT))
    assert desk.answers() == []
    assert desk.commands.has() == ("c1",)
    after = Desk(tmp_path, "r2", NEXT_BOOT)
    after.commands.recover()
    assert after.answers() == [("c1", "done")]
    after.commands.take(command(REBOOT))
    assert after.answers() == [("c1", "done")] * 2
    assert not after.done
    desk.commands.overdue(time.monotonic() + 1000.0)


def test_an_agent_that_dies_over_a_reboot_and_comes_back_in_the_same_boot_does_not_know_and_does_not_try_again(
    tmp_path: Path,
) -> None:
    CommandJournal(tmp_path / "commands.jsonl").note(JournaledCommand(id="c1", leaving="b"))
    after = Desk(tmp_path, "r2")
    after.commands.recover()
    assert after.answers() == [("c1", "unknown")]
    after.commands.take(command(REBOOT))
    assert not after.left.is_set()


def test_a_boot_without_a_name_proves_no_reboot(tmp_path: Path) -> None:
    CommandJournal(tmp_path / "commands.jsonl").note(JournaledCommand(id="c1", leaving="unknown-abc"))
    after = Desk(tmp_path, "r2", replace(ME, boot_id="unknown-def"))
    after.commands.recover()
    assert after.answers() == [("c1", "unknown")]


def test_an_agent_that_dies_before_it_called_for_the_reboot_may_be_asked_again(tmp_path: Path) -> None:
    before = Desk(tmp_path)
    before.commands.take(command(REBOOT))
    until(before.said)  # announced, and killed here
    assert not CommandJournal(tmp_path / "commands.jsonl").known
    after = Desk(tmp_path, "r2")
    after.commands.recover()
    assert after.answers() == []
    before.heard()
    assert before.left.wait(10)
    before.commands.overdue(time.monotonic() + 1000.0)


def test_a_reboot_that_is_refused_is_said_and_its_announcement_taken_back(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.leave_trouble = Refuse("systemctl reboot ended with 1: Access denied")
    desk.commands.take(command(REBOOT))
    until(desk.said)
    desk.heard()
    assert desk.answered() == [("c1", "refused")]
    stays, answer = desk.said()
    assert isinstance(stays, Observed)
    assert isinstance(answer, Answered)
    assert (stays.text, answer.text) == ("refused", "systemctl reboot ended with 1: Access denied")
    assert CommandJournal(tmp_path / "commands.jsonl").known["c1"].result == "refused"
    desk.commands.take(command(RESET, name="c2"))  # and others may begin
    assert desk.answered(2)[1] == ("c2", "done")


def test_a_machine_that_never_goes_down_is_unknown_when_its_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DEADLINES, RunReboot, 0.3)
    desk = Desk(tmp_path)
    desk.commands.take(command(REBOOT))
    until(desk.said)
    desk.heard()
    desk.commands.take(command(RESET, name="c2"))
    assert sorted(desk.answered(2)) == [("c1", "unknown"), ("c2", "done")]
    assert any(isinstance(news, Answered) and "this boot goes on" in news.text for news in desk.said())


def test_nothing_else_is_begun_while_the_machine_goes_down(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.commands.take(command(REBOOT))
    until(desk.said)
    desk.heard()
    assert desk.left.wait(10)
    desk.commands.take(command(RESET, name="c2", expires_after=0.1))
    assert desk.answered() == [("c2", "refused")]
    desk.commands.overdue(time.monotonic() + 1000.0)


def test_a_reboot_goes_ahead_of_a_reset_that_does_not_end(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.may_end.clear()
    desk.commands.take(command(RESET, name="hangs"))
    until(lambda: desk.done)
    desk.commands.overdue(time.monotonic() + 125.0)
    assert desk.answers() == [("hangs", "unknown")]
    desk.commands.take(command(REBOOT, name="cure"))
    until(lambda: any(isinstance(news, Observed) for news in desk.said()))
    desk.heard()
    assert desk.left.wait(10)
    desk.may_end.set()
    desk.commands.overdue(time.monotonic() + 1000.0)


def test_nothing_is_begun_beside_a_reset_that_does_not_end_though_a_reboot_went_ahead_of_it_in_vain(
    tmp_path: Path,
) -> None:
    desk = Desk(tmp_path)
    desk.may_end.clear()
    desk.commands.take(command(RESET, name="hangs"))
    until(lambda: desk.done)
    desk.commands.overdue(time.monotonic() + 125.0)
    desk.leave_trouble = Refuse("systemctl ended with 1")
    desk.commands.take(command(REBOOT, name="cure"))
    until(lambda: any(isinstance(news, Observed) for news in desk.said()))
    desk.heard()
    until(lambda: ("cure", "refused") in desk.answers())
    desk.commands.take(command(RESET, name="another", expires_after=0.1))
    until(lambda: ("another", "refused") in desk.answers())
    assert desk.done == [RESET, REBOOT]
    desk.may_end.set()
    desk.commands.take(command(RESET, name="once more"))
    until(lambda: ("once more", "done") in desk.answers())


def test_an_agent_that_ends_waits_for_a_reset_and_begins_none(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.may_end.clear()
    desk.commands.take(command(RESET))
    until(lambda: desk.done)
    ending = threading.Thread(target=desk.commands.finish)
    ending.start()
    desk.commands.take(command(RESET, name="c2"))
    ending.join(0.2)
    assert ending.is_alive()
    desk.may_end.set()
    ending.join(10)
    assert sorted(desk.answered(2)) == [("c1", "done"), ("c2", "refused")]
    assert desk.done == [RESET]


def test_the_file_of_the_journal_does_not_grow_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sickbay.agent.command_journal.LINES", 20)
    monkeypatch.setattr("sickbay.agent.command_journal.REMEMBERED", 5)
    journal = CommandJournal(tmp_path / "c")
    for number in range(100):
        journal.note(JournaledCommand(id=str(number), result=CommandResult.DONE))
    assert (tmp_path / "c").read_bytes().count(b"\n") <= 50
    assert list(CommandJournal(tmp_path / "c").known) == list(journal.known) == ["95", "96", "97", "98", "99"]


def test_one_that_still_runs_is_not_forgotten_for_others_and_not_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sickbay.agent.command_journal.REMEMBERED", 5)
    before = Desk(tmp_path)
    before.may_end.clear()
    before.commands.take(command(name="long"))
    until(lambda: before.done)
    for number in range(20):
        before.commands.take(command(RESET, name=f"refused {number}", expect=NEXT_BOOT))
    after = Desk(tmp_path, "r2")
    after.commands.recover()
    assert after.answers() == [("long", "unknown")]
    after.commands.take(command(name="long"))
    assert not after.done
    assert len(CommandJournal(tmp_path / "commands.jsonl").known) <= 6
    before.may_end.set()
    until(lambda: ("long", "done") in before.answers())


def test_it_is_on_disk_before_it_is_begun(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.may_end.clear()
    desk.commands.take(command())
    until(lambda: desk.done)
    assert CommandJournal(tmp_path / "commands.jsonl").known["c1"].result is None
    desk.may_end.set()
    desk.answered()


def test_one_that_was_begun_by_a_run_that_died_is_unknown_and_not_begun_again(tmp_path: Path) -> None:
    before = Desk(tmp_path)
    before.may_end.clear()
    before.commands.take(command())
    until(lambda: before.done)
    after = Desk(tmp_path, "r2")
    after.commands.recover()
    assert after.answers() == [("c1", "unknown")]
    after.commands.take(command())
    assert after.answers() == [("c1", "unknown"), ("c1", "unknown")]
    assert not after.done
    before.may_end.set()
    before.answered()


def test_one_that_was_answered_by_an_earlier_run_is_answered_alike(tmp_path: Path) -> None:
    before = Desk(tmp_path)
    before.commands.take(command(RESET))
    before.answered()
    until(lambda: CommandJournal(tmp_path / "commands.jsonl").known["c1"].result)  # the answer is said before
    after = Desk(tmp_path, "r2")
    after.commands.recover()
    assert after.answers() == []
    after.commands.take(command(RESET))
    assert after.answers() == [("c1", "done")]
    assert not after.done


def test_a_look_changes_nothing_and_is_simply_done_again(tmp_path: Path) -> None:
    before = Desk(tmp_path)
    before.may_end.clear()
    before.commands.take(command(LOOK))
    until(lambda: before.done)
    after = Desk(tmp_path, "r2")
    after.commands.recover()
    after.commands.take(command(LOOK))
    assert after.answered() == [("c1", "done")]
    before.may_end.set()
    before.answered()


def test_refuses_what_is_meant_for_another_incarnation(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.commands.take(command(expect=Incarnation(uid="u", instance_id="i", boot_id="older")))
    assert desk.answered() == [("c1", "refused")]
    desk.commands.take(command(name="c2", expect=ME))
    assert desk.answered(2)[1] == ("c2", "done")
    assert desk.done == [CHECK]


def test_refuses_what_has_waited_too_long_behind_another(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.may_end.clear()
    desk.commands.take(command(name="long"))
    until(lambda: desk.done)
    desk.commands.take(command(RESET, name="late", expires_after=0.05))
    assert desk.answered() == [("late", "refused")]
    desk.may_end.set()
    assert desk.answered(2)[1] == ("long", "done")
    assert desk.done == [CHECK]


def test_a_look_is_answered_while_a_check_runs(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.may_end.clear()
    desk.commands.take(command(name="check"))
    until(lambda: desk.done)
    desk.commands.take(command(LOOK, name="look"))
    until(lambda: len(desk.done) == 2)
    desk.may_end.set()
    assert set(desk.answered(2)) == {("check", "done"), ("look", "done")}


def test_what_goes_wrong_while_it_is_carried_out_is_unknown_and_a_look_refused(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.trouble = RuntimeError("the driver is gone")
    desk.commands.take(command(RESET, name="a"))
    assert desk.answered() == [("a", "unknown")]
    desk.commands.take(command(LOOK, name="b"))
    assert desk.answered(2)[1] == ("b", "refused")


def test_whoever_hangs_is_answered_for_and_not_heard_later(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.may_end.clear()
    desk.commands.take(command(RESET))
    until(lambda: desk.done)
    desk.commands.overdue(time.monotonic())
    assert desk.answers() == []
    desk.commands.overdue(time.monotonic() + 1000.0)
    assert desk.answers() == [("c1", "unknown")]
    desk.may_end.set()
    until(lambda: not any(thread.name == "command c1" for thread in threading.enumerate()))
    assert desk.answers() == [("c1", "unknown")]


def test_a_full_disk_refuses_what_must_be_written_down_and_still_looks(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    with full_disk():
        desk.commands.take(command(RESET, name="reset"))
        assert desk.answered() == [("reset", "refused")]
        desk.commands.take(command(LOOK, name="look"))
        assert desk.answered(2)[1] == ("look", "done")
    assert desk.done == [LOOK]


def test_a_disk_that_takes_half_a_line_refuses_what_must_be_written_down(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.commands.take(command(RESET, name="before"))
    desk.answered()
    room = (tmp_path / "commands.jsonl").stat().st_size + 8
    before, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        desk.commands.take(command(RESET, name="half"))
        until(lambda: ("half", "refused") in desk.answers())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, hard))
    assert desk.done == [RESET]


def test_what_is_noted_is_on_the_disk_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr("os.fsync", lambda handle: synced.append(str(Path(f"/proc/self/fd/{handle}").readlink())))
    CommandJournal(tmp_path / "c").note(JournaledCommand(id="1"))
    assert synced == [str(tmp_path / "c"), str(tmp_path)]  # and the name that leads to it


def test_a_journal_that_was_cut_anywhere_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "commands.jsonl"
    journal = CommandJournal(path)
    for entry in (
        JournaledCommand(id="a"),
        JournaledCommand(id="a", result=CommandResult.DONE),
        JournaledCommand(id="b"),
    ):
        journal.note(entry)
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        found = CommandJournal(path)
        found.note(JournaledCommand(id="z"))  # and what is written after it can be read
        assert CommandJournal(path).known["z"].result is None
        assert list(found.known)[:-1] in ([], ["a"], ["a", "b"])
    path.write_bytes(whole)
    journal = CommandJournal(path)
    journal.compact()
    assert CommandJournal(path).known == journal.known
    assert path.read_bytes().count(b"\n") == 2


def test_the_journal_does_not_grow_for_ever(tmp_path: Path) -> None:
    journal = CommandJournal(tmp_path / "c")
    journal.known.update({str(n): JournaledCommand(id=str(n), result=CommandResult.DONE) for n in range(2000)})
    journal.note(JournaledCommand(id="new"))
    assert len(journal.known) == 500
    assert "new" in journal.known
