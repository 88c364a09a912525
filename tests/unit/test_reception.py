"""Where agents are received: reports become facts once, and commands ride on the replies."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from sickbay.adapters.stores.memory import MemoryStore
from sickbay.engine.reception import TRIES, Reception
from sickbay.model.checkup import Verdict
from sickbay.model.clock import INGEST
from sickbay.model.errors import BadInput, StoreUnavailable, Unstorable
from sickbay.model.facts import Booted, CallResult, Checked, Fact, Looked, Observed, Outcome, Stepped
from sickbay.model.fleet import Incarnation, JobId, Node, NodeId
from sickbay.model.protocol import (
    Answered,
    AnyOrder,
    Command,
    CommandResult,
    Item,
    ItemNews,
    Measured,
    Poll,
    Report,
    RunCheck,
    RunLook,
    RunReboot,
    RunReset,
)
from sickbay.model.rows import Rows, Unit
from sickbay.ports.metrics import Point
from sickbay.ports.store import Pulse

NODE = NodeId("c/n1")
ME = Incarnation(instance_id="i", boot_id="b2")
START = 1_700_000_000.0
XID = Observed(node=NODE, kind="xid", fields={"number": 79}, text="fell off the bus")


class HandClock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = START

    def wall(self) -> float:
        return self.now

    def mono(self) -> float:
        return self.now


class Door:
    def __init__(self, store: Any = None) -> None:
        self.store = store or MemoryStore()
        self.clock = HandClock()
        self.reception = Reception(self.store, self.clock)

    def facts(self) -> Sequence[Fact]:
        return self.store.facts(after=0, limit=1000)

    def post(self, order: AnyOrder, name: str = "k/c/n1", expires_after: float = 30.0) -> None:
        at = datetime.fromtimestamp(self.clock.now, UTC)
        self.store.post([Command(id=name, node=NODE, order=order, posted_at=at, expires_after=expires_after)])


def report(*news: ItemNews, first: int = 1, **more: Any) -> Report:
    items = tuple(Item(seq=first + n, mono=100.0, news=one) for n, one in enumerate(news))
    given = {"mono_now": 100.0, "wall_now": 0.0, "watermark": 100.0, "agent_run": "r", "boot_id": "b2", **more}
    return Report(proto=1, node=NODE, uid="u", instance_id="i", first_seq=first, items=items, **given)


def poll(*has: str, proto: int = 1) -> Poll:
    return Poll(proto=proto, node=NODE, uid="u", instance_id="i", boot_id="b2", has=has)


def test_acknowledges_what_is_stored_and_stores_it_once() -> None:
    door = Door()
    first = door.reception.receive(report(XID, XID, first=5))
    again = door.reception.receive(report(XID, XID, first=5))
    assert (first.ack, again.ack) == (6, 6)
    assert [fact.id for fact in door.facts()] == ["c/n1/b2/r/main/5", "c/n1/b2/r/main/6"]


def test_a_line_that_two_runs_of_an_agent_read_is_one_fact() -> None:
    door = Door()
    for run in ("r1", "r2"):
        said = report(XID, agent_run=run)
        numbered = tuple(replace(item, source="kmsg", source_seq=640) for item in said.items)
        door.reception.receive(replace(said, items=numbered))
    assert [fact.id for fact in door.facts()] == ["c/n1/b2/kmsg/640"]


def test_an_item_is_dated_by_how_long_ago_it_was_and_never_by_the_nodes_wall_clock() -> None:
    door = Door()
    door.reception.receive(report(XID, mono_now=107.5, wall_now=5e12))
    ahead = report(XID, first=2, mono_now=90.0)  # its clock cannot be right: it happened now at the latest
    door.reception.receive(ahead)
    assert [fact.at.timestamp() for fact in door.facts()] == [START - 7.5, START]


@pytest.mark.parametrize("mono_now", [1e18, 1e308, -1e308])
def test_an_agent_whose_clock_cannot_be_right_is_heard_all_the_same(mono_now: float) -> None:
    door = Door()
    reply = door.reception.receive(report(XID, Measured(values={"cpu.busy": 1.0}), mono_now=mono_now))
    assert reply.ack == 2
    (fact,) = door.facts()
    assert 0.0 <= START - fact.at.timestamp() <= 366 * 86_400


@pytest.mark.parametrize("mono", [-1e12, 1e12, -1e300, 1e300, float("nan")])
def test_an_item_of_any_moment_is_dated_and_never_a_failure_of_ours(mono: float) -> None:
    door = Door()
    odd = replace(report(XID, XID), items=(Item(seq=1, mono=100.0, news=XID), Item(seq=2, mono=mono, news=XID)))
    assert door.reception.receive(odd).ack == 2
    assert all(0.0 <= START - fact.at.timestamp() <= 366 * 86_400 for fact in door.facts())


def test_what_the_store_does_not_take_is_refused_and_not_sent_for_ever() -> None:
    """A store that is well and takes this one never: 'try again' would silence its agent."""
    door = Door(Balking(Unstorable("the fact would be read back as something else")))
    with pytest.raises(BadInput, match="cannot be stored: the fact"):
        door.reception.receive(report(replace(XID, text="poison")))
    assert not door.facts()
    assert door.reception.receive(report(XID, first=2)).ack == 2


def test_an_agent_speaks_for_its_own_node_and_incarnation_only() -> None:
    door = Door()
    stranger = Incarnation(uid="x", instance_id="x", boot_id="x")
    door.reception.receive(report(Looked(look="l", node=NodeId("c/other"), incarnation=stranger), XID))
    for fact in door.facts():
        assert isinstance(fact.news, Looked | Observed)
        assert (fact.news.node, fact.news.incarnation) == (NODE, ME)


@pytest.mark.parametrize("seqs", [(1, 3), (2, 3), (1, 1), (2, 1)])
def test_refuses_items_with_gaps(seqs: tuple[int, ...]) -> None:
    door = Door()
    items = tuple(Item(seq=seq, mono=0.0, news=XID) for seq in seqs)
    with pytest.raises(BadInput, match="in order, none left out"):
        door.reception.receive(replace(report(), items=items))
    assert not door.facts()


def test_refuses_a_protocol_that_it_does_not_know() -> None:
    door = Door()
    with pytest.raises(BadInput, match="speaks protocol 1"):
        door.reception.receive(replace(report(XID), proto=2))
    with pytest.raises(BadInput, match="speaks protocol 1"):
        door.reception.commands(poll(proto=0))


def test_a_report_without_items_is_a_sign_of_life_and_moves_the_clock() -> None:
    door = Door()
    door.reception.receive(report())
    door.clock.now += 5.0
    assert door.reception.receive(report()).ack == 0
    heard = door.store.voices(before=-1.0).heard
    assert [(node, pulse.incarnation, pulse.reading) for node, pulse in heard] == [(NODE, ME, 5.0)]
    clock = door.store.load([f"clock:{INGEST}"])[f"clock:{INGEST}"].row
    assert clock is not None
    assert not door.facts()


def test_what_was_spooled_under_an_ended_boot_is_no_sign_of_life() -> None:
    door = Door()
    lease = door.store.lease("t", 60.0)
    seat = Node(id=NODE, cluster="c", pool="p", incarnation=ME, ended_boots=("b1",))
    door.store.commit(Unit(writes={f"node:{NODE}": seat}, expect={}), lease.epoch)
    door.reception.receive(report())
    door.reception.receive(report(XID, boot_id="b1", agent_run="old"))
    assert [pulse.incarnation.boot_id for _, pulse in door.store.voices(before=-1.0).heard] == ["b2"]
    assert [fact.id for fact in door.facts()] == ["c/n1/b1/old/main/1"]


def test_the_first_report_under_a_new_boot_says_when_it_began_before_it_is_a_sign_of_life() -> None:
    door = Door()
    lease = door.store.lease("engine", 30.0)
    seat = Node(id=NODE, cluster="c", pool="c/p", incarnation=Incarnation(uid="u", instance_id="i", boot_id="b1"))
    door.store.commit(Unit(writes={f"node:{NODE}": seat}), lease.epoch)
    heard: list[int] = []

    class Listening(MemoryStore):
        def hear(self, pulses: Mapping[NodeId, Pulse]) -> None:
            heard.append(len(door.facts()))
            super().hear(pulses)

    door.store.__class__ = Listening
    for _ in range(3):
        door.reception.receive(report(mono_now=100.0))
        door.clock.now += 5.0
    (booted,) = door.facts()
    assert booted.news == Booted(node=NODE, incarnation=ME)
    assert booted.at == datetime.fromtimestamp(START - 100.0, UTC)
    assert heard == [1, 1, 1]


@pytest.mark.parametrize("mono_now", [-1.0, 0.0, 1e12])
def test_an_agent_whose_clock_cannot_be_right_says_nothing_of_when_its_boot_began(mono_now: float) -> None:
    door = Door()
    lease = door.store.lease("engine", 30.0)
    seat = Node(id=NODE, cluster="c", pool="c/p", incarnation=Incarnation(uid="u", instance_id="i", boot_id="b1"))
    door.store.commit(Unit(writes={f"node:{NODE}": seat}), lease.epoch)
    door.reception.receive(report(mono_now=mono_now))
    assert door.facts() == []


def test_commands_ride_on_replies_with_the_time_that_is_left_to_them() -> None:
    door = Door()
    door.post(RunLook(look="k"))
    door.clock.now += 12.0
    for reply in (door.reception.receive(report()), door.reception.commands(poll())):
        assert [(command.id, command.expires_after) for command in reply.commands] == [("k/c/n1", 18.0)]
    assert not door.reception.commands(poll("k/c/n1")).commands


def test_a_wall_clock_that_jumps_back_gives_no_command_more_time() -> None:
    door = Door()
    door.post(RunLook(look="k"))
    door.clock.now -= 3600.0
    assert door.reception.commands(poll()).commands[0].expires_after == 30.0


def test_a_command_that_nobody_took_in_time_is_struck() -> None:
    door = Door()
    door.post(RunCheck(check="k", level=1))
    door.clock.now += 31.0
    assert not door.reception.receive(report()).commands
    assert not door.store.mail(NODE)
    assert not door.facts()  # nobody knows anything: the engine's own deadline speaks


def test_those_that_an_agent_has_do_not_hide_the_others() -> None:
    door = Door()
    for n in range(30):
        door.post(RunLook(look=str(n)), name=f"{n:02d}")
    has = tuple(f"{n:02d}" for n in range(25))
    assert [command.id for command in door.reception.commands(poll(*has)).commands] == ["25", "26", "27", "28", "29"]


def test_an_answer_strikes_its_command_and_leaves_no_fact_when_it_was_carried_out() -> None:
    door = Door()
    door.post(RunCheck(check="k", level=2))
    verdict = Checked(check="k", node=NODE, verdict=Verdict.PASS, incarnation=ME, level=2)
    door.reception.receive(report(verdict, Answered(command="k/c/n1", result=CommandResult.DONE)))
    assert [type(fact.news) for fact in door.facts()] == [Checked]
    assert not door.store.mail(NODE)


@pytest.mark.parametrize("result", [CommandResult.REFUSED, CommandResult.UNKNOWN])
def test_a_reset_that_was_not_surely_done_is_a_late_refusal(result: CommandResult) -> None:
    door = Door()
    door.post(RunReset(key="k"))
    door.reception.receive(report(Answered(command="k/c/n1", result=result, text="held by rank 0")))
    (fact,) = door.facts()
    assert fact.news == Outcome(key="k", result=CallResult.REJECTED, sends=0, text="held by rank 0", node=NODE)
    assert not door.store.mail(NODE)


@pytest.mark.parametrize("result", [CommandResult.DONE, CommandResult.UNKNOWN])
def test_a_reboot_that_may_yet_come_is_waited_for(result: CommandResult) -> None:
    """Its proof is another boot; the next rung must not begin beside it."""
    door = Door()
    door.post(RunReboot(key="k"))
    door.reception.receive(report(Answered(command="k/c/n1", result=result, text="it was called for")))
    assert not door.facts()
    assert not door.store.mail(NODE)


def test_a_reboot_that_was_refused_ends_its_rung() -> None:
    door = Door()
    door.post(RunReboot(key="k"))
    door.reception.receive(report(Answered(command="k/c/n1", result=CommandResult.REFUSED, text="not allowed")))
    (fact,) = door.facts()
    assert fact.news == Outcome(key="k", result=CallResult.REJECTED, sends=0, text="not allowed", node=NODE)


@pytest.mark.parametrize("result", [CommandResult.REFUSED, CommandResult.UNKNOWN])
def test_a_check_that_was_not_carried_out_could_not_run(result: CommandResult) -> None:
    door = Door()
    door.post(RunCheck(check="k", level=3))
    door.reception.receive(report(Answered(command="k/c/n1", result=result, text="another incarnation")))
    (fact,) = door.facts()
    assert fact.news == Checked(
        check="k", node=NODE, verdict=Verdict.COULD_NOT_RUN, incarnation=ME, level=3, because="another incarnation"
    )


def test_a_refused_look_says_nothing_at_all() -> None:
    door = Door()
    door.post(RunLook(look="k"))
    door.reception.receive(report(Answered(command="k/c/n1", result=CommandResult.REFUSED)))
    assert not door.facts()
    assert not door.store.mail(NODE)


def test_only_the_first_answer_counts() -> None:
    door = Door()
    door.post(RunCheck(check="k", level=1))
    done, unsure = (
        Answered(command="k/c/n1", result=CommandResult.DONE),
        Answered(command="k/c/n1", result=CommandResult.UNKNOWN),
    )
    door.reception.receive(report(done, unsure))
    door.reception.receive(report(unsure, first=3))
    assert not door.facts()


def test_a_refusal_that_comes_after_the_commands_time_still_counts() -> None:
    door = Door()
    door.post(RunReset(key="k"))
    door.clock.now += 31.0
    door.reception.receive(report(Answered(command="k/c/n1", result=CommandResult.REFUSED, text="its time is over")))
    assert [type(fact.news) for fact in door.facts()] == [Outcome]


class Balking(MemoryStore):
    """A store that does not take facts with a certain text, and counts its appends."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.error = error or StoreUnavailable("not this one")
        self.appends = 0

    def append(self, facts: Sequence[Fact], *rest: Any, **more: Any) -> int:
        self.appends += 1
        if any(isinstance(fact.news, Observed) and fact.news.text == "poison" for fact in facts):
            raise self.error
        return super().append(facts, *rest, **more)


