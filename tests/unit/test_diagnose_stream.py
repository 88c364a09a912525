"""Whatever people paste is read in one pass, in bounded memory, and wrappings are taken off."""

import bz2
import gzip
import io
import json
import lzma
import re
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.cases import one_by_one
from tests.support.pattern_words import literals
from tests.support.thorough import THOROUGH, examples

from sickbay.knowledge.load import load_tables
from sickbay.model.errors import BadInput
from sickbay.model.sign import Sign
from sickbay.model.tables import DiagnosisRule
from sickbay.signs.readers.input import BLOCK, LONGEST, SOFT, blocks_of, open_input, whole_lines
from sickbay.signs.readers.json_text import JsonText
from sickbay.signs.readers.sieve import Sieve
from sickbay.signs.readers.stream import TextStream, documents, read_stream
from sickbay.signs.readers.training import TrainingReader
from sickbay.signs.readers.unwrap import Unwrapper
from sickbay.signs.symptoms import name_all

XID = "NVRM: Xid (PCI:0000:b9:00): 79, pid=1234, name=python, GPU has fallen off the bus."
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB."
RULES = load_tables().diagnosis


def signs(text: str) -> list[Sign]:
    return [sign for sign in read_stream(text.splitlines()) if sign.kind != "boot"]


def kinds(text: str) -> list[str]:
    named = {"xid": "number", "sxid": "number", "job": "name"}
    return [f"{s.kind}.{s.fields[named[s.kind]]}" if s.kind in named else s.kind for s in signs(text)]


def of_file(path: Path, small: int = 0) -> tuple[TextStream, list[Sign]]:
    stream = TextStream(RULES)
    with open_input(str(path)) as chunks:
        return stream, list(stream.read(chunks, small=small))


# --- wrappings

WRAPPED = {
    "plain": XID,
    "journald": json.dumps({"MESSAGE": XID, "_TRANSPORT": "kernel", "PRIORITY": "3"}),
    "journald bytes": json.dumps({"MESSAGE": list(XID.encode()), "_TRANSPORT": "kernel", "__CURSOR": "s=1"}),
    "docker": json.dumps({"log": f"[   12.345678] {XID}\n", "stream": "stdout", "time": "2024-01-01T00:00:00.1Z"}),
    "fluent-bit": json.dumps({"date": 1.5, "ident": "kernel", "message": XID}),
    "cloudwatch": json.dumps(
        {"timestamp": 1700000000000, "message": f"Nov 16 08:00:00 n1 kernel: {XID}", "ingestionTime": 1}
    ),
    "google": json.dumps({"textPayload": f"[   12.345678] {XID}", "insertId": "a", "timestamp": "t"}),
    "inside": json.dumps({"log": json.dumps({"message": XID, "level": "error"}), "stream": "stderr"}),
    "cri": f"2024-01-01T00:00:00.123456789Z stdout F [   12.345678] {XID}",
    "kubectl": f"[pod/agent-1/dmesg] [   12.345678] {XID}",
    "quoted": f"> > [   12.345678] {XID}",
    "escaped": f"[   12.345678] {XID.replace('python', '&lt;unknown&gt;')}",
    "coloured": f"\x1b[32m[   12.345678]\x1b[0m \x1b[33m{XID}\x1b[0m",
    "srun -l": f"3: [   12.345678] {XID}",
    "pdsh": f"node-7: [   12.345678] {XID}",
    "mpirun": f"[1,3]<stdout>: {XID}",
    "aws logs": f"EVENTS\t1700000000000\t[   12.345678] {XID}\t1700000000001",
}


@pytest.mark.parametrize("line", WRAPPED.values(), ids=WRAPPED.keys())
def test_the_wrapping_is_taken_off(line: str) -> None:
    assert kinds(line) == ["xid.79"]


@pytest.mark.parametrize(
    "before", ["[rank3]: ", "[default0]:", "3: ", "node-7: ", "(Worker pid=12, ip=10.0.0.1) ", "\x1b[31m", "> "]
)
def test_a_rank_before_an_error_does_not_hide_it(before: str) -> None:
    assert kinds(f"{before}ImportError: No module named 'x'") == ["job.import_error"]


def test_an_export_of_insights_is_read_by_its_message_column() -> None:
    assert kinds(f'@timestamp,@message\n2024-01-01 00:00:00.000,"[   12.345678] {XID}"\n') == ["xid.79"]


