"""Notifications: how urgent each event is, what a channel may take, and what has become of what was sent through it."""

from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from sickbay.model.noun import Noun

LOG = "log"  # the channel that is always there: the last resort


class NoticeSeverity(StrEnum):
    """How urgent a notice is, not how sick a node: the words of most pagers."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"


class NoticeKind(NamedTuple):
    severity: NoticeSeverity
    waits: bool = False  # something stands still until a person acts: the first of a subject is never left out


CLOSED = "closed"  # what a channel was told of is over
DIGEST = "digest"  # so many more than the channel may take
TEST = "notify_test"

_CRITICAL, _ERROR = NoticeKind(NoticeSeverity.CRITICAL, waits=True), NoticeKind(NoticeSeverity.ERROR)
_WARNING, _INFO = NoticeKind(NoticeSeverity.WARNING), NoticeKind(NoticeSeverity.INFO)

EVENTS: dict[str, NoticeKind] = {
    "held": _CRITICAL,
    "budget": _CRITICAL,
    "brake": _CRITICAL,
    "unheard": _CRITICAL,
    "job_stuck": _CRITICAL,
    "unconfirmed": NoticeKind(NoticeSeverity.ERROR, waits=True),
    "job_failed": _ERROR,
    "partition": _ERROR,
    "release_failed": _ERROR,
    "set_aside": _ERROR,
    "save_failed": _WARNING,
    "log_rule_off": _WARNING,
    "job_waits": _WARNING,
    "agent_lost": _WARNING,
    "agent_unknown": _WARNING,
    "join_refused": _WARNING,
    "vacancy": _WARNING,
    "withheld": _WARNING,
    "check_failed": _WARNING,
    "check_could_not_run": _WARNING,
    DIGEST: _WARNING,
    "save_mended": _INFO,
    CLOSED: _INFO,
    TEST: _INFO,
}


def kind_of_notice(event: str) -> NoticeKind:
    """An event that nobody has rated is worth a look."""
    return EVENTS.get(event, _WARNING)


class ChannelTraits(Noun):
    """What a configured channel may take, and whether it wants to hear that what it was told of is over."""

    most: int = 0  # notices within `within`; then one digest. 0: as many as there are
    within: timedelta = timedelta(minutes=10)
    closings: bool = False


class NoticeChannel(Noun):
    """The stored row of one channel: its rate-limit window, and what has become of its notices since ever.

    Counters and window are committed with the notice that they count, so neither a crash nor a restart loses them.
    """

    name: str
    delivered: int = 0
    refused: int = 0
    given_up: int = 0  # not delivered within their patience
    left_out: int = 0  # over its limit: told in a digest
    delivered_at: datetime | None = None
    failing: str = ""  # what it answered when it last took none; empty again with the next that it takes
    failing_since: datetime | None = None
    window: float = 0.0  # reading of the leader's clock at which the present window began
    posted: int = 0  # in it
    held_back: dict[str, int] = {}  # left out in it, by event
    digests: int = 0  # names the next digest
