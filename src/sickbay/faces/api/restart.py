"""Restart of an ended job from its checkpoints: a new job that continues it, so that an end stays an end."""

from collections.abc import Sequence

from msgspec.structs import replace

from sickbay.brain.submission import cannot_continue, followed, in_use, refusal, too_large
from sickbay.faces.answers import JobAnswer
from sickbay.faces.api import requests
from sickbay.faces.api.continuing import mates_of
from sickbay.faces.api.examples import JOB
from sickbay.faces.api.jobs import found, may_come_first, submitted
from sickbay.faces.api.refusal import ApiRefusal, missing
from sickbay.faces.api.route import ApiRequest, Route
from sickbay.faces.explain import job_answer
from sickbay.hosts.backend import job_named
from sickbay.model.fleet import Node, pool_word
from sickbay.model.job import Continuation, Job, JobSpec

STOPS_WITHIN = 20.0  # seconds that an answer waits for a stop that is under way


def restart(ask: ApiRequest, body: requests.Restart) -> JobAnswer:
    """The same request under the same key is answered by the same job."""
    before = found(ask, ask.path["id"])
    ask.may_touch(before, "restart it")
    may_come_first(ask, before.spec.priority, f"it has priority {before.spec.priority}; have one restart it")
    if ask.key_given and (known := _made_before(ask, before)) is not None:
        return job_answer(known, ask.fresh().turns(known.spec.cluster))
    before = _once_it_is_over(ask, before)
    spec = _spec(before, body)
    by = ask.fresh().job(before.continued_by) if before.continued_by is not None else None
    mates = mates_of(ask, Job(id=before.id, spec=before.spec, submitted_at=before.submitted_at))
    if wrong := cannot_continue(before, by, spec) or in_use(before, mates):
        raise ApiRefusal(409, wrong)
    refused = refusal(spec, ask.backend.clusters) or too_large(spec, _nodes_for(ask, spec))
    if wrong := refused or ask.backend.wrong(spec):
        raise ApiRefusal(400, wrong)
    told = replace(spec.continues or Continuation(), before=followed([before, *mates]))
    return submitted(ask, replace(spec, continues=told), " ".join(body.reason.split()), before.owner)


def _once_it_is_over(ask: ApiRequest, job: Job) -> Job:
    """One that is being stopped saves first: mostly that takes a moment, and stop and restart are pasted together."""

    def now() -> Job:
        return ask.fresh().job(job.id) or job

    if job.open and job.stop_asked:
        ask.backend.changes.wait(lambda: not now().open, STOPS_WITHIN)
    return now()


def _made_before(ask: ApiRequest, before: Job) -> Job | None:
    known = ask.fresh().job(job_named(before.spec.name, ask.key))
    if known is None:
        return None
    if known.spec.continues is None or known.spec.continues.of != before.id:
        raise ApiRefusal(409, f"this Idempotency-Key has already made the job {known.id}: choose a new one")
    return known


def _spec(before: Job, body: requests.Restart) -> JobSpec:
    """What the job was submitted with, and what was changed."""
    if body.anew and body.step is not None:
        raise ApiRefusal(400, "step and anew contradict each other: give one of them")
    spec, was = before.spec, before.spec.continues or Continuation()
    home = None if spec.checkpoint else was.home or before.id
    last = None if body.anew else before.step or was.last_step
    goes_on = Continuation(of=before.id, step=body.step, anew=body.anew, last_step=last, home=home)
    spec = replace(spec, continues=goes_on, command=body.command or spec.command)
    if body.nodes is not None:
        least = body.min_nodes or min(spec.min_nodes, body.nodes)
        return replace(spec, nodes=body.nodes, on=(), min_nodes=least, grow=spec.grow and 0 < least < body.nodes)
    return spec if body.min_nodes is None else replace(spec, min_nodes=body.min_nodes)


def _nodes_for(ask: ApiRequest, spec: JobSpec) -> Sequence[Node]:
    nodes = [node for node in ask.archive.nodes() if node.cluster == spec.cluster and pool_word(node.pool) == spec.pool]
    if not nodes:
        raise ApiRefusal(409, f"pool {spec.pool} of {spec.cluster} has no nodes: wait until the first one has joined")
    if gone := sorted(set(spec.on) - {node.id for node in nodes}):
        raise missing("node", gone[0], (node.id for node in nodes))
    return nodes


ROUTES = (
    Route(
        "POST", "/v1/jobs/{id}/restart", restart,
        "Continue an ended job from its checkpoints, as a new job. A submitter: their own",
        role="submitter", status=201,
        path_example={"id": "llama-3f2a1"}, answer_example=JOB,
        ask_example={"step": 100, "nodes": 3, "reason": "the learning rate was wrong"},
    ),
)  # fmt: skip
