"""What ranks say of their progress: the file that $SICKBAY_HEARTBEAT names."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sickbay.model.facts import Stepped
from sickbay.model.fleet import JobId

STEPS_EVERY = 1.0  # seconds between two steps that are told; the first is told at once
REASONS = 20  # skipped checkpoints that are named
REASON = 300  # characters of each


@dataclass(slots=True)
class Beat:
    """One rank's heartbeat file as last read."""

    path: Path
    stamp: tuple[int, int, int] | None = None
    step: int | None = None
    since: float = 0.0  # monotonic moment when this step was first seen
    body: dict[str, Any] = field(default_factory=dict)

    def read(self, now: float) -> bool:
        """Whether there is a new step. A file that is being written is read next time."""
        try:
            found = self.path.stat()
            stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
            if stamp == self.stamp:
                return False
            body = json.loads(self.path.read_bytes())
        except (OSError, ValueError):
            return False
        self.stamp = stamp
        step = body.get("step") if isinstance(body, dict) else None
        if not isinstance(step, int) or isinstance(step, bool) or step == self.step:
            return False
        self.step, self.since, self.body = step, now, body
        return True


@dataclass(slots=True)
class Progress:
    """What has been told of one attempt."""

    job: JobId
    attempt: int
    told: int | None = None
    told_at: float = 0.0

    def tell(self, beat: Beat, now: float, *, ended: bool = False) -> Stepped | None:
        """The first step at once, later ones once a second, the last one when the rank has ended."""
        if beat.step is None or beat.step == self.told:
            return None
        if self.told is not None and not ended and now - self.told_at < STEPS_EVERY:
            return None
        self.told, self.told_at = beat.step, now
        return _stepped(self.job, self.attempt, beat.step, beat.body)


def _stepped(job: JobId, attempt: int, step: int, body: dict[str, Any]) -> Stepped:
    resumed, skipped, loss = body.get("resumed_from"), body.get("skipped"), body.get("loss")
    known = isinstance(loss, int | float) and math.isfinite(loss)
    return Stepped(
        job=job,
        attempt=attempt,
        step=step,
        resumed_from=resumed if isinstance(resumed, int) else None,
        skipped=tuple(str(why)[:REASON] for why in skipped[:REASONS]) if isinstance(skipped, list) else (),
        loss=float(loss) if known and loss is not None else None,
        fenced=body.get("fenced") is True,
    )
