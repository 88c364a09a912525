"""Checks and looks, as they run on the nodes."""

from collections.abc import Mapping
from functools import partial

from sickbay.model.checkup import StorageSeen, Verdict
from sickbay.model.facts import Checked, Looked
from sickbay.model.fleet import Incarnation, NodeId
from sickbay.sim.agents import Agents
from sickbay.sim.chaos import Mischief
from sickbay.sim.context import SimContext
from sickbay.sim.hardware import MachinePower, SimSeat, symptom
from sickbay.sim.workload import Workload


class Examinations:
    """A check finds every defect that its level can find, and makes it show itself again."""

    def __init__(self, ground: SimContext, agents: Agents, workload: Workload, mischief: Mischief) -> None:
        self._ground = ground
        self._agents = agents
        self._workload = workload
        self._mischief = mischief

    def check(
        self, check: str, nodes: Mapping[NodeId, Incarnation | None], *, level: int, storage: tuple[str, ...] = ()
    ) -> None:
        for node, expect in nodes.items():
            self._ground.chronicle.note("check", node, check)
            seat = self._ground.seats.get(node)
            takes = self._ground.spread(self._takes(level))
            if seat is not None and seat.agentless:
                self._ground.chronicle.note("check.silent", node, check)  # nobody is there to say that it cannot
            elif seat is None or not seat.speaking:
                self._cannot(check, node, expect, level, "the node does not answer", after=takes)
            elif expect is not None and not seat.voice.agrees(expect):
                self._cannot(check, node, seat.voice, level, "another incarnation holds the seat", after=takes)
            elif self._mischief.chance(self._mischief.odds.check_could_not_run):
                self._cannot(check, node, seat.voice, level, "the tool did not start", after=takes)
            else:
                self._disturb(check, seat)
                self._run(check, seat, level, takes, storage)

    def _disturb(self, check: str, seat: SimSeat) -> None:
        """A check takes the devices: whatever runs there suffers."""
        for attempt in self._workload.on(seat):
            if attempt.end is not None and not seat.reachable:
                continue  # its cluster called it over while it did not reach the node: nobody knows that it runs
            text = f"{check} while {attempt.id} runs there"
            self._ground.chronicle.violate("check_on_running", seat.id, text, key=check, since=attempt.launched_at)
        if seat.unmanaged:
            text = f"{check} under {seat.unmanaged} pieces of unmanaged work"
            self._ground.chronicle.violate("check_on_work", seat.id, text, key=check, since=seat.worked_at)

    def look(self, look: str, nodes: tuple[NodeId, ...]) -> None:
        for node in nodes:
            seat = self._ground.seats.get(node)
            if seat is not None and seat.speaking:
                takes = self._ground.spread(self._ground.rules.look_takes)
                self._ground.scheduler.after(takes, partial(self._looked, look, seat))

    def _takes(self, level: int) -> float:
        takes = self._ground.rules.check_takes
        return takes[min(max(level, 1), len(takes)) - 1]

    def _run(self, check: str, seat: SimSeat, level: int, takes: float, storage: tuple[str, ...]) -> None:
        turn, after = seat.turn, self._ground.scheduler.after

        def show() -> None:
            for defect in seat.defects:
                if seat.turn == turn and defect.found_at <= level and not defect.silent:
                    kind, fields, text = symptom(defect.code, defect.device)
                    self._agents.observe(seat, kind, {**fields, "check": check}, text)

        def finish() -> None:
            if seat.turn != turn or seat.power is not MachinePower.UP or not seat.agent_alive:
                self._cannot(check, seat.id, seat.voice, level, "the boot ended while it ran", after=1.0)
                return
            found = [defect.code for defect in seat.defects if defect.found_at <= level]
            seen = tuple(self._storage(seat, path) for path in storage)
            self._say(check, seat, level, Verdict.FAIL if found else Verdict.PASS, ", ".join(found), seen)

        if seat.defects:
            after(takes * self._ground.rng.uniform(0.2, 0.9), show)
        after(takes, finish)

    def _storage(self, seat: SimSeat, path: str) -> StorageSeen:
        """A path is missing on one node, or its server is down for all of them."""
        if path in self._ground.storage_down:
            return StorageSeen(path=path, verdict=Verdict.FAIL, because="it does not answer within 30 s")
        if path in seat.unmounted:
            return StorageSeen(path=path, verdict=Verdict.FAIL, because="it does not exist: is it mounted?")
        if path in seat.bare:
            return StorageSeen(path=path, verdict=Verdict.PASS, empty=True)
        return StorageSeen(path=path, verdict=Verdict.PASS, remote=True)

    def _say(
        self,
        check: str,
        seat: SimSeat,
        level: int,
        verdict: Verdict,
        because: str,
        storage: tuple[StorageSeen, ...] = (),
    ) -> None:
        self._ground.chronicle.note(f"check.{verdict}", seat.id, check)
        news = Checked(
            check=check,
            node=seat.id,
            verdict=verdict,
            incarnation=seat.voice,
            level=level,
            because=because,
            storage=storage,
        )
        self._agents.say(seat, news, f"{check}:{seat.id}")

    def _cannot(
        self, check: str, node: NodeId, incarnation: Incarnation | None, level: int, because: str, *, after: float
    ) -> None:
        """Either the runner says that it could not, or nobody says anything."""
        if incarnation is None or self._mischief.chance(self._mischief.odds.check_silent):
            self._ground.chronicle.note("check.silent", node, check)
            return
        self._ground.chronicle.note("check.could_not_run", node, check)
        news = Checked(
            check=check, node=node, verdict=Verdict.COULD_NOT_RUN, incarnation=incarnation, level=level, because=because
        )
        self._ground.scheduler.after(after, lambda: self._agents.tell(news, f"{check}:{node}"))

    def _looked(self, look: str, seat: SimSeat) -> None:
        if seat.speaking:
            self._agents.say(seat, Looked(look=look, node=seat.id, incarnation=seat.voice), f"{look}:{seat.id}:looked")
            # The answer carries all that came before it.
            self._agents.flush(seat)
