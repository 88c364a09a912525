"""Seats, the machines in them, and what can be wrong with a machine."""

from dataclasses import dataclass, field
from enum import StrEnum

from sickbay.model.cordon import incident_of
from sickbay.model.facts import Fact, NodeSeen
from sickbay.model.fault import Remedy
from sickbay.model.fleet import Device, Incarnation, JobId, NodeId
from sickbay.model.noun import Noun


class MachinePower(StrEnum):
    UP = "up"
    BOOTING = "booting"
    DOWN = "down"
    DELETED = "deleted"


class SimDefect(Noun):
    """Something wrong with one device: its symptoms, and the least remedy that cures it.

    A defect that `restart_job` or less cures leaves nothing behind: the line is written, the rank dies, that is all.
    """

    code: str  # xid.79, sxid.12028, or any other kind of observation
    device: int = 0
    cured_by: Remedy | None = None  # None: only other hardware
    kills_ranks: bool = True
    kill_after: float = 2.0  # less than observe_after: the rank dies before the line is written
    observe_after: float = 0.5
    exercised_after: float = 60.0  # a rank or a check that uses the device meets the defect after so long
    recurs_after_boot: float | None = None  # None: it returns only when exercised
    silent: bool = False  # no line at all: only a check finds it
    found_at: int = 1  # the lowest level of check that finds it

    @property
    def lasting(self) -> bool:
        return self.cured_by is None or self.cured_by.rank >= Remedy.RESET_GPU.rank

    def cured(self, remedy: Remedy) -> bool:
        if remedy is Remedy.REPLACE:
            return True
        return self.cured_by is not None and self.cured_by.rank <= remedy.rank


# The text after the number, as the driver writes it (NVIDIA's Xid catalogue; 13, 31 and 43 as captured on an H200).
_XID_TEXT = {
    13: "Graphics SM Warp Exception on (GPC 1, TPC 4, SM 0): Misaligned Address",
    31: "pid=475, name=python, channel 0x0000000a, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC1 GPCCLIENT_T1_8 "
    "faulted @ 0xdead_0000b000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE",
    43: "pid=497, name=python, channel 0x0000000a",
    48: "pid='<unknown>', name=<unknown>, An uncorrectable double bit error (DBE) has been detected on GPU",
    63: "pid='<unknown>', name=<unknown>, Row Remapper: New row (0x00000000004c2a80) marked for remapping",
    64: "pid='<unknown>', name=<unknown>, Row Remapper: Failed to remap row",
    74: "pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 3",
    79: "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    94: "pid=497, name=python, Contained: SM (0x1). RST: No, D-RST: No",
    95: "pid='<unknown>', name=<unknown>, Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No",
    119: "pid=497, name=python, Timeout after 6s of waiting for RPC response from GSP!",
    154: "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
}


def bus_of(device: int) -> str:
    return f"0000:{0x10 + device:02x}:00"


def symptom(code: str, device: int) -> tuple[str, dict[str, str | int], str]:
    """The observation that a code makes: kind, fields, text."""
    kind, _, number = code.partition(".")
    if kind in {"xid", "sxid"} and number.isdigit():
        if kind == "xid":
            what = _XID_TEXT.get(int(number), "pid='<unknown>', name=<unknown>, error")
            text = f"NVRM: Xid (PCI:{bus_of(device)}): {number}, {what}"
        else:
            text = f"nvidia-nvswitch{device}: SXid (PCI:{bus_of(device)}): {number}, Fatal, Link 03 error"
        return kind, {"number": int(number), "device": device}, text
    return code, {"device": device}, f"{code} on device {device}"


@dataclass(slots=True)
class PendingReport:
    """Something an agent has to report, with the boot that it was read under."""

    fact: Fact
    boot_id: str
    at: float


@dataclass(slots=True, eq=False)
class SimSeat:
    """A seat with its present machine, as it truly is."""

    id: NodeId
    cluster: str
    pool: str
    domain: str
    incarnation: Incarnation
    devices: tuple[Device, ...]
    linked: bool = True
    power: MachinePower = MachinePower.UP
    up_at: float = 0.0
    turn: int = 0  # raised by every change of power: what was scheduled for an earlier turn is void
    stuck: Remedy | None = None  # the least remedy that brings the machine back
    agentless: bool = False  # nobody has installed one
    agent_alive: bool = True
    path_open: bool = True  # the agent's way to us
    kubelet_alive: bool = True  # the cluster's own daemon
    link_open: bool = True  # its way to the cluster
    # The cluster's view:
    ready: bool = True
    shown: Incarnation | None = None
    forgotten: bool = False  # its object was deleted while nobody could reach it: it makes a new one once in touch
    cordons: dict[str, str] = field(default_factory=dict)
    unmanaged: int = 0
    worked_at: float = 0.0  # when the newest piece of that work came
    ready_at: float = 0.0  # when the cluster last changed its mind about it
    pooled_at: float = 0.0  # when it came into its pool
    defects: list[SimDefect] = field(default_factory=list)
    unmounted: set[str] = field(default_factory=set)  # shared directories that this node has not
    bare: set[str] = field(default_factory=set)  # or in whose place it has an empty directory of its own
    kept_until: float = 0.0  # a disruption budget keeps work there: asked politely before that, it stays
    down_at: dict[int, float] = field(default_factory=dict)  # by turn: when a fence that takes long is done
    next_defects: list[SimDefect] = field(default_factory=list)  # that the next machine here brings along
    resetting: bool = False
    holders: dict[tuple[JobId, int], tuple[int, ...]] = field(default_factory=dict)
    seq: int = 0
    outbox: list[PendingReport] = field(default_factory=list)

    @property
    def speaking(self) -> bool:
        """We can hear its agent."""
        return self.power is MachinePower.UP and self.agent_alive and self.path_open and not self.agentless

    @property
    def reachable(self) -> bool:
        """The cluster can hear it."""
        return self.power is MachinePower.UP and self.kubelet_alive and self.link_open

    @property
    def ours(self) -> bool:
        """A cordon of ours is on it."""
        return any(incident_of(owner) for owner in self.cordons)

    @property
    def free(self) -> bool:
        """Others' schedulers would use it."""
        return self.ready and self.reachable and not self.cordons and not self.holders and not self.unmanaged

    def domain_of(self, devices: tuple[int, ...]) -> frozenset[int]:
        """What a reset of these devices touches; NVLink ties all of them."""
        if self.linked or not devices:
            return frozenset(device.index for device in self.devices)
        return frozenset(devices)

    @property
    def voice(self) -> Incarnation:
        """Whom its agent speaks for: how the cluster has registered the machine, it cannot know."""
        return Incarnation(instance_id=self.incarnation.instance_id, boot_id=self.incarnation.boot_id)

    def seen(self, as_of: float, tells: frozenset[str]) -> NodeSeen:
        """The cluster's word on the seat; jobs say themselves where they run."""
        shown = self.shown or self.incarnation
        return NodeSeen(
            node=self.id,
            cluster=self.cluster,
            pool=self.pool,
            as_of=as_of,
            incarnation=Incarnation(
                uid=shown.uid if "uid" in tells else "",
                instance_id=shown.instance_id if "instance" in tells else "",
                boot_id=shown.boot_id if "boot" in tells else "",
            ),
            domain=self.domain,
            devices=self.devices,
            linked=self.linked,
            ready=self.ready,
            cordons=tuple(sorted(self.cordons)),
            unmanaged=self.unmanaged,
        )
