"""The store's contract, second half: facts, clocks, pulses, the lease, age."""

import time
from collections.abc import Callable
from datetime import datetime, timedelta
from threading import Thread
from typing import TypeVar

import pytest

from sickbay.model.clock import WatchedClock
from sickbay.model.errors import Fenced, Unstorable
from sickbay.model.facts import Fact, Mark, Stepped
from sickbay.model.fleet import Cursor, JobId, NodeId
from sickbay.model.incident import Phase
from sickbay.model.intent import IntentState
from sickbay.model.job import JobState
from sickbay.model.rows import CURSOR, Unit, Versioned, WaitMark
from sickbay.ports.store import STORY, Store
from sickbay.testing.store_nouns import LATER, NOON, checkup, fact, incident, intent, job, line, node, pulse, writes

N, M = NodeId("c/a"), NodeId("c/b")
CLOCK = "clock:ingest"
Answer = TypeVar("Answer")


def eventually(ask: Callable[[], Answer | None], within: float = 10.0) -> Answer:
    """Asks until there is an answer: a store's own time cannot be set from outside."""
    end = time.monotonic() + within
    while (answer := ask()) is None:
        if time.monotonic() > end:
            pytest.fail(f"no answer within {within} s")
        time.sleep(0.002)
    return answer


class FactsContract:
    """Facts are numbered, and a second delivery is harmless."""

    def test_numbers_facts_in_the_order_in_which_they_were_given(self, store: Store) -> None:
        assert store.append([fact("a"), fact("b")]) == 2
        assert store.append([fact("c")]) == 1
        found = store.facts(0)
        assert [each.id for each in found] == ["a", "b", "c"]
        assert [each.seq for each in found] == sorted({each.seq for each in found})
        assert found[0].seq > 0
        assert found[0].news == fact("a").news
        assert found[0].at == NOON

    def test_drops_facts_whose_id_it_has(self, store: Store) -> None:
        assert store.append([fact("a"), fact("a", text="double"), fact("b")]) == 2
        assert store.append([fact("b"), fact("c"), fact("a")]) == 1
        assert [each.id for each in store.facts(0)] == ["a", "b", "c"]
        assert store.append([]) == 0

    def test_reads_on_after_a_number(self, store: Store) -> None:
        store.append([fact(str(number)) for number in range(7)])
        read, after = [], 0
        while page := store.facts(after, limit=3):
            assert len(page) <= 3
            read += [each.id for each in page]
            after = page[-1].seq
        assert read == [str(number) for number in range(7)]

    def test_refuses_a_fact_that_could_not_be_read_back_with_all_that_came_with_it(self, store: Store) -> None:
        if not getattr(self, "enforces_limits", True):
            pytest.skip("a store that enforces no limits is for simulations only")
        news = Stepped(job=JobId("j"), attempt=1, step=1, loss=float("nan"))
        with pytest.raises(Unstorable):
            store.append([fact("a"), Fact(id="b", at=NOON, news=news)])
        assert list(store.facts(0)) == []

    def test_needs_no_lease(self, store: Store) -> None:
        assert store.append([fact("a")], [Mark(source="ingest", at=1.0, period=1.0)]) == 1

    def test_a_fact_never_appears_below_a_number_that_was_read(self, store: Store) -> None:
        threads, each = 3, 40

        def send(name: str) -> None:
            for number in range(each):
                store.append([fact(f"{name}-{number}-{part}") for part in range(3)])

        senders = [Thread(target=send, args=(str(number),)) for number in range(threads)]
        for sender in senders:
            sender.start()
        read, after = set(), 0
        while any(sender.is_alive() for sender in senders):
            for one in store.facts(after):
                read.add(one.id)
                after = one.seq
        for sender in senders:
            sender.join()
        while page := store.facts(after):
            read |= {one.id for one in page}
            after = page[-1].seq
        assert len(read) == threads * each * 3


