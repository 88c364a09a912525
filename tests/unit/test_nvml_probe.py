"""NVML through its child process, against a stand-in that replays a real H200. Processes and kills are real."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.waiting import until

from sickbay.agent.nvml.pci import address, nvidia_gpus
from sickbay.agent.nvml.watched import CannotRead, Mismatch, NoDriver, Nvml, NvmlHung, NvmlTimeouts, Slow
from sickbay.agent.outbox import say
from sickbay.agent.probes.dedup import Deduplicator
from sickbay.agent.probes.gpus import Gpus, gpus_for
from sickbay.agent.probes.remembered import Remembered
from sickbay.agent.settings import AgentSettings
from sickbay.knowledge.load import load_tables
from sickbay.model.facts import Observed
from sickbay.model.fleet import NodeId
from sickbay.model.gpu import GpuReading
from sickbay.model.protocol import Item
from sickbay.signs.classify import classify
from sickbay.signs.kernel import parse_line
from sickbay.signs.readers.smi_xml import readings_from_xml

pytestmark = pytest.mark.slow

FIXTURES = Path(__file__).parent.parent / "fixtures"
H200 = FIXTURES / "h200"
SOURCE = Path(__file__).parent.parent.parent / "src"
NODE = NodeId("prod/node-0")
HURRY = NvmlTimeouts(answer=5.0, start=5.0, smi=5.0, alive=2.0, again_first=0.05, again_most=0.2)
SHORT = 0.5  # seconds for an answer that will not come


class Machine:
    """A directory that looks like a machine with GPUs, and the script that its NVML follows."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self._script = root / "script.json"
        self.script()
        monkeypatch.setenv("NVML_SCRIPT", str(self._script))
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (FIXTURES / "nvml", SOURCE))))
        self._monkeypatch = monkeypatch
        self._opened: list[Nvml] = []

    def script(self, **what: Any) -> None:
        beside = self._script.with_suffix(".new")
        beside.write_text(json.dumps(what), encoding="utf-8")
        beside.replace(self._script)

    def nvml(self, **how: Any) -> Nvml:
        self._opened.append(Nvml(**{"smi": ("no-such-nvidia-smi",), "patience": HURRY, **how}))
        return self._opened[-1]

    def gpus(self, nvml: Nvml | None = None, **how: Any) -> Gpus:
        return Gpus(nvml or self.nvml(), NODE, self.root / "gpus.json", machine=self.root, **{"grace": 300.0, **how})

    def on_the_bus(self, count: int, driver: str = "nvidia") -> None:
        for number in range(count):
            device = self.root / f"sys/bus/pci/devices/0000:00:{6 + number:02x}.0"
            device.mkdir(parents=True)
            (device / "vendor").write_text("0x10de\n", encoding="ascii")
            (device / "class").write_text("0x030200\n", encoding="ascii")
            target = self.root / "sys/bus/pci/drivers" / driver
            target.mkdir(parents=True, exist_ok=True)
            (device / "driver").symlink_to(target)

    def close(self) -> None:
        for nvml in self._opened:
            nvml.close()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    made = Machine(tmp_path, monkeypatch)
    yield made
    made.close()


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def trouble(nvml: Nvml, deadline: float | None = None) -> CannotRead:
    with pytest.raises(CannotRead) as caught:
        nvml.read(deadline)
    return caught.value


def seen(items: list[Item]) -> list[tuple[str, object]]:
    return [(item.news.kind, item.news.fields.get("device")) for item in items if isinstance(item.news, Observed)]


def test_real_faults_of_programs_are_read_from_raw_records_and_touch_no_node() -> None:
    tables, numbers = load_tables(), []
    for record in (H200 / "kmsg-xid.txt").read_text(encoding="utf-8").splitlines():
        sign = parse_line(record.partition(";")[2])
        if sign is None:
            continue
        fault = classify(Observed(node=NODE, kind=sign.kind, fields=sign.fields), tables)
        assert fault is not None
        assert not fault.remedy.disrupts
        numbers.append(sign.fields["number"])
    assert numbers == [13, 13, 13, 31, 43]


# --- what a reading holds


