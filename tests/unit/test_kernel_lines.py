"""What is read from the kernel log, and what is not."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sickbay.brain.classify import classify
from sickbay.knowledge.kernel import parse_line
from sickbay.knowledge.load import load_tables
from sickbay.model.facts import Observed
from sickbay.model.fleet import NodeId

# The first text that hypothesis draws in a process takes seconds on a busy machine; that says nothing about us.
PATIENT = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
RECORDED = Path(__file__).parents[1] / "fixtures" / "h200" / "dmesg-xid.txt"
FALLEN = "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus."


def fields(text: str) -> dict[str, str | int]:
    line = parse_line(text)
    assert line is not None, text
    return line.fields


def test_a_recorded_log_gives_its_xids_and_nothing_else() -> None:
    found = [line for text in RECORDED.read_text().splitlines() if (line := parse_line(text))]
    assert Counter(line.fields["number"] for line in found) == {13: 7, 31: 1, 43: 1}
    assert {line.fields["pci"] for line in found} == {"0000:00:06"}
    assert {line.fields.get("pid") for line in found} == {None, 475, 486, 497}
    assert {line.fields.get("name") for line in found} == {None, "bad"}


def test_a_recorded_log_asks_for_nothing_more_than_a_new_start_of_the_job() -> None:
    remedies = set()
    for text in RECORDED.read_text().splitlines():
        if line := parse_line(text):
            fault = classify(
                Observed(node=NodeId("c/n1"), kind=line.kind, fields=line.fields, text=text), load_tables()
            )
            assert fault is not None
            remedies.add(fault.remedy.value)
    assert remedies == {"restart_job", "none"}


@pytest.mark.parametrize(
    "stamp",
    [
        "",
        "[   30.227662] ",
        "[   30.227662][  T812] ",
        "[Sun Nov 16 02:17:00 2025] ",
        "kernel: ",
        "Nov 16 02:17:00 ip-10-0-0-1 kernel: ",
        "Nov  6 02:17:00 node-1.site kernel: [   30.227662] ",
        "2025-11-16T02:17:00.123456+00:00 node1 kernel: ",
        "kern  :err   : 2025-01-25T10:34:54,859532+00:00 ",
        "kern  :err   : [   30.227662] ",
        "6,1234,30227662,-;",
        "<3>",
    ],
)
def test_stamps_before_the_line_do_not_matter(stamp: str) -> None:
    assert fields(stamp + FALLEN) == {"number": 79, "pci": "0000:01:00"}


@pytest.mark.parametrize(
    "prose",
    [
        "saw NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.",
        "Nov 16 02:17:00 node1 trainer[812]: NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.",
        "# " + FALLEN,
        '"' + FALLEN + '"',
        "Xid 79 means that the GPU has fallen off the bus",
        "Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.",
        "NVRM: Xid 79",
        "NVRM: Xid (PCI:0000:01:00): seventy-nine",
        "NVRM: Xid (PCI:0000:01:00): 79 is what we look for",
        "NVRM: Xid (PCI:zzzz:01:00): 79, GPU has fallen off the bus.",
        FALLEN + "\n" + FALLEN,
        "NVRM: GPU at PCI:0000:00:06: GPU-00000000-0000-0000-0000-000000000001",
        "nvidia-nvswitch0: open (major=510)",
        "SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 5",
        "",
        FALLEN + "x" * 5000,
    ],
)
def test_what_the_driver_did_not_print_is_not_read(prose: str) -> None:
    assert parse_line(prose) is None


@pytest.mark.parametrize(
    ("wording", "advice"),
    [
        ("0x0 (None) to 0x1 (GPU Reset Required)", "reset_gpu"),
        ("0x0 (None) to 0x1 (PF FLR)", "reset_gpu"),
        ("0x0 (None) to 0x2 (Node Reboot Required)", "reboot"),
        ("0x0 (None) to 0x2 (OS Reboot)", "reboot"),
        ("0x0 (None) to 0x3 (Drain P2P)", "restart_job"),
        ("0x0 (None) to 0x4 (Drain and Reset)", "reset_gpu"),
        ("0x1 (GPU Reset Required) to 0x0 (None)", "none"),
        ("0x0 (None) to 0x9 (Sing To It)", None),
    ],
)
def test_the_drivers_advice_is_read_in_all_its_words(wording: str, advice: str | None) -> None:
    text = f"NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from {wording}"
    assert fields(text).get("advice") == advice


def test_only_154_advises() -> None:
    text = "NVRM: Xid (PCI:0000:01:00): 13, GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)"
    assert "advice" not in fields(text)


def test_a_consequence_says_what_it_follows() -> None:
    text = "NVRM: Xid (PCI:0000:dc:00): 45, pid=1818990, name=python3, Ch 00000001 caused by previous Xid 149"
    assert fields(text) == {"number": 45, "pci": "0000:dc:00", "pid": 1818990, "name": "python3", "follows": 149}


def test_a_process_cannot_write_into_the_line_by_its_name() -> None:
    for end in (", Ch 00000001", ""):
        text = f"NVRM: Xid (PCI:0000:dc:00): 45, pid=1, name=x caused by previous Xid 1{end}"
        assert "follows" not in fields(text)


def test_an_unknown_process_is_no_process() -> None:
    text = "NVRM: Xid (PCI:0000:dc:00): 31, pid='<unknown>', name=<unknown>, Ch 00000001"
    assert fields(text) == {"number": 31, "pci": "0000:dc:00"}


def test_a_mig_slice_and_a_link_are_read() -> None:
    assert fields("NVRM: Xid (PCI:0000:DC:00 GPU-I:05): 94, pid=7, name=a, Contained")["mig"] == 5
    text = "NVRM: Xid (PCI:0018:01:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008)"
    assert fields(text)["link"] == 13


def test_an_sxid_gives_its_number_switch_severity_and_link() -> None:
    line = parse_line("[ 38.1] nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Non-fatal, Link 44 Minion Link DLREQ")
    assert line is not None
    assert line.kind == "sxid"
    assert line.fields == {"number": 22013, "pci": "0000:04:00.0", "switch": 3, "severity": "nonfatal", "link": 44}
    assert (
        fields("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 5 LTSSM Fault Up")["severity"] == "fatal"
    )


def test_an_sxid_without_a_severity_word_has_none() -> None:
    assert fields("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 10004, Thermal event start") == {
        "number": 10004, "pci": "0000:c1:00.0", "switch": 0,
    }  # fmt: skip


@pytest.mark.parametrize("detail", ["Severity 0 Engine instance 44 Sub-engine instance 00", "Data {0x0000002b, 0x0}"])
def test_the_details_of_an_sxid_are_not_a_second_event(detail: str) -> None:
    assert parse_line(f"nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, {detail}") is None


@PATIENT
@given(st.text())
@example("NVRM: Xid (PCI:0000:01:00): " + "9" * 100)
@example("NVRM: Xid (PCI:0000:01:00): ７９, x")
def test_no_text_makes_it_raise(text: str) -> None:
    parse_line(text)


@PATIENT
@given(st.integers(0, 99999), st.text())
def test_no_end_of_a_line_makes_it_raise_or_changes_the_number(number: int, rest: str) -> None:
    line = parse_line(f"NVRM: Xid (PCI:0000:01:00): {number}, {rest}")
    assert line is None or line.fields["number"] == number
