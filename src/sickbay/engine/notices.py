"""Outbox of notices: posting, passing on to the next channel, digests, and what became of each.

A notice is an intent without an owner, one for each channel. Its key is the same however often it is sent: a crash
between any two lines means that it is sent once more, under the same key, and never that it is not sent.
"""

from collections.abc import Collection, Iterable
from typing import TypeVar

from msgspec.structs import replace

from sickbay.brain.decision import Tell
from sickbay.brain.telling import NoticeRoute, charged, counted, digest_of, route
from sickbay.engine.view import Draft
from sickbay.model.clock import LEADER, Deadline
from sickbay.model.fleet import JobId, NodeId
from sickbay.model.incident import Incident
from sickbay.model.intent import Intent, IntentState, Notify
from sickbay.model.job import Job
from sickbay.model.notice import CLOSED, DIGEST, LOG, TEST, ChannelTraits, NoticeChannel, kind_of_notice
from sickbay.model.rows import AUDIT, WaitMark, key_of, kind_of

Owner = TypeVar("Owner", Incident, Job)

REPEATED_TELLS = 40
TEST_PATIENCE = 60.0  # seconds: whoever asked for a test waits for it
_NO_LIMIT = ChannelTraits()


def name_of(owner: Incident | Job) -> str:
    """In front of its acts' keys. Others name jobs: one called as an incident is must not get the keys of its acts."""
    return owner.id if isinstance(owner, Incident) else f"job.{owner.id}"


# --- posting


def told_of(draft: Draft, owner: Owner, tell: Tell | None) -> Owner:
    """Put a notice into the outbox, once per name, for each channel that the policy wants."""
    if tell is None or tell.once in owner.told:
        return owner
    cluster = owner.cluster if isinstance(owner, Incident) else owner.spec.cluster
    waits = kind_of_notice(tell.notice.event).waits
    paged: tuple[str, ...] = owner.paged_through if isinstance(owner, Incident) else ()
    key = f"{name_of(owner)}.tell.{tell.once}"
    way: NoticeRoute = post(draft, tell.notice, key=key, cluster=cluster, pool=owner.pool, paged=paged)
    owner = replace(owner, told=(*owner.told, tell.once)[-REPEATED_TELLS:])
    if isinstance(owner, Incident):
        heard = tuple(dict.fromkeys((*owner.told_through, *way.to, *way.next)))
        told = tuple(dict.fromkeys((*paged, *way.to))) if waits else paged
        owner = replace(owner, told_through=heard, paged_through=told)
    draft.put(owner)
    return owner


def post(
    draft: Draft, notice: Notify, *, key: str, cluster: str, pool: str, paged: Collection[str] = ()
) -> NoticeRoute:
    """One intent for each channel of the policy's rule for it. Returns the way that it takes.

    What somebody must act on goes through whatever the channel's limit, but for `paged`: they were told once already.
    """
    kind = kind_of_notice(notice.event)
    notice = _addressed(draft, replace(notice, severity=kind.severity, pool=pool, at=draft.now))
    way = route(draft.rules.policy, notice.event, kind.severity, pool)
    if way.next:
        after = way.next_after.total_seconds()
        soon = Deadline(clock=LEADER, at=draft.reading(LEADER) + after)
        notice = replace(notice, next=way.next, next_after=after, pass_on=soon)
    for to in way.to:
        _post_to(draft, replace(notice, to=to), key, cluster, always=kind.waits and to not in paged)
    draft.tell(f"is being told through {', '.join(way.to)}: {notice.text}", notice.subject, event="notify")
    return way


def post_test(draft: Draft, text: str, channels: Iterable[str], *, key: str) -> None:
    """A marked test through each of these channels: nothing is passed on, left out or tried for long."""
    for to in channels:
        severity = kind_of_notice(TEST).severity
        notice = Notify(event=TEST, subject=f"channel:{to}", text=text, to=to, severity=severity, at=draft.now)
        _post_to(draft, notice, key, "", always=True, patience=TEST_PATIENCE)


