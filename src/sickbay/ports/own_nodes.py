"""The OwnNodes port: nodes that are processes of this machine, switched on and off by whoever serves them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from sickbay.model.fleet import NodeId


class OwnNodes(Protocol):
    """Only clusters that live here have this. Nodes outlive whoever switched them on, until `down`."""

    def agents(self) -> Mapping[NodeId, Path]:
        """Each node, and the file from which its agent reads its token."""
        ...

    def reach(self, url: str, ca: str) -> None:
        """Where agents report to, and the certificate that they trust besides those of the system."""
        ...

    def power_on(self) -> tuple[NodeId, ...]:
        """Start what does not run. Returns those that were started."""
        ...

    def down(self) -> None: ...

    def promises(self) -> tuple[str, ...]:
        """What is watched and repaired there and what is not, for whoever starts it."""
        ...
