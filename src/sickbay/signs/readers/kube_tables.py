"""What Kubernetes and Slurm say about nodes and pods → codes of the fault tables.

Sources: events and conditions of kubelet, scheduler and node controller (kubernetes/kubernetes, pkg/kubelet/events,
pkg/controller/nodelifecycle), node-problem-detector's shipped configuration, the EKS node monitoring agent
(aws/eks-node-monitoring-agent, docs/node-health-issues.adoc), NVSentinel's conditions (health monitors),
NVIDIA/k8s-device-plugin (internal/rm/health.go), Slurm
(SchedMD/slurm: slurmctld, slurmd and slurmstepd messages).
"""

import re

# --- reasons of events. Of type Warning, except those of NORMAL, which the node controller calls normal.
NORMAL = frozenset(
    {"NodeNotReady", "NodeHasDiskPressure", "NodeHasInsufficientMemory", "NodeHasInsufficientPID", "Preempted"}
)
REASONS: dict[str, str] = {
    "NodeNotReady": "kube.node_not_ready",
    "NodeHasDiskPressure": "kube.disk_pressure",
    "NodeHasInsufficientMemory": "kube.memory_pressure",
    "NodeHasInsufficientPID": "kube.pid_pressure",
    "EvictionThresholdMet": "kube.disk_pressure",
    "FreeDiskSpaceFailed": "kube.disk_pressure",
    "ImageGCFailed": "kube.disk_pressure",
    "SystemOOM": "os.oom_kill",
    "OOMKilling": "os.oom_kill",
    "OOMKilled": "os.oom_kill",
    "TaskHung": "os.hung_task",
    "KernelOops": "os.kernel_oops",
    "UnregisterNetDevice": "kube.kernel_deadlock",
    "DockerHung": "kube.kernel_deadlock",
    "AUFSUmountHung": "kube.kernel_deadlock",
    "FilesystemIsReadOnly": "fs.read_only",
    "Ext4Error": "fs.corruption",
    "IOError": "disk.io_error",
    "MemoryReadError": "dram.uncorrected",
    "KubeletStart": "",
    "Rebooted": "kube.node_rebooted",
    "Evicted": "kube.evicted",
    "Preempted": "kube.preempted",
    "Preempting": "kube.preempted",
    "FailedScheduling": "kube.unschedulable",
    "Unschedulable": "kube.unschedulable",
    "BackoffLimitExceeded": "kube.container_failed",
    "PyTorchJobFailed": "kube.container_failed",
    "TFJobFailed": "kube.container_failed",
    "MPIJobFailed": "kube.container_failed",
    "RayJobFailed": "kube.container_failed",
    "JobFailed": "kube.container_failed",
    "UnexpectedAdmissionError": "kube.admission_failed",
    "Allocate": "kube.admission_failed",
    "OutOfnvidia.com/gpu": "kube.insufficient_gpu",
    "FailedMount": "kube.failed_mount",
    "FailedAttachVolume": "kube.failed_mount",
    "VolumeFailedDelete": "",
    "FailedCreatePodSandBox": "kube.sandbox_failed",
    "FailedPodSandBoxStatus": "kube.sandbox_failed",
    "NetworkNotReady": "kube.network_unavailable",
    "BackOff": "kube.back_off",
    "CrashLoopBackOff": "kube.back_off",
    "ErrImagePull": "kube.image_pull",
    "ImagePullBackOff": "kube.image_pull",
    "InspectFailed": "kube.image_pull",
    "Unhealthy": "kube.probe_failed",
    "ProbeWarning": "",
    "ContainerGCFailed": "kube.runtime_not_ready",
    "DeviceUnhealthy": "kube.device_unhealthy",
    "NVIDIADriverFailed": "driver.failed",
    "XIDError": "kube.accelerator_not_ready",
}
# --- what says more in the message than the reason does; looked at before the reason
MESSAGES: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(
            r"Insufficient (?:nvidia\.com/|amd\.com/gpu|aws\.amazon\.com/neuron|vpc\.amazonaws\.com/efa)", re.IGNORECASE
        ),
        "kube.insufficient_gpu",
    ),
    (re.compile(r"Back-off pulling image|Failed to pull image|ErrImagePull|ImagePullBackOff"), "kube.image_pull"),
    (re.compile(r"driver/library version mismatch", re.IGNORECASE), "driver.mismatch"),
    (
        re.compile(
            r"nvml error: driver not loaded|couldn't communicate with the NVIDIA driver"
            r"|nvidia-container-cli: initialization error: driver error"
        ),
        "driver.failed",
    ),
    (re.compile(r"nvidia-container-cli: .*unknown device|nvidia-container-cli: device error"), "kube.device_unhealthy"),
    (
        re.compile(r"no healthy devices present|healthy devices.*cannot allocate unhealthy devices", re.IGNORECASE),
        "kube.device_unhealthy",
    ),
)

