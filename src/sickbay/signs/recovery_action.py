"""GPU recovery actions: what the driver asks for, by NVML's number and in all wordings, and the remedy for each.

The numbers are nvmlDeviceGpuRecoveryAction_t (0 to 4 since driver 565, 5 since 595, 6 and 7 since 615). The words are
those of `nvidia-smi` (the first), of Xid 154, and of NVML's own names. One that is not here is told to people and acted
upon by nobody: see docs/decisions/0028-counters-and-hostile-files.md.
"""

from typing import NamedTuple

from sickbay.model.fault import Remedy


class Action(NamedTuple):
    number: int
    words: tuple[str, ...]
    remedy: Remedy
    sign: str  # where a reading of the GPU shows it; empty: nothing is wrong


# "Drain P2P" asks for the end of the work that talks to peers, which is what restarting the job does. "Drain and Reset"
# lets work end first, as every reset of ours. An IMEX domain spans nodes: nothing done to one of them recovers it.
ACTIONS = (
    Action(0, ("None", "no action"), Remedy.NONE, ""),
    Action(1, ("Reset", "GPU Reset Required", "GPU Reset", "PF FLR"), Remedy.RESET_GPU, "gpu.reset_required"),
    Action(
        2,
        ("Reboot", "Reboot Required", "Node Reboot Required", "Node Reboot", "OS Reboot", "OS Reboot Required"),
        Remedy.REBOOT,
        "gpu.reboot_required",
    ),
    Action(3, ("Drain P2P",), Remedy.RESTART_JOB, "gpu.drain_required"),
    Action(4, ("Drain and Reset", "Drain & Reset"), Remedy.RESET_GPU, "gpu.reset_required"),
    Action(5, ("Recover IMEX Domain", "IMEX Domain Recovery Required"), Remedy.WATCH, "gpu.imex_required"),
    Action(
        6,
        ("Bus Reset", "GPU Bus Reset", "GPU Reset Bus", "Bus Reset Required", "GPU Bus Reset Required"),
        Remedy.RESET_GPU,
        "gpu.reset_required",
    ),
    Action(7, ("System Reboot", "System Reboot Required"), Remedy.REBOOT, "gpu.reboot_required"),
)
UNSAID = frozenset({"", "n/a", "not supported"})
UNKNOWN = "gpu.recovery_unknown"
_BY_WORDS = {words.lower(): action for action in ACTIONS for words in action.words}


def action_in(words: str) -> Action | None:
    """The action that these words name, however they are spaced, joined or framed; None: no known one."""
    plain = " ".join(words.lower().replace("_", " ").strip(" []").split())
    return _BY_WORDS.get(plain.removeprefix("nvml ").removeprefix("gpu recovery action "))


def action_of(number: int) -> Action | None:
    return ACTIONS[number] if 0 <= number < len(ACTIONS) else None


def sign_of_wish(words: str) -> str:
    """The kind of sign that a reading shows by these words; empty: the driver wants nothing, or does not say."""
    if words.strip(" []").lower() in UNSAID:
        return ""
    action = action_in(words)
    return UNKNOWN if action is None else action.sign
