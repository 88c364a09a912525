"""Told means delivered: routes, the next channel, digests, ends of incidents; across crashes."""

from datetime import timedelta
from typing import Any

import pytest
from tests.support.wards import HOUR, OpenWard, Ward, cluster_without, policy_with

from sickbay.model.errors import Rejected, Transient
from sickbay.model.fleet import JobId
from sickbay.model.incident import Phase
from sickbay.model.intent import Intent, IntentState, Notify
from sickbay.model.job import JobState
from sickbay.model.notice import ChannelTraits, NoticeChannel, NoticeSeverity
from sickbay.model.policy import NotifyRule

pytestmark = pytest.mark.slow

NO_LIMIT = ChannelTraits()


def rules(*notify: NotifyRule) -> Any:
    return policy_with(notify=notify)


def open_with(ward: OpenWard, *notify: NotifyRule, **more: Any) -> Ward:
    names = {name for rule in notify for name in (*rule.to, *rule.next)} - {"log"}
    more.setdefault("channels", dict.fromkeys(sorted(names), NO_LIMIT))
    w = ward(nodes=4, policy=rules(*notify), **more)
    w.run(60)
    return w


class Failing:
    """A channel that does not take what it is told until it works."""

    def __init__(self, w: Ward, name: str, error: Exception) -> None:
        self._notifier = w.sim.hands.notifiers[name]
        self._real, self.error, self.calls = self._notifier.tell, error, 0
        self._notifier.tell = self  # type: ignore[method-assign]

    def __call__(self, notice: Notify, *, key: str) -> str:
        del notice, key
        self.calls += 1
        raise self.error

    def works(self) -> None:
        self._notifier.tell = self._real  # type: ignore[method-assign]


def heard(w: Ward, event: str | None = None) -> list[tuple[str, str]]:
    """Who was told of what, doubles left out."""
    return list(dict.fromkeys((notice.to, notice.event) for notice in w.notices(event)))


def held(w: Ward, number: int = 0) -> str:
    """Somebody cordons a node: its incident waits for a person."""
    node = w.nodes[number]
    w.order("cordon", node)
    return str(w.reaches(node, Phase.HELD, HOUR).id)


def failed_job(w: Ward, name: str) -> JobId:
    job = w.submit(name, nodes=2, min_nodes=3)
    w.ends(job, JobState.FAILED, most=HOUR)
    return job


def story(w: Ward, subject: str) -> list[str]:
    return [line.text for line in w.sim.store.story(subject)]


def channel(w: Ward, name: str) -> NoticeChannel:
    row = w.sim.store.load([f"channel:{name}"])[f"channel:{name}"].row
    assert isinstance(row, NoticeChannel)
    return row


def undecided(w: Ward) -> list[Intent]:
    return [
        row
        for row in w.sim._all("intent")
        if isinstance(row, Intent) and isinstance(row.act, Notify) and not row.state.over
    ]


def test_the_first_rule_that_fits_counts_and_what_none_fits_goes_to_the_log(ward: OpenWard) -> None:
    w = open_with(
        ward,
        NotifyRule(severity=(NoticeSeverity.CRITICAL,), pool="*/nowhere", to=("far",)),
        NotifyRule(events=("held",), pool="train", to=("pager", "chat")),
        NotifyRule(events=("held",), to=("late",)),
    )
    held(w)
    failed_job(w, "j")
    w.run(60)
    assert sorted(heard(w)) == [("chat", "held"), ("log", "job_failed"), ("pager", "held")]


def test_what_a_channel_refuses_goes_to_the_next_and_the_story_says_told_only_then(ward: OpenWard) -> None:
    w = open_with(ward, NotifyRule(to=("pager",), next=("chat", "mail")))
    pager, chat = Failing(w, "pager", Rejected("401 no")), Failing(w, "chat", Rejected("404"))
    incident = held(w)
    w.run(60)
    assert heard(w) == [("mail", "held")]
    lines = [text for text in story(w, f"incident:{incident}") if "told" in text]
    assert [text.split(": ")[0] for text in lines] == [
        "is being told through pager",
        "nobody was told through pager",
        "is being told through chat",
        "nobody was told through chat",
        "is being told through mail",
        "told through mail",
    ]
    assert (pager.calls, chat.calls) == (1, 1)
    assert channel(w, "pager").failing == "401 no"
    assert (channel(w, "pager").refused, channel(w, "mail").delivered) == (1, 1)
    assert any("401 no" in text for text in story(w, "operator:"))


def test_a_channel_that_failed_is_a_trouble_until_it_takes_a_notice(ward: OpenWard) -> None:
    w = open_with(ward, NotifyRule(to=("pager",)))
    pager = Failing(w, "pager", Rejected("401 no"))
    held(w)
    w.run(60)
    assert heard(w) == [("log", "held")], "the last resort"
    assert "pager takes no notices (401 no)" in w.sim.hosts[0].undelivered
    pager.works()
    held(w, 1)
    w.run(60)
    assert w.sim.hosts[0].undelivered == ""


def test_two_channels_that_refuse_have_one_next(ward: OpenWard) -> None:
    w = open_with(ward, NotifyRule(to=("a", "b"), next=("c",)))
    Failing(w, "a", Rejected("no"))
    Failing(w, "b", Rejected("no"))
    held(w)
    w.run(60)
    assert [(notice.to, notice.event) for notice in w.notices()] == [("c", "held")]


