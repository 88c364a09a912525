"""The judge of GPUs: what a state means, what a change means, and what is daily life."""

import math
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from sickbay.knowledge.load import load_tables
from sickbay.model.gpu import GpuReading, Link
from sickbay.model.sign import Sign
from sickbay.signs.gpu_changes import GpuPast, weigh
from sickbay.signs.gpu_state import LIMITS, held, missing, shown_in, signs_among, signs_of

H200 = GpuReading(
    index=3, uuid="GPU-1", pci="00000000:b9:00.0", name="NVIDIA H200", ecc_enabled=True, corrected=0, uncorrected=0,
    remap_pending=False, remap_failed=False, slowed_by=("gpu_idle",), temperature=37, slowdown_at=89, shutdown_at=95,
    power=127, power_limit=700, power_limit_default=700, utilization=0, pcie_generation=5, pcie_generation_max=5,
    pcie_width=16, pcie_width_max=16, pcie_replays=0, recovery_action="None", persistence=True,
    links=tuple(Link(number=number, up=True, replays=0, recoveries=0, crc_errors=0) for number in range(18)),
    fabric_state="Completed", fabric_status="Success",
)  # fmt: skip
RTX = GpuReading(index=0, name="NVIDIA GeForce RTX 4090", temperature=60, utilization=0)


def kinds(reading: GpuReading) -> set[str]:
    return {sign.kind for sign in signs_of(reading)}


def changes(before: GpuReading | None, now: GpuReading) -> tuple[Sign, ...]:
    return weigh(None if before is None else weigh(None, before)[1], now)[0]


def links(up: int, of: int) -> tuple[Link, ...]:
    return tuple(Link(number=number, up=number < up) for number in range(of))


SICK: list[tuple[dict[str, object], str]] = [
    ({"lost": "GPU is lost"}, "gpu.lost"),
    ({"lost": "GPU requires reset"}, "gpu.reset_required"),
    ({"lost": "Unknown Error", "remap_pending": True}, "gpu.lost"),
    ({"uncorrected": 2}, "gpu.ecc_uncorrected"),
    ({"corrected": 5000}, "gpu.ecc_corrected"),
    ({"ecc_enabled": False}, "gpu.ecc_disabled"),
    ({"sram_threshold": True}, "gpu.sram_threshold"),
    ({"uncorrected_sram_aggregate": 5}, "gpu.sram_threshold"),
    ({"remap_pending": True}, "gpu.remap_pending"),
    ({"remap_failed": True}, "gpu.remap_failed"),
    ({"banks_full": 1}, "gpu.banks_full"),
    ({"repair_pending": True}, "gpu.repair_pending"),
    ({"unrepairable": True}, "gpu.memory_unrepairable"),
    ({"retire_pending": True}, "gpu.retire_pending"),
    ({"retired_single": 40, "retired_double": 20}, "gpu.retired_many"),
    ({"slowed_by": ("hw_slowdown", "hw_thermal_slowdown")}, "gpu.thermal_slowdown"),
    ({"slowed_by": ("hw_slowdown", "hw_power_brake")}, "gpu.power_brake"),
    ({"slowed_by": ("hw_slowdown",)}, "gpu.hw_slowdown"),
    ({"temperature": 89}, "gpu.hot"),
    ({"temperature_memory": 96, "memory_limit_at": 95}, "gpu.hot"),
    ({"power_limit": 200}, "gpu.power_limited"),
    ({"pcie_width": 8}, "gpu.pcie_width"),
    ({"pcie_generation": 3, "utilization": 99}, "gpu.pcie_generation"),
    ({"pcie_replays": 4000}, "gpu.pcie_replays"),
    ({"links": links(17, 18)}, "nvlink.down"),
    ({"links": (Link(number=0, up=True, recoveries=1),)}, "nvlink.errors"),
    ({"recovery_action": "Reset"}, "gpu.reset_required"),
    ({"recovery_action": "Drain and Reset"}, "gpu.reset_required"),
    ({"recovery_action": "Node Reboot Required"}, "gpu.reboot_required"),
    ({"recovery_action": "Drain P2P"}, "gpu.drain_required"),
    ({"recovery_action": "Exorcism"}, "gpu.recovery_unknown"),
    ({"fabric_status": "Insufficient Resources"}, "gpu.fabric_failed"),
    ({"fabric_state": "In Progress", "fabric_status": "N/A"}, "gpu.fabric_waiting"),
    ({"unreadable": ("power",)}, "gpu.sensor_failed"),
]


@pytest.mark.parametrize(("change", "kind"), SICK)
def test_each_sickness_has_one_name_and_no_other(change: dict[str, object], kind: str) -> None:
    assert kinds(replace(H200, **change)) == {kind}


@pytest.mark.parametrize(("change", "kind"), SICK)
def test_every_sign_is_a_row_of_the_tables(change: dict[str, object], kind: str) -> None:
    assert kind in load_tables().faults, change


