"""Jobs: attempts, their ranks on seats, their progress and their ends."""

from collections.abc import Callable, Iterable
from functools import partial

from sickbay.model.errors import Gone, Rejected
from sickbay.model.facts import Hung
from sickbay.model.fleet import Capability, JobId, NodeId
from sickbay.model.job import End, EndReason, JobSpec, RankState
from sickbay.sim.agents import Agents
from sickbay.sim.context import SimContext
from sickbay.sim.hardware import SimDefect, SimSeat
from sickbay.sim.job_behaviour import NCCL_TAIL, TRACEBACK, OnDeath, Programme, SimAttempt, SimJob
from sickbay.sim.training import SimTraining

# An attempt that we stopped did not complete; that we stopped it the engine knows itself.
STOPPED = EndReason.FAILED


class Workload:
    """Runs attempts. `placing` finds nodes for attempts that the cluster's own scheduler places."""

    def __init__(self, ground: SimContext, agents: Agents) -> None:
        self._ground = ground
        self._agents = agents
        self.jobs: dict[JobId, SimJob] = {}
        self.programmes: dict[JobId, Programme] = {}
        self.default = Programme()
        self._shown_on: dict[NodeId, dict[SimAttempt, None]] = {}  # ordered: a set of objects would not be
        self._training = SimTraining(ground, agents, self._complete, self._bug)
        # Set by whoever lies beside: an attempt has ended.
        self.on_end: Callable[[SimJob, SimAttempt], None] = lambda _job, _attempt: None

    def job(self, job: JobId) -> SimJob:
        if job not in self.jobs:
            raise Gone(f"there is no job {job}")
        return self.jobs[job]

    def attempt(self, job: JobId, number: int) -> SimAttempt:
        attempt = self.job(job).attempts.get(number)
        if attempt is None:
            raise Gone(f"job {job} has no attempt {number}")
        return attempt

    def ensure(self, job: JobId, spec: JobSpec) -> SimJob:
        if job not in self.jobs:
            programme = self.programmes.get(job, self.default)
            self.jobs[job] = SimJob(id=job, spec=spec, programme=programme, idle_since=self._ground.now)
        return self.jobs[job]

    def on(self, seat: SimSeat) -> list[SimAttempt]:
        """Attempts with a living rank on the seat."""
        found = (self.jobs[job].attempts[number] for job, number in seat.holders)
        return [attempt for attempt in found if seat.id in attempt.alive]

    def holding(self, seat: SimSeat) -> list[SimAttempt]:
        """Attempts that have the seat's devices, whether or not their ranks live yet."""
        return [self.jobs[job].attempts[number] for job, number in seat.holders]

    def watch_devices(self, on_exercise: Callable[[SimSeat, SimDefect], None]) -> None:
        """Calls back when a rank meets a defect of its device."""
        self._training.on_exercise = on_exercise

    # --- beginning
    def begin(self, job: SimJob, attempt: SimAttempt) -> None:
        """Registers a new attempt; nothing runs yet."""
        job.attempts[attempt.number] = attempt
        attempt.resumed_from = job.checkpoint
        if not attempt.waiting:  # an attempt is shown only once it has nodes
            self.show(job, attempt)

    def launch(self, job: SimJob, attempt: SimAttempt, nodes: Iterable[NodeId]) -> None:
        """Takes the devices now; the ranks run after a while."""
        chosen = tuple(nodes)
        attempt.launched_at = self._ground.now
        for other in job.attempts.values():
            harmless = job.programme.fenced and all(self._isolated(node) for node in other.alive)
            if other is not attempt and other.alive and not attempt.native and not harmless:
                self._ground.chronicle.violate("two_attempts", job.id, f"{other.id} runs while {attempt.id} starts")
        for node in chosen:
            seat = self._ground.seats[node]
            self._watch_overlap(seat, attempt)
            seat.holders[job.id, attempt.number] = attempt.nodes[node]
        self._ground.chronicle.note("start", attempt.id, ",".join(chosen))
        self.show(job, attempt)
        takes = self._ground.spread(self._ground.rules.start_takes)
        attempt.tickets.append(self._ground.scheduler.after(takes, lambda: self._run(job, attempt, chosen)))

    def _watch_overlap(self, seat: SimSeat, attempt: SimAttempt) -> None:
        mine = set(attempt.nodes[seat.id]) or seat.domain_of(())
        for (job, number), devices in seat.holders.items():
            shared = mine & (set(devices) or seat.domain_of(()))
            if shared and (job, number) != (attempt.job, attempt.number):
                self._ground.chronicle.violate(
                    "device_twice", seat.id, f"{attempt.id} and {job}#{number} use {sorted(shared)}"
                )

    def _run(self, job: SimJob, attempt: SimAttempt, nodes: tuple[NodeId, ...]) -> None:
        absent = []
        for node in nodes:
            seat = self._ground.seats.get(node)
            if seat is None or not seat.reachable or (job.id, attempt.number) not in seat.holders:
                absent.append(node)
                continue
            attempt.alive[node] = None
            self._mark(attempt, node, RankState.RUNNING)
        self._ground.chronicle.note("ranks.run", attempt.id, str(len(attempt.alive)))
        for node in absent:
            self._mark(attempt, node, RankState.GONE)
        if absent:
            self._release(job, attempt, absent)
            self.show(job, attempt)
            self.fail(job, attempt, cause="start", exit_code=1)
            return
        self.show(job, attempt)
        give_up = job.programme.give_up
        if len(attempt.alive) == len(attempt.nodes):
            takes = self._ground.spread(job.programme.load)
            attempt.tickets.append(self._ground.scheduler.after(takes, lambda: self._training.begin(job, attempt)))
        elif give_up is not None:
            # A part of a gang waits at its rendezvous, not for ever.
            def leave() -> None:
                if len(attempt.alive) < len(attempt.nodes):
                    self.fail(job, attempt, cause="rendezvous", exit_code=1)

            attempt.tickets.append(self._ground.scheduler.after(give_up, leave))

    # --- progress
    def halt(self, job: SimJob, attempt: SimAttempt, cause: str) -> None:
        self._training.halt(job, attempt, cause)

    def _bug(self, job: SimJob, attempt: SimAttempt) -> None:
        if attempt.halted_at is None:
            self.crash(job.id, tail=TRACEBACK)

    def _complete(self, job: SimJob, attempt: SimAttempt) -> None:
        self.halt(job, attempt, "complete")
        job.tally.lost.pop("complete", None)
        job.complete, job.idle_since = True, None
        self._kill(job, attempt, list(attempt.alive), exit_code=0)
        self._maybe_end(job, attempt)

    # --- trouble
    def rank_dies(self, seat: SimSeat, attempt: SimAttempt, *, exit_code: int, cause: str, tail: str = "") -> None:
        """One node's ranks die; the others fail soon or hang."""
        if seat.id not in attempt.alive:
            return
        job = self.jobs[attempt.job]
        self._kill(job, attempt, [seat.id], exit_code=exit_code)
        attempt.tail = attempt.tail or tail
        self._aftermath(job, attempt, cause)

    def _aftermath(self, job: SimJob, attempt: SimAttempt, cause: str) -> None:
        first = attempt.halted_at is None
        self.halt(job, attempt, cause)
        self.show(job, attempt)
        if first and attempt.alive:
            if job.programme.on_death is OnDeath.HANG:
                self._hang(job, attempt)
            else:
                takes = self._ground.spread(self._ground.rules.siblings_fail)
                self._later(attempt, takes, lambda: self.fail(job, attempt, cause=cause, exit_code=1))
        self._maybe_end(job, attempt)

    def fail(self, job: SimJob, attempt: SimAttempt, *, cause: str, exit_code: int) -> None:
        """All ranks that are in touch with one another die."""
        if attempt.end is not None:
            return
        self.halt(job, attempt, cause)
        attempt.tail = attempt.tail or NCCL_TAIL
        self._kill(job, attempt, [node for node in attempt.alive if not self._isolated(node)], exit_code=exit_code)
        self.show(job, attempt)
        self._maybe_end(job, attempt)

    def sever(self, attempt: SimAttempt) -> None:
        """One of its nodes can no longer be reached by anybody, though its ranks go on."""
        self._aftermath(self.jobs[attempt.job], attempt, "node lost")

    def hang(self, job: JobId) -> None:
        """No rank dies and nothing moves."""
        found = self.job(job)
        attempt = found.last
        if attempt is not None and attempt.alive and attempt.halted_at is None:
            self.halt(found, attempt, "hang")
            self._hang(found, attempt)

    def _hang(self, job: SimJob, attempt: SimAttempt) -> None:
        self._ground.chronicle.note("hang", attempt.id)

        def notice() -> None:
            seat = self._ground.seats.get(next(iter(attempt.nodes)))
            if attempt.end is None and attempt.alive and seat is not None and seat.speaking:
                because = f"no step for {job.programme.hang_notice:.0f} s"
                self._agents.say(seat, Hung(job=job.id, attempt=attempt.number, because=because), f"{attempt.id}:hung")

        self._later(attempt, job.programme.hang_notice, notice)
        if job.programme.give_up is not None:
            self._later(
                attempt,
                job.programme.give_up,
                lambda: self.fail(job, attempt, cause=attempt.cause, exit_code=1),
            )

    def crash(self, job: JobId, *, exit_code: int = 1, tail: str) -> None:
        """The script itself fails, on rank 0 first."""
        found = self.job(job)
        attempt = found.last
        if attempt is not None and attempt.alive:
            first = next(node for node in attempt.nodes if node in attempt.alive)
            self.rank_dies(self._ground.seats[first], attempt, exit_code=exit_code, cause="application", tail=tail)

    def complete(self, job: JobId) -> None:
        """Its script comes to its end."""
        found = self.job(job)
        if found.last is not None and found.last.alive:
            self._complete(found, found.last)

    def finish(self, job: JobId, reason: EndReason, cause: str) -> None:
        """Others end the job: its owner, or a job of higher rank."""
        found = self.job(job)
        found.cancelled = found.cancelled or reason is EndReason.CANCELLED_BY_OTHER
        attempt = found.last
        if attempt is None or attempt.end is not None:
            return
        self.halt(found, attempt, cause)
        self._kill(found, attempt, [node for node in attempt.alive if self._in_touch(node)], exit_code=0)
        self._release(found, attempt, list(attempt.nodes))
        attempt.waiting = False
        self._end(found, attempt, reason)

    def stop(self, job: JobId, number: int, *, final: bool = False) -> None:
        """Our stop: every rank that can be reached goes soon; the others when they can be reached again."""
        found, attempt = self.job(job), self.attempt(job, number)
        if found.purged:
            raise Gone(f"there is no job {job}")
        off = attempt.end is not None and RankState.RUNNING not in attempt.ranks.values()
        theirs = found.adopted or Capability.PLACE not in self._ground.clusters[found.spec.cluster].capabilities
        if off and not (final and theirs and not found.complete and not found.cancelled):
            raise Gone(f"attempt {attempt.id} has ended")
        if final:
            found.cancelled = True
            if found.last is not None and found.last.waiting and found.last is not attempt:
                found.last.waiting = False
                self._end(found, found.last, STOPPED)
        if off:
            return
        attempt.stop_told = True
        takes = self._ground.spread(self._ground.rules.stop_takes)
        self._later(attempt, takes, lambda: self._stopped(self.jobs[job], attempt))

    def ask_to_save(self, job: JobId, number: int, key: str, *, tries: int = 20) -> None:
        """The command waits for its agent; what has ended by then is not asked any more."""
        found = self.jobs.get(job)
        attempt = found.attempts.get(number) if found is not None else None
        if found is None or attempt is None or attempt.end is not None:
            return
        seat = self._ground.seats.get(next(iter(attempt.nodes), NodeId("")))
        if seat is not None and seat.speaking and not self._agents.deaf:
            self._training.ask(found, attempt, key)
        elif tries:
            self._ground.scheduler.after(15.0, lambda: self.ask_to_save(job, number, key, tries=tries - 1))

    def _stopped(self, job: SimJob, attempt: SimAttempt) -> None:
        self.halt(job, attempt, "stopped by us")
        attempt.waiting = False
        started = set(attempt.ranks)
        self._release(job, attempt, [node for node in attempt.nodes if node not in started])
        self._kill(job, attempt, [node for node in attempt.alive if self._in_touch(node)], exit_code=0)
        self.show(job, attempt)
        self._maybe_end(job, attempt)

    # --- what becomes of nodes
    def node_dies(self, seat: SimSeat, *, cause: str) -> None:
        """The machine ends: whatever ran there is dead, whoever knows."""
        for job, number in list(seat.holders):
            attempt = self.jobs[job].attempts[number]
            self._kill(self.jobs[job], attempt, [seat.id], exit_code=137)
            seat.holders.pop((job, number), None)
            if attempt.ranks or attempt.halted_at is not None:
                self._aftermath(self.jobs[job], attempt, cause)

    def node_proven(self, seat: SimSeat) -> None:
        """The cluster can see the node again, or knows that its machine has ended."""
        for attempt in list(self._shown_on.get(seat.id, ())):
            job = self.jobs[attempt.job]
            alone = attempt.halted_at is not None and len(attempt.alive) == 1
            if seat.id in attempt.alive and (attempt.stop_told or attempt.end is not None or alone):
                self._kill(job, attempt, [seat.id], exit_code=0)
            if seat.id not in attempt.alive:
                self._mark(attempt, seat.id, RankState.GONE)
                self.show(job, attempt)
                self._maybe_end(job, attempt)

    def node_unready(self, seat: SimSeat) -> None:
        """The cluster has missed the node; it gives attempts there up after a while."""
        patience = self._ground.rules.node_lost_end
        if patience is None:
            return
        turn = seat.turn
        for attempt in self._shown_on.get(seat.id, ()):
            if attempt.end is None:
                self._ground.scheduler.after(patience, partial(self._give_up, attempt, seat, turn))

    def _give_up(self, attempt: SimAttempt, seat: SimSeat, turn: int) -> None:
        runs = attempt.end is None and attempt.ranks.get(seat.id) is RankState.RUNNING
        if not runs or seat.ready or seat.turn != turn:
            return
        job = self.jobs[attempt.job]
        self.halt(job, attempt, "node lost")
        self._kill(job, attempt, [node for node in attempt.alive if self._in_touch(node)], exit_code=0)
        self._end(job, attempt, EndReason.NODE_LOST)

    # --- ends
    def _in_touch(self, node: NodeId) -> bool:
        seat = self._ground.seats.get(node)
        return seat is None or seat.reachable

    def _isolated(self, node: NodeId) -> bool:
        seat = self._ground.seats.get(node)
        return seat is not None and not seat.path_open and not seat.link_open

    def _kill(self, job: SimJob, attempt: SimAttempt, nodes: Iterable[NodeId], *, exit_code: int) -> None:
        for node in list(nodes):
            if node not in attempt.alive:
                continue
            del attempt.alive[node]
            if self._in_touch(node):
                self._mark(attempt, node, RankState.GONE)
                if exit_code:
                    attempt.exit_codes[str(node)] = exit_code
            self._release(job, attempt, [node])

    def _release(self, job: SimJob, attempt: SimAttempt, nodes: Iterable[NodeId]) -> None:
        for node in nodes:
            seat = self._ground.seats.get(node)
            if seat is not None and node not in attempt.alive:
                seat.holders.pop((job.id, attempt.number), None)

    def _maybe_end(self, job: SimJob, attempt: SimAttempt) -> None:
        if attempt.end is not None or RankState.RUNNING in attempt.ranks.values() or attempt.halted_at is None:
            return
        if attempt.alive:
            return
        if attempt.stop_told and not job.complete:
            self._end(job, attempt, STOPPED)
        elif job.complete:
            self._end(job, attempt, EndReason.COMPLETED)
        else:
            lost = attempt.cause in {"node lost", "reboot", "replace"} and not attempt.exit_codes
            self._end(job, attempt, EndReason.NODE_LOST if lost else EndReason.FAILED)

    def _end(self, job: SimJob, attempt: SimAttempt, reason: EndReason) -> None:
        attempt.cancel()
        codes = {} if attempt.stop_told or job.programme.codes_untold else dict(attempt.exit_codes)
        attempt.end = End(reason=reason, at=self._ground.stamp(self._ground.now), exit_codes=codes, tail=attempt.tail)
        self._ground.chronicle.note("end", attempt.id, reason.value)
        self._release(job, attempt, list(attempt.nodes))  # what had not begun never will
        if job.programme.tail_late:
            attempt.tail_from = self._ground.now + job.programme.tail_late
            self._ground.scheduler.after(job.programme.tail_late, lambda: self.show(job, attempt))
        self.show(job, attempt)
        self.on_end(job, attempt)

    def show(self, job: SimJob, attempt: SimAttempt) -> None:
        """A job that was purged is shown no more, whatever becomes of its ranks."""
        if job.purged:
            return
        self._ground.views[job.spec.cluster].put(job.seen(attempt, self._ground.now))

    def _later(self, attempt: SimAttempt, seconds: float, act: Callable[[], None]) -> None:
        """Unlike its progress, this outlives the attempt's halt, not its end."""
        self._ground.scheduler.after(seconds, lambda: act() if attempt.end is None or attempt.alive else None)

    def _mark(self, attempt: SimAttempt, node: NodeId, state: RankState) -> None:
        """Changes the cluster's view of one rank."""
        attempt.ranks[node] = state
        if state is RankState.RUNNING:
            self._shown_on.setdefault(node, {})[attempt] = None
        else:
            self._shown_on.get(node, {}).pop(attempt, None)

    def refuse_second(self, job: SimJob, number: int, key: str) -> SimAttempt | None:
        """The attempt of this number if `key` began it; another key is refused."""
        attempt = job.attempts.get(number)
        if attempt is not None and attempt.key != key:
            raise Rejected(f"attempt {attempt.id} was begun under another key")
        return attempt
