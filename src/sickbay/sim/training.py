"""The progress of an attempt: steps, checkpoints, and the work that a halt loses."""

from collections.abc import Callable

from sickbay.model.facts import Checkpointed, Stepped
from sickbay.sim.agents import Agents
from sickbay.sim.context import SimContext
from sickbay.sim.hardware import SimDefect, SimSeat
from sickbay.sim.job_behaviour import SimAttempt, SimJob

Then = Callable[[SimJob, SimAttempt], None]


class SimTraining:
    """Progress is computed from times, not stepped through: a year of training is a handful of events."""

    def __init__(self, ground: SimContext, agents: Agents, on_complete: Then, on_bug: Then) -> None:
        self._ground = ground
        self._agents = agents
        self._on_complete = on_complete
        self._on_bug = on_bug
        self.on_exercise: Callable[[SimSeat, SimDefect], None] = lambda _seat, _defect: None

    def begin(self, job: SimJob, attempt: SimAttempt) -> None:
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
        if programme.listens:
            attempt.tickets.append(after(1.0 / programme.rate, lambda: self._tell_stand(job, attempt)))
        if job.spec.reports_steps:
            attempt.tickets.append(after(1.0 / programme.rate, lambda: self._tell_step(job, attempt)))
        for node, devices in attempt.nodes.items():
            seat = self._ground.seats[node]  # had it vanished, the attempt would have halted
            for defect in seat.defects:
                if defect.device in (devices or seat.domain_of(())):
                    self._exercise(seat, defect)

    def _exercise(self, seat: SimSeat, defect: SimDefect) -> None:
        self._ground.scheduler.after(
            self._ground.spread(defect.exercised_after), lambda: self.on_exercise(seat, defect)
        )

    def _tell_step(self, job: SimJob, attempt: SimAttempt) -> None:
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

    def _tell_stand(self, job: SimJob, attempt: SimAttempt) -> None:
        """How it stands with its checkpoints; said until it was heard."""
        if attempt.end is not None:
            return
        seat = self._ground.seats.get(next(iter(attempt.nodes)))
        if seat is None or not seat.speaking:
            attempt.tickets.append(self._ground.scheduler.after(30.0, lambda: self._tell_stand(job, attempt)))
            return
        stands = Checkpointed(
            job=job.id, attempt=attempt.number, saved=attempt.saved or None, listens=True, answered=attempt.answered
        )
        self._agents.say(seat, stands, f"{attempt.id}:stand:{self._ground.number()}")

    def ask(self, job: SimJob, attempt: SimAttempt, key: str) -> None:
        """An ask has reached rank 0: it saves what it has now, while it trains on."""
        if not job.programme.listens or attempt.halted_at is not None or attempt.training_since is None:
            return
        if key in attempt.asked:
            return
        step = attempt.asked[key] = job.step(attempt, self._ground.now)
        self._ground.chronicle.note("asked", attempt.id, key)
        takes = job.programme.save_takes
        if takes is not None:
            attempt.tickets.append(self._ground.scheduler.after(takes, lambda: self._saved(job, attempt, key, step)))

    def _saved(self, job: SimJob, attempt: SimAttempt, key: str, step: int) -> None:
        attempt.saved, attempt.answered = max(attempt.saved, step), key
        self._ground.chronicle.note("saved", attempt.id, key)
        self._tell_stand(job, attempt)

    def halt(self, job: SimJob, attempt: SimAttempt, cause: str) -> None:
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
        kept = step if step >= job.programme.steps else max(attempt.resumed_from, attempt.saved, step - step % every)
        useful = (kept - attempt.resumed_from) / rate
        job.tally.useful += useful
        job.tally.lost[cause] += max(0.0, now - attempt.training_since - useful)
        job.checkpoint = max(job.checkpoint, kept)
        job.idle_since, job.idle_cause = now, cause
