"""Kubernetes and Slurm: the events, conditions and reasons that tell of sickness, and only those."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.thorough import examples

from sickbay.knowledge.load import load_tables
from sickbay.model.sign import Sign
from sickbay.signs.readers import words
from sickbay.signs.readers.kube_events import KubeEvents
from sickbay.signs.readers.stream import read_stream

DATES = "Thu, 08 Jul 2021 10:05:28 +0900   Wed, 07 Jul 2021 18:23:33 +0900"


def signs(text: str) -> list[Sign]:
    return list(read_stream(text.splitlines()))


def kinds(text: str) -> list[str]:
    return [f"{s.kind}.{s.fields['number']}" if s.kind in {"xid", "sxid"} else s.kind for s in signs(text)]


def conditions(*rows: str) -> str:
    head = "Conditions:\n  Type   Status  LastHeartbeatTime   LastTransitionTime   Reason   Message\n  ----  ----\n"
    return head + "\n".join(rows)


def row(kind: str, status: str, reason: str, message: str = "words") -> str:
    return f"  {kind}   {status}   {DATES}   {reason}   {message}"


EVENTS = """\
NAMESPACE   LAST SEEN   TYPE      REASON             OBJECT          MESSAGE
default     2m          Normal    Scheduled          pod/train-0     Successfully assigned default/train-0 to gpu-1
default     2m          Warning   {}   pod/train-1     {}
default     2m          Normal    Pulled             pod/train-0     Container image already present on machine
"""


@pytest.mark.parametrize(
    ("reason", "message", "code"),
    [
        (
            "FailedScheduling",
            "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) had taint.",
            "kube.insufficient_gpu",
        ),
        ("FailedScheduling", "0/2 nodes are available: 2 node(s) had untolerated taint.", "kube.unschedulable"),
        ("FailedMount", 'MountVolume.SetUp failed for volume "data"', "kube.failed_mount"),
        ("BackOff", "Back-off restarting failed container", "kube.back_off"),
        ("BackOff", 'Back-off pulling image "example/train:1"', "kube.image_pull"),
        ("Failed", 'Failed to pull image "example/train:1": not found', "kube.image_pull"),
        ("Evicted", "The node was low on resource: memory.", "kube.evicted"),
        ("UnexpectedAdmissionError", "Allocate failed due to no healthy devices present", "kube.device_unhealthy"),
        ("OOMKilling", "Memory cgroup out of memory: Killed process 123 (python)", "os.oom_kill"),
        ("Rebooted", "Node gpu-1 has been rebooted, boot id: 1", "kube.node_rebooted"),
    ],
)
def test_a_warning_event_is_named(reason: str, message: str, code: str) -> None:
    found = signs(EVENTS.format(reason, message))
    assert [sign.kind for sign in found] == [code]
    assert found[0].line == 3


def test_normal_events_give_nothing_but_a_node_that_is_not_ready() -> None:
    text = "LAST SEEN   TYPE     REASON         OBJECT       MESSAGE\n5m   Normal   {}   node/gpu-1   Node gpu-1 status"
    assert kinds(text.format("NodeNotReady")) == ["kube.node_not_ready"]
    assert kinds(text.format("NodeReady")) == []
    assert kinds(text.format("NodeHasSufficientMemory")) == []


def test_the_events_of_a_description_carry_their_count() -> None:
    text = (
        "Events:\n  Type     Reason       Age     From     Message\n  ----     ------       ----   ----     -------\n"
        "  Normal   Scheduled    73s               default  Successfully assigned\n"
        '  Warning  FailedMount  9s (x8 over 73s)  kubelet  MountVolume.SetUp failed for volume "data"\n'
    )
    assert [(sign.kind, sign.count, sign.line) for sign in signs(text)] == [("kube.failed_mount", 8, 5)]


def test_an_event_pasted_alone_is_known() -> None:
    line = "Warning FailedScheduling  40s (x2 over 40s)  default-scheduler  0/2 nodes: 1 Insufficient nvidia.com/gpu."
    assert kinds(line) == ["kube.insufficient_gpu"]


@pytest.mark.parametrize(
    ("condition", "code"),
    [
        (row("AcceleratedHardwareReady", "False", "NvidiaXID79Error"), "xid.79"),
        (row("AcceleratedHardwareReady", "False", "NvidiaDoubleBitError"), "gpu.ecc_uncorrected"),
        (row("AcceleratedHardwareReady", "False", "SomethingNew"), "kube.accelerator_not_ready"),
        (row("KernelReady", "False", "ForkFailedOutOfPID"), "kube.kernel_not_ready"),
        (row("Ready", "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status."), "kube.node_unreachable"),
        (row("Ready", "False", "KubeletNotReady", "container runtime is down"), "kube.node_not_ready"),
        (row("DiskPressure", "True", "KubeletHasDiskPressure"), "kube.disk_pressure"),
        (row("KernelDeadlock", "True", "DockerHung"), "kube.kernel_deadlock"),
        (
            row(
                "SysLogsXIDError",
                "True",
                "SysLogsXIDErrorIsNotHealthy",
                "ErrorCode:79 GPU:3 PCI:0000:b9:00 Recommended",
            ),
            "xid.79",
        ),
        (row("GpuMemWatch", "True", "GpuMemWatchIsNotHealthy"), "dcgm.memory_failed"),
        (row("MyOwnProblem", "True", "Broken"), "kube.node_condition"),
    ],
)
def test_a_bad_condition_is_named(condition: str, code: str) -> None:
    assert kinds(conditions(condition)) == [code]


@pytest.mark.parametrize(
    "condition",
    [
        row("AcceleratedHardwareReady", "True", "AcceleratedHardwareIsReady"),
        row("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
        row("MemoryPressure", "False", "KubeletHasSufficientMemory"),
        row("XIDError", "False", "XIDErrorIsNotPresent", "XID error status is good"),
        row("KernelDeadlock", "False", "KernelHasNoDeadlock"),
        "  Initialized   False ",
        "  PodScheduled   True ",
    ],
)
def test_a_good_condition_gives_nothing(condition: str) -> None:
    assert kinds(conditions(condition)) == []


def test_the_gpu_of_a_condition_is_kept() -> None:
    text = conditions(row("SysLogsXIDError", "True", "Bad", "ErrorCode:79 GPU:3 PCI:0000:B9:00 Recommended"))
    assert (signs(text)[0].fields["pci"], signs(text)[0].fields["device"]) == ("0000:b9:00", 3)


def test_taints_of_a_silent_node_are_heard() -> None:
    text = (
        "Taints:             node.kubernetes.io/unreachable:NoExecute\n                    nvidia.com/gpu:NoSchedule\n"
    )
    assert kinds(text) == ["kube.node_unreachable"]
    assert kinds("Taints:             <none>\nUnschedulable:      false") == []


@pytest.mark.parametrize(
    ("reason", "code", "kind"),
    [("OOMKilled", 137, "os.oom_kill"), ("Error", 137, "kube.container_killed"), ("Error", 1, "kube.container_failed")],
)
def test_how_a_container_ended(reason: str, code: int, kind: str) -> None:
    text = f"    Last State:     Terminated\n      Reason:       {reason}\n      Exit Code:    {code}\n"
    assert kinds(text) == [kind]
    assert kinds(text.replace(reason, "Completed").replace(f"    {code}\n", "    0\n")) == []


NODE = {
    "apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-1"},
    "spec": {"taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]},
    "status": {
        "conditions": [
            {"type": "MemoryPressure", "status": "False", "reason": "KubeletHasSufficientMemory", "message": "ok"},
            {"type": "AcceleratedHardwareReady", "status": "False", "reason": "NvidiaXID48Error", "message": "bad"},
        ]
    },
}  # fmt: skip
EVENT = {
    "apiVersion": "v1", "kind": "Event", "type": "Warning", "reason": "FailedMount", "count": 3, "message": "no",
    "involvedObject": {"kind": "Pod", "name": "a"},
}  # fmt: skip


@pytest.mark.parametrize("indent", [None, 2])
def test_objects_as_json_are_read(indent: int | None) -> None:
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": [NODE, EVENT]}, indent=indent)
    assert kinds(f"$ kubectl get -o json\n{text}\n") == ["xid.48", "kube.node_not_ready", "kube.failed_mount"]


def test_objects_as_yaml_are_read() -> None:
    text = """\