# --- conditions of nodes: the status that is bad, and the code
CONDITIONS: dict[str, tuple[str, str]] = {
    "Ready": ("FalseUnknown", "kube.node_not_ready"),
    "MemoryPressure": ("True", "kube.memory_pressure"),
    "DiskPressure": ("True", "kube.disk_pressure"),
    "PIDPressure": ("True", "kube.pid_pressure"),
    "NetworkUnavailable": ("True", "kube.network_unavailable"),
    "OutOfDisk": ("True", "kube.disk_pressure"),
    # node-problem-detector
    "KernelDeadlock": ("True", "kube.kernel_deadlock"),
    "ReadonlyFilesystem": ("True", "fs.read_only"),
    "CorruptDockerOverlay2": ("True", "kube.runtime_not_ready"),
    "CorruptDockerOverlay2Image": ("True", "kube.runtime_not_ready"),
    "KubeletUnhealthy": ("True", "kube.node_not_ready"),
    "ContainerRuntimeUnhealthy": ("True", "kube.runtime_not_ready"),
    "ContainerRuntimeProblem": ("True", "kube.runtime_not_ready"),
    "KubeletProblem": ("True", "kube.node_not_ready"),
    "FrequentKubeletRestart": ("True", "kube.frequent_restart"),
    "FrequentDockerRestart": ("True", "kube.frequent_restart"),
    "FrequentContainerdRestart": ("True", "kube.frequent_restart"),
    "FrequentUnregisterNetDevice": ("True", "kube.kernel_deadlock"),
    "FilesystemCorruptionProblem": ("True", "fs.corruption"),
    "XfsShutdown": ("True", "fs.corruption"),
    # Azure's, for GPU nodes
    "XIDError": ("True", "kube.accelerator_not_ready"),
    "GPUMissing": ("True", "gpu.count"),
    "NVLinkStatusInactive": ("True", "nvlink.down"),
    "IBLinkFlapping": ("True", "ib.link_down"),
    "UnhealthyNvidiaDevicePlugin": ("True", "kube.device_unhealthy"),
    "UnhealthyNvidiaDCGMServices": ("True", "dcgm.unreachable"),
    # EKS
    "AcceleratedHardwareReady": ("False", "kube.accelerator_not_ready"),
    "KernelReady": ("False", "kube.kernel_not_ready"),
    "NetworkingReady": ("False", "kube.networking_not_ready"),
    "StorageReady": ("False", "kube.storage_not_ready"),
    "ContainerRuntimeReady": ("False", "kube.runtime_not_ready"),
    # NVSentinel
    "SysLogsXIDError": ("True", "kube.accelerator_not_ready"),
    "SysLogsSXIDError": ("True", "kube.accelerator_not_ready"),
    "SysLogsGPUFallenOff": ("True", "gpu.fallen_off_bus"),
    "GpuMemWatch": ("True", "dcgm.memory_failed"),
    "GpuNvlinkWatch": ("True", "nvlink.errors"),
    "GpuNvswitchFatalWatch": ("True", "dcgm.nvswitch_fatal"),
    "GpuPcieWatch": ("True", "dcgm.pcie_failed"),
    "GpuThermalWatch": ("True", "gpu.thermal_slowdown"),
    "GpuPowerWatch": ("True", "dcgm.power_limit"),
    "GpuInforomWatch": ("True", "gpu.inforom_corrupt"),
    "GpuDcgmConnectivityFailure": ("True", "dcgm.unreachable"),
}
# Any other condition is told by its name.
GOOD_NAME = re.compile(r"(?:Ready|Healthy|Available|Succeeded|OK)$")
BAD_NAME = re.compile(
    r"(?:Problem|Error|Errors|Failure|Failed|Unhealthy|Fault|Pressure|Deadlock|Corruption|Mismatch|Missing|Degraded|Watch)$"
)
# Conditions of pods and other objects: they say what is not done yet, not what is broken.
POD_CONDITIONS = frozenset(
    {
        "Initialized",
        "ContainersReady",
        "PodScheduled",
        "PodReadyToStartContainers",
        "DisruptionTarget",
        "Complete",
        "Progressing",
        "Available",
    }
)

