"""Long polling: what is held until there is something to say, an agent's poll or a log's end. None keeps a thread."""

import asyncio

from sickbay.faces.answers import LogPiece
from sickbay.faces.api import requests
from sickbay.faces.api.examples import POLL, REPLY, REPORT
from sickbay.faces.api.jobs import found
from sickbay.faces.api.refusal import ApiRefusal
from sickbay.faces.api.report_queue import ONE_NODES_MOST
from sickbay.faces.api.route import AGENTS, MIB, PEOPLE, ApiRequest, Route, on_thread
from sickbay.model.errors import Gone
from sickbay.model.fleet import NodeId
from sickbay.model.job import Job
from sickbay.model.protocol import Poll, Reply, Report
from sickbay.ports.cluster import Log

LOOK = 1.0  # seconds: a held poll looks again even if nobody rang
LOG_LOOK = 0.25  # nobody rings when a rank writes a line


def _own(ask: ApiRequest, node: NodeId, instance_id: str) -> None:
    """Raises ApiRefusal(403) for an agent that speaks for another's node, or from another machine than has joined."""
    mine = ask.who.node if ask.who is not None else None
    if mine != node:
        raise ApiRefusal(403, f"this token is for the agent of {mine or 'no node'}: it cannot speak for {node}")
    if ask.who is not None and ask.who.instance_id not in {"", instance_id}:
        raise ApiRefusal(403, f"this token is that of {ask.who.instance_id}, not of {instance_id}: join anew")


async def report(ask: ApiRequest, body: Report) -> Reply:
    """Answered when it is stored, together with those that came meanwhile."""
    _own(ask, body.node, body.instance_id)
    return await ask.shared.store_report(body, ask.size)


async def poll(ask: ApiRequest, body: Poll) -> Reply:
    """Answered at once when a command waits; else held until one is posted, or as long as the reply allows."""
    _own(ask, body.node, body.instance_id)
    mail = ask.shared.mail
    loop = asyncio.get_running_loop()
    begun = loop.time()
    while True:
        heard = mail.rings
        reply = await on_thread(AGENTS, ask.backend.commands, body)
        left = begun + reply.poll_for - loop.time()
        if reply.commands or left <= 0 or mail.closed or await ask.hung_up():
            return reply
        await mail.wait(heard, min(left, LOOK))


async def logs(ask: ApiRequest, query: requests.LogAsked) -> LogPiece:
    """Held while the rank goes on and has written nothing more."""
    loop = asyncio.get_running_loop()
    until = loop.time() + query.wait
    while True:
        piece = await on_thread(PEOPLE, _piece, ask, query)
        left = until - loop.time()
        if piece.text or piece.over or left <= 0 or ask.shared.news.closed or await ask.hung_up():
            return piece
        await asyncio.sleep(min(left, LOG_LOOK))


def _piece(ask: ApiRequest, asked: requests.LogAsked) -> LogPiece:
    job = found(ask, ask.path["id"])
    ask.may_touch(job, "read what it wrote")
    attempt = asked.attempt or job.attempt
    if attempt > job.attempt:
        raise ApiRefusal(404, f"{job.id} has no attempt {attempt}: {_attempts(job)}")
    log = _log(ask, asked, job, attempt)
    return LogPiece(rank=asked.rank, attempt=attempt, text=log.text, next=log.next, over=log.over)


def _attempts(job: Job) -> str:
    return f"the last one is {job.attempt}" if job.attempt else "it has not been started yet"


def _log(ask: ApiRequest, asked: requests.LogAsked, job: Job, attempt: int) -> Log:
    nothing = Log(text="", next=asked.after, over=not job.open)
    if attempt == 0:
        return nothing
    ranks = job.spec.most * job.spec.ranks_per_node
    if asked.rank >= ranks and not job.adopted:
        raise ApiRefusal(404, f"{job.id} has no rank {asked.rank}: its ranks are 0 to {ranks - 1}")
    try:
        return ask.backend.logs(job, attempt, asked.rank, after=asked.after, last=asked.last, limit=asked.limit)
    except Gone:
        if job.open and attempt == job.attempt:
            return nothing  # it is about to start, or to be started again
        raise ApiRefusal(404, f"nothing is kept of rank {asked.rank} in attempt {attempt} of {job.id}") from None


ROUTES = (
    Route(
        "GET", "/v1/jobs/{id}/logs", logs,
        "What a rank wrote; with wait, held until there is more. A submitter: of their own jobs", role="submitter",
        query_example={"rank": "0"}, path_example={"id": "llama-3f2a1"},
        answer_example={"rank": 0, "attempt": 2, "text": "step 120\n", "next": "1831", "over": False},
    ),
    Route(
        "POST", "/v1/agent/report", report, "An agent reports: numbered items, or a sign of life",
        role="agent", limit=4 * MIB, at_once=ONE_NODES_MOST, ask_example=REPORT, answer_example=REPLY,
    ),
    Route(
        "POST", "/v1/agent/poll", poll, "An agent asks for commands; held while none waits",
        role="agent", ask_example=POLL, answer_example=REPLY,
    ),
)  # fmt: skip
