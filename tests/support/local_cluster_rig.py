"""A local cluster of real processes, for the contract suite and for tests that break it."""

import errno
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from msgspec.structs import replace
from tests.support.agent_rig import TOKEN, FrontDoor
from tests.support.far_files import FileCalls, refused

from sickbay.adapters.checks.agents import AgentChecks
from sickbay.adapters.machines.agents import AgentMachines
from sickbay.adapters.machines.channels import Channels
from sickbay.clusters.local.attempts import GangRecord
from sickbay.clusters.local.cluster import LocalCluster
from sickbay.clusters.local.files import BOOT_MARK, LocalSeat, SeatPower, Status, read
from sickbay.clusters.local.machines import LocalMachines
from sickbay.clusters.local.processes import find, name_of
from sickbay.clusters.local.rack import Rack
from sickbay.clusters.local.ranks import RANK_MARK
from sickbay.clusters.local.ticks import Ticks
from sickbay.model.cordon import others_of
from sickbay.model.errors import Gone
from sickbay.model.facts import Fact
from sickbay.model.fleet import Capability, Incarnation, JobId, NodeId
from sickbay.model.job import JobSpec
from sickbay.model.protocol import Answered
from sickbay.ports.cluster import Accepted, Deltas
from sickbay.testing.cluster_rig import ClusterRig, Trouble, lacks

MUTATIONS = frozenset(
    {"cordon", "uncordon", "drain", "start", "rerun", "stop", "restart_service", "reboot", "replace", "fence"}
)
IDLE_AGENT = "sh -c 'exec sleep 1000' agent"  # the ports of this package need no agent
PATIENCE = 60.0  # seconds, for a condition: two busy cores are slow
PERSON = Path(__file__).with_name("person.py")
# An agent that sleeps through what is none of its business, as its start costs more than that of a node.
AGENT = 'if [ -e "$0/agents" ]; then exec "$1" -m sickbay.clusters.local.node "$2" "$3" "$4" "$5"; fi; exec sleep 1000'
# A rank that runs until it is stopped, or is told its exit code.
RANK = 'printf %s "$1"; told="$2/$SICKBAY_JOB_ID.$RANK"; mkfifo "$told"; read code < "$told"; exit "$code"'


class LocalWire:
    """The connection to an adapter: what its mutations do is counted, and can be cut."""

    def __init__(self, adapter: object, far: FileCalls) -> None:
        self._adapter = adapter
        self._far = far

    def __getattr__(self, name: str) -> Any:
        there = getattr(self._adapter, name)
        if name not in MUTATIONS:
            return there

        def call(*args: Any, **kwargs: Any) -> Accepted:
            with self._far.watched():
                answer: Accepted = there(*args, **kwargs)
            return answer

        return call


class Woken:
    """An adapter that works through agents: they are awake when it calls."""

    def __init__(self, adapter: object, wake: Callable[[], None]) -> None:
        self._adapter = adapter
        self._wake = wake

    def __getattr__(self, name: str) -> Any:
        if name in {"start", "look", "ask_to_save", "reset"}:
            self._wake()
        return getattr(self._adapter, name)


class NoChecks:
    """Checks are the agent's."""

    capabilities: frozenset[Capability] = frozenset()

    def start(self, check: str, nodes: object, *, level: int, profile: str, storage: tuple[str, ...] = ()) -> Accepted:
        raise NotImplementedError

    def look(self, look: str, nodes: tuple[NodeId, ...], *, stacks_of: JobId | None) -> Accepted:
        raise NotImplementedError


