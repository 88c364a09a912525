"""What ranks say of their progress: the file that $SICKBAY_HEARTBEAT names. Users write it, so nothing is believed."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from sickbay.agent.user_files import read_small
from sickbay.model.facts import Checkpointed, Stepped
from sickbay.model.fleet import JobId

STEPS_EVERY = 1.0  # seconds between two steps that are told; the first is told at once
WORK_EVERY = 5.0  # and between two words about how far a long piece of work has come
REASONS = 20  # skipped checkpoints that are named
REASON = 300  # characters of each
MOST = 2**63  # of a number that is told
KNOWN = (
    "step", "resumed_from", "resumed_of", "skipped", "loss", "fenced", "saved", "save_failed", "listens", "answered",
    "directory", "opened",
)  # fmt: skip


class HeartbeatWork(NamedTuple):
    """A long piece of work that is under way, in bytes."""

    what: str
    done: int
    of: int


@dataclass(slots=True)
class Beat:
    """One rank's heartbeat file as last read."""

    path: Path
    stamp: tuple[int, int, int, int] | None = None
    step: int | None = None
    since: float = 0.0  # monotonic moment when this step was first seen
    work: HeartbeatWork | None = None
    body: dict[str, Any] = field(default_factory=dict)

    @property
    def opened(self) -> bool:
        """The script has opened its checkpoints with sickbay.train."""
        return self.body.get("opened") is True

    @property
    def saves(self) -> bool:
        """It lives, also without a heartbeat: a script may use checkpoints only."""
        return _whole(self.body.get("saved")) is not None

    def read(self, now: float) -> bool:
        """Whether there is progress: a new step, or work that is further than it was. Half a file is read next time."""
        try:
            found = self.path.stat(follow_symlinks=False)
            stamp = (found.st_ino, found.st_mtime_ns, found.st_size, found.st_mode)
            if stamp == self.stamp:
                return False
            body = json.loads(read_small(self.path))
        except (OSError, ValueError, RecursionError):  # whoever nests it too deep
            return False
        self.stamp = stamp
        if not isinstance(body, dict):
            return False
        opened = self.opened
        self.body = {name: body[name] for name in KNOWN if name in body}  # what else there is may be large
        before, self.work = self.work, _work(body)
        step = _whole(body.get("step"))
        if step is not None and step != self.step:
            self.step, self.since = step, now
            return True
        if self.work is None:
            return before is not None or (self.opened and not opened)  # it has come to its end, or begins only now
        return before is None or before.what != self.work.what or before.done < self.work.done


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST else None


def _work(body: dict[str, Any]) -> HeartbeatWork | None:
    what, done, of = body.get("busy"), _whole(body.get("done")), _whole(body.get("of"))
    if not isinstance(what, str) or not what or done is None or of is None or not 0 <= done < of:
        return None
    return HeartbeatWork(what[:REASON], done, of)


@dataclass(slots=True)
class AttemptProgress:
    """What has been told of one attempt."""

    job: JobId
    attempt: int
    told: int | None = None
    told_at: float = 0.0
    standing: Checkpointed | None = None
    standing_at: float = 0.0

    def tell(self, beat: Beat, now: float, *, ended: bool = False) -> Stepped | None:
        """The first step at once, later ones once a second, the last one when the rank has ended."""
        if beat.step is None or beat.step == self.told:
            return None
        if self.told is not None and not ended and now - self.told_at < STEPS_EVERY:
            return None
        self.told, self.told_at = beat.step, now
        return _stepped(self.job, self.attempt, beat.step, beat.body)

    def tell_standing(self, beat: Beat, now: float, *, ended: bool = False) -> Checkpointed | None:
        """How it stands with its checkpoints: an answer at once, the rest like steps, how far work is more rarely."""
        stands = _checkpointed(self.job, self.attempt, beat)
        before = self.standing or Checkpointed(job=self.job, attempt=self.attempt)
        if stands == before:
            return None
        only_further = replace(stands, done=before.done, of=before.of) == before
        rest = 0.0 if ended or stands.answered != before.answered else WORK_EVERY if only_further else STEPS_EVERY
        if self.standing is not None and now - self.standing_at < rest:
            return None
        self.standing, self.standing_at = stands, now
        return stands


def _stepped(job: JobId, attempt: int, step: int, body: dict[str, Any]) -> Stepped:
    resumed, skipped, loss = _whole(body.get("resumed_from")), body.get("skipped"), body.get("loss")
    return Stepped(
        job=job,
        attempt=attempt,
        step=step,
        resumed_from=resumed,
        resumed_of=of[:REASON] if isinstance(of := body.get("resumed_of"), str) else "",
        skipped=_reasons(skipped),
        loss=_loss(loss),
        fenced=body.get("fenced") is True,
    )


def _loss(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not -MOST < value < MOST:
        return None
    return float(value)


def _reasons(skipped: object) -> tuple[str, ...]:
    return tuple(why[:REASON] for why in skipped[:REASONS] if isinstance(why, str)) if isinstance(skipped, list) else ()


def _checkpointed(job: JobId, attempt: int, beat: Beat) -> Checkpointed:
    failed, work = beat.body.get("save_failed"), beat.work or HeartbeatWork("", 0, 0)
    return Checkpointed(
        job=job,
        attempt=attempt,
        saved=_whole(beat.body.get("saved")),
        failed=failed[:REASON] if isinstance(failed, str) else "",
        busy=work.what,
        done=work.done,
        of=work.of,
        listens=beat.body.get("listens") is True,
        opened=beat.opened,
        directory=where[:REASON] if isinstance(where := beat.body.get("directory"), str) else "",
        answered=answered[:REASON] if isinstance(answered := beat.body.get("answered"), str) else "",
    )
