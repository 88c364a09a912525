"""Commands are delivered at least once and carried out once; what nobody knows is called unknown."""

import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from tests.unit.agent_rig import until
from tests.unit.test_agent_outbox import full_disk

from sickbay.agent.commands import Carry, Commands, Entry, Journal
from sickbay.agent.outbox import Outbox
from sickbay.agent.spool import Voice
from sickbay.model.facts import Checked, Looked
from sickbay.model.fleet import Incarnation, NodeId
from sickbay.model.protocol import Answered, AnyOrder, Command, Item, ItemNews, RunCheck, RunLook, RunReset

NODE = NodeId("c/n1")
ME = Incarnation(uid="u", instance_id="i", boot_id="b")
LOOK, CHECK, RESET = RunLook(look="l"), RunCheck(check="k", level=1), RunReset(key="r")


def command(order: AnyOrder = CHECK, name: str = "c1", **more: Any) -> Command:
    given: dict[str, Any] = {"posted_at": datetime.now(UTC), "expires_after": 30.0, **more}
    return Command(id=name, node=NODE, order=order, **given)


class Desk:
    """An agent's commands, with hands that count what they do."""

    def __init__(self, state: Path, run: str = "r1") -> None:
        self.state = state
        self.outbox = Outbox(state / "spool", Voice(node=NODE, incarnation=ME, agent_run=run))
        self.done: list[AnyOrder] = []
        self.may_end = threading.Event()
        self.may_end.set()
        self.trouble: Exception | None = None
        carry: dict[type, Carry] = {RunLook: self._carry, RunCheck: self._carry, RunReset: self._carry}
        self.commands = Commands(Journal(state / "commands.jsonl"), self.outbox, ME, carry)

    def _carry(self, order: AnyOrder, until: float) -> Sequence[ItemNews]:
        self.done.append(order)
        self.may_end.wait(max(0.0, until - time.monotonic()))
        if self.trouble is not None:
            raise self.trouble
        if isinstance(order, RunCheck):
            return [Checked(check=order.check, node=NODE, verdict="pass", incarnation=ME)]
        return [Looked(look="l", node=NODE, incarnation=ME)]

    def said(self) -> list[ItemNews]:
        return [msgspec.json.decode(entry.line, type=Item).news for entry in self.outbox._entries]

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


def test_it_is_on_disk_before_it_is_begun(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.may_end.clear()
    desk.commands.take(command())
    until(lambda: desk.done)
    assert Journal(tmp_path / "commands.jsonl").known["c1"].result == ""
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


def test_a_journal_that_was_cut_anywhere_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "commands.jsonl"
    journal = Journal(path)
    for entry in (Entry(id="a"), Entry(id="a", result="done"), Entry(id="b")):
        journal.note(entry)
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        found = Journal(path)
        found.note(Entry(id="z"))  # and what is written after it can be read
        assert Journal(path).known["z"].result == ""
        assert list(found.known)[:-1] in ([], ["a"], ["a", "b"])
    path.write_bytes(whole)
    journal = Journal(path)
    journal.compact()
    assert Journal(path).known == journal.known
    assert path.read_bytes().count(b"\n") == 2


def test_the_journal_does_not_grow_for_ever(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "c")
    journal.known.update({str(n): Entry(id=str(n), result="done") for n in range(2000)})
    journal.note(Entry(id="new"))
    assert len(journal.known) == 500
    assert "new" in journal.known
