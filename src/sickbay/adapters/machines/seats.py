"""Who holds a seat, and in which pool it is, as the store knows it: for machines that must not act on hearsay."""

from collections.abc import Callable

from sickbay.model.errors import StoreError, Transient
from sickbay.model.fleet import Incarnation, Node, NodeId
from sickbay.ports.store import Store


def pool_in(store: Store) -> Callable[[NodeId], str]:
    """A node's pool; empty: nobody has seen it."""

    def pool(node: NodeId) -> str:
        row = _node(store, node)
        return row.pool if row is not None else ""

    return pool


def holder_in(store: Store) -> Callable[[NodeId], Incarnation | None]:
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
