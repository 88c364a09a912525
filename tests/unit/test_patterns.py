"""What the rest of the machine prints: named right, or not heard."""

import re
import time
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.cases import one_by_one

from sickbay.knowledge.load import load_tables
from sickbay.model.errors import BadInput
from sickbay.model.sign import Sign
from sickbay.signs import kernel_patterns as patterns
from sickbay.signs.kernel_patterns import ANCHORS, LONGEST, SHIPPED, read_patterns

PATIENT = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
CORPUS = Path(__file__).parents[1] / "fixtures" / "kernel"
HEAD = "code,anchor,pattern,unless,speakers,source\n"
TABLE = files("sickbay.knowledge").joinpath("data", "patterns.csv").read_text(encoding="utf-8")


def corpus(name: str, columns: int) -> Iterator[list[str]]:
    for line in (CORPUS / name).read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            yield line.split("\t", columns - 1)


SICK = [tuple(row) for row in corpus("sick.txt", 3)]
HEALTHY = [tuple(row) for row in corpus("healthy.txt", 2)]


def heard(body: str, speaker: str = "kernel") -> Sign:
    sign = patterns.match(body, speaker)
    assert sign is not None, body
    return sign


@one_by_one(("code", "speaker", "body"), SICK)
def test_a_sick_line_is_named(code: str, speaker: str, body: str) -> None:
    sign = heard(body, speaker)
    assert sign.kind == code
    assert sign.text == body


@one_by_one(("speaker", "body"), HEALTHY)
def test_a_healthy_line_says_nothing(speaker: str, body: str) -> None:
    assert patterns.match(body, speaker) is None


@pytest.mark.parametrize("before", ['"', "'", "> ", "# ", 'printk("', "the log of this node said "])
def test_a_line_that_only_quotes_says_nothing(before: str) -> None:
    for _, speaker, body in SICK:
        # What a management controller or a daemon writes has no fixed beginning, and no person writes under its name.
        if speaker in {"kernel", ""}:
            assert patterns.match(before + body, speaker) is None, body


def test_another_program_does_not_speak_for_the_kernel() -> None:
    for code, speaker, body in SICK:
        assert patterns.match(body, "trainer") is None, body
        if speaker == "kernel":
            assert heard(body, "").kind == code, "an excerpt without stamps is the kernel's"


def test_the_shipped_rows_are_sound() -> None:
    read = read_patterns(TABLE, "patterns.csv")
    assert read.rows == SHIPPED.rows
    assert read.anchors == ANCHORS


def test_every_row_has_an_example_that_no_earlier_row_takes() -> None:
    shown = set()
    for _, speaker, body in SICK:
        said = [row for row in SHIPPED.rows if row.anchor in body and row.hears(speaker) and row.read(body)]
        shown.add(said[0].pattern)
    assert not [row for row in SHIPPED.rows if row.code != "none" and row.pattern not in shown]


def test_the_prefilter_lets_every_sick_line_through() -> None:
    assert not [body for _, _, body in SICK if not any(anchor in body for anchor in ANCHORS)]


def test_an_anchor_is_a_literal_worth_looking_for() -> None:
    assert not [anchor for anchor in ANCHORS if len(anchor.strip()) < 3]


def test_fields_are_taken_from_the_line() -> None:
    sign = heard("mlx5_core 0000:3B:00.0 ens1f0np0: Link down")
    assert sign.fields == {"pci": "0000:3b:00.0", "interface": "ens1f0np0"}
    sign = heard("watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:1234]")
    assert sign.fields == {"cpu": 3, "seconds": 22, "name": "python", "pid": 1234}
    sign = heard("INFO: task kworker/u256:3:4711 blocked for more than 245 seconds.")
    assert sign.fields == {"name": "kworker/u256:3", "pid": 4711, "seconds": 245}
    sign = heard("I/O error, dev nvme0n1, sector 7 op 0x0:(READ) flags 0x80700 phys_seg 1 prio class 2")
    assert sign.fields == {"disk": "nvme0n1", "sector": 7}


def test_aer_blames_the_device_that_erred_not_the_port_that_heard_of_it() -> None:
    told = heard("pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: 0000:01:00.0")
    assert told.fields["pci"] == "0000:01:00.0"


def test_the_counts_that_drivers_print_are_counts() -> None:
    assert heard("EDAC MC1: 262 CE memory read error on CPU_SrcID#0_Ha#0_Chan#1_DIMM#0 (channel:1)").count == 262
    assert heard("amdgpu 0000:c3:00.0: amdgpu: 2 uncorrectable hardware errors detected in umc block").count == 2
    assert patterns.match("EDAC MC1: 0 CE on any memory ( page:0x0)", "kernel") is None


@pytest.mark.parametrize("first", "89abcdef")
def test_the_status_of_a_machine_check_tells_whether_it_was_corrected(first: str) -> None:
    sign = heard(f"mce: [Hardware Error]: CPU 1: Machine Check: 0 Bank 7: {first}c00004000010090")
    uncorrected = bool(int(first, 16) & 2)  # bit 61 of the register
    assert sign.kind == ("cpu.mce_uncorrected" if uncorrected else "cpu.mce_corrected")


