"""The contract of the Executor port as a suite, for every adapter, also for those written elsewhere.

    class TestMyExecutor(ExecutorContract):
        @pytest.fixture
        def executor(self):
            executor = MyExecutor()
            yield executor
            executor.close()

An executor that makes its calls elsewhere than in `submit` also takes `ConcurrentContract`.
"""

from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from threading import Event

import pytest

from sickbay.model.facts import CallResult, Outcome
from sickbay.ports.executor import Executor

LONG = 30.0  # no test waits so long unless the contract is broken
SHORT = 0.05  # a time-out that is meant to pass

LANE, OTHER = "c/Repair", "c/Notify"


class OutcomeCollector:
    """Collects outcomes."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Outcome] = SimpleQueue()

    def __call__(self, outcome: Outcome) -> None:
        self._queue.put(outcome)

    def next(self) -> Outcome:
        return self._queue.get(timeout=LONG)

    @property
    def nothing_more(self) -> bool:
        try:
            self._queue.get_nowait()
        except Empty:
            return True
        return False


def answer(key: str, result: CallResult = CallResult.ACCEPTED) -> Callable[[], Outcome]:
    return lambda: Outcome(key=key, result=result, sends=1)


class ExecutorContract:
    """What every executor promises. The fixture `executor` gives one without calls to each test."""

    @pytest.fixture
    def heard(self) -> OutcomeCollector:
        return OutcomeCollector()

    def test_has_room_at_first(self, executor: Executor) -> None:
        assert executor.room(LANE)

    def test_a_call_yields_its_own_outcome_once(self, executor: Executor, heard: OutcomeCollector) -> None:
        executor.submit(LANE, answer("a", CallResult.REJECTED), LONG, heard, "a")
        assert heard.next() == Outcome(key="a", result=CallResult.REJECTED, sends=1)
        executor.submit(LANE, answer("b"), LONG, heard, "b")
        assert heard.next().key == "b"
        assert heard.nothing_more

    def test_whoever_hears_an_outcome_finds_room_again(self, executor: Executor, heard: OutcomeCollector) -> None:
        for number in range(50):
            assert executor.room(LANE)
            executor.submit(LANE, answer(str(number)), LONG, heard, str(number))
            assert heard.next().key == str(number)

    def test_an_outcome_that_cannot_be_taken_keeps_no_place(self, executor: Executor, heard: OutcomeCollector) -> None:
        """`done` may find its store gone. What it raises may reach the caller, but takes no room."""

        def refuse(outcome: Outcome) -> None:
            raise RuntimeError(outcome.key)

        for number in range(50):
            try:
                executor.submit(LANE, answer(str(number)), LONG, refuse, str(number))
            except RuntimeError:
                continue
        executor.submit(OTHER, answer("last"), LONG, heard, "last")
        assert heard.next().key == "last"


class Stuck:
    """A call that does not return until it is let go."""

    def __init__(self, key: str) -> None:
        self._key = key
        self.began = Event()
        self._go = Event()

    def __call__(self) -> Outcome:
        self.began.set()
        self._go.wait(LONG)
        return Outcome(key=self._key, result=CallResult.ACCEPTED, sends=1)

    def let_go(self) -> None:
        self._go.set()


class ConcurrentContract:
    """For executors that return from `submit` before the call has ended."""

    @pytest.fixture
    def stuck(self) -> Iterator[Callable[[str], Stuck]]:
        made: list[Stuck] = []

        def make(key: str) -> Stuck:
            made.append(Stuck(key))
            return made[-1]

        yield make
        for call in made:
            call.let_go()

    def fill(
        self, executor: Executor, lane: str, timeout: float, heard: OutcomeCollector, stuck: Callable[[str], Stuck]
    ) -> int:
        """Submits calls that hang until there is no room; how many."""
        filled = 0
        while executor.room(lane):
            call = stuck(f"{lane}-{filled}")
            executor.submit(lane, call, timeout, heard, f"{lane}-{filled}")
            assert call.began.wait(LONG)
            filled += 1
            assert filled < 1000, "a lane must be bounded: a cluster that hangs would eat all threads"
        return filled

    def test_a_call_that_takes_too_long_yields_unknown_and_nothing_later(
        self, executor: Executor, stuck: Callable[[str], Stuck]
    ) -> None:
        heard, call = OutcomeCollector(), stuck("slow")
        executor.submit(LANE, call, SHORT, heard, "slow")
        outcome = heard.next()
        assert (outcome.key, outcome.result) == ("slow", CallResult.UNKNOWN)
        call.let_go()
        executor.submit(OTHER, answer("after"), LONG, heard, "after")
        assert heard.next().key == "after"
        assert heard.nothing_more

    def test_a_lane_that_hangs_fills_up_and_leaves_the_others_alone(
        self, executor: Executor, stuck: Callable[[str], Stuck]
    ) -> None:
        heard = OutcomeCollector()
        filled = self.fill(executor, LANE, SHORT, heard, stuck)
        assert {heard.next().result for _ in range(filled)} == {CallResult.UNKNOWN}
        assert not executor.room(LANE), "a call that hangs keeps its place after its time-out"
        assert executor.room(OTHER)
        executor.submit(OTHER, answer("b"), LONG, heard, "b")
        assert heard.next() == Outcome(key="b", result=CallResult.ACCEPTED, sends=1)

    def test_a_call_without_room_certainly_has_no_effect(
        self, executor: Executor, stuck: Callable[[str], Stuck]
    ) -> None:
        self.fill(executor, LANE, LONG, OutcomeCollector(), stuck)
        heard, extra = OutcomeCollector(), stuck("extra")
        executor.submit(LANE, extra, LONG, heard, "extra")
        assert heard.next().result == CallResult.TRANSIENT
        assert not extra.began.is_set()

    def test_a_lane_that_comes_back_has_room_again(self, executor: Executor, stuck: Callable[[str], Stuck]) -> None:
        heard, call = OutcomeCollector(), stuck("slow")
        executor.submit(LANE, call, LONG, heard, "slow")
        assert call.began.wait(LONG)
        call.let_go()
        assert heard.next().result == CallResult.ACCEPTED
        assert executor.room(LANE)

    def test_a_call_that_breaks_is_unknown(self, executor: Executor) -> None:
        def breaks() -> Outcome:
            raise KeyError("a defect of an adapter")

        heard = OutcomeCollector()
        executor.submit(LANE, breaks, LONG, heard, "broken")
        outcome = heard.next()
        assert (outcome.key, outcome.result) == ("broken", CallResult.UNKNOWN)
        assert "a defect of an adapter" in outcome.text
