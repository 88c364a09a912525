"""An order of a person, and what has become of it: a record that can be asked for until it is old."""

from datetime import datetime
from enum import StrEnum
from hashlib import sha256

from sickbay.model.fault import Remedy
from sickbay.model.fleet import IncidentId, JobId
from sickbay.model.noun import Noun


class OrderVerdict(StrEnum):
    """What is said of an order. "Done" is never said of one that waits."""

    DONE = "done"
    UNDER_WAY = "under_way"
    WAITS = "waits"
    REFUSED = "refused"


def order_id(fact: str) -> str:
    """Its name, from the id of the fact that it came with: who has sent it knows it before anybody has read it."""
    return f"order-{sha256(fact.encode()).hexdigest()[:10]}"


class OrderRecord(Noun):
    """One order, as far as it was taken up. What it has come to since is read off its incident, or its job."""

    id: str
    verb: str
    target: str
    by: str
    reason: str
    at: datetime
    now: bool = False
    incident: IncidentId | None = None  # that carries it out
    job: JobId | None = None
    rung: Remedy | None = None  # the repair that it asks for
    verdict: OrderVerdict = OrderVerdict.WAITS  # when it was taken up, or turned down
    because: str = ""
