"""On a real NVIDIA machine (`make gpu-test`): the whole agent as a process, reporting over HTTP, and the real thing.

It writes into the kernel's log and provokes real Xids, so no other agent should watch the machine. With
SICKBAY_RECORD=DIR what was seen is kept there (tests/fixtures/h200/agent-*.json was made so).
"""

import os
import shutil
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.gpu.agent_machine import (
    FOREIGN,
    NODE,
    RING,
    Machine,
    Ring,
    bad_kernel,
    cpu_time,
    holding,
    memory,
    own_address,
    recorded,
    said,
    share,
    sickbay,
    smi,
    steady,
    whole_ring,
    write,
    xid,
)
from tests.gpu.overhead import compare
from tests.support.agent_rig import TOKEN
from tests.support.waiting import until

from sickbay.agent.places import Places
from sickbay.agent.probes.kmsg import KmsgPlace
from sickbay.agent.runtime import machine_boot
from sickbay.knowledge.load import load_tables
from sickbay.model.facts import Checked, Observed, ResetDone
from sickbay.model.fault import Remedy
from sickbay.model.protocol import RunCheck, RunCollect, RunLook, RunReset
from sickbay.signs.classify import classify
from sickbay.signs.kernel import parse_line

RESET = "SICKBAY_GPU_TEST_RESET"
QUICK = "SICKBAY_GPU_TEST_QUICK"  # figures from few repetitions: for a try
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="this machine has no NVIDIA driver"),
    pytest.mark.skipif(not os.access(RING, os.R_OK | os.W_OK), reason=f"{RING} may not be read and written here"),
]
FIGURES: dict[str, Any] = {}


def in_the_ring() -> list[str]:
    """Codes of all that the kernel has said since the machine started."""
    tables = load_tables()
    signs = [sign for line in whole_ring() if (sign := parse_line(line)) is not None]
    faults = [classify(Observed(node=NODE, kind=one.kind, fields=one.fields), tables) for one in signs]
    return sorted({fault.code for fault in faults if fault is not None})


# --- one look, before anything is written
def test_one_look_finds_nothing_wrong_unless_the_ring_says_so_and_then_that() -> None:
    known = in_the_ring()
    began = time.monotonic()
    code, rows = sickbay("agent", "--once", "--set", "instance_id=i-here")
    recorded("agent-once.json", {"exit": code, "rows": rows, "took": round(time.monotonic() - began, 2)})
    assert {row["code"] for row in rows} == set(known), rows
    assert all(row["device"] in {0, None} for row in rows)
    assert code == int(any(row["remedy"] not in {"none", "watch"} for row in rows if "remedy" in row))
    assert known or (code, rows) == (0, [])


@pytest.mark.parametrize("words", [(), ("-q",), ("-q", "-x")])
def test_what_nvidia_smi_prints_of_a_sound_gpu_is_no_finding(words: tuple[str, ...]) -> None:
    code, rows = sickbay("diagnose", "-", text=smi(*words))
    assert (code, rows) == (0, [])


def test_what_dmesg_prints_is_what_the_kernel_said() -> None:
    named_as_in_the_ring()


def named_as_in_the_ring() -> list[dict[str, Any]]:
    text = subprocess.run(["dmesg"], capture_output=True, text=True, timeout=60, check=True).stdout
    known = in_the_ring()
    code, rows = sickbay("diagnose", "-", text=text)
    assert (code, sorted({row["code"] for row in rows})) == (0, known)
    found: list[dict[str, Any]] = rows
    return found


# --- the agent
@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    made = Machine(tmp_path_factory.mktemp("agent"))
    ring = Ring()
    made.start()
    yield made
    ring.close()
    told = [news for news in made.observed() if not news.kind.startswith("agent.")]
    recorded(
        "agent-kmsg.json",
        {"records": ring.records, "pci": own_address(),
         "observed": [{"kind": one.kind, "fields": one.fields, "count": one.count, "text": one.text} for one in told]},
    )  # fmt: skip
    recorded("agent-figures.json", FIGURES)
    made.close()


def numbers(news: list[Observed]) -> set[Any]:
    return {one.fields.get("number") for one in news if one.kind == "xid"}


@pytest.mark.parametrize(("kernel", "number"), [("misaligned", 13), ("illegal", 31), ("trap", 43)])
def test_what_a_bad_kernel_does_is_told_once_and_blamed_on_the_program(
    machine: Machine, kernel: str, number: int
) -> None:
    mark, ring = machine.mark(), Ring()
    bad_kernel(kernel)
    until(lambda: numbers(machine.since(mark)) == {number}, 30, machine.complaints)
    # NVML's word of it waits 3 s for the kernel's, and the repetitions are summed up after 1 s.
    assert steady(lambda: numbers(machine.since(mark)) == {number}, 5.0)
    ring.close()
    lines = [record for record in ring.records if f"): {number}," in record]
    told = [news for news in machine.since(mark) if news.kind == "xid"]
    assert sum(news.count for news in told) == len(lines)
    assert len(told) <= 2  # the first line at once, then the others as a number
    assert all("nvml" not in str(news.fields.get("source", "")) for news in told)
    assert {news.fields.get("device") for news in told} == {0}
    tables = load_tables()
    for news in told:
        fault = classify(news, tables)
        assert fault is not None
        assert fault.remedy in {Remedy.RESTART_JOB, Remedy.NONE}
        assert not fault.remedy.disrupts
    others = [news for news in machine.since(mark) if news.kind != "xid"]
    assert others == []


