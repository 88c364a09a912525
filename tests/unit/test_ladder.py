"""Which rules of history are earned, how far back they look, and what a person's wish adds to a ladder: as tables."""

from datetime import timedelta

import pytest
from tests.support import tables

from sickbay.brain.ladder import ladder_for, looks_back, next_rung, rung_rule, strike
from sickbay.model.fault import Remedy
from sickbay.model.fleet import Capability, IncidentId, PastIncident
from sickbay.model.incident import Incident, IncidentKind, Phase, Try
from sickbay.model.policy import Ladder, Match, Policy, RungRule, Strikes

DAY = timedelta(days=1)
NOW = 30 * 86400.0


def past(code: str = "xid.79", days_ago: float = 1.0, ended: str = "REPLACED", rung: str = "reboot") -> PastIncident:
    return PastIncident(incident=IncidentId("i0"), code=code, at=NOW - days_ago * 86400, ended=ended, rung=rung)


def earned(*rules: Strikes, of: tuple[PastIncident, ...]) -> Strikes | None:
    return strike(tables.incident(Phase.DRAINED), Ladder(strikes=rules), of, NOW)


@pytest.mark.parametrize(
    ("rule", "of", "counts"),
    [
        (Strikes(after=2, within=7 * DAY), (past(), past()), True),
        (Strikes(after=2, within=7 * DAY), (past(),), False),
        (Strikes(after=1, within=7 * DAY), (past(days_ago=7.0),), True),
        (Strikes(after=1, within=7 * DAY), (past(days_ago=7.1),), False),
        (Strikes(after=1, within=7 * DAY, same_fault=True), (past(),), True),
        (Strikes(after=1, within=7 * DAY, same_fault=True), (past("xid.48"),), False),
        (Strikes(after=1, within=7 * DAY), (past("xid.48"),), True),
        (Strikes(after=2, within=7 * DAY, reset_by_release=True), (past(), past(ended="RELEASED"), past()), False),
        (Strikes(after=2, within=7 * DAY, reset_by_release=True), (past(ended="RELEASED"), past(), past()), True),
        (Strikes(after=2, within=7 * DAY), (past(), past(ended="RELEASED")), True),
    ],
)
def test_a_rule_counts_what_it_names(rule: Strikes, of: tuple[PastIncident, ...], counts: bool) -> None:
    assert (earned(rule, of=of) is rule) is counts


def test_of_several_rules_the_heaviest_is_earned_in_whatever_order_they_stand() -> None:
    nothing = Strikes(after=1, within=7 * DAY)
    reboot = Strikes(after=1, within=7 * DAY, first=Remedy.REBOOT)
    replace = Strikes(after=1, within=7 * DAY, first=Remedy.REPLACE)
    person = Strikes(after=1, within=7 * DAY, needs_human=True)
    ordered = [nothing, reboot, replace, person]
    for most in range(1, len(ordered) + 1):
        assert earned(*ordered[:most], of=(past(),)) is ordered[most - 1]
        assert earned(*reversed(ordered[:most]), of=(past(),)) is ordered[most - 1]


def test_a_policy_looks_as_far_back_as_its_oldest_rule() -> None:
    week, month = Strikes(after=1, within=7 * DAY), Strikes(after=1, within=28 * DAY)
    assert looks_back(Policy(name="p", ladders=(Ladder(strikes=(week, month)), Ladder(strikes=(week,))))) == 28 * DAY
    assert looks_back(Policy(name="p", ladders=(Ladder(),))) == timedelta()


# --- which ladder

GPU = Ladder(match=Match(fault="xid.*"), rungs=(RungRule(do=Remedy.RESET_GPU), RungRule(do=Remedy.REPLACE)))
REST = Ladder(rungs=(RungRule(do=Remedy.REBOOT),))
POLICY = Policy(name="p", ladders=(GPU, REST))


def rungs(of: Incident, policy: Policy = POLICY) -> list[Remedy]:
    return [rung.do for rung in ladder_for(of, tables.node(), policy).rungs]


def test_the_first_ladder_that_fits_counts() -> None:
    assert rungs(tables.incident(Phase.DRAINED)) == [Remedy.RESET_GPU, Remedy.REPLACE]
    assert rungs(tables.incident(Phase.DRAINED, tables.fault("node.lost"))) == [Remedy.REBOOT]
    assert rungs(tables.incident(Phase.DRAINED), Policy(name="p")) == [rung.do for rung in Ladder().rungs]


