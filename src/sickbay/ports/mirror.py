"""The Mirror port: shows rows with a cluster's own means (labels, conditions, comments, tables), level-triggered."""

from collections.abc import Iterable
from typing import Protocol

from sickbay.model.shown import AnyShown


class Mirror(Protocol):
    """Contract (proved by `sickbay.testing.mirror_contract` for every adapter):

    - A value is whole and the call is idempotent: after `show` the far side shows exactly this value, whatever it
      showed of the subject before, and showing it again changes nothing. Values in between are left out.
    - Nothing is ever decided from what it shows, and it reads nothing back but the names in `shown`.
    - What others keep at the same place (their labels, their words in a comment, their files) is not touched.
    - Errors are Transient, Rejected, Gone or Unknown (`model.errors`), nothing else: after Transient and Unknown the
      newest value is shown again, later; after Rejected and Gone not before it changes, or all is shown anew. No call
      retries by itself, and each ends within a time-out of its own.
    - One thread calls it. A mirror of another process may show at the same time for a moment: a former leader's.

    A subject is `node:<cluster>/<name>` or `job:<id>`. A value has the newest lines of a job's story: who makes an
    event or a log entry of each names it by its time and text, and so makes none twice.
    """

    @property
    def period(self) -> float:
        """Seconds between two rounds of showing: a subject that changes all the time is shown so often."""
        ...

    def show(self, value: AnyShown) -> None: ...

    def remove(self, subject: str) -> None:
        """Take away all that is shown of a subject whose row is forgotten; of an unknown one there is nothing to do."""
        ...

    def shown(self) -> Iterable[str]:
        """Subjects of which anything is shown, whoever showed it: of those that are forgotten it is removed."""
        ...
