"""The shipped tables, the checks on them, and the operator's overrides."""

import csv
import re
from importlib.resources import files
from pathlib import Path

import pytest

from sickbay.knowledge.load import load_tables, read_diagnosis, read_faults, read_xids
from sickbay.model.errors import BadInput
from sickbay.model.facts import Observed
from sickbay.model.fault import Remedy, Severity
from sickbay.model.fleet import NodeId
from sickbay.signs.classify import classify

TABLES = load_tables()
DATA = files("sickbay.knowledge").joinpath("data")
DISAGREED = (31, 13, 45, 63, 64, 74, 94, 95, 109, 119, 121, 32, 38, 44, 68, 69, 154, *range(163, 173))


def text(name: str) -> str:
    return DATA.joinpath(name).read_text(encoding="utf-8")


def seen(kind: str, **fields: str | int) -> Observed:
    return Observed(node=NodeId("c/n1"), kind=kind, fields=fields)


def test_all_numbers_of_the_catalogue_and_of_the_driver_header_are_there() -> None:
    assert sorted(TABLES.xids) == list(range(1, 177))
    assert len(TABLES.sxids) == 257
    assert set(read_faults(text("faults.csv"))) == {
        "node.lost", "agent.lost", "cluster.partition", "check.failed", "check.could_not_run", "operator", "intake",
            "gpu.missing",
    }  # fmt: skip


def test_rows_keep_what_each_source_says() -> None:
    assert TABLES.xids[63].positions["nvidia_immediate"] == "IGNORE"
    assert TABLES.xids[63].positions["eks_nma"].startswith("fatal condition")
    assert TABLES.sxids[12028].positions["driver_h100_ls10"] == "nonfatal"


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (13, "restart_job"), (31, "restart_job"), (43, "none"), (45, "none"), (48, "reset_gpu"), (62, "reset_gpu"),
        (63, "watch"), (64, "reset_gpu"), (73, "watch"), (74, "reset_gpu"), (79, "reboot"), (94, "restart_job"),
        (95, "reset_gpu"), (109, "reset_gpu"), (119, "reset_gpu"), (120, "reset_gpu"), (140, "reset_gpu"),
        (142, "reboot"), (144, "reset_gpu"), (150, "reset_gpu"), (151, "reboot"), (154, "none"), (162, "none"),
        (163, "watch"), (165, "watch"),
    ],
)  # fmt: skip
def test_the_remedies_that_matter_most_stay_as_decided(number: int, remedy: str) -> None:
    assert TABLES.xids[number].remedy == remedy


def test_a_row_departs_from_nvidias_action_only_with_a_reason_of_its_own() -> None:
    plain = {"IGNORE": "none", "RESTART_APP": "restart_job", "RESET_GPU": "reset_gpu", "RESTART_VM": "reboot"}
    departed = {
        row.number
        for row in TABLES.xids.values()
        if plain.get(row.positions["nvidia_immediate"], row.remedy) != row.remedy
    }
    assert departed == {38, 44, 63, 92, 93, 121, 157, 161}


def test_a_number_that_present_gpus_do_not_use_is_watched_and_never_acted_on() -> None:
    unused = [row for row in TABLES.xids.values() if row.notes.startswith("catalogue: unused")]
    assert len(unused) == 63
    assert all(row.remedy.rank <= Remedy.WATCH.rank for row in unused)


def test_every_disruptive_row_is_an_error_and_no_other_is_but_the_details_of_48() -> None:
    grave = {row.number for row in TABLES.xids.values() if row.severity in {Severity.ERROR, Severity.FATAL}}
    assert grave - {171, 172} == {row.number for row in TABLES.xids.values() if row.remedy.disrupts}


@pytest.mark.parametrize("number", DISAGREED)
def test_where_sources_disagree_the_row_says_who_holds_what(number: int) -> None:
    because = TABLES.xids[number].because
    assert re.search(r"NVIDIA|NVSentinel|gpud|all sources|catalogue", because), because


