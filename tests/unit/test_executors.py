"""The executors' contract, and what threads alone can suffer."""

import threading
from collections.abc import Callable, Iterator

import pytest

from sickbay.adapters.executors.threads import ThreadExecutor
from sickbay.model.facts import CallResult, Outcome
from sickbay.sim.host import InlineExecutor
from sickbay.testing.executor_contract import (
    LANE,
    LONG,
    OTHER,
    SHORT,
    ConcurrentContract,
    ExecutorContract,
    OutcomeCollector,
    Stuck,
    answer,
)


class TestInlineExecutor(ExecutorContract):
    @pytest.fixture
    def executor(self) -> InlineExecutor:
        return InlineExecutor()


class TestThreadExecutor(ExecutorContract, ConcurrentContract):
    @pytest.fixture
    def executor(self) -> Iterator[ThreadExecutor]:
        executor = ThreadExecutor(workers_per_lane=3)
        yield executor
        executor.close(within=0.0)

    def test_a_lane_has_as_many_workers_as_it_was_given(
        self, executor: ThreadExecutor, stuck: Callable[[str], Stuck]
    ) -> None:
        assert self.fill(executor, LANE, LONG, OutcomeCollector(), stuck) == 3

    def test_time_outs_pass_in_their_own_order(
        self, executor: ThreadExecutor, stuck: Callable[[str], Stuck], heard: OutcomeCollector
    ) -> None:
        executor.submit(LANE, stuck("late"), 3 * SHORT, heard, "late")
        executor.submit(OTHER, stuck("soon"), SHORT, heard, "soon")
        assert [heard.next().key, heard.next().key] == ["soon", "late"]

    def test_after_close_nothing_is_called_any_more(
        self, executor: ThreadExecutor, stuck: Callable[[str], Stuck], heard: OutcomeCollector
    ) -> None:
        executor.close()
        call = stuck("after")
        assert not executor.room(LANE)
        executor.submit(LANE, call, LONG, heard, "after")
        assert heard.next().result == "transient"
        assert not call.began.is_set()

    def test_close_returns_when_every_call_has_yielded(
        self, executor: ThreadExecutor, stuck: Callable[[str], Stuck], heard: OutcomeCollector
    ) -> None:
        call = stuck("slow")
        executor.submit(LANE, call, LONG, heard, "slow")
        closing = threading.Thread(target=executor.close)
        closing.start()
        assert call.began.wait(LONG)
        call.let_go()
        closing.join(LONG)
        assert not closing.is_alive()
        assert heard.next().result == "accepted"

    def test_close_gives_up_what_hangs(
        self, executor: ThreadExecutor, stuck: Callable[[str], Stuck], heard: OutcomeCollector
    ) -> None:
        filled = self.fill(executor, LANE, LONG, heard, stuck)
        executor.close(within=SHORT)
        assert [heard.next().result for _ in range(filled)] == ["unknown"] * filled
        assert heard.nothing_more

    def test_an_outcome_and_its_time_out_that_meet_are_one(self, heard: OutcomeCollector) -> None:
        executor = ThreadExecutor(workers_per_lane=1000)
        for number in range(300):  # each call ends about when its time does
            executor.submit(LANE, answer(str(number)), 0.0, heard, str(number))
        executor.close()
        told = [heard.next() for _ in range(300)]
        assert heard.nothing_more
        assert {outcome.key for outcome in told} == {str(number) for number in range(300)}

    def test_no_thread_keeps_the_process_alive(
        self, executor: ThreadExecutor, stuck: Callable[[str], Stuck], heard: OutcomeCollector
    ) -> None:
        before = set(threading.enumerate())  # executors of other tests may still be ending
        self.fill(executor, LANE, LONG, heard, stuck)
        ours = [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("effect ")]
        assert len(ours) == 4  # three workers and the one that keeps the time
        assert all(thread.daemon for thread in ours)


@pytest.mark.parametrize("workers", [0, -1])
def test_a_lane_without_workers_is_refused(workers: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        ThreadExecutor(workers_per_lane=workers)


def test_an_idle_executor_has_no_threads() -> None:
    before = threading.active_count()
    executor = ThreadExecutor()
    assert executor.room(LANE)
    assert threading.active_count() == before
    executor.close()


def test_outcomes_made_here_name_their_intent() -> None:
    heard = OutcomeCollector()
    executor = ThreadExecutor()
    executor.close()
    executor.submit(LANE, answer("a"), LONG, heard, "a")
    assert heard.next() == Outcome(key="a", result=CallResult.TRANSIENT, sends=0, text=f"no worker is free for {LANE}")
