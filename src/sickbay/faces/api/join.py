"""Enrolment of agents: with a join token an agent asks for the token of its own node, and is held until it is good."""

import asyncio

from sickbay.brain.joining import JoinAnswer, JoinVerdict
from sickbay.faces.api import requests
from sickbay.faces.api.refusal import ApiRefusal
from sickbay.faces.api.route import JOINERS, KIB, ApiRequest, Route, on_thread
from sickbay.faces.archive import unknown_name
from sickbay.hosts.backend import hash_of
from sickbay.hosts.joining import JoinWish
from sickbay.model.fleet import NodeId
from sickbay.model.protocol import JoinAsked, Joined

LEARNED_WITHIN = 10.0  # seconds until the engine has learned of a token
RECENT = 200  # changes that may have been committed while the store was asked
LOOK = 1.0  # it is looked for again even if nobody rang: another replica may lead
INSTANCE_MOST = 200  # characters


def judge_proof(ask: ApiRequest, asked: JoinAsked) -> JoinWish:
    """Judges the proof of identity: which name this caller may ask for, as which machine. Raises ApiRefusal.

    A join token proves the cluster; name and instance are the caller's own word. Other proofs, such as a pod's own
    service-account token, which names its node, are to be judged here and nowhere else.
    """
    assert ask.who is not None
    requests.named(asked.cluster, "cluster")
    if ask.who.cluster != asked.cluster:
        may = f"join token {ask.who.name!r} is for the cluster {ask.who.cluster}"
        raise ApiRefusal(403, f"{may}: it lets nobody into {asked.cluster}")
    if asked.cluster not in ask.backend.clusters:
        raise ApiRefusal(404, unknown_name("cluster", asked.cluster, ask.backend.clusters))
    requests.named(asked.name, "node")
    instance = asked.instance_id
    if not instance.strip() or len(instance) > INSTANCE_MOST or not instance.isprintable():
        raise ApiRefusal(400, f"instance_id {instance[:40]!r} cannot be used: write 1 to {INSTANCE_MOST} visible signs")
    return JoinWish(NodeId(f"{asked.cluster}/{asked.name}"), instance, ask.who.name)


async def join(ask: ApiRequest, body: JoinAsked) -> Joined:
    wish = judge_proof(ask, body)
    joining = ask.shared.joining
    if not joining.room.acquire(blocking=False):
        raise ApiRefusal(503, "many agents join at once: ask again in a moment")
    try:
        found = await on_thread(JOINERS, joining.begin, wish)
        if isinstance(found, JoinAnswer):
            raise _refusal(found)
        return await _learned(ask, wish, found)
    finally:
        joining.room.release()


async def _learned(ask: ApiRequest, wish: JoinWish, secret: str) -> Joined:
    """A secret is handed out when it opens something: an agent that was refused with it would ask for another."""
    loop = asyncio.get_running_loop()
    until = loop.time() + LEARNED_WITHIN
    while True:
        answer = await on_thread(JOINERS, ask.shared.joining.outcome, wish, secret)
        if answer is not None and answer.verdict is JoinVerdict.GRANTED:
            return Joined(node=wish.node, token=secret)
        if answer is not None:
            raise _refusal(answer)
        if loop.time() >= until or ask.shared.news.closed:
            raise ApiRefusal(503, "the engine has not taken it up yet: ask again in a moment")
        await _told_of(ask, hash_of(secret), min(until, loop.time() + LOOK))


async def _told_of(ask: ApiRequest, digest: str, until: float) -> None:
    """Until this token was committed here, or it is time to look. Of all that wait only one asks the store then."""
    loop, news, changes = asyncio.get_running_loop(), ask.shared.news, ask.backend.changes
    seen = changes.seq - RECENT
    while loop.time() < until and not news.closed:
        heard = news.rings
        found = changes.since(max(0, seen))
        if found is None or any(change.kind == "token" and change.id == digest for change in found):
            return
        seen = found[-1].seq if found else seen
        await news.wait(heard, until - loop.time())


def _refusal(answer: JoinAnswer) -> ApiRefusal:
    return ApiRefusal(409 if answer.verdict is JoinVerdict.TAKEN else 503, answer.because)


ROUTES = (
    Route(
        "POST", "/v1/agent/join", join, "An agent asks for the token of its own node; 503: ask again", role="join",
        limit=16 * KIB, ask_example={"cluster": "lab", "name": "train-0000", "instance_id": "i-0a12"},
        answer_example={"node": "lab/train-0000", "token": "told-here-once"},
    ),
)  # fmt: skip
