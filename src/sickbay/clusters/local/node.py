"""The local cluster's half on a node: `python -m sickbay.clusters.local.node` is the agent of one seat.

It hands the agent's frame its kit: what there is to read, who carries orders out, whom to report to.
"""

import argparse
import os
import sys
from pathlib import Path

from sickbay.agent.outbox import Outbox
from sickbay.agent.places import Places
from sickbay.agent.probes import Probe
from sickbay.agent.probes.begins import begin_in_boot, begin_in_file
from sickbay.agent.probes.gauges import Gauges
from sickbay.agent.probes.inventory import inventory_probe
from sickbay.agent.probes.kernel_log import SOURCE, BootLog, KernelLog, LogPlace
from sickbay.agent.probes.system_log import LineTrust, SystemLog, name_of
from sickbay.agent.ranks.directory import ranks_dir
from sickbay.agent.ranks.watch import RankWatch
from sickbay.agent.runtime import AgentRuntime, NodeKit, alone, clock_zero, machine_boot
from sickbay.agent.sampling import EVERY, Sampler
from sickbay.agent.spool import AgentIdentity
from sickbay.agent.transport import Address, Away
from sickbay.agent.watches import CLOSED, CREATED, MOVED_TO
from sickbay.clusters.local.devices import Hardware, device_at
from sickbay.clusters.local.files import BOOT_MARK, ClusterFile, LocalSeat, Paths, read
from sickbay.clusters.local.node_commands import LocalOrders
from sickbay.clusters.local.virtual_devices import VirtualDevices, virtual_tests
from sickbay.model.errors import BadInput


def main() -> int:
    parser = argparse.ArgumentParser(prog="agent", description="The agent of one node of the local cluster.")
    parser.add_argument("--root", type=Path, required=True, help="the local cluster's directory")
    parser.add_argument("--seat", required=True, help="the node's name there")
    wanted = parser.parse_args()
    try:
        run(wanted.root, wanted.seat)
    except BadInput as error:
        print(f"agent: {error}", file=sys.stderr)
        return 2
    return 0


def run(root: Path, seat_name: str) -> None:
    """Until SIGTERM. Raises BadInput where there is no such seat."""
    paths = Paths(root, seat_name)
    seat = read(paths.seat_file, LocalSeat)
    if seat is None:
        raise BadInput(f"there is no seat {seat_name!r} under {root}: write one of those in {root / 'cluster.json'}")
    boot = os.environ.get(BOOT_MARK, seat.boot_id)
    if boot != seat.boot_id:
        raise BadInput(f"boot {boot} of {seat_name} has ended: an agent lives no longer than its boot")
    state = paths.agent(seat.instance_id)
    with alone(state):
        LocalAgent(paths, seat, state).run()


class LocalAgent:
    def __init__(self, paths: Paths, seat: LocalSeat, state: Path) -> None:
        self._paths = paths
        self._seat = seat
        me, hardware = seat.incarnation, Hardware(paths, seat.instance_id)
        voice = AgentIdentity(
            node=seat.id,
            incarnation=me,
            agent_run=os.urandom(6).hex(),
            machine_boot=machine_boot(),
            zero=clock_zero(),
        )
        instance = paths.instance(seat.instance_id)
        ranks_dir(instance).mkdir(parents=True, exist_ok=True)  # what is not there cannot be watched
        self._ranks = RankWatch(instance, seat.id, seat.boot_id)
        devices = VirtualDevices(hardware, seat.id, seat.gpus)
        tests = virtual_tests(hardware, seat.gpus, seat.boot_id)
        places = Places(state)
        self._life = AgentRuntime(
            NodeKit(
                outbox=Outbox(state / "spool", voice, places),
                state=state,
                log=KernelLog(self._sources(places), seat.id, device_at),
                address=self._address,
                orders=lambda senses: LocalOrders(paths, seat, hardware, senses, tests).carry,
                witnesses=[Probe("devices", devices.look, period=5.0, gap=0.1, witness=True)],
                probes=[
                    Probe("ranks", self._ranks.look, period=1.0, gap=0.05, restless=lambda: self._ranks.restless),
                    inventory_probe(seat.id, devices.inventory),
                    Probe("charts", Sampler([Gauges().values]).look, period=EVERY),
                ],
                wanted=self._wanted,
                asleep=self._ranks.restart,
            )
        )

    def run(self) -> None:
        self._life.run()

    def _sources(self, places: Places) -> list[BootLog | SystemLog]:
        """The kernel log of the boot, and, as on a real machine, a text log that outlives it."""
        kmsg = self._paths.kmsg(self._seat.instance_id, self._seat.boot_id)
        messages = self._paths.messages(self._seat.instance_id)
        messages.touch(exist_ok=True)
        began = read(kmsg.with_name("began"), float) or 0.0
        fresh = LogPlace(boot_id=self._seat.boot_id)
        boot = BootLog(kmsg, begin_in_boot(places, SOURCE, fresh).told, began)
        text = begin_in_file(places, name_of(messages), fresh)
        # Nobody but the cluster's own user may write it, and who may that can write the other log as well.
        reading = LineTrust(trusted=True, own_zone=True)
        return [boot, SystemLog(messages, text.heard, reading, began=began, told=text.told)]

    def _wanted(self) -> dict[Path, tuple[str, int]]:
        wanted = dict.fromkeys(self._ranks.directories, ("ranks", MOVED_TO | CLOSED))
        instance = self._paths.instance(self._seat.instance_id)
        wanted[ranks_dir(instance)] = ("ranks", CREATED)
        wanted[instance] = ("devices", MOVED_TO)
        return wanted

    # --- the controller
    def _address(self) -> Address:
        cluster = read(self._paths.root / "cluster.json", ClusterFile)
        if cluster is None or not cluster.controller:
            raise Away("no controller has been there yet")
        try:
            token = self._paths.token.read_text(encoding="ascii").strip()
        except FileNotFoundError:
            token = ""
        return Address(url=cluster.controller, token=token, ca=cluster.ca)


if __name__ == "__main__":
    sys.exit(main())