def test_the_child_reads_what_was_recorded_on_a_real_h200(machine: Machine) -> None:
    recorded = msgspec.json.decode((H200 / "nvml-reading.json").read_bytes(), type=list[GpuReading])
    assert machine.nvml().read() == recorded


def test_nvml_and_the_xml_of_the_same_moment_agree_field_by_field() -> None:
    (nvml,) = msgspec.json.decode((H200 / "nvml-reading.json").read_bytes(), type=list[GpuReading])
    (xml,) = readings_from_xml((H200 / "nvidia-smi-q.xml").read_text(encoding="utf-8"))
    moving = {"power": 5.0, "temperature": 2.0, "temperature_memory": 2.0, "sm_clock": 2000.0, "memory_used": 1 << 20,
              "memory_total": 1 << 20, "utilization": 100.0, "memory_utilization": 100.0}  # fmt: skip
    only_one: set[str] = set()
    for field in GpuReading.__struct_fields__:
        ours, theirs = getattr(nvml, field), getattr(xml, field)
        unsaid: tuple[object, ...] = (None, "", "N/A", ())
        if ours in unsaid or theirs in unsaid:
            if ours not in unsaid or theirs not in unsaid:
                only_one.add(field)
            continue
        if field in moving:
            assert abs(ours - theirs) <= moving[field], field
        else:
            assert ours == theirs, field
    # The XML gives limits as distances, not as degrees; NVML has no call for what it says of unrepairable memory.
    assert only_one <= {"slowdown_at", "shutdown_at", "memory_limit_at", "unrepairable", "slowed_by"}


def test_what_a_card_does_not_support_is_none_and_no_fault(machine: Machine) -> None:
    machine.script(errors={"0:nvmlDeviceGetRemappedRows": 3, "0:nvmlDeviceGetEccMode": 3, "0:nvmlDeviceGetMigMode": 4})
    (reading,) = machine.nvml().read()
    assert (reading.remap_pending, reading.ecc_enabled, reading.corrected, reading.mig) == (None, None, None, None)
    assert not reading.lost
    assert reading.temperature == 36


@pytest.mark.parametrize(("error", "words"), [(15, "GPU is lost"), (16, "GPU requires reset"), (999, "Unknown Error")])
def test_a_device_that_gives_no_handle_is_lost_and_others_are_read(machine: Machine, error: int, words: str) -> None:
    machine.script(devices=3, errors={"1:nvmlDeviceGetHandleByIndex": error})
    readings = machine.nvml().read()
    assert [reading.lost for reading in readings] == ["", words, ""]
    assert readings[2].temperature == 36


def test_a_gpu_that_is_lost_in_the_midst_of_a_reading_is_lost(machine: Machine) -> None:
    machine.script(errors={"0:nvmlDeviceGetUtilizationRates": 15})
    (reading,) = machine.nvml().read()
    assert reading.lost == "GPU is lost"
    assert reading.uuid


def test_one_sensor_that_fails_is_that_sensors_trouble(machine: Machine) -> None:
    machine.script(errors={"0:nvmlDeviceGetPowerUsage": 999})
    (reading,) = machine.nvml().read()
    assert not reading.lost
    assert reading.unreadable == ("power",)


def test_a_device_of_which_nothing_can_be_read_any_more_is_lost(machine: Machine) -> None:
    asked = ("Temperature", "PowerUsage", "EnforcedPowerLimit", "PowerManagementLimit", "PowerManagementDefaultLimit",
             "TemperatureThreshold", "FieldValues", "MemoryInfo", "FanSpeed")  # fmt: skip
    machine.script(errors={f"0:nvmlDeviceGet{name}": 999 for name in asked})
    (reading,) = machine.nvml().read()
    assert reading.lost == "Unknown Error"


def test_links_are_read_only_where_the_card_has_any(machine: Machine) -> None:
    nvml = machine.nvml()
    assert nvml.read()[0].links == ()
    machine.script(values={"0:nvmlDeviceGetNvLinkState": 1, "0:nvmlDeviceGetNvLinkErrorCounter": 2})
    links = nvml.read()[0].links
    assert links is not None
    assert len(links) == 36
    assert (links[3].up, links[3].replays, links[3].crc_errors) == (True, 2, 4)