class ClocksContract:
    """Marks move watched clocks, in the same transaction."""

    def test_the_first_mark_creates_the_clock_and_the_next_move_it(self, store: Store) -> None:
        store.append([], [Mark(source="ingest", at=100.0, period=10.0, cursor="x", as_of=7.0)])
        first = store.load([CLOCK])[CLOCK]
        store.append([fact("a")], [Mark(source="ingest", at=115.0, period=10.0)])
        second = store.load([CLOCK])[CLOCK]
        assert _clock(first.row).reading == 0.0
        assert _clock(second.row).reading > 0.0
        assert (_clock(second.row).cursor, _clock(second.row).as_of) == ("x", 7.0)
        assert second.version > first.version > 0
        assert list(store.keys("clock")) == [CLOCK]

    def test_a_mark_is_dated_by_the_time_of_the_store_where_it_has_one(self, store: Store) -> None:
        before = store.time()
        store.append([], [Mark(source="ingest", at=100.0, period=10.0)])
        after = store.time()
        last = _clock(store.load([CLOCK])[CLOCK].row).last
        assert last is not None
        if before is None or after is None:
            assert last == 100.0
        else:
            assert before <= last <= after

    def test_writers_whose_clocks_differ_do_not_make_a_clock_run_fast(self, store: Store) -> None:
        for second in range(60):
            for ahead in (0.0, 8.0, 3.0):
                store.append([], [Mark(source="ingest", at=1000.0 + second + ahead, period=10.0)])
        assert 0.0 < _clock(store.load([CLOCK])[CLOCK].row).reading <= 60.0 + 8.0

    def test_a_clock_names_the_newest_fact_that_was_stored_when_it_moved(self, store: Store) -> None:
        store.append([fact("a"), fact("b")])
        store.append([fact("c")], [Mark(source="ingest", at=1.0, period=10.0)])
        newest = list(store.facts(after=0))[-1].seq
        assert _clock(store.load([CLOCK])[CLOCK].row).facts == newest
        store.append([fact("d")])
        assert _clock(store.load([CLOCK])[CLOCK].row).facts == newest
        store.append([], [Mark(source="ingest", at=2.0, period=10.0)])
        assert _clock(store.load([CLOCK])[CLOCK].row).facts == newest + 1

    def test_a_gap_of_more_than_two_periods_adds_nothing(self, store: Store) -> None:
        for at in (100.0, 121.0, 120.0):
            store.append([], [Mark(source="ingest", at=at, period=10.0 if store.time() is None else 0.0)])
        assert _clock(store.load([CLOCK])[CLOCK].row).reading == 0.0

    def test_a_read_counts_from_its_beginning(self, store: Store) -> None:
        store.append([], [Mark(source="c", at=100.0, period=10.0)])
        store.append([], [Mark(source="c", at=119.0, period=10.0, took=4.0)])
        row = _clock(store.load(["clock:c"])["clock:c"].row)
        assert row.reading == (15.0 if store.time() is None else 0.0)
        assert row.took == (4.0 if store.time() is None else 0.0)

    def test_several_marks_of_one_append_move_their_clocks_in_order(self, store: Store) -> None:
        store.append([], [Mark(source="ingest", at=at, period=10.0) for at in (100.0, 105.0, 115.0)])
        assert _clock(store.load([CLOCK])[CLOCK].row).reading == (15.0 if store.time() is None else 0.0)

    def test_as_of_never_goes_back_and_the_newest_cursor_and_period_stand(self, store: Store) -> None:
        store.append([], [Mark(source="c", at=1.0, period=10.0, cursor="x", as_of=9.0)])
        store.append([], [Mark(source="c", at=2.0, period=20.0, cursor="y", as_of=5.0)])
        row = store.load(["clock:c"])["clock:c"].row
        assert isinstance(row, WatchedClock)
        assert (row.as_of, row.cursor, row.period) == (9.0, "y", 20.0)

    def test_a_wait_that_read_a_clock_falls_due_when_the_clock_moves(self, store: Store, epoch: int) -> None:
        store.append([], [Mark(source="ingest", at=1.0, period=10.0)])
        on = {CLOCK: store.load([CLOCK])[CLOCK].version}
        store.commit(Unit(waits={"node:c/a": WaitMark(on=on)}), epoch)
        assert list(store.due({})) == []
        store.append([], [Mark(source="ingest", at=2.0, period=10.0)])
        assert list(store.due({})) == ["node:c/a"]

    def test_a_mark_is_written_although_all_its_facts_are_doubles(self, store: Store) -> None:
        store.append([fact("a")])
        assert store.append([fact("a")], [Mark(source="ingest", at=1.0, period=10.0)]) == 0
        assert store.load([CLOCK])[CLOCK].version > 0


