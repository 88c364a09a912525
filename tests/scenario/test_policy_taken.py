"""A policy that is taken while the engine runs: in force from the next decision on, and it shortens no deadline."""

import dataclasses
from datetime import timedelta

import pytest
from msgspec.structs import replace
from tests.support.wards import OpenWard, Ward

from sickbay.engine.lead import Engine, Setup
from sickbay.engine.view import PoolAbilities
from sickbay.model.clock import Deadline
from sickbay.model.errors import BadInput
from sickbay.model.fault import Remedy
from sickbay.model.fleet import Capability, InForce, NodeId
from sickbay.model.incident import Phase
from sickbay.model.intent import Intent
from sickbay.model.policy import Policy
from sickbay.model.rows import IN_FORCE
from sickbay.policy.load import digest, load_policy
from sickbay.sim.host import InlineExecutor


def take(w: Ward, policy: Policy) -> None:
    rules = dataclasses.replace(w.sim.rules, policy=policy, policy_digest=digest(policy))
    for host in w.sim.hosts:
        host.take(rules)


def hasty() -> Policy:
    """The default one, whose every rung is a replacement that must be seen within a second."""
    policy = load_policy("default")
    rungs = [replace(rung, do=Remedy.REPLACE, deadline=timedelta(seconds=1)) for rung in policy.ladders[0].rungs[-1:]]
    return replace(policy, ladders=tuple(replace(one, rungs=tuple(rungs), strikes=()) for one in policy.ladders))


def seen_by(w: Ward, node: NodeId) -> Deadline | None:
    key = f"intent:{w.incident(node).intent}"
    row = w.sim.store.load([key])[key].row
    return row.seen_by if isinstance(row, Intent) else None


def test_a_repair_that_runs_keeps_its_deadline_and_the_next_one_goes_by_the_new_policy(ward: OpenWard) -> None:
    w = ward()
    sick, later = w.nodes[:2]
    w.sick(sick, "xid.79", Remedy.REBOOT)
    w.reaches(sick, Phase.REPAIRING)
    w.until(lambda: seen_by(w, sick) is not None)
    before = seen_by(w, sick)
    policy = hasty()
    take(w, policy)
    w.run(10)
    row = w.sim.store.load([IN_FORCE])[IN_FORCE].row
    assert isinstance(row, InForce)
    assert row.policy == digest(policy)
    assert w.phase(sick) == Phase.REPAIRING
    assert seen_by(w, sick) == before
    w.rests()
    assert w.rungs(sick) == ["reboot"]
    assert w.phase(sick) == Phase.RELEASED
    w.sick(later, "xid.79", Remedy.REPLACE)
    w.rests()
    assert set(w.rungs(later)) == {"replace"}


def test_a_rung_that_a_nodes_own_pool_cannot_do_is_skipped(ward: OpenWard) -> None:
    w = ward()
    rules, sick = w.sim.rules, w.nodes[0]
    can, blind = rules.can["sim"], rules.blind["sim"]
    pools = {"elsewhere": PoolAbilities(can, blind), "*": PoolAbilities(can - {Capability.REBOOT}, blind)}
    for host in w.sim.hosts:
        host.take(dataclasses.replace(rules, pools={"sim": pools}))
    w.sick(sick, "xid.79", Remedy.REPLACE)
    w.rests()
    assert w.rungs(sick) == ["replace"]
    assert w.sent("reboot") == []


def test_a_policy_under_which_nothing_could_be_sent_is_not_taken(ward: OpenWard) -> None:
    sim = ward().sim
    engine = Engine(sim.store, sim.hands, sim.rules, InlineExecutor(), sim.clock, Setup(holder="x", lease_ttl=30.0))
    policy = load_policy("default")
    slow = replace(policy, pace=replace(policy.pace, call_timeout=timedelta(seconds=31)))
    with pytest.raises(BadInput, match=r"a lease of 30 s does not outlast pace\.call_timeout \(31 s\)"):
        engine.take(sim.hands, dataclasses.replace(sim.rules, policy=slow, policy_digest=digest(slow)))