def test_metrics_are_few_and_named_by_device(machine: Machine) -> None:
    machine.script(devices=2)
    values = machine.nvml().metrics()
    assert values["gpu.1.temperature"] == 36
    assert {name.split(".")[1] for name in values} == {"0", "1"}


# --- a child that hangs, crashes or cannot be killed


def test_a_gpu_that_hangs_nvml_is_named_and_the_others_readings_are_kept(machine: Machine) -> None:
    nvml = machine.nvml()
    nvml.read()
    machine.script(devices=3, hang=["1:nvmlDeviceGetPowerUsage"])
    pid = nvml.pid
    began = time.monotonic()
    hung = trouble(nvml, SHORT)
    assert time.monotonic() - began < SHORT + HURRY.alive + 2
    assert isinstance(hung, NvmlHung)
    assert (hung.device, [one.index for one in hung.readings]) == (1, [0])
    assert pid is not None
    assert gone(pid)


def test_a_hung_child_is_replaced_and_the_next_one_reads(machine: Machine) -> None:
    machine.script(hang=["0:nvmlDeviceGetUUID"])
    nvml = machine.nvml()
    until(lambda: isinstance(trouble(nvml, SHORT), NvmlHung))
    machine.script()
    until(lambda: _reads(nvml))


def test_while_it_waits_to_begin_anew_the_same_trouble_is_told_at_once(machine: Machine) -> None:
    machine.script(hang=["0:nvmlDeviceGetUUID"])
    nvml = machine.nvml(patience=patience(again_first=600.0, again_most=600.0))
    first = trouble(nvml, 1.0)
    began = time.monotonic()
    again = trouble(nvml)
    assert time.monotonic() - began < 0.2
    assert (type(again), str(again), again.device) == (NvmlHung, str(first), 0)  # type: ignore[attr-defined]
    assert nvml.pid is None


def test_a_child_that_does_not_get_to_run_is_slow_and_no_gpu_hangs(machine: Machine) -> None:
    nvml = machine.nvml(patience=NvmlTimeouts(answer=5.0, alive=0.2, again_first=0.01))
    nvml.read()
    assert nvml.pid is not None
    os.kill(nvml.pid, signal.SIGSTOP)
    assert isinstance(trouble(nvml, SHORT), Slow)
    until(lambda: _reads(nvml))


def test_a_child_that_crashes_is_told_with_the_device_and_started_anew(machine: Machine) -> None:
    machine.script(devices=2, crash=["1:nvmlDeviceGetSerial"])
    nvml = machine.nvml()
    what = trouble(nvml)
    assert not isinstance(what, NvmlHung)
    assert "GPU 1" in str(what)
    assert "signal 6" in str(what)
    machine.script(devices=2)
    until(lambda: _reads(nvml))


def test_a_child_that_cannot_be_killed_is_left_alone_and_never_doubled(machine: Machine) -> None:
    wished: list[int] = []
    heeded: list[int] = []

    def kill(pid: int) -> None:  # the kernel does not heed it, until whatever the process waits for is over
        wished.append(pid)
        if heeded:
            os.kill(pid, signal.SIGKILL)

    machine.script(hang=["0:nvmlDeviceGetUUID"])
    code = f"import os, signal, sys; sys.path.insert(0, {str(SOURCE)!r}); os._exit = lambda code: signal.pause()\n"
    code += "from sickbay.agent.nvml.child import main; main()"
    nvml = machine.nvml(command=(sys.executable, "-c", code), kill=kill)
    try:
        first = trouble(nvml, SHORT + 0.5)
        assert isinstance(first, NvmlHung)
        assert "cannot be killed" in str(first)
        for _ in range(3):
            time.sleep(HURRY.again_first)  # past the moment when another would be started
            began = time.monotonic()
            assert isinstance(trouble(nvml), NvmlHung)
            assert time.monotonic() - began < 0.2
        assert len(wished) == 1
        assert not gone(wished[0])
    finally:
        os.kill(wished[0], signal.SIGKILL)
        heeded.append(wished[0])
    machine.script()
    until(lambda: _reads(nvml))


