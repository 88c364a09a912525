"""A small cluster kind of another package: nodes are entries of one file, jobs are real scripts.

Its own controller (`TinyController`, as slurmctld is Slurm's) chooses nodes, runs the scripts, ends them and runs them
again when it is asked to (RERUN), and leaves them alone after a stop that is not final (HOLDS). The adapter only reads
and writes the file.
"""

import fcntl
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sickbay.model.errors import Gone, Rejected
from sickbay.model.facts import JobSeen, NodeSeen
from sickbay.model.fleet import Capability, DrainHow, Incarnation, JobId, NodeId
from sickbay.model.job import End, EndReason, JobSpec, RankState
from sickbay.model.noun import Noun
from sickbay.ports.cluster import Accepted, Deltas, Log, Lost, Snapshot
from sickbay.wire.files import replace_file
from sickbay.wiring import ClusterGround, ClusterKind, WiredCluster

PERIOD = 0.3  # seconds between two reads
METADATA = "Metadata-Version: 2.1\nName: tiny-kind\nVersion: 1.0\n"
ENTRY_POINTS = f"[sickbay.clusters]\ntiny = {__name__}:KIND\n"


class TinySettings(Noun, forbid_unknown_fields=True):
    room: str  # the directory with the file


class TinyFile:
    """What there is: {"nodes": {name: …}, "jobs": {id: …}, "keys": […]}, one writer at a time."""

    def __init__(self, room: Path) -> None:
        self.room = room
        self._file = room / "cluster.json"

    def read(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._file.read_bytes())
        return found

    @contextmanager
    def change(self) -> Iterator[dict[str, Any]]:
        """Nothing is written if the block raises."""
        with (self.room / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            state = self.read() if self._file.exists() else {"nodes": {}, "jobs": {}, "keys": []}
            yield state
            replace_file(self._file, json.dumps(state).encode(), durable=False)

    def add_node(self, name: str, instance_id: str, boot_id: str) -> None:
        with self.change() as state:
            state["nodes"][name] = {"instance_id": instance_id, "boot_id": boot_id, "cordons": []}

    def submit(self, job: str, script: list[str]) -> None:
        """As its users do, with its own tools."""
        with self.change() as state:
            state["jobs"][job] = {
                "script": script, "state": "pending", "attempt": 0, "node": "", "avoid": [], "exit": 0, "at": 0.0,
            }  # fmt: skip


class TinyController:
    """The cluster's own controller: a loop over the file, and a process for each job that runs."""

    def __init__(self, room: Path, cluster: str) -> None:
        self._file = TinyFile(room)
        self._cluster = cluster
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"tiny {cluster}")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join()
        for process in self._running.values():
            self._kill(process)

    def _run(self) -> None:
        while not self._ending.wait(0.05):
            with self._file.change() as state:
                for job, said in state["jobs"].items():
                    self._turn(state, job, said)

    def _turn(self, state: dict[str, Any], job: str, said: dict[str, Any]) -> None:
        process = self._running.get(job)
        if said["state"] == "stopping" and process is not None:
            self._kill(process)
        if process is not None and process.poll() is not None:
            held = "held" if said["state"] == "stopping" else "ended"
            said |= {"state": held, "exit": process.returncode, "at": time.time()}
            del self._running[job]
        if said["state"] == "pending" and (node := self._place(state, said)):
            said |= {"state": "running", "attempt": said["attempt"] + 1, "node": node, "exit": 0}
            self._running[job] = self._begin(job, said)

    def _place(self, state: dict[str, Any], said: dict[str, Any]) -> str:
        busy = {one["node"] for one in state["jobs"].values() if one["state"] in {"running", "stopping"}}
        nodes = state["nodes"].items()
        free = (n for n, node in nodes if not node["cordons"] and n not in {*busy, *said["avoid"]})
        return next(free, "")

    def _begin(self, job: str, said: dict[str, Any]) -> "subprocess.Popen[bytes]":
        base = self._file.room / said["node"]
        own = {"SICKBAY_RANKS": str(base / "run"), "SICKBAY_JOB_ID": job, "SICKBAY_ATTEMPT": str(said["attempt"])}
        env = {name: value for name, value in os.environ.items() if not name.startswith("SICKBAY_")} | own
        with (base / f"{job}.out").open("ab") as out:
            return subprocess.Popen(said["script"], env=env, stdout=out, stderr=out, start_new_session=True)

    def _kill(self, process: "subprocess.Popen[bytes]") -> None:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(20)


