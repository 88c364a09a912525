"""No input crashes or stalls a reader: noise, real texts that were torn and mixed, and texts made to take long."""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sickbay.agent.probes import one_file
from sickbay.agent.probes.counters import number_in
from sickbay.agent.probes.journal import JournalFollower, JournalPlace, decoded
from sickbay.agent.probes.kernel_log import KernelLog, LogPlace
from sickbay.agent.probes.kmsg import Kmsg, KmsgPlace
from sickbay.agent.probes.log_file import LogFile
from sickbay.agent.probes.machine import meminfo, stat_of
from sickbay.agent.probes.system_log import SystemLog
from sickbay.agent.settings import SETTINGS as KNOWN
from sickbay.agent.settings import load
from sickbay.knowledge.dcgm import messages
from sickbay.model.errors import BadInput
from sickbay.model.fleet import NodeId
from sickbay.model.sign import Sign
from sickbay.signs import kernel_patterns as patterns
from sickbay.signs import nvidia
from sickbay.signs.counting import MOST, growth
from sickbay.signs.kernel import KernelReader, parse_line
from sickbay.signs.prefixes import dated, peel
from sickbay.signs.readers.boxes import cells
from sickbay.signs.readers.dcgm_diag import DcgmDiag
from sickbay.signs.readers.dcgm_health import DcgmHealth, readings_from_dmon
from sickbay.signs.readers.exporter import page_of, readings_from_page
from sickbay.signs.readers.smi_query import readings_from_query
from sickbay.signs.readers.smi_xml import readings_from_xml
from sickbay.signs.readers.stream import READERS, TextStream, documents, read_stream
from sickbay.signs.registers import decode, registers
from sickbay.signs.scanner import lines_of_interest

pytestmark = pytest.mark.slow

FIXTURES = Path(__file__).parents[1] / "fixtures"
TEXTS = (".txt", ".log", ".xml", ".json", ".csv")
PATIENT = settings(
    deadline=None, max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)  # fmt: skip
NODE = NodeId("c/n1")
TODAY = datetime(2026, 11, 16, 8, 0, tzinfo=UTC)
FEW = 3  # signs that one line may give and more than which no line gives, but where it is a list of its own


@cache
def corpus() -> tuple[str, ...]:
    """Every recorded text of tests."""
    paths = sorted(path for path in FIXTURES.rglob("*") if path.suffix in TEXTS and path.stat().st_size < 1 << 18)
    return tuple(path.read_text(encoding="utf-8", errors="replace") for path in paths)


@cache
def lines() -> tuple[str, ...]:
    found = {line for text in corpus() for line in text.splitlines()}
    bodies = {line.split("\t")[-1] for line in found}
    return tuple(sorted(found | bodies))


NASTY = ("\0", "\x1b[31m", "\r", "\u2028", "\ufeff", "\U0001f525", "\ud7ff", "²", "٣", "0x", "-", "9" * 30, "9" * 5000,
         "{", "[", "\\x", "\\x0", ")", "(((((", "<", "&amp;", '<!DOCTYPE x [<!ENTITY a "b">]>', ",,,", ";", "%",
         "e999", "1e400", "nan", "-1", "N/A", "[N/A]")  # fmt: skip


@st.composite
def torn(draw: st.DrawFn, of: Callable[[], Iterable[str]]) -> str:
    """A real text in which pieces were cut out, doubled, moved and filled with nonsense."""
    text = draw(st.sampled_from(sorted(of())))
    start = draw(st.integers(0, max(0, len(text) - 1)))
    text = text[start : start + 6000] if len(text) > 6000 else text
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, len(text)))
        upto = min(len(text), at + draw(st.integers(0, 40)))
        how = draw(st.sampled_from(("cut", "double", "nonsense", "noise", "swap", "digits")))
        piece = text[at:upto]
        put = {
            "cut": "", "double": piece * 3, "nonsense": draw(st.sampled_from(NASTY)),
            "noise": draw(st.text(max_size=8)), "swap": piece[::-1],
            "digits": "".join("7" if char.isdigit() else char for char in piece),
        }[how]  # fmt: skip
        text = text[:at] + put + text[upto:]
    return text


