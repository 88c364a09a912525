"""Whatever numbers and names NVML answers with, through its child and its wire: no exception, no absurd number."""

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from sickbay.agent.nvml.readings import reading_of, values_of
from sickbay.agent.nvml.watched import CannotRead, Nvml, NvmlTimeouts
from sickbay.agent.nvml.wire import Read, Values
from sickbay.agent.outbox import say
from sickbay.agent.probes.gpus import Gpus
from sickbay.agent.sampling import Sampler
from sickbay.model.facts import Observed
from sickbay.model.fleet import NodeId
from sickbay.model.gpu import GpuReading
from sickbay.model.protocol import Item, Measured
from sickbay.signs.plausible import RANGES

pytestmark = pytest.mark.slow

RECORDED: dict[str, Any] = json.loads(
    (Path(__file__).parent.parent / "fixtures/h200/nvml-calls.json").read_text(encoding="utf-8")
)
NODE = NodeId("c/n1")
NUMBERS = st.sampled_from([0, 1, -1, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1, 230, 10**12])
FLOATS = st.sampled_from([math.nan, math.inf, -math.inf, 1e308, -1.0])
TEXTS = st.sampled_from(["", "\x1b[2J", "a\nb", "GPU-1"]) | st.just(b"\xff\xfe")


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


class Odd:
    """Answers as a real H200 did, but with other numbers and other texts here and there."""

    NVMLError = NVMLError

    def __init__(self, data: st.DataObject, of: int = 4) -> None:
        self._draw, self._of = data.draw, of

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvmlDevice"):
            raise AttributeError(name)
        return lambda *args: self._answer(name, *args)

    def _answer(self, name: str, *args: Any) -> Any:
        if name == "nvmlDeviceGetHandleByIndex":
            return 0
        if name == "nvmlDeviceGetFieldValues":
            return [self._field() for _ in args[1]]
        if self._seldom():
            raise self._draw(st.sampled_from([NVMLError(3), NVMLError(999), NVMLError(15), ValueError("no text")]))
        plain = [arg for arg in args[1:] if isinstance(arg, int | str | list)]
        answer = RECORDED.get(f"{name}{json.dumps(plain)}", {"error": 3})
        if "error" in answer:
            raise NVMLError(answer["error"])
        return self._bent(answer["value"])

    def _seldom(self) -> bool:
        return bool(self._draw(st.integers(0, self._of)) == 0)

    def _field(self) -> SimpleNamespace:
        value = SimpleNamespace(dVal=self._draw(FLOATS), uiVal=self._draw(NUMBERS), ullVal=self._draw(NUMBERS))
        return SimpleNamespace(nvmlReturn=0, valueType=self._draw(st.sampled_from([0, 1, 3, 9])), value=value)

    def _bent(self, value: Any) -> Any:
        if isinstance(value, dict):
            return SimpleNamespace(**{name: self._bent(one) for name, one in value.items()})
        if isinstance(value, list):
            return [self._bent(one) for one in value]
        if isinstance(value, str):
            return self._draw(TEXTS) if self._seldom() else value
        return self._draw(NUMBERS) if isinstance(value, int) and self._seldom() else value


class Replayed:
    """Readings as the child sent them."""

    def __init__(self, readings: list[GpuReading]) -> None:
        self._readings = readings

    def read(self) -> list[GpuReading]:
        return self._readings

    def events(self) -> list[object]:
        return []


def across(reading: GpuReading) -> GpuReading:
    """As the agent gets it."""
    return msgspec.json.decode(msgspec.json.encode(Read(reading=reading)), type=Read).reading


def assert_sound(items: list[Item]) -> None:
    for item in items:
        assert msgspec.json.decode(msgspec.json.encode(item), type=Item).news == item.news
        assert isinstance(item.news, Observed)
        assert 1 <= item.news.count <= 2**60
        assert item.news.text.isprintable()


