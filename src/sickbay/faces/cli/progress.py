"""Progress lines for one who waits for a job: states, interruptions with their stages, and now and then a step."""

import time
from collections.abc import Callable
from typing import Any

from sickbay.faces.cli.show import span
from sickbay.faces.cli.stages import OVER, reached, why

STEP_EVERY = 10.0  # seconds between two lines that tell a step


class ProgressLine:
    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say, self._clock = say, clock
        self._begin = clock()
        self._state, self._because, self._attempt = "", "", 0
        self._step: int | None = None
        self._step_at = clock()
        self._doing, self._doing_at = "", clock() - STEP_EVERY
        self._stages: set[tuple[int, str]] = set()

    def show(self, job: dict[str, Any]) -> None:
        self._interruptions(job)
        self._states(job)
        self._steps(job)

    def _tell(self, text: str) -> None:
        whole = int(self._clock() - self._begin)
        self._say(f"{whole // 3600:02d}:{whole % 3600 // 60:02d}:{whole % 60:02d}  {text}")

    def _interruptions(self, job: dict[str, Any]) -> None:
        for number, one in enumerate(job["interruptions"]):
            before = None
            for stage, at in reached(one):
                if (number, stage) not in self._stages:
                    self._stages.add((number, stage))
                    self._tell(self._stage(one, stage, (at - before).total_seconds() if before else None))
                before = at

    @staticmethod
    def _stage(one: dict[str, Any], stage: str, seconds: float | None) -> str:
        if stage == "detected":
            incidents = f" ({', '.join(one['incidents'])})" if one["incidents"] else ""
            return f"interrupted, attempt {one['attempt']}: {one['cause']}{incidents}"
        took = f" after {span(seconds)}" if seconds is not None else ""
        again = one.get("training_again_after")
        whole = f": training again after {again:.1f} s" if stage == "first_step" and again is not None else ""
        return f"  {stage}{took}{whole}"

    def _states(self, job: dict[str, Any]) -> None:
        state, because = job["state"], why(job)
        waits = state in {"QUEUED", "GATING"} or state in OVER
        if (state, job["attempt"]) != (self._state, self._attempt) or (waits and because != self._because):
            attempt = f", attempt {job['attempt']}" if job["attempt"] else ""
            where = f" on {', '.join(job['nodes'])}" if state == "RUNNING" and job["nodes"] else ""
            reason = f": {because}" if because and state != "RUNNING" else ""
            self._tell(f"{state}{attempt}{where}{reason}")
        self._state, self._because, self._attempt = state, because, job["attempt"]

    def _steps(self, job: dict[str, Any]) -> None:
        now = self._clock()
        doing = job.get("doing", "")
        if doing and doing != self._doing and now - self._doing_at >= STEP_EVERY:
            self._tell(f"  {doing}")
            self._doing, self._doing_at = doing, now
        step = job["step"]
        if step is None or step == self._step or now - self._step_at < STEP_EVERY:
            return
        self._tell(f"  step {step}")
        self._step, self._step_at = step, now