def test_the_child_ends_with_its_parent_even_while_it_hangs_in_nvml(machine: Machine, tmp_path: Path) -> None:
    machine.script(hang=["0:nvmlDeviceGetUUID"])
    code = (
        "import threading, time\nfrom sickbay.agent.nvml.watched import Nvml\nnvml = Nvml()\n"
        "threading.Thread(target=nvml.read, daemon=True).start()\n"
        "while nvml.pid is None: time.sleep(0.01)\n"
        "time.sleep(0.5)\nprint(nvml.pid, flush=True)\ntime.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=tmp_path) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert not gone(child)
        parent.kill()
    until(lambda: gone(child))


def test_loading_that_takes_long_is_waited_for_and_then_called_a_hang(machine: Machine) -> None:
    machine.script(init="hang")
    nvml = machine.nvml(patience=NvmlTimeouts(start=0.6, alive=0.2, again_first=60))
    first = trouble(nvml, 0.1)
    assert not isinstance(first, NvmlHung)
    assert "still being loaded" in str(first)
    until(lambda: isinstance(trouble(nvml, 0.1), NvmlHung))


def test_nonsense_from_the_child_is_no_reading(machine: Machine) -> None:
    nvml = machine.nvml(command=(sys.executable, "-c", "print('hello')"))
    assert "nonsense" in str(trouble(nvml))


def test_set_aside_nobody_of_ours_holds_a_device_and_nobody_asks(machine: Machine) -> None:
    nvml = machine.nvml()
    nvml.read()
    pid = nvml.pid
    assert pid is not None
    with nvml.aside("a reset"):
        assert gone(pid)
        assert "a reset" in str(trouble(nvml, SHORT))
    assert nvml.read()


def test_whoever_asks_while_nvml_is_set_aside_waits_for_it_to_come_back(machine: Machine) -> None:
    nvml = machine.nvml()
    nvml.read()
    found: list[int] = []
    with nvml.aside("a reset"):
        asker = Thread(target=lambda: found.append(len(nvml.read())))
        asker.start()
        with pytest.raises(CannotRead, match="a reset"):
            nvml.metrics()  # a chart has a gap, and nobody waits for it
        assert asker.is_alive()
    asker.join(HURRY.answer + HURRY.start)
    assert found == [1]


def test_one_that_was_closed_while_it_was_aside_does_not_come_back(machine: Machine) -> None:
    nvml = machine.nvml()
    with nvml.aside("a reset"):
        nvml.close()
    assert "the agent ends" in str(trouble(nvml, SHORT))
    assert nvml.pid is None


# --- no NVML


def test_no_driver_and_a_version_mismatch_are_different_things(machine: Machine) -> None:
    machine.script(init=9)
    assert isinstance(trouble(machine.nvml()), NoDriver)
    machine.script(init=18)
    assert isinstance(trouble(machine.nvml()), Mismatch)


def test_without_the_library_nvidia_smi_is_asked(machine: Machine) -> None:
    machine.script(init=12)
    nvml = machine.nvml(smi=("cat", str(H200 / "nvidia-smi-q.xml")))
    (reading,) = nvml.read()
    assert (reading.name, reading.temperature) == ("NVIDIA H200", 36)
    assert nvml.metrics() == {}
    assert isinstance(trouble(machine.nvml()), NoDriver)


def test_an_nvidia_smi_that_hangs_is_ended_and_the_second_time_it_is_a_finding(machine: Machine) -> None:
    machine.script(init=12)
    nvml = machine.nvml(smi=("sleep", "600"), patience=NvmlTimeouts(smi=0.3, again_first=60.0))
    met: list[type[CannotRead]] = []

    def finding() -> bool:
        met.append(type(trouble(nvml, 0.3)))
        return met[-1] is NvmlHung

    until(finding)
    assert met[-2:] == [Slow, NvmlHung]


def test_what_nvidia_smi_says_instead_is_told(machine: Machine) -> None:
    machine.script(init=12)
    nvml = machine.nvml(smi=("echo", "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."))
    assert "couldn't communicate" in str(trouble(nvml))


# --- events


def test_an_xid_that_nvml_tells_is_a_second_witness(machine: Machine) -> None:
    machine.on_the_bus(2)
    machine.script(devices=2)
    gpus = machine.gpus()
    gpus.look(0.0)
    machine.script(devices=2, events=[[1, 0x8, 79], [0, 0x2, 0]])
    found: list[Item] = []

    def both() -> bool:
        found.extend(gpus.flush(1.0))
        return len(found) == 2

    until(both)
    xid, memory = (item.news for item in found)
    assert isinstance(xid, Observed)
    assert (xid.kind, xid.fields["number"]) == ("xid", 79)
    assert (xid.fields["device"], xid.fields["pci"], xid.fields["source"]) == (1, "00000000:00:07.0", "nvml")
    assert isinstance(memory, Observed)
    assert (memory.kind, memory.fields["device"]) == ("gpu.ecc_uncorrected", 0)


def test_the_kernels_own_words_of_an_event_come_first_and_nvml_then_adds_nothing(machine: Machine) -> None:
    machine.on_the_bus(1)
    sums = Deduplicator()
    nvml = machine.nvml()
    gpus = machine.gpus(nvml, sums=sums)
    gpus.look(0.0)
    machine.script(events=[[0, 0x8, 79], [0, 0x8, 95]])
    until(lambda: not gpus.tell_events(1.0) and len(gpus._events) == 2)
    line = Observed(node=NODE, kind="xid", fields={"number": 79, "pci": "0000:00:06"}, text="NVRM: Xid …")
    assert sums.add(say(line, 2.0, "kmsg", 1), 2.0, "NVRM: Xid …")
    assert [item.news.fields["number"] for item in gpus.tell_events(5.0)] == [95]  # of which the kernel said nothing


# --- the probe


def test_a_node_without_gpus_says_so_once_and_starts_no_process(machine: Machine) -> None:
    nvml = machine.nvml()
    gpus = machine.gpus(nvml)
    assert seen(gpus.look(0.0)) == [("gpus.none", None)]
    assert gpus.look(1000.0) == []
    assert nvml.pid is None


def test_a_healthy_node_has_nothing_to_say(machine: Machine) -> None:
    machine.on_the_bus(8)
    machine.script(devices=8)
    gpus = machine.gpus()
    assert gpus.look(0.0) == []
    assert gpus.look(1000.0) == []
    assert gpus.values()["gpu.7.power"] > 0


def test_each_finding_is_told_once_until_it_changes(machine: Machine) -> None:
    machine.on_the_bus(2)
    machine.script(devices=2, values={"1:nvmlDeviceGetRemappedRows": [0, 1, 1, 0]})
    gpus = machine.gpus()
    assert seen(gpus.look(0.0)) == [("gpu.remap_pending", 1)]
    assert gpus.look(10.0) == []
    machine.script(devices=2)
    assert gpus.look(20.0) == []
    machine.script(devices=2, values={"1:nvmlDeviceGetRemappedRows": [0, 1, 1, 0]})
    assert seen(gpus.look(30.0)) == [("gpu.remap_pending", 1)]


def test_counters_are_told_by_what_they_grew(machine: Machine) -> None:
    machine.on_the_bus(1)
    gpus = machine.gpus()
    gpus.look(0.0)
    machine.script(values={"0:nvmlDeviceGetTotalEccErrors": 3})
    (item,) = [one for one in gpus.look(10.0) if one.news.kind == "gpu.ecc_uncorrected"]
    assert isinstance(item.news, Observed)
    assert item.news.count == 3
    assert gpus.look(20.0) == []


def test_errors_that_grew_while_the_agent_was_away_are_told_by_the_next_run_and_no_others(machine: Machine) -> None:
    machine.on_the_bus(1)
    machine.script(values={"0:nvmlDeviceGetTotalEccErrors": 3})

    def run(boot: str, now: float) -> list[int]:
        gpus = machine.gpus(remembered=Remembered(machine.root / "counters.json", boot))
        found = [item.news for item in gpus.look(now)]
        gpus.told(now)
        return [news.count for news in found if isinstance(news, Observed) and news.kind == "gpu.ecc_uncorrected"]

    assert run("boot-1", 0.0) == [3]
    assert run("boot-1", 10.0) == []
    machine.script(values={"0:nvmlDeviceGetTotalEccErrors": 7})
    assert run("boot-1", 20.0) == [4]
    assert run("boot-2", 30.0) == [7]


def test_a_gpu_is_its_uuid_and_not_its_number(machine: Machine) -> None:
    machine.on_the_bus(1)
    machine.script(values={"0:nvmlDeviceGetTotalEccErrors": 9})
    gpus = machine.gpus()
    gpus.look(0.0)
    other = {"0:nvmlDeviceGetUUID": "GPU-other"}
    machine.script(values={**other, "0:nvmlDeviceGetTotalEccErrors": 9})
    found = [item.news for item in gpus.look(10.0) if isinstance(item.news, Observed)]
    assert [(news.count, news.fields["uuid"]) for news in found if news.kind == "gpu.ecc_uncorrected"] == [
        (9, "GPU-other")
    ]
    machine.script(values={**other, "0:nvmlDeviceGetTotalEccErrors": 11})
    found = [item.news for item in gpus.look(20.0) if isinstance(item.news, Observed)]
    assert [news.count for news in found if news.kind == "gpu.ecc_uncorrected"] == [2]


def test_a_lost_gpu_keeps_its_name_and_is_not_missing_as_well(machine: Machine) -> None:
    machine.on_the_bus(2)
    machine.script(devices=2)
    gpus = machine.gpus()
    gpus.look(0.0)
    machine.script(devices=2, errors={"1:nvmlDeviceGetHandleByIndex": 15})
    (item,) = gpus.look(1000.0)
    assert isinstance(item.news, Observed)
    assert item.news.kind == "gpu.lost"
    assert item.news.fields["pci"] == "00000000:00:07.0"
    assert gpus.look(1010.0) == []


def test_missing_gpus_just_after_the_start_are_unknown_and_no_reboot(machine: Machine) -> None:
    machine.on_the_bus(8)
    machine.script(devices=0)
    gpus = machine.gpus()
    with pytest.raises(CannotRead, match="0 of 8"):
        gpus.look(5.0)
    with pytest.raises(CannotRead, match="0 of 8"):
        gpus.look(304.0)
    machine.script(devices=8)
    assert gpus.look(304.5) == []


def test_a_gpu_that_is_missing_after_the_grace_is_told_once(machine: Machine) -> None:
    machine.on_the_bus(8)
    machine.script(devices=7)
    gpus = machine.gpus()
    with pytest.raises(CannotRead, match="7 of 8"):
        gpus.look(0.0)
    assert seen(gpus.look(301.0)) == [("gpu.count", None)]
    assert gpus.look(302.0) == []
    machine.script(devices=6)
    assert seen(gpus.look(303.0)) == [("gpu.count", None)]


def test_the_most_that_was_ever_seen_is_remembered_across_runs(machine: Machine) -> None:
    machine.on_the_bus(1)
    machine.script(devices=4)
    machine.gpus().look(0.0)
    machine.script(devices=3)
    later = machine.gpus(grace=0.0)
    assert later.device_at("0000:00:09") == 3
    assert seen(later.look(0.0)) == [("gpu.count", None)]


def test_what_the_settings_say_outranks_what_was_seen(machine: Machine) -> None:
    machine.on_the_bus(8)
    machine.script(devices=2)
    assert machine.gpus(expected=2, grace=0.0).look(0.0) == []
    assert seen(machine.gpus(expected=4, grace=0.0).look(0.0)) == [("gpu.count", None)]


def test_gpus_without_a_driver_are_a_fault_only_after_the_grace(machine: Machine) -> None:
    machine.on_the_bus(8)
    machine.script(init=9)
    gpus = machine.gpus()
    with pytest.raises(NoDriver):
        gpus.look(0.0)
    with pytest.raises(NoDriver):
        gpus.look(299.0)
    assert seen(gpus.look(301.0)) == [("driver.failed", None)]
    with pytest.raises(NoDriver):  # told; but nobody may think that it looked
        gpus.look(302.0)


def test_a_hanging_gpu_is_told_once_and_then_nobody_has_looked(machine: Machine) -> None:
    machine.on_the_bus(2)
    machine.script(devices=2)
    nvml = machine.nvml(patience=NvmlTimeouts(answer=SHORT, alive=2.0, again_first=600.0))
    gpus = machine.gpus(nvml)
    until(lambda: not _raises(gpus))
    machine.script(devices=2, hang=["1:nvmlDeviceGetUUID"])
    (item,) = gpus.look(10.0)
    assert isinstance(item.news, Observed)
    assert item.news.kind == "gpu.hang"
    assert (item.news.fields["device"], item.news.fields["pci"]) == (1, "00000000:00:07.0")
    with pytest.raises(NvmlHung):
        gpus.look(11.0)


def test_a_gpu_given_to_a_virtual_machine_is_not_expected(machine: Machine) -> None:
    machine.on_the_bus(2, driver="vfio-pci")
    assert nvidia_gpus(machine.root / "sys") == ()
    assert seen(machine.gpus().look(0.0)) == [("gpus.none", None)]


@pytest.mark.parametrize(
    "written", ["0000:00:07", "0000:00:07.0", "00000000:00:07.0", "PCI:0000:00:07", "00:07.0", "0000:00:07.1 "]
)
def test_a_device_is_found_by_its_address_however_it_is_written(machine: Machine, written: str) -> None:
    machine.on_the_bus(2)
    machine.script(devices=2)
    gpus = machine.gpus()
    gpus.look(0.0)
    assert gpus.device_at(written) == 1
    assert gpus.device_at("0000:b9:00") is None


def test_before_nvml_is_loaded_a_device_is_known_by_its_place_on_the_bus(machine: Machine) -> None:
    machine.on_the_bus(2)
    gpus = machine.gpus()
    assert [gpus.device_at(pci) for pci in ("0000:00:06", "00000000:00:07.0", "0000:b9:00")] == [0, 1, None]


def test_an_agent_has_a_witness_and_charts_and_can_set_nvml_aside(machine: Machine) -> None:
    settings = AgentSettings(url="", node=NODE, instance_id="i-1", state=str(machine.root), metrics=5.0)
    watched = gpus_for(settings, NODE, Deduplicator())
    try:
        look, events, inventory = watched.probes
        assert (look.witness, look.may_hang, events.witness, inventory.witness) == (True, True, False, False)
        assert watched.gpus.values()["gpu.0.power"] > 0
        with watched.aside("a reset"):
            assert watched.gpus.values() == {}
    finally:
        watched.close()


def test_an_inventory_names_the_gpus_that_have_answered_by_their_serials(machine: Machine) -> None:
    machine.on_the_bus(1)
    gpus = machine.gpus()
    assert gpus.inventory().devices == ()  # nobody has looked
    gpus.look(0.0)
    readings = machine.nvml().read()
    assert [(d.index, d.serial) for d in gpus.inventory().devices] == [(one.index, one.serial) for one in readings]
    assert all(one.serial for one in readings)


@given(st.text(max_size=40))
def test_no_text_is_taken_for_an_address_by_mistake_or_crashes(text: str) -> None:
    found = address(text)
    assert found is None or ":" in text


def test_the_agents_own_process_does_not_load_nvml(machine: Machine) -> None:
    code = (
        "import sys\nfrom sickbay.agent.nvml.watched import Nvml\nnvml = Nvml()\nnvml.read()\nnvml.close()\n"
        "assert 'pynvml' not in sys.modules\n"
    )
    machine.script()
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


def _reads(nvml: Nvml) -> bool:
    with suppress(CannotRead):
        return bool(nvml.read())
    return False


def _raises(gpus: Gpus) -> bool:
    try:
        gpus.look(0.0)
    except CannotRead:
        return True
    return False


def patience(**what: float) -> NvmlTimeouts:
    return NvmlTimeouts(**{"answer": 5.0, "start": 5.0, "alive": 2.0, **what})