class PulsesContract:
    """Pulses wake nobody; voices are what they tell beyond the facts."""

    def test_a_new_agent_is_heard_until_it_is_told(self, store: Store) -> None:
        store.hear({N: pulse(1.0)})
        assert store.voices(0.0).heard == ((N, pulse(1.0)),)
        store.append([fact("heard")], told={N: pulse(1.0)})
        assert store.voices(0.0).heard == ()
        store.hear({N: pulse(2.0)})
        assert store.voices(0.0).heard == ()

    def test_an_agent_under_another_incarnation_is_heard_again(self, store: Store) -> None:
        store.hear({N: pulse(1.0)})
        store.append([], told={N: pulse(1.0)})
        store.hear({N: pulse(2.0, boot="2")})
        assert store.voices(0.0).heard == ((N, pulse(2.0, boot="2")),)
        store.append([], told={N: pulse(2.0, boot="2")})
        assert store.voices(0.0).heard == ()

    def test_what_was_told_is_that_pulse_not_a_newer_one(self, store: Store) -> None:
        store.hear({N: pulse(1.0)})
        store.hear({N: pulse(2.0, boot="2")})
        store.append([], told={N: pulse(1.0)})
        assert store.voices(0.0).heard == ((N, pulse(2.0, boot="2")),)

    def test_silence_is_told_once_and_only_of_agents_that_were_told_as_heard(self, store: Store) -> None:
        store.hear({N: pulse(1.0), M: pulse(1.0)})
        assert store.voices(50.0).silent == ()
        store.append([], told={N: pulse(1.0)})
        assert store.voices(1.0).silent == ()
        assert store.voices(50.0).silent == ((N, pulse(1.0)),)
        assert store.voices(50.0).silent == ((N, pulse(1.0)),)
        store.append([fact("silent")], told={N: None})
        assert store.voices(50.0).silent == ()
        assert [each for each, _ in store.voices(50.0).heard] == [M]

    def test_an_agent_that_goes_on_is_not_silent(self, store: Store) -> None:
        store.hear({N: pulse(1.0), M: pulse(1.0)})
        store.append([], told={N: pulse(1.0), M: pulse(1.0)})
        store.hear({M: pulse(60.0)})
        assert store.voices(50.0).silent == ((N, pulse(1.0)),)
        assert store.voices(61.0).silent == ((N, pulse(1.0)), (M, pulse(60.0)))
        assert store.voices(50.0).silent == ((N, pulse(1.0)),)

    def test_an_agent_that_comes_back_after_silence_is_heard(self, store: Store) -> None:
        store.hear({N: pulse(1.0)})
        store.append([], told={N: pulse(1.0)})
        store.append([], told={N: None})
        assert store.voices(50.0) == store.voices(0.0)
        store.hear({N: pulse(60.0)})
        assert store.voices(50.0).heard == ((N, pulse(60.0)),)
        assert store.voices(70.0).silent == ()
        store.append([], told={N: pulse(60.0)})
        assert store.voices(50.0).heard == ()
        assert store.voices(70.0).silent == ((N, pulse(60.0)),)

    def test_a_pulse_that_was_overtaken_on_its_way_changes_nothing(self, store: Store) -> None:
        store.hear({N: pulse(5.0)})
        store.append([], told={N: pulse(5.0)})
        store.hear({N: pulse(3.0, boot="0")})
        assert store.voices(0.0).heard == ()
        assert store.voices(4.0).silent == ()

    def test_gives_no_more_voices_than_asked_for(self, store: Store) -> None:
        some = {NodeId(f"c/{number}"): pulse(float(number)) for number in range(5)}
        store.hear(some)
        assert len(store.voices(0.0, limit=3).heard) == 3
        store.append([], told=dict(some))
        assert [each for each, _ in store.voices(50.0, limit=3).silent] == ["c/0", "c/1", "c/2"]

    def test_a_pulse_raises_no_version_and_wakes_nobody(self, store: Store, epoch: int) -> None:
        store.commit(Unit(writes={"node:c/a": node("a")}, waits={"node:c/a": WaitMark(on={CLOCK: 0})}), epoch)
        before = store.load(["node:c/a", CLOCK])
        store.hear({N: pulse(1.0)})
        store.append([], told={N: pulse(1.0)})
        assert store.load(["node:c/a", CLOCK]) == before
        assert list(store.due({})) == []