def test_a_fault_that_every_core_meets_is_one_event_with_a_count(machine: Machine) -> None:
    mark, ring = machine.mark(), Ring()
    bad_kernel("misaligned", blocks=4096)

    def counted() -> int:
        return sum(news.count for news in machine.since(mark) if news.fields.get("number") == 13)

    def printed() -> int:
        return sum("): 13," in record for record in ring.records)

    until(lambda: counted() > 1, 30, machine.complaints)
    until(lambda: counted() == printed(), 15)
    assert steady(lambda: counted() == printed(), 5.0)  # NVML's word of it adds nothing
    ring.close()
    assert not ring.torn
    told = machine.since(mark)
    FIGURES["every_core"] = {"lines": counted(), "told": len([one for one in told if one.fields.get("number") == 13])}
    # An H200 prints 902 lines in 1.4 s, and in the end Xid 43: the channel was torn down.
    assert FIGURES["every_core"]["told"] <= 8 < counted()
    assert numbers(told) <= {13, 43, 45}
    assert {news.kind for news in told} == {"xid"}


@pytest.mark.parametrize("number", [79, 95, 48])
def test_a_line_with_the_gpus_own_address_has_its_index_and_a_foreign_one_has_none(
    machine: Machine, number: int
) -> None:
    mark = machine.mark()
    own, foreign = xid(number, own_address()), xid(number, FOREIGN.format(bus=0xFF))
    write(own)
    write(f"<4>{foreign}")
    until(lambda: {own, foreign} <= {said(news) for news in machine.since(mark)}, 10)
    by_text = {said(news): news for news in machine.since(mark)}
    assert by_text[own].fields["device"] == 0
    assert "device" not in by_text[foreign].fields
    assert by_text[own].fields["number"] == by_text[foreign].fields["number"] == number


def test_a_line_in_the_kernels_log_is_at_the_controller_at_once(machine: Machine) -> None:
    took: list[float] = []
    for turn in range(100):
        line = xid((79, 95, 48)[turn % 3], FOREIGN.format(bus=turn), f"turn {turn}")
        began = write(line)
        took.append((machine.arrival(line) - began) * 1e3)
        time.sleep(0.003 * (turn % 7))  # not in step with the agent's turns
    FIGURES["kernel_line_to_controller_ms"] = {
        "p50": share(took, 0.5), "p90": share(took, 0.9), "p99": share(took, 0.99), "most": max(took), "lines": 100,
    }  # fmt: skip
    print(FIGURES)


def test_after_a_restart_nothing_is_told_twice_and_what_was_missed_is_told(machine: Machine) -> None:
    place = Places(machine.state).of("devkmsg", KmsgPlace)
    assert place is not None
    assert place.boot_id == machine_boot()
    machine.ask(RunLook(look="before", settle=0.0), "look-1")
    assert machine.end() == 0
    before = machine.observed()
    missed = [xid(79, FOREIGN.format(bus=0xE0 + turn), f"while nobody listened {turn}") for turn in range(3)]
    for line in missed:
        write(line)
    began = time.monotonic()
    machine.start()
    FIGURES["start_to_first_report_s"] = time.monotonic() - began
    until(lambda: set(missed) <= machine.texts(), 10)
    machine.ask(RunLook(look="after", settle=0.0), "look-2")
    after = [news for news in machine.since(len(before)) if news.kind == "xid"]
    assert [said(news) for news in after] == missed
    assert [news.count for news in after] == [1, 1, 1]


def test_after_a_kill_nothing_is_lost(machine: Machine) -> None:
    assert machine.agent is not None
    line = xid(79, FOREIGN.format(bus=0xEE), "before the kill")
    write(line)
    until(lambda: line in machine.texts(), 10)
    machine.agent.kill()
    machine.agent.wait()
    mark = machine.mark()
    missed = xid(79, FOREIGN.format(bus=0xEF), "after the kill")
    write(missed)
    machine.start()
    until(lambda: missed in machine.texts(), 10)
    machine.ask(RunLook(look="kill", settle=0.0), "look-3")
    # What was read in its last second may be read again: the same item of the same line, which is one fact.
    told = [said(news) for news in machine.since(mark) if news.kind == "xid"]
    assert told.count(missed) == 1
    assert line not in told


# --- commands
def test_a_check_through_the_command_path_passes_on_a_sound_gpu(machine: Machine) -> None:
    until(lambda: machine.child, 40)
    began = time.monotonic()
    answer = machine.ask(RunCheck(check="k1", level=1), "check-1", 120)
    FIGURES["check_level_1_s"] = time.monotonic() - began
    (checked,) = [one for one in machine.door.news(Checked) if one.check == "k1"]
    recorded("agent-check.json", msgspec.to_builtins(checked))
    assert (answer.result, checked.verdict, checked.because) == ("done", "pass", "")
    assert {"gpu_inventory", "gpu_health", "gpu_kernel"} <= {test.name for test in checked.tests}


