"""Directory layout and sealed records: where everything is in a checkpoint directory, and who writes it.

    SICKBAY                             here checkpoints are kept              the first rank 0 that begins here
    jobs/<job>.json                     what a job adds to its own attempts    the job's first rank 0, exclusively
    attempt-<n>/RUN                     the fence: n has begun, and who it is  rank 0, exclusively, before anything else
    attempt-<n>/ranks/rank-<r>          rank r has begun                       rank r, exclusively
    attempt-<n>/look-<k>.json           the k-th checkpoint that n considers   rank 0, where all ranks look together
    attempt-<n>/look-<k>.rank-<r>.json  what rank r found in its share of it   rank r
    attempt-<n>/secret                  by which the ranks of n know another   rank 0, where several have such disks
    attempt-<n>/near/rank-<r>.json      what the disk of r's own node holds    rank r, where there are such disks
    attempt-<n>/near.json               what is whole on all of these disks    rank 0
    attempt-<n>/upload-<k>.json         what all ranks upload next from there  rank 0
    attempt-<n>/REFUSED                 why n does not begin                   rank 0, for the others
    attempt-<n>/LINEAGE                 from which checkpoint n goes on        rank 0, exclusively, once it was verified
    attempt-<n>/step-<s>/rank-<r>.shard what rank r saved                      rank r
    attempt-<n>/step-<s>/files/…        what other code saved                  it, in a block of foreign.saving
    attempt-<n>/step-<s>/rank-<r>.left  rank r has left that block             rank r
    attempt-<n>/step-<s>/files.json     what is in files/                      rank 0, when all ranks have left
    attempt-<n>/step-<s>/rank-<r>.json  size and SHA-256 of its files          rank r, when they are on the disk
    attempt-<n>/step-<s>/rank-<r>.failed    rank r could not save               rank r, if it still can
    attempt-<n>/step-<s>/rank-<r>.absent    rank r has nothing of it near       rank r, where saves go there first
    attempt-<n>/step-<s>/manifest.json  the files of all ranks                 rank 0, exclusively, when all are there
    attempt-<n>/step-<s>/removed.json   what was the manifest, of a checkpoint that is being removed

A step without manifest.json is no checkpoint, whatever else is there. RUN holds a random id that LINEAGE and every
part and manifest of that run carry. From the moment at which a higher RUN is there no older attempt commits or removes.
"""

import re
from operator import index
from pathlib import Path
from typing import Any, NamedTuple

from sickbay.train import disk

ATTEMPT = re.compile(r"attempt-([1-9][0-9]*)\Z")
_STEP = re.compile(r"step-(0|[1-9][0-9]*)\Z")
_NO_TEXT = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")  # would break a line of a log, or its encoding
FILES = "files"  # the directory that foreign code writes into


class CheckpointName(NamedTuple):
    """One checkpoint, by its name."""

    attempt: int
    step: int

    def __str__(self) -> str:
        return f"attempt-{self.attempt}/step-{self.step}"


class Skipped(NamedTuple):
    """A checkpoint newer than the chosen one that could not be used."""

    attempt: int
    step: int
    why: str

    def __str__(self) -> str:
        return f"{CheckpointName(self.attempt, self.step)}: {self.why}"


class Lineage(NamedTuple):
    """How an attempt began. All its ranks read the same one, so all resume from the same checkpoint."""

    attempt: int
    parent: CheckpointName | None
    world_size: int
    skipped: tuple[Skipped, ...] = ()
    run: str = ""
    anew: bool = False  # its first attempt began at step 0 on wish, beside what was there
    near: bool = False  # the parent was whole on the nodes' own disks, and not yet in the directory
    asked: bool = False  # a person named the parent: what is younger than it in its attempt stays, off the lineage
    of: str = ""  # the job that saved the parent, if it was another one


class RunFile(NamedTuple):
    """The fence of an attempt, and the run that has begun it."""

    attempt: int
    run: str
    world_size: int
    launch: str = ""  # what all ranks of one launch can tell of it; empty: nothing
    far: str = ""  # the object store into which its shards go; empty: the directory itself
    near: bool = False  # whether its saves go to the nodes' own disks first
    job: str = ""  # the job that it is an attempt of, where it knows


class Manifest(NamedTuple):
    place: CheckpointName
    world_size: int
    files: dict[str, disk.Sum]
    forms: dict[int, str]  # rank → how its shard is written; a rank that has none of ours is not here
    run: str = ""
    far: str | None = ""  # the object store that holds the files; empty: the directory itself; None: near copies only

    @property
    def size(self) -> int:
        return sum(one.size for one in self.files.values())


def attempt_path(root: Path, attempt: int) -> Path:
    return root / f"attempt-{attempt}"