@settings(max_examples=20, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.data())
def test_no_answer_of_nvml_breaks_the_child_the_wire_or_the_judge(data: st.DataObject) -> None:
    readings = [across(reading_of(Odd(data), 0, "580.1")) for _ in range(2)]
    gpus = Gpus(Replayed([]), NODE, Path("/nonexistent/known"), expected=1, grace=0.0)  # type: ignore[arg-type]
    for number, reading in enumerate(readings):
        gpus._nvml = Replayed([reading])  # type: ignore[assignment]
        assert_sound(gpus.look(10.0 * number))


@settings(max_examples=20, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.data())
def test_no_value_for_a_chart_is_absurd(data: st.DataObject) -> None:
    said = Values(values=values_of(Odd(data), 0))
    values = msgspec.json.decode(msgspec.json.encode(said), type=Values).values
    for name, value in values.items():
        low, high = RANGES[name.rpartition(".")[2]]
        assert low <= value <= high
    for item in Sampler([lambda: values]).look(0.0):
        assert isinstance(item.news, Measured)


# --- the wire


@pytest.fixture
def speaking(tmp_path: Path) -> Iterator[Any]:
    made: list[Nvml] = []

    def speaks(*lines: str, forever: bool = False) -> Nvml:
        script = tmp_path / "child.py"
        script.write_text(
            "import sys, time\n"
            f"said = {list(lines)!r}\n"
            "sys.stdin.readline()\n"
            f"while True:\n    sys.stdout.write(''.join(l + chr(10) for l in said)); sys.stdout.flush()\n"
            f"    {'pass' if forever else 'time.sleep(60)'}\n"
        )
        patience = NvmlTimeouts(answer=1.0, start=2.0, smi=1.0, alive=0.2, again_first=0.05, again_most=0.1)
        ready = f"print({json.dumps(READY)!r}, flush=True)\n"
        script.write_text(f"import json\n{ready}" + script.read_text())
        made.append(Nvml((sys.executable, str(script)), smi=("no-such-nvidia-smi",), patience=patience))
        return made[-1]

    yield speaks
    for nvml in made:
        nvml.close()


READY = {"said": "ready", "driver": "580"}
DONE = '{"said": "done", "number": 1}'


@pytest.mark.parametrize(
    "line",
    [
        '{"said": "read", "reading": {"index": 1' + "0" * 30 + ', "uncorrected": 1' + "0" * 30 + "}}",
        '{"said": "read", "reading": {"index": -1, "temperature": 1e308, "lost": "\\u001b[2J\\n"}}',
        '{"said": "read", "reading": {"links": [{"number": -5, "replays": -9}]}}',
        '{"said": "happened", "kind": "xid", "number": 79, "pci": "\\u001b[2J\\n", "device": -1}',
    ],
)
def test_odd_lines_of_the_child_are_read_without_harm(speaking: Any, tmp_path: Path, line: str) -> None:
    gpus = Gpus(speaking(line, DONE), NODE, tmp_path / "known", expected=1, grace=0.0)
    items = gpus.look(0.0)
    assert_sound([*items, *gpus.flush(1.0)])


@pytest.mark.parametrize(
    "line", ["[" * 100_000, "{", "nonsense", '{"said": "never heard of"}', '{"said": "read"}', "1" * 5000]
)
def test_what_is_no_word_of_the_child_is_told_as_such(speaking: Any, line: str) -> None:
    with pytest.raises(CannotRead, match="speaks nonsense"):
        speaking(line).read()


@pytest.mark.parametrize("line", ['{"said": "at", "device": 0}', '{"said": "read", "reading": {"index": 0}}'])
def test_a_child_that_talks_without_end_is_left_in_time(speaking: Any, line: str) -> None:
    with pytest.raises(CannotRead):
        speaking(line, forever=True).read()


def test_news_with_any_text_can_be_sent() -> None:
    reading = GpuReading(index=0, lost="\ud800\x1b")
    gpus = Gpus(Replayed([reading]), NODE, Path("/nonexistent/known"), expected=1, grace=0.0)  # type: ignore[arg-type]
    assert_sound([*gpus.look(0.0), say(Observed(node=NODE, kind="x", text="\x00"))])
