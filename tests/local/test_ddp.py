"""A real DDP job on four ranks through every fault: each step that it makes is, bit by bit, that of an undisturbed run.

What is compared is what the ranks wrote down at each step (tests/support/ddp_training.py): the loss, a digest of all
parameters and moments, and the samples. Needs torch, which is no requirement: it is skipped where there is none.

    python -m venv torchenv && torchenv/bin/pip install -e . torch pytest httpx psutil
    torchenv/bin/python -m pytest tests/local/test_ddp.py
"""

import os
import signal
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from tests.support.up_rig import QUICK, Sickbay, running

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed: no DDP job was put through faults"),
]

SCRIPT = Path(__file__).parents[1] / "support" / "ddp_training.py"
STEPS = 1000
GROWING = f"{QUICK}resume:\n  grow_after: 1s\n"
PATIENT = 180.0  # seconds for a gang of four that imports torch


class Step(NamedTuple):
    loss: str
    digest: str
    samples: str


class Diary:
    """What the ranks of some jobs saw at each step."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.seen, self.pace = directory, directory / "seen", directory / "pace"
        self.checkpoint = directory / "checkpoints"
        self.seen.mkdir(parents=True)
        self.walk(0)

    def walk(self, seconds: float) -> None:
        other = self.pace.with_suffix(".new")
        other.write_text(str(seconds))
        other.replace(self.pace)

    def command(self, steps: int = STEPS) -> list[str]:
        return [sys.executable, str(SCRIPT), "--steps", str(steps), "--seen", str(self.seen), "--pace", str(self.pace)]

    def attempts(self) -> list[dict[int, dict[int, Step]]]:
        """Of each attempt what each rank saw at each step. A step that is told twice by one rank was told the same."""
        found: dict[str, dict[int, dict[int, Step]]] = {}
        for path in sorted(self.seen.iterdir()):
            attempt, _, rank = path.name.rpartition(".")
            for line in path.read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    step, *rest = line.split()
                    found.setdefault(attempt, {}).setdefault(int(step), {})[int(rank)] = Step(*rest)
        return list(found.values())


def submit(rig: Sickbay, diary: Diary, **more: Any) -> str:
    how: dict[str, Any] = {"nodes": 4, "stall_after": 10.0, "max_restarts": 20, "checkpoint": str(diary.checkpoint)}
    return rig.submit(*diary.command(), name="ddp", **{**how, **more})


def undisturbed(rig: Sickbay, tmp_path: Path, **more: Any) -> dict[int, dict[int, Step]]:
    diary = Diary(tmp_path / "undisturbed")
    done = rig.ends(submit(rig, diary, **more), seconds=PATIENT)
    assert (done["attempt"], done["interruptions"]) == (1, [])
    (only,) = diary.attempts()
    assert sorted(only) == list(range(1, STEPS + 1))
    assert len({step.digest for ranks in only.values() for step in ranks.values()}) == STEPS, "the ranks agree"
    return only


def same(diary: Diary, whole: dict[int, dict[int, Step]], attempts: int) -> None:
    """Every step of every attempt is that of the undisturbed run, on every rank; and none is missing."""
    told = diary.attempts()
    assert len(told) >= attempts
    for attempt in told:
        for step, ranks in attempt.items():
            for rank, seen in ranks.items():
                assert seen == whole[step][rank], f"step {step} of rank {rank} is another"
    assert {step for attempt in told for step, ranks in attempt.items() if len(ranks) == 4} == set(whole)
    assert [attempt[STEPS] for attempt in told if STEPS in attempt] == [whole[STEPS]], "it ends once"


def trains(rig: Sickbay, job: str, attempt: int = 1, beyond: int = 0) -> dict[str, Any]:
    """It trains in this attempt, a few steps after the one it went on from."""

    def does() -> dict[str, Any] | None:
        now = rig.job(job)
        if now["attempt"] < attempt or now["state"] != "RUNNING" or now["step"] is None:
            return None
        begin = max(beyond, now["resumed_from"] or 0)
        return now if attempt == 1 or (now["resumed_from"] is not None and now["step"] > begin + 3) else None

    if attempt == 1:
        rig.reaches(job, beyond + 15, PATIENT)
    found: dict[str, Any] = rig.until(does, PATIENT, f"{job} trains in attempt {attempt}")
    assert found["attempt"] == attempt, rig.story(job)
    return found


def well(rig: Sickbay) -> None:
    rig.until(lambda: all(n["state"] == "READY" for n in rig.nodes()), PATIENT, "all nodes are well")


def rank_of(rig: Sickbay, job: str, node: str) -> int:
    (rank,) = rig.ranks(node, job)
    assert rank.pid is not None
    return rank.pid


@pytest.fixture
def growing(tmp_path: Path) -> Iterator[Sickbay]:
    yield from running(tmp_path / "state", nodes=4, policy=GROWING)


def test_a_job_of_four_ranks_ends_after_every_fault_with_the_same_bits(four: Sickbay, tmp_path: Path) -> None:
    whole = undisturbed(four, tmp_path)
    diary = Diary(tmp_path / "disturbed")
    diary.walk(0.3)
    job = submit(four, diary)
    trains(four, job)
    behind = [four.submit("sleep", "1", name=f"q{n}", nodes=1) for n in range(2)]
    nodes = sorted(node["id"] for node in four.nodes())

    its_hardware_breaks(four, job, nodes)
    its_processes_break(four, job, nodes)
    ours_are_killed(four, job, nodes)
    assert waiting(four, behind), "it keeps its place"
    its_node_is_drained(four, job, nodes[0], behind)

    four.post(f"/v1/jobs/{job}/stop", reason="lunch")
    four.ends(job, "STOPPED", PATIENT)
    for one in behind:
        four.ends(one)
    second = four.post(f"/v1/jobs/{job}/restart", reason="after lunch")["id"]
    goes_on(four, second, job)
    four.post(f"/v1/jobs/{second}/stop", reason="supper")
    four.ends(second, "STOPPED", PATIENT)
    third = submit(four, diary)
    goes_on(four, third, second)

    diary.walk(0)
    four.ends(third, seconds=PATIENT)
    same(diary, whole, attempts=9)


def its_hardware_breaks(rig: Sickbay, job: str, nodes: list[str]) -> None:
    for attempt, (node, xid, rung) in enumerate(((nodes[0], 79, "reboot"), (nodes[1], 48, "reset_gpu")), 2):
        rig.inject(node, xid=xid, cured_by=rung.removesuffix("_gpu"))
        now = trains(rig, job, attempt)
        well(rig)
        assert [one["rung"] for one in rig.incidents(node)[-1]["tries"]] == [rung]
        assert now["restarts"] == 0, "what a node did to it is not its own"


def its_processes_break(rig: Sickbay, job: str, nodes: list[str]) -> None:
    rig.signal(rank_of(rig, job, nodes[2]), signal.SIGKILL)
    trains(rig, job, 4)
    rig.signal(rank_of(rig, job, nodes[3]), signal.SIGSTOP)
    now = trains(rig, job, 5)
    assert now["restarts"] == 2
    assert now["interruptions"][-1]["cause"].startswith("hung: ")


def ours_are_killed(rig: Sickbay, job: str, nodes: list[str]) -> None:
    """A node's supervisor with all that it runs; then, of which the job sees nothing, the controller and an agent."""
    status = rig.status(nodes[2])
    assert status is not None
    os.killpg(os.getpgid(status.pid), signal.SIGKILL)
    trains(rig, job, 6)
    well(rig)
    rig.kill()
    rig.up()
    step = trains(rig, job, 6)["step"]
    before = rig.status(nodes[3])
    assert before is not None
    rig.signal(before.agent_pid, signal.SIGKILL)

    def another() -> bool:
        now = rig.status(nodes[3])
        return now is not None and now.agent_pid not in {0, before.agent_pid}

    rig.until(another, PATIENT, "the agent is restarted")
    well(rig)
    assert trains(rig, job, 6, beyond=step + 5)["restarts"] == 2


