"""How a node looks, checks and resets: what was found is said before the answer; what cannot be read is no answer."""

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from tests.support.rank_rig import PlayedRanks, over

from sickbay.agent.commands import CarriedOut, Refuse
from sickbay.agent.outbox import Outbox, say
from sickbay.agent.probes import Probe
from sickbay.agent.ranks.directory import RankFile
from sickbay.agent.spool import AgentIdentity
from sickbay.agent.watermark import Watermarks
from sickbay.clusters.local.devices import Hardware
from sickbay.clusters.local.files import LocalSeat, Paths, Rank, Status, VirtualDefect, write
from sickbay.clusters.local.node_commands import LocalOrders
from sickbay.clusters.local.virtual_devices import virtual_tests
from sickbay.model.facts import Checked, Looked, Observed, ResetDone
from sickbay.model.fault import Remedy
from sickbay.model.fleet import JobId
from sickbay.model.protocol import AnyOrder, Item, ItemNews, RunCheck, RunLook, RunReset, RunSave

SEAT = LocalSeat(name="n1", cluster="c", pool="p", gpus=2, instance_id="i", boot_id="b")
LATER = 1e12


class Ward:
    """Orders over real files, with a witness that the test plays."""

    def __init__(self, root: Path) -> None:
        self.paths = Paths(root, "n1")
        self.played = PlayedRanks(self.paths.instance("i"))
        self.hardware = Hardware(self.paths, "i")
        self.hardware.ensure(2)
        self.hardware.begin_boot("b")
        self.outbox = Outbox(root / "spool", AgentIdentity(node=SEAT.id, incarnation=SEAT.incarnation, agent_run="r"))
        self.read_at: list[float] = []
        self.lines: list[str] = []
        self.trouble: OSError | None = None
        self.senses = Watermarks([Probe("log", self._look, period=1.0, witness=True)], self.outbox)
        tests = virtual_tests(self.hardware, 2, "b")
        self.orders = LocalOrders(self.paths, SEAT, self.hardware, self.senses, tests).carry

    def _look(self, now: float) -> Sequence[Item]:
        self.read_at.append(now)
        if self.trouble is not None:
            raise self.trouble
        found, self.lines = self.lines, []
        return [say(Observed(node=SEAT.id, kind="xid", text=text)) for text in found]

    def carried(self, order: AnyOrder) -> Sequence[ItemNews]:
        told = self.orders[type(order)](order, LATER)
        return told.news if isinstance(told, CarriedOut) else told

    def said(self) -> list[tuple[str, object]]:
        news = [msgspec.json.decode(entry.line, type=Item).news for entry in self.outbox._entries]
        return [(one.text, one.fields.get("check")) for one in news if isinstance(one, Observed)]

    def status(self, *ranks: Rank, boot_id: str = "b") -> None:
        write(self.paths.status, Status(boot_id=boot_id, instance_id="i", pid=1, mono=0.0, ranks=ranks))


@pytest.fixture
def ward(tmp_path: Path) -> Ward:
    return Ward(tmp_path)


def rank(device: int) -> Rank:
    return Rank(job=JobId("j"), attempt=1, rank=device, boot_id="b", devices=(device,), pid=1)


def test_a_look_lets_things_settle_and_has_said_what_it_found_before_it_answers(ward: Ward) -> None:
    ward.lines = ["a line"]
    began = time.monotonic()
    (looked,) = ward.carried(RunLook(look="l"))
    assert looked == Looked(look="l", node=SEAT.id, incarnation=SEAT.incarnation)
    assert ward.read_at[-1] >= began + 0.2
    assert ward.said() == [("a line", None)]
    assert ward.senses.watermark >= began + 0.2


def test_a_look_that_cannot_read_is_no_look(ward: Ward) -> None:
    ward.trouble = OSError("the log is gone")
    with pytest.raises(OSError, match="the log is gone"):
        ward.orders[RunLook](RunLook(look="l"), LATER)
    assert ward.senses.watermark == 0.0


