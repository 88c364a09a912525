"""The progress of an attempt: steps, checkpoints, and the work that a halt loses."""

from collections.abc import Callable

from sickbay.model.facts import Stepped
from sickbay.sim.agents import Agents
from sickbay.sim.ground import Ground
from sickbay.sim.hardware import Defect, Seat
from sickbay.sim.programme import Attempt, SimJob

Then = Callable[[SimJob, Attempt], None]


class Training:
    """Progress is computed from times, not stepped through: a year of training is a handful of events."""

    def __init__(self, ground: Ground, agents: Agents, on_complete: Then, on_bug: Then) -> None:
        self._ground = ground
        self._agents = agents
        self._on_complete = on_complete
        self._on_bug = on_bug
        self.on_exercise: Callable[[Seat, Defect], None] = lambda _seat, _defect: None

    def begin(self, job: SimJob, attempt: Attempt) -> None:
        """All ranks have loaded; steps follow one another from here."""
        if attempt.halted_at is not None:
            return
        now, programme = self._ground.now, job.programme
        attempt.training_since = now
        if job.idle_since is not None:
            job.tally.lost[job.idle_cause] += now - job.idle_since
            job.idle_since = None
        self._ground.chronicle.note("train", attempt.id, str(attempt.resumed_from))
        after = self._ground.scheduler.after
        left = programme.steps - attempt.resumed_from
        attempt.tickets.append(after(left / programme.rate, lambda: self._on_complete(job, attempt)))
        if programme.crashes_at is not None and programme.crashes_at >= attempt.resumed_from:
            at = (programme.crashes_at - attempt.resumed_from) / programme.rate
            attempt.tickets.append(after(at, lambda: self._on_bug(job, attempt)))
        if job.spec.reports_steps:
            attempt.tickets.append(after(1.0 / programme.rate, lambda: self._tell_step(job, attempt)))
        for node, devices in attempt.nodes.items():
            seat = self._ground.seats[node]  # had it vanished, the attempt would have halted
            for defect in seat.defects:
                if defect.device in (devices or seat.domain_of(())):
                    self._exercise(seat, defect)

    def _exercise(self, seat: Seat, defect: Defect) -> None:
        self._ground.scheduler.after(
            self._ground.spread(defect.exercised_after), lambda: self.on_exercise(seat, defect)
        )

    def _tell_step(self, job: SimJob, attempt: Attempt) -> None:
        if attempt.halted_at is not None or attempt.end is not None:
            return
        seat = self._ground.seats.get(next(iter(attempt.nodes)))
        again = job.programme.tell_every
        if seat is not None and seat.speaking:
            step = job.step(attempt, self._ground.now)
            self._agents.say(
                seat,
                Stepped(
                    job=job.id,
                    attempt=attempt.number,
                    step=step,
                    resumed_from=attempt.resumed_from,
                    fenced=job.programme.fenced,
                ),
                f"{attempt.id}:step:{step}",
            )
            attempt.told_step = True
        elif not attempt.told_step:
            again = min(again, 60.0)
        attempt.tickets.append(self._ground.scheduler.after(again, lambda: self._tell_step(job, attempt)))

    def halt(self, job: SimJob, attempt: Attempt, cause: str) -> None:
        """Training stops here; what was not in a checkpoint is lost."""
        if attempt.halted_at is not None:
            return
        now = self._ground.now
        attempt.halted_at, attempt.cause = now, cause
        attempt.cancel()
        self._ground.chronicle.note("halt", attempt.id, cause)
        if attempt.training_since is None:
            return
        every, rate = job.programme.checkpoint_every, job.programme.rate
        step = job.step(attempt, now)
        kept = step if step >= job.programme.steps else max(attempt.resumed_from, step - step % every)
        useful = (kept - attempt.resumed_from) / rate
        job.tally.useful += useful
        job.tally.lost[cause] += max(0.0, now - attempt.training_since - useful)
        job.checkpoint = max(job.checkpoint, kept)
        job.idle_since, job.idle_cause = now, cause
