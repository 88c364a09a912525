"""The Cluster port over plain processes of this machine. All state is in files: see `files` and `attempts`."""

import os
import select
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from msgspec.structs import replace

from sickbay.agent.ranks.directory import name_of
from sickbay.agent.ranks.output import end_of_output, read_output
from sickbay.clusters.local.attempts import GRACE
from sickbay.clusters.local.doubt import changing, reading
from sickbay.clusters.local.files import Break, Cordon, LocalSeat, wake, write
from sickbay.clusters.local.gangs import Gangs
from sickbay.clusters.local.locks import PATIENCE
from sickbay.clusters.local.prune import prune
from sickbay.clusters.local.rack import Rack, fifo
from sickbay.clusters.local.reader import ClusterReader
from sickbay.clusters.local.ring import KEEP
from sickbay.model.errors import Gone, Rejected
from sickbay.model.fleet import Capability, DrainHow, Incarnation, JobId, NodeId
from sickbay.model.job import JobSpec, RankState
from sickbay.ports.cluster import Accepted, Deltas, Log, Lost, Snapshot

DONE = 50  # keys of cordons that a seat remembers
_PRUNE_EVERY = 60.0  # seconds


class LocalCluster:
    """Any number of these may come and go over one room: what one has begun the next completes."""

    def __init__(
        self,
        root: Path | str,
        period: float = 0.5,
        *,
        grace: float = GRACE,
        keep: int = KEEP,
        patience: float = PATIENCE,
    ) -> None:
        self._room = Rack(root, patience)
        self._id = self._room.file().id
        self._period = period
        self._reader = ClusterReader(self._room.root, self._id, keep, patience)
        self._gangs = Gangs(self._room.root, self._reader, grace)
        self._lock = threading.RLock()
        self._woken: int | None = None
        self._pruned_at = time.monotonic()

    @property
    def id(self) -> str:
        return self._id

    @property
    def period(self) -> float:
        return self._period

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset({Capability.PLACE, Capability.LOGS, Capability.SEAT_KEPT})

    @property
    def blind(self) -> frozenset[str]:
        return frozenset()

    # --- reads
    def watch(self, cursor: str | None) -> Deltas | Lost:
        reader = self._reader
        with self._lock, reading():
            reader.read()
            news = None if cursor is None else reader.ring.since(cursor)
            if news is None:
                return Lost()
            return Deltas(cursor=reader.ring.cursor, as_of=reader.reached, news=tuple(map(reader.dated, news)))

    def snapshot(self) -> Snapshot:
        reader = self._reader
        with self._lock, reading():
            reader.read()
            return Snapshot(
                cursor=reader.ring.cursor,
                as_of=reader.reached,
                nodes=tuple(replace(seen, as_of=reader.reached) for seen in reader.nodes.values()),
                jobs=tuple(replace(seen, as_of=reader.reached) for seen in reader.jobs.values()),
            )

    def wait(self, timeout: float) -> bool:
        """Until something may have changed (True), or the time is over. For one thread: the watcher's."""
        if self._woken is None:
            path = self._room.root / "wake"
            fifo(path)
            # For writing too: so it never ends when the last writer leaves.
            self._woken = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        ready, _, _ = select.select([self._woken], [], [], timeout)
        with suppress(BlockingIOError):
            while ready and os.read(self._woken, 65_536):
                pass
        return bool(ready)

    def close(self) -> None:
        if self._woken is not None:
            os.close(self._woken)
            self._woken = None

    # --- nodes
    def cordon(self, node: NodeId, *, owner: str, reason: str, key: str, expect: Incarnation | None) -> Accepted:
        def change(seat: LocalSeat) -> LocalSeat:
            others = tuple(cordon for cordon in seat.cordons if cordon.owner != owner)
            return replace(seat, cordons=(*others, Cordon(owner=owner, reason=reason)))

        return self._change(node, f"cordon {key}", expect, change)

    def uncordon(self, node: NodeId, *, owner: str, key: str, expect: Incarnation | None) -> Accepted:
        def change(seat: LocalSeat) -> LocalSeat:
            return replace(seat, cordons=tuple(cordon for cordon in seat.cordons if cordon.owner != owner))

        return self._change(node, f"uncordon {key}", expect, change)

    def _change(
        self, node: NodeId, key: str, expect: Incarnation | None, change: Callable[[LocalSeat], LocalSeat]
    ) -> Accepted:
        name = self._name(node)
        with changing(), self._room.held(name) as seat:
            if key not in seat.done:
                self._look(name, expect)
                self._room.save(replace(change(seat), done=(*seat.done, key)[-DONE:]))
                wake(self._room.root / "wake")
            return Accepted(visible_from=self._reader.ticks.now())

    def drain(self, node: NodeId, *, how: DrainHow, key: str, expect: Incarnation | None) -> Accepted:
        del how, key
        with reading():
            self._look(self._name(node), expect)
        raise Rejected(f"nothing runs on {node} that Sickbay does not manage: there is nothing to drain")

    def _name(self, node: NodeId) -> str:
        cluster, _, name = node.partition("/")
        with self._lock, reading():
            if cluster == self._id and name in self._reader.names():
                return name
        raise Gone(f"there is no node {node}")

    def _look(self, name: str, expect: Incarnation | None) -> LocalSeat:
        """The seat, if its holder is the one that was meant."""
        with self._lock:
            sight = self._reader.looker.look(name)
        if sight is None:
            raise Gone(f"there is no node {name}")
        sight.must_be(expect)
        return sight.seat

    def break_node(self, node: NodeId, breakage: Break) -> None:
        """Break the virtual hardware of a node, in its present boot."""
        name = self._name(node)
        with changing(), self._room.held(name) as seat:
            device = breakage.defect.device if breakage.defect is not None else None
            if device is not None and device >= seat.gpus:
                raise Rejected(f"{node} has no GPU {device}: {_gpus(seat.gpus)}")
            if not self._room.alive(name):
                raise Rejected(f"node {node} is down: nothing can be broken there now")
            paths = self._room.paths(name)
            order = replace(breakage, boot_id=seat.boot_id)
            write(paths.orders / f"break.{time.time_ns():020d}.{uuid4().hex[:8]}.json", order)
            wake(paths.wake)

    # --- jobs
    def wrong(self, spec: JobSpec) -> str:
        if spec.image:
            return "image: the local cluster runs no images, its ranks are processes of this machine: leave image out"
        if spec.native:
            return "native: the local cluster makes no object that it could be merged into: leave native out"
        return ""

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
        del avoid
        with self._lock, changing():
            self._gangs.start(job, attempt, spec=spec, nodes=nodes, key=key)
            self._prune()
            return Accepted(visible_from=self._reader.ticks.now())

    def _prune(self) -> None:
        if time.monotonic() - self._pruned_at > _PRUNE_EVERY:
            self._pruned_at = time.monotonic()
            prune(self._room, self._reader.attempts)

    def rerun(self, job: JobId, attempt: int, *, avoid: tuple[NodeId, ...], key: str) -> Accepted:
        del attempt, avoid, key
        raise Rejected(f"job {job}: nobody but Sickbay starts jobs here, so none can be run again by another")

    def stop(self, job: JobId, attempt: int, *, final: bool, key: str) -> Accepted:
        del final  # nobody but Sickbay starts jobs here
        with self._lock, changing():
            self._gangs.stop(job, attempt, key=key)
            return Accepted(visible_from=self._reader.ticks.now())

    def logs(self, job: JobId, attempt: int, rank: int, *, after: str = "", last: int = 0, limit: int = 65_536) -> Log:
        if after and not (after.isascii() and after.isdigit() and len(after) < 19):
            raise Rejected(f"{after[:40]!r} is no place in an output: give the `next` of an earlier piece")
        with reading():
            with self._lock:
                directory, over = self._find_rank(job, attempt, rank)
            text, following = read_output(directory, int(after) if after else -last, limit, final=over)
            return Log(text=text, next=str(following), over=over and following >= end_of_output(directory))

    def _find_rank(self, job: JobId, number: int, rank: int) -> tuple[Path, bool]:
        """Where a rank writes, and whether it has ended: read in this order, so that nothing comes after the end."""
        self._reader.read()
        attempt = self._reader.attempts.get(job, number)
        if attempt is None:  # forgotten; its output may still be there
            pattern = f"seats/*/instances/*/ranks/{name_of(job, number, rank)}"
            kept = next(iter(self._room.root.glob(pattern)), None)
            if kept is None:
                raise Gone(f"there is no output of rank {rank} of attempt {number} of job {job}")
            return kept, True
        for part in attempt.parts:
            if all(plan.rank != rank for plan in part.ranks):
                continue
            sight = self._reader.sights.get(part.seat)
            there = sight.ranks(job, number, part.boot_id) if sight else ()
            ended = any(each.rank == rank and each.state is RankState.GONE for each in there)
            directory = self._room.paths(part.seat).run(part.instance_id, job, number, rank)
            return directory, ended or part.node in attempt.over
        raise Gone(f"attempt {attempt.name} has no rank {rank}")


def _gpus(number: int) -> str:
    return f"write 0 to {number - 1}" if number > 1 else "it has GPU 0 only" if number else "it has none"
