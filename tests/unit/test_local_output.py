"""What a rank writes can be read again, whatever was rotated, cut or lost meanwhile."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sickbay.agent.ranks.output import A_TURN, TAIL, Capture, end_of_output, read_output


@contextmanager
def capturing(run_dir: Path, *, part: int = 1000, keep: int = 4) -> Iterator[Capture]:
    capture = Capture(run_dir, part=part, keep=keep)
    try:
        yield capture
    finally:
        capture.finish()


def all_of(run_dir: Path, after: int = 0, limit: int = 100) -> str:
    text = ""
    while True:
        piece, after = read_output(run_dir, after, limit, final=True)
        if not piece:
            return text
        text += piece


def test_what_was_written_is_read(tmp_path: Path) -> None:
    with capturing(tmp_path) as capture:
        capture.write(b"one\ntwo\n")
        assert read_output(tmp_path) == ("one\ntwo\n", 8)
        assert read_output(tmp_path, 4) == ("two\n", 8)
        assert read_output(tmp_path, 8) == ("", 8)
        capture.write(b"three\n")
        assert read_output(tmp_path, 8) == ("three\n", 14)


def test_nothing_written_is_nothing_read(tmp_path: Path) -> None:
    assert read_output(tmp_path / "nobody") == ("", 0)
    assert end_of_output(tmp_path / "nobody") == 0
    with capturing(tmp_path):
        assert read_output(tmp_path, -10) == ("", 0)


def test_offsets_go_on_across_rotation(tmp_path: Path) -> None:
    written = "".join(f"line {i:06d}\n" for i in range(400))
    with capturing(tmp_path) as capture:
        for start in range(0, len(written), 77):
            capture.write(written[start : start + 77].encode())
    assert end_of_output(tmp_path) == len(written)
    text, after = read_output(tmp_path, 2990, 20)
    assert (text, after) == (written[2990:3010], 3010)
    assert all_of(tmp_path) == f"{written[:996]}… 1008 bytes left out here …\n{written[2004:]}"


def test_only_so_many_parts_are_kept(tmp_path: Path) -> None:
    with capturing(tmp_path, keep=3) as capture:
        for _ in range(50):
            capture.write(b"x" * 500)
    parts = sorted(tmp_path.iterdir())
    assert len(parts) == 3
    assert sum(part.stat().st_size for part in parts) <= 3000


def test_a_reader_who_comes_late_is_told_where_he_is(tmp_path: Path) -> None:
    with capturing(tmp_path, keep=3) as capture:
        capture.write(b"a" * 5000)
    text, after = read_output(tmp_path, 0, 10_000)
    assert (text, after) == ("a" * 1000, 1000)
    text, after = read_output(tmp_path, after, 10_000)
    assert (text, after) == (f"\n… 2000 bytes left out here …\n{2000 * 'a'}", 5000)


def test_head_and_tail_are_kept_and_whole_lines_end_where_something_is_left_out(tmp_path: Path) -> None:
    lines = [f"step {i:07d} loss {i / 7:.5f}\n" for i in range(100_000)]
    with capturing(tmp_path, part=200_000) as capture:
        capture.write("".join(lines).encode())
    shown = all_of(tmp_path, limit=50_000)
    head, note, tail = shown.partition("… 2.")
    size, _, rest = tail.partition("\n")
    assert note
    assert size.endswith(" MB left out here …")
    assert head == "".join(lines)[: len(head)]
    assert 190_000 < len(head) <= 200_000
    assert head.endswith("\n")
    assert "".join(lines).endswith(rest)
    assert rest.splitlines()[0] + "\n" in lines
    assert len(rest) > 400_000
    assert sum(part.stat().st_size for part in tmp_path.iterdir()) <= 800_000


def test_who_follows_too_slowly_is_told_what_he_missed(tmp_path: Path) -> None:
    with capturing(tmp_path) as capture:
        capture.write(b"0123456789abcde\n" * 100)
        _, after = read_output(tmp_path, 0, 1500)
        capture.write(b"0123456789abcde\n" * 400)
        text, _ = read_output(tmp_path, after, 100)
    assert text.startswith("\n… ")
    assert text.splitlines()[2] == "0123456789abcde"


def test_the_end_of_an_output_needs_no_word_about_what_is_left_out(tmp_path: Path) -> None:
    with capturing(tmp_path) as capture:
        capture.write(b"x" * 8000)
    assert "left out" not in read_output(tmp_path, -2500, 10_000)[0]
    assert "left out" not in read_output(tmp_path, -6000, 10_000)[0]


def test_a_negative_offset_counts_from_the_end(tmp_path: Path) -> None:
    with capturing(tmp_path, part=4) as capture:
        capture.write(b"0123456789")
    assert read_output(tmp_path, -4) == ("6789", 10)
    assert read_output(tmp_path, -400) == ("0123456789", 10)


@pytest.mark.parametrize("part", [1, 2, 3, 5, 7, 1000])
def test_never_splits_a_character_between_two_reads(tmp_path: Path, part: int) -> None:
    written = "äß→𝄞é" * 4
    with capturing(tmp_path, part=part, keep=10_000) as capture:
        for byte in written.encode():
            capture.write(bytes([byte]))
    for limit in range(1, 12):
        assert all_of(tmp_path, limit=limit) == written


def test_a_character_that_is_half_there_waits_for_its_other_half(tmp_path: Path) -> None:
    with capturing(tmp_path) as capture:
        capture.write("a→".encode()[:-1])
        assert read_output(tmp_path) == ("a", 1)
        assert read_output(tmp_path, 1) == ("", 1)
        assert read_output(tmp_path, 1, final=True) == ("\N{REPLACEMENT CHARACTER}", 3)
        capture.write("→".encode()[-1:])
        assert read_output(tmp_path, 1) == ("→", 4)


def test_what_is_no_text_is_replaced_and_never_stops_a_reader(tmp_path: Path) -> None:
    data = bytes(range(256)) * 8
    with capturing(tmp_path) as capture:
        capture.write(data)
    text = all_of(tmp_path)
    assert "\N{REPLACEMENT CHARACTER}" in text
    assert text.count("A") == 8


def test_a_crash_between_the_steps_of_a_rotation_loses_nothing(tmp_path: Path) -> None:
    with capturing(tmp_path) as capture:
        capture.write(b"a" * 1500)
    (tmp_path / "output").rename(tmp_path / "output.000000000001000")
    assert end_of_output(tmp_path) == 1500
    assert len(all_of(tmp_path)) == 1500
    with capturing(tmp_path) as capture:
        capture.write(b"b")
    assert read_output(tmp_path, 1499) == ("ab", 1501)


def test_a_reader_beside_a_writer_sees_every_line_once_and_in_order(tmp_path: Path) -> None:
    count = 20_000
    with capturing(tmp_path, part=4096, keep=10_000) as capture:

        def write() -> None:
            for start in range(0, count, 10):
                capture.write("".join(f"{i}\n" for i in range(start, start + 10)).encode())

        writer = threading.Thread(target=write)
        writer.start()
        text, after = "", 0
        while writer.is_alive() or end_of_output(tmp_path) > after:
            piece, after = read_output(tmp_path, after)
            text += piece
        writer.join()
    assert text.split() == [str(i) for i in range(count)]


def test_the_tail_is_the_end_and_begins_with_a_whole_character(tmp_path: Path) -> None:
    with capturing(tmp_path) as capture:
        capture.write(("→" * TAIL).encode() + b"the end")
        assert capture.tail.endswith("→the end")
        assert capture.tail.startswith("→")
        assert TAIL - 4 < len(capture.tail.encode()) <= TAIL


def test_one_turn_takes_no_more_than_its_share(tmp_path: Path) -> None:
    with capturing(tmp_path, part=1 << 20) as capture:
        threading.Thread(target=lambda: os.write(capture.writer, b"x" * (4 * A_TURN)), daemon=True).start()
        sizes: list[int] = []
        while sum(sizes) < 4 * A_TURN:
            before = end_of_output(tmp_path)
            assert capture.turn()
            sizes.append(end_of_output(tmp_path) - before)
        assert max(sizes) <= A_TURN


def test_the_end_takes_what_the_pipe_still_holds(tmp_path: Path) -> None:
    with capturing(tmp_path, part=1 << 20) as capture:
        os.write(capture.writer, b"x" * 60_000 + b"last words\n")
        assert capture.finish().endswith("last words\n")
    assert all_of(tmp_path, limit=1 << 16).endswith("last words\n")


def test_says_what_a_full_disk_has_cost(tmp_path: Path) -> None:
    with capturing(tmp_path, part=10_000) as capture:
        capture.write(b"before\n")
        full = os.open("/dev/full", os.O_WRONLY)
        kept, capture._file = capture._file, full
        try:
            capture.write(b"lost" * 5)
            capture.write(b"lost" * 5)
        finally:
            capture._file = kept
            os.close(full)
        capture.write(b"after\n")
    text = all_of(tmp_path)
    assert text.startswith("before\n")
    assert "40 bytes of output were lost here: No space left on device" in text
    assert text.endswith("after\n")