def its_node_is_drained(rig: Sickbay, job: str, node: str, behind: list[str]) -> None:
    step, seat = rig.job(job)["step"], node.rpartition("/")[2]
    rig.post(f"/v1/nodes/-/{seat}/drain", reason="a fan is loud")
    rig.until(lambda: rig.job(job)["state"] == "QUEUED", PATIENT, "it leaves the node")
    assert waiting(rig, behind), "its nodes are kept for it"
    rig.until(lambda: rig.node(node)["state"] == "HELD", PATIENT, "the node is drained")
    rig.post(f"/v1/nodes/-/{seat}/uncordon", reason="the fan is new")
    now = trains(rig, job, 7)
    assert now["resumed_from"] >= step, "a planned stop loses nothing"
    assert now["restarts"] == 2
    assert waiting(rig, behind)


def goes_on(rig: Sickbay, job: str, before: str) -> None:
    step = rig.job(before)["step"]
    now = trains(rig, job, beyond=step)
    assert (now["continues"], now["resumed_of"], now["resumed_from"] >= step) == (before, before, True)


def waiting(rig: Sickbay, jobs: list[str]) -> bool:
    return all(rig.job(job)["state"] == "QUEUED" for job in jobs)


def test_a_job_that_shrinks_and_grows_back_sees_every_sample_once(growing: Sickbay, tmp_path: Path) -> None:
    """Three ranks add up in another order than four: the steps and the samples of each are the same, not the bits."""
    whole = undisturbed(growing, tmp_path)
    diary = Diary(tmp_path / "disturbed")
    diary.walk(0.3)
    job = submit(growing, diary, min_nodes=3, grow=True)
    (node, *_) = trains(growing, job)["nodes"]
    seat = node.rpartition("/")[2]
    growing.post(f"/v1/nodes/-/{seat}/drain", reason="a fan is loud")
    now = trains(growing, job, 2)
    assert len(now["nodes"]) == 3
    growing.until(lambda: growing.node(node)["state"] == "HELD", PATIENT, "the node is drained")
    growing.post(f"/v1/nodes/-/{seat}/uncordon", reason="the fan is new")
    now = trains(growing, job, 3)
    assert (len(now["nodes"]), now["restarts"]) == (4, 0)
    diary.walk(0)
    growing.ends(job, seconds=PATIENT)

    told = diary.attempts()  # of one job, with less than ten attempts: in their order
    assert [{len(ranks) for ranks in attempt.values()} for attempt in told] == [{4}, {3}, {4}]
    for attempt in told:
        for step, ranks in attempt.items():
            assert samples(ranks) == samples(whole[step])
            assert len({seen.digest for seen in ranks.values()}) == 1, "the ranks agree"
            if attempt is told[0]:
                assert ranks == whole[step]
    assert {step for attempt in told for step in attempt} == set(whole)


