"""Fault injection into calls: all that can go wrong between a caller and the world, in one funnel."""

from collections.abc import Callable
from random import Random

from sickbay.model.errors import EffectError, Transient, Unknown
from sickbay.model.noun import Noun
from sickbay.ports.cluster import Accepted
from sickbay.sim.chronicle import Chronicle
from sickbay.sim.schedule import Scheduler

FATES = ("lost_before", "lost_after", "doubled", "late", "partial")
MIN_LAG = 0.001  # a read never reaches its own moment: what happens now would be half shown


class Odds(Noun):
    """How often things go wrong: probabilities between 0 and 1. All zero is a kind world."""

    lost_before: float = 0.0
    lost_after: float = 0.0
    doubled: float = 0.0
    late: float = 0.0
    partial: float = 0.0  # of gang starts
    report_late: float = 0.0
    report_late_by: float = 120.0
    report_twice: float = 0.0
    spool_lost: float = 0.0  # what an agent had not sent when its boot ended is lost, not last words
    check_could_not_run: float = 0.0
    check_silent: float = 0.5  # of checks that cannot run: no answer at all
    boot_fails: float = 0.0
    no_newcomer: float = 0.0
    lag_spread: float = 0.0  # a read may lag up to this many times more

    @classmethod
    def rough(cls) -> "Odds":
        """A world in which each of these happens often enough to be met in an afternoon."""
        return cls(
            lost_before=0.03,
            lost_after=0.03,
            doubled=0.03,
            late=0.03,
            partial=0.05,
            report_late=0.05,
            report_twice=0.05,
            spool_lost=0.3,
            check_could_not_run=0.05,
            boot_fails=0.03,
            no_newcomer=0.05,
            lag_spread=3.0,
        )


class Mutation(Noun):
    """One mutation on its way to the world."""

    channel: (
        str  # what an outage takes away: cluster:<id> (of it only reads:<id>), machines:<id>, checks:<id>, notifier
    )
    act: str
    key: str
    target: str
    effect: Callable[[], Accepted]  # with its guard, unless blind
    partial: Callable[[], None] | None = None
    blind: bool = False
    certain: bool = False  # returns only when it is done: never accepted ahead of its effect
    shows_after: float = 0.0


class ChannelOutage(Noun):
    channel: str
    begin: float
    end: float
    hangs: bool = False  # Unknown after a hang, else refused at once


class Mischief:
    """Decides each call's fate, by chance or as told, and makes it happen.

    `on_call(moment, act, key)` is called with "before" and "after" around each effect; what it raises goes through,
    so that a driver can crash its engine there. A late effect comes within `call_timeout`: a rule that sends again
    only after that is sound.
    """

    def __init__(self, odds: Odds | None = None, *, call_timeout: float = 20.0) -> None:
        self.odds = odds or Odds()
        self.call_timeout = call_timeout
        self.calls = 0
        self.on_call: Callable[[str, str, str], None] = lambda _moment, _act, _key: None
        self._forced: dict[int, str] = {}
        self._outages: list[ChannelOutage] = []
        self._scheduler: Scheduler
        self._rng: Random
        self._chronicle: Chronicle

    def bind(self, scheduler: Scheduler, rng: Random, chronicle: Chronicle) -> None:
        self._scheduler, self._rng, self._chronicle = scheduler, rng, chronicle

    def force(self, nth_call: int, fate: str) -> None:
        """The n-th call from the beginning of the world (the first is 1) has this fate."""
        if fate not in FATES:
            raise ValueError(f"there is no fate {fate!r}; choose one of {', '.join(FATES)}")
        self._forced[nth_call] = fate

    def force_next(self, fate: str) -> None:
        self.force(self.calls + 1, fate)

    def outage(self, channel: str, begin: float, end: float, *, hangs: bool = False) -> None:
        self._outages.append(ChannelOutage(channel=channel, begin=begin, end=end, hangs=hangs))

    def mend(self) -> None:
        """Every outage is over."""
        self._outages.clear()

    def out(self, *channels: str) -> ChannelOutage | None:
        """The outage that takes one of these away now."""
        now = self._scheduler.now
        if self._outages and self._outages[0].end < now:
            self._outages = [outage for outage in self._outages if outage.end >= now]
        for outage in self._outages:
            if outage.channel in channels and outage.begin <= now < outage.end:
                return outage
        return None

    def lag(self, lag: float) -> float:
        return max(MIN_LAG, lag * (1.0 + self._rng.random() * self.odds.lag_spread))

    def chance(self, probability: float) -> bool:
        return probability > 0.0 and self._rng.random() < probability

    def around(self, call: Mutation) -> Accepted:
        self.calls += 1
        self.on_call("before", call.act, call.key)
        fate, answer = self._fate(call), "accepted"
        try:
            return self._suffer(call, fate)
        except EffectError as error:
            answer = f"{type(error).__name__}: {error}"
            raise
        finally:
            self._chronicle.tell(call.act, call.key, call.target, fate, answer)

    def _fate(self, call: Mutation) -> str:
        forced = self._forced.pop(self.calls, None)
        if forced is not None:
            return forced
        outage = self.out(call.channel, call.channel.replace("cluster:", "writes:"))
        if outage is not None:
            return "hung" if outage.hangs else "refused"
        roll = self._rng.random()
        for fate in FATES:
            odds: float = getattr(self.odds, fate)
            possible = not (fate == "partial" and call.partial is None) and not (fate == "doubled" and call.blind)
            if possible and roll < odds:
                return fate
            roll -= odds
        return ""

    def _suffer(self, call: Mutation, fate: str) -> Accepted:
        match fate:
            case "refused":
                raise Transient(f"{call.channel} refuses connections")
            case "hung":
                raise Unknown(f"{call.channel} does not answer")
            case "lost_before":
                if self.chance(0.5):
                    raise Transient("the connection was refused")
                raise Unknown("the connection was cut")
            case "lost_after":
                self._apply(call)
                raise Unknown("the connection was cut")
            case "partial" if call.partial is not None:
                call.partial()
                self.on_call("after", call.act, call.key)
                raise Unknown("the answer names only a part")
            case "late":
                return self._late(call)
            case "doubled":
                accepted = self._apply(call)
                self._scheduler.after(self._rng.random() * self.call_timeout, lambda: self._quietly(call))
                return accepted
            case _:
                return self._apply(call)

    def _apply(self, call: Mutation) -> Accepted:
        accepted = call.effect()
        self.on_call("after", call.act, call.key)
        return accepted

    def _late(self, call: Mutation) -> Accepted:
        delay = self._rng.uniform(0.1, 0.95) * self.call_timeout
        self._scheduler.after(delay, lambda: self._quietly(call))
        if call.certain or self.chance(0.5):
            raise Unknown("no answer in time")
        return Accepted(visible_from=self._scheduler.now + delay + call.shows_after)

    def _quietly(self, call: Mutation) -> None:
        try:
            call.effect()
        except EffectError as error:
            # Its caller has gone; nobody hears the refusal.
            self._chronicle.note(f"late_refusal.{call.act}", call.target, str(error))
