"""Identity: what a statement about a seat's holder means, whether a cluster or an agent makes it."""

from enum import StrEnum

from msgspec.structs import replace

from sickbay.model.facts import Observed
from sickbay.model.fleet import AgentState, Device, Incarnation, Node

KEEP_BOOTS = 16
MOST_DEVICES = 64  # of one machine


class Standing(StrEnum):
    """How a statement stands to what is known of the seat."""

    PRESENT = "present"  # of the present boot, or nobody can tell another; it may fill something in
    REBOOTED = "rebooted"
    SUCCEEDED = "succeeded"  # another machine holds the seat
    ENDED = "ended"  # of a boot that has ended: history
    AHEAD = "ahead"  # of a machine that its cluster has not spoken of yet


def standing_of(node: Node, said: Incarnation, *, by_agent: bool) -> Standing:
    """An agent knows its boot best; who holds a seat is the cluster's word where the cluster can tell."""
    now = node.incarnation
    if now is None:
        return Standing.AHEAD if by_agent else Standing.SUCCEEDED
    if said.boot_id and said.boot_id in node.ended_boots:
        return Standing.ENDED
    if by_agent and node.registered is not None and not said.same_holder(node.registered):
        return Standing.AHEAD
    if not by_agent and said == node.registered:
        return Standing.PRESENT  # said before: it is no answer to what an agent has told since
    another = node.unconfirmed and not now.instance_id  # a new registration with a new boot, and no name to go by
    if not by_agent and node.agent is AgentState.HEARD and not (said.instance_id or said.boot_id or another):
        return Standing.PRESENT  # a registration alone tells no machine from another, but its agent can
    if not said.same_holder(now):
        return Standing.SUCCEEDED
    return Standing.REBOOTED if said.new_boot(now) else Standing.PRESENT


class NewsAge(StrEnum):
    """From which boot or machine a piece of news is, as far as the seat it speaks of is known."""

    PRESENT = "present"  # of the boot that is known, or it does not say
    NEWER = "newer"  # of the same machine's next boot, which nobody has told yet
    SUCCESSOR = "successor"  # of another machine in the seat, as far as its agent can tell
    UNKNOWN_HOLDER = "unknown holder"  # of a machine that its cluster has not spoken of yet
    LAST_WORDS = "last words"  # of the boot that ended with them, not by our hand
    ENDED = "ended"  # of an earlier boot, or of one that we ended: history


def age_of(node: Node | None, news: Observed) -> NewsAge:
    """The one answer to which boot a piece of news is from."""
    who, now = news.incarnation, node.incarnation if node is not None else None
    if news.ended or news.last_words:
        last = node is not None and news.last_words and who is not None and _ended_by_itself(node, who)
        return NewsAge.LAST_WORDS if last else NewsAge.ENDED
    if node is None:
        return NewsAge.UNKNOWN_HOLDER
    if who is None:
        return NewsAge.PRESENT
    if now is None:
        return NewsAge.SUCCESSOR
    return _AGES[standing_of(node, who, by_agent=True)]


_AGES = {
    Standing.PRESENT: NewsAge.PRESENT,
    Standing.REBOOTED: NewsAge.NEWER,
    Standing.SUCCEEDED: NewsAge.SUCCESSOR,
    Standing.AHEAD: NewsAge.UNKNOWN_HOLDER,
    Standing.ENDED: NewsAge.ENDED,
}


def _ended_by_itself(node: Node, who: Incarnation) -> bool:
    """The seat's last boot, whether or not we know the next one yet, and no repair of ours ended it."""
    if not who.same_holder(node.incarnation):
        return False
    return who.same_boot(node.incarnation) or ((who.boot_id,) == node.ended_boots[-1:] and not node.boot_ended_by_us)


def held_by(node: Node, said: Incarnation, standing: Standing) -> Incarnation | None:
    """The seat's incarnation after a statement: what both know of one machine, nothing of the one before it."""
    now = node.incarnation
    match standing:
        case Standing.ENDED | Standing.AHEAD:
            return now
        case Standing.PRESENT if now is not None and said == node.registered:
            return now
        case Standing.PRESENT | Standing.REBOOTED if now is not None:
            return now.told(said)
        case _ if now is not None and node.unconfirmed and not said.boot_id:
            return Incarnation(uid=said.uid, instance_id=said.instance_id, boot_id=now.boot_id)  # its agent spoke first
        case _:
            return said


def devices_with(known: tuple[Device, ...], told: tuple[Device, ...]) -> tuple[Device, ...]:
    """A machine's devices after a statement: whoever lists them says how many there are; no serial is unlearned."""
    serials = {device.index: device.serial for device in known}
    return tuple(d if d.serial else Device(index=d.index, serial=serials.get(d.index, "")) for d in told) or known


def devices_found(known: tuple[Device, ...], found: tuple[Device, ...]) -> tuple[Device, ...]:
    """A machine's devices after its agent's inventory. One that it does not find is a fault, not a smaller machine."""
    after = {device.index: device for device in known}
    serials = {device.serial for device in found}
    for index, device in after.items():
        if device.serial in serials:  # it may have moved
            after[index] = Device(index=index)
    after |= {d.index: d for d in devices_with(known, found) if d.index in {each.index for each in found}}
    if len(after) > MOST_DEVICES:  # no machine has so many: what its agent finds now is there, of the others some
        now = {device.index for device in found}
        after = {index: after[index] for index in sorted(after, key=lambda i: (i not in now, i))[:MOST_DEVICES]}
    return tuple(after[index] for index in sorted(after))


def devices_of_another(known: tuple[Device, ...]) -> tuple[Device, ...]:
    """What a machine in the same seat probably has, until somebody lists it: as many devices, no serials."""
    return tuple(Device(index=device.index) for device in known)


def with_holder(node: Node, now: Incarnation) -> Node:
    """The seat once `now` holds it: the boots before it have ended, as far as `now` can be told from them."""
    was = _boot(node)
    if now.boot_id:
        over, left = [boot for boot in (node.left_boot, was) if boot and boot != now.boot_id], ""
    elif now.instance_id:
        over, left = [was] if was else [], node.left_boot
    else:
        over, left = [], was or node.left_boot
    ended = (*(boot for boot in node.ended_boots if boot not in over), *over)[-KEEP_BOOTS:]
    return replace(node, incarnation=now, ended_boots=ended, left_boot=left)


def boots_of(node: Node) -> tuple[str, ...]:
    """What is remembered of a seat that is gone: its ended boots and, last, the one that it left under."""
    return (*node.ended_boots, _boot(node) or node.left_boot)


def back_again(node: Node, boots: tuple[str, ...]) -> Node:
    """A seat that is there again, of which these boots were remembered."""
    if not boots or node.incarnation is None:
        return node
    gone = replace(node, incarnation=None, ended_boots=boots[:-1], left_boot=boots[-1])
    return with_holder(gone, node.incarnation)


def _boot(node: Node) -> str:
    return node.incarnation.boot_id if node.incarnation is not None else ""


def ended_too(node: Node, said: Incarnation) -> tuple[str, ...]:
    """The ended boots with one that its own agent calls ended, though we never knew that it ran: not the newest."""
    boot, holder = said.boot_id, node.incarnation
    known = not boot or holder is None or boot == holder.boot_id or boot in node.ended_boots
    if known or not said.same_holder(holder):
        return node.ended_boots
    return (*node.ended_boots[:-1], boot, *node.ended_boots[-1:])[-KEEP_BOOTS:]
