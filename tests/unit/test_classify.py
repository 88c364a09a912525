"""Observation → fault, by the shipped tables."""

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sickbay.knowledge.load import load_tables
from sickbay.knowledge.overrides import apply_overrides
from sickbay.model.facts import Observed
from sickbay.model.fault import Fault, Remedy, Scope, Severity
from sickbay.model.fleet import NodeId
from sickbay.signs.classify import classify

TABLES = load_tables()


def observed(kind: str, text: str = "", /, **fields: str | int) -> Observed:
    return Observed(node=NodeId("c/n1"), kind=kind, fields=fields, text=text)


def fault_of(kind: str, text: str = "", /, **fields: str | int) -> Fault:
    fault = classify(observed(kind, text, **fields), TABLES)
    assert fault is not None
    return fault


def test_a_gpu_off_the_bus_asks_for_a_reboot_and_keeps_its_line_as_evidence() -> None:
    fault = fault_of("xid", "NVRM: Xid …", number=79, device=3)
    assert (fault.code, fault.remedy, fault.severity, fault.scope) == ("xid.79", "reboot", "fatal", "device")
    assert (fault.device, fault.evidence, fault.needs_human) == (3, "NVRM: Xid …", False)


def test_a_fault_without_a_device_names_none() -> None:
    assert fault_of("xid", number=79).device is None


def test_an_nvlink_error_is_the_fabrics() -> None:
    assert {fault_of("xid", number=number).scope for number in (74, *range(144, 151))} == {Scope.FABRIC}


def test_a_consequence_names_the_xid_it_follows() -> None:
    assert fault_of("xid", number=45, follows=149).follows == "xid.149"
    assert fault_of("xid", number=45).follows == ""


def test_162_takes_163_back() -> None:
    assert fault_of("xid", number=162).cancels == ("xid.163",)


@pytest.mark.parametrize("advice", list(Remedy))
def test_154_is_no_fault_of_its_own_but_carries_the_drivers_advice(advice: Remedy) -> None:
    fault = fault_of("xid", number=154, advice=advice.value)
    assert (fault.code, fault.remedy, fault.advice) == ("xid.154", Remedy.NONE, advice)


@pytest.mark.parametrize("fields", [{}, {"advice": "Dance Required"}, {"advice": 1}])
def test_154_in_unknown_words_is_watched_and_never_read_as_nothing_to_do(fields: dict[str, str | int]) -> None:
    fault = fault_of("xid", number=154, **fields)
    assert (fault.remedy, fault.advice) == (Remedy.WATCH, None)


def test_advice_in_any_other_xid_is_not_the_drivers() -> None:
    assert fault_of("xid", number=43, advice="reboot").advice is None


@pytest.mark.parametrize(
    ("resolution", "severity"), [("none", "info"), ("watch", "warning"), ("reset_gpu", "error"), ("reboot", "error")]
)
def test_the_registers_of_the_line_refine_the_row(resolution: str, severity: str) -> None:
    fault = fault_of("xid", number=149, resolution=resolution, why="NETIR says so")
    assert (fault.remedy, fault.severity, fault.code) == (resolution, severity, "xid.149")
    assert fault.because.endswith("; here NETIR says so")


def test_a_resolution_that_disrupts_makes_a_mild_row_an_error() -> None:
    fault = fault_of("xid", number=94, resolution="reset_gpu")
    assert (fault.remedy, fault.severity) == (Remedy.RESET_GPU, Severity.ERROR)


@pytest.mark.parametrize("nonsense", ["dance", "", 7])
def test_a_resolution_in_unknown_words_changes_nothing(nonsense: str | int) -> None:
    assert fault_of("xid", number=149, resolution=nonsense) == fault_of("xid", number=149)


def test_the_operators_word_on_an_xid_outranks_its_registers() -> None:
    ours = apply_overrides(TABLES, "- {code: xid.149, remedy: replace, because: bad trays}", name="site")
    fault = classify(observed("xid", number=149, resolution="watch"), ours)
    assert fault is not None
    assert (fault.remedy, fault.because) == (Remedy.REPLACE, "bad trays")


def test_an_xid_that_no_table_has_is_watched() -> None:
    fault = fault_of("xid", number=999)
    assert (fault.code, fault.severity, fault.remedy) == ("xid.999", "warning", "watch")
    assert fault.because == "not in the table"


@pytest.mark.parametrize("number", ["", "seventy-nine", "-1", "9" * 30, "７９"])
def test_an_xid_without_a_readable_number_is_still_a_fault(number: str) -> None:
    assert fault_of("xid", number=number).code == "xid.unknown"
    assert fault_of("sxid", number=number).code == "sxid.unknown"


def test_a_number_may_come_as_text() -> None:
    assert fault_of("xid", number="79", device="2") == fault_of("xid", number=79, device=2)


