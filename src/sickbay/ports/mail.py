"""The Mail port: commands for agents, kept until they are answered."""

from collections.abc import Collection, Sequence
from typing import Protocol

from sickbay.model.fleet import NodeId
from sickbay.model.protocol import Command


class Mail(Protocol):
    """Every store is a post office: a command that was posted survives the death of the process that posted it, and any
    replica can hand it to the agent that asks. Posting one id twice is posting it once.
    """

    def post(self, commands: Sequence[Command]) -> None: ...

    def mail(self, node: NodeId, limit: int = 20) -> Sequence[Command]:
        """What waits for this node's agent, oldest first."""
        ...

    def strike(self, ids: Collection[str]) -> None:
        """These are answered, or nobody wants them any more."""
        ...