def test_nothing_is_acknowledged_or_struck_that_was_not_stored() -> None:
    door = Door(Balking())
    door.post(RunLook(look="k"))
    poison = replace(XID, text="poison")
    with pytest.raises(StoreUnavailable):
        door.reception.receive(report(poison, Answered(command="k/c/n1", result=CommandResult.DONE)))
    assert [command.id for command in door.store.mail(NODE)] == ["k/c/n1"]


def gathered(store: Balking, poison: set[int], reports: int = 20) -> list[Any]:
    """The answers to reports of as many nodes that are received together."""
    door = Door(store)
    sent = [
        replace(
            report(replace(XID, text="poison") if n in poison else Stepped(job=JobId("j"), attempt=1, step=n)),
            node=NodeId(f"c/n{n}"),
        )
        for n in range(reports)
    ]
    return door.reception.receive_all(sent)


def acks(answers: Sequence[Any]) -> list[int | type[Exception]]:
    return [type(one) if isinstance(one, Exception) else one.ack for one in answers]


def test_reports_that_arrive_together_are_stored_together() -> None:
    store = Balking()
    assert acks(gathered(store, set())) == [1] * 20
    assert len(store.facts(after=0)) == 20
    assert store.appends == 1


@pytest.mark.parametrize("error", [Unstorable("not this one"), StoreUnavailable("not this one"), OverflowError("?")])
def test_nobody_answers_for_what_others_report(error: Exception) -> None:
    store = Balking(error)
    told = BadInput if isinstance(error, Unstorable) else type(error)
    assert acks(gathered(store, {0, 7})) == [told, *[1] * 6, told, *[1] * 12]
    assert len(store.facts(after=0)) == 18