# --- reasons that name a fault of the hardware itself (EKS, NVSentinel); {} is the number
HARDWARE: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"Nvidia\w*?SXID(?P<sxid>\d{1,5})(?:Error|Warning)?"), "sxid"),
    (re.compile(r"Nvidia\w*?XID(?P<xid>\d{1,3})(?:Error|Warning)?"), "xid"),
    (re.compile(r"NvidiaDoubleBitError"), "gpu.ecc_uncorrected"),
    (re.compile(r"NvidiaNVLinkError"), "nvlink.errors"),
    (re.compile(r"NvidiaDeviceCountMismatch|NvidiaDeviceMissing"), "gpu.count"),
    (re.compile(r"NvidiaPageRetirement"), "gpu.retire_pending"),
    (re.compile(r"NvidiaPowerError"), "dcgm.power_limit"),
    (re.compile(r"NvidiaThermalError"), "gpu.thermal_slowdown"),
    (re.compile(r"NvidiaPCIeError"), "dcgm.pcie_failed"),
    (re.compile(r"DCGMDiagnosticError|DCGMDiagnosticFailure"), "dcgm.diag_failed"),
    (re.compile(r"DCGMFieldError\w*|DCGMHealthCode\w*"), "dcgm.health_warning"),
    (re.compile(r"DCGMError|NvidiaDCGMError"), "dcgm.unreachable"),
    (re.compile(r"NeuronHBMUncorrectableError"), "neuron.hbm_uncorrected"),
    (re.compile(r"NeuronSRAMUncorrectableError"), "neuron.sram_uncorrected"),
    (re.compile(r"NeuronNCUncorrectableError"), "neuron.nc_uncorrected"),
    (re.compile(r"NeuronDMAError"), "neuron.dma_error"),
    (re.compile(r"EFAErrorMetric"), "kube.networking_not_ready"),
)
IN_WORDS = re.compile(
    r"\bXid(?: \(PCI:(?P<pci>[0-9a-fA-F:.]{7,16})\))?[:=]? ?(?P<xid>\d{1,3})\b|\bErrorCode:(?P<code>\d{1,3})\b",
    re.IGNORECASE,
)
GPU_IN_WORDS = re.compile(
    r"\bPCI:(?P<pci>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)|\bGPU:(?P<device>\d{1,3})\b|(?P<uuid>GPU-[0-9a-f]{8}-[0-9a-f-]{27})"
)

TAINTS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"node\.kubernetes\.io/unreachable"), "kube.node_unreachable"),
    (re.compile(r"node\.kubernetes\.io/not-ready"), "kube.node_not_ready"),
    (re.compile(r"node\.kubernetes\.io/memory-pressure"), "kube.memory_pressure"),
    (re.compile(r"node\.kubernetes\.io/disk-pressure"), "kube.disk_pressure"),
    (re.compile(r"node\.kubernetes\.io/pid-pressure"), "kube.pid_pressure"),
    (re.compile(r"node\.kubernetes\.io/network-unavailable"), "kube.network_unavailable"),
    (re.compile(r"sagemaker\.amazonaws\.com/node-health-status=Unschedulable"), "kube.node_condition"),
)

