"""The machine around the GPUs, read from trees as /sys and /proc have them."""

import os
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.waiting import until

from sickbay.agent.outbox import say
from sickbay.agent.probes.counters import Counters, number_in
from sickbay.agent.probes.gauges import Gauges
from sickbay.agent.probes.host import EdgeTriggered, HostGauges
from sickbay.agent.probes.machine import Machine, clock_unsynchronised
from sickbay.agent.probes.mounts import STALLED_AFTER, Mounts
from sickbay.agent.sampling import Sampler
from sickbay.agent.settings import AgentSettings
from sickbay.knowledge.counters import counter_rules, read_counters
from sickbay.knowledge.load import load_tables
from sickbay.model.errors import BadInput
from sickbay.model.facts import Observed
from sickbay.model.fault import Remedy
from sickbay.model.fleet import NodeId
from sickbay.model.protocol import Item, Measured
from sickbay.model.sign import Sign
from sickbay.signs.classify import classify

NODE = NodeId("c/n1")
TABLES = load_tables()


def put(root: Path, name: str, text: object) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")
    return path


def seen(items: Iterable[Item]) -> list[Observed]:
    return [item.news for item in items if isinstance(item.news, Observed)]


def kinds(items: Iterable[Item]) -> list[str]:
    return [news.kind for news in seen(items)]


# --- counters


NEURON = "devices/virtual/neuron_device"


def neuron_tree(root: Path) -> Path:
    """Two devices of two cores as aws-neuronx-dkms lays them out: a counter is a directory with total and present."""
    for device in range(2):
        at = f"{NEURON}/neuron{device}"
        put(root, f"{at}/core_count", 2)
        for name in ("mem_ecc_uncorrected", "mem_ecc_repairable_uncorrected", "sram_ecc_uncorrected"):
            put(root, f"{at}/stats/hardware/{name}/total", 0)
            put(root, f"{at}/stats/hardware/{name}/present", 0)
        for core in range(2):
            for name in ("success", "timeout", "hw_error", "hw_hbm_ue_error", "hw_nc_ue_error", "hw_dma_abort_error"):
                put(root, f"{at}/neuron_core{core}/stats/status/{name}/total", 0)
                put(root, f"{at}/neuron_core{core}/stats/status/{name}/present", 0)
    return root


@pytest.mark.parametrize(
    ("counter", "code", "remedy"),
    [
        ("stats/hardware/mem_ecc_uncorrected", "neuron.hbm_uncorrected", Remedy.REPLACE),
        ("stats/hardware/mem_ecc_repairable_uncorrected", "neuron.hbm_repairable", Remedy.REBOOT),
        ("stats/hardware/sram_ecc_uncorrected", "neuron.sram_uncorrected", Remedy.REPLACE),
        ("neuron_core1/stats/status/hw_hbm_ue_error", "neuron.hbm_uncorrected", Remedy.REPLACE),
        ("neuron_core0/stats/status/hw_nc_ue_error", "neuron.nc_uncorrected", Remedy.REPLACE),
        ("neuron_core0/stats/status/hw_dma_abort_error", "neuron.dma_error", Remedy.REPLACE),
        ("neuron_core0/stats/status/hw_error", "neuron.hw_error", Remedy.REBOOT),
    ],
)
def test_a_neuron_counter_that_grows_is_a_fault_of_its_device(
    tmp_path: Path, counter: str, code: str, remedy: Remedy
) -> None:
    counters = Counters(NODE, neuron_tree(tmp_path))
    assert not counters.look(0.0)
    put(tmp_path, f"{NEURON}/neuron1/{counter}/total", 2)
    (news,) = seen(counters.look(10.0))
    assert (news.kind, news.fields["device"], news.count) == (code, 1, 2)
    fault = classify(news, TABLES)
    assert fault is not None
    assert (fault.code, fault.remedy, fault.device) == (code, remedy, 1)
    assert not counters.look(20.0)


def test_successes_and_time_outs_of_programs_are_no_faults(tmp_path: Path) -> None:
    counters = Counters(NODE, neuron_tree(tmp_path))
    counters.look(0.0)
    for name in ("success", "timeout"):
        put(tmp_path, f"{NEURON}/neuron0/neuron_core0/stats/status/{name}/total", 5000)
    assert not counters.look(10.0)