A_LINE = st.one_of(st.text(max_size=300), torn(lines).map(lambda text: " ".join(text.splitlines())))
A_TEXT = st.one_of(st.text(max_size=2000), torn(corpus))
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


def sound(signs: Iterable[Sign], most: int) -> list[Sign]:
    """All of them have the form of signs, and there are no more than there may be."""
    found = list(signs)
    assert len(found) <= most
    for sign in found:
        assert sign.kind
        assert sign.count >= 1
        assert len(sign.text) <= 1 << 16
        assert all(isinstance(value, str | int) and len(str(value)) <= 1 << 14 for value in sign.fields.values())
    return found


# --- lines of the kernel


@given(A_LINE)
@PATIENT
def test_no_line_breaks_what_reads_the_kernel(line: str) -> None:
    peeled = peel(line)
    assert len(peeled.body) <= len(line)
    assert peel(line) == peeled
    dated(peeled, TODAY)
    sign = parse_line(line)
    sound([] if sign is None else [sign], 1)
    for body in (line, peeled.body):
        for speaker in ("kernel", "", "systemd"):
            found = patterns.match(body, speaker)
            sound([] if found is None else [found], 1)
        wording = nvidia.match(body)
        sound([] if wording is None else [wording], 1)
        for number in (74, 144, 149, 150):
            decode(number, body)
        registers(body)


@given(st.lists(A_LINE, max_size=30))
@PATIENT
def test_no_lines_in_a_row_break_the_kernels_reader(some: list[str]) -> None:
    reader = KernelReader()
    found = [sign for number, line in enumerate(some, 1) for sign in reader.read(number, line)]
    found += reader.end()
    sound(found, FEW * len(some))
    assert all(1 <= sign.line <= len(some) for sign in found)


@given(st.binary(max_size=3000) | A_TEXT.map(lambda text: text.encode(errors="replace")))
@PATIENT
def test_the_scanner_names_places_within_what_it_was_given(chunk: bytes) -> None:
    whole = chunk[: chunk.rfind(b"\n") + 1]
    places = list(lines_of_interest(whole))
    assert all(0 <= begin <= end <= len(whole) for begin, end in places)
    assert places == sorted(set(places))


# --- documents


@given(st.sampled_from([name for _, name, _ in READERS]), A_TEXT)
@PATIENT
def test_no_text_breaks_a_document(which: str, text: str) -> None:
    some = text.splitlines()
    (reader,) = [one for _, one in documents() if type(one).__name__ == which]
    found: list[Sign] = []
    for number, line in enumerate(some, 1):
        found += reader.read(number, line)
        assert reader.owns in {True, False}
    found += reader.end()
    sound(found, 64 + 16 * len(some))


@given(st.sampled_from([name for _, name, _ in READERS]), ANY_JSON | st.sampled_from(range(8)))
@PATIENT
def test_no_json_breaks_a_document(which: str, value: Any) -> None:
    real = [json.loads(text) for text in corpus() if text.lstrip().startswith("{") and _is_json(text)]
    if isinstance(value, int) and not isinstance(value, bool):
        value = real[value % len(real)]
    (reader,) = [one for _, one in documents() if type(one).__name__ == which]
    sound([*reader.value(1, value), *reader.end()], 4096)


@given(ANY_JSON, st.integers(0, 1000))
@PATIENT
def test_a_real_report_of_dcgm_with_one_value_replaced_is_read_or_left(value: Any, which: int) -> None:
    for text in corpus():
        if text.lstrip().startswith("{") and "DCGM" in text and _is_json(text):
            wrong = json.loads(text)
            _replace_one(wrong, which, value)
            for reader in (DcgmDiag(), DcgmHealth()):
                sound([*reader.value(1, wrong), *reader.end()], 4096)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _replace_one(root: Any, which: int, value: Any) -> None:
    places = [
        (holder, key)
        for holder in _holders(root)
        for key in (list(holder) if isinstance(holder, dict) else range(len(holder)))
    ]
    if places:
        holder, key = places[which % len(places)]
        holder[key] = value


