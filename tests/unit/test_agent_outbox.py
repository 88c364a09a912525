"""What an agent has to say is kept until it is acknowledged, whatever happens to the agent or its disk."""

import resource
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sickbay.agent.leavings import SOONEST
from sickbay.agent.outbox import Batch, Outbox, say
from sickbay.agent.spool import AT_ONCE, AgentIdentity, Spool, faults_only, read_leftover
from sickbay.model.facts import Observed, Stepped
from sickbay.model.fleet import Incarnation, JobId, NodeId
from sickbay.model.protocol import Item

NODE = NodeId("c/n1")


def voice(run: str = "r1", boot: str = "b1", **more: float | str) -> AgentIdentity:
    me = Incarnation(uid="u", instance_id="i", boot_id=boot)
    return msgspec.convert(
        {"node": NODE, "incarnation": me, "agent_run": run, **more}, AgentIdentity, from_attributes=True
    )


def line(text: str, mono: float = 1.0) -> Item:
    return say(Observed(node=NODE, kind="xid", text=text), mono)


def step(number: int) -> Item:
    return say(Stepped(job=JobId("j"), attempt=1, step=number), 1.0)


def texts(batch: Batch | None) -> list[str]:
    found = [] if batch is None else [msgspec.json.decode(item, type=Item).news for item in batch.items]
    return [news.text if isinstance(news, Observed) else str(news) for news in found]


def drain(box: Outbox) -> list[tuple[str, int, str]]:
    """Everything, acknowledged as it comes: by which run, under which number."""
    said = []
    while (batch := box.batch()) is not None:
        said += [(batch.voice.agent_run, batch.first + n, text) for n, text in enumerate(texts(batch))]
        box.acknowledge(batch, batch.last)
    return said


