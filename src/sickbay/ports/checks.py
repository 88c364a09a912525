"""The Checks port: exercise the hardware, and look at once."""

from collections.abc import Mapping
from typing import Protocol

from sickbay.model.fleet import Capability, Incarnation, JobId, NodeId
from sickbay.ports.cluster import Accepted


class Checks(Protocol):
    """Starts checks; verdicts arrive later as `Checked` facts, one for each node, under the check's id.

    A check must start on a cordoned and drained node, or the adapter lacks CHECK_CORDONED. A node whose incarnation is
    not the expected one answers `could_not_run`. Starting one id twice runs it once.

    `storage`: directories that are looked at on each node besides; `Checked.storage` has one answer for each, and the
    verdict is of the hardware alone. Level 0 looks at nothing else.
    """

    @property
    def capabilities(self) -> frozenset[Capability]: ...

    def start(
        self,
        check: str,
        nodes: Mapping[NodeId, Incarnation | None],
        *,
        level: int,
        profile: str,
        storage: tuple[str, ...] = (),
    ) -> Accepted: ...

    def look(self, look: str, nodes: tuple[NodeId, ...], *, stacks_of: JobId | None) -> Accepted:
        """Asks agents to read kernel log and devices through now; each answers with a `Looked` fact."""
        ...

    def ask_to_save(self, ask: str, nodes: tuple[NodeId, ...], *, job: JobId, attempt: int) -> Accepted:
        """Asks the ranks of an attempt to save (Capability.ASK_TO_SAVE); rank 0's `Checkpointed` tells the answer.

        Asked twice under one id they save once.
        """
        ...
