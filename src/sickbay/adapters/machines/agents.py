"""Repairs that an agent carries out on its own node: the reset of devices and, where it may, a reboot."""

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import NoReturn

from sickbay.model.errors import Rejected
from sickbay.model.fleet import Capability, Incarnation, NodeId
from sickbay.model.mistakes import SettingsMistake
from sickbay.model.noun import Noun
from sickbay.model.protocol import AnyOrder, Command, RunReboot, RunReset, command_id
from sickbay.ports.cluster import Accepted
from sickbay.ports.mail import Mail, send

BEGINS_WITHIN = 60.0  # seconds; a reset that begins after the engine gave it up would hit the next rung's work


def _nobody() -> None:
    pass


class AgentMachineSettings(Noun, forbid_unknown_fields=True):
    """A channel like `agent`, of agents that may do more (their own setting `allow` says the same)."""

    kind: str
    reboots: bool = True

    def mistakes(self) -> Iterator[SettingsMistake]:
        """Nothing can be wrong with it."""
        return iter(())


class AgentMachines:
    """The agent remembers which commands it has begun, so one key has one effect. `reboots`: agents here may reboot."""

    def __init__(
        self,
        mail: Mail,
        notify: Callable[[], None] = _nobody,
        wall: Callable[[], float] = time.time,
        *,
        reboots: bool = False,
    ) -> None:
        self._mail = mail
        self._reboots = reboots
        self._wall = wall
        self._notify = notify

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset({Capability.RESET_GPU, *((Capability.REBOOT,) if self._reboots else ())})

    @property
    def blind(self) -> frozenset[str]:
        return frozenset()

    def reset(self, node: NodeId, devices: tuple[int, ...], *, key: str, expect: Incarnation) -> Accepted:
        return self._send(node, RunReset(key=key, devices=devices), key, expect)

    def _send(self, node: NodeId, order: AnyOrder, key: str, expect: Incarnation) -> Accepted:
        command = Command(
            id=command_id(key, node),
            node=node,
            order=order,
            posted_at=datetime.fromtimestamp(self._wall(), UTC),
            expires_after=BEGINS_WITHIN,
            expect=expect,
        )
        return send(self._mail, [command], self._notify)

    def restart_service(self, node: NodeId, *, key: str, expect: Incarnation) -> Accepted:  # noqa: ARG002 - the port's
        _cannot("restart itself")

    def reboot(self, node: NodeId, *, key: str, expect: Incarnation) -> Accepted:
        if not self._reboots:
            _cannot("reboot its machine here")
        return self._send(node, RunReboot(key=key, reason=key), key, expect)

    def replace(self, node: NodeId, *, key: str, expect: Incarnation) -> Accepted:  # noqa: ARG002 - the port's
        _cannot("replace its machine")

    def fence(self, node: NodeId, *, key: str, expect: Incarnation | None) -> Accepted:  # noqa: ARG002 - the port's
        _cannot("fence its machine")


def _cannot(what: str) -> NoReturn:
    raise Rejected(f"an agent cannot {what}: configure a channel that can")
