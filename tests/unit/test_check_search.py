"""The all-reduce over nodes, and the search for who breaks it: real processes, a loopback address for each host."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from sickbay.agent.checks.apart import ExerciseOutcome, apart
from sickbay.agent.checks.launched import Launch, first_host, is_place, launched
from sickbay.agent.checks.meeting import judged, planned, shared
from sickbay.agent.checks.node import node_tests
from sickbay.faces.cli.check_search import PairTrial, judge
from sickbay.faces.cli.main import main
from sickbay.wire.commands import ChildEnd

pytestmark = pytest.mark.slow

BIN = Path(sys.executable).parent
JOB = "sickbay.agent.checks.collective:nodes"


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("SLURM_", "OMPI_")) or name in {"RANK", "WORLD_SIZE"}]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SICKBAY_URL", "http://127.0.0.1:1")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as door:
        port: int = door.getsockname()[1]
        return port


def ring(ranks: int, present: Sequence[int] = (), **wishes: Any) -> list[ExerciseOutcome]:
    here = {"ranks": ranks, "at": f"127.0.0.1:{free_port()}", "mib": 1, "seconds": 20, **wishes}
    return apart([(JOB, {**here, "rank": rank}) for rank in present or range(ranks)], time.monotonic() + 40)


# --- who we are


@pytest.mark.parametrize(
    ("env", "is_at"),
    [
        ({"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "29500"}, (1, 4, "a:29500")),
        (
            {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "29500",
             "TORCHELASTIC_USE_AGENT_STORE": "True"}, (1, 4, "a:29501"),
        ),
        (
            {"SLURM_PROCID": "7", "SLURM_NTASKS": "8", "SLURM_JOB_NODELIST": "gpu[007-014],x", "SLURM_JOB_ID": "123456",
             "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.9"}, (7, 8, "gpu007:23456"),
        ),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.9"}, (0, 2, "10.0.0.9:28765")),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "64", "SLURM_STEP_NUM_TASKS": "8", "SLURM_NODELIST": "n1"},
         (0, 8, "n1:28765")),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3"}, (2, 3, "")),
    ],
)  # fmt: skip
def test_a_launcher_says_who_we_are(env: dict[str, str], is_at: tuple[int, int, str]) -> None:
    found = launched(env)
    assert found is not None
    assert (found.rank, found.world, found.at) == is_at


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"RANK": "0"},
        {"RANK": "0", "WORLD_SIZE": "1"},
        {"RANK": "4", "WORLD_SIZE": "4"},
        {"RANK": "x", "WORLD_SIZE": "4"},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_NODELIST": "n[1-8]", "ENVIRONMENT": "BATCH"},
    ],
)
def test_whoever_was_started_alone_waits_for_nobody(env: dict[str, str]) -> None:
    assert launched(env) is None


@given(
    st.dictionaries(st.sampled_from(["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SLURM_NODELIST"]), st.text())
)
def test_no_environment_breaks_it(env: dict[str, str]) -> None:
    found = launched({"SLURM_PROCID": "0", "SLURM_NTASKS": "2", **env})
    assert found is None or not found.at or is_place(found.at)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("a", "a"), ("a,b", "a"), ("gpu[01-04,7]", "gpu01"), ("r[1-2]n[08,9],x", "r1n08"), ("gpu-3,gpu-[4-5]", "gpu-3")],
)
def test_the_first_host_of_slurms_list(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


def test_the_test_is_there_only_for_one_among_others_and_never_for_an_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "all_reduce_nodes" not in {test.name for test in node_tests()}
    (test,) = [test for test in node_tests(launch=Launch(0, 2, "h:1")) if test.name == "all_reduce_nodes"]
    assert (test.level, test.components) == (3, ("network", "nvlink"))


# --- the all-reduce


@pytest.mark.parametrize("ranks", [2, 3])
def test_all_ranks_pass_and_say_the_same_figures(ranks: int) -> None:
    found = ring(ranks)
    assert {(one.verdict, one.because) for one in found} == {("pass", "")}
    assert len({one.figures["busbw_gbps"] for one in found}) == 1
    assert found[0].figures["ranks"] == ranks


def test_all_say_which_rank_never_came() -> None:
    found = ring(3, present=(0, 2), seconds=2)
    assert {(one.verdict, one.because) for one in found} == {("fail", "rank 1 never came")}


def test_without_rank_0_the_others_say_so() -> None:
    (found,) = ring(2, present=(1,), seconds=1)
    assert found.verdict == "fail"
    assert found.because.startswith("rank 0 never came, or cannot be reached from here: nobody answers at 127.0.0.1:")


def test_below_the_floor_fails_for_all_with_who_took_part() -> None:
    for one in ring(2, floor=1e6):
        assert one.verdict == "fail"
        assert "at least 1000000.00 expected, over rank 0 (" in one.because


def test_a_rank_that_cannot_take_part_is_told_to_all_and_blames_nobody() -> None:
    here = {"ranks": 2, "at": f"127.0.0.1:{free_port()}", "seconds": 20}
    cannot = {**here, "rank": 1, "cannot": "GPU 0 is used by pid 7"}
    found = apart([(JOB, {**here, "rank": 0}), (JOB, cannot)], time.monotonic() + 30)
    assert {one.verdict for one in found} == {"could_not_run"}
    assert all("rank 1 (" in one.because and "pid 7" in one.because for one in found)


def test_two_processes_of_one_rank_are_a_wrong_start_and_not_a_sick_node() -> None:
    found = ring(3, present=(0, 1, 1))
    assert {one.verdict for one in found} == {"could_not_run"}
    assert {one.because for one in found} == {"two processes say that they are rank 1: give each a rank of its own"}


def test_a_port_that_is_taken_and_a_name_that_means_nothing_could_not_run() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        (found,) = ring(2, present=(0,), at=f"127.0.0.1:{taken.getsockname()[1]}", seconds=2)
    assert (found.verdict, "in use" in found.because) == ("could_not_run", True)
    (found,) = ring(2, present=(1,), at="no-such-host.invalid:7", seconds=5)
    assert (found.verdict, "give an address instead" in found.because) == ("could_not_run", True)


def test_ranks_that_a_launcher_started_find_one_another() -> None:
    env = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    argv = [str(BIN / "sickbay"), "check", "--only", "all_reduce_nodes", "--within", "30", "--json"]
    started = [
        subprocess.Popen(argv, env={**env, "RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for rank in range(2)
    ]
    found = [json.loads(one.communicate(timeout=40)[0]) for one in started]
    assert [one.returncode for one in started] == [0, 0]
    assert [one["tests"][0]["figures"]["ranks"] for one in found] == [2, 2]


def test_a_stranger_at_the_door_disturbs_nobody() -> None:
    port = free_port()
    here = {"ranks": 2, "at": f"127.0.0.1:{port}", "seconds": 20, "mib": 1}
    with subprocess.Popen(
        [sys.executable, "-c", STRANGER, str(port)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    ) as stranger:
        try:
            found = apart([(JOB, {**here, "rank": rank}) for rank in range(2)], time.monotonic() + 30)
        finally:
            stranger.kill()
    assert {one.verdict for one in found} == {"pass"}


STRANGER = """
import socket, sys, time
while True:
    try:
        with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as line:
            line.sendall(b'GET / HTTP/1.1\\r\\n\\r\\n')
    except OSError:
        time.sleep(0.005)