@pytest.mark.parametrize("number", [row.number for row in TABLES.sxids.values() if row.notes.startswith("conflict")])
def test_where_sources_disagree_on_an_sxid_the_row_says_so(number: int) -> None:
    assert re.search(r"gpud|Imbue|guide", TABLES.sxids[number].because)


def test_every_fatal_fault_has_a_remedy() -> None:
    assert [row.code for row in TABLES.meanings() if row.severity is Severity.FATAL and row.remedy.rank < 30] == []


def test_what_a_row_takes_back_exists() -> None:
    codes = {row.code for row in TABLES.meanings()}
    assert {code for row in TABLES.meanings() for code in row.cancels} <= codes
    assert TABLES.xids[162].cancels == ("xid.163",)


def test_every_source_is_explained() -> None:
    explained = set(re.findall(r"^\| ([a-z-]+) \|", text("SOURCES.md"), re.MULTILINE))
    used = {key for row in TABLES.meanings() for key in row.source.split("; ")}
    assert used <= explained


def test_every_row_means_a_fault_and_every_fault_has_the_class_its_row_shows() -> None:
    for row in csv.DictReader(text("xid.csv").splitlines()):
        fault = classify(seen("xid", number=int(row["xid"]), advice="none"), TABLES)
        assert fault is not None
        assert (fault.code, fault.remedy, fault.monitor_class) == (f"xid.{row['xid']}", row["remedy"], row["class"])
    for row in csv.DictReader(text("sxid.csv").splitlines()):
        fault = classify(seen("sxid", number=int(row["sxid"])), TABLES)
        assert fault is not None
        assert (fault.code, fault.remedy, fault.monitor_class) == (f"sxid.{row['sxid']}", row["remedy"], row["class"])
    for row in csv.DictReader(text("faults.csv").splitlines()):
        fault = classify(seen(row["code"]), TABLES)
        assert fault is not None
        assert (fault.code, fault.remedy, fault.monitor_class) == (row["code"], row["remedy"], row["class"])


def test_the_digest_is_stable_and_follows_the_data(tmp_path: Path) -> None:
    assert load_tables().digest == TABLES.digest
    assert re.fullmatch(r"[0-9a-f]{12}", TABLES.digest)
    path = tmp_path / "site.yaml"
    path.write_text("- {code: xid.63, remedy: reset_gpu, because: old cards}\n")
    assert load_tables(path).digest != TABLES.digest


GOOD = text("xid.csv").splitlines(keepends=True)


def broken(line: str, old: str, new: str) -> str:
    assert old in line
    return GOOD[0] + GOOD[1] + line.replace(old, new, 1)


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (broken(GOOD[79], ",reboot,", ",rebot,"), "line 3: remedy 'rebot' is not known; write one of none, watch"),
        (broken(GOOD[79], ",fatal,device", ",deadly,device"), "line 3: severity 'deadly' is not known"),
        (broken(GOOD[79], ",device,", ",rack,"), "line 3: scope 'rack' is not known"),
        (broken(GOOD[79], "XID_CRITICAL_79", "HEALTHY"), "line 3: class HEALTHY; write XID_CRITICAL_79"),
        (broken(GOOD[79], "nvidia-catalogue; nvsentinel", ""), "line 3: source is empty"),
        (broken(GOOD[79], "79,", "seventy,"), "line 3: xid 'seventy' is no number"),
        (GOOD[0] + GOOD[1] + GOOD[2] + GOOD[1], "line 4: xid.1 is there twice"),
        (GOOD[0].replace(",source", "") + GOOD[1], "line 1: column source is missing"),
        (GOOD[0] + "1,2,3\n", "line 2: write 18 fields"),
    ],
)
def test_a_bad_row_is_refused_by_file_and_line(body: str, complaint: str) -> None:
    with pytest.raises(BadInput, match=re.escape(f"xid.csv {complaint}")):
        read_xids(body)