def test_a_healthy_card_shows_nothing() -> None:
    assert signs_of(H200) == ()
    assert signs_of(RTX) == ()


def test_silence_of_the_source_is_no_sign() -> None:
    assert signs_of(GpuReading()) == ()


@pytest.mark.parametrize(
    "change",
    [
        {"slowed_by": ("gpu_idle", "sw_power_cap", "sw_thermal_slowdown", "applications_clocks", "display_clocks")},
        {"pcie_generation": 1},  # idle
        {"uncorrected_aggregate": 7, "remaps_uncorrected": 2},  # history, long since remapped
        {"sram_threshold": False, "uncorrected_sram_aggregate": 9},  # the driver knows better
        {"links": links(0, 18)},  # lent alone, or the fabric is not set up
        {"recovery_action": "N/A"},
        {"fabric_state": "N/A", "fabric_status": "N/A"},
        {"power_limit": 400},
    ],
)
def test_daily_life_of_a_data_centre_is_no_sign(change: dict[str, object]) -> None:
    assert signs_of(replace(H200, **change)) == ()


@pytest.mark.parametrize(
    "change",
    [
        {"pcie_width": 8, "pcie_width_max": 16},  # two cards share the lanes
        {"slowed_by": ("hw_slowdown", "hw_power_brake")},  # a laptop on battery
        {"power_limit": 100, "power_limit_default": 450},
        {"unreadable": ("fan",)},
        {"links": links(2, 4)},
        {"ecc_enabled": False},
        {"persistence": False},
        {"pcie_replays": 90000},
    ],
)
def test_what_is_daily_life_on_a_desk_is_no_sign(change: dict[str, object]) -> None:
    assert signs_of(replace(RTX, **change)) == ()


def test_a_sign_says_which_gpu() -> None:
    (sign,) = signs_of(replace(H200, remap_pending=True, serial="165"))
    assert sign.fields == {"device": 3, "pci": "00000000:b9:00.0", "uuid": "GPU-1", "serial": "165"}
    assert sign.text == "GPU 3: row remap pending"


def test_links_that_all_cards_lack_alike_are_how_the_machine_is_wired() -> None:
    alike = [replace(H200, index=number, links=links(12, 18)) for number in range(4)]
    assert signs_among(alike) == ()
    alike[2] = replace(alike[2], links=links(10, 18))
    assert {(sign.kind, sign.fields["device"]) for sign in signs_among(alike)} == {("nvlink.down", 2)}
    alike[2] = replace(alike[2], links=links(0, 18))
    assert [(sign.kind, sign.fields["device"]) for sign in signs_among(alike)] == [("nvlink.down", 2)]


def test_a_card_without_a_bridge_beside_two_with_one_is_nothing() -> None:
    cards = [GpuReading(index=number, name="NVIDIA RTX A6000", links=links(4, 4)) for number in range(2)]
    assert signs_among([*cards, GpuReading(index=2, name="NVIDIA RTX A6000", links=links(0, 4))]) == ()


def test_without_a_look_before_the_state_counts() -> None:
    sick = replace(H200, uncorrected=1, remap_pending=True)
    assert changes(None, sick) == signs_of(sick)


def test_what_was_told_is_not_told_again() -> None:
    sick = replace(H200, uncorrected=1, remap_pending=True, slowed_by=("hw_slowdown",))
    assert changes(sick, sick) == ()
    assert changes(sick, replace(sick, temperature=90))[0].kind == "gpu.hot"


def test_growth_is_told_with_its_count() -> None:
    (sign,) = changes(replace(H200, uncorrected=1), replace(H200, uncorrected=4))
    assert (sign.kind, sign.count) == ("gpu.ecc_uncorrected", 3)


@pytest.mark.parametrize(
    ("field", "step", "kind"),
    [
        ("corrected", LIMITS["corrected_step"].at, "gpu.ecc_corrected"),
        ("pcie_replays", LIMITS["replays_step"].at, "gpu.pcie_replays"),
    ],
)
def test_storms_count_and_drops_do_not(field: str, step: float, kind: str) -> None:
    before = replace(H200, **{field: 5})
    assert changes(before, replace(H200, **{field: 5 + int(step) - 1})) == ()
    assert [sign.kind for sign in changes(before, replace(H200, **{field: 5 + int(step)}))] == [kind]


def test_counters_that_fell_back_mean_a_new_driver_and_no_alarm() -> None:
    before = replace(H200, uncorrected=7, corrected=9000, pcie_replays=5000)
    assert changes(before, H200) == ()


def test_link_errors_that_grow_are_told_with_the_link() -> None:
    links_now = [replace(link, recoveries=2 if link.number == 5 else 0) for link in H200.links or ()]
    worn = replace(H200, links=tuple(links_now))
    (sign,) = changes(H200, worn)
    assert (sign.kind, sign.fields["link"]) == ("nvlink.errors", 5)
    assert changes(worn, worn) == ()