@contextmanager
def full_disk() -> Iterator[None]:
    """No file may grow beyond nothing, which is what a full disk amounts to."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_items_are_numbered_and_the_same_batch_comes_until_it_is_acknowledged(tmp_path: Path) -> None:
    box = Outbox(tmp_path, voice())
    box.put([line("a"), line("b")])
    box.put([line("c")])
    batch = box.batch()
    assert batch is not None
    assert batch == box.batch()
    assert (batch.first, batch.last, texts(batch)) == (1, 3, ["a", "b", "c"])
    box.acknowledge(batch, 2)
    assert drain(box) == [("r1", 3, "c")]
    assert box.empty
    assert not list(tmp_path.iterdir())
    box.close()


def test_what_a_killed_run_left_is_said_first_under_its_own_name(tmp_path: Path) -> None:
    old = Outbox(tmp_path, voice("r1"))
    old.put([line("a"), line("b")])
    old.close()
    new = Outbox(tmp_path, voice("r2", "b2"))
    new.put([line("c")])
    batch = new.batch()
    assert batch is not None
    assert (batch.voice.agent_run, batch.voice.incarnation.boot_id) == ("r1", "b1")
    assert drain(new) == [("r1", 1, "a"), ("r1", 2, "b"), ("r2", 1, "c")]
    assert not list(tmp_path.iterdir())
    new.close()


@settings(max_examples=30, deadline=None)
@given(cut=st.integers(0, 400))
def test_a_spool_that_was_cut_anywhere_gives_whole_items_only(
    cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("spool")
    old = Outbox(directory, voice())
    old.put([line("a"), line("b"), line("c")])
    old.close()
    (segment,) = directory.iterdir()
    segment.write_bytes(segment.read_bytes()[:-cut] if cut else segment.read_bytes())
    new = Outbox(directory, voice("r2"))
    said = [text for _, _, text in drain(new)]
    assert said == ["a", "b", "c"][: len(said)]
    assert not list(directory.iterdir())
    new.close()


def test_segments_that_are_acknowledged_go_and_the_others_stay(tmp_path: Path) -> None:
    box = Outbox(tmp_path, voice())
    for n in range(3 * AT_ONCE):
        box.put([line(f"{n} " + 2000 * "x")])
    assert len(list(tmp_path.iterdir())) > 2
    before = len(list(tmp_path.iterdir()))
    batch = box.batch()
    assert batch is not None
    assert len(batch.items) < 3 * AT_ONCE
    while box._entries[0].seq < 2 * AT_ONCE:
        batch = box.batch()
        assert batch is not None
        box.acknowledge(batch, batch.last)
    assert len(list(tmp_path.iterdir())) < before
    left = drain(Outbox(tmp_path, voice("r2")))
    assert left[-1][1] == 3 * AT_ONCE
    box.close()


def test_beyond_the_limit_old_steps_go_first_and_it_is_said(tmp_path: Path) -> None:
    box = Outbox(tmp_path, voice(), most_items=100)
    box.put([line("fault")])
    for n in range(100):
        box.put([step(n)])
    said = drain(box)
    assert said[0] == ("r1", 1, "fault")
    assert said[-1][2] == "11 reports had no room in the spool"
    assert "step=99" in said[-2][2]
    assert not any("step=10," in text for _, _, text in said)
    box.close()


def test_beyond_the_limit_the_oldest_go_when_nothing_else_is_left(tmp_path: Path) -> None:
    box = Outbox(tmp_path, voice(), most_bytes=10_000)
    for n in range(100):
        box.put([line(f"{n} " + 200 * "x")])
    said = [text for _, _, text in drain(box)]
    assert said[-2].startswith("99 ") or said[-1].startswith("99 ")
    assert not any(text.startswith("0 ") for text in said)
    assert any("had no room" in text for text in said)
    box.close()


def test_a_dropped_item_is_not_said_by_the_next_run_and_gaps_split_reports(tmp_path: Path) -> None:
    box = Outbox(tmp_path, voice(), most_items=10)
    box.put([line("first")])
    for n in range(10):
        box.put([step(n)])
    batch = box.batch()
    assert texts(batch) == ["first"]
    box.close()
    said = drain(Outbox(tmp_path, voice("r2")))
    assert [seq for _, seq, _ in said] == [1, *range(4, 13)]


def test_a_full_disk_neither_stops_the_agent_nor_goes_unsaid(tmp_path: Path) -> None:
    box = Outbox(tmp_path, voice())
    with full_disk():
        box.put([line("a")])
        box.put([line("b")])
        assert [text.split(":")[0] for text in texts(box.batch())] == ["a", "reports are kept in memory only", "b"]
    box.put([line("c")])  # now all of it is on disk
    box.close()
    assert [text[:1] for _, _, text in drain(Outbox(tmp_path, voice("r2")))] == ["a", "r", "b", "c"]


def test_a_full_disk_does_not_keep_what_was_acknowledged(tmp_path: Path) -> None:
    box = Outbox(tmp_path, voice())
    box.put([line("a")])
    with full_disk():
        box.put([line("b")])
        drain(box)
    assert box.empty
    box.put([line("c")])
    assert [(seq, text) for _, seq, text in drain(box)] == [(4, "c")]
    assert not list(tmp_path.iterdir())
    box.close()


def test_what_a_full_disk_did_not_take_is_saved_when_there_is_room_though_nothing_more_is_said(tmp_path: Path) -> None:
    box = Outbox(tmp_path, voice())
    with full_disk():
        box.put([line("a")])
    box.keep({})  # as each second
    box.close()
    assert drain(Outbox(tmp_path, voice("r2")))[0] == ("r1", 1, "a")


def test_items_of_another_boot_of_the_machine_are_put_on_our_clock(tmp_path: Path) -> None:
    old = Outbox(tmp_path, voice("r1", machine_boot="m1", zero=1000.0))
    old.put([line("a", mono=50.0)])  # at wall 1050
    old.close()
    new = Outbox(tmp_path, voice("r2", machine_boot="m2", zero=1100.0))
    batch = new.batch()
    assert batch is not None
    assert msgspec.json.decode(batch.items[0], type=Item).mono == -50.0
    new.close()


def test_a_spool_of_garbage_is_put_aside_and_that_is_said(tmp_path: Path) -> None:
    for n in range(12):
        (tmp_path / f"{n:02d}-x.jsonl").write_bytes(b"\x00\xff{\n")
    (tmp_path / "99-x.jsonl").write_bytes(b"")  # of a run that died over its first word
    box = Outbox(tmp_path, voice())
    said = [text for _, _, text in drain(box)]
    assert len(said) == 12
    assert all("put aside" in text for text in said)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{n:02d}-x.aside" for n in range(4, 12)]
    box.close()


def test_what_another_node_left_is_put_aside_as_nobody_would_take_it_from_us(tmp_path: Path) -> None:
    other = msgspec.structs.replace(voice("r1"), node=NodeId("c/other"))
    old = Outbox(tmp_path, other)
    old.put([line("a")])
    old.close()
    box = Outbox(tmp_path, voice("r2"))
    box.put([line("b")])
    said = drain(box)
    assert [run for run, _, _ in said] == ["r2", "r2"]
    assert any("c/other" in text and "put aside" in text for _, _, text in said)
    box.close()


def test_a_segment_that_cannot_be_read_now_is_kept_tried_again_and_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = Outbox(tmp_path, voice("r1"))
    old.put([line("a")])
    old.close()
    box = Outbox(tmp_path, voice("r2"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))  # this process has all descriptors that it may have
    try:
        said = drain(box) + drain(box)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert [text for _, _, text in said if "cannot be read" in text] == [
        text for _, _, text in said if "memory" not in text
    ]
    assert len([text for _, _, text in said if "cannot be read" in text]) == 1
    assert box.empty  # nobody turns in circles over it
    now = time.monotonic()
    monkeypatch.setattr("sickbay.agent.leavings.time.monotonic", lambda: now + SOONEST + 1)
    assert ("r1", 1, "a") in drain(box)
    assert not list(tmp_path.iterdir())
    box.close()


def test_a_line_of_the_spool_that_is_damaged_is_said_and_the_others_are_told(tmp_path: Path) -> None:
    old = Outbox(tmp_path, voice("r1"))
    for text in "abc":
        old.put([line(text)])
    old.close()
    (segment,) = tmp_path.iterdir()
    segment.write_bytes(segment.read_bytes().replace(b'"b"', b"\xff\xff\xff"))
    said = [text for _, _, text in drain(Outbox(tmp_path, voice("r2")))]
    assert said[:2] == ["a", "c"]
    assert "1 lines of" in said[2]


def test_a_segment_that_an_older_agent_wrote_is_told(tmp_path: Path) -> None:
    head = msgspec.json.encode(voice("r1"))
    lines = [msgspec.json.encode(msgspec.structs.replace(line(text), seq=n)) for n, text in ((1, "a"), (2, "b"))]
    (tmp_path / "00000000000000000001-r1-00000001.jsonl").write_bytes(b"\n".join([head, *lines, b""]))
    assert [text for _, _, text in drain(Outbox(tmp_path, voice("r2")))] == ["a", "b"]


@pytest.mark.slow
def test_ten_thousand_segments_of_earlier_runs_are_told_and_go(tmp_path: Path) -> None:
    head, item = msgspec.json.encode(voice("r1")), msgspec.json.encode(msgspec.structs.replace(line("a"), seq=1))
    for n in range(10_000):
        (tmp_path / f"{n:020d}-r{n}-00000001.jsonl").write_bytes(head + b"\n" + item + b"\n")
    began = time.monotonic()
    box = Outbox(tmp_path, voice("r2"), most_bytes=1 << 20)
    assert time.monotonic() - began < 20
    said = drain(box)
    assert len(said) > 1000
    assert "had no room" in said[-1][2]
    assert not list(tmp_path.iterdir())
    box.close()


def test_what_may_have_reached_the_controller_is_not_added_to_another(tmp_path: Path) -> None:
    box = Outbox(tmp_path, voice(), most_items=10)
    box.put([line("same")])
    batch = box.batch()  # it is stored, and the answer is lost
    assert batch is not None
    box.put([line("same") for _ in range(30)])
    counts = {1: 1}
    while (batch := box.batch()) is not None:
        for raw in batch.items:
            item = msgspec.json.decode(raw, type=Item)
            if isinstance(item.news, Observed) and item.news.kind == "xid":
                counts.setdefault(item.seq, item.news.count)
        box.acknowledge(batch, batch.last)
    assert sum(counts.values()) == 31
    box.close()


def test_a_rewritten_spool_stands_instead_of_what_it_replaced_though_the_agent_dies_over_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = Outbox(tmp_path, voice("r1"), most_items=10)
    monkeypatch.setattr("sickbay.agent.spool._remove", lambda _: None)  # killed before anything old was removed
    for _ in range(30):
        box.put([line("same")])
    box.close()
    monkeypatch.undo()
    box = Outbox(tmp_path, voice("r2"))
    counts = 0
    while (batch := box.batch()) is not None:
        for raw in batch.items:
            item = msgspec.json.decode(raw, type=Item)
            if isinstance(item.news, Observed) and item.news.kind == "xid":
                counts += item.news.count
        box.acknowledge(batch, batch.last)
    assert counts == 30
    box.close()


def test_a_disk_that_is_gone_for_a_day_does_not_fill_the_memory(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.write_text("no directory")
    box = Outbox(gone, voice(), most_items=5000, most_bytes=10_000_000)
    began = time.process_time()
    for n in range(20_000):
        box.put([line(f"{n % 50}")])
    assert time.process_time() - began < 10  # not in proportion to the square
    assert len(box._entries) <= 5001
    assert sum(len(entry.line) for entry in box._entries) <= 10_000_000
    counts = sum(
        item.news.count
        for entry in box._entries
        if isinstance((item := msgspec.json.decode(entry.line, type=Item)).news, Observed) and item.news.kind == "xid"
    )
    assert counts == 20_000
    box.close()


def test_earlier_runs_share_the_limit(tmp_path: Path) -> None:
    for run in ("r1", "r2", "r3"):
        box = Outbox(tmp_path, voice(run), most_bytes=1 << 20)
        box.put([line(f"{run} " + 3000 * "x")])
        box.close()
    box = Outbox(tmp_path, voice("r4"), most_bytes=7000)
    said = drain(box)
    assert [run for run, _, _ in said] == ["r2", "r3", "r4"]
    assert "had no room" in said[-1][2]
    box.close()


def xid(number: int, *, at: int = 0, unconfirmed: bool = False) -> Item:
    fields: dict[str, str | int] = {"number": number, "pci": "0000:18:00", "at": at}
    return say(Observed(node=NODE, kind="xid", fields=fields, unconfirmed=unconfirmed), 1.0)


def counted(said: Sequence[bytes]) -> Counter[bool]:
    """How many are confirmed, and how many are not."""
    found: Counter[bool] = Counter()
    for raw in said:
        news = msgspec.json.decode(raw, type=Item).news
        if isinstance(news, Observed) and news.kind == "xid":
            found[news.unconfirmed] += news.count
    return found


@pytest.mark.parametrize("last", [True, False])
def test_what_no_witness_tells_is_not_added_to_a_fault_nor_a_fault_to_it(tmp_path: Path, *, last: bool) -> None:
    box = Outbox(tmp_path, voice(), most_items=10)
    box.put([xid(79, at=n, unconfirmed=(n % 2 == 0) is last) for n in range(31)])
    said: list[bytes] = []
    while (batch := box.batch()) is not None:
        said += batch.items
        box.acknowledge(batch, batch.last)
    assert len(said) < 15
    assert counted(said) == {last: 16, not last: 15}
    box.close()


def test_what_an_earlier_run_may_have_told_is_not_added_to_another(tmp_path: Path) -> None:
    box = Outbox(tmp_path, voice("r1"))
    box.put([line("same") for _ in range(40)])
    box.put([step(n) for n in range(200)])
    batch = box.batch()
    assert batch is not None
    stored = {(batch.voice.agent_run, batch.first + n): item for n, item in enumerate(batch.items[:30])}
    box.close()  # killed: the controller has the first thirty

    box = Outbox(tmp_path, voice("r2"), most_bytes=12_000)
    while (batch := box.batch()) is not None:
        for n, item in enumerate(batch.items):
            stored.setdefault((batch.voice.agent_run, batch.first + n), item)
        box.acknowledge(batch, batch.last)
    assert counted(list(stored.values())) == {False: 40}
    box.close()


def test_nor_what_one_report_may_hold_of_its_younger_segments(tmp_path: Path) -> None:
    for run, first in (("r1", 10), ("r1", 2000)):
        box = Spool(tmp_path, voice(run))
        box._stem = "r1"
        box._count = first
        items = [msgspec.json.encode(replace(line("same"), seq=first + n)) for n in range(1000)]
        box.append(items, first, first + 999)
        box.close()
    told: dict[str, int] = {}
    for path in sorted(tmp_path.iterdir()):
        faults_only(path, voice("r2"), told)
    left = [read_leftover(path, voice("r2")) for path in sorted(tmp_path.iterdir())]
    counts = [[item.news.count for item in found.items if isinstance(item.news, Observed)] for found in left if found]
    assert told == {"r1": 1009 + AT_ONCE}
    assert counts == [1000 * [1], [1000]]
    faults_only(min(tmp_path.iterdir()), voice("r2"), {"r1": 500})
    found = read_leftover(min(tmp_path.iterdir()), voice("r2"))
    assert found is not None
    assert [item.seq for item in found.items] == [*range(10, 501), 1009]
    assert counted([msgspec.json.encode(item) for item in found.items]) == {False: 1000}