@pytest.mark.parametrize("match", [Match(pool="other"), Match(node="sim/other"), Match(fault="ecc.*")])
def test_a_ladder_for_others_is_passed_over(match: Match) -> None:
    policy = Policy(name="p", ladders=(Ladder(match=match, rungs=(RungRule(do=Remedy.REPLACE),)), REST))
    assert rungs(tables.incident(Phase.DRAINED), policy) == [Remedy.REBOOT]


@pytest.mark.parametrize("match", [Match(pool="train"), Match(node="sim/a")])
def test_a_ladder_may_be_for_a_pool_or_a_node(match: Match) -> None:
    policy = Policy(name="p", ladders=(Ladder(match=match, rungs=(RungRule(do=Remedy.REPLACE),)), REST))
    assert rungs(tables.incident(Phase.DRAINED), policy) == [Remedy.REPLACE]


@pytest.mark.parametrize(
    ("kind", "remedy", "has"),
    [
        (IncidentKind.OPERATOR, Remedy.REBOOT, [Remedy.RESET_GPU, Remedy.REBOOT, Remedy.REPLACE]),
        (IncidentKind.OPERATOR, Remedy.REPLACE, [Remedy.RESET_GPU, Remedy.REPLACE]),
        (IncidentKind.OPERATOR, Remedy.WATCH, [Remedy.RESET_GPU, Remedy.REPLACE]),
        (IncidentKind.FAULT, Remedy.REBOOT, [Remedy.RESET_GPU, Remedy.REPLACE]),
    ],
)
def test_what_a_person_asks_for_is_a_rung_in_its_place(kind: IncidentKind, remedy: Remedy, has: list[Remedy]) -> None:
    assert rungs(tables.incident(Phase.DRAINED, tables.fault(remedy=remedy), kind=kind)) == has


# --- which rung

LADDER = Ladder(rungs=(RungRule(do=Remedy.RESET_GPU, tries=2), RungRule(do=Remedy.REBOOT), RungRule(do=Remedy.REPLACE)))
RESET, REBOOT = (Try(rung=rung, result="failed", at=tables.NOW) for rung in (Remedy.RESET_GPU, Remedy.REBOOT))
ALL = frozenset(Capability)


@pytest.mark.parametrize(
    ("tries", "wanted", "can", "blind", "rung", "passed"),
    [
        ((), Remedy.RESET_GPU, ALL, frozenset[str](), Remedy.RESET_GPU, ()),
        ((RESET,), Remedy.RESET_GPU, ALL, frozenset(), Remedy.RESET_GPU, ()),
        ((RESET,), Remedy.RESET_GPU, ALL, frozenset({"reset_gpu"}), Remedy.REBOOT, ("reset_gpu was tried 1 time",)),
        ((RESET, RESET), Remedy.RESET_GPU, ALL, frozenset(), Remedy.REBOOT, ("reset_gpu was tried 2 times",)),
        ((), Remedy.REBOOT, ALL, frozenset(), Remedy.REBOOT, ()),
        ((), Remedy.REBOOT, ALL - {Capability.REBOOT}, frozenset(), Remedy.REPLACE,
         ("the cluster cannot do reboot",)),
        ((REBOOT,), Remedy.RESET_GPU, ALL - {Capability.REPLACE}, frozenset(), None,
         ("reboot was tried 1 time", "the cluster cannot do replace")),
    ],
)  # fmt: skip
def test_the_rung_to_try_is_the_first_that_is_left(
    tries: tuple[Try, ...], wanted: Remedy, can: frozenset[Capability], blind: frozenset[str], rung: Remedy | None,
    passed: tuple[str, ...],
) -> None:  # fmt: skip
    found, why = next_rung(tables.incident(Phase.DRAINED, tries=tries), LADDER, wanted, can, blind)
    assert (found.do if found else None, why) == (rung, passed)


def test_what_others_did_is_proven_as_the_ladders_first_rung_where_it_has_no_such_rung() -> None:
    assert rung_rule(LADDER, Remedy.REBOOT) is LADDER.rungs[1]
    assert rung_rule(LADDER, Remedy.RESTART_SERVICE) is LADDER.rungs[0]
    assert rung_rule(Ladder(), Remedy.REPLACE).do is Remedy.REBOOT