def test_a_fence_is_no_line_and_what_stands_in_it_is() -> None:
    assert kinds(f"It stopped:\n```console\n[   12.345678] {XID}\n```\nAny idea?") == ["xid.79"]


def test_a_message_of_several_lines_keeps_the_number_of_its_record() -> None:
    record = json.dumps({"log": f"ok\n[   12.345678] {XID}\n", "stream": "stdout"})
    assert [sign.line for sign in signs(f"x\n{record}")] == [2]


def test_the_evidence_is_the_line_as_it_stands_in_the_text() -> None:
    assert signs("[rank3]: ImportError: No module named 'x'")[0].text == "[rank3]: ImportError: No module named 'x'"


@given(st.text(max_size=300))
def test_no_line_breaks_the_unwrapper(line: str) -> None:
    assert all(bare.text in bare.whole or bare.text for bare in Unwrapper().lines(line) if bare.text)


# --- mixtures and what is none


def test_a_mixture_is_read_part_by_part_with_its_line_numbers() -> None:
    text = f"$ dmesg | tail\n[   12.345678] {XID}\n\n$ cat train.log\nstep 1 loss 2.0\n{OOM}\n"
    assert [(kind, sign.line) for kind, sign in zip(kinds(text), signs(text), strict=True)] == [
        ("xid.79", 2),
        ("job.cuda_oom", 6),
    ]


NEGATIVE = {
    "prose": "Xid 79 means that the GPU has fallen off the bus. See the NVIDIA documentation on Xid errors.",
    "readme": "# Xids\n\n| Xid | meaning |\n|---|---|\n| 79 | GPU has fallen off the bus |\n| 48 | ECC error |\n",
    "c": 'nv_printf("NVRM: Xid (PCI:%04x:%02x:%02x): %d, %s\\n", a, b, c, 79, d);\n#define CHANNEL 79',
    "python": 'raise RuntimeError("CUDA out of memory")\nos.kill(pid, signal.SIGKILL)\nexcept EOFError:\n    pass',
    "yaml": "rules:\n  - name: xid\n    pattern: 'NVRM: Xid'\n    action: reboot",
    "advice": "If you see `CUDA out of memory`, use less. An import error or CUDA out of memory does not come right.",
    "training": "step 10 | loss: 2.31 | info: nan_check=off | inf/s 12\nEpoch 1: 100%|##| 10/10 [00:01<00:00, 9it/s]",
    "json": '{\n  "model": "x",\n  "errors": [],\n  "message": "all is well"\n}',
    "systemd": "Nov 16 08:00:00 n1 systemd[1]: Started Session 1 of user root.",
}


@pytest.mark.parametrize("text", NEGATIVE.values(), ids=NEGATIVE.keys())
def test_what_merely_talks_about_faults_gives_nothing(text: str) -> None:
    assert kinds(text) == []


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(
        st.one_of(
            st.text(max_size=120), st.sampled_from([*WRAPPED.values(), OOM, "{", "[", "}", '"a": {', "Events:", "---"])
        ),
        max_size=25,
    )
)
def test_no_text_makes_it_raise(lines: list[str]) -> None:
    for sign in read_stream(lines):
        assert sign.line <= len(lines)


# --- JSON over many lines


def test_json_over_many_lines_is_one_value() -> None:
    text, found = JsonText(), []
    for number, line in enumerate(json.dumps({"a": [1, {"b": "}"}]}, indent=2).splitlines(), start=4):
        whole, _ = text.take((number, line, line))
        found += [whole] if whole else []
    assert [(whole.number, whole.value) for whole in found] == [(4, {"a": [1, {"b": "}"}]})]


def test_what_only_looks_like_json_is_given_back() -> None:
    text, back = JsonText(), []
    for number, line in enumerate(["{", "int main(void) {", "}"], start=1):
        back += text.take((number, line, line))[1]
    assert [line for _, line, _ in back] == ["{", "int main(void) {", "}"]


def test_an_endless_document_is_given_back() -> None:
    text = JsonText(largest=1000)
    back = [line for number in range(100) for line in text.take((number, '{"a":', '{"a":'))[1]]
    assert back
    assert len(text.give_back()) < 20


def test_a_fault_in_a_document_that_nobody_knows_is_still_seen() -> None:
    assert kinds("{\n" + XID + "\n}") == ["xid.79"]


# --- input


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "none": bytes,
}


