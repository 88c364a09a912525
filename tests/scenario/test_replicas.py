"""Several replicas on one store: only the leader reads clusters, no two share a name, and their clocks may differ."""

import os
import socket
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
from msgspec.structs import replace
from tests.support.wards import HOUR, OpenWard, Ward

from sickbay.adapters.executors.threads import ThreadExecutor
from sickbay.adapters.stores.memory import MemoryStore
from sickbay.engine import ingest, standstill
from sickbay.engine.clocks import SharedClock
from sickbay.engine.ingest import Ingest, Watcher
from sickbay.engine.lead import Engine, Setup
from sickbay.engine.view import moment
from sickbay.hosts.changes import Changes
from sickbay.hosts.clock import SystemClock
from sickbay.hosts.controller import Controller, replica_name
from sickbay.model.errors import Transient
from sickbay.model.facts import Fact, Observed, Ordered, Outcome
from sickbay.model.fleet import Withholding
from sickbay.model.intent import Intent, IntentState
from sickbay.model.rows import WITHHOLDING, Unit, key_of
from sickbay.ports.cluster import Deltas, Lost, Snapshot
from sickbay.sim.host import InlineExecutor
from sickbay.sim.schedule import EPOCH
from sickbay.sim.simulation import CLUSTER
from sickbay.wiring import WiredFleet


class Informer:
    """A cluster as one replica reads it: what it knows ends with its process, and so do its cursors."""

    def __init__(self, w: Ward, run: str) -> None:
        self._inner = w.sim.hands.sites[CLUSTER].cluster
        self.run = run
        self.lists = 0
        self.reads = 0

    id = CLUSTER
    period = 5.0

    def watch(self, cursor: str | None) -> Deltas | Lost:
        self.reads += 1
        run, _, place = (cursor or "").partition("/")
        found = self._inner.watch(place) if run == self.run else Lost()
        return replace(found, cursor=f"{self.run}/{found.cursor}") if isinstance(found, Deltas) else found

    def snapshot(self) -> Snapshot:
        self.lists += 1
        whole = self._inner.snapshot()
        return replace(whole, cursor=f"{self.run}/{whole.cursor}")


class Replica:
    """An engine and its watcher, as a process has them."""

    def __init__(self, w: Ward, name: str) -> None:
        sim = w.sim
        self.engine = Engine(
            sim.store, sim.hands, sim.rules, InlineExecutor(), sim.clock, Setup(holder=name, lease_ttl=30.0)
        )
        self.cluster = Informer(w, name)
        self.watcher = Watcher(sim.store, self.cluster, sim.clock, leads=lambda: self.engine.leads)  # type: ignore[arg-type]

    def turn(self) -> None:
        self.engine.lead()
        self.watcher.read()
        self.engine.round()


def two(ward: OpenWard) -> tuple[Ward, Replica, Replica]:
    w = ward(nodes=4, strict=False)
    w.sim.hosts[0].crash(down_for=1e9)
    w.run(60)
    return w, Replica(w, "a"), Replica(w, "b")


def test_only_the_leader_reads_the_cluster(ward: OpenWard) -> None:
    w, a, b = two(ward)
    for _ in range(12):
        a.turn()
        b.turn()
        w.run(5)
    assert a.engine.leads
    assert (a.cluster.lists, b.cluster.lists) == (1, 0)
    assert a.cluster.reads > 5
    assert b.cluster.reads == 0


@pytest.mark.parametrize("run", ["", "of the cluster itself"])
def test_who_takes_over_lists_everything_once(ward: OpenWard, run: str) -> None:
    """Also where the cursor is still good: the one before may have died between two lists that belong together."""
    w, a, b = two(ward)
    a.cluster.run, b.cluster.run = run or "a", run or "b"
    for _ in range(3):
        a.turn()
    w.run(60)  # the lease runs out
    for _ in range(12):
        b.turn()
        a.turn()
        w.run(5)
    assert b.engine.leads
    assert (a.cluster.lists, b.cluster.lists) == (1, 1)


def test_a_read_that_outlasts_the_lease_is_thrown_away(ward: OpenWard, monkeypatch: pytest.MonkeyPatch) -> None:
    w, a, b = two(ward)
    for _ in range(3):
        a.turn()
    read = a.cluster.watch

    def slow(cursor: str | None) -> Deltas | Lost:
        found = read(cursor)
        w.sim.scheduler.now += 60.0
        for _ in range(3):
            b.turn()
        return found

    monkeypatch.setattr(a.cluster, "watch", slow)
    a.turn()
    row = w.sim.store.load([f"clock:{CLUSTER}"])[f"clock:{CLUSTER}"].row
    assert str(getattr(row, "cursor", "")).startswith("b/"), "the cursor is that of the leader"