class LocalRig(ClusterRig):
    """`agents`: real agents, with a front door for them, where a command goes through one; else there are none."""

    limit = 10.0

    def __init__(self, root: Path, nodes: int = 4, gpus: int = 2, *, agents: bool = False) -> None:
        self.root = root
        self._patch = pytest.MonkeyPatch()
        command = ["sh", "-c", AGENT, str(root), sys.executable]
        self._patch.setenv("SICKBAY_AGENT_COMMAND", shlex.join(command) if agents else IDLE_AGENT)
        self.patience = PATIENCE
        self._own, self._cleaned = uuid4().hex[:6], 0
        self._ends = root / "ends"
        self._ends.mkdir(parents=True)
        self.far_calls = FileCalls()
        self.room = Rack(root)
        self.room.create("local", nodes, gpus, "train", boot_takes=0.05)
        self._names = self.room.names()  # seats are kept, and who asks may do so while the room cannot be read
        self.door = FrontDoor(report_every=5.0) if agents else None
        self.bare = LocalCluster(root, keep=24, grace=2.0, patience=0.3)
        self.power: Any = LocalMachines(root, patience=0.3)
        self.checks: Any = NoChecks()
        if self.door is not None:
            self._admit_agents(self.door)
        self.rewire()
        self.room.power_on()
        self.settle()

    def _admit_agents(self, door: FrontDoor) -> None:
        door.open()
        self.room.url(f"http://127.0.0.1:{door.port}")
        for name in self.room.names():
            self.room.token(name, TOKEN)
        through_agents: Any = Woken(AgentMachines(door.store, door.posted.set), self._wake_agents)
        self.power = Channels({"local": self.power, "agent": through_agents})
        self.checks = Woken(AgentChecks(door.store, door.posted.set), self._wake_agents)

    def _wake_agents(self) -> None:
        (self.root / "agents").touch()
        asleep = False
        for name in self.room.names():
            status = read(self.room.paths(name).status, Status)
            if status is not None and name_of(status.agent_pid) in {"sh", "sleep"}:
                seat = self.room.seat(name)
                self.power.restart_service(seat.id, key=f"wake {uuid4().hex}", expect=seat.incarnation)
                asleep = True
        if asleep:
            self.settle()

    def rewire(self, cluster: object = None, machines: object = None) -> None:
        """Puts other adapters in, or our own again."""
        self.cluster: Any = LocalWire(cluster or self.bare, self.far_calls)
        self.machines: Any = LocalWire(machines or self.power, self.far_calls)

    @property
    def facts(self) -> Sequence[Fact]:
        return self.door.facts() if self.door is not None else ()

    def nodes(self) -> list[NodeId]:
        return [NodeId(f"local/{name}") for name in self._names]

    def named(self, name: str) -> str:
        return f"{name}-{self._own}-{self._cleaned}"

    def spec(self, nodes: int, says: str = "") -> JobSpec:
        command = ("sh", "-c", RANK, "rank", says, str(self._ends))
        return JobSpec(name="j", cluster="local", pool="train", nodes=nodes, command=command)

    def impossible(self) -> JobSpec:
        return replace(self.spec(1), image="pytorch:2.6")

    # --- time
    def wait(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + self.patience
        while not condition():
            assert time.monotonic() < deadline, f"it never came true; {self.bare.snapshot()}"
            self.bare.wait(0.02)

    def settle(self) -> None:
        now = Ticks.of(self.root).now()
        self.wait(lambda: self.bare.snapshot().as_of > now and not self._under_way())

    def _under_way(self) -> bool:
        """A machine that should run is not ready, an order or a command is not carried out, a stop has not ended."""
        ready = {found.node for found in self.bare.snapshot().nodes if found.ready}
        if any(seat.power is SeatPower.ON and seat.id not in ready for seat in self._seats()):
            return True
        if any(self.root.glob("seats/*/orders/[!.]*.json")):
            return True
        if self.door is not None and self._unanswered(self.door, ready):
            return True
        return any(each.stop for each in self._open())

    def _unanswered(self, door: FrontDoor, nodes: Iterable[NodeId]) -> set[str]:
        """Commands; one that is posted again after its answer lies there for a while, and means nothing."""
        said = (item.news for report in door.reports for item in report.items)
        answered = {news.command for news in said if isinstance(news, Answered)}
        return {command.id for node in nodes for command in door.store.mail(node)} - answered

    def clean(self) -> None:
        self.far_calls.begin()
        self._cleaned += 1
        (self.root / "agents").unlink(missing_ok=True)
        for attempt in self._open():
            with suppress(Gone):  # it has ended meanwhile
                self.bare.stop(attempt.job, attempt.attempt, final=True, key=self.named("clean"))
        for seat in self._seats():
            for cordon in seat.cordons:
                key = self.named(f"clean {cordon.owner}")
                if others_of([cordon.owner]):
                    self.others_uncordon(seat.id)
                else:
                    self.bare.uncordon(seat.id, owner=cordon.owner, key=key, expect=None)
            if seat.power is not SeatPower.ON or not self.room.alive(seat.name):
                self.power.reboot(seat.id, key=self.named("clean"), expect=seat.incarnation)
        self.wait(lambda: not self._under_way() and not self._open())
        for ended in self._attempts():
            self.bare._reader.attempts.forget(ended)

    def _seats(self) -> list[LocalSeat]:
        return [self.room.seat(name) for name in self.room.names()]

    def _attempts(self) -> list[GangRecord]:
        return self.bare._reader.attempts.all()

    def _open(self) -> list[GangRecord]:
        return [each for each in self._attempts() if each.closed_at is None]

    def outdated_cursor(self) -> str:
        cursor = self.bare.snapshot().cursor
        node = self.nodes()[0]
        while isinstance(self.bare.watch(cursor), Deltas):
            name = self.named(f"old-{self.bare.snapshot().cursor}")
            self.bare.cordon(node, owner=f"sickbay:{name}", reason="r", key=name, expect=None)
        return cursor

    # --- what others do
    def _person(self, what: str, node: NodeId) -> None:
        command = [sys.executable, "-I", "-S", str(PERSON), str(self.root), what, node.partition("/")[2]]
        subprocess.run(command, check=True, timeout=30)

    def others_cordon(self, node: NodeId) -> str:
        self._person("cordon", node)
        return "other:person"

    def others_uncordon(self, node: NodeId) -> None:
        self._person("uncordon", node)

    def others_drain(self, node: NodeId) -> str:
        self._person("drain", node)
        return "other:person"

    def others_reboot(self, node: NodeId) -> None:
        self._person("reboot", node)

    def others_replace(self, node: NodeId) -> None:
        self._person("replace", node)

    def finish(self, job: JobId, code: int) -> None:
        (record,) = [each for each in self._attempts() if each.job == job]
        ranks = [plan.rank for part in record.parts for plan in part.ranks]
        for rank in ranks[: 1 if code else None]:
            told = self._ends / f"{job}.{rank}"
            self.wait(partial(self._has_told, told, code))

    def _has_told(self, told: Path, code: int) -> bool:
        try:
            handle = os.open(told, os.O_WRONLY | os.O_NONBLOCK)  # ENXIO: nobody listens yet
        except OSError:
            return False
        os.write(handle, f"{code}\n".encode())
        os.close(handle)
        return True

    def living_ranks(self, node: NodeId) -> int:
        boot = self.room.seat(node.partition("/")[2]).boot_id.encode()
        ranks = 0
        for environment in Path("/proc").glob("[0-9]*/environ"):
            try:
                words = environment.read_bytes().split(b"\0")
            except OSError:
                continue
            ranks += any(word.startswith(RANK_MARK.encode() + b"=") and word.endswith(boot) for word in words)
        return ranks

    # --- trouble
    @contextmanager
    def break_far_side(self, how: Trouble) -> Iterator[None]:
        match how:
            case "down":  # the directory is not there: a file system that was not mounted
                (self.root / "cluster.json").rename(self.root / "away.json")
                try:
                    yield
                finally:
                    (self.root / "away.json").rename(self.root / "cluster.json")
            case "hangs":  # another has every lock, and stands still
                with self._locks_held():
                    yield
            case "refuses":
                with refused(str(self.root), errno.EROFS):
                    yield
            case "no permission":
                with refused(str(self.root), errno.EACCES):
                    yield
            case _:
                lacks(how)

    @contextmanager
    def _locks_held(self) -> Iterator[None]:
        command = [sys.executable, "-I", "-S", str(PERSON), str(self.root), "hold"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            yield
            holder.kill()

    # --- what tests of this adapter ask besides
    def holder(self, node: NodeId) -> Incarnation:
        return next(found.incarnation for found in self.bare.snapshot().nodes if found.node == node)

    def processes(self) -> dict[int, str]:
        """Everything that any boot of any seat has left running."""
        boots = {path.name for path in self.root.glob("seats/*/instances/*/boots/*")}
        boots |= {self.room.seat(name).boot_id for name in self.room.names()}
        return find(marks=[f"{BOOT_MARK}={boot}" for boot in boots])

    def close(self) -> None:
        self.room.down(within=1.0)
        self.bare.close()
        if self.door is not None:
            self.door.shut()
        self._patch.undo()
        assert not self.processes()
