"""A seat: is it in service, what does it count as in its pool, can it be claimed, is its silence a fault?"""

from msgspec.structs import replace

from sickbay.model.cordon import cordon_of
from sickbay.model.fault import AGENT_LOST, NODE_LOST, PARTITION
from sickbay.model.fleet import AgentState, Capability, Node
from sickbay.model.incident import Incident, IncidentKind, Phase


def derive(node: Node, incident: Incident | None, can: frozenset[Capability]) -> Node:
    """The row with the fields that follow from its others and from its open incident."""
    phase = incident.phase if incident is not None else None
    newcomer = incident is not None and incident.kind is IncidentKind.INTAKE  # not in service before it is released
    bare = incident is not None and incident.serves and cordon_of(incident.id) not in node.cordons
    ours = phase is not None and ((phase.out and not bare) or newcomer)
    vacant = node.incarnation is None  # for a while after we have had its machine replaced
    out = node.counted and (vacant or ours or node.others_cordon or node.lost)
    # Where no agent was ever heard, its silence says nothing; one that was heard must be heard under this boot.
    never = node.agent is AgentState.NONE and (not node.agent_known or Capability.LOOK not in can)
    speaks = node.agent is AgentState.HEARD or never
    # An exclusion is about faults: it is no proof of a newcomer, which nobody has checked.
    healthy = phase in {None, Phase.WATCHED} or (phase is Phase.SUSPECT and node.excused and not newcomer)
    free = not node.cordons and not node.checking
    claimable = node.incarnation is not None and node.ready and speaks and healthy and free
    mine = node.counted and (vacant or (ours and not kept_by_a_person(incident)))
    known = node.agent_known or node.agent is not AgentState.NONE
    return replace(node, agent_known=known, out=out, ours=mine, held=phase is Phase.HELD, claimable=claimable)


def kept_by_a_person(incident: Incident | None) -> bool:
    """Whether a seat is out because a person wants it so: in a small pool that does not turn healing off."""
    wish = incident is not None and incident.kind is IncidentKind.OPERATOR and incident.fault.is_wish
    return incident is not None and wish and (incident.cordoned or not incident.remedy.disrupts)


def silence_of(node: Node, incident: Incident | None, readings: dict[str, float], *, fell: bool) -> str | None:
    """The code of the fault that the silence of its witnesses is; None: it is none, or is known.

    `fell`: the cluster saw it ready before, under the same incarnation.
    """
    if node.incarnation is None or (node.going_down is not None and not node.going_down.passed(readings)):
        return None  # an announced end is not silence
    code = _silence(node.agent, ready=node.ready, known=node.agent_known, fell=fell)
    if incident is not None and (incident.phase is Phase.REPAIRING or incident.fault.code == code):
        return None  # a rung that ends the boot owns the silence until its deadline
    return code


def _silence(agent: AgentState, *, ready: bool, known: bool, fell: bool) -> str | None:
    match (agent, ready):
        case (AgentState.SILENT, True):
            return AGENT_LOST
        case (AgentState.NONE, True) if fell and known:  # it did not start with this boot
            return AGENT_LOST
        case (AgentState.SILENT, False):
            return NODE_LOST
        case (AgentState.NONE, False) if fell:
            return NODE_LOST
        case (AgentState.HEARD, False):
            return PARTITION
        case _:
            return None


def returned(was: Node, node: Node) -> Node:
    """Clear `going_down` once agent and cluster both see the node again; until then silence of either is expected."""
    both = node.ready and node.agent is AgentState.HEARD
    same = was.incarnation is not None and was.incarnation.same_boot(node.incarnation)
    never_left = was.ready and was.agent is AgentState.HEARD and same
    return replace(node, going_down=None) if both and not never_left else node
