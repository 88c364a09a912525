"""Faults and remedies."""

from enum import StrEnum

from sickbay.model.fleet import Capability
from sickbay.model.noun import Noun


class Severity(StrEnum):
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    FATAL = "fatal"


class Scope(StrEnum):
    DEVICE = "device"
    NODE = "node"
    FABRIC = "fabric"


class Remedy(StrEnum):
    """The order is RUNGS[…].rank, not the alphabet's."""

    NONE = "none"
    WATCH = "watch"
    RESTART_JOB = "restart_job"
    RESTART_SERVICE = "restart_service"
    RESET_GPU = "reset_gpu"
    REBOOT = "reboot"
    REPLACE = "replace"

    @property
    def rank(self) -> int:
        return RUNGS[self].rank

    @property
    def disrupts(self) -> bool:
        """Takes the node out of service."""
        return RUNGS[self].disrupts


class Proof(StrEnum):
    """What must be seen before a rung counts as done."""

    NONE = "none"
    AGENT_HEARD = "agent_heard"
    RESET_CONFIRMED = "reset_confirmed"
    NEW_BOOT = "new_boot"
    NEW_INSTANCE = "new_instance"


class RungKind(Noun):
    rank: int
    proof: Proof
    needs: Capability | None
    disrupts: bool


# The registry of rungs. A new remedy (power_cycle, reset_fabric) is one more row and its capability.
RUNGS: dict[Remedy, RungKind] = {
    Remedy.NONE: RungKind(rank=0, proof=Proof.NONE, needs=None, disrupts=False),
    Remedy.WATCH: RungKind(rank=10, proof=Proof.NONE, needs=None, disrupts=False),
    Remedy.RESTART_JOB: RungKind(rank=20, proof=Proof.NONE, needs=None, disrupts=False),
    Remedy.RESTART_SERVICE: RungKind(
        rank=25, proof=Proof.AGENT_HEARD, needs=Capability.RESTART_SERVICE, disrupts=False
    ),
    Remedy.RESET_GPU: RungKind(rank=30, proof=Proof.RESET_CONFIRMED, needs=Capability.RESET_GPU, disrupts=True),
    Remedy.REBOOT: RungKind(rank=40, proof=Proof.NEW_BOOT, needs=Capability.REBOOT, disrupts=True),
    Remedy.REPLACE: RungKind(rank=50, proof=Proof.NEW_INSTANCE, needs=Capability.REPLACE, disrupts=True),
}


def highest(*remedies: Remedy) -> Remedy:
    return max(remedies, key=lambda remedy: remedy.rank)


def lowest(*remedies: Remedy) -> Remedy:
    return min(remedies, key=lambda remedy: remedy.rank)


WISH = "operator."  # begins the codes of what a person asks for: his cordon, drain, reset …


class Fault(Noun):
    """What an observation means."""

    code: str  # xid.79, sxid.12028, node.lost, check.failed …
    component: str
    severity: Severity
    scope: Scope
    remedy: Remedy
    because: str
    evidence: str = ""
    device: int | None = None
    needs_human: bool = False
    follows: str = ""  # the code that this one is a consequence of ("caused by previous Xid N")
    cancels: tuple[str, ...] = ()  # codes that this one takes back (162 takes 163 back)
    advice: Remedy | None = None  # the driver's own word on the fault before it (154): it wins

    @property
    def monitor_class(self) -> str:
        """The fault in the EKS monitor's words. Total: every fault, also one of a code that no table has.

        - nothing to worry about → HEALTHY
        - component `memory` → ECC_ERROR, whatever its severity: that monitor has one word for all memory errors,
          so a recorded row remap (63) and an uncontained error (95) share it
        - other Xids → XID_CRITICAL_n from severity error on, else XID_WARNING_n; 154 by what the driver advises
        - everything else → GPU_HEALTH_ERROR from severity error on, else GPU_HEALTH_WARNING
        """
        advised = self.advice or Remedy.NONE
        grave = self.severity in {Severity.ERROR, Severity.FATAL} or advised.disrupts
        if self.severity is Severity.INFO and advised is Remedy.NONE:
            return "HEALTHY"
        if self.component == "memory":
            return "ECC_ERROR"
        if self.code.startswith("xid."):
            number = self.code.removeprefix("xid.")
            return f"XID_{'CRITICAL' if grave else 'WARNING'}_{number if number.isdigit() else 0}"
        return "GPU_HEALTH_ERROR" if grave else "GPU_HEALTH_WARNING"

    @property
    def is_wish(self) -> bool:
        """A person asked for it; nothing is ill."""
        return self.code.startswith(WISH)


def touches(fault: Fault, held: tuple[int, ...]) -> bool:
    """Whether a fault is about what somebody holds of its node: these devices, or with () all of it."""
    whole = fault.scope is not Scope.DEVICE or fault.device is None
    return whole or not held or fault.device in held


NODE_LOST = "node.lost"
AGENT_LOST = "agent.lost"
PARTITION = "cluster.partition"
SILENCE = "silence"  # the brakes' signature of node.lost


def signature(fault: Fault) -> str:
    return SILENCE if fault.code == NODE_LOST else fault.code
