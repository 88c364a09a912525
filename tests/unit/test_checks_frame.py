"""The frame of checks: deadlines, figures, profiles, progress, and children that are killed with all they started."""

import os
import resource
import sys
import time
from pathlib import Path

import psutil
import pytest
from tests.support.waiting import until

from sickbay.agent.checks import COMPONENTS, CouldNotRun, Exercise, Result, examine, select
from sickbay.agent.checks.apart import JOBS, ExerciseOutcome, apart, outcome, perform, run_tool, together
from sickbay.agent.checks.profiles import UnknownProfile, _table, wanted
from sickbay.knowledge.load import load_tables
from sickbay.model.checkup import Tested, Verdict
from sickbay.wire import commands
from sickbay.wire.commands import Child

LATER = 1e12


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE  # dead; whoever adopted it has not looked yet
    except psutil.NoSuchProcess:
        return True


def fine(_: float) -> str:
    return ""


def names(tests: list[Exercise], level: int, profile: str = "") -> list[str]:
    return [test.name for test in select(tests, level, profile)]


TESTS = [
    Exercise("first", 1, fine, components=("disk",)),
    Exercise("memory", 2, fine, components=("memory",)),
    Exercise("links", 2, fine, components=("nvlink",)),
    Exercise("anything", 2, fine),
    Exercise("efa_loopback", 3, fine, components=("network",)),
    Exercise("memory_all", 3, fine, components=("memory",), contains=("memory",)),
    Exercise("dcgm_2", 2, fine, components=("compute", "memory")),
    Exercise("dcgm_3", 3, fine, components=("compute", "memory")),
    Exercise("cpu", 2, fine, components=("cpu",)),
    Exercise("disk", 2, fine, components=("disk",)),
]


def test_figures_and_evidence_come_with_the_verdict() -> None:
    tests = [
        Exercise("slow", 1, lambda _: Result("too slow", {"h2d_gbps": 3.14159})),
        Exercise("fast", 1, lambda _: Result(figures={"h2d_gbps": 50})),
    ]
    verdict, because, (slow, fast) = examine(tests, 1, LATER)
    assert (verdict, because) == ("fail", "slow: too slow")
    assert (slow.figures, fast.figures, fast.verdict) == ({"h2d_gbps": 3.142}, {"h2d_gbps": 50}, "pass")


def test_what_could_not_run_keeps_what_it_measured() -> None:
    def partly(_: float) -> str:
        raise CouldNotRun("half of it", {"gpus": 4})

    _, _, (tested,) = examine([Exercise("a", 1, partly)], 1, LATER)
    assert (tested.verdict, tested.figures) == ("could_not_run", {"gpus": 4})


def test_each_test_gets_its_own_deadline_and_never_more_than_the_whole() -> None:
    given: list[float] = []

    def note(limit: float) -> str:
        given.append(limit - time.monotonic())
        return ""

    examine([Exercise("a", 1, note, 5.0), Exercise("b", 1, note)], 1, time.monotonic() + 60)
    examine([Exercise("a", 1, note, 500.0)], 1, time.monotonic() + 60)
    assert [round(seconds) for seconds in given] == [5, 60, 60]


def test_progress_is_told_before_and_after_each_test() -> None:
    told: list[tuple[str, str]] = []

    def tell(name: str, tested: Tested | None) -> None:
        told.append((name, "" if tested is None else tested.verdict))

    examine(TESTS[:2], 2, LATER, "", tell)
    assert told == [("first", ""), ("first", "pass"), ("memory", ""), ("memory", "pass")]


def test_after_a_fault_the_tests_that_would_meet_it_again_run_and_level_1_always() -> None:
    assert names(TESTS, 2, "memory") == ["first", "memory", "anything", "dcgm_2"]
    assert names(TESTS, 2, "nvlink") == ["first", "links", "anything"]
    assert names(TESTS, 2, "xid.48") == names(TESTS, 2, "memory")
    assert names(TESTS, 2, "xid.74") == names(TESTS, 2, "nvlink")
    assert names(TESTS, 1, "memory") == ["first"]


def test_a_longer_test_stands_for_the_shorter_one_that_it_contains() -> None:
    assert "memory" not in names(TESTS, 3)
    assert "memory" in names(TESTS, 2)


def test_the_set_hyperpod_is_what_that_service_runs_whatever_the_level() -> None:
    assert names(TESTS, 1, "hyperpod") == ["first", "efa_loopback", "dcgm_2", "cpu", "disk"]


def test_an_unknown_profile_is_could_not_run_in_one_line() -> None:
    verdict, because, tests = examine(TESTS, 1, LATER, "memroy")
    assert (verdict, tests) == ("could_not_run", ())
    assert because.startswith("there is no profile 'memroy': write one of ")
    assert "\n" not in because
    with pytest.raises(UnknownProfile):
        wanted("no.such_code")


def test_every_component_and_every_fault_of_the_tables_has_its_tests() -> None:
    """The engine asks with the component of the fault: an unknown one would leave the node out for ever."""
    for row in load_tables().meanings():
        assert "first" in names(TESTS, 2, row.component)
        assert names(TESTS, 2, row.code) == names(TESTS, 2, row.component)
    assert names(TESTS, 2, "node") == names(TESTS, 2)


def test_profiles_speak_of_components_that_tests_have() -> None:
    for profile in _table():
        assert wanted(profile).components <= {*COMPONENTS, "*"}


# --- children


