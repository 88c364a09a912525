"""Clock skew and versions of agents: whose clock or protocol differs from ours, as it last reported to this replica."""

from sickbay.model.fleet import NodeId
from sickbay.model.noun import Noun
from sickbay.model.protocol import PROTO, Report

SKEW = 2.0  # seconds that a node's clock may differ from ours
ODD_MOST = 10_000


class Oddity(Noun):
    """An agent whose clock or protocol differs from ours, as it last reported here. Not stored."""

    node: NodeId
    proto: int
    ahead: float  # seconds that its wall clock is ahead of ours


class Oddities:
    """Bounded memory of agents that differ: one that agrees again is forgotten."""

    def __init__(self) -> None:
        self._known: dict[NodeId, Oddity] = {}

    def note(self, report: Report, now: float) -> None:
        ahead = report.wall_now - now
        if report.proto == PROTO and abs(ahead) <= SKEW:
            self._known.pop(report.node, None)
        elif report.node in self._known or len(self._known) < ODD_MOST:
            self._known[report.node] = Oddity(node=report.node, proto=report.proto, ahead=ahead)

    def all(self) -> list[Oddity]:
        return sorted(self._known.copy().values(), key=lambda one: one.node)
