"""Fault injection into several clusters, composed by the cluster of the node."""

from collections.abc import Mapping

from sickbay.model.errors import BadInput
from sickbay.model.fleet import NodeId, cluster_of
from sickbay.ports.breakable import Breakable, Breakage


class BreakableFleet:
    """Fault injection, by the cluster of the node."""

    def __init__(self, clusters: Mapping[str, Breakable]) -> None:
        self._clusters = clusters

    def inject(self, node: NodeId, breakage: Breakage) -> str:
        found = self._clusters.get(cluster_of(node))
        if found is None:
            raise BadInput(f"{node} is real hardware, which nothing here breaks; try {', '.join(self._clusters)}")
        return found.inject(node, breakage)