# --- Slurm. A line must begin with one of its programs, or be a row of its tools.
_AT = r"^(?:\[?[\dT:.\- ]{10,32}\]? ?)?(?:\S{1,64} )?"
_PROGRAM = (
    _AT + r"(?:slurmstepd(?:-\S{1,64})?|slurmctld|slurmd(?:-\S{1,64})?|srun|sbatch"
    r"|salloc)(?:\[\d{1,10}\])?: (?:error: |debug: |info: )?"
)
_LOG = r"^\[\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{3})?\] (?:\[[\w.+]{1,40}\] )?(?:error: )?"
# One of these is in each of the lines below; what they say stands in the line itself.
SLURM_ANCHORS = (
    "oom_kill event", "oom-kill event", ": out of memory", "memory limit", "cancelled ", "stepd terminated",
    "node failure on", "aborting, node", "on failed node", "missing from batch node", "due to failure of node",
    "not responding", "setting down", "to down", "set down", "is down", "slurmctld", "gres/gpu count", "prolog",
)  # fmt: skip
SLURM_LINES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(_PROGRAM + r"Detected \d{1,9} oom[_-]kill event"), "os.oom_kill"),
    (re.compile(_LOG + r"Detected \d{1,9} oom[_-]kill event"), "os.oom_kill"),
    (re.compile(_PROGRAM + r"(?P<node>[\w.\[\],-]{1,200}): tasks? [\d,-]{1,200}: Out Of Memory"), "os.oom_kill"),
    (re.compile(_PROGRAM + r"Exceeded (?:job|step) memory limit"), "os.oom_kill"),
    (
        re.compile(
            _PROGRAM + r"\*\*\* (?:JOB|STEP) \S{1,64} (?:ON (?P<node>\S{1,200}) )?CANCELLED .{0,60}DUE TO TIME LIMIT"
        ),
        "slurm.time_limit",
    ),
    (
        re.compile(
            _PROGRAM + r"\*\*\* (?:JOB|STEP) \S{1,64} (?:ON (?P<node>\S{1,200}) )?CANCELLED .{0,60}DUE TO NODE FAILURE"
        ),
        "slurm.node_failure",
    ),
    (
        re.compile(
            _PROGRAM + r"\*\*\* (?:JOB|STEP) \S{1,64} (?:ON (?P<node>\S{1,200}) )?CANCELLED .{0,60}"
            r"DUE TO (?:PREEMPTION|JOB REQUEUE)"
        ),
        "slurm.preempted",
    ),
    *(
        (
            re.compile(
                who + r"\*\*\* (?:JOB|STEP) \S{1,64} STEPD TERMINATED (?:ON (?P<node>\S{1,200}) )?AT .{0,60}"
                r"DUE TO JOB NOT ENDING WITH SIGNALS"
            ),
            "slurm.kill_task_failed",
        )
        for who in (_PROGRAM, _LOG)
    ),
    *(
        (
            re.compile(who + r"\*\*\* (?:JOB|STEP) \S{1,64} (?:ON (?P<node>\S{1,200}) )?CANCELLED AT "),
            "slurm.cancelled",
        )
        for who in (_PROGRAM, _LOG)
    ),
    (
        re.compile(
            _PROGRAM + r"(?:Node failure on (?P<node>[\w.-]{1,200})|Aborting, node .{1,200} (?:is )?down)",
            re.IGNORECASE,
        ),
        "slurm.node_failure",
    ),
    (
        re.compile(
            _LOG + r"(?:Killing \S{1,40} on failed node|Batch \S{1,64} missing from batch node"
            r"|requeue job .{1,80} due to failure of node) ?(?P<node>[\w.-]{1,200})?"
        ),
        "slurm.node_failure",
    ),
    (re.compile(_LOG + r"Nodes? (?P<node>[\w.\[\],-]{1,200}) not responding, setting DOWN"), "slurm.node_down"),
    (re.compile(_LOG + r"Nodes? (?P<node>[\w.\[\],-]{1,200}) (?:now )?not responding"), "slurm.not_responding"),
    (
        re.compile(
            _LOG + r"(?:Node|node) (?P<node>[\w.\[\],-]{1,200}) (?:.{0,80}\b)?(?:state (?:set|changed) to "
            r"|setting (?:state )?(?:to )?)DOWN"
        ),
        "slurm.node_down",
    ),
    (
        re.compile(_PROGRAM + r".{0,80}\bnode (?P<node>[\w.-]{1,200})\b.{0,120}\bDOWN\b", re.IGNORECASE),
        "slurm.node_down",
    ),
    (re.compile(r"^.{0,120}\bgres/gpu count reported lower than configured \(\d{1,4} < \d{1,4}\)"), "gpu.count"),
    (
        re.compile(
            _PROGRAM + r".{0,80}(?:Prolog|prolog) (?:failed|error|.{0,80}exit status)"
            r"|^.{0,60}error: (?:\[job \d{1,12}\] )?prolog failed"
        ),
        "slurm.prolog_failed",
    ),
)
SLURM_REASONS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"gres/gpu count|GRES|GPU count", re.IGNORECASE), "gpu.count"),
    (
        re.compile(r"Not responding|Node unexpectedly rebooted|boot(?:ed)? .*unexpected", re.IGNORECASE),
        "slurm.not_responding",
    ),
    (re.compile(r"Kill task failed", re.IGNORECASE), "slurm.kill_task_failed"),
    (re.compile(r"Prolog|Epilog", re.IGNORECASE), "slurm.prolog_failed"),
    (re.compile(r"Low (?:RealMemory|TmpDisk|socket|CPUs)", re.IGNORECASE), "slurm.low_resources"),
    (re.compile(r"fallen off the bus", re.IGNORECASE), "gpu.fallen_off_bus"),
    (re.compile(r"batch job complete failure|Duplicate jobid|launch failed", re.IGNORECASE), "slurm.kill_task_failed"),
)
