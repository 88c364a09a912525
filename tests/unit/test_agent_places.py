"""How far each log was read is kept for the next run, under the log's own name, whatever the disk does."""

import os
from itertools import pairwise
from pathlib import Path

import msgspec

from sickbay.agent.outbox import Outbox, say
from sickbay.agent.places import FILE, SLOT, Places
from sickbay.agent.probes.kernel_log import LogPlace
from sickbay.agent.spool import AgentIdentity
from sickbay.model.facts import Observed
from sickbay.model.fleet import Incarnation, NodeId


def place(offset: int) -> LogPlace:
    return LogPlace(boot_id="b", offset=offset, inode=7, tail=b"x")


def test_two_logs_whose_names_look_alike_have_places_of_their_own(tmp_path: Path) -> None:
    places = Places(tmp_path)
    places.mark({"text:/x/gpu/kern": place(1), "text:/x/gpu-kern": place(2)})
    places.keep()
    places.close()
    again = Places(tmp_path)
    assert [again.of(f"text:/x/{name}", LogPlace) for name in ("gpu/kern", "gpu-kern")] == [place(1), place(2)]


def test_places_that_an_earlier_agent_kept_are_taken_over(tmp_path: Path) -> None:
    old = {"boot_id": "b", "offset": 5, "generation": 1, "inode": 7, "tail": "eA=="}
    (tmp_path / "text-var-log-messages.json").write_bytes(msgspec.json.encode(old))
    found = Places(tmp_path).of("text:/var/log/messages", LogPlace)
    assert found is not None
    assert (found.offset, found.generation, found.inode, found.tail) == (5, 1, 7, b"x")


def test_a_source_that_is_not_read_now_keeps_its_place(tmp_path: Path) -> None:
    places = Places(tmp_path)
    places.mark({"a": place(1), "b": place(2)})
    places.mark({"b": place(3)})
    places.keep()
    places.close()
    again = Places(tmp_path)
    assert (again.of("a", LogPlace), again.of("b", LogPlace)) == (place(1), place(3))


def test_a_place_that_is_not_needed_any_more_goes(tmp_path: Path) -> None:
    places = Places(tmp_path)
    places.mark({"a": place(1), "b": place(2)})
    places.mark({"a": None, "b": place(2)})
    places.keep()
    places.close()
    again = Places(tmp_path)
    assert (again.of("a", LogPlace), again.of("b", LogPlace)) == (None, place(2))


def test_places_that_have_not_moved_take_no_room_in_the_spool_again(tmp_path: Path) -> None:
    voice = AgentIdentity(node=NodeId("c/n"), incarnation=Incarnation(instance_id="i", boot_id="b"), agent_run="r")
    box = Outbox(tmp_path / "spool", voice, Places(tmp_path))
    news = [say(Observed(node=voice.node, kind="xid", text="x"))]
    sizes = []
    for offset in (1, 1, 1, 2):
        box.put(news, {"a": place(offset)})
        sizes.append(sum(path.stat().st_size for path in (tmp_path / "spool").iterdir()))
    box.close()
    grown = [after - before for before, after in pairwise(sizes)]
    assert grown[0] == grown[1] < grown[2]
    newest = Places(tmp_path).of("a", LogPlace)
    assert newest == place(2)


def test_half_a_place_over_another_is_not_taken_for_one(tmp_path: Path) -> None:
    places = Places(tmp_path)
    for offset in (111, 222):
        places.mark({"a": place(offset), "b": place(offset)})
        places.keep()
    before = (tmp_path / FILE).read_bytes()
    places.mark({"a": place(333), "b": place(333)})
    places.keep()
    places.close()
    after = (tmp_path / FILE).read_bytes()
    torn = next(at for at in (0, SLOT) if before[at : at + SLOT] != after[at : at + SLOT])
    half = torn + after[torn : torn + SLOT].index(b'"b"')
    (tmp_path / FILE).write_bytes(after[:half] + before[half:])
    again = Places(tmp_path)
    assert (again.of("a", LogPlace), again.of("b", LogPlace)) == (place(222), place(222))


def test_the_next_run_overwrites_the_older_place_first(tmp_path: Path) -> None:
    for offset in range(1, 6):
        places = Places(tmp_path)
        before = (tmp_path / FILE).read_bytes() if offset > 1 else b""
        places.mark({"a": place(offset)})
        places.keep()
        places.close()
        after = (tmp_path / FILE).read_bytes()
        if before:
            torn = next(at for at in (0, SLOT) if before[at : at + SLOT] != after[at : at + SLOT])
            (tmp_path / FILE).write_bytes(after[:torn] + b"x" + after[torn + 1 :])
            assert Places(tmp_path).of("a", LogPlace) == place(offset - 1)
            (tmp_path / FILE).write_bytes(after)


def test_a_file_of_places_that_is_garbage_is_none(tmp_path: Path) -> None:
    for data in (b"", b"\0" * 2 * SLOT, b"{}\n", os.urandom(1000)):
        (tmp_path / FILE).write_bytes(data)
        assert Places(tmp_path).of("a", LogPlace) is None
