"""The proof that the random runs can fail: defects are planted one by one, and a small sample of seeds finds each.

Each takes one guard of the engine away, as a mistake in a later change might, and names the troubles of the world that
it needs in order to show itself.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from sickbay.brain import admit, attempt, decide, drift, identity, orders, repair, retry
from sickbay.brain.decision import Move
from sickbay.brain.incident_input import IncidentInput
from sickbay.brain.job_input import JobInput
from sickbay.engine import apply_jobs as learn_jobs
from sickbay.engine import apply_nodes as learn_nodes
from sickbay.engine import ingest, lead, reception, report_facts, seats, sending
from sickbay.engine.ingest import Watcher
from sickbay.engine.view import Draft
from sickbay.model.facts import NodeSeen
from sickbay.model.fleet import Incarnation, Node
from sickbay.model.incident import Incident
from sickbay.model.intent import AskToSave, Intent, IntentState, Notify, Quarantine, Repair
from sickbay.sim.hardness import Trouble
from sickbay.sim.invariants import Broken
from sickbay.sim.random_runs import random_run
from sickbay.sim.simulation import Simulation


class Defect(NamedTuple):
    """What is planted, the troubles that bring it out, the invariants that must find it, and the seeds to try."""

    plant: Callable[[pytest.MonkeyPatch], None]
    needs: frozenset[Trouble]
    found_by: frozenset[str]  # kinds of `Wrong`, or the name of what ends the engine
    seeds: tuple[int, ...]


def _books_in_one_pool(patch: pytest.MonkeyPatch) -> None:
    def book(draft: Draft, before: Node | None, after: Node | None) -> None:
        seat = after or before
        if seat is not None:
            seats._book_in(draft, seat.pool, before, after)

    patch.setattr(seats, "_book", book)


def _takes_a_new_seat_for_a_persons_word(patch: pytest.MonkeyPatch) -> None:
    def uncordoned(incident: Incident, node: Node, horizon: float, *, repairs: bool) -> tuple[str, dict[str, object]]:
        del horizon, repairs
        seen = incident.phase.out and incident.closing is None and incident.cordon_as_of is not None
        gone = seen and f"sickbay:{incident.id}" not in node.cordons and node.as_of > (incident.cordon_as_of or 0.0)
        return ("our cordon was removed by another" if gone else ""), {}

    patch.setattr(drift, "_uncordoned", uncordoned)


def _does_not_wait_for_what_is_on_its_way(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(orders, "on_its_way", lambda _sight: None)


def _sends(act: type, patch: pytest.MonkeyPatch) -> None:
    """What was admitted once is sent, whatever has been withheld since."""
    asked = sending.withheld

    def withheld(draft: Draft, intent: Intent) -> Any:
        return None if isinstance(intent.act, act) else asked(draft, intent)

    patch.setattr(sending, "withheld", withheld)


def _sends_what_is_withheld(patch: pytest.MonkeyPatch) -> None:
    _sends(Repair, patch)


def _cordons_over_the_limit(patch: pytest.MonkeyPatch) -> None:
    _sends(Quarantine, patch)


def _releases_whoever_was_checked_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(orders, "stands", lambda _incident, _node: True)


def _knows_one_ended_boot(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(identity, "KEEP_BOOTS", 1)


def _never_misses_a_job(patch: pytest.MonkeyPatch) -> None:
    def missing(*_args: object) -> Iterator[object]:
        return iter(())

    patch.setattr(Watcher, "_missing", missing)


def _gives_up_notices(patch: pytest.MonkeyPatch) -> None:
    again = retry._again_later

    def again_later(s: retry.IntentInput, intent: Intent, asked: float) -> Intent:
        if isinstance(intent.act, Notify) and intent.sends >= retry.TRANSIENT_LIMIT:
            return replace(intent, state=IntentState.EXPIRED)
        return again(s, intent, asked)

    patch.setattr(retry, "_again_later", again_later)


def _cuts_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ingest, "cut", lambda fact: fact)


def _takes_everybody_in(patch: pytest.MonkeyPatch) -> None:
    seen = learn_nodes.seen

    def as_newcomer(draft: Draft, fact: Any, news: NodeSeen) -> None:
        seen(draft, fact, replace(news, first_connection=False))

    patch.setattr(learn_nodes, "seen", as_newcomer)


def _sends_amid_a_list(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sending, "_rest_of_read", lambda _draft, _intent: None)


def _shares_one_name(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Simulation, "_replica_name", lambda _self: "engine")


def _stops_at_the_first_error(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lead, "stops", lambda _error: True)


def _believes_any_clock_of_an_agent(patch: pytest.MonkeyPatch) -> None:
    for module in (reception, report_facts):
        patch.setattr(module, "OLDEST", float("inf"))


def _repairs_under_unmanaged_work(patch: pytest.MonkeyPatch) -> None:
    """Neither the decision nor the sending looks at work that others started."""
    held = sending.withheld

    def blind(s: Any, node: Node, policy: Any) -> Any:
        return repair.drained(s, replace(node, unmanaged=0), policy)

    def withheld(draft: Draft, intent: Intent) -> Any:
        found = held(draft, intent)
        return None if isinstance(intent.act, Repair) and found is not None and "unmanaged" in found.because else found

    patch.setattr(decide, "drained", blind)
    patch.setattr(decide, "_draining", lambda _s, _node, _policy: Move("empty", "nothing of ours runs there"))
    patch.setattr(sending, "withheld", withheld)


def _repairs_over_the_limit(patch: pytest.MonkeyPatch) -> None:
    limit_for = admit.limit_for
    boundless = {"repairing_percent": 100, "repairing_absolute": None}
    patch.setattr(admit, "limit_for", lambda pool, policy: replace(limit_for(pool, policy), **boundless))


def _takes_a_blank_for_another_boot(patch: pytest.MonkeyPatch) -> None:
    """What one side cannot tell counts as different from what the other knows."""
    patch.setattr(Incarnation, "new_boot", lambda self, other: other is not None and self.boot_id != other.boot_id)


def _compares_with_rows_that_lag(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Watcher, "_behind", lambda _self: ingest.Behind(set(), set()))


def _knows_no_attempt_after_an_end(patch: pytest.MonkeyPatch) -> None:
    anew = learn_jobs._anew
    patch.setattr(learn_jobs, "_anew", lambda job, news: job.adopted and anew(job, news))


def _takes_an_ask_for_its_answer(patch: pytest.MonkeyPatch) -> None:
    first = attempt._saves_first

    def saves_first(s: JobInput, policy: Any) -> Any:
        posted = s.intent is not None and isinstance(s.intent.act, AskToSave)
        return None if posted and s.intent and s.intent.state is IntentState.ACCEPTED else first(s, policy)

    patch.setattr(attempt, "_saves_first", saves_first)


def _waits_for_a_save_for_ever(patch: pytest.MonkeyPatch) -> None:
    first = attempt._saves_first

    def saves_first(s: JobInput, policy: Any) -> Any:
        never = replace(s.job, save_by=replace(s.job.save_by, at=1e12)) if s.job.save_by is not None else s.job
        intent = s.intent
        if intent is not None and isinstance(intent.act, AskToSave) and intent.state is IntentState.EXPIRED:
            intent = replace(intent, state=IntentState.ACCEPTED)
        return first(replace(s, job=never, intent=intent), policy)

    patch.setattr(attempt, "_saves_first", saves_first)


def _lets_a_fault_wait_like_a_wish(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(decide, "planned", lambda incident: f"{incident.node} is drained")


def _presses_nobody_who_was_asked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(IncidentInput, "unpressed", IncidentInput.uncalled)


def _stops_without_asking(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(attempt, "_saves_first", lambda _s, _policy: None)


def _needs(*troubles: Trouble) -> frozenset[Trouble]:
    return frozenset(troubles)


def _by(*kinds: str) -> frozenset[str]:
    return frozenset(kinds)


T = Trouble
DEFECTS = {
    "a node that changes its pool is booked in one pool only": Defect(
        _books_in_one_pool, _needs(T.MOVES), _by("ledger", "out_limit"), tuple(range(6))
    ),
    "a new machine without our cordon counts as a person's word": Defect(
        _takes_a_new_seat_for_a_persons_word, _needs(T.BARE_SEATS), _by("dismissal", "release"), (3, *range(8))
    ),
    "a dismissal does not wait for what is on its way": Defect(
        _does_not_wait_for_what_is_on_its_way, _needs(T.ORDERS), _by("repair_on_running"), (234, 5, *range(12))
    ),
    "a repair is sent although it is withheld by now": Defect(
        _sends_what_is_withheld, _needs(T.WITHHOLDING), _by("withheld"), tuple(range(12))
    ),
    "a cordon is sent although its pool is at its limit by now": Defect(
        _cordons_over_the_limit, _needs(T.HALF_OUT), _by("out_limit"), tuple(range(12))
    ),
    "a release does not ask whether its proof still stands": Defect(
        _releases_whoever_was_checked_once, _needs(T.HALF_OUT), _by("release"), tuple(range(12))
    ),
    "only one ended boot is known": Defect(
        _knows_one_ended_boot, _needs(T.LATE_REPORTS), _by("incarnation"), tuple(range(12))
    ),
    "what one side cannot tell counts as another boot": Defect(
        _takes_a_blank_for_another_boot, _needs(T.TELLS), _by("repair_on_running"), (294, 10)
    ),
    "jobs that vanish while nobody reads are not missed": Defect(
        _never_misses_a_job, _needs(T.VANISHED_JOBS), _by("dead"), tuple(range(8))
    ),
    "a notice is given up after twenty sendings": Defect(
        _gives_up_notices, _needs(T.NO_NOTIFIER), _by("notice"), tuple(range(8))
    ),
    "texts are stored as long as they come": Defect(
        _cuts_nothing, _needs(T.ODD_VALUES), _by("UnitTooLarge", "size"), tuple(range(8))
    ),
    "any clock of an agent is believed": Defect(
        _believes_any_clock_of_an_agent, _needs(T.ODD_REPORTS), _by("OverflowError", "OSError"), tuple(range(8))
    ),
    "everybody is taken in at first connection": Defect(
        _takes_everybody_in, _needs(T.FIRST_CONNECTION), _by("first_connection"), tuple(range(4))
    ),
    "a check is sent before the rest of a list has told what runs there": Defect(
        _sends_amid_a_list, _needs(T.FIRST_CONNECTION), _by("check_on_running"), (8012, 8016, 8020, 36)
    ),
    "two replicas lead under one name": Defect(_shares_one_name, _needs(T.EQUAL_NAMES), _by("two_leaders"), (4, 9, 14)),
    "a row that cannot be read stops everything": Defect(
        _stops_at_the_first_error, _needs(T.POISON), _by("UnreadableRow"), tuple(range(6))
    ),
    "a node is repaired under work that others started": Defect(
        _repairs_under_unmanaged_work, _needs(T.BUDGETS), _by("repair_on_work"), (2, *range(12))
    ),
    "a list is compared with rows that have not learned what is stored": Defect(
        _compares_with_rows_that_lag, _needs(T.RELISTS), _by("truth"), (5001, 5015, 5025)
    ),
    "a job of ours that is over is not seen to run again": Defect(
        _knows_no_attempt_after_an_end, _needs(T.OTHERS_JOBS), _by("unknown"), (6026, 6032)
    ),
    "an ask to save is taken for its answer": Defect(
        _takes_an_ask_for_its_answer, _needs(T.SAVES), _by("stopped_unsaved"), tuple(range(4))
    ),
    "nobody is asked to save": Defect(_stops_without_asking, _needs(T.SAVES), _by("stopped_unsaved"), tuple(range(4))),
    "a save is waited for for ever": Defect(
        _waits_for_a_save_for_ever, _needs(T.SAVES), _by("stopped_late"), (1, 3, 5)
    ),
    "a fault waits for a save like a person's wish": Defect(
        _lets_a_fault_wait_like_a_wish, _needs(T.SAVES), _by("spared"), (35, 37, 24)
    ),
    "a fault does not press who was asked to save for a wish": Defect(
        _presses_nobody_who_was_asked, _needs(T.SAVES), _by("spared"), (37, 57)
    ),
    "repairs have no limit": Defect(_repairs_over_the_limit, _needs(T.STORMS), _by("repair_limit"), (4, *range(12))),
}


def kinds_of(error: Exception) -> frozenset[str]:
    return error.kinds if isinstance(error, Broken) else frozenset({type(error).__name__})


def _outcome(defect: Defect, seed: int) -> frozenset[str]:
    """What ended the run; empty: nothing did."""
    try:
        random_run(seed, hard=defect.needs, surely=True)
    except Exception as error:  # noqa: BLE001 - whatever ends a run is told by its kind
        return kinds_of(error)
    return frozenset()


# Each takes less than two seconds, with its run without the defect.
QUICK = [
    "a node that changes its pool is booked in one pool only",
    "a new machine without our cordon counts as a person's word",
    "a repair is sent although it is withheld by now",
    "any clock of an agent is believed",
    "two replicas lead under one name",
    "a row that cannot be read stops everything",
    "a node is repaired under work that others started",
    "repairs have no limit",
    "a list is compared with rows that have not learned what is stored",
    "a job of ours that is over is not seen to run again",
    "an ask to save is taken for its answer",
    "nobody is asked to save",
    "a save is waited for for ever",
    "a fault does not press who was asked to save for a wish",
]
MARKED = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow, id=name) for name in DEFECTS]


@pytest.mark.parametrize("name", MARKED)
def test_a_planted_defect_is_found_by_its_own_invariant_in_a_run_that_is_clean_without_it(name: str) -> None:
    defect = DEFECTS[name]
    others: dict[int, frozenset[str]] = {}
    for seed in defect.seeds:
        with pytest.MonkeyPatch.context() as patch:
            defect.plant(patch)
            found = _outcome(defect, seed)
        if found & defect.found_by:
            found = _outcome(defect, seed)
            if not found:
                return
            # A run that breaks by itself proves nothing, whatever it breaks by with the defect.
        others[seed] = found
    pytest.fail(f"none is broken by {set(defect.found_by)} and clean without the defect: {others}")
