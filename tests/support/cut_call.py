"""One call of a local cluster's port, killed (-9) just before the n-th thing that it does to the world.

    python -m tests.support.cut_call ROOT N CALL KEY EXPECT NODE…

Python tells an audit hook of every file that is made, renamed or removed, of every process that is started or killed:
so the call is cut between any two of its effects without a word in the code about it.
"""

import os
import signal
import sys
from pathlib import Path

import msgspec

from sickbay.clusters.local.cluster import LocalCluster
from sickbay.clusters.local.machines import LocalMachines
from sickbay.clusters.local.rack import Rack
from sickbay.model.fleet import Incarnation, JobId, NodeId
from sickbay.model.job import JobSpec

EFFECTS = frozenset({"tempfile.mkstemp", "os.rename", "os.remove", "os.mkdir", "os.kill", "subprocess.Popen"})
JOB = JobId("cut")
SPEC = JobSpec(
    name="cut", cluster="local", pool="train", nodes=2, ranks_per_node=2, command=("sh", "-c", "exec sleep 1000")
)


def call(root: Path, what: str, nodes: list[NodeId], key: str, expect: Incarnation | None) -> None:
    number = int(key.rpartition("-")[2])
    match what:
        case "start":
            LocalCluster(root).start(JOB, number, spec=SPEC, nodes=dict.fromkeys(nodes, ()), avoid=(), key=key)
        case "stop":
            LocalCluster(root, grace=2.0).stop(JOB, number, final=False, key=key)
        case "reboot" | "replace" if expect is not None:
            getattr(LocalMachines(root), what)(nodes[0], key=key, expect=expect)
        case "fence":
            LocalMachines(root).fence(nodes[0], key=key, expect=None)
        case "power_on":
            Rack(root).power_on()
        case "down":
            Rack(root).down(within=2.0)
        case "create":
            Rack(root).create("local", number, 2, "train", boot_takes=0.05)


def main() -> None:
    root, count, what, key, expect = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5]
    nodes = [NodeId(node) for node in sys.argv[6:]]
    incarnation = msgspec.json.decode(expect, type=Incarnation | None)
    left = count

    def cut(event: str, _args: tuple[object, ...]) -> None:
        nonlocal left
        if event in EFFECTS:
            left -= 1
            if left == 0:
                signal.raise_signal(signal.SIGKILL)

    sys.addaudithook(cut)
    call(root, what, nodes, key, incarnation)
    os._exit(0)


if __name__ == "__main__":
    main()
