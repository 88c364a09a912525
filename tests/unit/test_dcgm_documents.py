"""What DCGM prints, of each of its generations, and what is read in it."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.thorough import examples

from sickbay.knowledge import dcgm
from sickbay.knowledge.load import load_tables
from sickbay.model.sign import Sign
from sickbay.signs.readers import Document
from sickbay.signs.readers.dcgm_diag import DcgmDiag
from sickbay.signs.readers.dcgm_health import DcgmHealth, readings_from_dmon
from sickbay.signs.readers.exporter import Exporter, readings_from_page

SAMPLES = Path(__file__).parent.parent / "fixtures" / "dcgm"
READERS = (DcgmDiag, DcgmHealth, Exporter)


def sample(name: str) -> str:
    return (SAMPLES / name).read_text(encoding="utf-8")


def read(document: Document, lines: Iterable[str]) -> list[Sign]:
    found = [sign for number, line in enumerate(lines, 1) for sign in document.read(number, line)]
    return [*found, *document.end()]


def signs(document: Document, name: str) -> list[Sign]:
    if name.endswith(".json"):
        return list(document.value(1, json.loads(sample(name))))
    return read(document, sample(name).splitlines())


def said(found: Sequence[Sign]) -> list[tuple[str, object]]:
    return sorted((sign.kind, sign.fields.get("device")) for sign in found)


@pytest.mark.parametrize("name", ["diag3_pass.txt", "diag4_pass.txt", "diag4_pass.json"])
def test_tests_that_passed_or_were_skipped_say_nothing(name: str) -> None:
    diag = DcgmDiag()
    assert not signs(diag, name)
    assert diag.results["pass"] >= 2
    assert not diag.results.get("fail")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("diag2_nvlink.txt", [("nvlink.down", 0)]),
        ("diag3_pending.txt", [("gpu.remap_pending", 3)]),
        ("diag3_memory.txt",
         [("dcgm.diag_failed", 2), ("dcgm.memory_failed", 3), ("dcgm.slow", 1), ("gpu.ecc_uncorrected", 3)]),
        ("diag3_snippet.txt", [("gpu.thermal_slowdown", 0)]),
        ("diag4_fail.txt",
         [("dcgm.diag_failed", 3), ("dcgm.pcie_failed", 0), ("gpu.pcie_width", 2), ("gpu.remap_failed", 1)]),
        ("diag3.json", [("gpu.pcie_replays", 1)]),
        ("diag4.json", [("dcgm.memory_failed", 1), ("xid", 0)]),
    ],
)  # fmt: skip
def test_a_failed_test_is_named_by_its_cause_and_its_gpu(name: str, expected: list[tuple[str, object]]) -> None:
    assert said(signs(DcgmDiag(), name)) == expected


def test_a_message_that_was_broken_in_the_middle_of_words_is_put_together_again() -> None:
    found = signs(DcgmDiag(), "diag3_memory.txt")
    assert "uncorrectable ECC error encountered" in found[0].text
    assert "row remappings are pending" in signs(DcgmDiag(), "diag3_pending.txt")[0].text


def test_a_busy_gpu_is_no_broken_one() -> None:
    diag = DcgmDiag()
    assert {sign.kind for sign in signs(diag, "diag3_busy.txt")} == {"dcgm.could_not_run"}
    assert not diag.failures


def test_a_message_under_a_gpus_result_belongs_to_the_test() -> None:
    lines = sample("diag4_fail.txt").replace("| Warning: GPU1             |", f"| {'':25} |").splitlines()
    assert ("gpu.remap_failed", 1) in said(read(DcgmDiag(), lines))


def test_a_paste_that_lost_its_right_border_is_read() -> None:
    lines = [line.rstrip(" |") for line in sample("diag4_fail.txt").splitlines()]
    assert said(read(DcgmDiag(), lines)) == said(signs(DcgmDiag(), "diag4_fail.txt"))


def test_links_of_one_gpu_are_one_sign_with_a_count() -> None:
    (sign,) = signs(DcgmDiag(), "diag2_nvlink.txt")
    assert (sign.count, sign.line) == (6, 3)


CANNOT = (
    "Error: unable to establish a connection to the specified host: localhost",
    "Error: Unable to connect to host engine. Host engine connection invalid/disconnected.",
    "Error: Unable to complete diagnostic for group 0. Return: (-21) Host engine connection invalid/disconnected.",
    "Err: Failed to start DCGM Server: -7",
)


@pytest.mark.parametrize("line", CANNOT)
def test_a_connection_error_is_dcgms_trouble_and_no_gpus(line: str) -> None:
    (sign,) = read(DcgmDiag(), [line])
    assert (sign.kind, sign.fields) == ("dcgm.unreachable", {})


def test_one_connection_error_in_two_lines_is_told_once() -> None:
    assert len(read(DcgmDiag(), CANNOT[:2])) == 1
    assert len(read(DcgmDiag(), [*CANNOT[:2], "$ dcgmi discovery -l", *CANNOT[:2]])) == 2


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("GPU 0's MIG configuration is incompatible with the diagnostic because it prevents access to the entire GPU.",
         "dcgm.could_not_run"),
        ("Error: Diagnostic can only be performed on a homogeneous group of GPUs.", "dcgm.could_not_run"),
        ("Error: Unable to complete diagnostic for group 0. Return: (-36) A diag instance is already running",
         "dcgm.could_not_run"),
        ("Error: Unable to complete diagnostic for group 0. Return: (-17) GPU is lost.", "gpu.lost"),
        ("Error: Unable to complete diagnostic for group 0. Return: (-18) GPU requires reset.", "gpu.reset_required"),
    ],
)  # fmt: skip
def test_why_no_diagnostic_was_run(line: str, kind: str) -> None:
    assert [sign.kind for sign in read(DcgmDiag(), [line])] == [kind]


def test_a_runtime_error_in_json_is_no_broken_gpu() -> None:
    value = {"DCGM Diagnostic": {"runtime_error": "Error: Diagnostic could not be run because it is not supported"}}
    assert [sign.kind for sign in DcgmDiag().value(4, value)] == ["dcgm.could_not_run"]


@pytest.mark.parametrize(
    "text",
    [
        "| Diagnostic | Result |\n|---|---|\n| PCIe | Fail |\n",  # a table of a page about it
        "# | Diagnostic                | Result            |\n# | Memory   | Fail  |\n",
        "when `dcgmi` says Error: unable to establish a connection to the specified host: localhost, start it",
        "the test may end with Fail - All, and XID error 79 detected.",
        "XID error 79 detected.",
        'DCGM_FI_DEV_XID_ERRORS{gpu="1"}  # → 79',
        "expr: DCGM_FI_DEV_XID_ERRORS > 0",
        "| Overall health | **Healthy** |",
        "# Memory | Warning",
    ],
)  # fmt: skip
def test_what_merely_talks_about_it_is_no_fault(text: str) -> None:
    for reader in READERS:
        assert not read(reader(), text.splitlines()), reader


@pytest.mark.parametrize("name", ["health_ok.txt", "health_ok.json"])
def test_a_healthy_report_says_nothing(name: str) -> None:
    assert not signs(DcgmHealth(), name)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("health_sick.txt",
         [("dcgm.nvswitch_fatal", None), ("gpu.pcie_replays", 0), ("gpu.remap_failed", 3),
          ("gpu.thermal_slowdown", 3)]),
        ("health_old.txt", [("gpu.inforom_corrupt", 1), ("gpu.pcie_replays", 0)]),
        ("health_sick.json", [("gpu.ecc_uncorrected", 1), ("nvlink.down", 1)]),
    ],
)  # fmt: skip
def test_incidents_of_a_health_report(name: str, expected: list[tuple[str, object]]) -> None:
    assert sorted(said(signs(DcgmHealth(), name)), key=str) == sorted(expected, key=str)


def test_an_incident_in_unknown_words_is_named_by_its_system() -> None:
    text = sample("health_sick.txt").replace("row remapping", "something new happened").replace("failed.", "to it.")
    found = read(DcgmHealth(), text.splitlines())
    assert ("dcgm.memory_failed", 3) in [(sign.kind, sign.fields.get("device")) for sign in found]


def test_every_condition_of_the_policy_is_known() -> None:
    kinds = [sign.kind for sign in signs(DcgmHealth(), "policy.txt")]
    assert kinds == ["xid", "gpu.ecc_uncorrected", "gpu.hot", "gpu.pcie_replays", "gpu.retired_many", "nvlink.errors"]


def test_fields_of_dmon_are_judged_as_those_of_any_source() -> None:
    assert said(signs(DcgmHealth(), "dmon.txt")) == [("gpu.ecc_uncorrected", 1), ("gpu.remap_pending", 1), ("xid", 1)]
    shown = readings_from_dmon(sample("dmon.txt"))
    assert [xid for _, xid in shown.values()] == [0, 94, 0]
    assert shown[2][0].uncorrected is None  # N/A is not zero


def test_the_host_engines_log_tells_of_a_lost_gpu_and_not_of_itself() -> None:
    lines = [
        "2026-01-16 09:50:02.432 ERROR [3279516:3279516] nvml returned 15: GPU is lost for gpuId 4 [a.cpp:1]",
        "2026-01-16 09:50:02.437 WARN  [3279516:3279516] Error getting the graphics pids for GPU 0. Status = -32",
        "2026-01-16 09:50:02.437 DEBUG [3279516:3279516] GPU is lost is what this would say",
    ]
    assert said(read(DcgmHealth(), lines)) == [("gpu.lost", 4)]


def test_a_healthy_page_says_nothing_and_is_read_all_the_same() -> None:
    assert not signs(Exporter(), "exporter_ok.txt")
    (second,) = [one for one in readings_from_page(sample("exporter_ok.txt")) if one.index == 1]
    assert second.temperature == 44
    assert second.pcie_replays is None  # DCGM's number for "not supported" is no count


def test_the_last_xid_is_a_number_and_not_a_count() -> None:
    found = [sign for sign in signs(Exporter(), "exporter_sick.txt") if sign.kind == "xid"]
    assert [(sign.fields["number"], sign.fields["device"], sign.count) for sign in found] == [(79, 1, 1), (94, 0, 2)]


def test_a_sick_page_is_judged_as_any_reading() -> None:
    found = signs(Exporter(), "exporter_sick.txt")
    assert said([sign for sign in found if sign.kind != "xid"]) == [
        ("gpu.ecc_uncorrected", 0), ("gpu.hot", 1), ("gpu.remap_failed", 1), ("gpu.remap_pending", 0),
        ("gpu.thermal_slowdown", 1), ("nvlink.errors", 0),
    ]  # fmt: skip
    lines = sample("exporter_sick.txt").splitlines()
    for sign in found:
        assert lines[sign.line - 1] == sign.text
        assert sign.fields.get("link") is None


def test_a_gpu_in_slices_is_one_gpu() -> None:
    page = "\n".join(
        f'DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{{gpu="0",UUID="GPU-1",GPU_I_PROFILE="1g.10gb",GPU_I_ID="{number}"}} {count}'
        for number, count in ((7, 0), (8, 2), (9, 0))
    )
    (reading,) = readings_from_page(page)
    assert (reading.index, reading.mig, reading.uncorrected) == (0, True, 2)


def test_the_same_fault_has_the_same_code_by_every_way() -> None:
    pending = [
        signs(DcgmDiag(), "diag3_pending.txt"),
        signs(DcgmHealth(), "dmon.txt"),
        signs(Exporter(), "exporter_sick.txt"),
    ]
    assert all("gpu.remap_pending" in {sign.kind for sign in found} for found in pending)


def test_every_code_of_dcgms_tables_has_a_meaning() -> None:
    used = {row.code for row in dcgm.errors()[0]} | set(dcgm.tests().values()) | set(dcgm.categories().values())
    used |= {code for pair in dcgm.systems().values() for code in pair} | {row.code for row in dcgm.policies()}
    assert not {code for code in used if code.partition(":")[0] not in {*load_tables().faults, "", "-", "xid", "sxid"}}


def test_what_dcgm_calls_a_setting_takes_no_node_out_of_service() -> None:
    faults = load_tables().faults
    for row in dcgm.errors()[0]:
        if row.severity == "config" and row.code in faults and not row.code.startswith(("fabric_manager.", "gpu.pcie")):
            assert not faults[row.code].remedy.disrupts, row.name


@pytest.mark.parametrize("name", sorted(path.name for path in SAMPLES.glob("*.txt")))
@pytest.mark.parametrize("reader", READERS)
def test_a_text_that_breaks_off_anywhere_is_read_as_far_as_it_goes(name: str, reader: type[Document]) -> None:
    lines = sample(name).splitlines()
    whole = {sign.kind for sign in read(reader(), lines)}
    generic = {"dcgm.memory_failed", "dcgm.pcie_failed", "dcgm.diag_failed", "dcgm.nvlink_failed", "gpu.pcie_replays",
               "dcgm.config", "dcgm.diag_warning", "dcgm.memory_warning", "dcgm.nvswitch_nonfatal"}  # fmt: skip
    for end in range(0, len(lines), 3):
        assert {sign.kind for sign in read(reader(), lines[:end])} <= whole | generic


PIECES = st.sampled_from(
    [line for path in sorted(SAMPLES.glob("*.txt")) for line in path.read_text(encoding="utf-8").splitlines()]
)


@pytest.mark.slow
@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.one_of(PIECES, st.text(max_size=120), PIECES.map(lambda line: line[: len(line) // 2])), max_size=40))
def test_no_lines_make_a_reader_fail(lines: list[str]) -> None:
    for reader in READERS:
        for sign in read(reader(), lines):
            assert sign.kind
            assert sign.line >= 0


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=20)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["test_categories", "tests", "results", "status", "warnings", "name", "entity_id",
                             "gpu_ids", "warning", "error_id", "test_summary", "GPU", "0", "children", "Errors",
                             "Memory system", "value", "overflow", "runtime_error"]),
            inner, max_size=4),
    ),
    max_leaves=20,
)  # fmt: skip


@settings(max_examples=examples(150), deadline=None)
@given(VALUES)
def test_no_json_makes_a_reader_fail(value: object) -> None:
    for key in ("DCGM Diagnostic", "DCGM GPU Diagnostic", "body"):
        for reader in READERS:
            list(reader().value(1, {key: value, "header": ["Health Monitor Report"]}))
            list(reader().value(1, value))


def test_a_monstrous_line_costs_no_more_than_its_length() -> None:
    import time

    monsters = [
        "| " + "GPU 0, " * 200_000 + " | x |",
        "DCGM_FI_DEV_GPU_TEMP{" + 'a="b",' * 200_000 + "} 1",
        "+" + "-" * 10**6,
        "GPU " + "1 " * 400_000,
        "Error: " + "Unable to complete diagnostic " * 50_000,
        "#Entity " + "X " * 300_000,
    ]
    table, dmon = sample("diag3_memory.txt").splitlines()[:24], sample("dmon.txt").splitlines()
    began = time.monotonic()
    for reader in READERS:
        read(reader(), [*table, *monsters, *dmon, *monsters])
    assert time.monotonic() - began < 5
