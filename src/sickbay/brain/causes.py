"""Which faults bring others with them, as data."""

from fnmatch import fnmatchcase

from sickbay.model.noun import Noun

GPU, ANY = "gpu", "any"


class CausalRule(Noun):
    """Codes are shell patterns. `same`: both on one GPU (or one does not say which), or anywhere in the text."""

    codes: tuple[str, ...]
    brings: tuple[str, ...]
    why: str
    same: str = GPU
    before: bool = False  # the cause stands first in the text
    grave: bool = False  # only where the cause itself needs a repair
    one: bool = False  # no chain of events: one event in two wordings


HARDWARE = ("xid.*", "sxid.*", "gpu.*", "nvlink.*", "ib.*", "efa.*", "net.*", "pcie.*", "amd.*", "neuron.*", "node.*")
TEARDOWN = ("xid.43", "xid.45")
NVLINK5 = tuple(f"xid.{number}" for number in range(144, 151))

# The first row that fits names the cause. What a row cannot decide stands for itself: two roots are better than a
# wrong one.
CAUSES: tuple[CausalRule, ...] = (
    CausalRule(
        codes=("xid.79",),
        brings=("gpu.fallen_off_bus", "gpu.lost"),
        one=True,
        why="the same GPU leaving the bus, in other words",
    ),
    CausalRule(
        codes=("gpu.fallen_off_bus",),
        brings=("gpu.lost",),
        one=True,
        why="the same GPU leaving the bus, in other words",
    ),
    CausalRule(
        codes=("xid.119", "xid.120"),
        brings=("gpu.gsp_timeout",),
        one=True,
        why="the same silence of the GPU's system processor",
    ),
    CausalRule(codes=("xid.143",), brings=("gpu.init_failed",), one=True, why="the same failed start of the GPU"),
    CausalRule(
        codes=("xid.63",),
        brings=("gpu.remap_pending", "gpu.retire_pending"),
        one=True,
        why="the remap that this Xid recorded",
    ),
    CausalRule(codes=("xid.64",), brings=("gpu.remap_failed",), one=True, why="the remap that could not be recorded"),
    CausalRule(
        codes=("xid.79", "gpu.fallen_off_bus"),
        brings=("xid.*", "gpu.*", "nvlink.*", "pcie.*"),
        before=True,
        why="a GPU that is off the bus can tell nothing more about itself",
    ),
    CausalRule(
        codes=("sxid.*",),
        brings=("xid.74", "xid.45", "xid.137", "xid.155", *NVLINK5, "nvlink.*"),
        same=ANY,
        grave=True,
        why="a fatal fault of the switch ends the links of the GPUs behind it",
    ),
    CausalRule(
        codes=("xid.48",),
        brings=(
            "xid.63",
            "xid.64",
            "xid.94",
            "xid.95",
            "xid.156",
            "xid.171",
            "xid.172",
            "gpu.ecc_uncorrected",
        ),
        why="what the driver does about the uncorrectable memory error",
    ),
    CausalRule(
        codes=("xid.95", "xid.94", "xid.140"),
        brings=("xid.63", "xid.64", "xid.156", "xid.171", "xid.172", "gpu.ecc_uncorrected"),
        why="what the driver does about the memory error",
    ),
    CausalRule(
        codes=("xid.*", "gpu.*", "nvlink.*"),
        brings=TEARDOWN,
        before=True,
        grave=True,
        why="channels are torn down after a fault of the GPU",
    ),
    CausalRule(
        codes=("xid.13", "xid.31", "xid.32", "xid.68", "xid.69", "xid.137"),
        brings=TEARDOWN,
        before=True,
        why="channels are torn down after the program's fault",
    ),
    CausalRule(
        codes=("xid.43",), brings=("xid.45",), before=True, why="channels are torn down after the program's fault"
    ),
    CausalRule(
        codes=("xid.13", "xid.31"),
        brings=("job.illegal_access",),
        same=ANY,
        why="the same fault, as the program sees it",
    ),
    CausalRule(
        codes=("os.oom_kill",),
        brings=(
            "job.host_oom",
            "job.killed",
            "kube.oom_killed",
            "slurm.oom_kill",
            "job.network_unreachable",
            "job.nccl_timeout",
        ),
        same=ANY,
        why="the kernel killed a process for lack of memory",
    ),
    CausalRule(
        codes=("kube.oom_killed", "slurm.oom_kill", "job.host_oom"),
        brings=("job.killed", "job.nccl_timeout", "job.network_unreachable", "job.sigkill"),
        same=ANY,
        why="a process was killed for lack of memory",
    ),
    CausalRule(
        codes=HARDWARE,
        brings=("job.gpu_lost", "gpu.ecc_uncorrected", "job.illegal_access"),
        same=ANY,
        grave=True,
        before=True,
        why="the program met the fault of the hardware",
    ),
    CausalRule(
        codes=("xid.79", "gpu.fallen_off_bus", "gpu.lost", "driver.failed", "gpu.init_failed"),
        brings=(
            "kube.device_unhealthy",
            "kube.insufficient_gpu",
            "kube.accelerator_not_ready",
            "slurm.gres",
            "gpu.count",
            "job.gpu_lost",
        ),
        same=ANY,
        why="a GPU is gone",
    ),
    CausalRule(
        codes=("os.panic", "node.*", "os.*lockup*"),
        brings=("kube.node_not_ready", "kube.node_unreachable", "slurm.node_down", "slurm.node_failure"),
        same=ANY,
        grave=True,
        why="the node itself failed",
    ),
    CausalRule(
        codes=("job.disk_full",),
        brings=("job.storage_error", "job.checkpoint_unreadable"),
        same=ANY,
        why="what was written had no room",
    ),
    CausalRule(
        codes=("slurm.preempted", "slurm.time_limit", "slurm.node_failure", "slurm.node_down"),
        brings=("job.terminated", "job.killed", "job.peer_lost", "job.nccl_timeout", "job.rank_failed"),
        same=ANY,
        why="the cluster ended the job",
    ),
    CausalRule(
        codes=("job.*", "os.oom_kill"),
        brings=("slurm.cancelled",),
        same=ANY,
        before=True,
        why="srun ends the other tasks when one has failed",
    ),
    CausalRule(codes=("slurm.cancelled",), brings=("job.terminated",), same=ANY, why="the cluster ended the job"),
    CausalRule(
        codes=("kube.node_not_ready", "kube.node_unreachable", "slurm.node_failure", "slurm.node_down"),
        brings=("job.nccl_timeout", "job.network_unreachable", "job.rendezvous_timeout", "job.killed"),
        same=ANY,
        why="a node of the job was gone",
    ),
)


def fits(code: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(code, pattern) for pattern in patterns)
