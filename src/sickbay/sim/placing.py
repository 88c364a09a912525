"""Who starts attempts and where: we, the cluster's own scheduler, and a job's native controller."""

from collections.abc import Mapping
from itertools import islice

from sickbay.model.cordon import others_of
from sickbay.model.errors import Gone, Rejected
from sickbay.model.fleet import Capability, JobId, NodeId
from sickbay.model.job import EndReason, JobSpec
from sickbay.sim.context import SimContext
from sickbay.sim.hardware import SimSeat
from sickbay.sim.job_behaviour import Programme, SimAttempt, SimJob
from sickbay.sim.workload import Workload

LOOK_EVERY = 60.0


class Placing:
    """Places attempts. What the cluster's scheduler cannot place waits in its queue."""

    def __init__(self, ground: SimContext, workload: Workload) -> None:
        self._ground = ground
        self._workload = workload
        self._queue: list[tuple[SimJob, SimAttempt]] = []
        self._due = False
        workload.on_end = self._ended

    # --- what we ask for
    def start(
        self,
        job: JobId,
        number: int,
        *,
        spec: JobSpec,
        nodes: Mapping[NodeId, tuple[int, ...]],
        avoid: tuple[NodeId, ...],
        key: str,
        only: int | None = None,
    ) -> None:
        """Begins an attempt under a key; the same key again brings what is missing of its gang. `only`: a part."""
        known = self._workload.jobs.get(job)
        if known is not None and known.purged:
            known.purged = known.cancelled = False  # it is made anew, and what waited of it is not there any more
            known.attempts = {n: attempt for n, attempt in known.attempts.items() if attempt.nodes}
        if known is not None and (attempt := self._workload.refuse_second(known, number, key)) is not None:
            self._complete_gang(known, attempt)
            return
        if Capability.PLACE not in self._ground.clusters[spec.cluster].capabilities:
            found = self._workload.ensure(job, spec)
            self._enqueue(found, SimAttempt(job=job, number=number, key=key, nodes={}, avoid=avoid))
            return
        if not nodes:
            raise Rejected(f"job {job}: this cluster is told where to start, and no node was named")
        for node in nodes:
            self._admit(self._ground.seat(node), job)
        found = self._workload.ensure(job, spec)
        attempt = SimAttempt(job=job, number=number, key=key, nodes=dict(nodes))
        chosen = list(nodes)[:only]
        attempt.missing = tuple(node for node in nodes if node not in chosen)
        self._workload.begin(found, attempt)
        self._workload.launch(found, attempt, chosen)

    def _admit(self, seat: SimSeat, job: JobId) -> None:
        others = others_of(seat.cordons)
        if not seat.reachable or others:
            why = f"cordoned by {others[0]}" if others else "not ready"
            raise Rejected(f"job {job}: node {seat.id} is {why}")
        theirs = [holder for holder, _ in seat.holders if self._workload.jobs[holder].adopted]
        if theirs:
            raise Rejected(f"job {job}: node {seat.id} is in use by {theirs[0]}")
        if seat.ours:
            # Our own cordon does not bind our own start; that it came to this is the caller's mistake.
            self._ground.chronicle.violate("start_on_cordoned", seat.id, f"{job}: cordons {sorted(seat.cordons)}")

    def _complete_gang(self, job: SimJob, attempt: SimAttempt) -> None:
        missing, attempt.missing = attempt.missing, ()
        present = tuple(node for node in missing if node in self._ground.seats)
        for node in present:
            if self._ground.seats[node].holders:  # others were placed there in between
                attempt.missing = missing
                raise Rejected(f"job {job.id}: node {node} is in use")
        if present and attempt.end is None and not attempt.stop_told and attempt.halted_at is None:
            self._workload.launch(job, attempt, present)

    def rerun(self, job: JobId, number: int, *, avoid: tuple[NodeId, ...], key: str) -> None:
        found = self._workload.job(job)
        if found.purged:
            raise Gone(f"there is no job {job}")
        last = found.last
        if last is not None and last.waiting and last.number == number + 1 and last.end is None:
            last.avoid = avoid  # its turn has not come yet: what is new is where it may not go
            self.wake()
            return
        if last is None or last.number != number or last.end is None:
            raise Rejected(f"job {job}: attempt {number} is not its last, or has not ended")
        if found.complete or found.cancelled:
            raise Gone(f"job {job} is over")
        self._enqueue(found, SimAttempt(job=job, number=number + 1, key=key, nodes={}, avoid=avoid, native=True))

    # --- what others do
    def submit(
        self, job: JobId, spec: JobSpec, programme: Programme, *, native_delay: float | None, native_after_stop: bool
    ) -> None:
        """Somebody submits a job to the cluster, not to us."""
        self._workload.programmes[job] = programme
        found = self._workload.ensure(job, spec)
        found.adopted, found.native_delay, found.native_after_stop = True, native_delay, native_after_stop
        self._enqueue(found, SimAttempt(job=job, number=1, key=f"native:{job}:1", nodes={}, native=True))

    def resume(self, job: JobId) -> None:
        """Its owner wants it to go on."""
        found = self._workload.job(job)
        found.cancelled = False
        number = max(found.attempts) + 1
        self._enqueue(found, SimAttempt(job=job, number=number, key=f"native:{job}:{number}", nodes={}, native=True))

    def _ended(self, job: SimJob, attempt: SimAttempt) -> None:
        self.wake()
        holds = Capability.HOLDS in self._ground.clusters[job.spec.cluster].capabilities
        over = job.complete or job.cancelled or job.native_delay is None
        if over or (attempt.stop_told and (holds or not job.native_after_stop)):
            return
        if attempt.end is not None and attempt.end.reason is EndReason.CANCELLED_BY_OTHER:
            return
        following = attempt.number + 1

        def again() -> None:
            if following not in job.attempts and not job.cancelled:
                key = f"native:{job.id}:{following}"
                self._enqueue(job, SimAttempt(job=job.id, number=following, key=key, nodes={}, native=True))

        self._ground.scheduler.after(self._ground.spread(job.native_delay or 0.0), again)

    # --- the cluster's own scheduler
    def _enqueue(self, job: SimJob, attempt: SimAttempt) -> None:
        attempt.waiting = True
        self._workload.begin(job, attempt)
        self._queue.append((job, attempt))
        self.wake()

    def wake(self) -> None:
        """Something may be free now: the scheduler looks at its queue in a moment."""
        if self._queue and not self._due:
            self._due = True
            self._ground.scheduler.after(1.0, self._serve)

    def _serve(self) -> None:
        self._due = False
        queue, self._queue = self._queue, []
        for job, attempt in queue:
            if not attempt.waiting or attempt.end is not None:
                continue
            chosen = self._find(job.spec, attempt.avoid)
            if chosen is None:
                self._queue.append((job, attempt))
                continue
            attempt.waiting = False
            attempt.nodes = {seat.id: _devices(seat, job.spec) for seat in chosen}
            attempt.allocated = True
            self._workload.launch(job, attempt, attempt.nodes)
        if self._queue and not self._due:  # like any scheduler, it also looks now and then without being woken
            self._due = True
            self._ground.scheduler.after(LOOK_EVERY, self._serve)

    def _find(self, spec: JobSpec, avoid: tuple[NodeId, ...]) -> list[SimSeat] | None:
        pool = None if self._ground.clusters[spec.cluster].mixes_pools else spec.pool
        free = (seat for seat in self._ground.seats_of(spec.cluster, pool) if seat.free and seat.id not in avoid)
        wanted = (seat for seat in free if not spec.on or seat.id in spec.on)
        chosen = list(islice(wanted, spec.most))
        return chosen if len(chosen) >= spec.least else None


def _devices(seat: SimSeat, spec: JobSpec) -> tuple[int, ...]:
    count = spec.gpus_per_node or len(seat.devices)
    return tuple(device.index for device in seat.devices[:count])
