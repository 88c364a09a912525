"""What stands before the kernel's words comes off, and tells who spoke and when."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.cases import one_by_one
from tests.support.kernel_samples import PREFIXES

from sickbay.signs.prefixes import Peeled, dated, peel


def local(*parts: int) -> datetime:
    """As a stamp without a zone says it."""
    return datetime(*parts, tzinfo=UTC).replace(tzinfo=None)  # type: ignore[misc,arg-type]


BODY = "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus."
PATIENT = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)


@one_by_one("prefix", PREFIXES)
def test_every_prefix_of_the_field_comes_off(prefix: str) -> None:
    peeled = peel(prefix + BODY + "\r\n")
    assert (peeled.body, peeled.by_kernel) == (BODY, True)


@one_by_one(
    "body",
    ["pcieport 0000:00:01.0: AER: Corrected error", "pt_main_thread[253]: segfault at 7f79", "mce: [Hardware Error]"],
)
@one_by_one("prefix", [one for one in PREFIXES if one not in {"dmesg.txt.log:", "10.0.0.7: "}])
def test_the_words_of_other_drivers_stay_whole(prefix: str, body: str) -> None:
    assert peel(prefix + body).body == body


@pytest.mark.parametrize(
    ("line", "wall"),
    [
        ("[Mon Nov 16 08:00:01 2026] x", local(2026, 11, 16, 8, 0, 1)),
        ("2026-11-16T08:00:00,123456+00:00 x", datetime(2026, 11, 16, 8, 0, 0, 123456, tzinfo=UTC)),
        ("2026-11-16T08:00:00.5-05:00 h kernel: x",
         datetime(2026, 11, 16, 8, 0, 0, 500000, tzinfo=timezone(timedelta(hours=-5)))),
        ("16 nov. 2026 08:00:00 h kernel: x", local(2026, 11, 16, 8)),
        ("2026-11-16 08:00:00 h kernel: x", local(2026, 11, 16, 8)),
        ("1763280000.500000 h kernel: x", datetime(2025, 11, 16, 8, 0, 0, 500000, tzinfo=UTC)),
        ("[   12.5] x", None),
    ],
)  # fmt: skip
def test_the_stamp_is_the_time(line: str, wall: datetime | None) -> None:
    assert peel(line).wall == wall


def test_seconds_sequence_and_level_are_read() -> None:
    peeled = peel("3,1234,5678901,-;x")
    assert peeled == Peeled(body="x", speaker="kernel", mono=5.678901, sequence=1234, level="err")
    assert peel("<4>[   12.5] x").level == "warn"


@pytest.mark.parametrize(
    ("word", "month"),
    [("Nov", 11), ("nov.", 11), ("Dez", 12), ("déc.", 12), ("mär", 3), ("gen", 1), ("ago", 8), ("ene", 1), ("окт", 10),
     ("paź", 10), ("10月", 10), ("3월", 3), ("Ağu", 8), ("lis", 11), ("března", 3)],
)  # fmt: skip
def test_months_are_read_in_many_languages(word: str, month: int) -> None:
    wall = peel(f"{word} 06 08:00:00 host kernel: x").wall
    assert wall is not None
    assert wall.month == month


def test_a_date_without_a_year_is_the_last_one_that_is_not_in_the_future() -> None:
    new_year = datetime(2027, 1, 1, tzinfo=UTC)
    assert dated(peel("Dec 31 23:59:59 h kernel: x"), new_year) == local(2026, 12, 31, 23, 59, 59)
    assert dated(peel("Jan  1 08:00:00 h kernel: x"), new_year) == local(2027, 1, 1, 8)
    assert dated(peel("Feb 29 08:00:00 h kernel: x"), new_year) == local(2024, 2, 29, 8)
    assert dated(peel("2026-11-16T08:00:00Z h kernel: x"), new_year) == datetime(2026, 11, 16, 8, tzinfo=UTC)
    assert dated(peel("x"), new_year) is None


@pytest.mark.parametrize(
    ("line", "speaker"),
    [
        ("Nov 16 08:00:00 h python[123]: x", "python"),
        ("Nov 16 08:00:00 h sshd: x", "sshd"),
        ("[   12.345678] h systemd[1]: x", "systemd"),
        ("<30>1 2026-11-16T08:00:00Z h slurmd 12 - - x", "slurmd"),
        ("Nov 16 08:00:00 h /usr/sbin/cron[1]: x", "cron"),
        ("Nov 16 08:00:00 h kernel: x", "kernel"),
        ("Nov 16 08:00:00 h klogd: x", "kernel"),
        ("[   12.3] x", ""),
        ("x", ""),
    ],
)
def test_the_speaker_is_whoever_the_prefix_names(line: str, speaker: str) -> None:
    peeled = peel(line)
    assert (peeled.speaker, peeled.body) == (speaker, "x")


@PATIENT
@given(st.lists(st.sampled_from(PREFIXES), max_size=6), st.text())
def test_no_pile_of_prefixes_makes_it_raise(prefixes: list[str], text: str) -> None:
    assert isinstance(peel("".join(prefixes) + text).body, str)


@pytest.mark.parametrize(
    "piece", ["[", "a", "1", "Nov ", "a:", "> ", "-", "a/", "é", "1:", "a b ", "[1]", "1,", "<1>", "a-1 ", "\x1b["]
)
def test_no_line_stalls_it(piece: str) -> None:
    text = piece * 5000
    began = datetime.now(UTC)
    for _ in range(20):
        peel(text)
    assert datetime.now(UTC) - began < timedelta(seconds=2)
