"""The proof that the random runs can fail: defects are planted one by one, and a small sample of seeds finds each.

Each takes one guard of the engine away, as a mistake in a later change might, and names the troubles of the world that
it needs in order to show itself.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from sickbay.brain import drift, identity, orders
from sickbay.engine import ingest, learn, learn_nodes, seats, sending
from sickbay.engine.ingest import Watcher
from sickbay.engine.view import Draft
from sickbay.model.facts import NodeSeen
from sickbay.model.fleet import Node
from sickbay.model.incident import Incident
from sickbay.model.intent import Intent, IntentState, Notify, Quarantine, Repair
from sickbay.sim.hardness import Trouble
from sickbay.sim.random_runs import random_run


class Defect(NamedTuple):
    """What is planted, the troubles that bring it out, and the seeds that are tried."""

    plant: Callable[[pytest.MonkeyPatch], None]
    needs: frozenset[Trouble]
    seeds: tuple[int, ...]


def _books_in_one_pool(patch: pytest.MonkeyPatch) -> None:
    def book(draft: Draft, before: Node | None, after: Node | None) -> None:
        seat = after or before
        if seat is not None:
            seats._book_in(draft, seat.pool, before, after)

    patch.setattr(seats, "_book", book)


def _takes_a_new_seat_for_a_persons_word(patch: pytest.MonkeyPatch) -> None:
    def uncordoned(incident: Incident, node: Node, horizon: float) -> tuple[str, dict[str, object]]:
        del horizon
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
    again = learn._again_later

    def again_later(draft: Draft, intent: Intent) -> Intent:
        if isinstance(intent.act, Notify) and intent.sends >= learn.TRANSIENT_LIMIT:
            return replace(intent, state=IntentState.EXPIRED)
        return again(draft, intent)

    patch.setattr(learn, "_again_later", again_later)


def _cuts_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ingest, "cut", lambda fact: fact)


def _takes_everybody_in(patch: pytest.MonkeyPatch) -> None:
    seen = learn_nodes.seen

    def as_newcomer(draft: Draft, fact: Any, news: NodeSeen) -> None:
        seen(draft, fact, replace(news, first_connection=False))

    patch.setattr(learn_nodes, "seen", as_newcomer)


DEFECTS = {
    "a node that changes its pool is booked in one pool only": Defect(
        _books_in_one_pool, frozenset({Trouble.MOVES}), tuple(range(6))
    ),
    "a new machine without our cordon counts as a person's word": Defect(
        _takes_a_new_seat_for_a_persons_word, frozenset({Trouble.BARE_SEATS}), tuple(range(8))
    ),
    "a dismissal does not wait for what is on its way": Defect(
        _does_not_wait_for_what_is_on_its_way, frozenset({Trouble.ORDERS}), tuple(range(12))
    ),
    "a repair is sent although it is withheld by now": Defect(
        _sends_what_is_withheld, frozenset({Trouble.WITHHOLDING}), tuple(range(12))
    ),
    "a cordon is sent although its pool is at its limit by now": Defect(
        _cordons_over_the_limit, frozenset({Trouble.HALF_OUT}), tuple(range(12))
    ),
    "a release does not ask whether its proof still stands": Defect(
        _releases_whoever_was_checked_once, frozenset({Trouble.HALF_OUT}), tuple(range(12))
    ),
    "only one ended boot is known": Defect(_knows_one_ended_boot, frozenset({Trouble.LATE_REPORTS}), tuple(range(12))),
    "jobs that vanish while nobody reads are not missed": Defect(
        _never_misses_a_job, frozenset({Trouble.VANISHED_JOBS}), tuple(range(8))
    ),
    "a notice is given up after twenty sendings": Defect(
        _gives_up_notices, frozenset({Trouble.NO_NOTIFIER}), tuple(range(8))
    ),
    "texts are stored as long as they come": Defect(_cuts_nothing, frozenset({Trouble.ODD_VALUES}), tuple(range(8))),
    "everybody is taken in at first connection": Defect(
        _takes_everybody_in, frozenset({Trouble.FIRST_CONNECTION}), tuple(range(4))
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DEFECTS)
def test_a_planted_defect_is_found_by_a_small_sample_of_seeds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    defect = DEFECTS[name]
    defect.plant(monkeypatch)
    for seed in defect.seeds:
        try:
            random_run(seed, hard=defect.needs, surely=True)
        except Exception:  # noqa: BLE001 - whatever ends a run has found it
            return
    pytest.fail(f"no seed of {defect.seeds} finds it: {name}")
