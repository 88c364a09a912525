"""The Machines port of the local cluster: reboots and replacements that survive whoever does them.

A repair is written down, with the boot that it will lead to, before anything is done; its steps can each be done again.
"""

import threading
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from sickbay.clusters.local.attempts import digest
from sickbay.clusters.local.devices import Hardware
from sickbay.clusters.local.doubt import changing
from sickbay.clusters.local.files import LocalSeat, RestartAgent, SeatPower, read, wake, write
from sickbay.clusters.local.locks import PATIENCE
from sickbay.clusters.local.rack import Rack, new_boot, new_instance
from sickbay.clusters.local.seat_state import Looker
from sickbay.clusters.local.ticks import Ticks
from sickbay.model.errors import Gone, Rejected
from sickbay.model.fault import Remedy
from sickbay.model.fleet import Capability, Incarnation, NodeId
from sickbay.model.noun import Noun
from sickbay.ports.cluster import Accepted

FENCE = "fence"


class MachineRepair(Noun):
    """One reboot, replacement or fence of one boot."""

    key: str
    what: str  # reboot | replace | fence
    before: Incarnation
    after: Incarnation
    done: bool = False


class LocalMachines:
    def __init__(self, root: Path | str, *, patience: float = PATIENCE) -> None:
        self._room = Rack(root, patience)
        self._id = self._room.file().id
        self._ticks = Ticks.of(self._room.root)
        self._looker = Looker(self._room.root)
        self._lock = threading.Lock()

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset({Capability.RESTART_SERVICE, Capability.REBOOT, Capability.REPLACE, Capability.FENCE})

    @property
    def blind(self) -> frozenset[str]:
        return frozenset()

    def restart_service(self, node: NodeId, *, key: str, expect: Incarnation) -> Accepted:
        name = self._name(node)
        with changing(), self._room.held(name) as seat:
            self._must_be(name, expect)
            if not self._room.alive(name):
                raise Rejected(f"node {node} is down: there is nothing to restart an agent on")
            paths = self._room.paths(name)
            # The supervisor remembers names, so that one key has one effect.
            write(paths.orders / f"agent.{digest(key)}.json", RestartAgent(boot_id=seat.boot_id))
            wake(paths.wake)
            return self._accepted()

    def reset(self, node: NodeId, devices: tuple[int, ...], *, key: str, expect: Incarnation) -> Accepted:
        del devices, key, expect
        raise Rejected(f"node {node}: devices are reset by its agent, not from outside")

    def reboot(self, node: NodeId, *, key: str, expect: Incarnation) -> Accepted:
        def following(seat: LocalSeat) -> Incarnation:
            return replace(seat.incarnation, boot_id=new_boot())

        return self._repair(node, Remedy.REBOOT, key, expect, following)

    def replace(self, node: NodeId, *, key: str, expect: Incarnation) -> Accepted:
        def following(_seat: LocalSeat) -> Incarnation:
            instance = new_instance()
            return Incarnation(uid=instance, instance_id=instance, boot_id=new_boot())

        return self._repair(node, Remedy.REPLACE, key, expect, following)

    def fence(self, node: NodeId, *, key: str, expect: Incarnation | None) -> Accepted:
        """The boot that was meant (else the one that runs when the key first comes) is surely ended; no later one."""
        name = self._name(node)
        with changing(), self._room.held(name) as seat:
            meant = seat.incarnation if expect is None or seat.incarnation.same_boot(expect) else expect
            repair = self._written(name, key, FENCE) or self._write(name, key, FENCE, meant, meant)
            if not repair.done:
                if seat.boot_id == repair.before.boot_id:
                    self._room.save(replace(seat, power=SeatPower.FENCED))
                self._room.kill_boot(repair.before.boot_id)
                self._finish(name, repair)
            return replace(self._accepted(), done=True)

    # --- repairs
    def _repair(
        self, node: NodeId, remedy: Remedy, key: str, expect: Incarnation, following: Callable[[LocalSeat], Incarnation]
    ) -> Accepted:
        name = self._name(node)
        with changing(), self._room.held(name) as seat:
            repair = self._written(name, key, remedy)
            if repair is None:
                self._must_be(name, expect)
                repair = self._write(name, key, remedy, seat.incarnation, following(seat))
            if not repair.done:
                self._carry_out(seat, repair, remedy)
                self._finish(name, repair)
            return self._accepted()

    def _carry_out(self, seat: LocalSeat, repair: MachineRepair, remedy: Remedy) -> None:
        """Every step may have been done before. The seat names the new boot only when the old one is over and cured."""
        if seat.boot_id == repair.before.boot_id:
            self._room.kill_boot(seat.boot_id)
            paths = self._room.paths(seat.name)
            Hardware(paths, repair.after.instance_id).ensure(seat.gpus)
            Hardware(paths, repair.after.instance_id).cure(remedy)
            seat = replace(
                seat,
                instance_id=repair.after.instance_id,
                boot_id=repair.after.boot_id,
                previous=repair.before,
                power=SeatPower.ON,
            )
            self._room.save(seat)
        if seat.boot_id == repair.after.boot_id:
            self._room.spawn_held(seat)
        # Otherwise somebody has gone on to yet another boot since: there is nothing left to do for this one.

    def _written(self, name: str, key: str, what: str) -> MachineRepair | None:
        repair = read(self._room.paths(name).repairs / f"{digest(key)}.json", MachineRepair)
        if repair is not None and repair.what != what:
            raise Rejected(f"the key {key} was used for a {repair.what} of {name}")
        return repair

    def _write(self, name: str, key: str, what: str, before: Incarnation, after: Incarnation) -> MachineRepair:
        repair = MachineRepair(key=key, what=what, before=before, after=after)
        write(self._room.paths(name).repairs / f"{digest(key)}.json", repair)
        return repair

    def _finish(self, name: str, repair: MachineRepair) -> None:
        path = self._room.paths(name).repairs / f"{digest(repair.key)}.json"
        write(path, replace(repair, done=True), durable=False)
        wake(self._room.root / "wake")

    def _accepted(self) -> Accepted:
        return Accepted(visible_from=self._ticks.now())

    def _name(self, node: NodeId) -> str:
        cluster, _, name = node.partition("/")
        with changing():
            if cluster == self._id and name in self._room.names():
                return name
        raise Gone(f"there is no node {node}")

    def _must_be(self, name: str, expect: Incarnation) -> None:
        with self._lock:
            sight = self._looker.look(name)
        if sight is None:
            raise Gone(f"there is no node {name}")
        sight.must_be(expect)
