"""Checks and looks that agents carry out: each is a command that waits in the post office for its node."""

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from sickbay.model.fleet import Capability, Incarnation, JobId, NodeId
from sickbay.model.protocol import AnyOrder, Command, RunCheck, RunLook, RunSave, command_id
from sickbay.ports.cluster import Accepted
from sickbay.ports.mail import Mail, send

# Seconds in which a check must have begun. Longer than an agent takes to come back, shorter than anybody waits for
# its verdict: a check that begins after that would disturb a node that is in use again.
BEGINS_WITHIN = {1: 60.0, 2: 120.0, 3: 300.0, 4: 600.0}
LOOK_WITHIN = 10.0
SAVE_WITHIN = 3600.0  # it is struck when nobody wants it any more


def _nobody() -> None:
    pass


class AgentChecks:
    """`notify` wakes whoever holds polls of agents. Posting is the call; everything else arrives as facts."""

    def __init__(
        self,
        mail: Mail,
        notify: Callable[[], None] = _nobody,
        wall: Callable[[], float] = time.time,
        settle: float = 0.2,
    ) -> None:
        self._settle = settle
        self._mail = mail
        self._wall = wall
        self._notify = notify

    @property
    def capabilities(self) -> frozenset[Capability]:
        checks = {Capability.CHECK, Capability.CHECK_CORDONED, Capability.CHECK_BY_AGENT}
        return frozenset({*checks, Capability.LOOK, Capability.ASK_TO_SAVE})

    def start(
        self,
        check: str,
        nodes: Mapping[NodeId, Incarnation | None],
        *,
        level: int,
        profile: str,
        storage: tuple[str, ...] = (),
    ) -> Accepted:
        within = BEGINS_WITHIN[min(max(level, 1), max(BEGINS_WITHIN))]
        return self._post(check, nodes, RunCheck(check=check, level=level, profile=profile, storage=storage), within)

    def look(self, look: str, nodes: tuple[NodeId, ...], *, stacks_of: JobId | None) -> Accepted:
        order = RunLook(look=look, stacks_of=stacks_of, settle=self._settle)
        return self._post(look, dict.fromkeys(nodes), order, LOOK_WITHIN)

    def ask_to_save(self, ask: str, nodes: tuple[NodeId, ...], *, job: JobId, attempt: int) -> Accepted:
        order = RunSave(save=ask, job=job, attempt=attempt)
        return self._post(ask, dict.fromkeys(nodes), order, SAVE_WITHIN)

    def _post(self, key: str, nodes: Mapping[NodeId, Incarnation | None], order: AnyOrder, within: float) -> Accepted:
        now = datetime.fromtimestamp(self._wall(), UTC)
        commands = [
            Command(
                id=command_id(key, node), node=node, order=order, posted_at=now, expires_after=within, expect=expect
            )
            for node, expect in nodes.items()
        ]
        return send(self._mail, commands, self._notify)
