"""Virtual hardware: defects go in, show, and leave by the right remedy only."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sickbay.clusters.local.defects import bus, catalogue, device_at, named, xid
from sickbay.clusters.local.devices import Hardware, create, hit, holders, passing
from sickbay.clusters.local.files import Break, Paths, Rank, VirtualDefect
from sickbay.knowledge.load import load_tables
from sickbay.model.errors import BadInput
from sickbay.model.fault import Remedy
from sickbay.model.fleet import JobId
from sickbay.model.job import RankState
from sickbay.signs.kernel import parse_line


@pytest.fixture
def hardware(tmp_path: Path) -> Hardware:
    hardware = Hardware(Paths(tmp_path, "n1"), "i1")
    hardware.ensure(4)
    hardware.begin_boot("b1")
    return hardware


def kmsg(tmp_path: Path, boot: str = "b1") -> list[str]:
    return Paths(tmp_path, "n1").kmsg("i1", boot).read_text().splitlines()


def rank(number: int, *devices: int, state: RankState = RankState.RUNNING) -> Rank:
    return Rank(job=JobId("j"), attempt=1, rank=number, boot_id="b1", devices=devices, state=state)


def broken(remedy: Remedy | None, device: int | None = 0) -> VirtualDefect:
    return VirtualDefect(name=f"cured_by_{remedy}", device=device, cured_by=remedy)


def test_no_serial_number_is_ever_used_twice() -> None:
    serials = [device.serial for _ in range(50) for device in create(8).devices]
    assert len(set(serials)) == 400


def test_hardware_is_made_once(hardware: Hardware) -> None:
    first = hardware.devices()
    assert [device.index for device in first.devices] == [0, 1, 2, 3]
    assert hardware.ensure(8) == first


def test_every_device_has_an_address_of_its_own() -> None:
    assert len({bus(device) for device in range(64)}) == 64
    assert [device_at(bus(device)) for device in range(64)] == list(range(64))
    assert device_at("00000000:2A:00.0") == 1
    assert device_at("0000:ff:00") is None
    assert device_at("nonsense") is None


@pytest.mark.parametrize("remedy", [Remedy.RESET_GPU, Remedy.REBOOT, Remedy.REPLACE])
def test_a_remedy_cures_what_asks_for_it_or_for_less(hardware: Hardware, remedy: Remedy) -> None:
    for cure in (Remedy.RESET_GPU, Remedy.REBOOT, Remedy.REPLACE, None):
        hardware.inject(broken(cure))
    hardware.cure(remedy)
    left = {defect.cured_by for defect in hardware.defects()}
    assert left == {c for c in (Remedy.REBOOT, Remedy.REPLACE) if c.rank > remedy.rank} | {None}


def test_what_nothing_cures_stays_in_the_seat_whatever_takes_it(hardware: Hardware, tmp_path: Path) -> None:
    hardware.inject(broken(None))
    successor = Hardware(Paths(tmp_path, "n1"), "i2")
    successor.ensure(4)
    assert [defect.cured_by for defect in successor.defects()] == [None]


def test_what_a_replacement_cures_leaves_with_the_instance(hardware: Hardware, tmp_path: Path) -> None:
    hardware.inject(broken(Remedy.REPLACE))
    successor = Hardware(Paths(tmp_path, "n1"), "i2")
    successor.ensure(4)
    assert successor.defects() == ()


def test_a_reset_of_one_device_leaves_the_others_as_they_are(hardware: Hardware) -> None:
    for device in (0, 1, None):
        hardware.inject(broken(Remedy.RESET_GPU, device))
    assert [defect.device for defect in hardware.cure(Remedy.RESET_GPU, (1,))] == [1]
    assert [defect.device for defect in hardware.defects()] == [0, None]


def test_the_same_defect_twice_is_one(hardware: Hardware) -> None:
    hardware.inject(broken(Remedy.REBOOT))
    hardware.inject(broken(Remedy.REBOOT))
    hardware.inject(broken(None))
    hardware.inject(broken(None))
    assert len(hardware.defects()) == 2


def test_an_error_of_the_application_breaks_no_device(hardware: Hardware) -> None:
    hardware.inject(named("illegal_access"))
    hardware.inject(xid(43))
    assert hardware.defects() == ()


def test_symptoms_are_lines_with_the_seconds_since_boot_and_a_counter(hardware: Hardware, tmp_path: Path) -> None:
    defect = named("gpu_off_bus", 2)
    hardware.show(defect, "b1", pid=4711, name="python3")
    lines = kmsg(tmp_path)
    assert len(lines) == 1 + len(defect.lines)
    said = parse_line(lines[1])
    assert said.fields == {"number": 79, "pci": bus(2), "pid": 4711, "name": "python3"}
    assert 0 <= float(lines[1][1:13]) < 60
    assert [device.errors for device in hardware.devices().devices] == [0, 0, 1, 0]


def test_a_repair_clears_the_counters_of_what_it_repaired(hardware: Hardware) -> None:
    for device in (0, 1):
        hardware.show(named("hot_gpu", device), "b1")
    hardware.cure(Remedy.RESET_GPU, (0,))
    assert [device.errors for device in hardware.devices().devices] == [0, 1, 0, 0]


def test_a_line_that_was_copied_with_its_stamp_gets_a_new_one(hardware: Hardware, tmp_path: Path) -> None:
    hardware.log("b1", ("[  30.227662] NVRM: Xid (PCI:0000:18:00): 43, pid=1, name={x}, channel\nsecond", ""))
    assert [line[15:] for line in kmsg(tmp_path)[1:]] == [
        "NVRM: Xid (PCI:0000:18:00): 43, pid=1, name={x}, channel",
        "second",
    ]


def test_each_boot_has_a_log_of_its_own_that_begins_with_an_ordinary_line(hardware: Hardware, tmp_path: Path) -> None:
    hardware.log("b1", ("something",))
    hardware.begin_boot("b2")
    assert len(kmsg(tmp_path, "b2")) == 1
    assert parse_line(kmsg(tmp_path, "b2")[0]) is None
    hardware.begin_boot("b1")
    assert len(kmsg(tmp_path)) == 2


@pytest.mark.parametrize("name", sorted(catalogue()))
def test_every_line_of_the_catalogue_is_understood(name: str) -> None:
    defect = named(name, 3)
    lines = [line.replace("{pid}", "7").replace("{name}", "python3") for line in defect.lines]
    understood = [said for line in lines if (said := parse_line(f"[   12.345678] {line}"))]
    assert bool(understood) == bool(lines)
    assert "{bus}" not in "".join(lines)
    assert all(said.fields["pci"] == bus(3) for said in understood if said.kind == "xid")
    assert catalogue()[name]


def test_every_xid_is_a_defect_whose_line_says_so_and_whose_cure_is_the_advised_one() -> None:
    for number in (*range(1, 180), 99_999):
        defect = xid(number, 1)
        said = parse_line(defect.lines[0].replace("{pid}", "7").replace("{name}", "python3"))
        assert (said.fields["number"], said.fields["pci"]) == (number, bus(1))
        listed = load_tables().xids.get(number)
        assert defect.cured_by == (listed.remedy if listed else Remedy.REBOOT), number
        assert passing(defect) or defect.kills, number


@pytest.mark.parametrize("wrong", [0, -1, 100_000])
def test_a_number_that_is_no_xid_is_refused(wrong: int) -> None:
    with pytest.raises(BadInput, match=r"write a number from 1 to 99999"):
        xid(wrong)


def test_a_name_that_is_no_defect_is_refused_with_all_names() -> None:
    with pytest.raises(BadInput, match=r"write one of gpu_off_bus, .*haunted"):
        named("nonsense")


def test_those_who_hold_a_device_are_those_who_run_on_it() -> None:
    ranks = (rank(0, 0, 1), rank(1, 2), rank(2, 1, state=RankState.GONE), rank(3))
    assert [each.rank for each in holders(ranks, (1,))] == [0]
    assert [each.rank for each in holders(ranks)] == [0, 1, 3]
    assert [each.rank for each in hit(broken(Remedy.REBOOT, 2), ranks)] == [1]
    assert [each.rank for each in hit(broken(Remedy.REBOOT, None), ranks)] == [0, 1, 3]


def test_changes_from_many_threads_at_once_are_all_kept(hardware: Hardware) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: hardware.inject(VirtualDefect(name=f"d{i}", device=0)), range(40)))
    assert len(hardware.defects()) == 40


@pytest.mark.slow
def test_changes_from_many_processes_at_once_are_all_kept(hardware: Hardware, tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from sickbay.clusters.local.files import Paths, VirtualDefect\n"
        "from sickbay.clusters.local.devices import Hardware\n"
        "h = Hardware(Paths(Path(sys.argv[1]), 'n1'), 'i1')\n"
        "for i in range(20): h.inject(VirtualDefect(name=sys.argv[2] + str(i), device=0))\n"
    )
    children = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path), word]) for word in ("a", "b", "c")]
    assert [child.wait(30) for child in children] == [0, 0, 0]
    assert len(hardware.defects()) == 60


def test_an_order_to_break_carries_any_defect_of_the_catalogue() -> None:
    for name in catalogue():
        assert Break(boot_id="b1", defect=named(name)).defect.name == name
