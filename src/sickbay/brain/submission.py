"""What makes no sense in a job that somebody submits: it fails at once, with one line that says what to write."""

import re
from collections.abc import Collection, Iterator

from msgspec.json import encode
from msgspec.structs import replace

from sickbay.model.job import Job, JobSpec, LogRule
from sickbay.model.parts import GANG_MOST
from sickbay.model.policy import Policy

SPEC_MOST = 100_000  # bytes; it is part of its job's row, and of every start
LEVELS = range(5)  # of the check before its start; 0: none


def refusal(spec: JobSpec, clusters: Collection[str]) -> str:
    """The first thing that is wrong with it; empty: it can be run."""
    return next(_wrong(spec, clusters), "")


def as_started(job: Job, policy: Policy) -> JobSpec:
    """What its next attempt is started with, once it is known that it reports steps.

    With how far it has been: a checkpoint directory that knows nothing of it is not the one that it was. And with a
    limit for its first heartbeat: of a job that has never sent one nobody knows whether it does.
    """
    if not job.step:
        return job.spec
    within = policy.resume.start_within.total_seconds() if job.spec.start_within is None else job.spec.start_within
    return replace(job.spec, env={**job.spec.env, "SICKBAY_LAST_STEP": str(job.step)}, start_within=within)


def _wrong(spec: JobSpec, clusters: Collection[str]) -> Iterator[str]:
    if spec.cluster not in clusters:
        known = ", ".join(sorted(clusters)) or "none"
        yield f"there is no cluster {spec.cluster!r}: write one of {known}"
    if spec.most > GANG_MOST:
        yield f"{spec.most} nodes are more than one job can have: write at most {GANG_MOST}"
    if (size := len(encode(spec))) > SPEC_MOST:
        yield f"it takes {size} bytes to write down, at most {SPEC_MOST}: pass long values in a file that it reads"
    away = [node for node in spec.on if not node.startswith(f"{spec.cluster}/")]
    if away:
        yield f"{away[0]} is not a node of {spec.cluster}: name nodes as {spec.cluster}/<name>"
    if len(set(spec.on)) < len(spec.on):
        yield "one node is named twice in 'on': name each once"
    if not spec.on and spec.nodes < 1:
        yield f"a job has at least 1 node, not {spec.nodes}"
    most = spec.most
    if not 0 <= spec.min_nodes <= most:
        yield f"min_nodes is {spec.min_nodes}: write 1 to {most}, the number of its nodes, or leave it out"
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
    for rule in spec.log_rules:
        yield from _wrong_rule(rule)


def _wrong_rule(rule: LogRule) -> Iterator[str]:
    try:
        re.compile(rule.pattern)
    except re.error as error:
        yield f"the pattern of the log rule {rule.name!r} cannot be read ({error}): {rule.pattern}"
    if rule.starts_within is None and rule.recurs_within is None:
        yield f"the log rule {rule.name!r} asks for nothing: give it starts_within or recurs_within"
    for name in ("starts_within", "recurs_within"):
        seconds = getattr(rule, name)
        if seconds is not None and seconds <= 0:
            yield f"{name} of the log rule {rule.name!r} is {seconds:g} s: write more than 0"