def post_closed(draft: Draft, incident: Incident) -> None:
    """Channels that were told of an incident, and want to hear that it is over, do.

    Not before whatever is on its way to them has arrived: what came after its own end would stay there for ever.
    """
    wanting = [name for name in incident.told_through if _traits(draft, name).closings]
    if not wanting:
        return
    text = f"{incident.node}: {incident.fault.code} is over: {incident.phase}"
    severity = kind_of_notice(CLOSED).severity
    notice = Notify(
        event=CLOSED, subject=key_of(incident), text=text, severity=severity, at=draft.now, pool=incident.pool,
        node=incident.node, incident=incident.id, fault=incident.fault.code,
    )  # fmt: skip
    flight = 2 * draft.rules.policy.pace.call_timeout.total_seconds()
    later = Deadline(clock=LEADER, at=draft.reading(LEADER) + flight)
    for to in wanting:
        key = f"{name_of(incident)}.closed"
        _post_to(draft, replace(notice, to=to), key, incident.cluster, always=True, later=later)


def _addressed(draft: Draft, notice: Notify) -> Notify:
    """Whom it is about, by name: machines that read it look nothing up."""
    kind, name = kind_of(notice.subject), notice.about
    if kind == "node":
        return replace(notice, node=NodeId(name))
    if kind == "job":
        return replace(notice, job=JobId(name))
    if kind != "incident" or not draft.readable(notice.subject):
        return notice
    incident = draft.peek(Incident, notice.subject)
    if incident is None:
        return notice
    return replace(notice, incident=incident.id, node=incident.node, fault=incident.fault.code)


def _post_to(
    draft: Draft,
    notice: Notify,
    base: str,
    cluster: str,
    *,
    always: bool,
    patience: float = 0.0,
    later: Deadline | None = None,
) -> None:
    pace, traits = draft.rules.policy.pace, _traits(draft, notice.to)
    intent = Intent(
        key=f"{base}.{notice.to}",
        owner="",
        cluster=cluster,
        pool=notice.pool,
        act=notice,
        because=notice.text,
        planned_at=draft.now,
        clock=LEADER,
        call_timeout=pace.call_timeout.total_seconds(),
        patience=patience or pace.notice_patience.total_seconds(),
        not_before=later,
    )
    subject = key_of(intent)
    if traits.most:
        before = _channel(draft, notice.to)
        after = charged(before, traits, draft.reading(LEADER), notice.event, always=always)
        draft.put(after)
        if after.left_out > before.left_out:
            why = f"left out: {traits.most} have gone there already, a digest follows"
            notice = replace(notice, settled_at=draft.now)
            draft.put(replace(intent, act=notice, state=IntentState.EXPIRED, withheld=True, answer=why))
            ends = Deadline(clock=LEADER, at=after.window + traits.within.total_seconds())
            draft.waits[key_of(after)] = WaitMark(until=ends, urgency=5)
            return
    draft.put(intent)
    draft.waits[subject] = WaitMark(until=_earliest(later, notice.pass_on), on={subject: 0}, urgency=5)


# --- what becomes of it


def followed(draft: Draft, intent: Intent) -> Intent:
    """A notice that is still on its way: when it takes too long, the next channel is told as well."""
    notice = intent.act
    if not isinstance(notice, Notify) or intent.state.over or notice.passed_on or notice.pass_on is None:
        return intent
    if not notice.pass_on.passed(draft.readings):
        return intent
    _pass_on(draft, intent, notice, f"{notice.to} has not taken it yet ({intent.answer or 'no answer'})")
    after = replace(intent, act=replace(notice, passed_on=True))
    draft.put(after)
    return after


def look_again(intent: Intent, until: Deadline | None) -> Deadline | None:
    """When to plan it again: also when it is to be passed on."""
    notice = intent.act
    if not isinstance(notice, Notify) or notice.passed_on:
        return until
    return _earliest(until, notice.pass_on)