def test_who_takes_too_long_is_tried_on_while_the_next_is_told(ward: OpenWard) -> None:
    w = open_with(ward, NotifyRule(to=("pager",), next=("chat",), next_after=timedelta(minutes=5)))
    pager = Failing(w, "pager", Transient("503"))
    incident = held(w)
    w.run(240)
    assert heard(w) == []
    w.run(180)
    assert heard(w) == [("chat", "held")]
    assert any("pager has not taken it yet" in text for text in story(w, f"incident:{incident}"))
    pager.works()
    w.run(180)
    assert heard(w) == [("chat", "held"), ("pager", "held")]
    assert undecided(w) == []


def test_a_storm_is_a_digest_that_survives_a_crash_and_leaves_no_incident_out(ward: OpenWard) -> None:
    small = ChannelTraits(most=2, within=timedelta(minutes=10))
    w = open_with(ward, NotifyRule(to=("chat",)), channels={"chat": small})
    for number in range(6):
        failed_job(w, f"j{number}")
    held(w)
    w.run(30)
    assert [notice.event for notice in w.notices()].count("job_failed") == 2
    assert heard(w, "held") == [("chat", "held")], "the first notice of an incident is never left out"
    w.sim.hosts[0].crash()
    w.run(15 * 60)
    (digest,) = {notice.text for notice in w.notices("digest")}
    assert digest.startswith("4 more in 10m were left out here (the limit is 2): job_failed (4)")
    row = channel(w, "chat")
    assert (row.left_out, row.held_back) == (4, {})
    assert row.failing == ""
    failed_job(w, "later")
    w.run(60)
    assert [notice.event for notice in w.notices()].count("job_failed") == 3, "a new window has begun"


def test_the_first_notice_to_a_channel_that_waits_is_never_left_out_though_another_channel_had_one(
    ward: OpenWard,
) -> None:
    """Chat had heard of the incident, and so the pager's first notice of it, that it is held, was left out."""
    small = ChannelTraits(most=1, within=timedelta(days=7))
    w = open_with(
        ward,
        NotifyRule(events=("budget",), to=("chat",)),
        NotifyRule(events=("held",), to=("pager",)),
        cluster=cluster_without("replace"),
        channels={"pager": small, "chat": small},
    )
    first, second = w.nodes[:2]
    w.sick(first, "xid.79", None)
    w.reaches(first, Phase.HELD, 12 * HOUR)
    w.sick(second, "xid.79", None)
    w.until(lambda: bool(w.notices("budget")), 12 * HOUR)
    w.order("dismiss", w.incident(first).id)
    w.reaches(second, Phase.HELD, 24 * HOUR)
    w.run(60)
    told = {(notice.to, notice.event, notice.node) for notice in w.notices()}
    assert {("chat", "budget", second), ("pager", "held", first), ("pager", "held", second)} <= told


def test_an_end_is_told_to_who_keeps_alerts_and_after_what_was_on_its_way(ward: OpenWard) -> None:
    traits = {"pager": ChannelTraits(closings=True), "chat": NO_LIMIT}
    w = open_with(ward, NotifyRule(to=("pager", "chat")), channels=traits)
    held(w)
    w.run(30)
    w.order("uncordon", w.nodes[0])
    w.reaches(w.nodes[0], Phase.DISMISSED, HOUR)
    w.run(120)
    assert sorted(heard(w)[:2]) == [("chat", "held"), ("pager", "held")]
    assert heard(w)[2:] == [("pager", "closed")]


def test_an_alert_that_nobody_would_close_is_not_raised_after_the_end(ward: OpenWard) -> None:
    w = open_with(ward, NotifyRule(to=("pager",)), channels={"pager": ChannelTraits(closings=True)})
    pager = Failing(w, "pager", Transient("503"))
    held(w)
    w.run(60)
    w.order("uncordon", w.nodes[0])
    w.reaches(w.nodes[0], Phase.DISMISSED, HOUR)
    pager.works()
    w.run(HOUR)
    assert [(notice.to, notice.event) for notice in w.notices() if notice.to == "pager"] == [("pager", "closed")]
    assert undecided(w) == []


def test_a_test_goes_through_what_is_asked_for_and_through_nothing_else(ward: OpenWard) -> None:
    w = open_with(ward, NotifyRule(to=("pager",), next=("chat",)))
    Failing(w, "pager", Rejected("401"))
    w.order("notify_test", "", id="t1", channels="pager,log")
    w.run(60)
    assert heard(w) == [("log", "notify_test")]
    row = w.sim.store.load(["intent:test.t1.pager"])["intent:test.t1.pager"].row
    assert isinstance(row, Intent)
    assert (row.state, row.answer) == (IntentState.REJECTED, "401")


FATES = ("crash_before", "crash_after", "lost_answer", "unavailable")


@pytest.mark.parametrize("fate", FATES)
@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
def test_a_crash_at_any_step_leaves_nobody_untold_and_no_second_key(ward: OpenWard, fate: str, cold: bool) -> None:
    for step in range(14):
        w = open_with(ward, NotifyRule(to=("pager",), next=("chat",)), cold=cold)
        pager = Failing(w, "pager", Rejected("401"))
        w.sim.fates = {w.sim.points + step: fate}
        w.order("cordon", w.nodes[0])
        w.reaches(w.nodes[0], Phase.HELD, HOUR)
        w.run(20 * 60)
        assert heard(w) == [("chat", "held")], f"{fate} at step {step}"
        assert len({key for key, _ in w.world.notices}) == 1
        assert pager.calls >= 1
        assert undecided(w) == []
