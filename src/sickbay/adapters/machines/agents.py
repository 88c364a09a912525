"""Repairs that an agent carries out on its own node: the reset of devices."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NoReturn

from sickbay.model.errors import Rejected
from sickbay.model.fleet import Capability, Incarnation, NodeId
from sickbay.model.protocol import Command, RunReset
from sickbay.ports.cluster import Accepted
from sickbay.ports.mail import Mail, send

BEGINS_WITHIN = 60.0  # seconds; a reset that begins after the engine gave it up would hit the next rung's work


def _nobody() -> None:
    pass


class AgentMachines:
    """Only `reset`. The agent remembers which commands it has begun, so one key has one effect."""

    def __init__(self, mail: Mail, notify: Callable[[], None] = _nobody, wall: Callable[[], float] = time.time) -> None:
        self._mail = mail
        self._wall = wall
        self._notify = notify

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset({Capability.RESET_GPU})

    @property
    def blind(self) -> frozenset[str]:
        return frozenset()

    def reset(self, node: NodeId, devices: tuple[int, ...], *, key: str, expect: Incarnation) -> Accepted:
        command = Command(
            id=f"{key}/{node}",
            node=node,
            order=RunReset(key=key, devices=devices),
            posted_at=datetime.fromtimestamp(self._wall(), UTC),
            expires_after=BEGINS_WITHIN,
            expect=expect,
        )
        return send(self._mail, [command], self._notify)

    def restart_service(self, node: NodeId, *, key: str, expect: Incarnation) -> Accepted:  # noqa: ARG002 - the port's
        _cannot("restart itself")

    def reboot(self, node: NodeId, *, key: str, expect: Incarnation) -> Accepted:  # noqa: ARG002 - the port's
        _cannot("reboot its machine")

    def replace(self, node: NodeId, *, key: str, expect: Incarnation) -> Accepted:  # noqa: ARG002 - the port's
        _cannot("replace its machine")

    def fence(self, node: NodeId, *, key: str) -> Accepted:  # noqa: ARG002 - the port's
        _cannot("fence its machine")


def _cannot(what: str) -> NoReturn:
    raise Rejected(f"an agent cannot {what}: configure a channel that can")
