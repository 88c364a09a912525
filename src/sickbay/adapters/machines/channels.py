"""Several machines as one: each rung goes to the channel that does it."""

from collections.abc import Mapping

from sickbay.model.errors import BadInput, Rejected
from sickbay.model.fault import RUNGS, Remedy
from sickbay.model.fleet import Capability, Incarnation, NodeId
from sickbay.ports.cluster import Accepted
from sickbay.ports.machines import Machines


class Channels:
    """`chosen` (the policy's `channels`) names a channel for a rung; else the first that can do it does it."""

    def __init__(self, channels: Mapping[str, Machines], chosen: Mapping[Remedy, str] | None = None) -> None:
        self._channels = dict(channels)
        self._chosen = dict(chosen or {})
        for remedy, name in self._chosen.items():
            if name not in channels:
                known = ", ".join(channels)
                raise BadInput(f"channels: {remedy} is to go to {name!r}, which is not there; there are {known}")

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset(c for machines in self._channels.values() for c in machines.capabilities)

    @property
    def blind(self) -> frozenset[str]:
        return frozenset(
            remedy for remedy in Remedy if (m := self._for(remedy)) is not None and remedy.value in m.blind
        )

    def _for(self, remedy: Remedy) -> Machines | None:
        if remedy in self._chosen:
            return self._channels[self._chosen[remedy]]
        needs = RUNGS[remedy].needs
        return next((m for m in self._channels.values() if needs is not None and needs in m.capabilities), None)

    def _able(self, remedy: Remedy) -> Machines:
        found = self._for(remedy)
        if found is None:
            raise Rejected(f"nothing here can do {remedy}")
        return found

    def restart_service(self, node: NodeId, *, key: str, expect: Incarnation) -> Accepted:
        return self._able(Remedy.RESTART_SERVICE).restart_service(node, key=key, expect=expect)

    def reset(self, node: NodeId, devices: tuple[int, ...], *, key: str, expect: Incarnation) -> Accepted:
        return self._able(Remedy.RESET_GPU).reset(node, devices, key=key, expect=expect)

    def reboot(self, node: NodeId, *, key: str, expect: Incarnation) -> Accepted:
        return self._able(Remedy.REBOOT).reboot(node, key=key, expect=expect)

    def replace(self, node: NodeId, *, key: str, expect: Incarnation) -> Accepted:
        return self._able(Remedy.REPLACE).replace(node, key=key, expect=expect)

    def fence(self, node: NodeId, *, key: str, expect: Incarnation | None) -> Accepted:
        able = next((m for m in self._channels.values() if Capability.FENCE in m.capabilities), None)
        if able is None:
            raise Rejected("nothing here can fence a node")
        return able.fence(node, key=key, expect=expect)
