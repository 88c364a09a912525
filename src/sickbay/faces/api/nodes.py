"""Nodes: what they are, and what a person may ask of one."""

import logging
from functools import partial

from msgspec import structs

from sickbay.faces.answers import Injected, NodeAnswer, OrderedNode
from sickbay.faces.api import requests
from sickbay.faces.api.examples import NODE, NODE_PATH, ORDER
from sickbay.faces.api.refusal import ApiRefusal, missing
from sickbay.faces.api.route import ApiRequest, Route
from sickbay.faces.archive import Archive
from sickbay.faces.explain import node_answer
from sickbay.model.cordon import others_of
from sickbay.model.errors import StoreError
from sickbay.model.facts import Ordered
from sickbay.model.fleet import Node, pool_word
from sickbay.model.protocol import AnyOrder, RunCollect, RunInject
from sickbay.ports.breakable import Breakage

log = logging.getLogger("sickbay.api")

VERBS = {
    "cordon": "Take a node out of service and leave it there",
    "uncordon": "Put it back: ends our incident, takes our cordon away",
    "drain": "Take it out of service and its work off it",
    "reset": "Reset its GPUs",
    "reboot": "Reboot it, check it, put it back",
    "replace": "Have another machine take its seat",
}
ANSWERS, COLLECTS = 15.0, 25.0  # seconds that a person waits for an agent
# No node has a GPU there: the line names none that could be looked at.
DRILL = "NVRM: Xid (PCI:0000:ff:1f): {number}, pid='<unknown>', name=<unknown>, written by an operator as a drill"


def listed(ask: ApiRequest, query: requests.OfPool) -> list[NodeAnswer]:
    nodes = ask.archive.nodes()
    pool = query.pool
    mine = [node for node in nodes if pool in {"", node.pool, pool_word(node.pool)}]
    if pool and not mine:
        raise missing("pool", pool, (node.pool for node in nodes))
    page = [node for node in mine if node.id > query.after][: query.limit]  # in the order of their ids
    return [node_answer(ask.archive, node) for node in page]


def found(archive: Archive, cluster: str, name: str) -> Node:
    """Raises ApiRefusal: 404, or 400 where more than one has the name."""
    if cluster != "-":
        node = archive.node(f"{cluster}/{name}")
        if node is None:
            raise missing("node", f"{cluster}/{name}", (node.id for node in archive.nodes()))
        return node
    nodes = archive.nodes()
    named = [node for node in nodes if node.name == name]
    if len(named) > 1:
        raise ApiRefusal(400, f"{name!r} is more than one node: write {' or '.join(node.id for node in named)}")
    if not named:
        raise missing("node", name, (node.id for node in nodes))
    return named[0]


def by_name(archive: Archive, name: str) -> Node:
    """`train-3` or `lab/train-3`. Raises ApiRefusal."""
    cluster, slash, rest = name.partition("/")
    return found(archive, cluster, rest) if slash else found(archive, "-", name)


def one(ask: ApiRequest) -> NodeAnswer:
    return node_answer(ask.archive, found(ask.archive, ask.path["cluster"], ask.path["name"]))


def act(ask: ApiRequest, body: requests.NodeAct, verb: str) -> OrderedNode:
    node = found(ask.archive, ask.path["cluster"], ask.path["name"])
    if not ask.repeated:
        _fits(ask.archive, node, verb)
    fate = ask.fate(ask.order(verb, node.id, body.reason, now=body.now))
    archive = ask.fresh()
    return OrderedNode(**structs.asdict(node_answer(archive, archive.node(node.id) or node)), order=fate)


def _fits(archive: Archive, node: Node, verb: str) -> None:
    """Raises ApiRefusal(409) for what makes no sense now: an act that would change nothing must not look done."""
    if node.incarnation is None and verb != "uncordon":
        raise ApiRefusal(409, f"the seat {node.id} is vacant: there is no machine to {verb}")
    if verb == "uncordon" and node.incarnation is not None:
        incident = archive.incident(node.incident) if node.incident else None
        if incident is None or not incident.open:
            others = others_of(node.cordons)
            why = (
                f"cordoned by {', '.join(others)}, who must take it back there"
                if others
                else "not taken out of service by an incident"
            )
            raise ApiRefusal(409, f"there is nothing to uncordon: {node.id} is {why}")


