"""Jobs: submit, see, stop."""

import secrets
from collections.abc import Sequence
from datetime import datetime

from msgspec import structs
from msgspec.structs import replace

from sickbay.brain.submission import not_our_queue, refusal, too_large, unchecked_storage
from sickbay.faces.answers import JobAnswer, OneJob, OrderedJob
from sickbay.faces.api import requests
from sickbay.faces.api.continuing import taken_up
from sickbay.faces.api.examples import JOB, ONE_JOB, ORDER
from sickbay.faces.api.nodes import by_name
from sickbay.faces.api.refusal import ApiRefusal, missing
from sickbay.faces.api.route import ApiRequest, Route
from sickbay.faces.explain import job_answer, one_job
from sickbay.faces.turns import Turns
from sickbay.hosts.backend import job_named
from sickbay.model.fleet import Capability, Node, Role, pool_word
from sickbay.model.job import Job, JobSpec, LogRule


def listed(ask: ApiRequest, query: requests.OfState) -> list[JobAnswer]:
    begin = _age(found(ask, query.after)) if query.after else None
    jobs = sorted(ask.all_of(Job, "job"), key=_age, reverse=True)
    state = query.state
    shown = [job for job in jobs if state is None or (job.open if state == "open" else job.state == state)]
    shown = [job for job in shown if begin is None or _age(job) < begin]
    turns = Turns(jobs)
    return [job_answer(job, turns) for job in shown[: query.limit]]


def _age(job: Job) -> tuple[datetime, str]:
    """The order of the list, newest first; pages are cut by it, so that a new one shifts nobody."""
    return job.submitted_at, job.id


def found(ask: ApiRequest, ident: str) -> Job:
    """By its id, or the newest of that name. A submitter may touch none but their own, so the newest of these comes
    first: who gives a job the name of another's keeps nobody from it.
    """
    job = ask.fresh().job(ident)
    if job is not None:
        return job
    jobs = ask.all_of(Job, "job")
    named = [one for one in jobs if one.spec.name == ident]
    if not named:
        raise missing("job", ident, (one.id for one in jobs))
    own = [one for one in named if ask.who is not None and ask.who.role is Role.SUBMITTER and one.owner == ask.by]
    return max(own or named, key=lambda one: one.submitted_at)


def one(ask: ApiRequest) -> OneJob:
    return one_job(ask.archive, found(ask, ask.path["id"]))


def stop(ask: ApiRequest, body: requests.NodeAct) -> OrderedJob:
    job = found(ask, ask.path["id"])
    ask.may_touch(job, "stop it")
    if not job.open and not ask.repeated:
        raise ApiRefusal(409, f"{job.id} is over ({job.state}): there is nothing to stop")
    fate = ask.fate(ask.order("stop", job.id, body.reason, now=body.now))
    archive = ask.fresh()
    now = job_answer(archive.job(job.id) or job, archive.turns(job.spec.cluster))
    return OrderedJob(**structs.asdict(now), order=fate)


def submit(ask: ApiRequest, body: requests.Submit) -> JobAnswer:
    """A job's id is short: the rare one that is taken already is made again under another key."""
    may_come_first(ask, body.priority, "write a priority of 0 or less")
    spec = _spec(ask, body)
    known = ask.fresh().job(job_named(spec.name, ask.key)) if ask.key_given else None
    if known is None:
        spec = taken_up(ask, spec, anew=body.anew, anyones=body.adopt)
    elif replace(known.spec, continues=None) == spec:
        return job_answer(known, ask.fresh().turns(known.spec.cluster))
    return submitted(ask, spec)


def may_come_first(ask: ApiRequest, priority: int, instead: str) -> None:
    """Raises ApiRefusal(403)."""
    if priority > 0 and ask.who is not None and ask.who.role is Role.SUBMITTER:
        raise ApiRefusal(403, f"only an operator may put a job before those of others: {instead}")


def submitted(ask: ApiRequest, spec: JobSpec, reason: str = "", owner: str = "") -> JobAnswer:
    """`owner`: whose job it is, where that is not who asks for it."""
    key = ask.key
    while (job := ask.backend.submit(spec, key=key, by=ask.by, reason=reason, owner=owner)).spec != spec:
        if ask.key_given:
            raise ApiRefusal(409, f"this Idempotency-Key has already made the job {job.id}: choose a new one")
        key = secrets.token_hex(16)
    return job_answer(job, ask.fresh().turns(job.spec.cluster))


