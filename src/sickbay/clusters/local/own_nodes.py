"""The OwnNodes port of the local cluster: its machine room, as its service sees it."""

from collections.abc import Mapping
from pathlib import Path

from sickbay.clusters.local.rack import Rack
from sickbay.model.fleet import NodeId


class LocalNodes:
    def __init__(self, rack: Rack) -> None:
        self._rack = rack
        self._id = rack.file().id

    def agents(self) -> Mapping[NodeId, Path]:
        return {self._node(seat): self._rack.paths(seat).token for seat in self._rack.names()}

    def reach(self, url: str, ca: str) -> None:
        self._rack.url(url, ca)

    def power_on(self) -> tuple[NodeId, ...]:
        return tuple(self._node(seat) for seat in self._rack.power_on())

    def down(self) -> None:
        self._rack.down()

    def promises(self) -> tuple[str, ...]:
        return ()  # everything there is virtual

    def _node(self, seat: str) -> NodeId:
        return NodeId(f"{self._id}/{seat}")
