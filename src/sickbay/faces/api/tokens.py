"""Bearer tokens: who may do what. A secret is shown once, when it is made."""

from datetime import timedelta

from sickbay.faces.api import requests
from sickbay.faces.api.nodes import by_name
from sickbay.faces.api.refusal import ApiRefusal
from sickbay.faces.api.route import ApiRequest, Route
from sickbay.faces.archive import iso, unknown_name
from sickbay.faces.fleet_answers import TokenGone, TokenMade, TokenShown
from sickbay.model.fleet import NodeId, Role, Token

FORGET_AFTER = timedelta(days=30)  # an expired token is shown so long, so that people see why theirs opens nothing
FORGET_AT_ONCE = 10
TOKENS = "/v1/tokens"


def listed(ask: ApiRequest) -> list[TokenShown]:
    uses, now = ask.shared.uses(), ask.backend.now()
    shown = []
    for token in sorted(ask.all_of(Token, "token"), key=lambda token: token.name):
        used = max(filter(None, (token.used_at, uses.get(token.hash))), default=None)
        shown.append(
            TokenShown(
                name=token.name,
                role=token.role,
                node=token.node,
                cluster=token.cluster or None,
                by=token.by,
                issued_at=iso(token.issued_at),
                expires_at=iso(token.expires_at),
                expired=token.over(now),
                used_at=iso(max(token.issued_at, used.replace(second=0, microsecond=0))) if used is not None else None,
            )
        )
    return shown


def issue(ask: ApiRequest, body: requests.TokenAsked) -> TokenMade:
    name = requests.named(body.name)
    now = ask.backend.now()
    tokens = ask.all_of(Token, "token")
    mine = [token for token in tokens if token.name == name]
    if any(not token.over(now) for token in mine):
        raise ApiRefusal(409, f"there is a token {name!r} already: revoke it first, or choose another name")
    node, cluster = _node(ask, body), _cluster(ask, body)
    _forget_expired(ask, [token for token in tokens if token.name != name])
    secret = ask.backend.issue(
        name, body.role, by=ask.by, node=node, seconds=body.seconds, anew=bool(mine), reason=body.reason,
        cluster=cluster,
    )  # fmt: skip
    made = ask.backend.who(secret)
    if made is None:
        raise ApiRefusal(503, "the engine has not taken it up yet: revoke this name and try again in a moment")
    until = iso(made.expires_at)
    return TokenMade(name=name, role=body.role, node=node, cluster=cluster or None, expires_at=until, token=secret)


def _forget_expired(ask: ApiRequest, tokens: list[Token]) -> None:
    """A few that expired long ago go with each new one: whoever makes one for each run fills no store."""
    long_ago = ask.backend.now() - FORGET_AFTER
    for token in [token for token in tokens if token.over(long_ago)][:FORGET_AT_ONCE]:
        ask.backend.revoke(token.name, by="sickbay", reason="it expired a month ago")


def _node(ask: ApiRequest, asked: requests.TokenAsked) -> NodeId | None:
    """An agent may come before its cluster speaks of its machine; of a cluster that is not ours nobody ever will."""
    if asked.role is not Role.AGENT:
        if asked.node:
            raise ApiRefusal(400, f"node is for agents only: a token of role {asked.role} is not tied to one")
        return None
    if not asked.node:
        raise ApiRefusal(400, "an agent's token needs its node: '<cluster>/<name>', or the name of one that is known")
    cluster, slash, name = asked.node.partition("/")
    if not slash:
        return by_name(ask.archive, asked.node).id
    requests.named(cluster, "cluster")
    requests.named(name, "node")
    if cluster not in ask.backend.clusters:
        raise ApiRefusal(400, unknown_name("cluster", cluster, ask.backend.clusters))
    return NodeId(asked.node)


def _cluster(ask: ApiRequest, asked: requests.TokenAsked) -> str:
    """The one that a join token is good for."""
    if asked.role is not Role.JOIN:
        if asked.cluster:
            raise ApiRefusal(400, f"cluster is for join tokens only: a token of role {asked.role} is not tied to one")
        return ""
    if not asked.cluster:
        known = ", ".join(sorted(ask.backend.clusters))
        raise ApiRefusal(400, f"a join token is for one cluster: say which ({known})")
    if asked.cluster not in ask.backend.clusters:
        raise ApiRefusal(400, unknown_name("cluster", asked.cluster, ask.backend.clusters))
    return asked.cluster


def revoke(ask: ApiRequest, query: requests.TokenRevoke) -> TokenGone:
    name = ask.path["name"]
    tokens = ask.all_of(Token, "token")
    mine = [token for token in tokens if token.name == name]
    if not mine and not ask.repeated:
        people_first = sorted(tokens, key=lambda token: (token.role is Role.AGENT, token.name))
        line = unknown_name("token", name, (token.name for token in people_first), whole_names=True)
        raise ApiRefusal(404, f"{line} ('sickbay token list' shows all)")
    if any(token.governs for token in mine) and not any(token.governs and token.name != name for token in tokens):
        raise ApiRefusal(
            409,
            f"{name!r} is the last admin's token that does not expire: create another one before it is revoked "
            "(sickbay token create NAME --role admin)",
        )
    ask.backend.revoke(name, by=ask.by, reason=query.reason)
    return TokenGone(name=name, revoked=all(token.over(ask.backend.now()) for token in _named(ask, name)))


def _named(ask: ApiRequest, name: str) -> list[Token]:
    return [token for token in ask.all_of(Token, "token") if token.name == name]


_SHOWN = {
    "name": "ann", "role": "operator", "node": None, "cluster": None, "by": "setup",
    "issued_at": "2026-01-01T00:00:00.000Z", "expires_at": "2026-02-01T00:00:00.000Z", "expired": False,
    "used_at": "2026-01-02T09:00:00.000Z",
}  # fmt: skip
ROUTES = (
    Route(
        "GET", TOKENS, listed, "All tokens, without their secrets", role="admin", answer_example=[_SHOWN],
    ),
    Route(
        "POST", TOKENS, issue, "A new token", role="admin",
        status=201, ask_example={"name": "console", "role": "viewer", "seconds": 2592000},
        answer_example={
            "name": "console", "role": "viewer", "node": None, "cluster": None,
            "expires_at": "2026-02-01T00:00:00.000Z",
            "token": "shown-here-once",
        },
    ),
    Route(
        "DELETE", TOKENS + "/{name}", revoke, "Revoke a token", role="admin", slashes="name",
        path_example={"name": "console"}, query_example={"reason": "he has left"},
        answer_example={"name": "console", "revoked": True},
    ),
)  # fmt: skip
