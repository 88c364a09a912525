"""The Mail port: commands for agents, kept until they are answered."""

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from sickbay.model.errors import StoreError, StoreUnavailable, Transient, Unknown
from sickbay.model.fleet import NodeId
from sickbay.model.protocol import Command
from sickbay.ports.cluster import Accepted


class Mail(Protocol):
    """Every store is a post office: a command that was posted survives the death of the process that posted it, and any
    replica can hand it to the agent that asks. Posting one id twice is posting it once.
    """

    def post(self, commands: Sequence[Command]) -> None: ...

    def mail(self, node: NodeId, limit: int = 20) -> Sequence[Command]:
        """What waits for this node's agent, oldest first."""
        ...

    def mailed(self, nodes: Collection[NodeId]) -> Collection[NodeId]:
        """For which of these nodes' agents something waits: one read for many who mostly have nothing to hear."""
        ...

    def strike(self, ids: Collection[str]) -> None:
        """These are answered, or nobody wants them any more."""
        ...


def send(mail: Mail, commands: Sequence[Command], notify: Callable[[], None]) -> Accepted:
    """Posting is the whole call of an adapter that works through agents; in a store's doubt it is in doubt, too."""
    try:
        mail.post(commands)
    except StoreUnavailable as error:
        raise Transient(f"the command could not be posted: {error}") from error
    except StoreError as error:
        raise Unknown(f"the command may have been posted: {error}") from error
    notify()
    return Accepted()
