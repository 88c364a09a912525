"""Several machines as one: each rung goes to the channel that does it."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from threading import Lock

from sickbay.model.errors import BadInput, Rejected, Transient
from sickbay.model.fault import RUNGS, Remedy
from sickbay.model.fleet import Capability, Incarnation, NodeId
from sickbay.ports.cluster import Accepted
from sickbay.ports.machines import Machines

REMEMBERED = 10_000  # acts, of which the newest are in doubt at most


class SentThrough:
    """Through which channel an act went (sticky routing), by its key: no other channel knows that key.

    It outlives a change of policy, so that an act in doubt is never sent a second time through another channel.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._names: OrderedDict[str, str] = OrderedDict()

    def go(self, key: str, name: str) -> tuple[str, bool]:
        """The channel that has been given this key, else `name` from now on; and whether it is the first time."""
        with self._lock:
            first = key not in self._names
            self._names.setdefault(key, name)
            while len(self._names) > REMEMBERED:
                self._names.popitem(last=False)
            return self._names.get(key, name), first

    def forget(self, key: str) -> None:
        """It surely did nothing."""
        with self._lock:
            self._names.pop(key, None)


class Channels:
    """`chosen` (the policy's `channels`) names a channel for a rung; else the first that can do it does it."""

    def __init__(
        self,
        channels: Mapping[str, Machines],
        chosen: Mapping[Remedy, str] | None = None,
        sent: SentThrough | None = None,
    ) -> None:
        self._channels = dict(channels)
        self._chosen = dict(chosen or {})
        self._sent = sent or SentThrough()
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
            remedy
            for remedy in Remedy
            if (name := self._for(remedy)) is not None and remedy.value in self._channels[name].blind
        )

    def _for(self, remedy: Remedy) -> str | None:
        if remedy in self._chosen:
            return self._chosen[remedy]
        needs = RUNGS[remedy].needs
        return next((n for n, m in self._channels.items() if needs is not None and needs in m.capabilities), None)

    def _do(self, remedy: Remedy, key: str, call: Callable[[Machines], Accepted]) -> Accepted:
        now = self._for(remedy)
        if now is None:
            raise Rejected(f"nothing here can do {remedy}")
        name, first = self._sent.go(key, now)
        try:
            return call(self._channels[name])
        except (Transient, Rejected):
            if first:  # a later call may be refused because the first one is still under way
                self._sent.forget(key)
            raise

    def restart_service(self, node: NodeId, *, key: str, expect: Incarnation) -> Accepted:
        return self._do(Remedy.RESTART_SERVICE, key, lambda m: m.restart_service(node, key=key, expect=expect))

    def reset(self, node: NodeId, devices: tuple[int, ...], *, key: str, expect: Incarnation) -> Accepted:
        return self._do(Remedy.RESET_GPU, key, lambda m: m.reset(node, devices, key=key, expect=expect))

    def reboot(self, node: NodeId, *, key: str, expect: Incarnation) -> Accepted:
        return self._do(Remedy.REBOOT, key, lambda m: m.reboot(node, key=key, expect=expect))

    def replace(self, node: NodeId, *, key: str, expect: Incarnation) -> Accepted:
        return self._do(Remedy.REPLACE, key, lambda m: m.replace(node, key=key, expect=expect))

    def fence(self, node: NodeId, *, key: str, expect: Incarnation | None) -> Accepted:
        able = next((m for m in self._channels.values() if Capability.FENCE in m.capabilities), None)
        if able is None:
            raise Rejected("nothing here can fence a node")
        return able.fence(node, key=key, expect=expect)
