"""Machines: what befalls them, what repairs do to them, and how they come back."""

from collections import Counter

from sickbay.model.errors import Rejected, Transient
from sickbay.model.facts import ResetDone
from sickbay.model.fault import Remedy
from sickbay.model.fleet import Capability, Device, Incarnation, NodeId
from sickbay.sim.agents import Agents
from sickbay.sim.chaos import Mischief
from sickbay.sim.context import SimContext
from sickbay.sim.hardware import MachinePower, SimDefect, SimSeat, symptom
from sickbay.sim.workload import Workload

SICKBAY = "sickbay"


class Plant:
    """Defects and repairs. `by` names who does it: only what Sickbay does can be a violation."""

    def __init__(self, ground: SimContext, agents: Agents, workload: Workload, mischief: Mischief) -> None:
        self._ground = ground
        self._agents = agents
        self._workload = workload
        self._mischief = mischief
        self._executed: Counter[tuple[str, str]] = Counter()
        workload.watch_devices(self._exercised)

    # --- defects
    def strike(self, seat: SimSeat, defect: SimDefect) -> None:
        """Something breaks."""
        self._ground.chronicle.note("defect", seat.id, defect.code)
        if defect.lasting:
            seat.defects.append(defect)
        self._show_itself(seat, defect)

    def _show_itself(self, seat: SimSeat, defect: SimDefect) -> None:
        turn, after = seat.turn, self._ground.scheduler.after
        if defect.kills_ranks:
            after(defect.kill_after, lambda: self._kill_users(seat, defect, turn))
        if not defect.silent:
            after(defect.observe_after, lambda: self.write_line(seat, defect.code, defect.device, turn))

    def _exercised(self, seat: SimSeat, defect: SimDefect) -> None:
        used = any(defect.device in (devices or seat.domain_of(())) for devices in seat.holders.values())
        if used and defect in seat.defects and seat.power is MachinePower.UP:
            self._ground.chronicle.note("defect.again", seat.id, defect.code)
            self._show_itself(seat, defect)

    def write_line(self, seat: SimSeat, code: str, device: int, turn: int | None = None) -> None:
        """The kernel writes a line, whatever the reason; with `turn`, only under that boot."""
        if seat.power is MachinePower.UP and turn in {None, seat.turn}:
            kind, fields, text = symptom(code, device)
            self._agents.observe(seat, kind, fields, text)

    def _kill_users(self, seat: SimSeat, defect: SimDefect, turn: int) -> None:
        if seat.turn != turn:
            return
        for attempt in self._workload.on(seat):
            if defect.device in (attempt.nodes[seat.id] or seat.domain_of(())):
                tail = "RuntimeError: CUDA error: unspecified launch failure"
                self._workload.rank_dies(seat, attempt, exit_code=134, cause=defect.code, tail=tail)

    def _cure(self, seat: SimSeat, remedy: Remedy, devices: frozenset[int] | None = None) -> None:
        kept = [d for d in seat.defects if not d.cured(remedy) or (devices is not None and d.device not in devices)]
        if len(kept) < len(seat.defects):
            self._ground.chronicle.note("cured", seat.id, remedy.value)
        seat.defects = kept

    # --- losing touch
    def lose_node(self, seat: SimSeat, *, zombie: bool = False, back_by: Remedy = Remedy.REBOOT) -> None:
        """Agent silent, cluster not ready. A zombie's ranks go on where nobody can reach them."""
        self._ground.chronicle.note("node.lost", seat.id, "zombie" if zombie else "dead")
        seat.stuck = back_by
        if zombie:
            seat.path_open = seat.link_open = False
            for attempt in self._workload.on(seat):
                self._workload.sever(attempt)
        else:
            self._down(seat, cause="node lost")
        self._agents.refresh(seat)
        self.cluster_hears(seat)

    def _down(self, seat: SimSeat, *, cause: str) -> None:
        seat.power = MachinePower.DOWN
        seat.turn += 1
        seat.agent_alive = seat.kubelet_alive = False
        self._agents.boot_ends(seat)
        self._workload.node_dies(seat, cause=cause)

    def set_agent(self, seat: SimSeat, *, alive: bool) -> None:
        self._ground.chronicle.note("agent.back" if alive else "agent.lost", seat.id)
        seat.agent_alive = alive
        self._agents.refresh(seat)

    def set_path(self, seat: SimSeat, *, path_open: bool) -> None:
        """The agent's way to us; it spools while it is cut."""
        seat.path_open = path_open
        self._agents.refresh(seat)

    def set_link(self, seat: SimSeat, *, link_open: bool) -> None:
        """The cluster's way to the node."""
        self._ground.chronicle.note("link.open" if link_open else "link.cut", seat.id)
        seat.link_open = link_open
        self.cluster_hears(seat)

    def cluster_hears(self, seat: SimSeat, *, at_once: bool = False) -> None:
        """Call after anything that the cluster's word on a node depends on has changed."""
        if seat.reachable:
            if not seat.ready:
                seat.ready_at = self._ground.now
            seat.ready, seat.shown = True, seat.incarnation
            self._ground.show(seat)
            self._workload.node_proven(seat)
        elif at_once:
            self._unready(seat)
        else:
            self._ground.scheduler.after(self._ground.spread(self._ground.rules.notice), lambda: self._unready(seat))

    def _unready(self, seat: SimSeat) -> None:
        if not seat.reachable and seat.ready:
            seat.ready, seat.ready_at = False, self._ground.now
            seat.shown = seat.shown or seat.incarnation
            self._ground.show(seat)
            self._workload.node_unready(seat)

    # --- repairs
    def restart_service(self, seat: SimSeat) -> None:
        if not seat.reachable:
            raise Rejected(f"the cluster cannot reach {seat.id}")
        takes = self._ground.spread(self._ground.rules.agent_starts)
        self._ground.scheduler.after(
            takes, lambda: self.set_agent(seat, alive=True) if seat.power is MachinePower.UP else None
        )

    def reset(self, seat: SimSeat, devices: tuple[int, ...], key: str) -> None:
        domain = seat.domain_of(devices)
        if not seat.speaking:
            raise Transient(f"the agent of {seat.id} cannot be reached")
        for attempt in self._workload.holding(seat):
            held = domain & (set(attempt.nodes[seat.id]) or seat.domain_of(()))
            if held:
                self._ground.chronicle.note("reset.refused", seat.id, attempt.id)
                raise Rejected(f"device busy: {attempt.id} holds {sorted(held)} on {seat.id}")
        self._count("reset_gpu", seat, key)
        self._spare_others("reset_gpu", seat, key)
        turn, seat.resetting = seat.turn, True

        def done() -> None:
            seat.resetting = False
            if seat.turn == turn and seat.power is MachinePower.UP:
                self._cure(seat, Remedy.RESET_GPU, domain)
                self._ground.chronicle.note("reset.done", seat.id, key)
                self._agents.say(
                    seat, ResetDone(key=key, node=seat.id, incarnation=seat.voice), f"{key}:{seat.id}:reset"
                )

        self._ground.scheduler.after(self._ground.spread(self._ground.rules.reset_takes), done)

    def reboot(self, seat: SimSeat, *, key: str, by: str = SICKBAY) -> None:
        self._count("reboot", seat, key)
        self._guard("reboot", seat, by, key)
        if seat.speaking:
            away = int(2 * self._ground.rules.boot_takes)
            self._agents.observe(seat, "node.going_down", {"seconds": away}, f"reboot by {by}", "agent")
            self._agents.flush(seat)
        if self._ground.clusters[seat.cluster].reboots_uncordon:
            seat.cordons.clear()
        self._end_boot(seat, cause="reboot" if by == SICKBAY else by)
        seat.incarnation = type(seat.incarnation)(
            uid=seat.incarnation.uid, instance_id=seat.incarnation.instance_id, boot_id=self._ground.boot()
        )
        self._cure(seat, Remedy.REBOOT)
        if seat.stuck is not None and seat.stuck.rank > Remedy.REBOOT.rank:
            self._ground.chronicle.note("boot.failed", seat.id, "broken")
            seat.power = MachinePower.DOWN
        elif self._mischief.chance(self._mischief.odds.boot_fails):
            self._ground.chronicle.note("boot.failed", seat.id, "by chance")
            seat.power = MachinePower.DOWN
        else:
            self._come_up(seat, self._ground.rules.boot_takes)

    def replace(self, seat: SimSeat, *, key: str, by: str = SICKBAY) -> NodeId | None:
        """Other hardware in the same seat, or, where seats are not kept, a newcomer under another name, or none."""
        self._count("replace", seat, key)
        self._guard("replace", seat, by, key)
        if Capability.SEAT_KEPT not in self._ground.clusters[seat.cluster].capabilities:
            self.delete(seat, cause="replace")
            return self._invite(seat)
        self._end_boot(seat, cause="replace")
        self._agents.wipe(seat)
        seat.incarnation = self._ground.machine()
        self._cure(seat, Remedy.REPLACE)
        if not self._ground.clusters[seat.cluster].keeps_cordons:
            self._ground.chronicle.note("cordons.lost", seat.id, ",".join(sorted(seat.cordons)))
            seat.cordons.clear()
        self._come_up(seat, self._ground.rules.replace_takes, self._ground.gpus(len(seat.devices)))
        return None

    def delete(self, seat: SimSeat, *, cause: str) -> None:
        """The seat goes with its machine."""
        self._ground.chronicle.note("deleted", seat.id, cause)
        self._end_boot(seat, cause=cause)
        seat.power = MachinePower.DELETED
        self._agents.wipe(seat)
        self._agents.refresh(seat)
        self._ground.vanish(seat)

    def _invite(self, old: SimSeat) -> NodeId | None:
        if self._mischief.chance(self._mischief.odds.no_newcomer):
            self._ground.chronicle.note("newcomer.never", old.id)
            return None
        name = NodeId(f"{old.cluster}/{old.pool}-n{self._ground.number()}")

        def join() -> None:
            seat = self._ground.add_seat(
                name, pool=old.pool, domain=old.domain, gpus=len(old.devices), linked=old.linked
            )
            self._ground.chronicle.note("joined", name, f"after {old.id}")
            self._agents.refresh(seat)
            self.cluster_hears(seat)
            self._bring_along(old, seat)

        self._ground.scheduler.after(self._ground.spread(self._ground.rules.replace_takes), join)
        return name

    def _bring_along(self, old: SimSeat, seat: SimSeat) -> None:
        """A machine may come with a defect, and say so before the cluster has said that it is there."""
        brought, old.next_defects = old.next_defects, []
        for defect in brought:
            self.strike(seat, defect)

    def fence(self, node: NodeId, *, key: str, expect: Incarnation | None = None) -> None:
        """Afterwards nothing of the expected boot can write. A machine that is in touch and idle is left alone."""
        seat = self._ground.seats.get(node)
        if seat is None:
            return
        if expect is not None and seat.power is not MachinePower.DOWN and not seat.incarnation.same_boot(expect):
            return  # the boot that was meant is over; whoever holds the seat now has nothing to do with it
        in_touch = seat.reachable or seat.speaking
        living = self._workload.on(seat)
        if in_touch and not living:
            return
        if in_touch:
            for attempt in living:
                if not attempt.stop_told and attempt.end is None:
                    self._ground.chronicle.violate("fence_on_running", seat.id, attempt.id)
        if seat.power is MachinePower.UP and self._ground.rules.fence_takes:
            down_at = seat.down_at.setdefault(seat.turn, self._ground.now + self._ground.rules.fence_takes)
            if self._ground.now < down_at:
                raise Transient(f"{seat.id} is still going down")
        self._ground.chronicle.note("fenced", seat.id, key)
        if seat.power is MachinePower.UP:
            self._down(seat, cause="node lost")
            self._agents.refresh(seat)
            self.cluster_hears(seat, at_once=True)
        self._workload.node_proven(seat)

    # --- going down and coming up
    def _end_boot(self, seat: SimSeat, *, cause: str) -> None:
        was_up = seat.power is MachinePower.UP
        if was_up:
            self._workload.node_dies(seat, cause=cause)
            self._agents.boot_ends(seat)
        seat.shown = seat.shown or seat.incarnation
        seat.turn += 1
        seat.power = MachinePower.BOOTING
        seat.agent_alive = seat.kubelet_alive = False
        seat.resetting = False
        seat.unmanaged = 0
        self._agents.refresh(seat)
        self.cluster_hears(seat, at_once=True)
        # Whoever ended that boot knows that nothing of it runs any more.
        self._workload.node_proven(seat)

    def _come_up(self, seat: SimSeat, takes: float, devices: tuple[Device, ...] = ()) -> None:
        turn = seat.turn
        seat.stuck = None

        def up() -> None:
            if seat.turn != turn:
                return
            seat.power, seat.up_at = MachinePower.UP, self._ground.now
            seat.devices = devices or seat.devices  # nobody sees new ones before they are there
            seat.agent_alive = seat.kubelet_alive = seat.path_open = seat.link_open = True
            self._ground.chronicle.note("up", seat.id, seat.incarnation.boot_id)
            self._agents.refresh(seat)
            self.cluster_hears(seat)
            self._bring_along(seat, seat)
            for defect in seat.defects:
                if defect.recurs_after_boot is not None:
                    self._recur(seat, defect, turn)

        self._ground.scheduler.after(self._ground.spread(takes), up)

    def _recur(self, seat: SimSeat, defect: SimDefect, turn: int) -> None:
        def again() -> None:
            if seat.turn == turn and defect in seat.defects:
                self._show_itself(seat, defect)

        self._ground.scheduler.after(defect.recurs_after_boot or 0.0, again)

    def _count(self, act: str, seat: SimSeat, key: str) -> None:
        self._ground.chronicle.note(act, seat.id, key)
        self._executed[act, key] += 1
        if self._executed[act, key] > 1:
            self._ground.chronicle.violate("repair_twice", seat.id, f"{act} executed again for {key}")

    def _guard(self, act: str, seat: SimSeat, by: str, key: str) -> None:
        if by != SICKBAY:
            return
        self._spare_others(act, seat, key)
        for attempt in self._workload.on(seat):
            # Ranks that nobody can reach and that were given up may be ended this way; others may not. Of one that its
            # cluster called over while it did not reach the node, nobody knows that it still runs.
            in_touch = seat.reachable or (seat.speaking and attempt.end is None)
            if in_touch or not (attempt.stop_told or attempt.end is not None):
                text = f"{act} while {attempt.id} runs there"
                # What we start ourselves we know of; what others start, we must have read of.
                since = attempt.launched_at if attempt.native or attempt.allocated else -1.0
                self._ground.chronicle.violate("repair_on_running", seat.id, text, key=key, since=since)

    def _spare_others(self, act: str, seat: SimSeat, key: str) -> None:
        """Work that we do not manage is moved off before a repair, too; on a machine that is down there is none."""
        if seat.unmanaged and seat.power is MachinePower.UP and (seat.reachable or seat.speaking):
            text = f"{act} under {seat.unmanaged} pieces of unmanaged work"
            self._ground.chronicle.violate("repair_on_work", seat.id, text, key=key, since=seat.worked_at)
