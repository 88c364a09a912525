"""What must hold when nothing moves: reasons and deadlines, books that agree with rows and with the world, sizes."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from sickbay.model.checkup import Checkup
from sickbay.model.cordon import incident_of
from sickbay.model.fleet import Capability, Ledger, Node, pool_of
from sickbay.model.incident import Incident
from sickbay.model.intent import Intent, Verify
from sickbay.model.job import Job, JobState
from sickbay.model.rows import BACKING_OFF, TO_SEND
from sickbay.sim.chronicle import Wrong
from sickbay.sim.witness import Witness

if TYPE_CHECKING:
    from sickbay.sim.simulation import Simulation

HEARD_WITHIN = 60.0  # seconds in which the end of an attempt is heard of, or the next one begun
ROW_BYTES = 64_000  # of any row, whatever befell it; a gang's own row is judged by the store's limit


class Rest:
    """Reads every row: asked at the end of a run, not after every step."""

    def __init__(self, sim: "Simulation", witness: Witness) -> None:
        self._sim = sim
        self._witness = witness

    def wrong(self) -> list[Wrong]:
        return [
            *self._waits(),
            *self.dead(),
            *self._unknown(),
            *self._books(),
            *self._claims(),
            *self._checks(),
            *self._notices(),
            *self._sizes(),
        ]

    def planned(self) -> bool:
        """Whether something is about to be sent, now or after a pause."""
        return any(self._sim.store.tags(prefix) for prefix in (TO_SEND, BACKING_OFF))

    def _rows(self, kind: str) -> list[object]:
        return self._sim._all(kind)  # noqa: SLF001 - the frame's own

    def _nodes(self) -> list[Node]:
        return [row for row in self._rows("node") if isinstance(row, Node)]

    # --- every open thing has a deadline, waits for something that is alive, or a person was told
    def _waits(self) -> Iterator[Wrong]:
        if self.planned():
            return
        for incident in self._sim.incidents(intake=True):
            if incident.open and (incident.wait is None or incident.wait.until is None):
                yield Wrong("waits", f"{incident.id} in {incident.phase} waits for nothing: {incident.wait}")
        for job in self._sim.jobs():
            if job.open:
                yield from self._waits_of_job(job)
        for intent in self._rows("intent"):
            if isinstance(intent, Intent) and not intent.state.over and intent.seen_by is None:
                yield Wrong("waits", f"{intent.key} ({intent.act}) is {intent.state} without a deadline")
        for checkup in self._rows("checkup"):
            if isinstance(checkup, Checkup) and checkup.open and checkup.slices == len(checkup.ended):
                yield Wrong("waits", f"{checkup.id} is open, and no check of it runs")

    def _waits_of_job(self, job: Job) -> Iterator[Wrong]:
        if job.wait is None:
            yield Wrong("waits", f"{job.id} in {job.state} waits for nothing")
        forever = job.wait is not None and job.wait.until is None and job.deadline is None
        if job.state in {JobState.GATING, JobState.STOPPING, JobState.DIAGNOSING} and forever and not job.intent:
            yield Wrong("waits", f"{job.id} in {job.state} has no deadline: {job.wait}")

    def dead(self) -> list[Wrong]:
        """Jobs that are said to run, and of which nothing runs."""
        running = [job for job in self._sim.jobs() if job.state is JobState.RUNNING]
        return [
            Wrong("dead", f"{job.id} is RUNNING, and nothing of it runs") for job in running if not self._alive(job)
        ]

    def _unknown(self) -> Iterator[Wrong]:
        """Jobs that are said to be over, and that others have run again since: who knows of it leaves them alone."""
        for job in self._sim.jobs():
            truth = self._sim.world.workload.jobs.get(job.id)
            last = truth.last if truth is not None and not truth.purged else None
            if job.open or last is None or last.number <= job.attempt or not last.alive:
                continue
            if last.launched_at < self._witness.read_to(job.spec.cluster) - 60.0:
                yield Wrong("unknown", f"{last.id} runs, and {job.id} is {job.state} after attempt {job.attempt}")

    def _alive(self, job: Job) -> bool:
        """Nobody hears of an end in the moment in which it comes, and its own controller may start it again."""
        truth = self._sim.world.workload.jobs.get(job.id)
        lately = self._sim.scheduler.now - HEARD_WITHIN
        attempts = () if truth is None else truth.attempts.values()
        return any(not one.over or (one.halted_at or 0.0) > lately for one in attempts)

    # --- books
    def _books(self) -> Iterator[Wrong]:
        """Ledgers say what the rows say, and the rows what is there."""
        rows = self._nodes()
        incidents = self._sim.incidents(intake=True)
        ledgers = {row.pool: row for row in self._rows("ledger") if isinstance(row, Ledger)}
        for pool in {row.pool for row in rows} | ledgers.keys():
            mine = [row for row in rows if row.pool == pool]
            ledger = ledgers.get(pool, Ledger(pool=pool))
            repairing = sum(1 for i in incidents if i.repairs and i.pool == pool)
            fields = ("counted", "out", "ours", "held", "held_apart")
            counts = (*(sum(getattr(row, what) for row in mine) for what in fields), repairing)
            books = (ledger.seats, ledger.out, ledger.ours, ledger.held, ledger.held_apart, ledger.repairing)
            if counts != books:
                yield Wrong("ledger", f"the ledger of {pool} says {ledger}, the rows say {counts}")
        yield from self._truth(rows)

    def _truth(self, rows: list[Node]) -> Iterator[Wrong]:
        seats = self._sim.world.seats
        for row in rows:
            seat = seats.get(row.id)
            if seat is None:
                if row.incarnation is not None:
                    yield Wrong("truth", f"{row.id} has a row, and is not there")
                continue
            if row.pool != pool_of(seat.cluster, seat.pool):
                yield Wrong("truth", f"{row.id} is in {seat.cluster}/{seat.pool}, its row says {row.pool}")
            if row.cordons != tuple(sorted(seat.cordons)) or row.ready != seat.ready:
                yield Wrong(
                    "truth", f"{row.id} has cordons {sorted(seat.cordons)} and ready {seat.ready}, its row says {row}"
                )
            ours = [incident for owner in seat.cordons if (incident := incident_of(owner))]
            for incident in ours:
                found = self._sim.store.load([f"incident:{incident}"])[f"incident:{incident}"].row
                if not isinstance(found, Incident) or not found.open:
                    yield Wrong("truth", f"{row.id} is cordoned for {incident}, which is over")
        for node in {seat.id for seat in seats.values() if not seat.forgotten} - {row.id for row in rows}:
            yield Wrong("truth", f"{node} is there, and has no row")

    def _claims(self) -> Iterator[Wrong]:
        """No device is claimed twice."""
        claimed: dict[tuple[str, int], str] = {}
        for job in self._sim.jobs():
            for node, devices in job.claim.items() if job.open else ():
                seat = self._sim.world.seats.get(node)
                for device in devices or range(len(seat.devices) if seat is not None else 1):
                    if claimed.setdefault((node, device), job.id) != job.id:
                        yield Wrong("claimed_twice", f"{node} device {device} is claimed twice")

    def _checks(self) -> Iterator[Wrong]:
        """Whoever is held by a check is held by one that runs, and by nobody else."""
        held = {row.id: row.checking for row in self._nodes() if row.checking}
        intents = self._sim.store.load(f"intent:{key}" for key in held.values())
        for node, key in held.items():
            intent = intents[f"intent:{key}"].row
            if not isinstance(intent, Intent) or intent.state.over:
                yield Wrong("held_by_check", f"{node} is held by {key}, which is over")
            elif isinstance(intent.act, Verify) and node not in intent.act.nodes:
                yield Wrong("held_by_check", f"{node} is held by {key}, which checks {intent.act.nodes}")
        # What others place is claimed as it is, wherever that may be.
        ours = [job for job in self._sim.jobs() if job.open and not job.adopted and self._places(job)]
        claims = {node: job.id for job in ours for node in job.claim}
        for node in held.keys() & claims.keys():
            yield Wrong("held_by_check", f"{node} is checked by {held[node]} while {claims[node]} has it")

    def _places(self, job: Job) -> bool:
        cluster = self._sim.world.ground.clusters.get(job.spec.cluster)
        return cluster is not None and Capability.PLACE in cluster.capabilities

    # --- people
    def _notices(self) -> Iterator[Wrong]:
        """Every notice was delivered, or is still being sent."""
        delivered = {key for key, _ in self._sim.world.notices}
        for key, intent in self._witness.notices.items():
            if key not in delivered and intent.state.over:
                yield Wrong(
                    "notice", f"{key} was never told: {intent.state} after {intent.sends} sendings ({intent.answer})"
                )

    # --- sizes
    def _sizes(self) -> Iterator[Wrong]:
        """No row grows with time; what grows with a gang is the job's."""
        few = len(self._sim.world.seats) < 100
        for kind in ("node", "incident", "job", "brake", "record", "intent", "withholding"):
            for row in self._rows(kind) if few else ():
                size = len(msgspec.json.encode(row))
                if size > ROW_BYTES:
                    yield Wrong("size", f"a row of {kind} has {size} bytes: {str(row)[:100]}")
        voices = len(self._rows("voice"))
        if voices > len(self._sim.world.seats):
            yield Wrong(
                "size", f"{voices} voices wait for the cluster's word, there are {len(self._sim.world.seats)} seats"
            )