def test_a_store_that_is_away_is_not_asked_again_for_each_report() -> None:
    store = Balking()
    assert acks(gathered(store, set(range(20)))) == [StoreUnavailable] * 20
    assert store.appends == 1 + TRIES


def test_of_an_agent_that_is_known_no_row_is_read() -> None:
    class Read(MemoryStore):
        loads = 0

        def load(self, keys: Iterable[str]) -> Rows:
            wanted = list(keys)
            self.loads += any(key.startswith("node:") for key in wanted)
            return super().load(wanted)

    door = Door(Read())
    for _ in range(3):
        door.reception.receive(report(XID))
    assert door.store.loads == 1


def test_a_report_that_cannot_be_read_spoils_no_other() -> None:
    door = Door()
    good, gap, strange, nul = (replace(report(XID), node=NodeId(f"c/n{n}")) for n in range(4))
    gap = replace(gap, items=(*gap.items, replace(gap.items[0], seq=9)))
    answers = door.reception.receive_all([gap, replace(strange, proto=9), good, replace(nul, stream="a\0b")])
    assert acks(answers) == [BadInput, BadInput, 1, BadInput]
    assert [fact.news.node for fact in door.facts() if isinstance(fact.news, Observed)] == [good.node]


class Kept:
    """A Metrics port that remembers what it was given."""

    def __init__(self) -> None:
        self.values: list[tuple[NodeId, datetime, dict[str, float]]] = []

    def record(self, node: NodeId, at: datetime, values: Mapping[str, float]) -> None:
        self.values.append((node, at, dict(values)))

    def series(self, node: NodeId) -> Sequence[str]:
        raise NotImplementedError

    def read(self, node: NodeId, series: str, since: datetime, until: datetime) -> Sequence[Point]:
        raise NotImplementedError

    def latest(self) -> Mapping[NodeId, tuple[datetime, Mapping[str, float]]]:
        raise NotImplementedError


def test_what_was_measured_is_dated_and_kept_beside_the_facts() -> None:
    door, kept = Door(), Kept()
    door.reception = Reception(door.store, door.clock, metrics=kept)
    reply = door.reception.receive(report(Measured(values={"cpu.busy": 1.0}), XID, mono_now=130.0))
    assert reply.ack == 2
    assert [type(fact.news) for fact in door.facts()] == [Observed]
    assert kept.values == [(NODE, datetime.fromtimestamp(START - 30.0, UTC), {"cpu.busy": 1.0})]