def test_the_neuron_line_tells_device_and_action() -> None:
    sign = heard(
        "NEURON_HW_ERR=HBM_UNCORRECTABLE_ERROR instance-id=i-0123456789abcdef0 hostname=ip-10-0-0-1 nd-id=3 nc-id=1 "
        "serial-num=19fcda00f5ff6eb9 action=TERMINATE_INSTANCE"
    )
    assert sign.fields == {"device": 3, "core": 1, "serial": "19fcda00f5ff6eb9", "action": "TERMINATE_INSTANCE"}


def test_a_line_longer_than_any_the_kernel_prints_is_not_read() -> None:
    line = "Kernel panic - not syncing: "
    assert patterns.match(line + "x" * (LONGEST - len(line)), "kernel")
    assert patterns.match(line + "x" * LONGEST, "kernel") is None


def test_a_program_is_known_with_and_without_its_number() -> None:
    assert heard("System clock was stepped by 3.2 seconds", "chronyd[812]").kind == "os.clock_stepped"


def test_an_operator_disarms_a_row_and_adds_one() -> None:
    mine = read_patterns(
        HEAD + 'none,nfs: server ,"nfs: server scratch[\\d]{1,3} ",,,ours\n'
        'fs.full,quota for ,"quota for (?P<name>\\w{1,32}) is used up",,quotad,ours\n',
        "mine.csv",
    ).over(SHIPPED)
    assert mine.match("nfs: server scratch7 not responding, still trying", "kernel") is None
    kept = mine.match("nfs: server home not responding, still trying", "kernel")
    assert kept is not None
    assert kept.kind == "fs.nfs_not_responding"
    added = mine.match("quota for alice is used up", "quotad")
    assert added is not None
    assert (added.kind, added.fields) == ("fs.full", {"name": "alice"})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("code,anchor,pattern\n", "column unless is missing"),
        (HEAD + "os.nonsense,abc,abc,,,ours\n", "code os.nonsense has no meaning"),
        (HEAD + "os.panic,abc,ab(c,,,ours\n", "pattern is no regular expression"),
        (HEAD + "os.panic,abc,.*abc,,,ours\n", "begins with anything"),
        (HEAD + "os.panic,abc,ab,,,ours\n", "anchor 'abc' is not in every line"),
        (HEAD + "os.panic,abc,abc|abd,,,ours\n", "anchor 'abc' is not in every line"),
        (HEAD + "os.panic,abc,abc?,,,ours\n", "anchor 'abc' is not in every line"),
        (HEAD + "os.panic,abc,x(?:abc)?,,,ours\n", "anchor 'abc' is not in every line"),
        (HEAD + "os.panic,abc,abc(?:x+)+y,,,ours\n", "may run for ever"),
        (HEAD + "os.panic,abc,abc.*d.*e,,,ours\n", "may run for ever"),
        (HEAD + "os.panic,abc,abc,,\n", "write 6 fields"),
        (HEAD + "os.panic,,abc,,,ours\n", "anchor is empty"),
        (HEAD + 'os.panic,"abc\n', "not CSV"),
    ],
)
def test_a_bad_row_is_refused_in_one_line_that_says_where(text: str, says: str) -> None:
    with pytest.raises(BadInput) as refused:
        read_patterns(text, "mine.csv")
    assert str(refused.value).startswith("mine.csv line ")
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


bodies = st.sampled_from([body for _, _, body in SICK])
pieces = st.sampled_from([word for _, _, body in SICK for word in re.split(r"(?<=[ :,()])", body)] + list(ANCHORS))


@PATIENT
@given(
    st.lists(st.one_of(pieces, st.text(max_size=8)), max_size=40).map("".join),
    st.sampled_from(["kernel", "", "mcelog"]),
)
def test_never_crashes_and_names_only_what_has_a_meaning(body: str, speaker: str) -> None:
    sign = patterns.match(body, speaker)
    if sign is not None:
        assert sign.kind in load_tables().faults
        assert sign.count > 0
        assert any(anchor in body for anchor in ANCHORS)


@PATIENT
@given(bodies, st.integers(0, 200), st.text(max_size=20))
def test_a_torn_line_is_never_worse_than_the_whole_one(body: str, cut: int, tail: str) -> None:
    torn = patterns.match(body[:cut] + tail, "kernel")
    assert torn is None or torn.kind in load_tables().faults


@pytest.mark.slow
def test_no_line_takes_long() -> None:
    """Beginnings of real lines, drawn out to the limit: a pattern that backtracks shows here."""
    slowest, which = 0.0, ""
    for _, speaker, body in SICK:
        begun = body[: len(body) * 2 // 3]
        for filler in (begun, "a", " ", "0", ": "):
            drawn = (begun + filler * LONGEST)[:LONGEST]
            before = time.process_time()
            patterns.match(drawn, speaker)
            took = time.process_time() - before
            if took > slowest:
                slowest, which = took, drawn[:80]
    assert slowest < 0.1, which
