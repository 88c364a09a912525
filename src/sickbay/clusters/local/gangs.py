"""Gang scheduling: starts and stops of attempts, written down first, then ordered from each node."""

import errno
import os
import time
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from sickbay.clusters.local.attempts import GangRecord, NodePart, environment, free_port, lay_out
from sickbay.clusters.local.files import AnyAsk, Paths, wake, write
from sickbay.clusters.local.reader import ClusterReader
from sickbay.clusters.local.seat_state import SeatState
from sickbay.model.cordon import others_of
from sickbay.model.errors import Gone, Impossible, Rejected
from sickbay.model.fleet import JobId, NodeId
from sickbay.model.job import JobSpec

# A disk that is full, or away for a moment. Any other reason is the path's own.
_MAY_COME_RIGHT = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE,
     errno.ETIMEDOUT, errno.EINTR}
)  # fmt: skip


class Gangs:
    """Not for two threads at once."""

    def __init__(self, root: Path, reader: ClusterReader, grace: float) -> None:
        self._root = root
        self._reader = reader
        self._attempts = reader.attempts
        self._grace = grace

    def start(
        self, job: JobId, number: int, *, spec: JobSpec, nodes: Mapping[NodeId, tuple[int, ...]], key: str
    ) -> None:
        """Begin an attempt under a key; the same key again brings what is missing of its gang."""
        with self._attempts.held():
            self._reader.read()
            attempt = self._attempts.get(job, number)
            if attempt is None:
                attempt = self._plan(job, number, spec, nodes, key)
                self._attempts.save(attempt)
            elif attempt.key != key:
                raise Rejected(f"attempt {attempt.name} was begun under another key")
            if not attempt.stop and attempt.end is None:
                for part in attempt.open:
                    self._ask(part, attempt.start_name, attempt.start_order(part))

    def stop(self, job: JobId, number: int, *, key: str) -> None:
        """The first stop is remembered: from then on nothing of the attempt is started any more."""
        with self._attempts.held():
            self._reader.read()
            attempt = self._attempts.get(job, number)
            if attempt is None:
                raise Gone(f"job {job} has no attempt {number}")
            if attempt.closed_at is not None:
                if attempt.stop == key:
                    return
                raise Gone(f"attempt {attempt.name} has ended")
            if not attempt.stop:
                attempt = replace(attempt, stop=key)
                self._attempts.save(attempt)
            for part in attempt.open:
                self._ask(part, attempt.stop_name(key), attempt.stop_order(part, self._grace))

    def _ask(self, part: NodePart, name: str, order: AnyAsk) -> None:
        sight = self._reader.sights.get(part.seat)
        if sight is None or sight.seat.boot_id != part.boot_id or not sight.alive:
            return  # nobody is there any more to do it, and nothing is left to be done to
        write(self._reader.order_path(part, name), order, durable=False)
        wake(Paths(self._root, part.seat).wake)

    def _plan(
        self, job: JobId, number: int, spec: JobSpec, nodes: Mapping[NodeId, tuple[int, ...]], key: str
    ) -> GangRecord:
        if not nodes:
            raise Rejected(f"job {job}: this cluster is told where to start, and no node was named")
        if not spec.command:
            raise Impossible(f"job {job} has no command to run")
        sights = {node: self._admit(job, node) for node in nodes}
        parts = lay_out(job, spec, nodes, {node: (sight.seat, sight.devices) for node, sight in sights.items()})
        others = [each for each in self._attempts.all() if each.closed_at is None]
        for part in parts:
            _refuse_shared(job, part, others)
        for other in others:
            if other.job == job:
                raise Rejected(f"job {job}: its attempt {other.attempt} has not ended on {other.open[0].node}")
        port = free_port(other.port for other in others)
        return GangRecord(
            key=key,
            job=job,
            attempt=number,
            spec=spec,
            parts=parts,
            port=port,
            env=environment(
                job,
                number,
                spec,
                size=sum(len(part.ranks) for part in parts),
                port=port,
                checkpoint=self._checkpoint(job, spec),
            ),
            began_at=time.time(),
        )

    def _admit(self, job: JobId, node: NodeId) -> SeatState:
        sight = next((each for each in self._reader.sights.values() if each.seat.id == node), None)
        if sight is None:
            raise Gone(f"job {job}: there is no node {node}")
        if not sight.ready:
            raise Rejected(f"job {job}: node {node} is {sight.trouble}")
        # Our own cordon does not bind our own start: it keeps off the work of others.
        others = others_of(cordon.owner for cordon in sight.seat.cordons)
        if others:
            raise Rejected(f"job {job}: node {node} is cordoned by {others[0]}")
        return sight

    def _checkpoint(self, job: JobId, spec: JobSpec) -> Path:
        home = spec.continues.home if spec.continues is not None else None
        own = self._root / "checkpoints" / (home or job)
        directory = Path(spec.cwd or "/", spec.checkpoint) if spec.checkpoint else own
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            refused = Rejected if error.errno in _MAY_COME_RIGHT else Impossible
            why = f"its checkpoint directory {directory} cannot be made: {error.strerror or error}"
            raise refused(why) from error
        if not os.access(directory, os.W_OK | os.X_OK):
            raise Impossible(f"its checkpoint directory {directory} cannot be written: Permission denied")
        return directory


def _refuse_shared(job: JobId, part: NodePart, others: list[GangRecord]) -> None:
    for other in others:
        for taken in other.open:
            shared = sorted(set(taken.devices) & set(part.devices))
            if taken.node == part.node and shared:
                raise Rejected(f"job {job}: GPU {shared[0]} of {part.node} is held by {other.name}")
