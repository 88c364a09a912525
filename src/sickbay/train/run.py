"""Configuration of one rank of one attempt, from arguments and environment."""

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

from sickbay.train.beats import tells_of
from sickbay.train.errors import CheckpointError
from sickbay.train.far import store_of
from sickbay.train.objects import parse

# What the ranks of one launch share, and those of the next do not.
LAUNCH = ("SICKBAY_JOB_ID", "SICKBAY_ATTEMPT", "TORCHELASTIC_RUN_ID")


class Tiers(NamedTuple):
    """Where saves go before they are in the directory, and where their files are for good."""

    near: Path | None = None  # a directory on each node's own disk
    far: str = ""  # an object store; empty: the checkpoint directory
    copies: bool = True  # of what is near, on another node

    @classmethod
    def from_environment(cls, near: str | os.PathLike[str] | None, far: str | None, *, copies: bool | None) -> "Tiers":
        where = near if near is not None else os.environ.get("SICKBAY_CHECKPOINT_NEAR")
        url = far if far is not None else os.environ.get("SICKBAY_CHECKPOINT_FAR", "")
        if url and not where:
            raise CheckpointError(
                f"{parse(url)} is filled from the nodes' own disks: write near=DIR (or SICKBAY_CHECKPOINT_NEAR), a"
                " directory on a local disk"
            )
        if url:
            store_of(url)  # what is wrong with it is told now, not at the first upload
        asked = os.environ.get("SICKBAY_CHECKPOINT_COPIES", "1") != "0" if copies is None else copies
        return cls(Path(where).absolute() if where else None, url, asked)


class Run(NamedTuple):
    """One rank of one attempt, as it begins."""

    directory: Path
    attempt: int | None  # None: the next free number
    rank: int
    world_size: int
    patience: float
    anew: bool = False  # a person wants it to begin at step 0, whatever is there
    last_step: int | None = None  # how far the job has been, as those know who started this attempt
    tiers: Tiers = Tiers()
    job: str = ""  # that it is an attempt of, where somebody knows
    counted: bool = False  # whether `attempt` is the job's own count, which its base in the directory is added to
    before: tuple[tuple[str, int], ...] = ()  # jobs that it continues, the newest first, each with its attempts
    from_step: int | None = None  # a person wants the job to go on from exactly this one
    adopt: bool = False  # a person wants it to go on from what is there, whichever job saved it

    @classmethod
    def from_environment(
        cls,
        directory: str | os.PathLike[str] | None,
        *,
        attempt: int | None,
        rank: int | None,
        world_size: int | None,
        patience: float,
        anew: bool = False,
        tiers: Tiers = Tiers(),  # noqa: B008  # it is frozen
    ) -> "Run":
        where = directory or os.environ.get("SICKBAY_CHECKPOINT_DIR")
        if not where:
            raise CheckpointError("no checkpoint directory: set SICKBAY_CHECKPOINT_DIR, or write Checkpoints('DIR')")
        run = cls(
            Path(where).absolute(),
            _number("SICKBAY_ATTEMPT", attempt, least=1),
            _number("RANK", rank, least=0) or 0,
            _number("WORLD_SIZE", world_size, least=1) or 1,
            patience,
            anew or os.environ.get("SICKBAY_BEGIN_ANEW", "") not in {"", "0"},
            _number("SICKBAY_LAST_STEP", None, least=0) if _jobs_own(where) else None,
            tiers,
            os.environ.get("SICKBAY_JOB_ID", ""),
            attempt is None and bool(os.environ.get("SICKBAY_JOB_ID")) and bool(os.environ.get("SICKBAY_ATTEMPT")),
            _before(os.environ.get("SICKBAY_CONTINUES", "")),
            _from_step(where),
            os.environ.get("SICKBAY_ADOPT", "") not in {"", "0"},
        )
        if run.rank >= run.world_size:
            raise CheckpointError(f"rank {run.rank} of {run.world_size}: ranks go from 0 to {run.world_size - 1}")
        if run.attempt is None and run.world_size > 1:
            raise CheckpointError(
                f"{run.world_size} ranks must agree which attempt this is: give all of them the same SICKBAY_ATTEMPT"
                " (or attempt=), a number that no earlier run had"
            )
        return run


def _from_step(where: str | os.PathLike[str]) -> int | None:
    """For the directory that the job's heartbeat tells of: a script may keep others beside it."""
    step = _number("SICKBAY_FROM_STEP", None, least=0)
    return step if step is not None and tells_of(str(Path(where).absolute())) else None


def _before(text: str) -> tuple[tuple[str, int], ...]:
    """Of "a/5,b/3": two jobs, with their attempts."""
    named = (one.rpartition("/") for one in text.split(",") if one)
    return tuple((job, int(count) if count.isdecimal() else 0) for job, _, count in named)


def _jobs_own(where: str | os.PathLike[str]) -> bool:
    """A script may keep others beside the directory of its job, which may begin whenever they like."""
    own = os.environ.get("SICKBAY_CHECKPOINT_DIR")
    return bool(own) and Path(own or "").absolute() == Path(where).absolute()


def _number(name: str, given: int | None, *, least: int) -> int | None:
    value: object = os.environ.get(name) if given is None else given
    if value is None or value == "":
        return None
    try:
        number = int(str(value))
    except ValueError:
        number = least - 1
    if number < least:
        raise CheckpointError(f"{name} is {value!r}: write a whole number from {least} on")
    return number


def launch() -> str:
    """What this process can tell of the launch that it belongs to; empty: nothing."""
    known = [f"{name}={os.environ[name]}" for name in LAUNCH if os.environ.get(name)]
    return hashlib.sha256("\n".join(known).encode()).hexdigest()[:16] if known else ""