def _holders(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _holders(inner)


@given(st.lists(st.binary(max_size=400) | A_TEXT.map(lambda text: text.encode(errors="replace")), max_size=5),
       st.sampled_from((0, 1 << 18)))  # fmt: skip
@PATIENT
def test_no_bytes_break_a_stream_long_or_short(chunks: list[bytes], small: int) -> None:
    whole = [chunk.replace(b"\n\n", b"\n") + b"\n" for chunk in chunks]
    stream = TextStream()
    count = sum(chunk.count(b"\n") for chunk in whole)
    sound(stream.read(whole, small=small), 256 + 16 * count)
    assert stream.lines <= 2 * count + len(whole)


@given(st.lists(A_TEXT, max_size=4))
@PATIENT
def test_a_mixture_of_torn_texts_breaks_nobody(texts: list[str]) -> None:
    some = [line for text in texts for line in text.splitlines()]
    sound(read_stream(some), 256 + 16 * len(some))


@given(A_TEXT)
@PATIENT
def test_readings_are_made_of_any_text_or_of_none(text: str) -> None:
    count = len(text) + 1
    assert len(readings_from_xml(text)) <= count
    assert len(readings_from_query(text)) <= count
    assert len(readings_from_page(text)) <= count
    assert len(readings_from_dmon(text)) <= count
    page_of(text)
    for line in text.splitlines()[:50]:
        cells(line)
        messages(line)


# --- what the agent reads


@given(st.lists(st.binary(max_size=400) | A_LINE.map(lambda line: f"6,1,2,-;{line}\n".encode(errors="replace")),
                max_size=10))  # fmt: skip
@PATIENT
def test_no_record_breaks_the_ring(tmp_path: Path, records: list[bytes]) -> None:
    left = iter([*records, b""])
    (tmp_path / "kmsg").touch()
    ring = Kmsg(NODE, KmsgPlace(boot_id="b"), tmp_path / "kmsg", lambda _handle, _size: next(left, b""))
    log = KernelLog([ring], NODE, lambda _: None)
    assert len(log.look(1.0)) <= 2 * len(records) + 2
    assert len(log.flush(1.0)) <= len(records)
    log.close()


@given(st.lists(
    st.binary(max_size=300) | ANY_JSON.map(lambda value: json.dumps(value).encode())
    | st.fixed_dictionaries({"__CURSOR": st.text(max_size=20), "MESSAGE": A_LINE | st.lists(st.integers(-9, 999)),
                             "__MONOTONIC_TIMESTAMP": st.text(max_size=12)})
    .map(lambda value: json.dumps(value).encode()), max_size=8))  # fmt: skip
@PATIENT
def test_no_entry_breaks_the_journals_reader(entries: list[bytes]) -> None:
    journal = JournalFollower(JournalPlace(boot_id="b"), ("true",))
    for entry in entries:
        decoded(entry)
    found = list(journal._entries(b"\n".join(entries) + b"\n", 5.0))
    assert len(found) <= sum(entry.count(b"\n") + 1 for entry in entries)
    assert len(journal._partial) <= 1 << 20
    journal.place()


@given(st.lists(st.binary(max_size=300) | st.sampled_from((b"cut", b"anew")), max_size=8), st.booleans())
@PATIENT
def test_no_bytes_break_a_file_that_is_followed(tmp_path_factory: pytest.TempPathFactory, parts: list[bytes],
                                                sieved: bool) -> None:  # fmt: skip
    path = tmp_path_factory.mktemp("log") / "messages"
    file = LogFile(path, rotated=True, worth=lines_of_interest if sieved else None)
    written = 0
    told = 0
    for part in parts:
        if part == b"cut":
            path.write_bytes(b"")
        elif part == b"anew" and path.exists():
            path.rename(path.with_name("messages.1"))
        else:
            with path.open("ab") as log:
                log.write(part)
            written += part.count(b"\n")
        told += sum(1 for _ in file.lines())
        assert len(file.place.tail) <= one_file.PRINT
        assert all(len(each.partial) <= one_file.LONGEST for each in file._files)
    assert told <= written
    file.close()


@given(A_TEXT)
@PATIENT
def test_no_text_breaks_a_log_daemons_file(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("log") / "messages"
    path.write_text(text, encoding="utf-8", errors="replace")
    log = KernelLog([SystemLog(path, LogPlace(boot_id="b"))], NODE, lambda _: None)
    told = [*log.look(1e9), *log.flush(1e9)]
    assert len(told) <= 2 * (text.count("\n") + 1)
    log.close()


@given(st.binary(max_size=100) | st.text(max_size=40).map(str.encode) | st.integers().map(lambda n: str(n).encode()))
@PATIENT
def test_a_counter_is_a_number_or_nothing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "counter"
    path.write_bytes(content)
    assert 0 <= growth(0, number_in(path), fresh=True).by <= MOST
    stat_of(path)
    (tmp_path / "meminfo").write_bytes(content)
    meminfo(tmp_path)


def test_a_counter_of_any_length_is_read_or_left(tmp_path: Path) -> None:
    """Python refuses to make a number of too many digits, and a file under /sys can be anything."""
    for text in ("9" * 5000, "TOTAL " + "9" * 5000, "0x" + "f" * 5000, "²", "٣٣", "1_000", "+5", "0x", "1 2"):
        (tmp_path / "counter").write_text(text)
        number_in(tmp_path / "counter")
        (tmp_path / "meminfo").write_text(f"MemTotal: {text} kB\n")
        meminfo(tmp_path)


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode)
       | st.dictionaries(st.sampled_from(sorted(KNOWN)), ANY_JSON, max_size=4)
       .map(lambda value: json.dumps(value).encode()))  # fmt: skip
