"""Texts as people paste them, by their essence: the sick ones named right, and nothing found in the others."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.cases import one_by_one

from sickbay.knowledge.load import load_tables
from sickbay.model.fault import Severity
from sickbay.signs.readers.link_tools import LinkTools
from sickbay.signs.readers.stream import read_stream
from sickbay.signs.symptoms import name_all

CORPUS = Path(__file__).parents[1] / "fixtures" / "corpus"
TABLES = load_tables()


def samples(name: str) -> Iterator[tuple[str, str]]:
    for part in (CORPUS / name).read_text(encoding="utf-8").split("=== ")[1:]:
        title, _, text = part.partition("\n")
        yield title, text


def codes(text: str) -> list[str]:
    found = name_all(read_stream(text.split("\n")), TABLES)
    return [symptom.code for symptom in found if symptom.severity is not Severity.INFO]


@one_by_one(("title", "text"), list(samples("sick.txt")))
def test_a_paste_is_named(title: str, text: str) -> None:
    wanted = title.partition(" | ")[2].split()
    assert wanted
    found = codes(text)
    assert sorted(set(found)) == sorted(wanted)


@pytest.mark.parametrize(("title", "text"), list(samples("well.txt")))
def test_nothing_is_found_where_somebody_only_talks(title: str, text: str) -> None:
    assert title
    assert codes(text) == []


@pytest.mark.parametrize(("title", "text"), list(samples("well.txt")))
def test_no_line_of_a_talk_is_a_finding_by_itself(title: str, text: str) -> None:
    assert title
    assert [line for line in text.split("\n") if codes(line)] == []


def test_a_port_is_named_with_its_adapter() -> None:
    text = dict(samples("sick.txt"))["ibstat | ib.link_down"]
    (found,) = name_all(read_stream(text.split("\n")), TABLES)
    assert (found.line, found.where, found.text) == (5, "port 1, mlx5_10", "mlx5_10 port 1: State: Down")


def test_a_gpu_without_links_is_named_once() -> None:
    text = dict(samples("sick.txt"))["dcgmi nvlink --link-status | nvlink.down"]
    (found,) = name_all(read_stream(text.split("\n")), TABLES)
    assert (found.line, found.where, found.count) == (6, "GPU 0", 1)


LINES = st.lists(
    st.sampled_from(
        [
            "CA 'mlx5_1'", "hca_id: mlx5_2", "Infiniband device 'a' port 1 status:", "Port 1:", "State: Down",
            "state: 1: DOWN", "Link layer: InfiniBand", "|  NvLink Link Status  |", "gpuId 0:", "D U D", "Key: x", "",
        ]
    )
    | st.text(max_size=30)
)  # fmt: skip


@given(LINES)
def test_no_text_makes_the_reader_of_links_raise(lines: list[str]) -> None:
    reader = LinkTools()
    for number, line in enumerate(lines, 1):
        for sign in reader.read(number, line):
            assert sign.line <= number
    for sign in reader.end():
        assert sign.kind in {"ib.link_down", "net.link_down"}


def test_what_the_peers_say_follows_from_an_error_that_no_rule_knows() -> None:
    title = "an error that no rule knows, and what its peers said | job.raised job.nccl_timeout"
    raised, waited = name_all(read_stream(dict(samples("sick.txt"))[title].split("\n")), TABLES)
    assert (raised.code, raised.line, raised.remedy, waited.follows) == ("job.raised", 5, "none", "job.raised")