@pytest.mark.slow
def test_a_child_that_hangs_is_killed_at_its_deadline_with_all_that_it_started(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    script = f"sleep 600 & echo $! > {note}; trap '' TERM INT; sleep 600"
    began = time.monotonic()
    ended = run_tool(["sh", "-c", script], began + 1.0)
    assert (ended.code, ended.stuck) == (None, False)
    assert time.monotonic() - began < 5
    grandchild = int(note.read_text())
    assert until(lambda: gone(grandchild))


def test_what_a_child_left_running_ends_with_it(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    ended = run_tool(["sh", "-c", f"sleep 600 & echo $! > {note}; echo done"], time.monotonic() + 10)
    assert (ended.code, ended.out) == (0, "done\n")
    assert until(lambda: gone(int(note.read_text())))


def test_an_interrupt_leaves_no_child_behind() -> None:
    child = Child(["sleep", "600"])
    with pytest.raises(TypeError):
        child.finish("soon")  # type: ignore[arg-type]  # whatever goes wrong while somebody waits
    assert not psutil.pid_exists(child.pid)
    child.finish(0.0)


def test_a_child_that_not_even_a_kill_ends_is_left_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a device that holds a process in the kernel: nobody waits for it."""
    monkeypatch.setattr(commands, "TO_DIE", 0.1)
    child = Child(["sleep", "600"])
    with monkeypatch.context() as deaf:
        deaf.setattr(os, "killpg", lambda *_: None)
        ended = child.finish(time.monotonic() + 0.1)
    try:
        assert ended.stuck
        found = outcome(ended, 0.1)
        assert found.verdict == "could_not_run"
        assert "not even a kill ended it" in found.because
    finally:
        assert not child.kill()
    run_tool(["true"], time.monotonic() + 10)
    assert commands._stuck == []  # it is forgotten once it has ended


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Jobs of our own, importable in the child."""
    (tmp_path / "odd_jobs.py").write_text(
        "import os, sys, time\n"
        "from sickbay.agent.checks import CouldNotRun, Result\n"
        "def hang(wants):\n    time.sleep(600)\n"
        "def crash(wants):\n    os.kill(os.getpid(), 11)\n"
        "def boom(wants):\n    raise ZeroDivisionError('x')\n"
        "def loud(wants):\n    print('a library says hello', flush=True)\n    return Result('', {'a': 1.0})\n"
        "def bad(wants):\n    return Result('broken')\n"
        "def unable(wants):\n    raise CouldNotRun('no tool')\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
    return "odd_jobs"


@pytest.mark.slow
def test_a_hanging_test_is_could_not_run_and_says_so(jobs: str) -> None:
    (found,) = apart([(f"{jobs}:hang", {})], time.monotonic() + 1.0)
    assert found.verdict == "could_not_run"
    assert found.because == "it did not end within 1 s and was killed"


@pytest.mark.parametrize(
    ("name", "verdict", "says"),
    [
        ("crash", "could_not_run", "signal 11 ended it"),
        ("boom", "could_not_run", "ZeroDivisionError: x"),
        ("loud", "pass", ""),
        ("bad", "fail", "broken"),
        ("unable", "could_not_run", "no tool"),
    ],
)
def test_whatever_a_child_does_there_is_a_verdict(jobs: str, name: str, verdict: str, says: str) -> None:
    (found,) = apart([(f"{jobs}:{name}", {})], time.monotonic() + 30)
    assert found.verdict == verdict
    assert says in found.because


def test_a_child_ends_when_its_parent_is_killed(jobs: str) -> None:
    code = f"from sickbay.agent.checks.apart import apart; apart([('{jobs}:hang', {{}})], 1e9)"
    parent = psutil.Popen([sys.executable, "-c", code])
    try:
        assert until(lambda: bool(parent.children()))
        (child,) = parent.children()
        assert until(lambda: "apart" in " ".join(child.cmdline()))
        # Only once it has asked for it does the kernel end it with its parent: it then sleeps in its job.
        assert until(lambda: child.cpu_times().user > 0 and child.status() == psutil.STATUS_SLEEPING)
    finally:
        parent.kill()
        parent.wait()
    assert until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def test_every_job_of_the_table_is_there() -> None:
    for job in JOBS.values():
        module, _, name = job.partition(":")
        assert callable(getattr(__import__(module, fromlist=[name]), name))


def test_of_several_alike_those_that_failed_are_named_with_all_figures() -> None:
    found = [
        ExerciseOutcome(Verdict.PASS, "", {"x": 1}),
        ExerciseOutcome(Verdict.FAIL, "bad row", {"x": 2}),
        ExerciseOutcome(Verdict.COULD_NOT_RUN, "is busy"),
    ]
    result = together(["GPU 0", "GPU 1", "GPU 2"], found)
    assert result == Result("GPU 1: bad row", {"gpu.0.x": 1, "gpu.1.x": 2})
    with pytest.raises(CouldNotRun, match="GPU 2 is busy"):
        together(["GPU 0", "GPU 2"], [found[0], found[2]])


def test_a_job_in_this_process_has_the_same_verdicts(tmp_path: Path) -> None:
    assert perform("disk", {"directory": str(tmp_path), "mib": 4}).verdict == "pass"
    assert perform("disk", {"directory": str(tmp_path / "gone")}).verdict == "could_not_run"


def test_a_check_has_not_the_agents_limit_of_memory_and_goes_first_where_memory_is_short() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (64 << 30, hard))
    try:
        words = "sleep 0.3; ulimit -Sd; ulimit -Hd; cat /proc/self/oom_score_adj"
        ended = run_tool(["sh", "-c", words], time.monotonic() + 10)
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
    here, most, score = ended.out.split()
    assert (here, score) == (most, "500")