@pytest.mark.parametrize("how", ["gz", "bz2", "xz", "none"])
def test_packed_text_is_known_by_its_first_bytes(how: str, tmp_path: Path) -> None:
    path = tmp_path / "any.name"
    path.write_bytes(PACKERS[how](f"ok\n[   12.345678] {XID}\n".encode()))
    assert [sign.line for sign in of_file(path)[1]] == [2]


def test_members_one_behind_the_other_are_all_read(tmp_path: Path) -> None:
    path = tmp_path / "two.gz"
    path.write_bytes(gzip.compress(b"ok\n") + gzip.compress(f"[   12.345678] {XID}\n".encode()) + b"\0" * 512)
    assert [sign.line for sign in of_file(path)[1]] == [2]


def test_a_torn_archive_gives_what_came_before_the_tear(tmp_path: Path) -> None:
    path = tmp_path / "torn.gz"
    heard: list[str] = []
    noise = "".join(f"{n * 7919 % 10007} {n}\n" for n in range(50_000))
    path.write_bytes(gzip.compress(f"[   12.345678] {XID}\n{noise}".encode())[:-5000])
    stream = TextStream(RULES)
    with open_input(str(path), heard.append) as chunks:
        assert len(list(stream.read(chunks))) == 1
    assert len(heard) == 1
    assert "torn" in heard[0]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "latin-1"])
def test_encodings_of_the_field_are_read(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(f"Grüße\r\n[   12.345678] {XID}\r\n".encode(encoding))
    assert [sign.line for sign in of_file(path)[1]] == [2]


@pytest.mark.parametrize(
    "content", [b"\x7fELF\x02\x01\x01" + bytes(range(256)) * 40, bytes(range(256)) * 64, b"\0" * 4096, b"PK\x03\x04abc"]
)
def test_what_is_no_text_is_refused_in_one_line(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "thing"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=re.escape(str(path))) as caught:
        of_file(path)
    assert "\n" not in str(caught.value)


def test_a_progress_bar_is_part_of_its_line_and_does_not_hide_the_error_behind_it(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"ok\n" + b"\r".join(b"%d%%" % n for n in range(100)) + f"\r{OOM}\nend\n{OOM}\n".encode())
    stream, found = of_file(path)
    assert ([sign.line for sign in found], stream.lines) == ([2, 4], 4)


def test_a_line_without_an_end_is_cut_and_what_follows_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * (3 * BLOCK) + f"\n[   12.345678] {XID}\n".encode())
    stream, found = of_file(path)
    assert ([sign.line for sign in found], stream.lines) == ([2], 2)


@given(st.binary(max_size=400), st.integers(1, 40))
def test_lines_are_the_same_however_the_blocks_fall(text: bytes, size: int) -> None:
    text = text.replace(b"\x0b", b"")
    blocks = [text[at : at + size] for at in range(0, len(text), size)]
    whole = text.replace(b"\r\n", b"\n").removesuffix(b"\r").replace(b"\r", SOFT)
    joined = b"".join(whole_lines(iter(blocks)))
    assert joined.removesuffix(b"\n") == whole.removesuffix(b"\n")
    assert not joined or joined.endswith(b"\n")
    assert max(map(len, joined.split(b"\n")), default=0) <= LONGEST


@given(st.binary(max_size=2000))
def test_no_bytes_break_the_input(content: bytes) -> None:
    with suppress(BadInput):
        chunks = list(whole_lines(blocks_of(io.BytesIO(content), "it", lambda _: None)))
        assert all(chunk.endswith(b"\n") for chunk in chunks)


# --- long texts


def test_a_long_text_is_read_as_a_short_one_is(tmp_path: Path) -> None:
    lines = [
        line
        for line in [*WRAPPED.values(), OOM, *NEGATIVE["readme"].splitlines()]
        for line in [*[f"step {n}" for n in range(30)], line]
    ]
    path = tmp_path / "log"
    path.write_text("\n".join(lines) + "\n")
    sieved, whole = of_file(path, small=0), of_file(path, small=10**9)
    assert sieved[1] == whole[1]
    assert sieved[0].lines == whole[0].lines == len(lines)


CORPUS = Path(__file__).parents[1] / "fixtures" / "corpus"


