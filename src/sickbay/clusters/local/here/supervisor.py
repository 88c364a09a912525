"""The supervisor of this machine's seat: the local cluster's, with real devices and the real agent."""

from collections.abc import Iterable

from sickbay.clusters.local.files import Devices, LocalSeat, Paths, VirtualDefect
from sickbay.clusters.local.here.agent import HereAgent
from sickbay.clusters.local.supervisor import Supervisor


class RealDevices:
    """Hardware that is what it is: nothing puts defects in, and its kernel log is the kernel's."""

    def ensure(self, gpus: int) -> Devices | None:
        """They were written down when the seat was furnished."""

    def begin_boot(self, boot_id: str) -> None:
        """The machine's boot began long before."""

    def log(self, boot_id: str, lines: Iterable[str]) -> None:
        """No line of ours is the kernel's."""

    def inject(self, defect: VirtualDefect) -> None:
        """Nothing real is broken on purpose."""

    def defects(self) -> tuple[VirtualDefect, ...]:
        return ()

    def show(self, defect: VirtualDefect, boot_id: str, *, pid: int = 0, name: str = "") -> None:
        """There is none to show itself."""


def here_supervisor(paths: Paths, seat: LocalSeat) -> Supervisor:
    return Supervisor(paths, seat, hardware=RealDevices(), agent=HereAgent(paths, seat))
