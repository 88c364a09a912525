"""What the whole agent did on a real H200 (tests/gpu/test_agent_on_gpu.py), replayed and held to its goals."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sickbay.agent.nvml.pci import address
from sickbay.agent.nvml.wire import Happened
from sickbay.agent.probes.dedup import Deduplicator
from sickbay.agent.probes.gpus import YIELD, Gpus
from sickbay.agent.probes.kernel_log import KernelLog
from sickbay.agent.probes.kmsg import Kmsg, KmsgPlace
from sickbay.knowledge.load import load_tables
from sickbay.model.facts import Checked, Observed
from sickbay.model.fault import Remedy
from sickbay.model.fleet import NodeId
from sickbay.model.protocol import Item
from sickbay.signs.classify import classify

H200 = Path(__file__).parent.parent / "fixtures/h200"
NODE = NodeId("gpu/here")
BEFORE = 357  # the number of the last record before the recording
Told = tuple[str, str, int, str]


def recorded(name: str) -> Any:
    return json.loads((H200 / name).read_text(encoding="utf-8"))


KMSG = recorded("agent-kmsg.json")
RECORDS: list[str] = KMSG["records"]
FIGURES = recorded("agent-figures.json")


def stamp(record: str) -> float:
    return int(record.split(",")[2]) / 1e6


def device_at(pci: str) -> int | None:
    return 0 if address(pci) == address(KMSG["pci"]) else None


class Replay:
    """An agent's kernel log over these records, each read when it was printed."""

    def __init__(
        self,
        records: Sequence[str],
        place: KmsgPlace | None = None,
        sums: Deduplicator | None = None,
        *,
        trusted: bool = True,
    ) -> None:
        self._waiting: list[bytes] = []
        self._records = records
        self._sums = sums or Deduplicator()
        kmsg = Kmsg(NODE, place or KmsgPlace(boot_id="b", seq=BEFORE), Path("/dev/null"), self._read, trusted=trusted)
        self._log = KernelLog([kmsg], NODE, device_at, self._sums)

    def _read(self, handle: int, size: int) -> bytes:  # noqa: ARG002 - as os.read
        if not self._waiting:
            raise BlockingIOError
        return self._waiting.pop(0)

    def run(self) -> Iterable[Item]:
        now = 0.0
        for record in self._records:
            if stamp(record) - now > 1.0:
                yield from self._log.look(now + 1.0)
            now = stamp(record)
            self._waiting.append(record.encode())
            yield from self._log.look(now)

    def end(self) -> tuple[list[Item], KmsgPlace]:
        """As an agent ends that is told to: what was held back is told, and the place is kept."""
        last = self._log.flush(0.0)
        place = self._log.places["devkmsg"]
        self._log.close()
        assert isinstance(place, KmsgPlace)
        return last, place


def replayed(records: Sequence[str]) -> list[Observed]:
    replay = Replay(records)
    items = [*replay.run(), *replay.end()[0]]
    return [item.news for item in items if isinstance(item.news, Observed)]


def told(items: Iterable[Item]) -> Counter[Told]:
    found: Counter[Told] = Counter()
    for item in items:
        assert isinstance(item.news, Observed)
        found[item.news.kind, json.dumps(item.news.fields, sort_keys=True), item.news.count, item.news.text] += 1
    return found


def test_the_records_of_a_real_machine_give_exactly_what_its_agent_told() -> None:
    replay = Replay(RECORDS)
    found = told(replay.run())
    last, _ = replay.end()
    assert last == []
    there = Counter(
        (one["kind"], json.dumps(one["fields"], sort_keys=True), one["count"], one["text"]) for one in KMSG["observed"]
    )
    # How many lines of a burst fall into one second is a matter of milliseconds: there the sum must agree.
    bursts = {(key[0], json.loads(key[1]).get("number")) for key in (found | there) if key[2] > 2}

    def split(told: Counter[Told]) -> tuple[int, Counter[Told]]:
        burst = Counter({key: n for key, n in told.items() if (key[0], json.loads(key[1]).get("number")) in bursts})
        return sum(key[2] * n for key, n in burst.items()), told - burst

    assert split(found) == split(there)
    assert split(found)[0] > 900


def test_a_fault_that_every_core_meets_is_a_handful_of_observations() -> None:
    thirteen = [news for news in replayed(RECORDS) if news.fields.get("number") == 13]
    assert sum(news.count for news in thirteen) == sum("): 13," in record for record in RECORDS) == 905
    assert len(thirteen) <= 8


def test_faults_of_programs_never_disturb_the_node() -> None:
    tables = load_tables()
    real = [one for one in RECORDS if one.split(";")[0].endswith(",c")]  # the driver's own, not those that were written
    faults = [classify(news, tables) for news in replayed(real)]
    assert {fault.code for fault in faults if fault} == {"xid.13", "xid.31", "xid.43"}
    assert {fault.remedy for fault in faults if fault} <= {Remedy.RESTART_JOB, Remedy.NONE}


