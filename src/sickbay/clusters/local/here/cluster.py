"""The ports over this machine as its one node: the local cluster's, with the machine's own identity."""

import time
from pathlib import Path

from msgspec.structs import replace

from sickbay.clusters.local.attempts import digest
from sickbay.clusters.local.cluster import LocalCluster
from sickbay.clusters.local.doubt import changing, reading
from sickbay.clusters.local.files import LocalSeat, RestartAgent, SeatPower, wake, write
from sickbay.clusters.local.here.machine import ThisMachine, promises
from sickbay.clusters.local.own_nodes import LocalNodes
from sickbay.clusters.local.rack import Rack
from sickbay.clusters.local.ticks import Ticks
from sickbay.model.errors import Rejected
from sickbay.model.facts import NodeSeen
from sickbay.model.fleet import Capability, Incarnation, NodeId
from sickbay.ports.cluster import Accepted, Deltas, Lost, Snapshot

FIRST, MOST = 1.0, 60.0  # seconds between two starts of a supervisor that ends again


class HereCluster(LocalCluster):
    """A supervisor has boots of its own, one for each of its lives: those are not shown. The machine's ids are.

    The supervisor is no node that fails: one that was killed is started again, with back-off, by whoever watches.
    """

    def __init__(self, root: Path, machine: ThisMachine) -> None:
        super().__init__(root)
        self._seat = self._room.names()[0]
        self._me = machine.incarnation
        self._again_at, self._pause = 0.0, FIRST

    def watch(self, cursor: str | None) -> Deltas | Lost:
        self._keep_alive()
        found = super().watch(cursor)
        return found if isinstance(found, Lost) else _deltas(found, self._me)

    def snapshot(self) -> Snapshot:
        self._keep_alive()
        found = super().snapshot()
        return replace(found, nodes=tuple(_shown(seen, self._me) for seen in found.nodes))

    def _look(self, name: str, expect: Incarnation | None) -> LocalSeat:
        must_be(NodeId(f"{self.id}/{name}"), self._me, expect)
        return super()._look(name, None)

    def _keep_alive(self) -> None:
        """Level-triggered: a seat that is switched on has a supervisor."""
        with reading():
            now = time.monotonic()
            if self._room.alive(self._seat) or now < self._again_at:
                return
            if self._room.seat(self._seat).power is not SeatPower.ON:  # switched off, or never on yet
                return
            steady = now - self._again_at > 2 * MOST
            self._pause = FIRST if steady else min(2 * self._pause, MOST)
            self._again_at = now + self._pause
            self._room.power_on()


def _deltas(found: Deltas, me: Incarnation) -> Deltas:
    return replace(found, news=tuple(_shown(news, me) if isinstance(news, NodeSeen) else news for news in found.news))


def _shown(seen: NodeSeen, me: Incarnation) -> NodeSeen:
    """Whether NVLink ties several GPUs is for the agent to find out."""
    return replace(seen, incarnation=me, linked=False if len(seen.devices) < 2 else None)


def must_be(node: NodeId, now: Incarnation, expect: Incarnation | None) -> None:
    if expect is not None and not now.agrees(expect):
        raise Rejected(f"node {node} is boot {now.boot_id} of {now.instance_id}, not {expect.boot_id}")


class HereMachines:
    """The Machines port: its agent can be started anew. All else is the agent's own channel, or a person's."""

    def __init__(self, root: Path, machine: ThisMachine) -> None:
        self._rack = Rack(root)
        self._me = machine.incarnation
        self._ticks = Ticks.of(self._rack.root)

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset({Capability.RESTART_SERVICE})

    @property
    def blind(self) -> frozenset[str]:
        return frozenset()

    def restart_service(self, node: NodeId, *, key: str, expect: Incarnation) -> Accepted:
        must_be(node, self._me, expect)
        name = node.rpartition("/")[2]
        with changing(), self._rack.held(name) as seat:
            if not self._rack.alive(name):
                raise Rejected(f"the supervisor of {node} is being started: so is its agent")
            paths = self._rack.paths(name)
            # The supervisor remembers names, so that one key has one effect.
            write(paths.orders / f"agent.{digest(key)}.json", RestartAgent(boot_id=seat.boot_id))
            wake(paths.wake)
            return Accepted(visible_from=self._ticks.now())

    def reset(self, node: NodeId, devices: tuple[int, ...], *, key: str, expect: Incarnation) -> Accepted:
        del devices, key, expect
        raise Rejected(f"node {node}: devices are reset by its agent")

    def reboot(self, node: NodeId, *, key: str, expect: Incarnation) -> Accepted:
        del key, expect
        raise Rejected(f"node {node} is this machine: only its agent may reboot it, with --allow-reboot")

    def replace(self, node: NodeId, *, key: str, expect: Incarnation) -> Accepted:
        del key, expect
        raise Rejected(f"node {node} is this machine: only a person can replace it")

    def fence(self, node: NodeId, *, key: str, expect: Incarnation | None) -> Accepted:
        del key, expect
        raise Rejected(f"node {node} is this machine: it does not fence itself")


class HereNodes(LocalNodes):
    """The OwnNodes port: the machine room's, with words for whoever starts it."""

    def __init__(self, rack: Rack, machine: ThisMachine) -> None:
        super().__init__(rack)
        self._machine = machine

    def promises(self) -> tuple[str, ...]:
        (node,) = self.agents()
        return promises(self._machine, node)
