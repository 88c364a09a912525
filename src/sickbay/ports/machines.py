"""The Machines port: repairs."""

from typing import Protocol

from sickbay.model.fleet import Capability, Incarnation, NodeId
from sickbay.ports.cluster import Accepted


class Machines(Protocol):
    """Repairs of a node's present incarnation. The contract of mutations is the Cluster's.

    `expect` is the incarnation that is meant; a field that either side does not know refuses nothing. Of a machine that
    does not run nobody knows the boot: then the holder decides alone, so that a machine that does not come up can still
    be rebooted or replaced.

    A repair returns when it was accepted; its proof (a confirmed reset, a new boot id, a new instance) arrives as a
    fact. `fence` returns `done` only when it is certain that nothing of the expected incarnation can write any more.
    One that takes long (a machine that is still going down) raises Transient and is asked again under its key. Whoever
    else holds the seat by then is never touched: that the expected one has ended is done, too.
    """

    @property
    def capabilities(self) -> frozenset[Capability]: ...

    @property
    def blind(self) -> frozenset[str]:
        """Remedies that cannot promise one effect per key."""
        ...

    def restart_service(self, node: NodeId, *, key: str, expect: Incarnation) -> Accepted: ...

    def reset(self, node: NodeId, devices: tuple[int, ...], *, key: str, expect: Incarnation) -> Accepted: ...

    def reboot(self, node: NodeId, *, key: str, expect: Incarnation) -> Accepted: ...

    def replace(self, node: NodeId, *, key: str, expect: Incarnation) -> Accepted: ...

    def fence(self, node: NodeId, *, key: str, expect: Incarnation | None) -> Accepted: ...
