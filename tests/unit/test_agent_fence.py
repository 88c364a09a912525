"""A node that hears nobody for long enough stops taking work, once, and takes it again when it is heard."""

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from sickbay.agent.fence import FenceKeeper, FenceState, run
from sickbay.agent.setting_values import SelfFence

WANTS = SelfFence(after=600.0, command=("stop", "slurmd"), undo=("start", "slurmd"), probe=("scontrol", "ping"))


class Rig:
    def __init__(self, state: Path, wants: SelfFence = WANTS) -> None:
        self.state = state
        self.wants = wants
        self.ran: list[tuple[str, ...]] = []
        self.codes: dict[str, int] = {"scontrol": 1}
        self.said: list[tuple[str, str]] = []
        self.mark = state / "run" / "fenced"
        self.at = 0.0
        self.fence = self.begin()

    def begin(self) -> FenceKeeper:
        return FenceKeeper(self.wants, self.state, "b1", lambda kind, text: self.said.append((kind, text)),
                     run=self._run, mark=self.mark, beside=lambda act: act())  # fmt: skip

    def _run(self, words: Sequence[str], within: float) -> int:
        assert within > 0
        if words[0] == "stop":  # what is to be done is written down before
            kept = msgspec.json.decode((self.state / "fence.json").read_bytes(), type=FenceState)
            assert kept.state == "begun"
        self.ran.append(tuple(words))
        return self.codes.get(words[0], 0)

    def silent_for(self, seconds: float, step: float = 1.0) -> None:
        until = self.at + seconds
        while self.at < until:
            self.at += step
            self.fence.turn(self.at, heard=False)

    def heard(self) -> None:
        self.at += 1.0
        self.fence.turn(self.at, heard=True)

    @property
    def acts(self) -> list[str]:
        return [words[0] for words in self.ran if words[0] != "scontrol"]


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_it_fences_once_after_so_much_silence_and_not_before(rig: Rig) -> None:
    rig.silent_for(590)
    assert not rig.acts
    rig.silent_for(1000)
    assert rig.acts == ["stop"]
    assert [kind for kind, _ in rig.said] == ["agent.fenced"]


def test_a_controller_that_is_heard_now_and_then_keeps_it_working(rig: Rig) -> None:
    for _ in range(10):
        rig.silent_for(500)
        rig.heard()
    assert not rig.acts


def test_a_cluster_that_answers_keeps_it_working_though_the_controller_is_away(rig: Rig) -> None:
    rig.codes["scontrol"] = 0
    rig.silent_for(10_000)
    assert not rig.acts


def test_the_cluster_is_asked_once_more_just_before(rig: Rig) -> None:
    rig.silent_for(598)
    rig.codes["scontrol"] = 0
    rig.silent_for(5)
    assert not rig.acts


def test_it_takes_work_again_when_somebody_is_heard(rig: Rig) -> None:
    rig.silent_for(700)
    rig.heard()
    assert rig.acts == ["stop", "start"]
    assert not (rig.state / "fence.json").exists()
    rig.silent_for(700)
    assert rig.acts == ["stop", "start", "stop"]


def test_an_undoing_that_fails_is_tried_again(rig: Rig) -> None:
    rig.silent_for(700)
    rig.codes["start"] = 1
    rig.heard()
    rig.codes["start"] = 0
    rig.heard()
    rig.heard()
    assert rig.acts == ["stop", "start", "start"]


@pytest.mark.parametrize("state", ["begun", "fenced", "undoing"])
def test_what_an_earlier_run_did_or_began_is_not_done_twice_and_is_undone(rig: Rig, state: str) -> None:
    (rig.state / "fence.json").write_bytes(msgspec.json.encode(FenceState(state=state, boot_id="b0")))
    rig.fence = rig.begin()
    rig.silent_for(2000)
    assert not rig.acts
    rig.heard()
    assert rig.acts == ["start"]


def test_a_thread_that_cannot_be_started_is_tried_again(rig: Rig) -> None:
    balks = [True]

    def beside(act: Callable[[], None]) -> None:
        if balks:
            raise RuntimeError("can't start new thread")
        act()

    rig.fence = FenceKeeper(WANTS, rig.state, "b1", lambda *_: None, run=rig._run, mark=rig.mark, beside=beside)
    rig.silent_for(700)
    assert not rig.acts
    balks.clear()
    rig.silent_for(5)
    assert rig.acts == ["stop"]


def test_time_in_which_we_did_not_run_is_no_silence(rig: Rig) -> None:
    rig.silent_for(100)
    rig.at += 100_000  # the machine was stopped
    rig.silent_for(100)
    assert not rig.acts


@pytest.mark.slow
def test_what_cannot_be_written_down_is_not_done(rig: Rig) -> None:
    (rig.state / "fence.json").mkdir()
    rig.silent_for(2000)
    assert not rig.acts


def test_without_a_command_a_file_says_so(tmp_path: Path) -> None:
    rig = Rig(tmp_path, SelfFence(after=600.0, probe=("scontrol", "ping")))
    rig.silent_for(700)
    assert "neither controller nor cluster" in rig.mark.read_text()
    rig.heard()
    assert not rig.mark.exists()


def test_a_command_that_is_not_there_or_hangs_has_an_exit_code() -> None:
    assert run(["/nonexistent"], 1.0) == 127
    assert run(["sleep", "30"], 0.1) == 124
    assert run(["false"], 5.0) == 1