def test_a_foreign_address_has_no_device_and_the_own_one_has() -> None:
    news = replayed(RECORDS)
    assert {one.fields.get("device") for one in news if one.fields["pci"] == KMSG["pci"]} == {0}
    assert {one.fields.get("device") for one in news if one.fields["pci"] != KMSG["pci"]} == {None}


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(st.lists(st.integers(0, len(RECORDS)), max_size=4).map(sorted))
def test_wherever_the_agent_is_restarted_every_line_is_told_once(ends: list[int]) -> None:
    place, items = KmsgPlace(boot_id="b", seq=BEFORE), list[Item]()
    for end in [*ends, len(RECORDS)]:
        replay = Replay(RECORDS[:end], place)  # it reads the ring from its start each time
        items.extend(replay.run())
        last, place = replay.end()
        items.extend(last)
    counted: Counter[Any] = Counter()
    for item in items:
        assert isinstance(item.news, Observed)
        counted[item.news.fields["number"], item.news.fields["pci"]] += item.news.count
    written = Counter(
        (int(record.partition("): ")[2].partition(",")[0]), record.partition("PCI:")[2].partition(")")[0])
        for record in RECORDS
        if "Xid" in record
    )
    assert counted == written


def test_what_a_user_without_rights_put_into_the_ring_of_a_real_machine_disturbs_nothing() -> None:
    """tests/gpu/test_forged_on_gpu.py: names of processes, files, groups and mount options that read like faults."""
    tables, forged = load_tables(), recorded("forged-kmsg.json")
    assert {"crash", "trap", "crash_in", "packets", "interface", "mount", "memory", "on_gpu"} == forged["worked"].keys()
    assert all(record.partition(",")[0] in "34567" for record in forged["records"])  # all of the kernel's own facility
    replay = Replay(forged["records"], KmsgPlace(boot_id="b", seq=BEFORE), trusted=False)
    news = [item.news for item in (*replay.run(), *replay.end()[0]) if isinstance(item.news, Observed)]
    faults = [fault for one in news if (fault := classify(one, tables)) is not None]
    assert [fault.evidence for fault in faults if fault.remedy.disrupts] == []
    real = Counter(one.fields["number"] for one in news for _ in range(one.count) if one.kind == "xid")
    # Only what bad kernels really did on the GPU, each with its own number, whatever the program called itself.
    assert real == Counter(
        int(record.partition("): ")[2].partition(",")[0])
        for record in forged["records"]
        if record.partition(";")[2].startswith("NVRM: Xid (PCI:0000:00:06): ")
    )
    assert set(real) == {13, 31}


@pytest.mark.parametrize("kind", ["misaligned", "illegal", "trap"])
def test_nvmls_word_of_an_xid_adds_nothing_to_the_kernels(tmp_path: Path, kind: str) -> None:
    seen = recorded(f"xid-{kind}.json")
    sums = Deduplicator()
    gpus = Gpus(_Says(seen["events"]), NODE, tmp_path / "gpus.json", machine=tmp_path, sums=sums)  # type: ignore[arg-type]
    first = stamp(seen["kmsg"][0])
    replay = Replay(seen["kmsg"], KmsgPlace(boot_id="b", seq=int(seen["kmsg"][0].split(",")[1]) - 1), sums)
    assert gpus.tell_events(first) == []  # it waits
    items = list(replay.run())
    assert items
    assert gpus.tell_events(first + YIELD + 1) == []
    replay.end()


class _Says:
    """NVML's events, and nothing else of it."""

    def __init__(self, events: list[Any]) -> None:
        self._events = [msgspec.convert(one, Happened) for one in events]

    def events(self) -> list[Happened]:
        found, self._events = self._events, []
        return found


# --- what the agent cost and did there


def test_the_goals_were_met_on_the_real_machine() -> None:
    assert FIGURES["kernel_line_to_controller_ms"]["p99"] < 10
    assert FIGURES["agent"]["memory_kib"]["rss"] < 30 * 1024
    assert FIGURES["agent"]["core_share"] + FIGURES["nvml_child"]["core_share"] < 0.001
    for loop in FIGURES["training"].values():
        assert loop["lost"] < 2 * loop["noise"]  # below noise
        assert loop["ratio_spread"] < 2 * loop["spread_between_equal_turns"]


def test_a_sound_gpu_had_nothing_wrong_and_a_used_one_was_left_alone() -> None:
    assert recorded("agent-once.json")["exit"] == 0
    assert recorded("agent-once.json")["rows"] == []
    checked = msgspec.convert(recorded("agent-check.json"), Checked)
    assert (checked.verdict, {test.verdict for test in checked.tests}) == ("pass", {"pass"})
    refused = recorded("agent-refused.json")
    assert "is used by pid" in refused["check"]
    assert refused["reset"].endswith("has /dev/nvidia0")
