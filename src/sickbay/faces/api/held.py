"""What is held until there is something to say: an agent's poll, the end of a log. None of it keeps a thread."""

import asyncio
from typing import Any

from sickbay.faces.api import answers, requests
from sickbay.faces.api.examples import POLL, REPLY, REPORT
from sickbay.faces.api.jobs import found
from sickbay.faces.api.refusal import ApiRefusal
from sickbay.faces.api.route import MIB, ApiRequest, Route
from sickbay.faces.api.threads import AGENTS, PEOPLE, on_thread
from sickbay.model.errors import Gone
from sickbay.model.job import Job
from sickbay.model.protocol import Poll, Reply, Report
from sickbay.ports.cluster import Log

LOOK = 1.0  # seconds: a held poll looks again even if nobody rang
LOG_LOOK = 0.25  # nobody rings when a rank writes a line


def _own(ask: ApiRequest) -> None:
    """Raises Refused(403) for an agent that speaks for another's node."""
    mine = ask.who.node if ask.who is not None else None
    if mine != ask.body.node:
        raise ApiRefusal(
            403, f"this token is for the agent of {mine or 'no node'}: it cannot speak for {ask.body.node}"
        )


def report(ask: ApiRequest) -> Reply:
    _own(ask)
    return ask.desk.receive(ask.body)


async def _hung_up(ask: ApiRequest) -> bool:
    return ask.gone is not None and bool(await ask.gone())


async def poll(ask: ApiRequest) -> Reply:
    """Answered at once when a command waits; else held until one is posted, or as long as the reply allows."""
    _own(ask)
    mail = ask.room.mail
    loop = asyncio.get_running_loop()
    begun = loop.time()
    while True:
        heard = mail.rings
        reply: Reply = await on_thread(AGENTS, ask.desk.commands, ask.body)
        left = begun + reply.poll_for - loop.time()
        if reply.commands or left <= 0 or mail.closed or await _hung_up(ask):
            return reply
        await mail.wait(heard, min(left, LOOK))


async def logs(ask: ApiRequest) -> dict[str, Any]:
    """Held while the rank goes on and has written nothing more."""
    loop = asyncio.get_running_loop()
    until = loop.time() + ask.query.wait
    while True:
        piece: dict[str, Any] = await on_thread(PEOPLE, _piece, ask)
        left = until - loop.time()
        if piece["text"] or piece["over"] or left <= 0 or ask.room.news.closed or await _hung_up(ask):
            return piece
        await asyncio.sleep(min(left, LOG_LOOK))


def _piece(ask: ApiRequest) -> dict[str, Any]:
    job = found(ask, ask.path["id"])
    asked: requests.LogAsked = ask.query
    attempt = asked.attempt or job.attempt
    if attempt > job.attempt:
        raise ApiRefusal(404, f"{job.id} has no attempt {attempt}: {_attempts(job)}")
    log = _log(ask, job, attempt)
    return {"rank": asked.rank, "attempt": attempt, "text": log.text, "next": log.next, "over": log.over}


def _attempts(job: Job) -> str:
    return f"the last one is {job.attempt}" if job.attempt else "it has not been started yet"


def _log(ask: ApiRequest, job: Job, attempt: int) -> Log:
    asked: requests.LogAsked = ask.query
    nothing = Log(text="", next=asked.after, over=not job.open)
    if attempt == 0:
        return nothing
    ranks = job.spec.most * job.spec.ranks_per_node
    if asked.rank >= ranks and not job.adopted:
        raise ApiRefusal(404, f"{job.id} has no rank {asked.rank}: its ranks are 0 to {ranks - 1}")
    try:
        return ask.desk.logs(job, attempt, asked.rank, after=asked.after, last=asked.last, limit=asked.limit)
    except Gone:
        if job.open and attempt == job.attempt:
            return nothing  # it is about to start, or to be started again
        raise ApiRefusal(404, f"nothing is kept of rank {asked.rank} in attempt {attempt} of {job.id}") from None


ROUTES = (
    Route(
        "GET", "/v1/jobs/{id}/logs", logs, "What a rank wrote; with wait, held until there is more", answers.LogPiece,
        query=requests.LogAsked, query_example={"rank": "0"}, path_example={"id": "llama-3f2a1"},
        answer_example={"rank": 0, "attempt": 2, "text": "step 120\n", "next": "1831", "over": False},
    ),
    Route(
        "POST", "/v1/agent/report", report, "An agent reports: numbered items, or a sign of life", Reply,
        role="agent", body=Report, limit=4 * MIB, ask_example=REPORT, answer_example=REPLY,
    ),
    Route(
        "POST", "/v1/agent/poll", poll, "An agent asks for commands; held while none waits", Reply,
        role="agent", body=Poll, ask_example=POLL, answer_example=REPLY,
    ),
)  # fmt: skip