@pytest.mark.slow
def test_stacks_of_a_job_that_does_not_run_here_are_empty(ward: Ward) -> None:
    for boot_id in ("", "older", "b"):  # the supervisor has not spoken, spoke before this boot, lists no ranks
        if boot_id:
            ward.status(boot_id=boot_id)
        (looked,) = ward.carried(RunLook(look="l", stacks_of=JobId("j")))
        assert isinstance(looked, Looked)
        assert looked.text == ""


def test_only_what_comes_after_a_check_began_is_its_doing(ward: Ward) -> None:
    ward.lines = ["before"]
    with ward.senses.provoked_by("k"):
        ward.lines = ["during"]
    ward.lines = ["after"]
    ward.senses.read_through()
    assert ward.said() == [("before", None), ("during", "k"), ("after", None)]


def test_a_check_gives_its_verdict_with_every_test(ward: Ward) -> None:
    ward.hardware.inject(VirtualDefect(name="x", device=1, cured_by=Remedy.REBOOT))
    (checked,) = ward.carried(RunCheck(check="k", level=1))
    assert isinstance(checked, Checked)
    assert (checked.check, checked.verdict, checked.level, checked.because) == ("k", "fail", 1, "compute: x on GPU 1")
    assert [test.verdict for test in checked.tests] == ["pass", "fail"]


def test_a_reset_cures_the_devices_that_were_named(ward: Ward) -> None:
    for device in (0, 1):
        ward.hardware.inject(VirtualDefect(name="x", device=device, cured_by=Remedy.RESET_GPU))
    ward.status()
    (done,) = ward.carried(RunReset(key="k", devices=(1,)))
    assert done == ResetDone(key="k", node=SEAT.id, incarnation=SEAT.incarnation)
    assert [defect.device for defect in ward.hardware.defects()] == [0]
    ward.orders[RunReset](RunReset(key="k2"), LATER)
    assert not ward.hardware.defects()


@pytest.mark.parametrize(("devices", "refused"), [((), True), ((0,), True), ((1,), False)])
def test_a_reset_is_refused_while_a_rank_holds_the_device(ward: Ward, devices: tuple[int, ...], refused: bool) -> None:
    ward.status(rank(0))
    order = RunReset(key="k", devices=devices)
    if refused:
        with pytest.raises(Refuse, match="held by rank 0 of j"):
            ward.orders[RunReset](order, LATER)
    else:
        assert ward.orders[RunReset](order, LATER)


def test_a_reset_is_refused_while_nobody_can_say_who_holds_the_device(ward: Ward) -> None:
    with pytest.raises(Refuse, match="nobody can say"):
        ward.orders[RunReset](RunReset(key="k"), LATER)
    ward.status(boot_id="older")
    with pytest.raises(Refuse, match="nobody can say"):
        ward.orders[RunReset](RunReset(key="k"), LATER)


def test_an_ask_to_save_reaches_the_ranks_of_that_attempt_that_run_and_nobody_else(ward: Ward) -> None:
    one, two = (RankFile(job=JobId("j"), attempt=1, rank=number, boot_id="b") for number in (0, 1))
    old, gone = replace(one, attempt=2), over(replace(one, rank=3))
    strange, earlier = replace(one, job=JobId("k")), replace(one, rank=5, boot_id="a")
    everybody = (one, two, old, gone, strange, earlier)
    ward.played.put(*everybody)
    assert ward.carried(RunSave(save="s.1", job=JobId("j"), attempt=1)) == []
    asked = [ward.played.run(rank) / "save.asked" for rank in everybody]
    assert [path.exists() for path in asked] == [True, True, False, False, False, False]
    assert msgspec.json.decode(asked[0].read_bytes()) == {"id": "s.1"}
    ward.played.close()


def test_an_ask_to_save_that_nobody_can_hear_is_refused(ward: Ward) -> None:
    with pytest.raises(Refuse, match="no rank of attempt 2 of j runs here"):
        ward.carried(RunSave(save="s.1", job=JobId("j"), attempt=2))
    ward.played.put(RankFile(job=JobId("j"), attempt=1, rank=0, boot_id="b"))
    with pytest.raises(Refuse, match="no rank of attempt 2 of j runs here"):
        ward.carried(RunSave(save="s.1", job=JobId("j"), attempt=2))