def step_path(root: Path, place: CheckpointName) -> Path:
    return attempt_path(root, place.attempt) / f"step-{place.step}"


def lineage_path(root: Path, attempt: int) -> Path:
    return attempt_path(root, attempt) / "LINEAGE"


def marker_path(root: Path) -> Path:
    return root / "SICKBAY"


def jobs_path(root: Path) -> Path:
    return root / "jobs"


def run_path(root: Path, attempt: int) -> Path:
    return attempt_path(root, attempt) / "RUN"


def refused_path(root: Path, attempt: int) -> Path:
    return attempt_path(root, attempt) / "REFUSED"


def begun_path(root: Path, attempt: int, rank: int) -> Path:
    return attempt_path(root, attempt) / "ranks" / f"rank-{rank}"


def look_path(root: Path, attempt: int, number: int, rank: int | None = None) -> Path:
    """What all ranks look at together; with `rank`, what one of them has found."""
    name = f"look-{number}" if rank is None else f"look-{number}.rank-{rank}"
    return attempt_path(root, attempt) / f"{name}.json"


def secret_path(root: Path, attempt: int) -> Path:
    return attempt_path(root, attempt) / "secret"


def holds_path(root: Path, attempt: int, rank: int) -> Path:
    return attempt_path(root, attempt) / "near" / f"rank-{rank}.json"


def near_path(root: Path, attempt: int) -> Path:
    return attempt_path(root, attempt) / "near.json"


def upload_path(root: Path, attempt: int, number: int) -> Path:
    return attempt_path(root, attempt) / f"upload-{number}.json"


def manifest_path(root: Path, place: CheckpointName) -> Path:
    return step_path(root, place) / "manifest.json"


def is_committed(root: Path, place: CheckpointName) -> bool:
    return disk.exists(manifest_path(root, place))


def removed_path(root: Path, place: CheckpointName) -> Path:
    return step_path(root, place) / "removed.json"


def shard_name(rank: int) -> str:
    return f"rank-{rank}.shard"


def part_path(root: Path, place: CheckpointName, rank: int) -> Path:
    return step_path(root, place) / f"rank-{rank}.json"


def files_path(root: Path, place: CheckpointName) -> Path:
    return step_path(root, place) / FILES


def absent_path(root: Path, place: CheckpointName, rank: int) -> Path:
    return step_path(root, place) / f"rank-{rank}.absent"


def left_path(root: Path, place: CheckpointName, rank: int) -> Path:
    return step_path(root, place) / f"rank-{rank}.left"


def listed_path(root: Path, place: CheckpointName) -> Path:
    return step_path(root, place) / "files.json"


def failed_path(root: Path, place: CheckpointName, rank: int) -> Path:
    return step_path(root, place) / f"rank-{rank}.failed"


def attempts(root: Path) -> list[int]:
    """Numbers of all attempts of which there is a trace, rising. A directory that does not exist has none."""
    return _numbers(root, ATTEMPT)


def begun(root: Path) -> list[int]:
    """Numbers of the attempts that have a LINEAGE, rising. The others died before they had chosen."""
    with disk.readable(root):
        return [number for number in attempts(root) if disk.exists(lineage_path(root, number))]


def fenced(root: Path, least: int = 1) -> list[int]:
    """Numbers (from `least` on) of the attempts that have begun, whether or not they have chosen yet, rising."""
    with disk.readable(root):
        return [
            number
            for number in attempts(root)
            if number >= least and (disk.exists(run_path(root, number)) or disk.exists(lineage_path(root, number)))
        ]


def steps(root: Path, attempt: int) -> list[int]:
    """All steps that an attempt began to save, rising. Of one that was listed a moment ago."""
    return _numbers(attempt_path(root, attempt), _STEP, must=True)


def _numbers(directory: Path, pattern: re.Pattern[str], *, must: bool = False) -> list[int]:
    try:
        names = [path.name for path in directory.iterdir()]
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not must:
            return []
        raise disk.unreadable(directory, error) from error
    return sorted(int(found[1]) for name in names if (found := pattern.match(name)))


def read_lineage(root: Path, attempt: int) -> Lineage | None:
    content = disk.read(lineage_path(root, attempt))
    if content is None:
        return None
    with _Understanding():
        parent = content["parent"]
        lineage = Lineage(
            attempt=content["attempt"],
            parent=None if parent is None else CheckpointName(parent["attempt"], parent["step"]),
            world_size=content["world_size"],
            skipped=tuple(Skipped(one["attempt"], one["step"], one["why"]) for one in content["skipped"]),
            run=content.get("run", ""),
            anew=content.get("anew", False),
            near=content.get("near", False),
            asked=content.get("asked", False),
            of=content.get("of", ""),
        )
    if lineage.attempt != attempt:
        raise disk.Damaged(f"is of attempt {lineage.attempt}")
    if lineage.parent and lineage.parent.attempt >= attempt:  # following it would never end
        raise disk.Damaged(f"names a parent that is not older, {lineage.parent}")
    return lineage


