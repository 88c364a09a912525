"""The Breakable port: hardware that can be broken on purpose."""

from typing import Protocol

from sickbay.model.fleet import NodeId
from sickbay.model.noun import Noun


class Breakage(Noun):
    """What `inject` breaks: exactly one of xid, line, defect."""

    xid: int | None = None
    line: str = ""
    defect: str = ""
    device: int = 0
    cured_by: str = ""  # reset | reboot | replace | nothing; empty: what the defect is cured by in practice


class Breakable(Protocol):
    """Only clusters that exist to be tried out have this."""

    def inject(self, node: NodeId, breakage: Breakage) -> str:
        """Returns what was done, in words. Raises BadInput."""
        ...
