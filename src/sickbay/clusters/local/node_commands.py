"""How a node of the local cluster carries out what it is asked for."""

import time
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from sickbay.agent.checks import Exercise
from sickbay.agent.checks.storage import StorageLook, answer_check
from sickbay.agent.commands import CarriedOut, Carry, Refuse
from sickbay.agent.drill import Drills
from sickbay.agent.limits import within
from sickbay.agent.ranks.asking import ask_to_save, stacks_of
from sickbay.agent.watermark import Watermarks
from sickbay.clusters.local.devices import Hardware, holders
from sickbay.clusters.local.files import LocalSeat, Paths, Status, read
from sickbay.model.facts import Looked, ResetDone
from sickbay.model.fault import Remedy
from sickbay.model.protocol import AnyOrder, ItemNews, RunCheck, RunCollect, RunInject, RunLook, RunReset, RunSave

STORAGE_WITHIN = 5.0  # seconds: no file server is far away here


class LocalOrders:
    def __init__(
        self, paths: Paths, seat: LocalSeat, hardware: Hardware, senses: Watermarks, tests: Sequence[Exercise]
    ) -> None:
        self._paths = paths
        self._seat = seat
        self._me = seat.incarnation
        self._hardware = hardware
        self._senses = senses
        self._tests = tests
        self._storage = StorageLook(within=STORAGE_WITHIN)

    @property
    def carry(self) -> dict[type, Carry]:
        return {
            RunLook: self._look,
            RunSave: self._save,
            RunCheck: self._check,
            RunReset: self._reset,
            RunInject: self._inject,
            RunCollect: self._collect,
        }

    def _status(self) -> Status | None:
        found = read(self._paths.status, Status)
        return found if found is not None and found.boot_id == self._seat.boot_id else None

    @property
    def _instance(self) -> Path:
        return self._paths.instance(self._me.instance_id)

    def _look(self, order: AnyOrder, until: float) -> Sequence[ItemNews]:
        """What was found goes into the outbox before this returns; whoever reads `Looked` has read it."""
        assert isinstance(order, RunLook)
        settled = time.monotonic() + within("settle", order.settle)
        text = stacks_of(self._instance, self._me.boot_id, order.stacks_of, until)
        time.sleep(max(0.0, settled - time.monotonic()))
        self._senses.read_through()
        return [Looked(look=order.look, node=self._seat.id, incarnation=self._me, text=text)]

    def _save(self, order: AnyOrder, until: float) -> Sequence[ItemNews]:  # noqa: ARG002 - a Carry
        assert isinstance(order, RunSave)
        ask_to_save(self._instance, self._me.boot_id, order)
        return []

    def _check(self, order: AnyOrder, until: float) -> Sequence[ItemNews]:
        assert isinstance(order, RunCheck)
        with self._senses.provoked_by(order.check):
            # Its devices are virtual: all tests are alike, and no profile chooses among them.
            plain = replace(order, profile="")
            return [answer_check(plain, self._tests, until, self._storage, self._seat.id, self._me)]

    def _reset(self, order: AnyOrder, until: float) -> Sequence[ItemNews]:  # noqa: ARG002 - a Carry
        assert isinstance(order, RunReset)
        status = self._status()
        if status is None:
            raise Refuse("nobody can say whether a rank holds the device: the supervisor has not spoken yet")
        held = holders(status.ranks, order.devices)
        if held:
            who = ", ".join(sorted({f"rank {rank.rank} of {rank.job}" for rank in held}))
            raise Refuse(f"held by {who}")
        self._hardware.cure(Remedy.RESET_GPU, order.devices)
        return [ResetDone(key=order.key, node=self._seat.id, incarnation=self._me)]

    def _inject(self, order: AnyOrder, until: float) -> CarriedOut:  # noqa: ARG002 - a Carry
        assert isinstance(order, RunInject)
        log = self._paths.messages(self._seat.instance_id)
        drills = Drills(self._paths.agent(self._seat.instance_id) / "drills.json")
        return CarriedOut(text=f"written: {drills.inject(log, order.line, self._seat.name)}")

    def _collect(self, order: AnyOrder, until: float) -> CarriedOut:
        """What a virtual node has instead of a machine's own: its two logs, and what its agent knows."""
        assert isinstance(order, RunCollect)
        from sickbay.agent.bundle import BundleParts  # here: what packs files is not for every day
        from sickbay.agent.bundle import collect as gather
        from sickbay.agent.settings import AgentSettings

        seat, state = self._seat, self._paths.agent(self._seat.instance_id)
        logs = {"kmsg.txt": self._paths.kmsg(seat.instance_id, seat.boot_id),
                "messages.txt": self._paths.messages(seat.instance_id)}  # fmt: skip
        settings = AgentSettings(url="", node=seat.id, instance_id=seat.instance_id, state=str(state))
        found = gather(state, settings, until, BundleParts(commands={}, files=logs))
        return CarriedOut(text=f"{found.path} ({found.size} bytes)")
