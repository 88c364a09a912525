"""The fast look misses nothing that the slow one would name."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.cases import one_by_one
from tests.support.kernel_samples import ADDRESSES, ENDS, NOTHING, PREFIXES, WORDS

from sickbay.signs.kernel import parse_line
from sickbay.signs.scanner import Scanner, fewest, lines_of_interest

PATIENT = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
XIDS = [f"NVRM: Xid ({address}): 79{end}" for address in ADDRESSES for end in ENDS]
BODIES = [body for _, body in WORDS] + XIDS + ["nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 24007, Fatal, Link 44 x"]


def found(text: bytes) -> list[bytes]:
    return [text[start:end] for start, end in lines_of_interest(text)]


@one_by_one("prefix", PREFIXES)
def test_no_line_that_would_be_named_is_missed(prefix: str) -> None:
    lines = [prefix + body for body in BODIES]
    named = {line.encode() for line in lines if parse_line(line)}
    assert len(named) > len(BODIES) * 0.9
    assert named <= set(found("\n".join(lines).encode()))


@PATIENT
@given(
    st.lists(st.sampled_from([*BODIES, *(text for text in NOTHING if "\n" not in text), "quiet", ""])),
    st.sampled_from(["\n", "\r\n"]),
)
def test_lines_come_once_in_order_and_whole(lines: list[str], end: str) -> None:
    text = end.join(lines).encode()
    told = found(text)
    whole = [line.encode() for line in lines]
    rest = iter(whole)
    assert all(line in rest for line in told)
    assert sum(parse_line(line.decode()) is not None for line in told) == sum(
        parse_line(line) is not None for line in lines
    )


def test_a_callers_own_literals_are_looked_for() -> None:
    text = b"a\nCUDA out of memory\nb NaN\n"
    assert [text[start:end] for start, end in Scanner(("out of memory", "NaN")).lines(text)] == [
        b"CUDA out of memory",
        b"b NaN",
    ]


def test_a_literal_that_contains_another_is_not_looked_for_twice() -> None:
    assert set(fewest(("NVRM", "NVRM: Xid", "", "mce"))) == {b"NVRM", b"mce"}


@PATIENT
@given(st.binary())
def test_no_bytes_make_it_raise(text: bytes) -> None:
    assert all(0 <= start <= end <= len(text) for start, end in lines_of_interest(text))
