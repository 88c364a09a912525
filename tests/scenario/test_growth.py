"""No row, unit or tag grows with time: weeks of a fleet that breaks, is repaired, replaced and ordered about."""

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from random import Random

import pytest
from bench.years import DEFECTS, PERIOD, PULSE, patient
from msgspec.structs import replace
from tests.support.wards import DAY, HOUR

from sickbay.adapters.stores.memory import MemoryStore
from sickbay.engine.transitions import KEEP_ACTS
from sickbay.engine.view import moment
from sickbay.model.fault import Remedy
from sickbay.model.fleet import JobId, NodeId
from sickbay.model.policy import Policy
from sickbay.model.rows import kind_of
from sickbay.policy.load import load_policy
from sickbay.ports.store import STORY
from sickbay.sim.context import ClusterRules, Timings
from sickbay.sim.hardware import SimDefect
from sickbay.sim.job_behaviour import Programme
from sickbay.sim.simulation import CLUSTER, Plan, Simulation

KEPT = timedelta(days=7)  # what is over is forgotten after a week: four weeks show what is not
FOREVER = JobId("forever")


def forgetful() -> Policy:
    """The default, but no history of hardware counts for longer than what is over is kept."""
    policy = patient(load_policy("default"))
    short = tuple(
        replace(ladder, strikes=tuple(replace(s, within=min(s.within, timedelta(days=2))) for s in ladder.strikes))
        for ladder in policy.ladders
    )
    return replace(policy, ladders=short)


class Fleet:
    """A few nodes, one job that never ends, and every day of theirs."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.store = MemoryStore()
        cluster = ClusterRules(id=CLUSTER, period=PERIOD)
        plan = Plan(nodes=12, cluster=cluster, rules=Timings(pulse=PULSE), strict=False)
        self.sim = Simulation(plan, seed=seed, policy=forgetful(), store=self.store)
        self.sim.submit(FOREVER, Programme(steps=10**9, checkpoint_every=1000), nodes=4, max_restarts=10**6)

    def node(self) -> NodeId:
        return self.rng.choice(list(self.sim.world.seats))

    def some_time(self, act: Callable[[], None]) -> None:
        self.sim.scheduler.after(self.rng.uniform(0.0, 0.9 * DAY), act)

    def day(self, number: int) -> None:
        sim = self.sim
        for _ in range(3):
            self.some_time(lambda: sim.world.strike(self.node(), self.rng.choice(DEFECTS)))
        self.some_time(lambda: sim.world.crash(FOREVER) if sim.world.running(FOREVER) else None)
        self.some_time(lambda: sim.order("exclude", "", node=self.node(), fault="xid.31", seconds="3600"))
        self.some_time(lambda: sim.order("check", self.node(), level="2"))
        self.some_time(lambda: sim.order("reboot", self.node()))
        self.some_time(self.cordon_for_an_hour)
        self.some_time(lambda: sim.world.operator_replaces(self.node()))
        sim.submit(f"day-{number}", Programme(steps=100), nodes=2)
        sim.run(DAY)
        self.store.forget(moment(sim.clock.wall()) - KEPT)

    def cordon_for_an_hour(self) -> None:
        node = self.node()
        self.sim.order("cordon", node)
        self.sim.scheduler.after(HOUR, lambda: self.sim.order("uncordon", node))

    def counted(self) -> Counter[str]:
        """How many there are of everything that is kept, but for what the one job that never ends has bounds for."""
        store, found = self.store, Counter[str]()
        own = {key for key in store._rows if key.startswith((f"intent:{FOREVER}.", f"roster:{FOREVER}/"))}
        found.update(f"rows: {kind_of(key)}" for key in store._rows if key not in own)
        found["tags"] = sum(bool(keys.items) for keys in store._tags.values())
        found["waits"] = len(store._waiting._marks)
        found["rows that are waited on"] = len(store._waiting._waiters)
        found["letters"] = len(store._letters)
        found["facts"] = len(store._facts)
        found["lines"] = sum(len(told) for subject, told in store._lines.items() if subject != f"job:{FOREVER}")
        return found

    def largest(self) -> Counter[str]:
        """Bytes of the largest row of each kind."""
        found = Counter[str]()
        for key, body in self.store._bodies.items():
            found[kind_of(key)] = max(found[kind_of(key)], len(body))
        return found


@pytest.mark.slow
def test_nothing_grows_with_time() -> None:
    fleet = Fleet(seed=1)
    counts: list[Counter[str]] = []
    for number in range(35):
        fleet.day(number)
        if number >= 13:  # the first of what is over has been forgotten
            counts.append(fleet.counted())
            rows, letters = fleet.largest(), [len(text) for text in fleet.store._lines]
            assert max(rows.values()) < 40_000, rows
            assert max(letters) < 200
    early, late = counts[:7], counts[-7:]
    for what in set().union(*early, *late):
        before, after = max(each[what] for each in early), max(each[what] for each in late)
        assert after <= 1.5 * before + 12, f"{what}: {before} in the third week, {after} in the fifth"
    assert len(fleet.store.story(f"job:{FOREVER}", 10**6)) <= STORY + 7 * 100, "those of a week, and what is shown"
    assert sum(key.startswith(f"intent:{FOREVER}.") for key in fleet.store._rows) <= KEEP_ACTS


@pytest.mark.slow
def test_machines_that_were_replaced_and_their_histories_are_forgotten() -> None:
    cluster = ClusterRules(id=CLUSTER, period=PERIOD)
    store = MemoryStore()
    plan = Plan(nodes=2, cluster=cluster, rules=Timings(pulse=PULSE), strict=False)
    sim = Simulation(plan, policy=forgetful(), store=store)
    records: list[int] = []
    for _ in range(28):
        sim.world.strike(sim.nodes[0], SimDefect(code="xid.79", cured_by=Remedy.REBOOT))
        sim.run(0.5 * DAY)
        sim.world.operator_replaces(sim.nodes[0])
        sim.run(0.5 * DAY)
        store.forget(moment(sim.clock.wall()) - KEPT)
        records.append(len(store.keys("record")))
    assert records[-1] <= records[13] + 2, "as many as were seen in the last days"
