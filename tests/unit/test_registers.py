"""What the registers of an NVLink error ask for, by NVIDIA's tables."""

import csv
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.cases import one_by_one

from sickbay.model.errors import BadInput
from sickbay.model.fault import Remedy
from sickbay.signs.registers import decode, read_decode, registers

PATIENT = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
TABLE = Path(__file__).parents[2] / "src/sickbay/knowledge/data/xid_decode.csv"
SHIPPED = TABLE.read_text(encoding="utf-8")
with TABLE.open(encoding="utf-8", newline="") as file:
    UNITS = [row for row in csv.DictReader(file) if row["field"] == "intrInfo"]


def line(unit: str, info: int, status: int, word: str = "Fatal") -> str:
    return f"{unit} {word} XC0 i0 Link 08 (0x{info:08x} 0x{status:08x} 0x00000000 0x00000000 0x00000000 0x00000000)"


@pytest.mark.parametrize(
    ("number", "text", "unit", "remedy"),
    [
        (149, "NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000 0x00000000)", "NETIR_LINK_EVT", "reset_gpu"),
        (
            149,
            "NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000 0x00000000)",
            "NETIR_LINK_EVT",
            "reset_gpu",
        ),
        (149, "NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x026001c6, 0x00000000, 0x00000000)", "NETIR_LINK_EVT", "watch"),
        (149, "NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000 0x00000000)", "NETIR", "reset_gpu"),
        (149, "pid=1, NETIR_BER_EVENT Nonfatal XC0 i0 Link 02 (0x00000226 0x00000001)", "NETIR_BER_EVENT", "watch"),
        (145, "RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x00000001)", "RLW_RXPIPE", "watch"),
        (145, "RLW_RXPIPE Fatal XC0 i0 Link 13 (0x0409a0c2 0x00000001 0x00000001)", "RLW_RXPIPE", "reset_gpu"),
        (145, "RLW_REMAP Nonfatal XC0 i0 Link 13 (0x00000082 0x00000004)", "RLW_REMAP", "watch"),
        (145, "RLW_SRC_TRACK Fatal XC0 i1 Link 00 (0x00000007 0x00000010)", "RLW_SRC_TRACK", "reset_gpu"),
        (150, "MSE degraded Fatal XC0 i0 Link 00 (0x00000000 0xffffffff)", "MSE degraded", "reset_gpu"),
        (149, "NETIR_LINK_EVT Fatal XC 1 i 2 Link 01 [0x0000000a]", "NETIR_LINK_EVT", None),
        (148, "NVLPW_CTRL Fatal XC0 i0 Link 05", "NVLPW_CTRL", None),
        (145, "driver-specific detail", None, None),
    ],
)
def test_real_lines_are_decoded(number: int, text: str, unit: str | None, remedy: str | None) -> None:
    found = decode(number, text)
    assert (found.get("unit"), found.get("resolution")) == (unit, remedy)
    assert bool(found.get("why")) == bool(remedy)


@one_by_one("layout", ["v1", "v2"])
@one_by_one("row", UNITS, ids=lambda row: f"{row['xid']}-{row['unit']}-{row['condition'][-6:]}-{row['error_status']}")
def test_every_row_is_found_in_both_layouts(row: dict[str, str], layout: str) -> None:
    low = row["pattern"].split(f"{layout}[")[1].split("=")[1].split()[0]
    info = int(row["condition"].split("=")[1], 2) << 20 | int(low, 2)
    status = int(row["error_status"].split("/")[0] or "0", 16)
    unit = row["unit"].split("/")[-1]
    word = "Nonfatal" if row["severity_hwsw"].startswith("Non") else "Fatal"
    found = decode(int(row["xid"]), line(unit, info, status, word))
    wanted = {"RESET_GPU": {"reset_gpu"}, "XID_154_EVAL": {"watch"}, "IGNORE": {"watch", "none"}}[
        row["action_or_class"]
    ]
    assert found["resolution"] in wanted


def test_two_errors_at_once_are_answered_by_the_graver() -> None:
    assert decode(144, line("SAW_MVB", 0x21, 0x3))["resolution"] == "reset_gpu"


def test_the_drivers_word_is_told_where_it_contradicts() -> None:
    assert "the driver itself calls it fatal" in str(decode(144, line("SAW_MVB", 0x21, 0x4))["why"])


def test_what_154_decides_is_left_to_it() -> None:
    found = decode(145, line("RLW_REMAP", 0x82, 0x4, "Nonfatal"))
    assert (found["resolution"], "154" in str(found["why"])) == ("watch", True)


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", "reset_gpu"),
        ("0x1, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", "watch"),
        ("0x10, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", "reset_gpu"),
        ("0x2, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", "reset_gpu"),
        ("0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0", "reset_gpu"),
        ("0x0, 0x0, 0x0, 0x40000, 0x0, 0x0, 0x0", "reset_gpu"),
        ("0x0, 0x0, 0x0, 0x0, 0x100000, 0x0, 0x0", "watch"),
        ("0x1, 0x0, 0x0, 0x40000, 0x0, 0x0, 0x0", "reset_gpu"),
        ("0x80000000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", "reset_gpu"),
        ("0x0, 0xffff, 0x0, 0x0, 0x0, 0xffff, 0xffff", None),
        ("0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", None),
    ],
)
def test_the_bits_of_74_are_decoded(words: str, remedy: str | None) -> None:
    found = decode(74, f"NVLink: fatal error detected on link 6({words})")
    assert found.get("resolution") == remedy


def test_other_xids_have_no_registers() -> None:
    assert decode(79, "GPU has fallen off the bus (0x1 0x2)") == {}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("xid,unit", "x,unit"),
        ("\n144,", "\nx,"),
        ('"bits 0,23,30"', '"bits a"'),
        ("v1[9:0]=0000100001", "v1[9:0]=x"),
        (",IGNORE,CONTACT", ",DANCE,CONTACT"),
        ("0x00000001", "one"),
        (",ignore,,,", ",ignored,,,"),
        ("\n144,", "\n144,more,"),
    ],
)
def test_a_bad_table_is_refused_in_one_line(old: str, new: str) -> None:
    with pytest.raises(BadInput, match=r"^xid_decode.csv line \d+: .*$") as refused:
        read_decode(SHIPPED.replace(old, new, 1))
    assert "\n" not in str(refused.value)


@PATIENT
@given(st.sampled_from([74, *range(144, 151)]), st.text())
def test_no_text_makes_it_raise(number: int, text: str) -> None:
    decode(number, text)
    registers(text)


@PATIENT
@given(st.sampled_from(range(144, 151)), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_whatever_the_words_the_answer_is_a_remedy_short_of_a_reboot(number: int, info: int, status: int) -> None:
    found = decode(number, line("RLW_CTRL", info, status)).get("resolution", "none")
    assert Remedy(str(found)).rank <= Remedy.RESET_GPU.rank
