"""Settings of a cluster of kind `here`, and its one seat as it is furnished from them."""

import time
from pathlib import Path

import msgspec

from sickbay.agent.settings import AgentSettings
from sickbay.clusters.local.devices import create
from sickbay.clusters.local.files import (
    ClusterFile,
    Devices,
    LocalSeat,
    SeatPower,
    Status,
    VirtualDevice,
    read,
    write,
)
from sickbay.clusters.local.here.machine import ThisMachine, this_machine
from sickbay.clusters.local.locks import held
from sickbay.clusters.local.processes import is_alive
from sickbay.clusters.local.rack import Rack, fifo, new_boot
from sickbay.model.errors import BadInput
from sickbay.model.noun import Noun
from sickbay.wire.files import replace_file

KIND = "here"
POOL = "default"
ENDS_WITHIN = 20.0  # seconds: its supervisor looks once a second, and gives it ten to end
AGENT_FILE = "agent.json"  # below the cluster's directory: what its agent is started with


class HereSettings(Noun, forbid_unknown_fields=True):
    allow_reboot: bool = False
    agent: str = ""  # a file with settings of its agent, read where it is there


def machine_of(root: Path, settings: HereSettings) -> ThisMachine:
    file = Path(settings.agent) if settings.agent else None
    return this_machine(root, file, allow_reboot=settings.allow_reboot)


def furnish(root: Path, cluster: str, pool: str, machine: ThisMachine) -> Rack:
    """The seat as this machine is now; jobs, cordons and what it is called stay. Raises BadInput."""
    rack = Rack(root)
    root.mkdir(parents=True, exist_ok=True)
    with held(root / "room.lock"):
        there = read(root / "cluster.json", ClusterFile)
        if there is not None and there.kind != KIND:
            raise BadInput(f"{root} has a cluster of virtual nodes: start afresh in another directory (--state DIR)")
        name = there.seats[0] if there is not None else machine.name
        fifo(root / "wake")
        _furnish(rack, name, cluster, pool or POOL, machine)
        before = read(root / AGENT_FILE, AgentSettings)
        status = read(rack.paths(name).status, Status)
        replace_file(root / AGENT_FILE, msgspec.json.encode(machine.settings))
        if there is None:
            write(root / "cluster.json", ClusterFile(id=cluster, seats=(name,), boot_takes=0.0, kind=KIND))
    if before is not None and status is not None and set(before.allow) - set(machine.settings.allow):
        _outlive_agent(rack, name, status.agent_pid)
    return rack


def _outlive_agent(rack: Rack, name: str, pid: int) -> None:
    """An agent of an earlier start may do more than is allowed now: its orders still wait for it in the mail."""
    until = time.monotonic() + ENDS_WITHIN
    while pid and rack.alive(name) and is_alive(pid):
        now = read(rack.paths(name).status, Status)
        if now is not None and now.agent_pid != pid:
            return
        if time.monotonic() > until:
            raise BadInput(
                f"the agent of an earlier start (pid {pid}) has leave that is not given now, such as to reboot this "
                f"machine, and does not end: 'sickbay down --state {rack.root.parents[1]}' ends it, then start again"
            )
        time.sleep(0.05)


def _furnish(rack: Rack, name: str, cluster: str, pool: str, machine: ThisMachine) -> None:
    paths, instance = rack.paths(name), machine.inner_instance
    for directory in (paths.orders, paths.repairs, paths.instance(instance)):
        directory.mkdir(parents=True, exist_ok=True)
    fifo(paths.wake)
    devices = _devices(paths.devices(instance), machine)
    with held(paths.seat / "seat.lock"):
        seat = read(paths.seat_file, LocalSeat) or LocalSeat(
            name=name, cluster=cluster, pool=pool, gpus=0, instance_id=instance, boot_id=new_boot(),
            power=SeatPower.OFF,
        )  # fmt: skip
        known = {"gpus": len(devices), "instance_id": instance, "pool": pool, "machine_boot": machine.boot_id}
        following = msgspec.structs.replace(seat, **known)
        if seat.instance_id != instance:  # the state was carried to another machine
            following = msgspec.structs.replace(following, boot_id=new_boot(), power=SeatPower.OFF)
        write(paths.seat_file, following)


def _devices(file: Path, machine: ThisMachine) -> tuple[VirtualDevice, ...]:
    """Those that were read now; where they cannot be read, those that were known before, if any."""
    if machine.devices is None:
        return (read(file, Devices) or create(0)).devices
    devices = tuple(VirtualDevice(index=one.index, serial=one.serial) for one in machine.devices)
    write(file, Devices(devices=devices))
    return devices