@PATIENT
def test_no_settings_file_breaks_the_agent_and_every_mistake_is_in_words(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "agent.yaml"
    path.write_bytes(content)
    wrong = _refusal(path)
    assert wrong is None or (wrong and "Traceback" not in wrong)


def _refusal(path: Path) -> str | None:
    try:
        load(path, {}, {"url": "http://x:1"})
    except BadInput as wrong:
        return str(wrong)
    return None


# --- time


def worst(of: str) -> Iterator[str]:
    """Beginnings that make a pattern hope, drawn out."""
    for filler in (of, "a", " ", "0", ": ", "(", "[1] ", "0x0 ", ", ", "\t", "kernel: ", "<"):
        yield (of + filler * 4000)[:8000]


HOPES = ("NVRM: Xid (PCI:0000:b9:00): 74, pid=", "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): ", "[ 1234.567890] ",
         "Nov 16 08:00:00 host kernel: ", "2026-11-16T08:00:00.000000+00:00 host ", "<6>[",
         "pcieport 0000:00:01.0: AER: ",
         "| NVIDIA-SMI ", "DCGM_FI_DEV_XID_ERRORS{gpu=", "| Overall Health", "mlx5_core 0000:", "EDAC MC0: ",
         "RuntimeError: CUDA error: ", '<gpu id="', "    Product Name   : ", "Error: ", '{"', "#Entity ",
         "GPU[0]  : ", "Warning  FailedScheduling ", "[rank0]:")  # fmt: skip


@pytest.mark.parametrize("hope", HOPES)
def test_time_is_in_proportion_to_the_length(hope: str) -> None:
    """CPU time, with a wide margin: what backtracks takes minutes."""
    readers: dict[str, Callable[[str], object]] = {
        "peel": peel, "parse_line": parse_line, "patterns": lambda text: patterns.match(text, "kernel"),
        "nvidia": nvidia.match, "registers": registers, "stream": lambda text: list(read_stream([text] * 5)),
        "xml": readings_from_xml, "query": readings_from_query, "page": page_of, "dmon": readings_from_dmon,
        "messages": messages,
    }  # fmt: skip
    for name, read in readers.items():
        read(hope)  # what is loaded at the first call is not part of it
        for text in worst(hope):
            before = time.process_time()
            read(text)
            took = time.process_time() - before
            assert took < 1.0, (name, text[:60], text[len(hope) : len(hope) + 20], took)


def test_many_lines_take_time_in_proportion_to_their_number() -> None:
    text = [line for line in lines() if len(line) < 400]
    took = []
    for times in (1, 4):
        before = time.process_time()
        list(read_stream(text * times))
        took.append(time.process_time() - before)
    assert took[1] < 4 * 3 * took[0] + 1.0, took


def test_every_torn_document_of_the_corpus_takes_bounded_time() -> None:
    for text in corpus():
        some = text.splitlines()
        for step in (2, 3, 5):
            before = time.process_time()
            list(read_stream(some[::step] + some[1::step]))
            assert time.process_time() - before < 10.0, text[:80]