class LeaseContract:
    """One leads, and every commit is checked against its epoch."""

    def test_one_holder_at_a_time(self, store: Store) -> None:
        lease = store.lease("a", 60.0)
        assert lease is not None
        assert (lease.holder, lease.ttl) == ("a", 60.0)
        assert lease.epoch > 0
        assert store.lease("b", 60.0) is None

    def test_a_lease_that_is_kept_keeps_its_epoch(self, store: Store) -> None:
        assert store.lease("a", 60.0) == store.lease("a", 60.0)

    def test_a_lease_that_ran_out_gives_a_new_epoch_to_whoever_takes_it(self, store: Store) -> None:
        first = store.lease("a", 0.01)
        assert first is not None
        second = eventually(lambda: store.lease("b", 0.01))
        assert second.epoch > first.epoch
        third = eventually(
            lambda: lease if (lease := store.lease("b", 0.0)) is not None and lease.epoch > second.epoch else None
        )
        assert third.holder == "b"

    def test_whoever_lost_the_lease_is_fenced(self, store: Store) -> None:
        first = store.lease("a", 0.01)
        assert first is not None
        second = eventually(lambda: store.lease("b", 60.0))
        with pytest.raises(Fenced):
            store.commit(writes(node("a")), first.epoch)
        assert store.load(["node:c/a"])["node:c/a"] == Versioned(row=None)
        store.commit(writes(node("a")), second.epoch)

    def test_an_epoch_that_the_lease_did_not_give_is_fenced(self, store: Store) -> None:
        for wrong in (0, 1):
            with pytest.raises(Fenced):
                store.commit(writes(node("a")), wrong)
        lease = store.lease("a", 60.0)
        assert lease is not None
        for wrong in (0, lease.epoch - 1, lease.epoch + 1):
            with pytest.raises(Fenced):
                store.commit(writes(node("a")), wrong)

    def test_whoever_resigns_hands_over_at_once_and_is_fenced(self, store: Store) -> None:
        first = store.lease("a", 60.0)
        assert first is not None
        store.resign("b")
        assert store.lease("b", 60.0) is None
        store.resign("a")
        with pytest.raises(Fenced):
            store.commit(writes(node("a")), first.epoch)
        second = store.lease("b", 60.0)
        assert second is not None
        assert second.epoch > first.epoch


