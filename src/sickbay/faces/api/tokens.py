"""Bearer tokens: who may do what. A secret is shown once, when it is made."""

from sickbay.faces.answers import TokenGone, TokenMade, TokenShown
from sickbay.faces.api import requests
from sickbay.faces.api.refusal import ApiRefusal, missing
from sickbay.faces.api.route import ApiRequest, Route
from sickbay.faces.archive import iso
from sickbay.model.fleet import NodeId, Token


def listed(ask: ApiRequest) -> list[TokenShown]:
    return [
        TokenShown(name=token.name, role=token.role, node=token.node, by=token.by, issued_at=iso(token.issued_at))
        for token in sorted(ask.all_of(Token, "token"), key=lambda token: token.name)
    ]


def issue(ask: ApiRequest, body: requests.TokenAsked) -> TokenMade:
    name = requests.named(body.name)
    if any(token.name == name for token in ask.all_of(Token, "token")):
        raise ApiRefusal(409, f"there is a token {name!r} already: revoke it first, or choose another name")
    node = _node(body)
    secret = ask.backend.issue(name, body.role, by=ask.by, node=node)
    if ask.backend.who(secret) is None:
        raise ApiRefusal(503, "the engine has not taken it up yet: revoke this name and try again in a moment")
    return TokenMade(name=name, role=body.role, token=secret)


def _node(asked: requests.TokenAsked) -> NodeId | None:
    if asked.role != "agent":
        if asked.node:
            raise ApiRefusal(400, f"node is for agents only: a {asked.role} is not tied to one")
        return None
    cluster, slash, name = asked.node.partition("/")
    if not (cluster and slash and name):
        raise ApiRefusal(400, "an agent's token needs its node, written '<cluster>/<name>'")
    requests.named(cluster, "cluster")
    requests.named(name, "node")
    return NodeId(asked.node)


def revoke(ask: ApiRequest) -> TokenGone:
    name = ask.path["name"]
    tokens = ask.all_of(Token, "token")
    mine = [token for token in tokens if token.name == name]
    if not mine and not ask.repeated:
        raise missing("token", name, (token.name for token in tokens))
    left = [token for token in tokens if token.role == "operator" and token.name != name]
    if mine and not left:
        raise ApiRefusal(409, f"{name!r} is the last operator's token: create another one before it is revoked")
    ask.backend.revoke(name, by=ask.by)
    return TokenGone(name=name, revoked=all(token.name != name for token in ask.all_of(Token, "token")))


ROUTES = (
    Route(
        "GET", "/v1/tokens", listed, "All tokens, without their secrets", role="operator",
        answer_example=[
            {"name": "ann", "role": "operator", "node": None, "by": "setup", "issued_at": "2026-01-01T00:00:00.000Z"}
        ],
    ),
    Route(
        "POST", "/v1/tokens", issue, "A new token", role="operator",
        status=201, ask_example={"name": "console", "role": "viewer"},
        answer_example={"name": "console", "role": "viewer", "token": "shown-here-once"},
    ),
    Route(
        "DELETE", "/v1/tokens/{name}", revoke, "Revoke a token", role="operator",
        path_example={"name": "console"}, answer_example={"name": "console", "revoked": True},
    ),
)  # fmt: skip
