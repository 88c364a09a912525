"""One node of a local cluster for tests: a real supervisor on a directory of its own."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar
from uuid import uuid4

from msgspec.structs import replace
from tests.support.waiting import until

from sickbay.clusters.local import processes
from sickbay.clusters.local.devices import Hardware
from sickbay.clusters.local.files import (
    BOOT_MARK,
    AnyAsk,
    ClusterFile,
    LocalSeat,
    Paths,
    Rank,
    RankPlan,
    StartRanks,
    Status,
    StopRanks,
    read,
    wake,
    write,
)
from sickbay.model.fleet import JobId
from sickbay.model.job import RankState

PATIENCE = 20.0  # seconds: two busy cores are slow, a hang is for ever
AN_AGENT = "sh -c 'exec sleep 1000'"
SUPERVISOR = "sickbay.clusters.local.supervisor"

Thing = TypeVar("Thing")


def living(boot_id: str) -> dict[int, str]:
    return processes.find(marks=(f"{BOOT_MARK}={boot_id}",))


class LocalNode:
    """Leaves nothing behind, and says so: whatever outlives `down` fails the test."""

    def __init__(self, root: Path, *, gpus: int = 2, boot_takes: float = 0.02, agent: str = AN_AGENT) -> None:
        self.paths = Paths(root, "n1")
        self.seat = LocalSeat(name="n1", cluster="c", pool="p", gpus=gpus, instance_id="i1", boot_id=uuid4().hex)
        self.agent = agent
        self.boots: list[str] = []
        self.started: list[subprocess.Popen[bytes]] = []
        self._orders = 0
        write(root / "cluster.json", ClusterFile(id="c", seats=("n1",), boot_takes=boot_takes))
        write(self.paths.seat_file, self.seat)

    def __enter__(self) -> Self:
        if not self.started:
            self.power_on()
        until(lambda: self.status.ready)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.started:
            process.terminate()
            process.terminate()
        try:
            for process in self.started:
                process.wait(PATIENCE)
            left = {boot: found for boot in self.boots if (found := living(boot))}
        finally:
            for boot in self.boots:
                processes.kill(living(boot))
            for process in self.started:
                process.wait(PATIENCE)
        assert kind is not None or not left, f"processes were left behind: {left}"

    @property
    def boot_id(self) -> str:
        return self.seat.boot_id

    @property
    def supervisor(self) -> "subprocess.Popen[bytes]":
        return self.started[-1]

    @property
    def status(self) -> Status:
        return read(self.paths.status, Status) or Status(boot_id="", instance_id="", pid=0, mono=0.0)

    @property
    def kmsg(self) -> str:
        path = self.paths.kmsg(self.seat.instance_id, self.boot_id)
        return path.read_text() if path.exists() else ""

    @property
    def hardware(self) -> Hardware:
        return Hardware(self.paths, self.seat.instance_id)

    def power_on(self, boot_id: str = "", **environment: str) -> "subprocess.Popen[bytes]":
        boot_id = boot_id or self.boot_id
        self.boots.append(boot_id)
        command = [sys.executable, "-m", SUPERVISOR, "--root", str(self.paths.root), "--seat", "n1", "--boot", boot_id]
        with (self.paths.seat / "supervisor.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, BOOT_MARK: boot_id, "SICKBAY_AGENT_COMMAND": self.agent, **environment},
            )
        self.started.append(process)
        return process

    def children(self) -> list[int]:
        """Of the supervisor, its zombies included."""
        pid = self.supervisor.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def lose(self, *, group: bool = False) -> None:
        """kill -9."""
        (os.killpg if group else os.kill)(self.supervisor.pid, signal.SIGKILL)
        self.supervisor.wait(PATIENCE)

    def next_boot(self) -> None:
        self.seat = replace(self.seat, boot_id=uuid4().hex)
        write(self.paths.seat_file, self.seat)

    def log(self) -> str:
        return (self.paths.seat / "supervisor.log").read_text()

    def order(self, ask: AnyAsk, name: str = "") -> str:
        self._orders += 1
        name = name or f"{self._orders:06d}"
        write(self.paths.orders / f"{name}.json", ask)
        wake(self.paths.wake)
        return name

    def carried_out(self, name: str) -> bool:
        return not (self.paths.orders / f"{name}.json").exists()

    def obey(self, ask: AnyAsk, name: str = "") -> None:
        """Order it, and wait until it is done."""
        name = self.order(ask, name)
        until(lambda: self.carried_out(name))

    def next_beat(self) -> None:
        beat = self.status.mono
        until(lambda: self.status.mono > beat, within=5.0)

    def starting(self, *command: str, job: str = "j", ranks: int = 1, devices: int = 1, **more: object) -> StartRanks:
        """Ranks 0…n, `devices` each, in order."""
        plans = tuple(
            RankPlan(rank=i, local_rank=i, devices=tuple(range(i * devices, (i + 1) * devices))) for i in range(ranks)
        )
        order = StartRanks(
            boot_id=self.boot_id, job=JobId(job), attempt=1, node_rank=0, ranks=plans, command=command, env={}
        )
        return replace(order, **more)

    def run(self, *command: str, job: str = "j", ranks: int = 1, devices: int = 1, **more: object) -> None:
        self.order(self.starting(*command, job=job, ranks=ranks, devices=devices, **more))
        until(lambda: len(self.ranks(job)) == ranks)

    def sh(self, script: str, *, job: str = "j", ranks: int = 1, devices: int = 1, **more: object) -> None:
        self.run("sh", "-c", script, job=job, ranks=ranks, devices=devices, **more)

    def stop(self, job: str = "j", grace: float = 10.0) -> str:
        return self.order(StopRanks(boot_id=self.boot_id, job=JobId(job), attempt=1, grace=grace))

    def ranks(self, job: str = "j") -> list[Rank]:
        return sorted((rank for rank in self.status.ranks if rank.job == job), key=lambda rank: rank.rank)

    def rank(self, job: str = "j", rank: int = 0) -> Rank:
        return self.ranks(job)[rank]

    def gone(self, job: str = "j", rank: int = 0) -> Rank:
        """The rank, once it is gone."""
        until(lambda: self.rank(job, rank).state is RankState.GONE)
        return self.rank(job, rank)

    def run_dir(self, job: str = "j", rank: int = 0) -> Path:
        return self.paths.run(self.seat.instance_id, job, 1, rank)

    def output(self, job: str = "j", rank: int = 0) -> str:
        path = self.run_dir(job, rank) / "output"
        return path.read_text() if path.exists() else ""

    def says(self, word: str, job: str = "j", rank: int = 0) -> None:
        until(lambda: word in self.output(job, rank))
