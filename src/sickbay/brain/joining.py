"""Admission of an agent that joins: whether it may have the name of a node.

A join token shows that somebody may bring nodes of a cluster; which machine asks, it says itself. So a name is given
out only while nobody lives under it: neither an agent that is heard, nor another machine that the cluster shows there.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from sickbay.model.facts import EarlyAgent
from sickbay.model.fleet import AgentState, Incarnation, Node, NodeId, Token

# Whoever was given a name has so long to be heard under it: of two machines that are set up with one name, the first
# keeps it, and they do not take it from each other in turn.
TO_BE_HEARD = timedelta(minutes=1)
SILENT_BY = timedelta(minutes=5)


class JoinVerdict(StrEnum):
    """What becomes of a request to join."""

    GRANTED = "granted"
    ASK_AGAIN = "ask_again"  # it comes right by itself, or may
    TAKEN = "taken"  # another machine lives under this name: a person must know


class JoinInput(NamedTuple):
    """Who asks for which name, and what is known of that name."""

    node: NodeId
    instance_id: str
    now: datetime
    seat: Node | None = None
    voice: EarlyAgent | None = None  # an agent of this name whose machine the cluster has not spoken of
    tokens: Sequence[Token] = ()  # that were got by joining under this name


class JoinAnswer(NamedTuple):
    verdict: JoinVerdict
    because: str = ""
    holder: str = ""  # the instance that has the name; empty: nobody knows it


def token_name(node: NodeId) -> str:
    """Of the token of the node's own agent."""
    return f"agent of {node}"


def judge_join(asked: JoinInput) -> JoinAnswer:
    heard = _heard(asked)
    shown = asked.seat.registered if asked.seat is not None and asked.seat.ready else None
    theirs = shown.instance_id if shown is not None else ""
    if theirs == asked.instance_id and (heard is None or heard.instance_id != theirs):
        # The cluster names this very machine: who speaks under its name, or has joined there, is one that was replaced.
        return JoinAnswer(JoinVerdict.GRANTED)
    if heard is not None and heard.instance_id != asked.instance_id:
        return _taken(asked, heard.instance_id, "whose agent is heard")
    if theirs not in {"", asked.instance_id}:
        return _taken(asked, theirs, "which its cluster shows there, ready")
    if heard is not None and not any(_ended_lately(token, asked.now) for token in asked.tokens):
        # Of the very same machine, it says; so would whoever took a copy of the join token.
        because = f"an agent of {asked.node} is heard: another one may join when that is silent or its token is revoked"
        return JoinAnswer(JoinVerdict.ASK_AGAIN, because, asked.instance_id)
    for token in asked.tokens:
        fresh = not token.over(asked.now) and asked.now - token.issued_at < TO_BE_HEARD
        if fresh and token.instance_id not in {"", asked.instance_id}:
            return _taken(asked, token.instance_id, "which has joined just now")
    return JoinAnswer(JoinVerdict.GRANTED)


def _heard(asked: JoinInput) -> Incarnation | None:
    """Who is heard under the name."""
    if asked.seat is not None and asked.seat.agent is AgentState.HEARD and asked.seat.incarnation is not None:
        return asked.seat.incarnation
    return asked.voice.incarnation if asked.voice is not None and asked.voice.heard else None


def _ended_lately(token: Token, now: datetime) -> bool:
    """It was revoked, or has expired, and its agent is about to fall silent."""
    return token.expires_at is not None and token.expires_at <= now < token.expires_at + SILENT_BY


def _taken(asked: JoinInput, holder: str, how: str) -> JoinAnswer:
    who = holder or "a machine that does not name itself"
    because = f"the name {asked.node} is taken by {who}, {how}: give this machine another name, or end the agent there"
    return JoinAnswer(JoinVerdict.TAKEN, because, holder)