def ended(draft: Draft, intent: Intent) -> None:
    """Told means delivered: only now the story says so. One that was not is never silent, and goes to the next."""
    notice = intent.act
    if not isinstance(notice, Notify) or notice.settled_at is not None:
        return
    draft.put(replace(intent, act=replace(notice, settled_at=draft.now, passed_on=True)))
    if intent.withheld:
        return
    draft.put(counted(_channel(draft, notice.to), intent, draft.now))
    if intent.state is IntentState.SEEN:
        draft.tell(f"told through {notice.to}", notice.subject, event="told")
        return
    why = intent.answer or "no answer"
    draft.tell(f"nobody was told through {notice.to}: {why}", notice.subject, event="notice_lost")
    draft.tell(f"nobody was told through {notice.to} ({why}): {notice.text}", AUDIT, event="notice_lost")
    if not notice.passed_on:
        _pass_on(draft, intent, notice, "")


def plan_channel(draft: Draft, subject: str) -> None:
    """At the end of a channel's window whatever was left out in it is told in one digest."""
    channel = draft.read(NoticeChannel, subject)
    draft.waits[subject] = None
    if channel is None or not channel.held_back:
        return
    traits = _traits(draft, channel.name)
    ends = Deadline(clock=LEADER, at=channel.window + traits.within.total_seconds())
    if not ends.passed(draft.readings):
        draft.waits[subject] = WaitMark(until=ends, urgency=5)
        return
    text = digest_of(channel, traits)
    number = channel.digests + 1
    fresh = replace(channel, held_back={}, digests=number, window=draft.reading(LEADER), posted=0)
    draft.put(fresh)
    severity = kind_of_notice(DIGEST).severity
    next_ = (LOG,) if channel.name != LOG else ()
    notice = Notify(
        event=DIGEST, subject=subject, text=text, to=channel.name, severity=severity, at=draft.now, next=next_
    )
    _post_to(draft, notice, f"digest.{number}", "", always=True)


def overtaken(draft: Draft, intent: Intent) -> bool:
    """Its incident has closed before it could be sent, to a channel that keeps what nobody closes there."""
    notice = intent.act
    if not isinstance(notice, Notify) or not notice.incident or notice.event == CLOSED:
        return False
    if not _traits(draft, notice.to).closings:
        return False
    incident = draft.read(Incident, f"incident:{notice.incident}", watch=False)
    return incident is not None and not incident.open


def _pass_on(draft: Draft, intent: Intent, notice: Notify, why: str) -> None:
    """The next channel is told; if it was told through another one already, that is enough."""
    if not notice.next:
        return
    to, *rest = notice.next
    base = intent.key.removesuffix(f".{notice.to}")
    if draft.read(Intent, f"intent:{base}.{to}", watch=False) is not None:
        return
    soon = Deadline(clock=LEADER, at=draft.reading(LEADER) + notice.next_after) if rest else None
    onward = replace(notice, to=to, next=tuple(rest), pass_on=soon, passed_on=False, settled_at=None)
    _post_to(draft, onward, base, intent.cluster, always=True)
    said = f"{why}: " if why else ""
    draft.tell(f"{said}is being told through {to}: {notice.text}", notice.subject, event="notify")


def _earliest(*deadlines: Deadline | None) -> Deadline | None:
    """All are of the leader's clock."""
    return min((one for one in deadlines if one is not None), key=lambda one: one.at, default=None)


def _traits(draft: Draft, name: str) -> ChannelTraits:
    return draft.rules.channels.get(name, _NO_LIMIT)


def _channel(draft: Draft, name: str) -> NoticeChannel:
    """A row that cannot be read any more is begun anew: it keeps nobody from being told."""
    key = f"channel:{name}"
    found = draft.read(NoticeChannel, key, watch=False) if draft.readable(key) else None
    return found or NoticeChannel(name=name)