"""

FALSE_RANK = """
import json, socket, sys, time
from sickbay.agent.checks.meeting import dial, read_line
line = dial("127.0.0.1", int(sys.argv[1]), time.monotonic() + 20)
hello = {"rank": 1, "port": 9, "host": "evil", "gpus": [], "library": False, "cannot": ""}
line.sendall((json.dumps(hello) + "\\n").encode())
read_line(line)
"""


def test_a_rank_that_goes_away_in_the_middle_is_named_by_the_others() -> None:
    port = free_port()
    with subprocess.Popen([sys.executable, "-c", FALSE_RANK, str(port)]) as gone:
        here = {"ranks": 2, "rank": 0, "at": f"127.0.0.1:{port}", "seconds": 2, "mib": 1}
        (found,) = apart([(JOB, here)], time.monotonic() + 30)
    assert gone.returncode == 0
    assert (found.verdict, found.because) == ("fail", "rank 1 (evil) went away in the middle")


# --- who takes which GPU, and what is said in the end


def hello(host: str, gpus: Sequence[str], **more: Any) -> dict[str, Any]:
    return {"host": host, "gpus": list(gpus), "library": True, "cannot": "", "address": host, "port": 1, **more}


def test_a_rank_alone_on_its_machine_takes_all_gpus_and_several_share_them() -> None:
    assert shared([hello("a", "01"), hello("b", "01")]) == [["0", "1"], ["0", "1"]]
    assert shared([hello("a", "01"), hello("a", "01")]) == [["0"], ["1"]]
    assert shared([hello("a", "0"), hello("a", "1")]) == [["0"], ["1"]]  # each sees its own only


def test_nccl_is_for_all_or_none() -> None:
    assert planned([hello("a", "0"), hello("b", "0")], lambda: "ab")["id"] == "ab"
    assert planned([hello("a", ""), hello("b", "")], lambda: "ab")["id"] == ""
    mixed = planned([hello("a", "0"), hello("b", "0", library=False)], lambda: "ab")
    assert mixed["cannot"] == "rank 1 (b) has no GPU or no NCCL, the others have both"
    assert "no GPU is left" in planned([hello("a", "0"), hello("a", "0")], lambda: "ab")["cannot"]


def test_what_could_not_run_is_said_after_what_failed_and_never_as_a_pass() -> None:
    fine = {"because": "", "figures": {"busbw_gbps": 3.0}}
    unrun = {"because": "no memory", "unrun": True}
    bad = {"because": "wrong sum"}
    assert judged([], {"r0": fine, "r1": unrun})["unrun"] is True
    assert judged([], {"r0": unrun, "r1": bad})["because"] == "r1: wrong sum"
    assert judged(["r2 went away"], {"r0": bad})["because"] == "r2 went away"
    assert judged([], {"r0": fine, "r1": {**fine, "floor": 4}})["because"].startswith(
        "bus bandwidth 3.00 GB/s, at least 4.00"
    )


def ended(verdict: str, because: str = "") -> ChildEnd:
    test = {"verdict": verdict, "because": because, "figures": {"busbw_gbps": 1.0}}
    return ChildEnd(0, json.dumps({"tests": [test]}) if verdict else "", "", 1.0)


@pytest.mark.parametrize(
    ("sides", "tries", "unrun"),
    [
        (("pass", "pass"), [True], 0),
        (("pass", "fail"), [False], 0),
        (("fail", ""), [False], 0),  # one side never came
        (("pass", ""), [False], 0),
        (("could_not_run", "could_not_run"), [], 1),
        (("could_not_run", "fail"), [], 1),  # the door of rank 0 could not be opened: its partner found it closed
        (("fail", "could_not_run"), [], 1),  # the name of rank 0 means nothing there: nobody came
    ],
)
def test_what_two_sides_say_of_their_pair(sides: tuple[str, str], tries: list[bool], unrun: int) -> None:
    trial = PairTrial(("a", "b"))
    judge(trial, [ended(sides[0]), ended(sides[1])])
    assert (trial.passed, trial.unrun) == (tries, unrun)


# --- the search


def sickbay(*args: str) -> Result:
    return CliRunner().invoke(main, ["check", *args], catch_exceptions=False)


def hosts(number: int) -> list[str]:
    return [f"127.0.0.{one}" for one in range(2, number + 2)]


@pytest.fixture
def template(tmp_path: Path) -> Callable[..., str]:
    """A command that runs on "a host"; on the hosts that it is given something happens to checks instead."""

    def write(**what: Sequence[str]) -> str:
        (tmp_path / "sitecustomize.py").write_text(LIES, encoding="utf-8")
        script = tmp_path / "on"
        does = {**DOES, "lies": f'export PYTHONPATH="{tmp_path}"'}
        cases = "".join(f"{'|'.join(who)}) {does[name]} ;;\n" for name, who in what.items())
        script.write_text(
            f'#!/bin/sh\nhost=$1; shift\nexport NODE=$host PATH="{BIN}:$PATH"\n'
            f'case $host in\n{cases}esac\nexec "$@"\n', encoding="utf-8",
        )  # fmt: skip
        script.chmod(0o755)
        return f"{script} {{host}}"

    return write


# A host whose words are all one too many: it is content with its sums, its partner is not.
LIES = """
import sys
if any("collective:nodes" in word for word in sys.orig_argv):
    from sickbay.agent.checks import collective
    right = collective._repeated
    collective._repeated = lambda cycle, words: right([one + 1 for one in cycle], words)
