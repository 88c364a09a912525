"""Machines composed by pool: each node's repairs go to the channels of its pool, as the store knows its seat."""

from collections.abc import Callable, Mapping

from sickbay.model.errors import Rejected, StoreError, Transient
from sickbay.model.fleet import Capability, Incarnation, Node, NodeId, pool_fits
from sickbay.ports.cluster import Accepted
from sickbay.ports.machines import Machines
from sickbay.ports.store import Store


class PooledMachines:
    """`pools`: globs of pools, in order; the first that fits counts. `pool_of` reads a node's pool, `""`: not known.

    What any pool can do counts as the cluster's, where nobody asks for a pool; a call that a node's own pool cannot do
    is refused.
    """

    def __init__(self, pools: Mapping[str, Machines], pool_of: Callable[[NodeId], str]) -> None:
        self._pools = dict(pools)
        self._pool_of = pool_of

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset(c for machines in self._pools.values() for c in machines.capabilities)

    @property
    def blind(self) -> frozenset[str]:
        return frozenset(remedy for machines in self._pools.values() for remedy in machines.blind)

    def _of(self, node: NodeId) -> Machines:
        pool = self._pool_of(node)
        found = next((each for glob, each in self._pools.items() if glob == "*" or pool_fits(pool, glob)), None)
        if found is None:
            raise Rejected(f"nothing repairs the nodes of pool {pool or 'unknown'}: add it, or '*', to 'machines'")
        return found

    def restart_service(self, node: NodeId, *, key: str, expect: Incarnation) -> Accepted:
        return self._of(node).restart_service(node, key=key, expect=expect)

    def reset(self, node: NodeId, devices: tuple[int, ...], *, key: str, expect: Incarnation) -> Accepted:
        return self._of(node).reset(node, devices, key=key, expect=expect)

    def reboot(self, node: NodeId, *, key: str, expect: Incarnation) -> Accepted:
        return self._of(node).reboot(node, key=key, expect=expect)

    def replace(self, node: NodeId, *, key: str, expect: Incarnation) -> Accepted:
        return self._of(node).replace(node, key=key, expect=expect)

    def fence(self, node: NodeId, *, key: str, expect: Incarnation | None) -> Accepted:
        return self._of(node).fence(node, key=key, expect=expect)


def pool_in(store: Store) -> Callable[[NodeId], str]:
    """A node's pool; empty: nobody has seen it."""

    def pool(node: NodeId) -> str:
        row = _node(store, node)
        return row.pool if row is not None else ""

    return pool


def holder_in(store: Store) -> Callable[[NodeId], Incarnation | None]:
    """Who holds a seat, for machines that must not act on hearsay; None: nobody has seen it."""

    def holder(node: NodeId) -> Incarnation | None:
        row = _node(store, node)
        return row.incarnation if row is not None else None

    return holder


def _node(store: Store, node: NodeId) -> Node | None:
    try:
        row = store.load([key := f"node:{node}"])[key].row
    except StoreError as error:
        raise Transient(str(error)) from None
    return row if isinstance(row, Node) else None