def inject(ask: ApiRequest, body: requests.Inject) -> Injected:
    node = found(ask.archive, ask.path["cluster"], ask.path["name"])
    breakage = body.breakage()
    if body.log:
        return _drill(ask, node, breakage, body.reason)
    if ask.backend.breakable is None:
        raise ApiRefusal(
            409,
            f"the hardware of cluster {node.cluster} is real and is not broken on purpose: "
            "with log=true its agent writes a line that says so (sickbay inject NODE --xid N --log)",
        )
    done = ask.backend.breakable.inject(node.id, breakage)
    try:
        ask.backend.order(Ordered(verb="inject", target=node.id, by=ask.by, reason=_reason(body, breakage)), ask.key)
    except StoreError as error:  # it is done: hardware breaks on a full disk, too
        log.warning("%s broke %s, and the audit log could not take it: %s", ask.by, node.id, error)
    return Injected(node=node.id, done=done)


def _reason(body: requests.Inject, breakage: Breakage) -> str:
    return " ".join(body.reason.split()) or _words(breakage)


def _words(wanted: Breakage) -> str:
    """What is broken, for the audit log, where nobody said why."""
    what = f"xid {wanted.xid}" if wanted.xid is not None else wanted.defect or f"the line {wanted.line!r}"
    return f"{what} on device {wanted.device}" if not wanted.line else what[:500]


def _drill(ask: ApiRequest, node: Node, wanted: Breakage, reason: str) -> Injected:
    """One dated line in the log that the node's agent watches; all that follows is real."""
    if wanted.defect:
        raise ApiRefusal(400, "a defect is for virtual devices: give xid or line")
    line = wanted.line or DRILL.format(number=wanted.xid)
    order = RunInject(key=ask.key, line=line)
    return _by_agent(ask, node, "inject", order, reason, within=ANSWERS, done=f"wrote: {line}")


def collect(ask: ApiRequest, body: requests.WithReason) -> Injected:
    node = found(ask.archive, ask.path["cluster"], ask.path["name"])
    return _by_agent(ask, node, "collect", RunCollect(key=ask.key), body.reason, within=COLLECTS)


def _by_agent(
    ask: ApiRequest, node: Node, verb: str, what: AnyOrder, reason: str, *, within: float, done: str = ""
) -> Injected:
    """Audited before it is asked for. Raises ApiRefusal where the agent refuses."""
    ask.order(verb, node.id, reason)
    answer = ask.backend.ask_agent(node, what, key=f"{verb}/{ask.key}", within=within, notify=ask.shared.mail.ring)
    if answer is None:
        return Injected(node=node.id, done=f"asked for, not answered yet: 'sickbay explain {node.id}' will show it")
    if answer.fields.get("result") != "done":
        raise ApiRefusal(409, f"the agent of {node.id} answers {answer.text}")
    return Injected(node=node.id, done=done or answer.text)


_ONE = "/v1/nodes/{cluster}/{name}"
ROUTES = (
    Route(
        "GET", "/v1/nodes", listed, "All nodes, or those of one pool",
        query_example={"pool": "train"}, answer_example=[NODE],
    ),
    Route(
        "GET", _ONE, one, "One node; '-' as its cluster: whichever has it",
        path_example=NODE_PATH, answer_example=NODE,
    ),
    *(
        Route(
            "POST", f"{_ONE}/{verb}", partial(act, verb=verb), about,
            role="operator", path_example=NODE_PATH, answer_example={**NODE, "order": {**ORDER, "verb": verb}},
            ask_example={"reason": "its fan is loud"},
        )
        for verb, about in VERBS.items()
    ),
    Route(
        "POST", f"{_ONE}/inject", inject, "Break a virtual device on purpose",
        role="operator", path_example=NODE_PATH, ask_example={"xid": 79, "cured_by": "reboot"},
        answer_example={"node": "lab/train-0000", "done": "GPU 0 fell off the bus; a reboot cures it"},
    ),
    Route(
        "POST", f"{_ONE}/collect", collect, "Have the node's agent gather what a support engineer asks for",
        role="operator", path_example=NODE_PATH,
        ask_example={"reason": "for the vendor's support"},
        answer_example={"node": "lab/train-0000", "done": "/var/lib/sickbay/bundles/20260301T000000Z.tar.gz, 1.2 MB"},
    ),
)  # fmt: skip
