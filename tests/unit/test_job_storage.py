"""Whose trouble it is that nodes cannot use a job's storage: theirs, everybody's, or nobody could look."""

from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from sickbay.brain.storage import BLAMED, add_to_tally, in_words, to_blame, verdict_of, without_storage
from sickbay.model.checkup import STORAGE_NAMED, StorageSeen, Verdict
from sickbay.model.fleet import NodeId
from sickbay.model.intent import Intent, Verify

FSX, HOME = "/fsx", "/home"
PASS, FAIL, UNRUN, UNFIT = Verdict.PASS, Verdict.FAIL, Verdict.COULD_NOT_RUN, Verdict.UNFIT
WELL = StorageSeen(path=FSX, verdict=PASS, remote=True)
MISSING = StorageSeen(path=FSX, verdict=FAIL, because="it does not exist")
BARE = StorageSeen(path=FSX, verdict=PASS, empty=True)
EMPTY_EVERYWHERE = StorageSeen(path=FSX, verdict=PASS, remote=True, empty=True)
OWN_DISK = StorageSeen(path=FSX, verdict=PASS)


def seen(verdict: Verdict, path: str = FSX, because: str = "why") -> StorageSeen:
    return StorageSeen(path=path, verdict=verdict, because=because)


@pytest.mark.parametrize(
    ("answers", "verdict", "says"),
    [
        ([seen(PASS)], PASS, ""),
        ([seen(FAIL, because="it does not exist")], UNFIT, "/fsx: it does not exist"),
        ([seen(UNRUN, because="no child")], UNRUN, "/fsx: no child"),
        ([], UNRUN, "/fsx: its agent did not look at it"),  # an older agent does not know what it is asked for
        ([seen(PASS, HOME)], UNRUN, "/fsx: its agent did not look at it"),
        ([seen(Verdict.LOOKED)], UNRUN, "/fsx: why"),  # a word that is no verdict is no proof
    ],
)
def test_what_one_node_says_of_one_directory(answers: list[StorageSeen], verdict: Verdict, says: str) -> None:
    assert verdict_of(answers, (FSX,)) == (verdict, says)


def test_one_directory_that_fails_outweighs_one_that_nobody_could_look_at() -> None:
    assert verdict_of([seen(UNRUN), seen(FAIL, HOME)], (FSX, HOME)) == (UNFIT, "/home: why")
    assert verdict_of([seen(PASS), seen(UNRUN, HOME)], (FSX, HOME)) == (UNRUN, "/home: why")


def gate(*answers: StorageSeen | None) -> Intent:
    """As its nodes have answered, n0, n1 …; None: not yet."""
    nodes = tuple(NodeId(f"c/n{number}") for number in range(len(answers)))
    act = Verify(nodes=nodes, level=0, storage=(FSX,))
    intent = Intent(
        key="k", owner="job:j", cluster="c", pool="c/p", act=act, because="", clock="ingest", call_timeout=1.0,
        patience=1.0, planned_at=datetime(2026, 1, 1, tzinfo=UTC),
    )  # fmt: skip
    for node, answer in zip(nodes, answers, strict=True):
        if answer is not None:
            verdict, why = verdict_of([answer], (FSX,))
            intent = add_to_tally(intent, node, [answer], why)
            intent = replace(intent, verdicts={**intent.verdicts, node: verdict})
    return intent


@pytest.mark.parametrize(
    ("answers", "lacking", "blamed"),
    [
        ([WELL, WELL], [], []),
        ([WELL, MISSING, WELL], [1], [1]),  # a mount that is missing on one node is its own
        ([WELL, MISSING], [1], [1]),
        ([MISSING, MISSING, WELL], [0, 1], []),  # more without than with: hardly theirs
        ([MISSING, MISSING], [0, 1], []),  # a server that is down, or a name that is wrong
        ([MISSING], [0], []),  # of one node alone nobody can tell
        ([MISSING, WELL, None], [0], []),  # not all have answered
        ([WELL, WELL, BARE], [2], [2]),  # the mount point is there, and nothing is mounted on it
        ([BARE, BARE], [], []),  # on one machine, or none has it: nobody can tell
        ([EMPTY_EVERYWHERE, BARE], [], []),  # an empty export: the one with the disk may be its server
        ([WELL, OWN_DISK], [], []),  # its server itself has it on its own disk, with something in it
        ([WELL, seen(UNRUN)], [], []),  # could not look: no storage is missing for that
        ([WELL] * 10 + [MISSING] * BLAMED, [10, 11, 12, 13], [10, 11, 12, 13]),
        ([WELL] * 10 + [MISSING] * (BLAMED + 1), [10, 11, 12, 13, 14], []),
    ],
)
def test_who_lacks_it_and_who_is_to_blame(
    answers: list[StorageSeen | None], lacking: list[int], blamed: list[int]
) -> None:
    asked = gate(*answers)
    assert sorted(without_storage(asked)) == sorted(f"c/n{number}" for number in lacking)
    assert sorted(to_blame(asked)) == sorted(f"c/n{number}" for number in blamed)


def test_a_gate_of_thousands_names_a_few_and_counts_all() -> None:
    asked = gate(*[MISSING] * 2000)
    assert asked.storage is not None
    assert len(asked.storage.unfit) == STORAGE_NAMED
    assert len(without_storage(asked)) == 2000
    assert in_words(without_storage(gate(*[MISSING] * 9))) == (
        "c/n0, c/n1, c/n2, c/n3 and 5 more cannot use /fsx: it does not exist"
    )
