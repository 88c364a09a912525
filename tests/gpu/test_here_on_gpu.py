"""`sickbay up --here` with a real GPU: real Xids, a kernel that never ends, a real reset, and the speed of a job.

Run as root. Nothing here is simulated: the kernel's ring, NVML, the driver and the agent are the machine's own.
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tests.gpu.record import anonymous
from tests.support.up_rig import QUICK, Sickbay, running_rig

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parent.parent.parent
RECORD = "SICKBAY_RECORD"
RESETS = bool(os.environ.get("SICKBAY_GPU_TEST_RESET"))
STAGES = ("detected", "stopped", "diagnosed", "placed", "started", "first_step")
# No check before each start and none of a newcomer: what is timed is the way from the fault to the step.
POLICY = QUICK + "examine: []\n"
NOISE = 0.03  # the share by which two runs of the same loop differ on a quiet machine

# Steps of a small real kernel; in the first attempt one of them is another.
TRAINS = """
import sys, time
from sickbay import train
from tests.gpu.bad_kernels import KERNELS, Cuda

kind, steps = sys.argv[1], int(sys.argv[2])
checkpoints = train.Checkpoints()
first = 0 if checkpoints.resumed is None else checkpoints.resumed.step
cuda = Cuda()

def waits_for_the_gpu():
    cuda.call("cuCtxSynchronize")

for step in range(first + 1, steps + 1):
    cuda.launch(KERNELS[kind if step == 30 and first == 0 else "none"])
    waits_for_the_gpu()
    train.heartbeat(step)
    if step % 10 == 0 and first == 0 or step == steps:
        checkpoints.save(step, b"x")
    time.sleep(0.02)
checkpoints.wait()
"""
# The same loop with a heartbeat or without, whoever runs it; it prints the median of its steps.
PACED = """
import statistics, sys, time
from tests.gpu.bad_kernels import KERNELS, Cuda
from sickbay import train

cuda = Cuda()
times = []
for step in range(1, 2001):
    began = time.perf_counter()
    for _ in range(20):
        cuda.launch(KERNELS["none"])
    cuda.call("cuCtxSynchronize")
    times.append(time.perf_counter() - began)
    train.heartbeat(step)
print("median", statistics.median(times[500:]), flush=True)
"""


class RealMachine(Sickbay):
    def words(self) -> list[str]:
        return ["--here", "--policy", str(self._policy)]

    @property
    def name(self) -> str:
        return str(self.nodes()[0]["id"])

    def run(self, code: str, *words: str, **more: Any) -> str:
        env = {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
        return self.submit(sys.executable, "-c", code, *words, nodes=1, env=env, **more)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealMachine]:
    if os.geteuid() != 0:
        pytest.skip("only root reads the kernel's log and resets a GPU")
    yield from running_rig(RealMachine(tmp_path_factory.mktemp("here") / "state", nodes=1, policy=POLICY))


@pytest.fixture
def here(machine: RealMachine) -> RealMachine:
    machine.ready()
    if not machine.node(machine.name)["devices"]:
        pytest.skip("there is no GPU here")
    return machine


def seconds_by_stage(stages: dict[str, str | None]) -> dict[str, float]:
    """From the first symptom on."""
    at = {name: datetime.fromisoformat(moment) for name in STAGES if (moment := stages[name]) is not None}
    return {name: (moment - at["detected"]).total_seconds() for name, moment in at.items()}


def keep(name: str, found: dict[str, Any]) -> None:
    print(name, json.dumps(found))
    if directory := os.environ.get(RECORD):
        (Path(directory) / f"here-{name}.json").write_text(anonymous(json.dumps(found, indent=1)) + "\n")


@pytest.mark.parametrize("kind", ["misaligned", "illegal"])
def test_from_a_real_xid_to_the_first_new_step(here: RealMachine, kind: str) -> None:
    job = here.run(TRAINS, kind, "60")
    done = here.ends(job)
    assert done["attempt"] == 2
    assert done["resumed_from"] == 20
    (lost,) = done["interruptions"]
    keep(f"xid-{kind}", {"cause": lost["cause"], "seconds": seconds_by_stage(lost["stages"])})
    assert lost["stages"]["first_step"]


def test_a_kernel_that_never_ends_is_a_hang_with_the_stack_that_waits_for_it(here: RealMachine) -> None:
    job = here.run(TRAINS, "spin", "60", stall_after=5.0)
    done = here.ends(job)
    assert done["attempt"] == 2
    (lost,) = done["interruptions"]
    assert "hung" in lost["cause"]
    (stacks,) = here.state.glob(f"clusters/here/seats/*/instances/*/ranks/{job}.1.*/stacks.txt")
    assert "waits_for_the_gpu" in stacks.read_text()
    keep("spin", {"cause": lost["cause"], "seconds": seconds_by_stage(lost["stages"])})


@pytest.mark.skipif(not RESETS, reason="SICKBAY_GPU_TEST_RESET is not set")
def test_a_reset_waits_until_nobody_holds_the_gpu_and_is_proven_by_a_check(here: RealMachine) -> None:
    holds = [sys.executable, str(ROOT / "tests/gpu/bad_kernels.py"), "hold"]
    with subprocess.Popen(holds, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        here.post(f"/v1/nodes/{here.name}/reset", reason="a test")
        held = here.phase(here.name, "HELD", 120)
        assert f"pid {other.pid}" in held["because"]
        other.kill()
    here.post(f"/v1/nodes/{here.name}/reset", reason="nobody holds it now")
    released = here.phase(here.name, "RELEASED", 900)
    keep("reset", {"stages": [[stage["phase"], stage["seconds"]] for stage in released["stages"]]})


def test_a_jobs_own_speed_is_the_same_with_it_and_without(here: RealMachine) -> None:
    """In turns, so that a drift of the clocks falls on both."""
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
    bare: list[float] = []
    under: list[float] = []
    for _ in range(4):
        ran = subprocess.run([sys.executable, "-c", PACED], env=env, capture_output=True, text=True, check=True)
        bare.append(float(ran.stdout.split()[-1]))
        job = here.run(PACED)
        here.ends(job, seconds=300)
        text = here.get(f"/v1/jobs/{job}/logs", rank=0)["text"]
        under.append(float(text.split()[-1]))
    ratio = statistics.median(under) / statistics.median(bare)
    keep("speed", {"bare": bare, "under": under, "ratio": ratio})
    assert ratio < 1 + NOISE