def _spec(ask: ApiRequest, asked: requests.Submit) -> JobSpec:
    """The names in it resolved. Raises ApiRefusal for what could never run."""
    nodes = _where(ask, asked)
    spec = JobSpec(
        name=asked.name,
        cluster=nodes[0].cluster,
        pool=pool_word(nodes[0].pool),
        nodes=len(nodes) if asked.nodes is None else asked.nodes,
        on=tuple(node.id for node in nodes) if asked.on else (),
        gpus_per_node=asked.gpus_per_node,
        min_nodes=asked.min_nodes or 0,
        max_restarts=asked.max_restarts,
        precheck=asked.precheck,
        command=asked.command,
        ranks_per_node=asked.ranks_per_node,
        env=asked.env,
        env_files=asked.env_files,
        cwd=asked.cwd,
        checkpoint=asked.checkpoint,
        stall_after=asked.stall_after,
        start_within=asked.start_within,
        log_rules=tuple(LogRule(**structs.asdict(rule)) for rule in asked.log_rules),
        priority=asked.priority,
        time_limit=asked.time_limit,
        grow=asked.grow,
        storage=asked.storage,
        image=asked.image,
        native=asked.native,
    )
    refused = refusal(spec, ask.backend.clusters) or too_large(spec, nodes) or not_our_queue(spec, _can(ask, spec))
    if wrong := refused or unchecked_storage(spec, _can(ask, spec)) or ask.backend.wrong(spec):
        raise ApiRefusal(400, wrong)
    return spec


def _can(ask: ApiRequest, spec: JobSpec) -> frozenset[Capability]:
    return ask.backend.clusters[spec.cluster].capabilities


def _where(ask: ApiRequest, asked: requests.Submit) -> Sequence[Node]:
    """The nodes it may run on: those that it names, or its pool."""
    if asked.on:
        return _on_named(ask, asked)
    if asked.nodes is None:
        raise ApiRefusal(400, "say where: nodes (how many) or on (which)")
    return _pool(ask, asked)


def _on_named(ask: ApiRequest, asked: requests.Submit) -> Sequence[Node]:
    named = [by_name(ask.archive, name) for name in asked.on]
    if asked.nodes is not None and asked.nodes != len(named):
        raise ApiRefusal(
            400, f"nodes {asked.nodes} and on ({len(named)} nodes) contradict each other: give one of them"
        )
    if asked.min_nodes is not None and asked.min_nodes != len(named):
        raise ApiRefusal(400, "min_nodes goes with nodes; with on all named nodes are used: leave it out")
    pools = {(node.cluster, node.pool) for node in named}
    if len(pools) > 1:
        said = ", ".join(sorted(pool for _, pool in pools))
        raise ApiRefusal(400, f"on: the nodes belong to more than one pool ({said}): name nodes of one")
    (cluster, pool) = pools.pop()
    if asked.cluster not in {"", cluster} or asked.pool not in {"", pool, pool_word(pool)}:
        raise ApiRefusal(400, f"on: the nodes belong to pool {pool}, not to the one that is given")
    return named


def _pool(ask: ApiRequest, asked: requests.Submit) -> list[Node]:
    nodes = ask.archive.nodes()
    clusters = sorted({node.cluster for node in nodes} | set(ask.backend.clusters))
    if asked.cluster and asked.cluster not in clusters:
        raise missing("cluster", asked.cluster, clusters)
    mine = [node for node in nodes if asked.cluster in {"", node.cluster}]
    pools = sorted({node.pool for node in mine})

    mine = [node for node in mine if asked.pool in {"", node.pool, pool_word(node.pool)}]
    if asked.pool and not mine:
        raise missing("pool", asked.pool, pools)
    if not mine:
        raise ApiRefusal(409, "there are no nodes yet: wait until the first one has joined")
    if len({node.cluster for node in mine}) > 1:
        raise ApiRefusal(400, f"say which cluster: {', '.join(sorted({node.cluster for node in mine}))}")
    if len(pools) > 1 and not asked.pool:
        raise ApiRefusal(400, f"say which pool: {', '.join(pools)}")
    return mine


ROUTES = (
    Route(
        "GET", "/v1/jobs", listed, "Jobs, newest first",
        query_example={"state": "RUNNING"}, answer_example=[JOB],
    ),
    Route(
        "POST", "/v1/jobs", submit, "Submit a job",
        role="submitter", status=201, answer_example=JOB,
        ask_example={
            "name": "llama", "nodes": 2, "command": ["python", "train.py"], "checkpoint": "/shared/llama",
            "log_rules": [{"name": "steps", "pattern": "^step \\d+", "recurs_within": 300}],
        },
    ),
    Route(
        "GET", "/v1/jobs/{id}", one, "One job",
        path_example={"id": "llama-3f2a1"}, answer_example=ONE_JOB,
    ),
    Route(
        "POST", "/v1/jobs/{id}/stop", stop, "Stop a job; it is not started again. A submitter: their own",
        role="submitter", path_example={"id": "llama-3f2a1"},
        answer_example={**JOB, "order": {**ORDER, "verb": "stop", "target": "llama-3f2a1", "job": "llama-3f2a1"}},
        ask_example={"reason": "the learning rate is wrong"},
    ),
)  # fmt: skip