def test_errors_from_before_the_agent_started_are_told_where_they_stay_until_a_repair(tmp_path: Path) -> None:
    neuron_tree(tmp_path)
    put(tmp_path, f"{NEURON}/neuron0/stats/hardware/sram_ecc_uncorrected/total", 1)
    put(tmp_path, "class/infiniband/mlx5_0/ports/1/counters/link_downed", 7)
    counters = Counters(NODE, tmp_path)
    assert kinds(counters.look(0.0)) == ["neuron.sram_uncorrected"]
    assert not counters.look(10.0)


def test_a_rate_below_the_rule_is_nothing_and_above_it_is_told_once(tmp_path: Path) -> None:
    name = "class/infiniband/mlx5_0/ports/1/counters/symbol_error"
    put(tmp_path, name, 0)
    counters = Counters(NODE, tmp_path)
    counters.look(0.0)
    put(tmp_path, name, 900)
    assert not counters.look(10.0)
    put(tmp_path, name, 1100)
    (news,) = seen(counters.look(20.0))
    assert (news.kind, news.fields["interface"]) == ("ib.link_errors", "mlx5_0/1")
    put(tmp_path, name, 5000)
    assert not counters.look(30.0)


def test_a_counter_that_fell_back_was_reset_with_its_driver(tmp_path: Path) -> None:
    name = "class/infiniband/rdmap0s31/ports/1/hw_counters/rdma_read_wr_err"
    put(tmp_path, name, 40)
    counters = Counters(NODE, tmp_path)
    counters.look(0.0)
    put(tmp_path, name, 0)
    assert not counters.look(10.0)
    put(tmp_path, name, 1)
    assert kinds(counters.look(20.0)) == ["efa.work_errors"]


@pytest.mark.parametrize(
    ("text", "number"),
    [("5", 5), ("0x1f\n", 31), ("RxErr 3\nTOTAL_ERR_COR 12\n", 12), ("", None), ("none", None), ("12 apples", None)],
)
def test_a_number_is_read_however_the_kernel_writes_it(tmp_path: Path, text: str, number: int | None) -> None:
    path = tmp_path / "counter"
    path.write_text(text)
    assert number_in(path) == number
    assert number_in(tmp_path / "none") is None