def test_a_brake_that_holds_under_load_is_a_sick_machine() -> None:
    braked = replace(H200, slowed_by=("hw_slowdown", "hw_power_brake"), utilization=98)
    assert held([braked] * 6).kind == "gpu.throttled"
    assert held([braked] * 5 + [H200]) is None
    assert held([replace(braked, utilization=3)] * 6) is None
    assert held([braked]) is None
    assert held([]) is None


def test_missing_gpus_are_counted_and_lost_ones_are_missing() -> None:
    assert missing([H200] * 8, 8) is None
    assert missing([], 0) is None
    sign = missing([H200] * 7 + [replace(H200, lost="GPU is lost")], 8)
    assert (sign.kind, sign.fields) == ("gpu.count", {"seen": 7, "expected": 8})


def test_persistence_that_is_off_is_no_finding() -> None:
    assert signs_of(replace(H200, persistence=False)) == ()


def test_the_proof_of_every_sign_is_a_field() -> None:
    reasons = {"hw_thermal_slowdown", "hw_power_brake", "hw_slowdown"}
    for _, kind in SICK:
        assert set(shown_in(kind)) <= {*GpuReading.__struct_fields__} | reasons, kind


counts = st.none() | st.integers(0, 2**63)


@given(
    st.builds(
        GpuReading, uncorrected=counts, corrected=counts, pcie_replays=counts, temperature=st.none() | st.floats()
    )
)
def test_no_reading_makes_the_judge_fail_and_no_change_is_no_news(reading: GpuReading) -> None:
    signs_of(reading)
    assert changes(reading, reading) == ()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 2.0**32 - 1), ("temperature", -273.0), ("temperature", math.nan), ("temperature", math.inf),
        ("temperature_memory", 2.0**32 - 1), ("power", -1.0), ("power", 4294967.295), ("utilization", 101.0),
        ("sm_clock", 1e300), ("retired_double", -1), ("retired_double", 2**32 - 1), ("banks_full", 2**32 - 1),
        ("pcie_width", -1), ("memory_used", 2**64 - 1), ("uncorrected_sram_aggregate", 2**64 - 1),
        ("index", -1),
    ],
)  # fmt: skip
def test_a_value_that_no_card_can_have_is_a_reading_that_failed(field: str, value: float) -> None:
    wild = replace(H200, sram_threshold=None, memory_limit_at=95, **{field: value})
    (sign,) = signs_of(wild)
    assert sign.kind == "gpu.sensor_failed"
    assert sign.text.endswith(f"cannot be read: {field}")
    assert changes(wild, wild) == ()
    last = weigh(None, replace(wild, slowed_by=("hw_slowdown",)))[1].last
    assert last is not None
    assert held([last] * 3) is None


def test_a_limit_that_no_card_can_have_is_no_limit() -> None:
    assert kinds(replace(H200, slowdown_at=2.0**32 - 1, temperature=97)) == {"gpu.hot", "gpu.sensor_failed"}


wild = st.none() | st.integers() | st.sampled_from([-1, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1, 10**30])
floats = st.none() | st.floats()
FLOATS = ("temperature", "temperature_memory", "power", "power_limit", "utilization", "fan", "slowdown_at",
          "memory_limit_at", "power_limit_default", "sm_clock")  # fmt: skip
NUMBERS = ("index", "uncorrected", "corrected", "pcie_replays", "uncorrected_sram_aggregate", "retired_single",
           "retired_double", "banks_full", "pcie_width", "pcie_width_max", "pcie_generation", "pcie_generation_max",
           "memory_used", "memory_total")  # fmt: skip
anything = st.builds(
    GpuReading,
    **dict.fromkeys(FLOATS, floats),
    **dict.fromkeys(NUMBERS, wild),
    name=st.sampled_from(["NVIDIA H200", "NVIDIA GeForce RTX 4090", ""]),
    uuid=st.sampled_from(["GPU-1", ""]),
    lost=st.sampled_from(["", "", "GPU is lost", "Unknown Error"]),
    recovery_action=st.text(max_size=10),
    links=st.none() | st.lists(st.builds(Link, number=st.integers(0, 3), up=st.none() | st.booleans(), replays=wild,
                                         recoveries=wild, crc_errors=wild, ecc_errors=wild), max_size=3).map(tuple),
)  # fmt: skip


@given(st.lists(anything, max_size=5))
def test_no_number_that_cannot_be_is_ever_told(readings: list[GpuReading]) -> None:
    past: GpuPast | None = None
    for reading in readings:
        signs, past = weigh(past, reading)
        for sign in (*signs, *signs_among([reading])):
            assert 1 <= sign.count <= 2**62
            assert all(not isinstance(value, int) or -1 <= value <= 65_535 for value in sign.fields.values())
            assert not re.search(r"\d{20}|nan|inf\b", sign.text), sign.text
            msgspec.json.decode(msgspec.json.encode(sign), type=Sign)
        held([reading] * 3)
