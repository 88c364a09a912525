"""Planning: one subject, one unit. Pure in what the draft reads: the same rows give the same unit."""

from functools import partial

from sickbay.engine.checkups import plan_checkup
from sickbay.engine.errands import plan_errand
from sickbay.engine.patrol import WALK, plan_patrol, walk
from sickbay.engine.plan_incidents import plan_incident
from sickbay.engine.plan_intents import plan_intent
from sickbay.engine.plan_jobs import plan_job
from sickbay.engine.plan_seats import plan_brake, plan_node
from sickbay.engine.seats import settle
from sickbay.engine.standstill import plan_standstill
from sickbay.engine.view import Draft
from sickbay.model.rows import kind_of


def plan(draft: Draft, subject: str) -> None:
    """Fill the draft with what follows for one subject: changes, an intent, and when to look again."""
    match kind_of(subject):
        case "incident":
            plan_incident(draft, subject)
        case "job":
            plan_job(draft, subject)
        case "intent":
            plan_intent(draft, subject)
        case "brake":
            plan_brake(draft, subject)
        case "node":
            plan_node(draft, subject)
        case "errand":
            plan_errand(draft, subject)
        case "patrol":
            plan_patrol(draft, subject)
        case "standstill":
            plan_standstill(draft, subject)
        case "checkup":
            (walk if subject == WALK else partial(plan_checkup, subject=subject))(draft)
        case _:
            draft.waits[subject] = None
    settle(draft)
