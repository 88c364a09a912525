"""Signs become symptoms: named, counted, and under their cause."""

import pytest

from sickbay.brain.causes import CAUSES
from sickbay.knowledge.load import load_tables
from sickbay.model.fault import Remedy, Severity
from sickbay.model.sign import Sign
from sickbay.model.symptom import Symptom
from sickbay.signs.symptoms import MOST, gpu_of, name_all

TABLES = load_tables()
A, B = "0000:b9:00", "0000:3b:00"


def xid(number: int, line: int, pci: str = A, **fields: str | int) -> Sign:
    return Sign(kind="xid", fields={"number": number, "pci": pci, **fields}, text=f"Xid {number}", line=line)


def job(name: str, line: int) -> Sign:
    return Sign(kind="job", fields={"name": name}, text=name, line=line)


def by_code(*signs: Sign) -> dict[str, Symptom]:
    return {symptom.code: symptom for symptom in name_all(signs, TABLES)}


def test_a_sign_is_named_with_class_component_severity_and_remedy() -> None:
    (found,) = name_all([xid(79, 3)], TABLES)
    assert (found.code, found.monitor, found.component) == ("xid.79", "XID_CRITICAL_79", "pcie")
    assert (found.severity, found.remedy, found.line, found.device) == (Severity.FATAL, Remedy.REBOOT, 3, A)
    assert found.needs == "reboot"


def test_repeats_on_one_gpu_are_one_symptom_with_a_count() -> None:
    (found,) = name_all([xid(13, line, name=f"p{line}") for line in range(1, 500)], TABLES)
    assert (found.count, found.line, found.last_line) == (499, 1, 499)


def test_two_gpus_are_two_symptoms() -> None:
    assert len(name_all([xid(79, 1, A), xid(79, 2, B)], TABLES)) == 2


@pytest.mark.parametrize("pci", ["0000:b9:00", "0000:B9:00.0", "00000000:b9:00.0", "00000000:B9:00"])
def test_one_gpu_has_one_name_however_its_address_is_written(pci: str) -> None:
    assert gpu_of({"pci": pci}) == A


def test_each_gives_every_line_its_own() -> None:
    assert len(name_all([xid(13, 1), xid(13, 2)], TABLES, each=True)) == 2


def test_an_uncorrectable_error_leads_what_the_driver_does_about_it_in_any_order() -> None:
    found = by_code(xid(63, 1), xid(48, 2), xid(94, 3), xid(45, 4))
    assert found["xid.48"].follows == ""
    assert {found[code].follows for code in ("xid.63", "xid.94", "xid.45")} == {"xid.48"}
    assert "xid.48" in found["xid.63"].because


def test_another_gpus_fault_explains_nothing() -> None:
    assert by_code(xid(48, 1, A), xid(63, 2, B))["xid.63"].follows == ""


def test_a_gpu_off_the_bus_explains_what_comes_after_it_and_not_what_came_before() -> None:
    found = by_code(xid(31, 1), xid(79, 2), xid(119, 3), xid(45, 4))
    assert (found["xid.31"].follows, found["xid.119"].follows, found["xid.45"].follows) == ("", "xid.79", "xid.79")


def test_what_came_in_a_later_boot_is_not_explained_by_an_earlier_one() -> None:
    signs = (xid(79, 1), Sign(kind="boot", line=2), xid(119, 3))
    assert by_code(*signs)["xid.119"].follows == ""


def test_the_two_wordings_of_leaving_the_bus_are_one_fault() -> None:
    found = by_code(Sign(kind="gpu.fallen_off_bus", fields={"pci": f"{A}.0"}, line=1), xid(79, 2))
    assert (found["gpu.fallen_off_bus"].follows, found["xid.79"].follows) == ("xid.79", "")


def test_the_drivers_advice_outranks_the_table_for_the_fault_before_it() -> None:
    found = by_code(xid(95, 1), xid(154, 2, advice="reboot"))
    assert (found["xid.95"].remedy, found["xid.154"].follows) == (Remedy.REBOOT, "xid.95")
    assert "the driver asks for reboot" in found["xid.95"].because