def test_a_fatal_sxid_resets_the_fabric() -> None:
    fault = fault_of("sxid", number=20034, severity="fatal", link=5)
    assert (fault.code, fault.remedy, fault.scope) == ("sxid.20034", Remedy.RESET_GPU, Scope.FABRIC)


@pytest.mark.parametrize(
    ("number", "word", "remedy"),
    [
        (12028, "nonfatal", "watch"),
        (12028, "fatal", "reset_gpu"),
        (19049, "fatal", "reset_gpu"),
        (19049, "nonfatal", "watch"),
        (99999, "fatal", "reset_gpu"),
        (99999, "nonfatal", "watch"),
        (26006, "fatal", "reboot"),
    ],
)
def test_the_drivers_word_on_an_sxid_outranks_the_table(number: int, word: str, remedy: str) -> None:
    assert fault_of("sxid", number=number, severity=word).remedy == remedy


def test_the_operators_word_on_an_sxid_outranks_the_drivers() -> None:
    ours = apply_overrides(TABLES, "- {code: sxid.12028, remedy: reboot, because: it stalls here}", name="site")
    fault = classify(observed("sxid", number=12028, severity="nonfatal"), ours)
    assert fault is not None
    assert (fault.remedy, fault.because) == (Remedy.REBOOT, "it stalls here")


@pytest.mark.parametrize("kind", ["node.going_down", "step", "", "xid.79"])
def test_what_is_no_fault_means_nothing(kind: str) -> None:
    assert classify(observed(kind), TABLES) is None


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        ("node.lost", "reboot"),
        ("agent.lost", "restart_service"),
        ("cluster.partition", "watch"),
        ("check.failed", "reboot"),
        ("check.could_not_run", "watch"),
        ("operator", "none"),
        ("intake", "none"),
    ],
)
def test_a_named_fault_is_looked_up(code: str, remedy: str) -> None:
    fault = fault_of(code, "why")
    assert (fault.code, fault.remedy, fault.scope, fault.evidence) == (code, remedy, Scope.NODE, "why")


@pytest.mark.parametrize(
    ("kind", "fields", "expected"),
    [
        ("xid", {"number": 79}, "XID_CRITICAL_79"),
        ("xid", {"number": 74}, "XID_CRITICAL_74"),
        ("xid", {"number": 31}, "XID_WARNING_31"),
        ("xid", {"number": 43}, "XID_WARNING_43"),
        ("xid", {"number": 999}, "XID_WARNING_999"),
        ("xid", {}, "XID_WARNING_0"),
        ("xid", {"number": 106}, "HEALTHY"),
        ("xid", {"number": 154, "advice": "reboot"}, "XID_CRITICAL_154"),
        ("xid", {"number": 154, "advice": "restart_job"}, "XID_WARNING_154"),
        ("xid", {"number": 154, "advice": "none"}, "HEALTHY"),
        *[("xid", {"number": number}, "ECC_ERROR") for number in (48, 63, 64, 92, 94, 95, 140, 171, 172)],
        ("sxid", {"number": 20034}, "GPU_HEALTH_ERROR"),
        ("sxid", {"number": 12028}, "GPU_HEALTH_WARNING"),
        ("node.lost", {}, "GPU_HEALTH_ERROR"),
        ("agent.lost", {}, "GPU_HEALTH_WARNING"),
        ("intake", {}, "HEALTHY"),
    ],
)
def test_a_fault_in_the_eks_monitors_words(kind: str, fields: dict[str, str | int], expected: str) -> None:
    assert fault_of(kind, **fields).monitor_class == expected


# The first text that hypothesis draws in a process takes seconds on a busy machine; that says nothing about us.
PATIENT = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
FIELDS = st.dictionaries(
    st.sampled_from(["number", "device", "follows", "advice", "severity", "link", "resolution", "why"]),
    st.text() | st.integers(),
)


@PATIENT
@given(kind=st.sampled_from(["xid", "sxid", *TABLES.faults]), fields=FIELDS)
def test_whatever_the_fields_a_known_kind_is_a_fault_with_a_class(kind: str, fields: dict[str, str | int]) -> None:
    fault = fault_of(kind, **fields)
    assert fault.because
    known = r"XID_(CRITICAL|WARNING)_\d+|ECC_ERROR|GPU_HEALTH_(WARNING|ERROR)|HEALTHY"
    assert re.fullmatch(known, fault.monitor_class)


@PATIENT
@given(code=st.text(), severity=st.sampled_from(list(Severity)), component=st.text())
def test_a_fault_of_a_code_nobody_knows_has_a_class_too(code: str, severity: Severity, component: str) -> None:
    fault = Fault(
        code=code, component=component, severity=severity, scope=Scope.NODE, remedy=Remedy.NONE, because="a later part"
    )
    assert fault.monitor_class
