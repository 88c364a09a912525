"""What is read from the kernel log, and what is not."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.support.cases import one_by_one
from tests.support.kernel_samples import ADDRESSES, ENDS, NOTHING, PREFIXES, WORDS, numbers
from tests.support.thorough import examples

from sickbay.knowledge.load import load_tables
from sickbay.model.errors import BadInput
from sickbay.model.facts import Observed
from sickbay.model.fleet import NodeId
from sickbay.model.sign import Sign
from sickbay.signs.classify import classify
from sickbay.signs.kernel import KernelReader, parse_line
from sickbay.signs.nvidia import read_wordings, wordings

# The first text that hypothesis draws in a process takes seconds on a busy machine; that says nothing about us.
PATIENT = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
RECORDED = Path(__file__).parents[1] / "fixtures" / "h200" / "dmesg-xid.txt"
FALLEN = "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus."
CUT = "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None)"


def fields(text: str) -> dict[str, str | int]:
    line = parse_line(text)
    assert line is not None, text
    return line.fields


def read(*lines: str) -> list[Sign]:
    reader = KernelReader()
    found = [sign for number, line in enumerate(lines, 1) for sign in reader.read(number, line)]
    return [*found, *reader.end()]


def test_a_recorded_log_gives_its_xids_and_nothing_else() -> None:
    for found in (
        [line for text in RECORDED.read_text().splitlines() if (line := parse_line(text))],
        read(*RECORDED.read_text().splitlines()),
    ):
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


@settings(PATIENT, max_examples=examples(400))
@given(
    st.sampled_from(PREFIXES), st.sampled_from([*numbers(), 0, 999]), st.sampled_from(ADDRESSES), st.sampled_from(ENDS)
)
def test_every_xid_is_read_behind_every_prefix_in_every_form(prefix: str, number: int, address: str, end: str) -> None:
    text = f"{prefix}NVRM: Xid ({address}): {number}{end}"
    found = fields(text)
    assert found["number"] == number
    assert str(found["pci"]).startswith(("0000:b9:00", "00000000:b9:00"))
    assert found.get("mig") == (5 if "GPU-I" in address else None)
    assert found.get("pid") == (1234 if "pid=1234" in end else None)
    assert [(sign.kind, sign.fields["number"]) for sign in read(text)] == [("xid", number)]


@one_by_one(("kind", "body"), WORDS)
@one_by_one("prefix", ["", "[   30.2] ", "Nov 16 02:17:00 n1 kernel: ", "4,12,345,-;"])
def test_faults_without_a_number_are_named(prefix: str, kind: str, body: str) -> None:
    sign = parse_line(prefix + body)
    assert sign is not None
    assert (sign.kind, sign.text) == (kind, (prefix + body).strip())
    assert sign.kind in load_tables().faults
    if "0000:" in body:
        assert str(sign.fields["pci"]) in body


@one_by_one("text", NOTHING)
def test_what_the_driver_did_not_print_is_not_read(text: str) -> None:
    assert parse_line(text) is None
    if "\n" not in text:
        assert read(text) == []


def test_every_wording_has_a_meaning_and_a_sample() -> None:
    assert {kind for kind, _ in wordings()} <= set(load_tables().faults)
    unsampled = [pattern.pattern for kind, pattern in wordings() if not any(
        kind == named and pattern.match(body.replace("\\x0aNVRM:", "")) for named, body in WORDS)]  # fmt: skip
    assert len(unsampled) <= 3, unsampled


@pytest.mark.parametrize(
    "text", ["a,b\n", "code,pattern,source\ngpu.lost,NVRM: (,x\n", "code,pattern,source\n,NVRM:,x\n"]
)
def test_a_bad_table_of_wordings_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(BadInput, match=r"^wordings line \d: .*$"):
        read_wordings(text, "wordings")


@pytest.mark.parametrize(
    ("wording", "advice"),
    [
        ("from 0x0 (None) to 0x1 (GPU Reset Required)", "reset_gpu"),
        ("from 0x0 (None) to 0x1 (PF FLR)", "reset_gpu"),
        ("from 0x0 (None) to 0x2 (Node Reboot Required)", "reboot"),
        ("from 0x0 (None) to 0x2 (OS Reboot)", "reboot"),
        ("from 0x0 (None) to 0x3 (Drain P2P)", "restart_job"),
        ("from 0x0 (None) to 0x4 (Drain and Reset)", "reset_gpu"),
        ("from 0x1 (GPU Reset Required) to 0x0 (None)", "none"),
        ("from 0x0 (None) to 0x2", "reboot"),
        ("to 0x2 (Node Reboot Required)", "reboot"),
        ("from 0x0 (None) to 0x9 (Sing To It)", None),
        ("from 0x0 (None) to 0x9", None),
        ("", None),
    ],
)
def test_the_drivers_advice_is_read_in_all_its_words(wording: str, advice: str | None) -> None:
    text = f"NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed {wording}"
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


def test_a_mig_slice_a_link_and_a_place_are_read() -> None:
    assert fields("NVRM: Xid (PCI:0000:DC:00 GPU-I:05): 94, pid=7, name=a, Contained")["mig"] == 5
    text = "NVRM: Xid (PCI:0018:01:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008)"
    assert fields(text)["link"] == 13
    text = "NVRM: Xid (PCI:0000:00:06): 13, Graphics SM Warp Exception on (GPC 1, TPC 4, SM 0): Misaligned Address"
    assert (fields(text)["gpc"], fields(text)["tpc"]) == (1, 4)


@pytest.mark.parametrize("number", [73, 74])
def test_the_documented_test_lines_of_hyperpod_are_read(number: int) -> None:
    text = (
        f"Feb 05 17:15:29 ip-10-1-1-1 kernel: NVRM: Xid (PCI:0000:b9:00): {number}, pid=<unknown>, name=<unknown>, "
        "NVLink: fatal error detected on link 6(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"
    )
    found = fields(text)
    assert (found["number"], found["pci"]) == (number, "0000:b9:00")
    assert found.get("link") == (6 if number == 74 else None)


def test_an_sxid_gives_its_number_switch_severity_and_link() -> None:
    line = parse_line("[ 38.1] nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Non-fatal, Link 44 Minion Link DLREQ")
    assert line is not None
    assert line.kind == "sxid"
    assert line.fields == {"number": 22013, "pci": "0000:04:00.0", "switch": 3, "severity": "nonfatal", "link": 44}
    text = "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 24007, Fatal, Link 44 sourcetrack timeout error (First)"
    assert fields(text) == {"number": 24007, "pci": "0000:04:00.0", "switch": 3, "severity": "fatal", "link": 44}


def test_an_sxid_without_a_severity_word_has_none() -> None:
    assert fields("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 10004, Thermal event start") == {
        "number": 10004, "pci": "0000:c1:00.0", "switch": 0,
    }  # fmt: skip


@pytest.mark.parametrize("detail", ["Severity 0 Engine instance 44 Sub-engine instance 00", "Data {0x0000002b, 0x0}"])
def test_the_details_of_an_sxid_are_not_a_second_event(detail: str) -> None:
    assert parse_line(f"nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, {detail}") is None


@pytest.mark.parametrize(
    "lines",
    [
        (CUT, "      to 0x2 (Node Reboot Required)"),
        (CUT + " to 0x2", "                                 (Node Reboot Required)"),
        (
            "[30709.1] NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed",
            "   from 0x0 (None) to 0x2 (OS Reboot)",
        ),
        (
            "[   12.3] NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x",
            "0 (None) to 0x2 (OS Reboot)",
        ),
        (
            "[   12.3] NVRM: Xid (PCI:0000:01:00): 15",
            "4, GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)",
        ),
        (
            "[   12.3] NVRM: Xid (PCI:0000:",
            "01:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)",
        ),
    ],
)
def test_a_wrapped_line_is_read_whole(lines: tuple[str, ...]) -> None:
    [sign] = read("first", *lines, "[   13.0] something else")
    assert (sign.fields["number"], sign.fields.get("advice"), sign.line) == (154, "reboot", 2)


def test_a_wrapped_line_with_registers_is_read_whole() -> None:
    [sign] = read(
        "NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6",
        "0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)",
    )
    assert (sign.fields["link"], sign.fields["resolution"]) == (8, "reset_gpu")


def test_what_waits_for_more_is_told_when_something_else_comes() -> None:
    signs = read(CUT, "[   13.0] usb 1-1: new device", FALLEN)
    assert [(sign.fields["number"], sign.line) for sign in signs] == [(154, 1), (79, 3)]
    assert [sign.fields["number"] for sign in read(CUT)] == [154]


def test_one_message_of_three_lines_is_one_event_with_its_address() -> None:
    [sign] = read(
        "[ 1843.308145] NVRM: The NVIDIA GPU 0000:b3:00.0",
        "               NVRM: (PCI ID: 10de:26b5) installed in this system has",
        "               NVRM: fallen off the bus and is not responding to commands.",
    )
    assert (sign.kind, sign.fields) == ("gpu.fallen_off_bus", {"pci": "0000:b3:00.0"})


def test_two_lines_on_one_failed_start_are_one_event_and_two_gpus_are_two() -> None:
    signs = read(
        "[ 1.0] NVRM: GPU 0000:04:01.0: RmInitAdapter failed! (0x11:0x45:2525)",
        "[ 1.1] NVRM: GPU 0000:04:01.0: rm_init_adapter failed, device minor number 0",
        "[ 1.2] NVRM: GPU 0000:04:02.0: RmInitAdapter failed! (0x11:0x45:2525)",
    )
    assert [sign.fields["pci"] for sign in signs] == ["0000:04:01.0", "0000:04:02.0"]


def test_a_region_without_an_address_takes_it_from_the_line_below() -> None:
    signs = read(
        "[ 1.0] NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:",
        "               NVRM: BAR1 is 0M @ 0x0 (PCI:0000:14:00.0)",
    )
    assert [(sign.kind, sign.line, sign.fields) for sign in signs] == [("gpu.bar_invalid", 1, {"pci": "0000:14:00.0"})]


@pytest.mark.parametrize(("transport", "heard"), [("kernel", 1), ("stdout", 0), ("syslog", 0)])
@pytest.mark.parametrize("first", [True, False])
def test_a_journals_export_is_heard_if_the_kernel_spoke(transport: str, heard: int, first: bool) -> None:
    speaker, message = f"    _TRANSPORT={transport}", f"    MESSAGE={FALLEN}"
    entry = [speaker, message] if first else [message, speaker]
    assert len(read("Mon 2026-11-16 08:00:00 UTC [s=1;i=2]", *entry, "    PRIORITY=3", "", "next")) == heard


@PATIENT
@given(st.text())
@example("NVRM: Xid (PCI:0000:01:00): " + "9" * 100)
@example("NVRM: Xid (PCI:0000:01:00): ７９, x")
@example("NVRM: " + "GPU " * 900)
@example("NVRM: Xid (PCI:0000:01:00): 74, " + "(0x1 " * 700)
def test_no_text_makes_it_raise(text: str) -> None:
    parse_line(text)
    read(*text.splitlines())


@PATIENT
@given(st.integers(0, 99999), st.text())
def test_no_end_of_a_line_makes_it_raise_or_changes_the_number(number: int, rest: str) -> None:
    line = parse_line(f"NVRM: Xid (PCI:0000:01:00): {number}, {rest}")
    assert line is None or line.fields["number"] == number


@PATIENT
@given(
    st.lists(
        st.sampled_from(
            [CUT, FALLEN, "rest", "", " to 0x2 (x", "NVRM: Xid (", "    MESSAGE=NVRM: Xid (", *PREFIXES[:9]]
        )
    )
)
def test_no_order_of_lines_loses_an_xid(lines: list[str]) -> None:
    assert sum(sign.fields.get("number") == 79 for sign in read(*lines)) == lines.count(FALLEN)