def test_every_shipped_counter_names_a_fault_that_is_known() -> None:
    assert {rule.code for rule in counter_rules()} <= TABLES.faults.keys()


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("class/x,y,no.such,1,1,no,s", "is in no fault table"),
        ("/class/x,y,net.errors,1,1,no,s", "below /sys"),
        ("class/x,../y,net.errors,1,1,no,s", "below /sys"),
        ("class/x,y,net.errors,many,1,no,s", "grown_by 'many' is no number"),
        ("class/x,y,net.errors,0,1,no,s", "above 0"),
        ("class/x,y,net.errors,1,1,perhaps,s", "yes or no"),
    ],
)
def test_a_wrong_row_is_refused_in_one_line(row: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        read_counters(f"under,name,code,grown_by,within,at_start,source\n{row}\n")
    with pytest.raises(BadInput, match="column under is missing"):
        read_counters("a,b\n1,2\n")


# --- what is wrong as long as it lasts


def wrong(signs: Iterable[Sign]) -> list[str]:
    return [sign.kind for sign in signs]


def test_a_port_that_was_active_and_is_down_is_told_and_an_empty_one_is_not(tmp_path: Path) -> None:
    for device in ("mlx5_0", "mlx5_1"):
        put(tmp_path, f"class/infiniband/{device}/ports/1/state", "4: ACTIVE" if device == "mlx5_0" else "1: DOWN")
    machine = Machine(tmp_path, tmp_path)
    assert not wrong(machine.ports(0.0))
    put(tmp_path, "class/infiniband/mlx5_0/ports/1/state", "1: DOWN")
    (sign,) = machine.ports(10.0)
    assert (sign.kind, sign.fields) == ("ib.link_down", {"interface": "mlx5_0", "port": "1"})
    put(tmp_path, "class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE")
    assert not wrong(machine.ports(20.0))


def test_only_real_cards_have_carriers_to_lose(tmp_path: Path) -> None:
    put(tmp_path, "class/net/eth0/carrier", 1)
    put(tmp_path, "class/net/eth0/device/vendor", "0x1")
    put(tmp_path, "class/net/docker0/carrier", 1)
    machine = Machine(tmp_path, tmp_path)
    assert not wrong(machine.carriers(0.0))
    for name in ("eth0", "docker0"):
        put(tmp_path, f"class/net/{name}/carrier", 0)
    assert [sign.fields for sign in machine.carriers(10.0)] == [{"interface": "eth0"}]


@pytest.mark.parametrize(
    ("kind", "has", "could", "found"),
    [
        ("0x020700", 8, 16, ["pcie.link_narrow"]), ("0x020700", 16, 16, []), ("0x030200", 8, 16, []),
        ("0x010802", 2, 4, ["pcie.link_narrow"]), ("0x010802", 0, 4, []), ("0x020000", 4, 255, []),
    ],
)  # fmt: skip
def test_lanes_are_compared_where_they_never_sleep(
    tmp_path: Path, kind: str, has: int, could: int, found: list[str]
) -> None:
    at = "bus/pci/devices/0000:17:00.0"
    for name, value in (("class", kind), ("current_link_width", has), ("max_link_width", could)):
        put(tmp_path, f"{at}/{name}", value)
    assert wrong(Machine(tmp_path, tmp_path).lanes(0.0)) == found


def test_memory_must_be_low_for_a_while(tmp_path: Path) -> None:
    put(tmp_path, "meminfo", "MemTotal: 1000000 kB\nMemAvailable: 10000 kB")
    machine = Machine(tmp_path, tmp_path)
    assert not wrong(machine.memory(0.0))
    assert wrong(machine.memory(60.0)) == ["os.low_memory"]
    put(tmp_path, "meminfo", "MemTotal: 1000000 kB\nMemAvailable: 500000 kB")
    assert not wrong(machine.memory(70.0))


def test_a_clock_is_missed_only_where_it_was_synchronised_before(tmp_path: Path) -> None:
    machine = Machine(tmp_path, tmp_path)
    assert not wrong(machine.clock(0.0, lambda: True))
    assert not wrong(machine.clock(700.0, lambda: True))
    assert not wrong(machine.clock(800.0, lambda: False))
    assert not wrong(machine.clock(900.0, lambda: True))
    assert wrong(machine.clock(1500.0, lambda: True)) == ["os.clock_unsynchronised"]
    assert not wrong(machine.clock(1600.0, lambda: None))
    assert clock_unsynchronised() in {True, False, None}


def stat(pid: int, name: str, state: str, started: int) -> str:
    return f"{pid} ({name}) {state} " + " ".join(["1"] * 18) + f" {started} 0"


def test_a_process_that_waits_in_the_kernel_for_minutes_hangs(tmp_path: Path) -> None:
    put(tmp_path, "77/stat", stat(77, "cp (1) x", "D", 5))
    put(tmp_path, "77/wchan", "nfs_wait_bit_killable")
    put(tmp_path, "78/stat", stat(78, "idle", "S", 5))
    machine = Machine(tmp_path, tmp_path)
    assert not wrong(machine.hung(0.0))
    (sign,) = machine.hung(120.0)
    assert (sign.kind, sign.fields) == ("os.hung_task", {"pid": 77, "name": "cp (1) x"})
    put(tmp_path, "77/stat", stat(77, "cp (1) x", "D", 9))  # another process under the same number
    assert not wrong(machine.hung(240.0))


@pytest.mark.parametrize("where", ["kernel_clone", "_do_fork", "__refrigerator", "request_wait_answer", "0", ""])
def test_who_waits_for_his_own_child_or_because_he_was_stopped_hangs_in_no_device(tmp_path: Path, where: str) -> None:
    """Any user can wait like that for as long as he likes: the kernel's own watch does not count it either."""
    put(tmp_path, "77/stat", stat(77, "vfork", "D", 5))
    put(tmp_path, "77/wchan", where)
    machine = Machine(tmp_path, tmp_path)
    assert not wrong(machine.hung(0.0))
    assert not wrong(machine.hung(120.0))
    put(tmp_path, "77/wchan", "uvm_ioctl")  # it went on, and waits for something else now
    assert not wrong(machine.hung(180.0))
    assert wrong(machine.hung(300.0)) == ["os.hung_task"]


def test_the_fabric_manager_matters_only_where_there_is_a_switch(tmp_path: Path) -> None:
    assert not wrong(Machine(tmp_path, tmp_path).fabric_manager(0.0))


def test_what_lasts_is_told_once_and_again_after_it_was_well() -> None:
    now_wrong: list[Sign] = [Sign(kind="fs.full", fields={"mount": "/"})]
    standing = EdgeTriggered(NODE, [lambda _: now_wrong])
    assert kinds(standing.look(0.0)) == ["fs.full"]
    assert not standing.look(1.0)
    now_wrong.clear()
    assert not standing.look(2.0)
    now_wrong.append(Sign(kind="fs.full", fields={"mount": "/"}))
    assert kinds(standing.look(3.0)) == ["fs.full"]


def test_not_to_see_is_not_to_be_well() -> None:
    sees = [True]

    def look(_: float) -> list[Sign]:
        if not sees[0]:
            raise OSError("gone")
        return [Sign(kind="fs.full")]

    standing = EdgeTriggered(NODE, [look])
    assert kinds(standing.look(0.0)) == ["fs.full"]
    sees[0] = False
    with pytest.raises(OSError, match="gone"):
        standing.look(1.0)
    sees[0] = True
    assert not standing.look(2.0)


# --- file systems that do not answer


def test_a_file_system_that_hangs_is_told_and_asked_by_one_thread_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    real = os.statvfs

    def hangs(path: str) -> os.statvfs_result:
        released.wait(30)
        return real(path)

    monkeypatch.setattr(os, "statvfs", hangs)
    mounts = Mounts((str(tmp_path),), table=tmp_path / "none")
    before = threading.active_count()
    assert not wrong(mounts.look(0.0))
    assert not wrong(mounts.look(10.0))
    (sign,) = mounts.look(STALLED_AFTER)
    assert (sign.kind, sign.fields) == ("fs.stalled", {"mount": str(tmp_path)})
    assert threading.active_count() == before + 1
    released.set()
    mounts.settle(5.0)
    assert not wrong(mounts.look(STALLED_AFTER + 10))
    mounts.settle(5.0)


@pytest.mark.parametrize("name", ["größe", "日本", "a\\b", "tab\tand\nline", "\udcff"])
def test_a_mount_is_asked_by_its_name_however_it_is_written(tmp_path: Path, name: str) -> None:
    there = tmp_path / name
    there.mkdir()
    written = os.fsencode(there)
    for char in b"\\ \t\n":  # as the kernel writes them; the backslash first
        written = written.replace(bytes([char]), f"\\{char:03o}".encode())
    (tmp_path / "mounts").write_bytes(b"fs:/x " + written + b" nfs4 rw 0 0\n")
    mounts = Mounts(table=tmp_path / "mounts")
    for now in (0.0, 10.0):
        assert not wrong(mounts.look(now))
        mounts.settle(5.0)
    there.rmdir()
    assert not wrong(mounts.look(20.0))
    mounts.settle(5.0)
    (sign,) = mounts.look(30.0)
    mounts.settle(5.0)
    assert msgspec.json.encode(say(Observed(node=NODE, kind=sign.kind, fields=sign.fields, text=sign.text)))


def test_what_is_mounted_over_the_network_is_found_in_the_table(tmp_path: Path) -> None:
    there = tmp_path / "with space"
    there.mkdir()
    escaped = str(there).replace(" ", "\\040")
    table = put(tmp_path, "mounts", f"fs:/x {escaped} nfs4 rw 0 0\n/dev/sda1 / ext4 rw 0 0")
    mounts = Mounts(table=table)
    assert not wrong(mounts.look(0.0))
    mounts.settle(5.0)
    there.rmdir()
    assert not wrong(mounts.look(10.0))
    mounts.settle(5.0)
    assert wrong(mounts.look(20.0)) == ["fs.io_error"]
    mounts.settle(5.0)


# --- charts


def test_rates_are_since_the_look_before(tmp_path: Path) -> None:
    put(tmp_path, "stat", "cpu 100 0 100 800 0 0 0 0 0 0\ncpu0 1 2 3")
    put(tmp_path, "class/net/eth0/device/vendor", "0x1")
    put(tmp_path, "class/net/eth0/statistics/rx_bytes", 1000)
    put(tmp_path, "class/net/eth0/statistics/tx_bytes", 0)
    gauges = Gauges(tmp_path, tmp_path, ())
    assert "cpu.busy" not in gauges.values(0.0)
    put(tmp_path, "stat", "cpu 150 0 150 900 0 0 0 0 0 0\ncpu0 1 2 3")
    put(tmp_path, "class/net/eth0/statistics/rx_bytes", 6000)
    values = gauges.values(5.0)
    assert values["cpu.busy"] == pytest.approx(50.0)
    assert values["net.eth0.rx_bytes_per_second"] == 1000.0


PORT = "class/infiniband/mlx5_0/ports/1"


def test_what_a_dead_card_can_hang_is_looked_at_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read under /sys of a card that does not answer takes a minute: the loop itself reads nothing there."""
    card = tmp_path / "sys"
    for name, value in (
        (f"{PORT}/state", "4: ACTIVE"), (f"{PORT}/counters/link_downed", 0), ("class/net/eth0/carrier", 1),
        ("class/net/eth0/device/vendor", "0x1"), ("class/net/eth0/statistics/tx_errors", 0),
        ("bus/pci/devices/0000:17:00.0/aer_dev_fatal", 0), ("bus/pci/devices/0000:17:00.0/class", "0x020700"),
        ("bus/pci/devices/0000:17:00.0/current_link_width", 16), ("devices/system/edac/mc/mc0/ue_count", 0),
    ):  # fmt: skip
        put(card, name, value)
    host = HostGauges(AgentSettings(url="", node="c/n1", instance_id="i", state=str(tmp_path)), NODE, card)
    touched: list[str] = []

    def watch(call: Callable[..., object]) -> Callable[..., object]:
        def watched(path: object, *args: object, **more: object) -> object:
            if str(path).startswith(str(card)):
                touched.append(str(path))
            return call(path, *args, **more)

        return watched

    for name in ("open", "listdir", "scandir", "stat", "lstat"):
        monkeypatch.setattr(os, name, watch(getattr(os, name)))
    for probe in host.probes:
        touched.clear()
        probe.look(time.monotonic())
        assert probe.may_hang or not touched, probe.name
    hidden = [probe.name for probe in host.probes if probe.may_hang and probe.name.startswith("counters")]
    assert len(hidden) > 1, "a card that hangs must not hide the counters of all others"


ODD = ["cpu", "9" * 400, "9" * 5000, "-1", "nan", "x", "\n", " ", "\x00", "1e999", "7", "MemTotal:", "MemAvailable:",
       str(2**64 - 1)]  # fmt: skip


@pytest.mark.parametrize("name", ["stat", "loadavg", "meminfo", "class/net/eth0/statistics/rx_bytes", "block/a/stat",
                                  "class/infiniband/m/ports/1/hw_counters/rx_bytes"])  # fmt: skip
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(ODD), max_size=12).map(" ".join))
def test_no_file_of_the_machine_breaks_the_charts_or_puts_an_absurd_number_into_them(
    tmp_path: Path, name: str, text: str
) -> None:
    put(tmp_path, "class/net/eth0/device/vendor", "0x1")
    put(tmp_path, "block/a/device/model", "x")
    for other in ("stat", "loadavg", "meminfo"):
        put(tmp_path, other, "")
    gauges = Gauges(tmp_path, tmp_path, ())
    for now, content in ((0.0, "1 2 3"), (100.0, text), (200.0, text), (300.0, "5 6 7")):
        put(tmp_path, name, content)
        items = Sampler([partial(gauges.values, now)]).look(now)
        for item in items:
            assert msgspec.json.decode(msgspec.json.encode(item), type=Item).news == item.news
            assert isinstance(item.news, Measured)
            assert all(abs(value) < 1e18 for value in item.news.values.values())
    machine = Machine(tmp_path, tmp_path)
    for look in (machine.hung, machine.lanes, machine.memory):
        list(look(0.0))


@pytest.mark.parametrize("text", ["9" * 5000, "-1", "²", "16 16", "\x00"])
def test_no_width_breaks_the_comparison_of_lanes(tmp_path: Path, text: str) -> None:
    for name, value in (("class", "0x020700"), ("current_link_width", text), ("max_link_width", text)):
        put(tmp_path, f"bus/pci/devices/0000:17:00.0/{name}", value)
    assert not wrong(Machine(tmp_path, tmp_path).lanes(0.0))


def test_all_of_this_looks_at_the_machine_it_runs_on_without_a_complaint(tmp_path: Path) -> None:
    host = HostGauges(AgentSettings(url="", node="c/n1", instance_id="i", state=str(tmp_path)), NODE)
    for probe in host.probes:
        for news in seen(probe.look(time.monotonic())):
            assert news.kind in TABLES.faults, news
    until(lambda: "cpu.busy" in host.values())
    assert 0.0 <= host.values()["memory.used_percent"] <= 100.0
