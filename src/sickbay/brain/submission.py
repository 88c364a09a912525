"""Validation of a submitted job: what makes no sense is refused in one line that says what to write."""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from msgspec.json import encode
from msgspec.structs import replace

from sickbay.model.checkup import STORAGE_MOST
from sickbay.model.fleet import Capability, JobId, Node
from sickbay.model.job import PRIORITIES, Continuation, Job, JobSpec, LogRule
from sickbay.model.parts import GANG_MOST
from sickbay.model.policy import Policy

SPEC_MOST = 100_000  # bytes; it is part of its job's row, and of every start
NATIVE_MOST = 32_000  # of those, bytes for its cluster's own words
NATIVE_DEPTH = 20  # levels of them: a pod's template has nine
LEVELS = range(5)  # of the check before its start; 0: none
NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}"  # of a job, a rule, a token: part of paths and of commands
_IMAGE = re.compile(r"[!-~]{1,1000}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def refusal(spec: JobSpec, clusters: Collection[str]) -> str:
    """The first thing that is wrong with it, whatever the fleet is like; empty: it can be run.

    The one validation of a submission: the API asks before it stores one, the engine before it takes one up.
    """
    return next(_wrong(spec, clusters), "")


def not_our_queue(spec: JobSpec, can: Collection[Capability]) -> str:
    """What it asks of a queue that is its cluster's own; empty: nothing."""
    asked = [name for name, given in (("priority", spec.priority), ("grow", spec.grow)) if given]
    if not asked or Capability.PLACE in can:
        return ""
    return f"{asked[0]}: {spec.cluster} has a queue of its own, which Sickbay does not order: leave it out"


def unchecked_storage(spec: JobSpec, can: Collection[Capability]) -> str:
    """Where nobody could look at its storage before it starts; empty: somebody can, or it names none."""
    if not spec.storage or Capability.PLACE in can:
        return ""
    return f"storage: {spec.cluster} chooses nodes itself, so nobody looks at it before the start: leave it out"


def too_large(spec: JobSpec, pool: Sequence[Node]) -> str:
    """Why the nodes that it may run on could never be enough; empty: they are, once they are free."""
    if spec.most > len(pool):
        return f"{spec.most} nodes are asked for, but pool {pool[0].pool} has {len(pool)}: ask for fewer"
    devices = sorted((len(node.devices) for node in pool), reverse=True)
    if (most := devices[spec.most - 1]) < spec.gpus_per_node:
        has = f"a node has {most}" if spec.most == 1 else f"{spec.most} nodes have {most} each"
        return f"gpus_per_node {spec.gpus_per_node} is more than there are: {has}; ask for fewer, or 0 for all of them"
    return ""


def as_started(job: Job, policy: Policy) -> JobSpec:
    """What its next attempt is started with: what it leaves open is filled in from the policy.

    Once it is known that it reports steps, with how far it has been: a checkpoint directory that knows nothing of it is
    not the one that it was. The limit for its first heartbeat counts where one is expected, or its script shows that it
    uses sickbay.train: of any other job nobody knows whether it ever sends one.
    """
    rule = policy.resume
    spec = replace(job.spec, expects_heartbeats=expects_heartbeats(job))
    if spec.stall_after is None:
        spec = replace(spec, stall_after=rule.stall_after.total_seconds())
    if spec.start_within is None:
        spec = replace(spec, start_within=rule.start_within.total_seconds())
    last_step = job.step or (spec.continues.last_step if spec.continues is not None else None)
    if told := {**_continuation(spec), **({"SICKBAY_LAST_STEP": str(last_step)} if last_step else {})}:
        spec = replace(spec, env={**spec.env, **told})
    return spec


def expects_heartbeats(job: Job) -> bool:
    """It has told a step before, or whoever submitted it has said by when."""
    before = job.spec.continues.last_step if job.spec.continues is not None else None
    return bool(job.spec.stall_after or job.spec.start_within or job.step or before)


# --- jobs that go on from another's checkpoints

FOLLOWED = 16  # jobs before it in its directory that it names: mostly the first of them has begun there


def continued(spec: JobSpec) -> JobId | None:
    """The job from whose checkpoints it goes on."""
    return spec.continues.of if spec.continues is not None else None


def _continuation(spec: JobSpec) -> dict[str, str]:
    """What rank 0 is told of it."""
    told = spec.continues or Continuation()
    known = {
        "SICKBAY_CONTINUES": ",".join(told.before),
        "SICKBAY_FROM_STEP": "" if told.step is None else str(told.step),
        "SICKBAY_BEGIN_ANEW": "1" if told.anew else "",
        "SICKBAY_ADOPT": "1" if told.anyones else "",
    }
    return {name: value for name, value in known.items() if value}


def followed(jobs: Sequence[Job]) -> tuple[str, ...]:
    """These jobs and those that they followed in one directory, the newest first, each with its attempts."""
    own = {job.id: f"{job.id}/{job.attempt}" for job in jobs}
    more = (name for job in jobs if job.spec.continues is not None for name in job.spec.continues.before)
    theirs = {JobId(name.rpartition("/")[0]): name for name in more}
    return tuple({**theirs, **own}[job] for job in (own | theirs))[:FOLLOWED]


def going_on(spec: JobSpec) -> str:
    """How it begins, in words; empty: at its beginning, as every job."""
    told = spec.continues or Continuation()
    if told.anew:
        return ", begins anew"
    step = f", from step {told.step}" if told.step is not None else ""
    return f", goes on from {told.of}{step}" if told.of is not None else step


def in_use(job: Job, others: Iterable[Job]) -> str:
    """Why it must not begin: a living job saves into the same directory. Empty: none does."""
    for other in others:
        if other.id != job.id and other.open:
            return (
                f"{other.id} is {other.state} and saves into {job.spec.checkpoint or 'the same directory'}: stop it"
                f" first (sickbay stop {other.id}), or submit this one with another --checkpoint"
            )
    return ""


def cannot_continue(before: Job, by: Job | None, spec: JobSpec) -> str:
    """Why a job cannot be continued. `by`: the one that continues it already."""
    told = spec.continues or Continuation()
    if before.open and before.stop_asked:
        return f"{before.id} is being stopped and is {before.state} still: restart it once it is STOPPED"
    if before.open:
        return f"{before.id} is {before.state}, and only what is over is continued: sickbay stop {before.id} first"
    if by is not None and by.open:
        return f"{before.id} is continued already, by {by.id}, which is {by.state}: sickbay stop {by.id} first"
    if by is not None and told.step is None and not told.anew:
        return (
            f"{before.id} was continued by {by.id}, which is over, too: sickbay restart {by.id} goes on from there,"
            " --from STEP from one step"
        )
    if before.adopted or not before.spec.command:
        return f"{before.id} was submitted to {before.spec.cluster} itself: submit it there once more"
    return ""


def _wrong(spec: JobSpec, clusters: Collection[str]) -> Iterator[str]:
    if wrong := wrong_name(spec.name, "name"):
        yield wrong
    if spec.command and not spec.command[0].strip():
        yield 'the command is empty: write what is to be run, for example ["python", "train.py"]'
    if spec.cluster not in clusters:
        known = ", ".join(sorted(clusters)) or "none"
        yield f"there is no cluster {spec.cluster!r}: write one of {known}"
    if spec.most > GANG_MOST:
        yield f"{spec.most} nodes are more than one job can have: write at most {GANG_MOST}"
    yield from _wrong_native(spec)  # before anything encodes it
    if (size := len(encode(spec))) > SPEC_MOST:
        yield f"the job's description has {size} bytes, at most {SPEC_MOST} fit: put long texts into files"
    away = [node for node in spec.on if not node.startswith(f"{spec.cluster}/")]
    if away:
        yield f"{away[0]} is not a node of {spec.cluster}: name nodes as {spec.cluster}/<name>"
    if len(set(spec.on)) < len(spec.on):
        yield "on: a node is named twice: name each once"
    if not spec.on and spec.nodes < 1:
        yield f"a job has at least 1 node, not {spec.nodes}"
    if not 0 <= spec.min_nodes <= spec.most:
        yield f"min_nodes is {spec.min_nodes}: write 1 to {spec.most}, the number of its nodes, or leave it out"
    if spec.gpus_per_node < 0:
        yield f"gpus_per_node is {spec.gpus_per_node}: write how many, or 0 for all of a node"
    if spec.ranks_per_node < 1:
        yield f"ranks_per_node is {spec.ranks_per_node}: a node has at least one process"
    if spec.max_restarts is not None and spec.max_restarts < 0:
        yield f"max_restarts is {spec.max_restarts}: write 0 for none"
    if spec.precheck is not None and spec.precheck not in LEVELS:
        yield f"precheck is {spec.precheck}: a check has level 1 to 4; 0 is none"
    if spec.stall_after is not None and spec.stall_after < 0:
        yield f"stall_after is {spec.stall_after:g} s: write 0 for never"
    if spec.start_within is not None and spec.start_within < 0:
        yield f"start_within is {spec.start_within:g} s: write 0 for whenever it likes"
    if spec.priority not in PRIORITIES:
        yield f"priority is {spec.priority}: write {PRIORITIES[0]} to {PRIORITIES[-1]}; higher ones run first"
    if spec.time_limit is not None and not 0 < spec.time_limit < float("inf"):
        yield f"time_limit is {spec.time_limit:g} s: write more than 0, or leave it out for none"
    if spec.grow and spec.least >= spec.most:
        yield "grow: it always has all its nodes: write min_nodes, on how few it may restart, or leave grow out"
    yield from _wrong_paths_and_variables(spec)
    if len({rule.name for rule in spec.log_rules}) < len(spec.log_rules):
        yield "log_rules: two rules have the same name: give each its own"
    for rule in spec.log_rules:
        yield from _wrong_rule(rule)


def _wrong_native(spec: JobSpec) -> Iterator[str]:
    """What no cluster could make anything of. Whether this one can, it says itself (`Cluster.wrong`)."""
    if spec.image and not _IMAGE.fullmatch(spec.image):
        yield f"image {spec.image[:80]!r} is no name of an image: write REGISTRY/NAME:TAG, without spaces"
    if deeper(spec.native, NATIVE_DEPTH):
        yield f"native is nested deeper than {NATIVE_DEPTH} levels: this is no cluster's object"
    elif (size := len(encode(spec.native))) > NATIVE_MOST:
        yield f"native has {size} bytes, at most {NATIVE_MOST} fit: put long texts into files"


def deeper(value: Any, levels: int) -> bool:
    """Whether plain data has more levels of lists and mappings than these."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels < 0 or any(deeper(each, levels - 1) for each in inner if isinstance(each, dict | list))


def _wrong_paths_and_variables(spec: JobSpec) -> Iterator[str]:
    for what, path in (
        ("checkpoint", spec.checkpoint),
        ("cwd", spec.cwd),
        *(("env_files", path) for path in spec.env_files),
        *(("storage", path) for path in spec.storage),
    ):
        if path and not path.startswith("/"):
            yield f"{what} {path!r} must be an absolute path, because each node has its own directory"
    if len(spec.storage) > STORAGE_MOST or len(set(spec.storage)) < len(spec.storage):
        yield f"storage: name at most {STORAGE_MOST} directories, each once"
    for name in spec.env:
        if not _VARIABLE.fullmatch(name):
            yield f"env: {name!r} is no name of a variable: write letters, digits and _"
        if name.startswith("SICKBAY_"):
            yield f"env: {name} is set by Sickbay itself: choose another name"


def _wrong_rule(rule: LogRule) -> Iterator[str]:
    if wrong := wrong_name(rule.name, "log rule"):
        yield wrong
    try:
        re.compile(rule.pattern)
    except (re.error, RecursionError, OverflowError) as error:
        yield f"log rule {rule.name}: the pattern is not a regular expression ({error}): {rule.pattern}"
    if rule.starts_within is None and rule.recurs_within is None:
        yield f"log rule {rule.name} asks for nothing: say starts_within or recurs_within (seconds), or both"
    for name in ("starts_within", "recurs_within"):
        seconds = getattr(rule, name)
        if seconds is not None and seconds <= 0:
            yield f"log rule {rule.name}: {name} is {seconds:g} s: write more than 0"


def wrong_name(name: str, what: str) -> str:
    """Empty: it can be used."""
    if re.fullmatch(NAME, name):
        return ""
    return f"{what} {name!r} cannot be used: write letters, digits, _ . - (at most 63, no sign in front)"