@pytest.mark.parametrize("name", ["sick.txt", "well.txt"])
def test_sieving_a_long_text_finds_what_reading_every_line_finds(name: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    between = "".join(f"step {n} of 9: all is well\n" for n in range(9)).encode()
    path.write_bytes(between.join([(CORPUS / name).read_bytes()] * 2))
    assert [(sign.line, sign.kind) for sign in of_file(path, small=0)[1]] == [
        (sign.line, sign.kind) for sign in of_file(path, small=10**9)[1]
    ]


def test_an_exception_that_no_rule_knows_is_heard_in_a_long_text_too(tmp_path: Path) -> None:
    path = tmp_path / "log"
    raised = (
        'Traceback (most recent call last):\n  File "/srv/train.py", line 3, in main\n    go()\nOddError: it is odd\n'
    )
    path.write_text("all is well\n" * 99 + raised + "all is well\n" * 99)
    assert [sign.fields for sign in of_file(path)[1]] == [{"name": "raised"}]


def flood(line: str, times: int) -> Iterator[bytes]:
    for start in range(0, times, 1000):
        yield "".join(f"[{n:>5}.123456] {line}\n" for n in range(start, start + 1000)).encode()


@pytest.mark.slow
def test_two_hundred_thousand_repetitions_take_bounded_memory() -> None:
    stream = TextStream(RULES)
    tracemalloc.start()
    seen = sum(1 for _ in stream.read(flood("usb 1-1: all is well, nothing to see", 200_000)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (seen, stream.lines) == (0, 200_000)
    assert peak < 40_000_000


def words(lines: Iterable[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)


def test_the_sieve_finds_every_anchor_in_any_case_and_with_any_digits() -> None:
    sieve = Sieve(["Signal 9 seen", "fallen off"], ["loss is"])
    text = words([b"nothing", b"SIGNAL 9 Seen", b"signal 4 seen", b"the loss is nan", b"has FALLEN OFF it", b"nothing"])
    assert [int(worth) for _, worth in sieve.sift(text)] == [2, 2, 0, 2]
    assert text[sieve.sift(text)[0][0] :].startswith(b"SIGNAL 9 Seen")


ANCHORS = [anchor for _, document in documents() for anchor in document.ANCHORS] + list(TrainingReader(RULES).anchors)


@settings(deadline=None)  # a sieve is made for each example
@given(
    st.lists(
        st.tuples(
            st.text(st.characters(codec="ascii", exclude_characters="\n\r\x0b"), max_size=30), st.sampled_from(ANCHORS)
        ),
        max_size=12,
    )
)
def test_the_sieve_loses_no_anchor(lines: list[tuple[str, str]]) -> None:
    sieve = Sieve(ANCHORS, [])
    text = words(f"{before}{anchor}{before}".encode() for before, anchor in lines)
    assert len(sieve.sift(text)) == text.count(b"\n")


@one_by_one("rule", RULES, ids=lambda rule: rule.name)
def test_every_rule_demands_a_word_so_that_long_texts_can_be_sieved(rule: DiagnosisRule) -> None:
    assert "|".join(rule.words) == "|".join(literals(rule.pattern)) != "", "write this into the column `words`"


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("abc+def", ("def",)),
        ("(?i)FOO|barz", ("barz", "foo")),
        ("x?y*", ()),
        ("(?:abcd|ef)g", ()),
        (r"\bloss\b.*nan", ("nan",)),
    ],
)
def test_words_that_a_pattern_demands(pattern: str, expected: tuple[str, ...]) -> None:
    assert literals(pattern) == expected


@pytest.mark.slow
def test_a_flood_of_xids_is_one_symptom_in_bounded_memory() -> None:
    copies = 200_000 if THOROUGH else 50_000
    xid = "NVRM: Xid (PCI:0000:b9:00): 31, pid=7, name=python, Ch 00000001, intr 00000000. MMU Fault"
    stream = TextStream(RULES)
    found = name_all(stream.read(flood(xid, copies)), load_tables())
    assert [(symptom.code, symptom.count, symptom.last_line) for symptom in found] == [("xid.31", copies, copies)]


def test_what_a_program_prints_into_the_journal_is_not_the_kernels_word() -> None:
    said = "NVRM: Xid (PCI:0000:65:00): 79, GPU has fallen off the bus."
    record = {"__REALTIME_TIMESTAMP": "1", "_TRANSPORT": "stdout", "SYSLOG_IDENTIFIER": "train", "MESSAGE": said}
    assert not list(read_stream([json.dumps(record)]))
    assert [sign.kind for sign in read_stream([json.dumps({**record, "_TRANSPORT": "kernel"})])] == ["xid"]