apiVersion: v1
items:
- apiVersion: v1
  count: 3
  involvedObject:
    kind: Pod
    name: a
  kind: Event
  message: 0/2 nodes are available
  reason: FailedMount
  type: Warning
- apiVersion: v1
  kind: Node
  status:
    conditions:
    - lastHeartbeatTime: "2024-01-01T00:00:00Z"
      message: Xid 79
      reason: NvidiaXID79Error
      status: "False"
      type: AcceleratedHardwareReady
    - message: ok
      reason: KubeletReady
      status: "True"
      type: Ready
kind: List
"""
    assert kinds(text) == ["kube.failed_mount", "xid.79"]
    assert signs(text)[0].count == 3


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (
            "slurmstepd: error: Detected 1 oom_kill event in StepId=113.0. Some tasks have been OOM Killed.",
            "os.oom_kill",
        ),
        ("slurmstepd: error: Detected 2 oom-kill event(s) in step 375.batch cgroup.", "os.oom_kill"),
        ("srun: error: gpu-1: task 0: Out Of Memory", "os.oom_kill"),
        (
            "slurmstepd: error: *** JOB 1 ON gpu-1 CANCELLED AT 2024-01-01T00:00:00 DUE TO TIME LIMIT ***",
            "slurm.time_limit",
        ),
        (
            "slurmstepd: error: *** STEP 1.0 ON gpu-1 CANCELLED AT 2024-01-01T00:00:00 DUE TO NODE FAILURE ***",
            "slurm.node_failure",
        ),
        (
            "slurmstepd-gpu-1: error: *** JOB 1 ON gpu-1 CANCELLED AT 2024-01-01T00:00:00 DUE TO PREEMPTION ***",
            "slurm.preempted",
        ),
        ("srun: error: Node failure on gpu-1", "slurm.node_failure"),
        ("[2024-01-01T00:00:00.123] error: Nodes gpu-[1-2] not responding, setting DOWN", "slurm.node_down"),
        ("[2024-01-01T00:00:00.123] error: gpu-1: gres/gpu count reported lower than configured (7 < 8)", "gpu.count"),
    ],
)
def test_a_line_of_slurm_is_named(line: str, code: str) -> None:
    assert kinds(line) == [code]


def test_reasons_of_drained_nodes_are_read() -> None:
    text = (
        "REASON               USER      TIMESTAMP           NODELIST\n"
        "Kill task failed     root      2022-11-07T10:10:10 gpu-1\n"
        "Xid 79 on GPU 3      root      2022-11-07T10:10:10 gpu-2\n"
        "waiting for parts    admin     2022-11-07T10:10:10 gpu-3\n"
    )
    assert kinds(text) == ["slurm.kill_task_failed", "xid.79", "slurm.node_drained"]
    shown = "NodeName=gpu-4 Arch=x86_64\n   State=DOWN+DRAIN\n   Reason=Not responding [slurm@2024-01-01T00:00:00]\n"
    assert kinds(shown) == ["slurm.not_responding"]


def test_a_device_plugin_that_gives_up_a_gpu_names_its_xid() -> None:
    line = "XidCriticalError: Xid=48 on Device=GPU-0a1b2c3d-0000-1111-2222-333344445555; marking device as unhealthy."
    assert kinds(line) == ["xid.48"]


def test_every_code_is_in_the_tables() -> None:
    tables = load_tables()
    known = {*tables.faults, "xid", "sxid", "", *(f"job.{rule.name}" for rule in tables.diagnosis)}
    kinds = ("event", "condition", "taint", "node state", "job state")
    codes = {row.code for kind in kinds for row in words.names(kind).values()}
    spoken = ("message", "hardware", "slurm line", "drain reason")
    codes |= {row.code for kind in spoken for row in words.wordings("cluster_words.csv", kind)}
    assert len(codes) > 30
    assert codes <= known, codes - known


PIECES = [
    "Events:",
    "Conditions:",
    "  Type  Status  LastHeartbeatTime",
    "apiVersion: v1",
    "- a: b",
    "  Warning  Evicted  5s",
    "Reason=x",
    "NodeName=y",
]


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.one_of(st.text(max_size=80), st.sampled_from(PIECES)), max_size=20))
def test_no_text_makes_it_raise(lines: list[str]) -> None:
    reader = KubeEvents()
    for number, line in enumerate(lines, start=1):
        assert all(sign.line <= number for sign in reader.read(number, line))
    list(reader.end())


KEYS = st.sampled_from(
    ["items", "kind", "status", "spec", "conditions", "taints", "type", "reason", "apiVersion", "state"]
)
LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=8)


@given(st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5)))
def test_no_value_makes_it_raise(value: object) -> None:
    list(KubeEvents().value(1, value))
