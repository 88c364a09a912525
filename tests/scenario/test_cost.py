"""What things cost, and who pays: nothing that waits may hide or delay what does not, nor grow with the fleet."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import pytest
from msgspec.structs import replace
from tests.support.wards import DAY, HOUR, OpenWard, Ward, policy_with

from sickbay.adapters.stores.memory import MemoryStore
from sickbay.faces.archive import Archive
from sickbay.faces.waits import incident_waits
from sickbay.model.fault import Remedy
from sickbay.model.fleet import NodeId
from sickbay.model.intent import Intent, IntentState
from sickbay.model.policy import FaultRule, Match, Mode, Policy
from sickbay.model.rows import Rows
from sickbay.sim.hardware import SimDefect
from sickbay.sim.host import VirtualExecutor
from sickbay.sim.simulation import Plan, Simulation

MINUTE = 60.0

Storm = Callable[[Simulation, Sequence[NodeId]], None]


def recommending() -> Policy:
    """Each Xid 48 is a notice and nothing else."""
    return policy_with(faults=(FaultRule(match=Match(fault="xid.48"), mode=Mode.RECOMMEND),), brakes=())


def full(monkeypatch: pytest.MonkeyPatch, lane: str) -> None:
    """All workers of a lane hang."""
    monkeypatch.setattr(VirtualExecutor, "room", lambda _, asked: 0 if asked == lane else 8)


class CountingStore(MemoryStore):
    """How many rows of each kind were read."""

    def __init__(self) -> None:
        super().__init__(limits=False)
        self.read: Counter[str] = Counter()

    def load(self, keys: Iterable[str]) -> Rows:
        asked = list(keys)
        self.read.update(key.partition(":")[0] for key in asked)
        return super().load(asked)

    def find(self, tag: str, limit: int | None = None) -> Sequence[str]:
        found = super().find(tag, limit)
        self.read[f"found {tag.partition(':')[0]}"] += len(found)
        return found


class PlanCounting(MemoryStore):
    """How many times something of each kind fell due, which is how often it was planned."""

    def __init__(self) -> None:
        super().__init__(limits=False)
        self.plans: Counter[str] = Counter()

    def due(self, readings: Mapping[str, float], limit: int = 100) -> Sequence[str]:
        found = super().due(readings, limit)
        self.plans.update(subject.partition(":")[0] for subject in found)
        return found


# --- storms


def _all_sick(sim: Simulation, nodes: Sequence[NodeId]) -> None:
    for node in nodes:
        sim.world.strike(node, SimDefect(code="xid.79", cured_by=Remedy.REBOOT))
    sim.run(2 * HOUR)


def _all_lost(sim: Simulation, nodes: Sequence[NodeId]) -> None:
    for node in nodes:
        sim.world.lose_node(node)
    sim.run(3 * HOUR)


def _excluded(sim: Simulation, nodes: Sequence[NodeId]) -> None:
    sim.order("exclude", "", fault="xid.79", seconds="36000")
    sim.run(MINUTE)
    _all_sick(sim, nodes)


def _three_repeat_themselves(sim: Simulation, nodes: Sequence[NodeId]) -> None:
    """Under a brake: the first few nodes write a line each second."""
    for node in nodes:
        sim.world.strike(node, SimDefect(code="xid.79", cured_by=Remedy.REBOOT))
    sim.run(MINUTE)
    for _ in range(len(nodes)):
        for node in nodes[:3]:
            sim.world.observe(node, "xid", {"number": 79, "device": 0}, "NVRM: Xid (PCI:0000:10:00): 79")
        sim.run(1.0)


def plans_for(storm: Storm, faults: int, brakes: bool) -> int:
    """What a storm costs over all, in plans of incidents, in a fleet of its size."""
    store = PlanCounting()
    policy = policy_with() if brakes else policy_with(brakes=())
    sim = Simulation(Plan(nodes=faults + 4, strict=False, limits=False), policy=policy, store=store)
    sim.run(MINUTE)
    storm(sim, sim.nodes[:faults])
    assert len(sim.incidents()) == faults
    return store.plans["incident"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("storm", "brakes"),
    [(_all_sick, False), (_all_lost, False), (_excluded, False), (_all_sick, True), (_three_repeat_themselves, True)],
    ids=["limit", "repairs", "excluded", "brake", "brake pressed again and again"],
)
def test_a_storm_costs_plans_in_proportion_to_its_faults(storm: Storm, brakes: bool) -> None:
    few, many = plans_for(storm, 16, brakes), plans_for(storm, 64, brakes)
    assert many <= 5 * few, "four times the faults, about four times the plans"


def test_what_waits_for_room_is_called_in_the_order_of_its_age(ward: OpenWard) -> None:
    w = ward(nodes=8, policy=policy_with(brakes=()))
    for node in reversed(w.nodes):
        w.sick(node)
        w.run(20)
    w.rests()
    opened = [incident.node for incident in sorted(w.incidents(), key=lambda i: i.opened_at)]
    cordoned = [event.subject for event in w.world.chronicle.events if event.what == "cordon"]
    assert opened == list(reversed(w.nodes))
    assert list(dict.fromkeys(cordoned)) == opened


# --- dispatch


def test_many_notices_behind_a_hung_notifier_never_delay_a_cordon(
    ward: OpenWard, monkeypatch: pytest.MonkeyPatch
) -> None:
    full(monkeypatch, "log/Notify")
    w = ward(nodes=230, policy=recommending(), strict=False, limits=False)
    for node in w.nodes[:220]:
        w.says(node, 48)
    w.run(2 * MINUTE)
    victim, since = w.nodes[-1], w.sim.scheduler.now
    w.sick(victim, "xid.79", Remedy.REBOOT)
    w.run(MINUTE)
    cordoned = [e.at - since for e in w.world.chronicle.events if e.what == "cordon" and e.subject == victim]
    assert cordoned, "it was not cordoned within a minute"
    assert len(w.sim.store.find("planned:log/Notify")) >= 220, "the notices wait still"


@pytest.mark.slow
def test_what_is_not_due_is_not_read_again_and_again() -> None:
    store = CountingStore()
    sim = Simulation(Plan(nodes=110, strict=False, limits=False), policy=recommending(), store=store)
    now = sim.scheduler.now
    sim.mischief.outage("notifier", now, now + HOUR)
    for node in sim.nodes[:100]:
        sim.world.observe(node, "xid", {"number": 48, "device": 0}, "NVRM: Xid (PCI:0000:10:00): 48")
    sim.run(30 * MINUTE)  # all of them back off by now, a minute each time
    assert len(store.find("later:log/Notify")) == 100
    before, rounds = store.read.copy(), sim.hosts[0].rounds
    sim.run(3 * MINUTE)
    rounds = sim.hosts[0].rounds - rounds
    read = store.read - before
    assert rounds > 100
    assert read["found planned"] <= 100 * 4, "each is found when it is to be sent, about once in a minute"
    assert read["intent"] == 0, "a round reads no intent that is not due"


def test_explain_says_when_no_worker_is_free(ward: OpenWard, monkeypatch: pytest.MonkeyPatch) -> None:
    w = ward(nodes=4)
    full(monkeypatch, "sim/Quarantine")
    w.sick(w.nodes[0])
    w.run(MINUTE)
    waiting = incident_waits(Archive(w.sim.store), w.incident(w.nodes[0]))
    assert waiting is not None
    assert "no worker was free for sim/Quarantine yet: 1 call waits" in waiting.notes
    assert w.sim.hosts[0].trouble == "no worker is free for sim/Quarantine: its calls hang"


# --- notices


def notices(sim: Simulation) -> list[Intent]:
    rows = sim.store.load(sim.store.keys("intent")).values()
    return [v.row for v in rows if isinstance(v.row, Intent) and v.row.lane.endswith("/Notify")]


def failing_job(policy: Policy | None = None, *, hangs: bool, out_for: float) -> Ward:
    """A job that fails, of which somebody is to be told, while the notifier is away."""
    hall = Ward(nodes=4, policy=policy)
    job = hall.training("train", nodes=2, steps=100_000)
    now = hall.sim.scheduler.now
    hall.sim.mischief.outage("notifier", now, now + out_for, hangs=hangs)
    hall.world.crash(job, tail="ImportError: No module named foo")
    return hall


@pytest.mark.parametrize("hangs", [False, True], ids=["refuses", "hangs"])
def test_a_notifier_that_is_away_for_an_hour_loses_nothing(hangs: bool) -> None:
    hall = failing_job(hangs=hangs, out_for=HOUR)
    hall.run(2 * HOUR)
    assert [notice.event for _, notice in hall.world.notices] == ["job_failed"]
    assert [notice.state for notice in notices(hall.sim)] == [IntentState.SEEN]


@pytest.mark.parametrize("hangs", [False, True], ids=["refuses", "hangs"])
def test_a_notice_that_is_given_up_is_told_in_the_story(hangs: bool) -> None:
    short = policy_with(pace=replace(policy_with().pace, notice_patience=2 * policy_with().pace.vacancy))
    hall = failing_job(short, hangs=hangs, out_for=DAY)
    hall.run(1.5 * HOUR)
    assert [notice.state.over for notice in notices(hall.sim)] == [False], "its patience is two hours"
    assert "log/Notify" in hall.sim.hosts[0].trouble or hangs, "a person sees that it does not go through"
    hall.run(2 * HOUR)
    assert [notice.state for notice in notices(hall.sim)] == [IntentState.EXPIRED]
    for subject in ("job:train", "operator:"):
        lost = [line.text for line in hall.sim.store.story(subject) if line.event == "notice_lost"]
        assert len(lost) == 1, subject
        assert "nobody was told through log" in lost[0]


def test_a_notice_that_is_refused_is_told_in_the_story() -> None:
    hall = Ward(nodes=4)
    job = hall.training("train", nodes=2, steps=100_000)
    now = hall.sim.scheduler.now
    hall.sim.mischief.outage("notifier", now, now + 5 * MINUTE)
    hall.world.crash(job, tail="ImportError: No module named foo")
    hall.until(lambda: any(notice.sends > 2 for notice in notices(hall.sim)))
    hall.sim.hands.notifiers.clear()  # type: ignore[attr-defined]  # it is taken out of the configuration
    hall.run(10 * MINUTE)
    assert [notice.state for notice in notices(hall.sim)] == [IntentState.REJECTED]
    assert [line.event for line in hall.sim.store.story("job:train")].count("notice_lost") == 1
