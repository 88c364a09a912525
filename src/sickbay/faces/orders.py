"""The status of an order, as people and programs are answered: done, under way, waiting or refused."""

from sickbay.brain.order_fate import OrderFate, fate, settled
from sickbay.faces.answers import OrderAnswer, Waiting
from sickbay.faces.archive import Archive, iso
from sickbay.faces.waits import incident_waits
from sickbay.faces.ways_out import by_people
from sickbay.model.incident import Incident, Wait
from sickbay.model.order import OrderRecord, OrderVerdict

QUICK = frozenset({"cordon", "uncordon", "dismiss", "hold", "stop", "drain"})  # often done within moments


def order_answer(archive: Archive, record: OrderRecord) -> OrderAnswer:
    found = _fate(archive, record)
    incident = archive.incident(record.incident) if record.incident else None
    open_still = found.verdict in {OrderVerdict.WAITS, OrderVerdict.UNDER_WAY}
    waits = incident_waits(archive, incident) if incident is not None and open_still else None
    until = _until(archive, found.wait)
    return OrderAnswer(
        id=record.id,
        verb=record.verb,
        target=record.target,
        by=record.by,
        reason=record.reason,
        asked_at=iso(record.at),
        verdict=found.verdict,
        because=found.because,
        until=until,
        then=waits.then if waits is not None and until is not None else "",
        changed_by=_goes_on(incident, waits) if found.verdict is OrderVerdict.WAITS else [],
        incident=record.incident,
        job=record.job,
    )


def _goes_on(incident: Incident | None, waits: Waiting | None) -> list[str]:
    """What lets it be carried out: not what a person may decide instead, which would end it."""
    if incident is None or waits is None:
        return []
    instead = {one.what for one in by_people(incident)}
    return [what for what in waits.changed_by if what not in instead]


def _until(archive: Archive, wait: Wait | None) -> str | None:
    """What withholds may end long after the wait is looked at again: of that its own end is told."""
    if wait is None:
        return None
    if wait.opens is not None:
        return iso(wait.opens)
    estimate = archive.estimate(wait.until)
    return estimate.about if estimate is not None else None


def is_settled(archive: Archive, ident: str, *, linger: bool) -> bool:
    """Whether the engine has planned it; `linger`: and is done with it, if that is a matter of moments."""
    record = archive.order(ident)
    incident = archive.incident(record.incident) if record is not None and record.incident else None
    job = archive.job(record.job) if record is not None and record.job else None
    if record is None or not settled(record, incident, job):
        return False
    quick = linger and record.verb in QUICK
    return not quick or _fate(archive, record).verdict is not OrderVerdict.UNDER_WAY


def _fate(archive: Archive, record: OrderRecord) -> OrderFate:
    incident = archive.incident(record.incident) if record.incident else None
    node = archive.node(incident.node) if incident is not None else None
    job = archive.job(record.job) if record.job else None
    busy = node is not None and (bool(node.unmanaged) or bool(archive.holders(node)))
    return fate(record, incident, node, job, busy=busy)