def samples(ranks: dict[int, Step]) -> list[str]:
    return sorted(number for seen in ranks.values() for number in seen.samples.split(","))


def workers(rig: Sickbay, job: str, node: str) -> list[psutil.Process]:
    """What torchrun has started."""
    below = psutil.Process(rank_of(rig, job, node)).children(recursive=True)
    return [process for process in below if str(SCRIPT) in process.cmdline()]


def test_torchrun_on_two_nodes_with_two_ranks_each_ends_with_the_same_bits(four: Sickbay, tmp_path: Path) -> None:
    launcher = tmp_path / "torchrun.sh"
    launcher.write_text(
        f'set -eu\nexec {sys.executable} -m torch.distributed.run --nnodes="$WORLD_SIZE" --nproc-per-node=2 '
        '--node-rank="$RANK" --max-restarts=0 --rdzv-id="$SICKBAY_JOB_ID-$SICKBAY_ATTEMPT" --rdzv-backend=c10d '
        '--rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT" --local-addr=127.0.0.1 "$@"\n'
    )

    def launched(diary: Diary) -> str:
        how: dict[str, Any] = {"checkpoint": str(diary.checkpoint), "stall_after": 10.0, "max_restarts": 20}
        return four.submit("sh", str(launcher), *diary.command()[1:], name="ddp", nodes=2, **how)

    calm = Diary(tmp_path / "undisturbed")
    done = four.ends(launched(calm), seconds=PATIENT)
    assert done["attempt"] == 1
    (whole,) = calm.attempts()

    diary = Diary(tmp_path / "disturbed")
    diary.walk(0.3)
    job = launched(diary)
    now = trains(four, job)
    four.signal(workers(four, job, now["nodes"][1])[0].pid, signal.SIGKILL)
    now = trains(four, job, 2)
    four.signal(workers(four, job, now["nodes"][0])[1].pid, signal.SIGSTOP)
    now = trains(four, job, 3)
    assert "hung" in now["interruptions"][-1]["cause"]
    four.inject(now["nodes"][1], xid=79, cured_by="reboot")
    now = trains(four, job, 4)
    step = now["step"]
    four.post(f"/v1/nodes/-/{now['nodes'][0].rpartition('/')[2]}/drain", reason="a fan is loud")
    now = trains(four, job, 5)
    assert now["resumed_from"] >= step
    four.post(f"/v1/jobs/{job}/stop", reason="lunch")
    four.ends(job, "STOPPED", PATIENT)
    second = four.post(f"/v1/jobs/{job}/restart", reason="after lunch")["id"]
    trains(four, second, beyond=now["step"])
    diary.walk(0)
    four.ends(second, seconds=PATIENT)
    same(diary, whole, attempts=6)
