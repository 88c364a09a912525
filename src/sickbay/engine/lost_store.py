"""Reconcile with a world that knows more than the store: a backup was put back, and what came after it is not in it.

An attempt that runs under a number above ours is taken over as it is (`engine.apply_jobs`). A cordon of ours, of an
incident that nobody has heard of, is held for a person: nothing here says why the node was taken out.
"""

from msgspec.structs import replace

from sickbay.brain.orders import wished
from sickbay.engine.apply_faults import open_incident
from sickbay.engine.view import Draft
from sickbay.model.cordon import incident_of
from sickbay.model.facts import Fact
from sickbay.model.fleet import IncidentId, Node
from sickbay.model.incident import Incident, IncidentKind, Verb

LONGEST = 100  # characters of an incident's name; what is longer was never one of ours
WHO = "a controller whose store was lost"


def adopt_cordon(draft: Draft, fact: Fact, node: Node) -> None:
    """A seat that is out for an incident that is not stored gets that incident again, by its name."""
    if node.incident is not None or node.incarnation is None:
        return
    names = [name for owner in node.cordons if (name := incident_of(owner)) and len(name) <= LONGEST]
    unknown = [name for name in names if draft.peek(Incident, f"incident:{IncidentId(name)}") is None]
    if not unknown:
        return
    why = f"its cordon is of {unknown[0]}, and why is not known here"
    fault = wished(Verb.CORDON, WHO, why)
    found = open_incident(draft, fact, node, fault, IncidentKind.OPERATOR, name=unknown[0])
    draft.put(replace(found, acts=fact.seq))  # the keys of its acts were given before
