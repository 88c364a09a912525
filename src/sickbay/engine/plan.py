"""Planning: one subject, one unit. Pure in what the draft reads: the same rows give the same unit."""

from collections.abc import Sequence

from sickbay.engine.checkups import plan_checkup
from sickbay.engine.errands import plan_errand
from sickbay.engine.line import plan_line
from sickbay.engine.notices import plan_channel
from sickbay.engine.patrol import plan_patrol, walk
from sickbay.engine.plan_incidents import plan_incident
from sickbay.engine.plan_intents import plan_intent
from sickbay.engine.plan_jobs import plan_job
from sickbay.engine.plan_seats import plan_brake, plan_node, plan_voice
from sickbay.engine.seats import settle
from sickbay.engine.standstill import plan_standstill
from sickbay.engine.transitions import subjects_of
from sickbay.engine.view import Draft, View
from sickbay.model.fleet import Brake, Node
from sickbay.model.incident import Incident
from sickbay.model.intent import Intent
from sickbay.model.job import Job
from sickbay.model.rows import SCHEDULE, AnyRow, kind_of, type_of


def prefetch(view: View, subjects: Sequence[str]) -> None:
    """Load together what planning these will mostly read, not one by one."""
    view.fetch(subjects)
    rows = [view.get(subject).row for subject in subjects]
    view.fetch(dict.fromkeys(key for row in rows for key in _reads(row)))
    view.fetch(dict.fromkeys(key for row in rows if isinstance(row, Incident) for key in _histories(view, row)))


def _reads(row: AnyRow | None) -> list[str]:
    match row:
        case Incident() | Job() if row.open:
            node = [f"node:{row.node}"] if isinstance(row, Incident) else []
            return [*node, f"intent:{row.intent}"] if row.intent else node
        case Intent() if row.owner:
            return [row.owner]
        case _:
            return []


def _histories(view: View, incident: Incident) -> list[str]:
    node = view.get(f"node:{incident.node}").row
    holder = node if isinstance(node, Node) else None
    present = subjects_of(incident.incarnation, holder, incident.fault.device)
    return [f"record:{subject}" for subject in dict.fromkeys((*present, *(incident.whose or ())))]


def plan(draft: Draft, subject: str) -> None:
    """Fill the draft with what follows for one subject: changes, an intent, and when to look again."""
    match kind_of(subject):
        case "incident":
            plan_incident(draft, subject)
        case "job":
            plan_job(draft, subject)
        case "intent":
            plan_intent(draft, subject)
        case "brake" if type_of(subject) is Brake:
            plan_brake(draft, subject)
        case "node":
            plan_node(draft, subject)
        case "voice":
            plan_voice(draft, subject)
        case "freed":
            plan_line(draft, subject)
        case "errand":
            plan_errand(draft, subject)
        case "patrol":
            plan_patrol(draft, subject)
        case "channel":
            plan_channel(draft, subject)
        case "standstill":
            plan_standstill(draft, subject)
        case "checkup" if subject == SCHEDULE:
            walk(draft)
        case "checkup":
            plan_checkup(draft, subject)
        case _:
            draft.waits[subject] = None
    settle(draft)
