"""Error counters: every case of a counter, and that what is told is what happened."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from sickbay.agent.loop import Loop
from sickbay.agent.outbox import Outbox
from sickbay.agent.probes import Probe
from sickbay.agent.probes.counters import Counters
from sickbay.agent.probes.remembered import Remembered
from sickbay.agent.spool import AgentIdentity
from sickbay.agent.watches import Watches
from sickbay.agent.watermark import Watermarks
from sickbay.knowledge.counters import CounterRule
from sickbay.model.facts import Observed
from sickbay.model.fleet import Incarnation, NodeId
from sickbay.model.gpu import GpuReading, Link
from sickbay.signs.counting import ALL_ONES, MOST, Growth, growth
from sickbay.signs.gpu_changes import GpuPast, weigh

CASES = [
    # before, now, fresh: growth
    (None, 5, True, Growth(5, 5)),  # first seen, counts from the boot
    (None, 5, False, Growth(5, 0)),  # first seen, nobody knows since when
    (None, None, True, Growth(None, 0)),
    (5, None, True, Growth(5, 0)),  # unreadable: what it said is kept
    (5, 5, True, Growth(5, 0)),
    (5, 9, True, Growth(9, 4)),
    (5, 3, True, Growth(3, 3)),  # set back
    (5, 3, False, Growth(3, 3)),
    (5, 0, True, Growth(0, 0)),
    (0, 12, False, Growth(12, 12)),  # known to have been set back
    (5, -1, True, Growth(5, 0, absurd=True)),
    (5, 2**31 - 1, True, Growth(5, 0, absurd=True)),
    (5, 2**32 - 1, True, Growth(5, 0, absurd=True)),
    (5, 2**64 - 1, True, Growth(5, 0, absurd=True)),
    (5, 10**30, True, Growth(5, 0, absurd=True)),
    (5, 5 + MOST, True, Growth(5 + MOST, MOST)),
    (5, 6 + MOST, True, Growth(5, 0, absurd=True)),
    (None, MOST + 1, True, Growth(None, 0, absurd=True)),
    (None, MOST + 1, False, Growth(MOST + 1, 0)),  # an old counter of a port
    (2**40, 2**40 + 1, False, Growth(2**40 + 1, 1)),
]


@pytest.mark.parametrize(("before", "now", "fresh", "expected"), CASES)
def test_every_case_of_a_counter_is_defined(before: int | None, now: int | None, fresh: bool, expected: Growth) -> None:
    assert growth(before, now, fresh=fresh) == expected


def gpu(**what: Any) -> GpuReading:
    return replace(GpuReading(index=0, uuid="GPU-1", name="NVIDIA H200"), **what)


class Happens(NamedTuple):
    what: str  # grow, look, blind, absurd, reset, restart
    by: int = 0


WILD = (*sorted(ALL_ONES), 2**63 - 1, 2**64 - 1, -1, -(2**31), 0xDEADBEEF, 2**63, 10**30)
HAPPENS = st.one_of(
    st.builds(Happens, st.just("grow"), st.integers(1, 9)),
    st.builds(Happens, st.just("absurd"), st.sampled_from(WILD)),
    st.builds(Happens, st.sampled_from(["look", "blind", "reset", "lost", "restart"])),
)


class Truth:
    """A counter as it is: what it shows, and what has happened and was not seen yet, or never will be."""

    def __init__(self) -> None:
        self.shows = self.happened = self.unseen = self.gone = 0

    def grow(self, by: int) -> None:
        self.shows, self.happened, self.unseen = self.shows + by, self.happened + by, self.unseen + by

    def reset(self) -> None:
        self.gone += self.unseen
        self.shows = self.unseen = 0

    def look(self) -> int:
        self.unseen = 0
        return self.shows


@given(st.lists(HAPPENS, max_size=40))
def test_what_a_gpu_tells_is_what_happened_however_looks_gaps_and_restarts_mix(story: list[Happens]) -> None:
    """Growth that was set back before anybody looked is lost to everybody; nothing else is, and nothing comes twice."""
    truth, told, past = Truth(), 0, None
    for what, by in story:
        reading = gpu()
        match what:
            case "grow":
                truth.grow(by)
                continue
            case "restart":
                past = None if past is None else GpuPast(counts=past.counts)
                continue
            case "reset":  # the GPU says that it is lost, and comes back with counters at nothing
                truth.reset()
                reading = gpu(lost="GPU is lost")
            case "lost":  # an unknown error that passes: no reset
                reading = gpu(lost="Unknown Error")
            case "look":
                reading = gpu(uncorrected=truth.look())
            case "absurd":
                reading = gpu(uncorrected=by)
        signs, past = weigh(past, reading)
        told += sum(sign.count for sign in signs if sign.kind == "gpu.ecc_uncorrected")
        assert told == truth.happened - truth.unseen - truth.gone


@given(st.lists(st.one_of(st.integers(1, 9), st.sampled_from(["look", "reset", "blind", -1, 2**64 - 1])), max_size=40))
def test_a_counter_that_is_set_back_unseen_is_never_counted_too_high(story: Sequence[int | str]) -> None:
    shows = happened = told = 0
    before: int | None = None
    for one in story:
        if isinstance(one, int) and 0 < one < 10:
            shows, happened = shows + one, happened + one
            continue
        shows = 0 if one == "reset" else shows
        if one != "reset":
            seen = growth(before, None if one == "blind" else shows if one == "look" else int(one), fresh=True)
            before, told = seen.remembered, told + seen.by
        assert told <= happened


# --- GPUs


def told(*readings: GpuReading) -> list[list[tuple[str, int]]]:
    past, found = None, []
    for reading in readings:
        signs, past = weigh(past, reading)
        found.append([(sign.kind, sign.count) for sign in signs])
    return found


def test_errors_that_grew_while_a_counter_could_not_be_read_are_told() -> None:
    assert told(gpu(uncorrected=0), gpu(), gpu(uncorrected=9), gpu(uncorrected=9)) == [
        [], [], [("gpu.ecc_uncorrected", 9)], [],
    ]  # fmt: skip


def test_a_gpu_that_comes_back_from_being_lost_counts_from_nothing() -> None:
    seen = told(gpu(uncorrected=9), gpu(lost="GPU is lost"), gpu(uncorrected=12), gpu(uncorrected=12))
    assert seen == [[("gpu.ecc_uncorrected", 9)], [("gpu.lost", 1)], [("gpu.ecc_uncorrected", 12)], []]


def test_errors_after_a_reset_are_told_though_the_counter_stands_lower() -> None:
    assert told(gpu(uncorrected=5), gpu(uncorrected=3))[1] == [("gpu.ecc_uncorrected", 3)]


@pytest.mark.parametrize("value", [-1, 2**32 - 1, 2**64 - 1, 0xDEADBEEF])
def test_a_counter_that_cannot_be_is_a_failed_sensor_once_and_never_an_error(value: int) -> None:
    assert told(gpu(uncorrected=value), gpu(uncorrected=value)) == [[("gpu.sensor_failed", 1)], []]
    assert told(gpu(uncorrected=1), gpu(uncorrected=value), gpu(uncorrected=value), gpu(uncorrected=3))[1:] == [
        [("gpu.sensor_failed", 1)], [], [("gpu.ecc_uncorrected", 2)],
    ]  # fmt: skip


@pytest.mark.parametrize("value", [-1, 2**64 - 1])
def test_a_link_counter_that_cannot_be_is_no_worn_link(value: int) -> None:
    before = gpu(links=(Link(number=3, up=True, recoveries=0),))
    now = gpu(links=(Link(number=3, up=True, recoveries=value),))
    assert told(before, now, now)[1:] == [[("gpu.sensor_failed", 1)], []]
    assert told(now) == [[("gpu.sensor_failed", 1)]]


def test_a_slow_drip_over_a_long_gap_is_no_storm() -> None:
    """Nobody knows how fast it was: it is judged as a whole, as what is found at the first look."""
    past = GpuPast(counts={"corrected": 0, "pcie_replays": 0})
    assert weigh(past, gpu(corrected=150, pcie_replays=20))[0] == ()
    assert [sign.kind for sign in weigh(past, gpu(corrected=5000))[0]] == ["gpu.ecc_corrected"]


# --- files under /sys

NODE = NodeId("c/n1")
RULE = CounterRule(under="dev/*", name="errors", code="dram.uncorrected", grown_by=1, within=1, at_start=False)


def put(root: Path, value: object, device: str = "mc0") -> None:
    path = root / "dev" / device / "errors"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{value}\n")


def counts(counters: Counters, now: float) -> list[tuple[str, int]]:
    found = [item.news for item in counters.look(now)]
    counters.told(now)
    return [(news.kind, news.count) for news in found if isinstance(news, Observed)]


def kept(tmp_path: Path, boot: str = "b1") -> Remembered:
    return Remembered(tmp_path / "kept.json", boot)


def test_a_counter_that_fell_and_grew_again_before_we_looked_has_grown(tmp_path: Path) -> None:
    put(tmp_path, 40)
    counters = Counters(NODE, tmp_path, [RULE])
    assert counts(counters, 0.0) == []
    put(tmp_path, 2)
    assert counts(counters, 10.0) == [("dram.uncorrected", 2)]


def test_what_grew_while_the_agent_was_away_is_told_by_the_next_run_once(tmp_path: Path) -> None:
    put(tmp_path, 3)
    first = Counters(NODE, tmp_path, [RULE], kept(tmp_path))
    assert counts(first, 0.0) == []
    put(tmp_path, 5)
    assert counts(first, 10.0) == [("dram.uncorrected", 2)]
    put(tmp_path, 9)
    assert counts(Counters(NODE, tmp_path, [RULE], kept(tmp_path)), 500.0) == [("dram.uncorrected", 4)]
    assert counts(Counters(NODE, tmp_path, [RULE], kept(tmp_path)), 600.0) == []


def test_after_a_reboot_nothing_is_remembered(tmp_path: Path) -> None:
    put(tmp_path, 3)
    counts(Counters(NODE, tmp_path, [RULE], kept(tmp_path)), 0.0)
    put(tmp_path, 9)
    assert counts(Counters(NODE, tmp_path, [RULE], kept(tmp_path, "b2")), 500.0) == []
    unknown = kept(tmp_path, "")
    assert counts(Counters(NODE, tmp_path, [RULE], unknown), 500.0) == []


def test_growth_that_did_not_reach_the_outbox_is_told_again(tmp_path: Path) -> None:
    put(tmp_path, 3)
    counts(Counters(NODE, tmp_path, [RULE], kept(tmp_path)), 0.0)
    put(tmp_path, 4)
    assert len(Counters(NODE, tmp_path, [RULE], kept(tmp_path)).look(10.0)) == 1  # killed before it was put in
    assert counts(Counters(NODE, tmp_path, [RULE], kept(tmp_path)), 20.0) == [("dram.uncorrected", 1)]


def test_growth_that_no_disk_has_taken_is_not_remembered_as_told(tmp_path: Path) -> None:
    put(tmp_path, 3)
    counts(Counters(NODE, tmp_path, [RULE], kept(tmp_path)), 0.0)
    put(tmp_path, 4)
    (tmp_path / "spool").write_text("no directory")
    voice = AgentIdentity(node=NODE, incarnation=Incarnation(instance_id="i", boot_id="b1"), agent_run="r1")
    for witness in (True, False):
        box = Outbox(tmp_path / "spool", voice)
        counters = Counters(NODE, tmp_path, [RULE], kept(tmp_path))
        probe = Probe("counters", counters.look, 10.0, witness=witness, told=counters.told)
        senses = Watermarks([probe], box)
        Loop([probe], senses, box, Watches(), dict, lambda _: None)._try(probe, 10.0)
        assert not box.empty
        box.close()  # killed
    assert counts(Counters(NODE, tmp_path, [RULE], kept(tmp_path)), 20.0) == [("dram.uncorrected", 1)]


def test_a_device_that_was_away_comes_back_with_its_errors(tmp_path: Path) -> None:
    put(tmp_path, 3)
    counters = Counters(NODE, tmp_path, [RULE])
    counts(counters, 0.0)
    (tmp_path / "dev/mc0/errors").unlink()
    assert counts(counters, 700.0) == []
    put(tmp_path, 5)
    assert counts(counters, 1400.0) == [("dram.uncorrected", 2)]


@pytest.mark.parametrize("text", ["-1", 2**32 - 1, 2**64 - 1, "0xffffffff", 10**30, 4 * 10**9])
def test_a_file_that_cannot_be_a_count_is_told_once_and_never_counted(tmp_path: Path, text: object) -> None:
    put(tmp_path, 3)
    counters = Counters(NODE, tmp_path, [RULE])
    counts(counters, 0.0)
    put(tmp_path, text)
    assert counts(counters, 10.0) == [("probe.failed", 1)]
    assert counts(counters, 20.0) == []
    put(tmp_path, 4)
    assert counts(counters, 30.0) == [("dram.uncorrected", 1)]


def test_a_dead_card_with_many_counters_is_told_in_one_line(tmp_path: Path) -> None:
    for number in range(50):
        put(tmp_path, 0, f"mc{number}")
    counters = Counters(NODE, tmp_path, [RULE])
    counts(counters, 0.0)
    for number in range(50):
        put(tmp_path, 2**64 - 1, f"mc{number}")
    (item,) = counters.look(10.0)
    assert isinstance(item.news, Observed)
    assert "and 47 more" in item.news.text


def test_a_rate_over_a_long_gap_is_judged_as_if_it_had_been_even(tmp_path: Path) -> None:
    rule = CounterRule(under="dev/*", name="errors", code="net.errors", grown_by=100, within=600, at_start=False)
    put(tmp_path, 0)
    counts(Counters(NODE, tmp_path, [rule], kept(tmp_path)), 0.0)
    put(tmp_path, 500)
    assert counts(Counters(NODE, tmp_path, [rule], kept(tmp_path)), 86400.0) == []
    put(tmp_path, 500)
    first = Counters(NODE, tmp_path, [rule], kept(tmp_path))
    counts(first, 86410.0)
    put(tmp_path, 90_000)
    assert counts(Counters(NODE, tmp_path, [rule], kept(tmp_path)), 2 * 86400.0)[0][0] == "net.errors"
