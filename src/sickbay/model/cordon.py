"""Owners of a node's cordons, as clusters store them: each is a word, `sickbay:<incident>` or `other:<who or why>`.

Several may keep one node out of service; each takes back only its own.
"""

from collections.abc import Iterable

_OURS, _OTHERS = "sickbay:", "other:"


def cordon_of(incident: str) -> str:
    """The owner under which an incident cordons its node."""
    return f"{_OURS}{incident}"


def incident_of(owner: str) -> str | None:
    """The incident that cordoned the node; None: it was somebody else."""
    return owner.removeprefix(_OURS) if owner.startswith(_OURS) else None


def others_of(owners: Iterable[str]) -> tuple[str, ...]:
    """Those of the owners that are not we."""
    return tuple(owner for owner in owners if incident_of(owner) is None)


def named(owner: str) -> str:
    """Who or what it is, for people."""
    return owner.removeprefix(_OTHERS)