class AgeContract:
    """Retention never touches what is open."""

    def test_forgets_facts_that_are_old_and_planned(self, store: Store, epoch: int) -> None:
        store.append([fact("old"), fact("new", at=LATER), fact("old, not planned")])
        planned = store.facts(0)[1].seq
        store.commit(Unit(writes={CURSOR: Cursor(at=planned)}), epoch)
        assert store.forget(NOON) == 0
        assert store.forget(NOON + timedelta(hours=1)) == 1
        assert [each.id for each in store.facts(0)] == ["new", "old, not planned"]

    def test_what_is_kept_does_not_hide_what_is_old_behind_it(self, store: Store, epoch: int) -> None:
        """Retention goes in pages: one that is full of what an open incident keeps is not the last."""
        store.commit(writes(incident("open")), epoch)
        for number in range(10):
            kept = tuple(line(f"kept {number}/{n}", "incident:open", at=NOON) for n in range(40))
            store.commit(Unit(story=kept), epoch)
        store.commit(Unit(story=(line("old", "node:c/a", at=NOON + timedelta(seconds=1)),)), epoch)
        assert store.forget(LATER) == 1
        assert len(store.story("incident:open")) == 400
        assert list(store.story("node:c/a")) == []

    def test_many_old_facts_go_page_by_page(self, store: Store, epoch: int) -> None:
        store.append([fact(f"old {n}") for n in range(500)] + [fact(f"new {n}", at=LATER) for n in range(100)])
        store.commit(Unit(writes={CURSOR: Cursor(at=store.facts(0, limit=1000)[-1].seq)}), epoch)
        assert store.forget(NOON + timedelta(hours=1)) == 500
        assert len(store.facts(0, limit=1000)) == 100

    def test_a_number_never_returns_after_its_fact_was_forgotten(self, store: Store, epoch: int) -> None:
        store.append([fact("a"), fact("b")])
        last = store.facts(0)[-1].seq
        store.commit(Unit(writes={CURSOR: Cursor(at=last)}), epoch)
        assert store.forget(LATER) == 2
        store.append([fact("c")])
        assert [each.id for each in store.facts(last)] == ["c"]

    def test_forgets_closed_incidents_jobs_and_checkups_and_ended_intents(self, store: Store, epoch: int) -> None:
        rows = (
            incident("old", Phase.RELEASED, closed_at=NOON),
            incident("new", Phase.RELEASED, closed_at=LATER),
            incident("open", Phase.HELD),
            job("old", JobState.COMPLETE, closed_at=NOON),
            job("open", JobState.RUNNING),
            intent("old", IntentState.SEEN, owner="incident:old"),
            intent("of-open", IntentState.SEEN, owner="incident:open"),
            intent("planned", IntentState.PLANNED, owner="incident:old"),
            checkup("old", closed_at=NOON),
            checkup("open"),
            intent("of-open-checkup", IntentState.SEEN, owner="checkup:open"),
            node("a"),
        )
        store.commit(writes(*rows), epoch)
        assert store.forget(self._between()) == 4
        assert list(store.keys("checkup")) == ["checkup:open"]
        assert list(store.keys("incident")) == ["incident:new", "incident:open"]
        assert list(store.keys("job")) == ["job:open"]
        assert list(store.keys("intent")) == ["intent:of-open", "intent:of-open-checkup", "intent:planned"]
        assert list(store.keys("node")) == ["node:c/a"]
        assert store.forget(self._between()) == 0

    def test_forgets_old_lines_but_not_those_of_an_open_incident(self, store: Store, epoch: int) -> None:
        store.commit(
            Unit(
                writes={"incident:open": incident("open"), "node:c/a": node("a")},
                story=(
                    line("old", "node:c/a", "node:c/b"),
                    line("of the open", "node:c/a", "incident:open"),
                    line("new", "node:c/a", at=LATER),
                ),
            ),
            epoch,
        )
        assert store.forget(self._between()) == 1
        assert [each.text for each in store.story("node:c/a")] == ["of the open", "new"]
        assert list(store.story("node:c/b")) == []

    def test_of_a_story_that_goes_on_for_ever_the_newest_lines_are_kept(self, store: Store, epoch: int) -> None:
        store.commit(writes(incident("open"), incident("old", Phase.GONE, closed_at=LATER)), epoch)
        told = [line(f"{n}", "incident:open", *(["incident:old"] if n < 10 else [])) for n in range(STORY + 70)]
        for first in range(0, len(told), 40):
            store.commit(Unit(story=tuple(told[first : first + 40])), epoch)
        assert store.forget(self._between()) == 70
        assert [each.text for each in store.story("incident:open", 10**6)] == [each.text for each in told[70:]]
        assert list(store.story("incident:old")) == []
        assert store.forget(self._between()) == 0

    def test_a_wait_goes_with_a_forgotten_row_and_others_on_it_fall_due(self, store: Store, epoch: int) -> None:
        store.commit(writes(incident("old", Phase.GONE, closed_at=NOON), node("a")), epoch)
        on = {"incident:old": store.load(["incident:old"])["incident:old"].version}
        store.commit(Unit(waits={"node:c/a": WaitMark(on=on), "incident:old": WaitMark(on={"node:c/a": 0})}), epoch)
        assert list(store.due({})) == ["incident:old"]
        assert store.forget(self._between()) == 1
        assert list(store.due({})) == ["node:c/a"]

    def test_forgets_pulses_of_nodes_that_are_gone_once_their_silence_is_told(self, store: Store, epoch: int) -> None:
        store.commit(writes(node("a")), epoch)
        kept, gone = NodeId("c/a"), [NodeId(f"c/gone-{n:03d}") for n in range(450)]
        speaks, back = NodeId("c/speaks"), NodeId("c/back")
        everybody = {each: pulse(1.0) for each in (kept, *gone, speaks, back)}
        store.hear(everybody)
        store.append([], told=everybody)
        store.append([], told=dict.fromkeys((kept, *gone, back)))
        store.hear({back: pulse(2.0)})  # nobody has told yet that it is heard again
        assert store.forget(NOON) == len(gone)
        assert store.forget(NOON) == 0
        assert store.voices(9.0).silent == ((speaks, pulse(1.0)),)
        assert store.voices(9.0).heard == ((back, pulse(2.0)),)
        store.hear({gone[0]: pulse(3.0), kept: pulse(3.0)})
        assert dict(store.voices(9.0).heard) == {back: pulse(2.0), gone[0]: pulse(3.0), kept: pulse(3.0)}
        store.append([], told={gone[0]: pulse(3.0)})
        assert dict(store.voices(9.0).silent) == {speaks: pulse(1.0), gone[0]: pulse(3.0)}

    def test_an_agent_that_was_forgotten_and_begins_anew_may_begin_at_an_earlier_reading(self, store: Store) -> None:
        for heard in (pulse(6.0), None, pulse(1.0)):
            if heard is not None:
                store.hear({N: heard})
            store.append([], told={N: heard})
            store.forget(NOON)
        assert store.voices(3.0).silent == ((N, pulse(1.0)),)

    def _between(self) -> datetime:
        return NOON + timedelta(hours=1)


def _clock(row: object) -> WatchedClock:
    assert isinstance(row, WatchedClock)
    return row
