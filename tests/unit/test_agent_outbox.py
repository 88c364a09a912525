"""What an agent has to say is kept until it is acknowledged, whatever happens to the agent or its disk."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sickbay.agent.outbox import AT_ONCE, Batch, Outbox, say
from sickbay.agent.spool import Voice
from sickbay.model.facts import Observed, Stepped
from sickbay.model.fleet import Incarnation, JobId, NodeId
from sickbay.model.protocol import Item

NODE = NodeId("c/n1")


def voice(run: str = "r1", boot: str = "b1", **more: float | str) -> Voice:
    me = Incarnation(uid="u", instance_id="i", boot_id=boot)
    return msgspec.convert({"node": NODE, "incarnation": me, "agent_run": run, **more}, Voice, from_attributes=True)


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


def test_items_of_another_boot_of_the_machine_are_put_on_our_clock(tmp_path: Path) -> None:
    old = Outbox(tmp_path, voice("r1", machine_boot="m1", zero=1000.0))
    old.put([line("a", mono=50.0)])  # at wall 1050
    old.close()
    new = Outbox(tmp_path, voice("r2", machine_boot="m2", zero=1100.0))
    batch = new.batch()
    assert batch is not None
    assert msgspec.json.decode(batch.items[0], type=Item).mono == -50.0
    new.close()


def test_a_spool_of_garbage_is_left_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "00-x.jsonl").write_bytes(b"\x00\xff{")
    (tmp_path / "01-x.jsonl").write_bytes(b"")
    box = Outbox(tmp_path, voice())
    assert box.batch() is None
    assert not list(tmp_path.iterdir())
    assert "cannot be read" in capsys.readouterr().err
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
