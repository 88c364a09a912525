"""Agents: what they have to report, when we hear it, and whose voice we hear at all."""

from collections.abc import Callable, Mapping

import msgspec

from sickbay.model.facts import AnyNews, Booted, Fact, Inventory, Observed
from sickbay.model.fleet import Incarnation, NodeId
from sickbay.sim.chaos import Mischief
from sickbay.sim.context import SimContext
from sickbay.sim.hardware import PendingReport, SimSeat

# The mapping is the world's own: whoever keeps it copies it.
Deliver = Callable[[list[Fact], Mapping[NodeId, Incarnation]], None]


class Agents:
    """Each seat has an outbox, in order. A report carries all of it; what was not sent when a boot ended is last words.

    `voices` holds every agent that we could hear now. Pulses of all of them are delivered as one batch per period.
    """

    def __init__(self, ground: SimContext, mischief: Mischief, deliver: Deliver) -> None:
        self._ground = ground
        self._mischief = mischief
        self._deliver = deliver
        self.voices: dict[NodeId, Incarnation] = {}
        self.deaf = False  # our ear, not their voice
        self._heard: set[str] = set()  # boots of which a word has reached us
        self._waiting: dict[NodeId, SimSeat] = {}
        if ground.rules.pulse > 0:
            ground.scheduler.every(ground.rules.pulse, self._pulse)

    # --- voices
    def refresh(self, seat: SimSeat) -> None:
        """Call after anything that an agent's voice depends on has changed."""
        heard = self.voices.get(seat.id)
        if not seat.speaking:
            self.voices.pop(seat.id, None)
        elif heard != seat.voice:
            self.voices[seat.id] = seat.voice
            self._date(seat)
            if not self._ground.clusters[seat.cluster].lists:
                self.take_stock(seat)
            self._ground.scheduler.after(
                self._ground.spread(self._ground.rules.report_takes), lambda: self.flush(seat, first_word=True)
            )

    def _date(self, seat: SimSeat) -> None:
        """Its first report under a boot tells since when it is up; that is stored before anything else of it."""
        if seat.turn and not self.deaf:
            news = Booted(node=seat.id, incarnation=seat.voice)
            name = f"booted/{seat.id}/{seat.incarnation.boot_id}"
            self._deliver([Fact(id=name, at=self._ground.dated(seat.up_at), news=news)], {})

    def take_stock(self, seat: SimSeat) -> None:
        """The agent tells which devices it finds: at its start, and when that changes."""
        found = Inventory(devices=seat.devices, linked=seat.linked, node=seat.id, incarnation=seat.voice)
        self.say(seat, found, f"{seat.incarnation.boot_id}:inventory:{self._ground.number()}")

    def close_ear(self) -> None:
        """Nothing that agents say reaches us any more; they keep it."""
        self.deaf = True

    def open_ear(self) -> None:
        self.deaf = False
        for node in self.voices:
            self._date(self._ground.seats[node])
        for seat in list(self._waiting.values()):
            self.flush(seat)

    def _pulse(self) -> None:
        if not self.deaf and self.voices:
            self._deliver([], self.voices)

    # --- reports
    def observe(
        self,
        seat: SimSeat,
        kind: str,
        fields: Mapping[str, str | int],
        text: str,
        source: str = "kmsg",
        ago: float = 0.0,
    ) -> None:
        """A line, dated so many seconds ago, is written on the node now; its agent reports it soon."""
        seat.seq += 1
        news = Observed(node=seat.id, kind=kind, fields=dict(fields), text=text, incarnation=seat.voice)
        self._ground.chronicle.note(f"line.{kind}", seat.id, text)
        self.say(seat, news, f"{seat.incarnation.boot_id}:{source}:{seat.seq}", ago)

    def say(self, seat: SimSeat, news: AnyNews, fact_id: str, ago: float = 0.0) -> None:
        """Puts one thing into the node's outbox and sends it, soon, late or twice."""
        then = self._ground.now - ago
        item = PendingReport(
            fact=Fact(id=fact_id, at=self._ground.stamp(then), news=news), boot_id=seat.incarnation.boot_id, at=then
        )
        seat.outbox.append(item)
        self._waiting[seat.id] = seat
        odds, scheduler = self._mischief.odds, self._ground.scheduler
        takes = self._ground.spread(self._ground.rules.report_takes)
        if self._mischief.chance(odds.report_late):
            takes += self._ground.rng.random() * odds.report_late_by
            if seat.speaking:
                # A copy has left the node: it arrives whatever becomes of its boot.
                scheduler.after(takes + 1.0, lambda: self._copy(item))
        scheduler.after(takes, lambda: self.flush(seat))

    def tell(self, news: AnyNews, fact_id: str) -> None:
        """Delivers what does not come from an agent."""
        if not self.deaf:
            self._deliver([Fact(id=fact_id, at=self._ground.dated(self._ground.now), news=news)], {})

    def flush(self, seat: SimSeat, *, first_word: bool = False) -> None:
        """Sends all that the agent has, in order. Nothing happens if it has nothing or cannot be heard."""
        if self.deaf or not seat.speaking or not (seat.outbox or first_word):
            return
        facts = [self._dated(item, seat) for item in seat.outbox]
        seat.outbox.clear()
        self._waiting.pop(seat.id, None)
        self._heard.add(seat.incarnation.boot_id)
        self._deliver(facts, {seat.id: self.voices.get(seat.id, seat.voice)})
        odds = self._mischief.odds
        if facts and self._mischief.chance(odds.report_twice):
            later = self._ground.rng.random() * odds.report_late_by
            self._ground.scheduler.after(later, lambda: self._again(facts))

    def boot_ends(self, seat: SimSeat) -> None:
        """What was not sent is spooled for the next boot, or lost with this one."""
        if seat.outbox and self._mischief.chance(self._mischief.odds.spool_lost):
            self.wipe(seat)

    def wipe(self, seat: SimSeat) -> None:
        seat.outbox.clear()
        self._waiting.pop(seat.id, None)

    def _dated(self, item: PendingReport, seat: SimSeat) -> Fact:
        news = item.fact.news
        if isinstance(news, Observed) and item.boot_id != seat.incarnation.boot_id:
            news = msgspec.structs.replace(news, last_words=True)
        return Fact(id=item.fact.id, at=self._ground.dated(item.at), news=news)

    def echo(self, seat: SimSeat, later: float) -> None:
        """A report without items that the agent sends now arrives much later: a proxy kept it, and lets others pass."""
        if seat.speaking and seat.incarnation.boot_id in self._heard:
            voice = {seat.id: seat.voice}
            self._ground.scheduler.after(later, lambda: None if self.deaf else self._deliver([], voice))

    def _copy(self, item: PendingReport) -> None:
        """The network delivers what left the node long ago."""
        self._again([Fact(id=item.fact.id, at=self._ground.dated(item.at), news=item.fact.news)])

    def _again(self, facts: list[Fact]) -> None:
        if not self.deaf:
            self._deliver(facts, {})