def create_lineage(root: Path, lineage: Lineage) -> bool:
    """False: another has begun this attempt."""
    content = {
        "attempt": lineage.attempt,
        "parent": lineage.parent and lineage.parent._asdict(),
        "world_size": lineage.world_size,
        "skipped": [one._asdict() for one in lineage.skipped],
        "run": lineage.run,
        "anew": lineage.anew,
        "near": lineage.near,
        "asked": lineage.asked,
        "of": lineage.of,
    }
    return disk.create(lineage_path(root, lineage.attempt), content)


def read_fence(root: Path, attempt: int) -> RunFile | None:
    content = disk.read(run_path(root, attempt))
    if content is None:
        return None
    with _Understanding():
        known = (content["attempt"], content["run"], content["world_size"], content["launch"])
        return RunFile(*known, content.get("far", ""), content.get("near", False), str(content.get("job", "")))


def create_fence(root: Path, fence: RunFile) -> bool:
    """False: another has begun this attempt."""
    return disk.create(run_path(root, fence.attempt), fence._asdict())


def read_manifest(root: Path, place: CheckpointName, *, removed: bool = False) -> Manifest | None:
    """`removed`: what was the manifest of a checkpoint whose removal did not come to its end."""
    content = disk.read((removed_path if removed else manifest_path)(root, place))
    if content is None:
        return None
    manifest = manifest_from(content)
    if manifest.place != place:
        raise disk.Damaged(f"is of {manifest.place}")
    return manifest


def create_manifest(root: Path, manifest: Manifest) -> bool:
    return disk.create(manifest_path(root, manifest.place), manifest_as_json(manifest))


def manifest_as_json(manifest: Manifest) -> dict[str, Any]:
    return {
        "attempt": manifest.place.attempt,
        "step": manifest.place.step,
        "world_size": manifest.world_size,
        "files": {name: one._asdict() for name, one in sorted(manifest.files.items())},
        "forms": {str(rank): form for rank, form in sorted(manifest.forms.items())},
        "run": manifest.run,
        "far": manifest.far,
    }


def manifest_from(content: dict[str, Any]) -> Manifest:
    with _Understanding():
        return Manifest(
            place=CheckpointName(content["attempt"], content["step"]),
            world_size=content["world_size"],
            files=_sums(content),
            forms={int(rank): form for rank, form in content["forms"].items()},
            run=content.get("run", ""),
            far=content.get("far", ""),
        )


class RankPart(NamedTuple):
    """What one rank put into a checkpoint."""

    files: dict[str, disk.Sum]
    form: str | None = None
    run: str = ""


def read_part(root: Path, place: CheckpointName, rank: int) -> RankPart | None:
    content = disk.read(part_path(root, place, rank))
    return None if content is None else part_from(content)


def part_from(content: dict[str, Any]) -> RankPart:
    with _Understanding():
        return RankPart(_sums(content), content["form"], content.get("run", ""))


def create_part(root: Path, place: CheckpointName, rank: int, part: RankPart) -> bool:
    return disk.create(part_path(root, place, rank), part_as_json(part))


def part_as_json(part: RankPart) -> dict[str, Any]:
    files = {name: one._asdict() for name, one in sorted(part.files.items())}
    return {"files": files, "form": part.form, "run": part.run}


def _sums(content: dict[str, Any]) -> dict[str, disk.Sum]:
    return {checked(name): disk.Sum(index(one["size"]), one["sha256"]) for name, one in content["files"].items()}


def read_listed(root: Path, place: CheckpointName) -> dict[str, int] | None:
    """The files that foreign code has left, with their sizes."""
    content = disk.read(listed_path(root, place))
    if content is None:
        return None
    with _Understanding():
        return {checked(name): index(size) for name, size in content["files"].items()}


def create_listed(root: Path, place: CheckpointName, sizes: dict[str, int]) -> bool:
    return disk.create(listed_path(root, place), {"files": sizes})


def checked(name: str) -> str:
    """The name of a file within its checkpoint. What is read from a disk may have been written by anybody."""
    if _NO_TEXT.search(name):
        raise ValueError(f"a name that is no plain text: {name!a}")
    if any(part in {"", ".", ".."} for part in name.split("/")):
        raise ValueError(f"a name that leads out of its checkpoint: {name}")
    return name


class _Understanding:
    """A sealed file that another version of this code wrote may have another shape: that is damage, not a crash."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, KeyError | TypeError | ValueError | AttributeError):
            raise disk.Damaged(f"has another shape than expected ({error!r})") from None