def test_advice_after_a_consequence_is_advice_on_the_cause() -> None:
    found = by_code(xid(48, 1), xid(45, 2), xid(154, 3, advice="reboot"))
    assert found["xid.48"].remedy is Remedy.REBOOT


def test_advice_on_one_gpu_does_not_touch_another() -> None:
    assert by_code(xid(95, 1, A), xid(154, 2, B, advice="reboot"))["xid.95"].remedy is Remedy.RESET_GPU


def test_advice_alone_is_what_to_do() -> None:
    (found,) = name_all([xid(154, 1, advice="reboot")], TABLES)
    assert (found.remedy, found.severity) == (Remedy.REBOOT, Severity.ERROR)


def test_a_fatal_switch_fault_explains_the_links_of_all_gpus() -> None:
    fatal = Sign(kind="sxid", fields={"number": 12028, "pci": "0000:c1:00", "severity": "fatal"}, line=5)
    found = by_code(xid(74, 4), fatal, xid(45, 6, B))
    assert (found["xid.74"].follows, found["xid.45"].follows) == ("sxid.12028", "sxid.12028")


def test_a_nonfatal_switch_fault_explains_nothing() -> None:
    mild = Sign(kind="sxid", fields={"number": 12028, "pci": "0000:c1:00", "severity": "nonfatal"}, line=1)
    assert by_code(mild, xid(74, 2))["xid.74"].follows == ""


def test_what_is_taken_back_asks_for_nothing() -> None:
    found = by_code(xid(163, 1), xid(162, 2))
    assert (found["xid.163"].severity, found["xid.163"].remedy) == (Severity.INFO, Remedy.NONE)
    assert by_code(xid(162, 1), xid(163, 2))["xid.163"].remedy is Remedy.WATCH


def test_the_drivers_own_word_on_a_cause_is_taken() -> None:
    assert by_code(xid(31, 1), xid(45, 2, follows=31))["xid.45"].follows == "xid.31"


def test_a_sick_gpu_explains_a_collective_that_timed_out() -> None:
    found = by_code(xid(79, 1), job("nccl_timeout", 9))
    assert found["job.nccl_timeout"].follows == "xid.79"


def test_a_programs_error_explains_the_peers_that_waited_for_it() -> None:
    found = by_code(job("nccl_timeout", 1), job("killed", 2), job("import_error", 3))
    assert found["job.import_error"].follows == ""
    assert found["job.nccl_timeout"].follows == found["job.killed"].follows == "job.import_error"


def test_a_job_killed_for_memory_has_the_code_of_the_kernels_own_line() -> None:
    signs = [Sign(kind="os.oom_kill", line=1), job("host_oom", 2), job("killed", 3)]
    assert by_code(*signs)["job.killed"].follows == "os.oom_kill"
    assert "job.host_oom" not in by_code(*signs)


def test_no_symptom_follows_itself_however_the_rows_stand() -> None:
    numbers = (48, 95, 94, 63, 64, 43, 45, 79, 119, 74, 13, 31)
    signs = [xid(number, line) for line, number in enumerate(numbers, start=1)]
    found = name_all([*signs, *signs], TABLES)
    for start, _ in enumerate(found):
        seen, at = set(), start
        while at >= 0:
            assert at not in seen
            seen.add(at)
            at = found[at].root


def test_an_unknown_kind_is_no_symptom() -> None:
    assert name_all([Sign(kind="weather.rain"), Sign(kind="job", fields={"name": "nobody"})], TABLES) == ()


def test_the_number_of_symptoms_is_bounded() -> None:
    assert len(name_all((xid(13, n, f"{n:04x}:01:00") for n in range(MOST + 50)), TABLES)) == MOST


def test_every_row_says_why() -> None:
    assert all(row.why and row.codes and row.brings for row in CAUSES)