class TinyCluster:
    """The adapter. It has no memory: every read is a list of all there is."""

    def __init__(self, cluster: str, room: Path, pool: str) -> None:
        self._id = cluster
        self._file = TinyFile(room)
        self._pool = pool

    id = property(lambda self: self._id)
    period = property(lambda _: PERIOD)
    capabilities = property(lambda _: frozenset({Capability.RERUN, Capability.HOLDS, Capability.CHECK_CORDONED}))
    blind = property(lambda _: frozenset[str]())

    def watch(self, cursor: str | None) -> Deltas | Lost:
        del cursor
        return Lost()

    def snapshot(self) -> Snapshot:
        now, state = time.time(), self._file.read()
        nodes = tuple(
            NodeSeen(
                node=self._named(name), cluster=self._id, pool=self._pool, as_of=now, cordons=tuple(node["cordons"]),
                incarnation=Incarnation(uid=name, instance_id=node["instance_id"], boot_id=node["boot_id"]),
            )
            for name, node in state["nodes"].items()
        )  # fmt: skip
        jobs = tuple(self._job(job, said, now) for job, said in state["jobs"].items() if said["attempt"])
        return Snapshot(cursor=str(now), as_of=now, nodes=nodes, jobs=jobs)

    def _named(self, name: str) -> NodeId:
        return NodeId(f"{self._id}/{name}")

    def _job(self, job: str, said: dict[str, Any], now: float) -> JobSeen:
        runs = said["state"] in {"running", "stopping"}
        end = None
        if not runs:
            reason = EndReason.FAILED if said["exit"] else EndReason.COMPLETED
            end = End(reason=reason, at=datetime.fromtimestamp(said["at"], UTC))
        return JobSeen(
            job=JobId(job), attempt=said["attempt"], as_of=now, native=True, end=end, cluster=self._id,
            ranks={self._named(said["node"]): RankState.RUNNING if runs else RankState.GONE},
            spec=JobSpec(name=job, cluster=self._id, pool=self._pool),
        )  # fmt: skip

    def wrong(self, spec: JobSpec) -> str:
        del spec
        return "jobs of this cluster are submitted with its own tools"

    # --- what changes: once for each key
    @contextmanager
    def _once(self, key: str) -> Iterator[dict[str, Any] | None]:
        with self._file.change() as state:
            if key in state["keys"]:
                yield None
            else:
                yield state
                state["keys"].append(key)

    def cordon(self, node: NodeId, *, owner: str, reason: str, key: str, expect: Incarnation | None) -> Accepted:
        del reason, expect
        with self._once(key) as state:
            cordons = state["nodes"][node.partition("/")[2]]["cordons"] if state is not None else [owner]
            if owner not in cordons:
                cordons.append(owner)
        return Accepted(visible_from=time.time())

    def uncordon(self, node: NodeId, *, owner: str, key: str, expect: Incarnation | None) -> Accepted:
        del expect
        with self._once(key) as state:
            cordons = state["nodes"][node.partition("/")[2]]["cordons"] if state is not None else []
            if owner in cordons:
                cordons.remove(owner)
        return Accepted(visible_from=time.time())

    def drain(self, node: NodeId, *, how: DrainHow, key: str, expect: Incarnation | None) -> Accepted:
        del node, how, key, expect
        return Accepted(visible_from=time.time())

    def start(
        self,
        job: JobId,
        attempt: int,
        *,
        spec: JobSpec,
        nodes: Mapping[NodeId, tuple[int, ...]],
        avoid: tuple[NodeId, ...],
        key: str,
    ) -> Accepted:
        raise Rejected(f"{job}: {self.wrong(spec)} ({attempt}, {key}, {len(nodes)}, {len(avoid)})")

    def rerun(self, job: JobId, attempt: int, *, avoid: tuple[NodeId, ...], key: str) -> Accepted:
        with self._once(key) as state:
            if state is not None:
                said = self._of(state, job)
                if said["attempt"] != attempt or said["state"] in {"running", "stopping"}:
                    raise Rejected(f"{job} is at attempt {said['attempt']}, which {said['state']}")
                said |= {"state": "pending", "avoid": [node.partition("/")[2] for node in avoid]}
        return Accepted(visible_from=time.time())

    def stop(self, job: JobId, attempt: int, *, final: bool, key: str) -> Accepted:
        del final  # what was stopped waits for `rerun`, and nobody asks for that after a final one
        with self._once(key) as state:
            if state is not None:
                said = self._of(state, job)
                if said["attempt"] != attempt or said["state"] not in {"running", "stopping"}:
                    raise Gone(f"{job} has no attempt {attempt} that runs")
                said["state"] = "stopping"
        return Accepted(visible_from=time.time())

    def _of(self, state: dict[str, Any], job: JobId) -> dict[str, Any]:
        if job not in state["jobs"]:
            raise Gone(f"there is no job {job}")
        found: dict[str, Any] = state["jobs"][job]
        return found

    def logs(self, job: JobId, attempt: int, rank: int, *, after: str = "", last: int = 0, limit: int = 65_536) -> Log:
        raise Gone(f"nothing is kept of rank {rank} of {job}.{attempt} ({after}, {last}, {limit})")


def build(ground: ClusterGround) -> WiredCluster:
    pause = threading.Event()
    cluster = TinyCluster(ground.id, Path(ground.settings.room), ground.pool)
    return WiredCluster(cluster=cluster, machines={}, wait=pause.wait)


KIND = ClusterKind(TinySettings, build)


def install(site: Path) -> None:
    """As pip would: a distribution with an entry point, in a directory that a controller has in its path."""
    package = site / "tiny_kind-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text(METADATA)
    (package / "entry_points.txt").write_text(ENTRY_POINTS)