def test_a_slice_that_is_thrown_away_with_the_lease_is_told_later(
    ward: OpenWard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease lapses while everything is listed, and nobody else takes it: we lead again a moment later."""
    monkeypatch.setattr(ingest, "SLICE", 1)
    w, a, _ = two(ward)
    for seat in w.world.seats.values():
        seat.unmanaged = 1
        w.world.ground.show(seat)
    w.run(10)
    whole, lapses = a.cluster.snapshot, [True]

    def slow() -> Snapshot:
        found = whole()
        if lapses:
            lapses.pop()
            w.sim.scheduler.now += 60.0
        return found

    monkeypatch.setattr(a.cluster, "snapshot", slow)
    for _ in range(12):
        a.turn()
    assert [w.node(node).unmanaged for node in w.nodes] == [1, 1, 1, 1]


def test_who_no_longer_leads_has_no_trouble_with_the_cluster(ward: OpenWard, monkeypatch: pytest.MonkeyPatch) -> None:
    w, a, _ = two(ward)

    def away() -> Snapshot:
        raise Transient("no route")

    monkeypatch.setattr(a.cluster, "snapshot", away)
    a.turn()
    assert a.watcher.trouble == "no route"
    w.run(60)
    a.watcher.read()
    assert a.watcher.trouble == ""


def test_what_another_replica_took_is_learned_by_the_leader(ward: OpenWard) -> None:
    w, a, _ = two(ward)
    a.turn()
    Ingest(w.sim.store, w.sim.clock, leads=lambda: False).tell(
        "order/1", Ordered(verb="pause", target="", by="me", reason="storm")
    )
    a.turn()
    row = w.sim.store.load([WITHHOLDING])[WITHHOLDING].row
    assert isinstance(row, Withholding)
    assert row.rows


def test_two_processes_with_one_number_on_hosts_of_one_name_do_not_share_a_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 1)
    monkeypatch.setattr(socket, "gethostname", lambda: "controller")
    store = MemoryStore()
    first, second = replica_name(), replica_name()
    assert first.startswith("controller-1-")
    assert store.lease(first, 30.0) is not None
    assert store.lease(second, 30.0) is None


@pytest.mark.parametrize("skew", [-8.0, 8.0])
def test_a_fault_right_after_a_dismissal_counts_whichever_replica_heard_it(ward: OpenWard, skew: float) -> None:
    """Each replica has a wall clock of its own; a fault must not seem to be older than the word of a person."""
    w = ward(nodes=4, engines=2)
    node = w.nodes[0]
    w.order("cordon", node)
    w.until(lambda: w.phase(node) == "HELD")
    w.order("dismiss", w.incident(node).id)
    w.until(lambda: w.phase(node) == "DISMISSED")
    w.run(2)

    class Wrong:
        def wall(self) -> float:
            return EPOCH.timestamp() + w.sim.scheduler.now + skew

        def mono(self) -> float:
            return w.sim.scheduler.now

    clock = SharedClock(w.sim.store, Wrong())
    fields: dict[str, str | int] = {"number": 79, "device": 0}
    xid = Observed(node=node, kind="xid", fields=fields, incarnation=w.node(node).incarnation)
    at = moment(clock.wall()) - timedelta(seconds=1)
    Ingest(w.sim.store, clock).take([Fact(id="xid", at=at, news=xid)])
    w.run(60)
    assert w.incident(node).fault.code == "xid.79"


def test_evidence_from_before_a_dismissal_is_told_and_opens_nothing(ward: OpenWard) -> None:
    w = ward(nodes=4)
    node = w.nodes[0]
    before = moment(w.sim.clock.wall())
    w.order("cordon", node)
    w.until(lambda: w.phase(node) == "HELD")
    w.order("dismiss", w.incident(node).id)
    w.until(lambda: w.phase(node) == "DISMISSED")
    fields: dict[str, str | int] = {"number": 79, "device": 0}
    xid = Observed(node=node, kind="xid", fields=fields, incarnation=w.node(node).incarnation)
    w.sim.store.append([Fact(id="late", at=before, news=xid)])
    w.run(60)
    assert w.phase(node) == "DISMISSED"
    assert "from before it was dismissed: history only" in w.story(node)


def controllers(w: Ward, *names: str) -> list[Controller]:
    """Processes with an API of their own each, in real time, on one store."""
    store = MemoryStore()
    fleet = WiredFleet(hands=w.sim.hands, rules=w.sim.rules, pauses={CLUSTER: lambda _: time.sleep(0.01)})
    return [Controller(store, fleet, ThreadExecutor(), SystemClock(), Changes(), holder=name) for name in names]


@pytest.mark.slow
def test_a_source_that_is_not_heard_is_a_trouble_of_the_controller(
    ward: OpenWard, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = ward(nodes=2)
    monkeypatch.setattr(standstill, "STANDS_AFTER", 0.5)
    monkeypatch.setattr(standstill, "LOOK_AGAIN", 0.5)
    (controller,) = controllers(w, "")
    controller.start(canary=lambda: True)
    changes = controller.backend.changes
    try:
        assert changes.wait(lambda: controller.trouble == "" and controller.leads, 20.0)
        now = w.sim.scheduler.now
        w.sim.mischief.outage("cluster:sim", now, now + HOUR)
        assert changes.wait(lambda: "stands still" in controller._troubles.get("clock sim", ""), 20.0)
        w.sim.scheduler.now += 2 * HOUR
        assert changes.wait(lambda: "clock sim" not in controller._troubles, 20.0)
    finally:
        controller.stop()


def test_an_order_through_a_follower_is_carried_out_by_the_leader(ward: OpenWard) -> None:
    w = ward(nodes=2)
    leader, follower = controllers(w, "", "")
    leader.start(canary=lambda: True)
    try:
        assert leader.backend.changes.wait(lambda: leader.leads, 20.0)
        follower.start(canary=lambda: True)
        follower.backend.order(Ordered(verb="pause", target="", by="me", reason="storm"), "1")
        row = follower.backend.store.load([WITHHOLDING])[WITHHOLDING].row
        assert isinstance(row, Withholding)
        assert leader.leads
        assert not follower.leads
    finally:
        leader.stop()
        follower.stop()


# --- the lease, right up to the call


class Held:
    """Workers that have taken a call and not begun it."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], Outcome]] = []
        self.free = 10

    def room(self, lane: str) -> int:
        return self.free if lane else 0

    def submit(
        self, lane: str, call: Callable[[], Outcome], timeout: float, done: Callable[[Outcome], None], key: str
    ) -> None:
        del lane, timeout, done, key
        self.calls.append(call)


def sick_node(ward: OpenWard) -> tuple[Ward, Engine, Held]:
    """A node has just fallen sick; the leader that was is gone, and another is about to lead."""
    w = ward(nodes=4, strict=False)
    w.sim.hosts[0].crash(down_for=1e9)
    w.run(60)
    node = w.nodes[0]
    fields: dict[str, str | int] = {"number": 79, "device": 0}
    xid = Observed(node=node, kind="xid", fields=fields, incarnation=w.node(node).incarnation)
    Ingest(w.sim.store, w.sim.clock).take([Fact(id="xid", at=moment(w.sim.clock.wall()), news=xid)])
    held, sim = Held(), w.sim
    engine = Engine(sim.store, sim.hands, sim.rules, held, sim.clock, Setup(holder="next", lease_ttl=30.0))
    assert engine.lead()
    return w, engine, held


def quarantine(w: Ward) -> Intent:
    row = w.sim.store.load([key := f"intent:{w.incident(w.nodes[0]).intent}"])[key].row
    assert isinstance(row, Intent)
    return row


def test_nothing_is_sent_that_the_lease_does_not_outlast(ward: OpenWard) -> None:
    w, engine, held = sick_node(ward)
    w.sim.scheduler.now += 25.0  # it leads for five seconds more, and a call may take ten
    assert engine.leads
    engine.round()
    assert quarantine(w).state is IntentState.PLANNED
    engine.lead()
    engine.round()
    assert quarantine(w).state is IntentState.SENT
    assert len(held.calls) == 1


def test_a_call_that_was_taken_under_an_earlier_lease_is_not_made(ward: OpenWard) -> None:
    w, engine, held = sick_node(ward)
    engine.round()
    w.sim.scheduler.now += 60.0  # this process stood still; it leads again, but others may have led meanwhile
    assert engine.lead()
    assert held.calls[0]().result == "transient"
    assert w.happened("cordon", w.nodes[0]) == []


def test_what_its_owner_has_let_go_of_is_not_sent(ward: OpenWard) -> None:
    """Facts may move an owner on while its intent waits for a worker."""
    w, engine, held = sick_node(ward)
    held.free = 0
    engine.round()
    first = quarantine(w)
    assert first.state is IntentState.PLANNED
    lease = w.sim.store.lease("next", 30.0)
    assert lease is not None
    moved_on = replace(w.incident(w.nodes[0]), intent="")
    w.sim.store.commit(Unit(writes={key_of(moved_on): moved_on}), lease.epoch)
    held.free = 10
    sim = w.sim
    again = Engine(sim.store, sim.hands, sim.rules, held, sim.clock, Setup(holder="next", lease_ttl=30.0))
    again.lead()
    again.round()
    row = sim.store.load([f"intent:{first.key}"])[f"intent:{first.key}"].row
    assert isinstance(row, Intent)
    assert (row.state, row.withdrawn) == (IntentState.EXPIRED, True)


def test_a_controller_that_is_stopped_hands_its_lease_over_at_once(ward: OpenWard) -> None:
    w = ward(nodes=2)
    leader, follower = controllers(w, "", "")
    leader.start(canary=lambda: True)
    assert leader.backend.changes.wait(lambda: leader.leads, 20.0)
    leader.stop()
    assert not leader.leads
    follower.start(canary=lambda: True)
    try:
        assert follower.backend.changes.wait(lambda: follower.leads, 20.0), "the lease would last 30 s"
    finally:
        follower.stop()