def test_a_check_and_a_reset_are_not_done_while_a_process_holds_the_gpu_and_name_it(machine: Machine) -> None:
    with holding() as pid:
        machine.ask(RunCheck(check="k2", level=1), "check-2", 120)
        refused = machine.ask(RunReset(key="r1", devices=(0,)), "reset-1", 90)
    (checked,) = [one for one in machine.door.news(Checked) if one.check == "k2"]
    recorded("agent-refused.json", {"check": checked.because, "reset": refused.text})
    assert (checked.verdict, f"GPU 0 is used by pid {pid}" in checked.because) == ("could_not_run", True), checked
    assert refused.result == "refused"
    assert f"(pid {pid}) has /dev/nvidia0" in refused.text
    assert machine.door.news(ResetDone) == []


def test_an_idle_gpu_is_reset_and_the_agent_sees_no_fault_afterwards(machine: Machine) -> None:
    if not os.environ.get(RESET):
        pytest.skip(f"a reset is tried only where ${RESET} is set")
    mark, before = machine.mark(), until(lambda: machine.child, 40)
    began = time.monotonic()
    answer = machine.ask(RunReset(key="r2", devices=(0,)), "reset-2", 120)
    FIGURES["reset_s"] = time.monotonic() - began
    assert (answer.result, answer.text) == ("done", "")
    assert [one.key for one in machine.door.news(ResetDone)] == ["r2"]
    looked = machine.ask(RunLook(look="reset", settle=0.0), "look-4", 60)
    assert looked.result == "done"
    after = until(lambda: machine.child, 40)
    assert after != before
    assert [(news.kind, news.text) for news in machine.since(mark)] == []


def test_a_bundle_has_the_drivers_and_the_kernels_words_and_no_token(machine: Machine) -> None:
    began = time.monotonic()
    answer = machine.ask(RunCollect(key="b1"), "collect-1", 180)
    FIGURES["collect_s"] = time.monotonic() - began
    assert answer.result == "done"
    (told,) = [news for news in machine.observed() if news.kind == "agent.collected"]
    path = Path(str(told.fields["path"]))
    FIGURES["bundle_bytes"] = path.stat().st_size
    with tarfile.open(path) as tar:
        parts = {name.partition("/")[2]: tar.extractfile(name).read() for name in tar.getnames()}
    assert b"Product Name" in parts["nvidia-smi-q.txt"]
    assert b"NVRM: Xid" in parts["dmesg.txt"]
    assert TOKEN.encode() not in b"".join(parts.values())


def test_one_look_finds_a_gpu_that_has_fallen_off_the_bus() -> None:
    write(xid(79, own_address(), "GPU has fallen off the bus."))
    code, rows = sickbay("agent", "--once", "--set", "instance_id=i-here")
    assert code == 1
    assert any(row["code"] == "xid.79" and row["device"] == 0 and row["remedy"] != "none" for row in rows)


def test_what_dmesg_prints_after_all_this_is_named_and_programs_are_blamed_for_theirs() -> None:
    rows = named_as_in_the_ring()
    own = [row for row in rows if row["where"] == own_address()]
    recorded("agent-diagnose.json", own)
    assert {row["remedy"] for row in own if row["code"] in {"xid.13", "xid.31", "xid.43"}} <= {"restart_job", "none"}
    # The earlier ones may have been overwritten by what every core had to say.
    assert {row["code"] for row in own} >= {"xid.48", "xid.79", "xid.95"}


# --- what it costs
def test_an_agent_that_has_nothing_to_do_costs_next_to_nothing(machine: Machine) -> None:
    FIGURES["agent_after_a_check"] = {"memory_kib": memory(machine.pid)}
    machine.end()
    machine.start()
    child = until(lambda: machine.child, 40)
    seconds = 5.0 if os.environ.get(QUICK) else 30.0
    time.sleep(3)  # the first looks are over
    before, began = {pid: cpu_time(pid) for pid in (machine.pid, child)}, time.monotonic()
    time.sleep(seconds)
    wall = time.monotonic() - began
    for name, pid in (("agent", machine.pid), ("nvml_child", child)):
        FIGURES[name] = {"memory_kib": memory(pid), "core_share": (cpu_time(pid) - before[pid]) / wall}
    print(FIGURES)
    assert FIGURES["agent"]["core_share"] < 0.01
    assert FIGURES["nvml_child"]["core_share"] < 0.01


def test_a_training_loop_does_not_notice_the_agent(machine: Machine) -> None:
    until(lambda: machine.child, 40)
    assert machine.child is not None
    found = compare((machine.pid, machine.child), 0.1 if os.environ.get(QUICK) else 1.0)
    if found is None:
        pytest.skip("there is no PyTorch here")
    FIGURES["training"] = found
    print(found)
    for loop in found.values():
        assert loop["lost"] < max(0.01, 3 * loop["noise"])