"""
DOES = {
    "dies": 'case "$*" in *--rank*) exit 1;; esac',
    "away": "echo 'Connection timed out' >&2; exit 255",
    "slow": 'case "$*" in *--rank*) exec "$@" --floor 1000000;; esac',
    "deaf": "exec sleep 600",
    "mute": 'case "$*" in *--rank*) exec sleep 600;; esac',
}


def search(names: Sequence[str], template: str, *more: str) -> tuple[int, dict[str, Any], str]:
    result = sickbay("--search", ",".join(names), "--with", template, "--within", "4", "--json", *more)
    return result.exit_code, json.loads(result.stdout), result.stderr


def test_all_good_is_exit_0(template: Callable[..., str]) -> None:
    code, found, told = search(hosts(4), template(), "--within", "20")
    assert (code, found["bad"], found["suspects"], found["unknown"]) == (0, [], [], [])
    assert found["good"] == hosts(4)
    assert len(found["rounds"]) == 1
    assert "round 1: 2 of 2 pairs passed\n" in told
    assert found["rounds"][0]["pairs"][0]["figures"]["busbw_gbps"] > 0


@pytest.mark.parametrize("how", ["dies", "slow", "lies"])
def test_the_bad_one_is_named_and_no_other(template: Callable[..., str], how: str) -> None:
    names = hosts(4)
    code, found, told = search(names, template(**{how: [names[2]]}), "--within", "8")
    assert (code, found["bad"], found["unknown"]) == (1, [names[2]], [])
    assert sorted(found["good"]) == sorted(set(names) - {names[2]})
    assert found["suspects"] == names[2:]
    assert f"round 1: 1 of 2 pairs passed; suspects: {names[2]}, {names[3]}\n" in told
    assert found["because"].startswith(f"{names[2]} failed with two partners")


def test_two_bad_of_seven(template: Callable[..., str]) -> None:
    names = hosts(7)
    code, found, _ = search(names, template(lies=[names[1], names[5]]), "--within", "20")
    assert (code, found["bad"], found["unknown"]) == (1, [names[1], names[5]], [])
    assert len(found["good"]) == 5
    assert "of the sum is" in found["why"][names[1]]


def test_where_no_pair_passes_nobody_is_blamed(template: Callable[..., str]) -> None:
    names = hosts(2)
    code, found, _ = search(names, template(dies=names))
    assert (code, found["bad"], found["unknown"]) == (1, [], names)
    assert found["because"].startswith("cannot tell: no pair passed")


def test_an_unreachable_host_is_no_failed_collective(template: Callable[..., str]) -> None:
    names = hosts(3)
    code, found, told = search(names, template(away=[names[0]]), "--within", "20")
    assert (code, found["bad"], found["unreachable"], found["suspects"]) == (1, [], [names[0]], [])
    assert found["good"] == names[1:]
    assert found["why"][names[0]].endswith("Connection timed out")
    assert f"{names[0]} cannot be reached: the command ended with 255: Connection timed out" in told


def test_names_that_mean_nothing_to_the_hosts_blame_nobody(template: Callable[..., str]) -> None:
    names = ["a.invalid", "b.invalid"]
    began = time.monotonic()
    code, found, _ = search(names, template(), "--within", "60")
    assert (code, found["bad"], found["unknown"]) == (1, [], names)
    assert found["rounds"][0]["pairs"][0]["verdict"] == "could_not_run"
    assert "give an address instead" in found["why"]["a.invalid"]
    assert time.monotonic() - began < 25  # nobody waits for who cannot come


def test_people_get_a_table(template: Callable[..., str]) -> None:
    names = hosts(3)
    result = sickbay("--search", ",".join(f"h{one}={one}" for one in names), "--with", template(away=["h" + names[0]]))
    assert result.exit_code == 1
    assert [line.split()[:2] for line in result.stdout.splitlines()[1:]] == [
        [f"h{names[0]}", "unknown"], [f"h{names[1]}", "good"], [f"h{names[2]}", "good"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("number", "how"), [(signal.SIGINT, "mute"), (signal.SIGTERM, "mute"), (signal.SIGINT, "deaf")]
)
def test_whoever_ends_it_leaves_no_process(template: Callable[..., str], number: signal.Signals, how: str) -> None:
    argv = [str(BIN / "sickbay"), "check", "--search", ",".join(hosts(2)), "--with", template(**{how: hosts(2)})]
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as searching:
        me = psutil.Process(searching.pid)

        def asleep() -> list[psutil.Process]:
            return [one for one in me.children(recursive=True) if one.name() == "sleep"]

        deadline = time.monotonic() + 30
        while len(sleeping := asleep()) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        searching.send_signal(number)
        assert searching.wait(20) == 130
    _, alive = psutil.wait_procs(sleeping, timeout=10)
    assert alive == []


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--search", "a"), "at least two hosts"),
        (("--search", "a,a"), "names a twice"),
        (("--search", "a,-oProxyCommand=x"), "is no host"),
        (("--search", "a,$(b)"), "is no host"),
        (("--search", "a,,b"), "'' is no host"),
        (("--search", "a,b", "--with", "ssh"), "write {host}"),
        (("--search", "a,b", "--with", "ssh '{host}"), "cannot be read"),
        (("--search", "a,b", "--with", "/nowhere/at/all {host}"), "cannot be run here"),
        (("--search", "a,b", "--all"), "leave the other options"),
        (("--search", "a,b", "--only", "disk"), "leave the other options"),
        (("--with", "ssh {host}"), "write --search HOST,HOST too"),
        (("--rank", "0"), "belong together"),
        (("--rank", "2", "--world", "2", "--at", "h:1"), "write 0 to 1"),
        (("--rank", "0", "--world", "2", "--at", "h"), "write HOST:PORT"),
        (("--at", "h:1"), "needs to know the ranks"),
        (("--floor", "3"), "is for all_reduce_nodes"),
        (("n0", "--rank", "0"), "--rank is for a check of this machine"),
        (("--only", "all_reduce_nodes"), "needs the other ranks"),
    ],
)
def test_wrong_use_is_one_line(args: tuple[str, ...], says: str) -> None:
    result = sickbay(*args)
    assert result.exit_code == 2
    assert says in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_the_help_tells_of_both() -> None:
    text = sickbay("--help").stdout
    assert "srun -N8 sickbay check --only all_reduce_nodes" in text
    assert "--search gpu1,gpu2" in text


def test_a_launcher_that_does_not_say_where_rank_0_is_could_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    result = sickbay("--only", "all_reduce_nodes", "--json")
    (test,) = json.loads(result.stdout)["tests"]
    assert (result.exit_code, test["verdict"]) == (1, "could_not_run")
    assert "MASTER_ADDR" in test["because"]
