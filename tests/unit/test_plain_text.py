"""No sequence that a terminal would obey gets through, whole or in pieces; the text does."""

import pytest

from sickbay.model.plain_text import PlainStream, plain_text

NASTY = [
    ("\x1b[31mred\x1b[0m", "red"),
    ("\x1b]0;title\x07text", "text"),
    ("\x1b]52;c;aGVsbG8=\x1b\\text", "text"),
    ("a\x1b[2J\x1b[Hb", "ab"),
    ("\x1bPq#0;2;0;0;0\x1b\\x", "x"),
    ("\x9b31mx\x9d0;t\x9cy", "xy"),
    ("\x1b(Bx\x1bcy", "xy"),
    ("10%\r20%\r\n30%", "10%\n20%\n30%"),
    ("bell\x07 back\x08 null\x00 del\x7f", "bell back null del"),
    ("\x1b]52;never ended\nnext", "52;never ended\nnext"),
    ("\u202eturned", "turned"),
    ("tab\tand\nline → ä", "tab\tand\nline → ä"),
]


@pytest.mark.parametrize(("wild", "tame"), NASTY)
def test_sequences_are_taken_out_whole(wild: str, tame: str) -> None:
    assert plain_text(wild) == tame


@pytest.mark.parametrize(("wild", "tame"), NASTY)
def test_also_where_they_come_in_pieces(wild: str, tame: str) -> None:
    for at in range(len(wild) + 1):
        stream = PlainStream()
        assert stream.take(wild[:at]) + stream.take(wild[at:]) + stream.end() == tame
    stream = PlainStream()
    assert "".join(map(stream.take, wild)) + stream.end() == tame


def test_a_sequence_that_never_ends_holds_nobody_up() -> None:
    stream = PlainStream()
    wild = "\x1b]0;" + 100_000 * "x"
    assert len(stream.take(wild)) > 90_000
    assert "\x1b" not in stream.take(wild) + stream.end()


@pytest.mark.parametrize("start", ["\x9d", "\x90", "\x9b", "\x1b]", "\x1b[0", "\x9b0;"])
@pytest.mark.parametrize("end", ["", "\n", "x"])
def test_many_sequences_that_never_end_hold_nobody_up_either(start: str, end: str) -> None:
    """Each was looked for to the end of the text: twenty thousand took a second, a megabyte an hour."""
    wild = 200_000 * start + end
    assert not set(plain_text(wild)) & {"\x1b", "\x9d", "\x90", "\x9b"}
    stream = PlainStream()
    assert not set(stream.take(wild) + stream.end()) & {"\x1b", "\x9d", "\x90", "\x9b"}
