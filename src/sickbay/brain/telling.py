"""Routing and rate limit of notices: whom a notice goes to, and whether its channel has room for it."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from msgspec.structs import replace

from sickbay.model.durations import format_duration
from sickbay.model.intent import Intent, IntentState
from sickbay.model.notice import LOG, ChannelTraits, NoticeChannel, NoticeSeverity
from sickbay.model.policy import NotifyRule, Policy

_NOBODY = NotifyRule()


@dataclass(frozen=True, slots=True)
class NoticeRoute:
    to: tuple[str, ...]
    next: tuple[str, ...]
    next_after: timedelta


def route(policy: Policy, event: str, severity: NoticeSeverity, pool: str) -> NoticeRoute:
    """The first rule that fits; where none does, and after the last channel of any, it is the log."""
    rule = next((rule for rule in policy.notify if rule.fits(event, severity, pool)), _NOBODY)
    to = tuple(dict.fromkeys(rule.to))
    later = tuple(name for name in dict.fromkeys((*rule.next, LOG)) if name not in to)
    return NoticeRoute(to, () if to == (LOG,) else later, rule.next_after)


def charged(
    channel: NoticeChannel, traits: ChannelTraits, reading: float, event: str, *, always: bool
) -> NoticeChannel:
    """The channel after one more notice: among those that were posted, or among those that its digest will count.

    `always`: it is posted however many there were, and counts all the same.
    """
    # A window with a digest to come is ended by the digest, not by whoever is late.
    if not channel.held_back and reading >= channel.window + traits.within.total_seconds():
        channel = replace(channel, window=reading, posted=0)
    if always or not traits.most or channel.posted < traits.most:
        return replace(channel, posted=channel.posted + 1)
    held_back = {**channel.held_back, event: channel.held_back.get(event, 0) + 1}
    return replace(channel, held_back=held_back, left_out=channel.left_out + 1)


def digest_of(channel: NoticeChannel, traits: ChannelTraits) -> str:
    """What a digest says: how many more there were, of what, and where they are."""
    most = sorted(channel.held_back.items(), key=lambda one: (-one[1], one[0]))
    what = ", ".join(f"{event} ({count})" for event, count in most)
    total = sum(channel.held_back.values())
    return (
        f"{total} more in {format_duration(traits.within)} were left out here (the limit is {traits.most}): {what}; "
        "see 'sickbay incidents' and 'sickbay notices'"
    )


def counted(channel: NoticeChannel, intent: Intent, now: datetime) -> NoticeChannel:
    """The channel after the end of one of its notices: delivered, it works; else it does not."""
    if intent.state is IntentState.SEEN:
        return replace(channel, delivered=channel.delivered + 1, delivered_at=now, failing="", failing_since=None)
    failed = replace(channel, failing=intent.answer or "no answer", failing_since=channel.failing_since or now)
    if intent.state is IntentState.REJECTED:
        return replace(failed, refused=failed.refused + 1)
    return replace(failed, given_up=failed.given_up + 1)