def test_a_bad_rule_or_fault_is_refused_by_file_and_line() -> None:
    head = "name,rank,pattern,words,restart,because,source\n"
    with pytest.raises(BadInput, match=r"diagnosis\.csv line 2: pattern is no regular expression"):
        read_diagnosis(head + "x,1,(,,yes,b,s\n")
    with pytest.raises(BadInput, match=r"diagnosis\.csv line 2: restart 'maybe'; write yes or no"):
        read_diagnosis(head + "x,1,a,,maybe,b,s\n")
    with pytest.raises(BadInput, match=r"faults\.csv line 2: because is empty"):
        read_faults("code,component,severity,scope,remedy,class,because,source\na,b,info,node,none,HEALTHY,,s\n")


def site(tmp_path: Path, body: str) -> Path:
    path = tmp_path / "site.yaml"
    path.write_text(body)
    return path


def test_an_operator_can_change_what_a_code_means(tmp_path: Path) -> None:
    tables = load_tables(
        site(tmp_path, "- code: xid.63\n  remedy: replace\n  severity: error\n  because: our old cards\n")
    )
    row = tables.xids[63]
    assert (row.remedy, row.severity, row.because, row.source) == ("replace", "error", "our old cards", "operator")
    assert TABLES.xids[63].remedy is Remedy.WATCH  # the shipped tables are untouched
    assert tables.xids[79] == TABLES.xids[79]


def test_an_operator_can_name_an_xid_that_the_tables_do_not_have(tmp_path: Path) -> None:
    path = site(tmp_path, "- {code: xid.190, remedy: reboot, severity: error, because: new driver}\n")
    fault = classify(seen("xid", number=190), load_tables(path))
    assert fault is not None
    assert (fault.remedy, fault.monitor_class) == ("reboot", "XID_CRITICAL_190")


def test_a_file_with_nothing_in_it_changes_nothing(tmp_path: Path) -> None:
    assert load_tables(site(tmp_path, "# nothing yet\n")) == TABLES


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("- {code: xid.63, remedy: fix, because: b}", ":1:26: [0].remedy: unknown value 'fix': known: none, watch"),
        ("- code: xid.63\n  because: b\n  severity: bad\n", ":3:13: [0].severity: unknown value 'bad'"),
        ("- code: xid.63\n  because: b\n  remdy: none\n", ":3:3: [0]: unknown key 'remdy': did you mean 'remedy'?"),
        ("- {remedy: none, because: b}", ":1:3: [0]: 'code' is missing: add 'code: …'"),
        ("- {code: xid.63, remedy: none}", "'because' is missing"),
        ("- {code: xid.63, because: b}", ":1:4: xid.63 changes nothing"),
        ("\n- {code: gpu.sad, remedy: none, because: b}", ":2:4: code 'gpu.sad' is not known"),
        (
            "- {code: xid.1, remedy: none, because: b}\n- {code: xid.1, remedy: watch, because: b}",
            ":2:4: xid.1 is there twice",
        ),
        ("- {code: [xid.1], remedy: none, because: b}", ":1:10: [0].code: expected text"),
        ("code: xid.63", ":1:1: expected a list"),
        ("- xid.63", ":1:3: [0]: expected 'key: value' lines"),
        ("- {code: xid.63\n- x", ":2:4: not valid YAML"),
        ("- [xid.63]: none", ":1:3: [0]: expected a word before ':'"),
        ("\x00", "the character U+0000 is not allowed"),
    ],
)
def test_a_bad_override_is_refused_by_line(tmp_path: Path, body: str, complaint: str) -> None:
    path = site(tmp_path, body)
    with pytest.raises(BadInput) as caught:
        load_tables(path)
    assert str(caught.value).startswith(str(path))
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_override_file_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="give the path of a YAML file"):
        load_tables(tmp_path / "none.yaml")
