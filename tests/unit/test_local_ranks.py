"""Ranks are real processes: how they begin, how they end, and what is left of them (nothing)."""

import os
import signal
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.local_node import LocalNode, living
from tests.support.waiting import until

from sickbay.agent.ranks.directory import read_rank, runner_of, running
from sickbay.agent.ranks.output import end_of_output, read_output
from sickbay.agent.ranks.pids import in_our_numbers
from sickbay.agent.ranks.rendezvous import CONF
from sickbay.clusters.local import processes
from sickbay.clusters.local.files import Rank
from sickbay.clusters.local.ranks import OF_THE_NODE
from sickbay.model.job import LogRule, RankState

pytestmark = pytest.mark.slow


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LocalNode]:
    with LocalNode(tmp_path) as node:
        yield node


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def marked(rank: Rank) -> dict[int, str]:
    return processes.find(marks=(f"SICKBAY_RANK={rank.job}.{rank.attempt}.{rank.rank}.{rank.boot_id}",))


def test_a_rank_sees_who_it_is_and_no_secret(tmp_path: Path) -> None:
    node = LocalNode(tmp_path)
    node.power_on(SICKBAY_TOKEN="hunter2", SICKBAY_TOKEN_FILE="/hunter2", AWS_SECRET_ACCESS_KEY="hunter2")
    with node:
        env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "23456", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "2"}
        env |= {"RANK": "77", "GREETING": "hello"}
        node.run("env", ranks=2, env=env, node_rank=3)
        seen = dict(line.partition("=")[::2] for line in node.gone(rank=1).tail.splitlines())
        assert seen["RANK"] == seen["LOCAL_RANK"] == seen["CUDA_VISIBLE_DEVICES"] == "1"
        assert seen["NODE_RANK"] == "3"
        assert seen["MASTER_ADDR"] == "127.0.0.1"
        assert seen["GREETING"] == "hello"
        assert (seen["SICKBAY_JOB_ID"], seen["SICKBAY_ATTEMPT"], seen["SICKBAY_BOOT"]) == ("j", "1", node.boot_id)
        assert seen["SICKBAY_HEARTBEAT"] == str(node.run_dir(rank=1) / "heartbeat.json")
        assert not any("hunter2" in value or name.startswith("SICKBAY_AGENT") for name, value in seen.items())
        base = {name for name in seen if name in OF_THE_NODE or name.startswith("LC_")}
        torchrun = {name: value for name, value in seen.items() if name.startswith("PET_")}
        assert torchrun == {
            "PET_RDZV_ID": "j.1", "PET_RDZV_CONF": CONF, "PET_NNODES": "4", "PET_NODE_RANK": "3",
            "PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": "23456", "PET_LOCAL_ADDR": "127.0.0.1",
        }  # fmt: skip
        gpus = {"CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES"}
        launch = {"RANK", "LOCAL_RANK", "NODE_RANK", *gpus, *env, *torchrun}
        assert {name for name in seen.keys() - base - launch if not name.startswith("SICKBAY_")} <= {
            "PWD",
            "SHLVL",
            "_",
        }


def test_an_env_file_is_read_when_the_rank_starts_and_one_that_cannot_be_is_said(tmp_path: Path) -> None:
    file = tmp_path / "secret.env"
    file.write_text("# mine\nexport TOKEN='s3cret'\nBOTH=file\n")
    file.chmod(0o600)
    with LocalNode(tmp_path) as node:
        node.run("env", env={"BOTH": "given"}, env_files=(str(file),))
        seen = dict(line.partition("=")[::2] for line in node.gone().tail.splitlines())
        assert (seen["TOKEN"], seen["BOTH"]) == ("s3cret", "given")
        file.chmod(0o604)
        node.run("env", job="j2", env_files=(str(file),))
        rank = node.gone("j2")
        assert rank.exit_code == 126
        assert rank.why == f"sickbay: env file {file} can be read or written by everybody: chmod o-rw {file}"
        assert "s3cret" not in rank.tail


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", -9), ("kill -15 $$", -15)])
def test_an_exit_is_told_as_it_was(node: LocalNode, script: str, code: int) -> None:
    node.sh(f"echo out; echo err >&2; {script}")
    rank = node.gone()
    assert (rank.exit_code, rank.stopped, rank.why) == (code, False, "")
    assert rank.tail == "out\nerr\n" == node.output()
    assert rank.began_at <= (rank.ended_at or 0.0) <= time.time()


def test_what_the_agent_needs_is_in_the_ranks_directory_and_in_the_end_how_it_ended(node: LocalNode) -> None:
    rule = LogRule(name="loss", pattern="loss=", recurs_within=3.0)
    node.sh("exec sleep 1000", stall_after=4.5, log_rules=(rule,))
    rank = node.rank()
    (found,) = running(node.paths.instance("i1"), node.boot_id)
    assert (rank.state, found.file.stall_after, found.file.log_rules) == (RankState.RUNNING, 4.5, (rule,))
    assert in_our_numbers(found).pid == rank.pid
    assert rank.pid in living(node.boot_id)
    assert os.getpgid(rank.pid) == rank.pid
    os.kill(rank.pid, signal.SIGSEGV)
    node.gone()
    until(lambda: runner_of(found.run) is None)
    ended = read_rank(found.run)
    assert ended is not None
    assert (ended.file.exit_code, ended.file.stopped) == (-signal.SIGSEGV, False)


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        (("no-such-command", "--flag"), 127, "no-such-command: command not found"),
        (("/etc/hostname/x",), 126, "/etc/hostname/x: Not a directory"),
        (("/etc",), 126, "/etc: Permission denied"),
        ((), 127, "no command was given"),
        (("echo", "nul\0byte"), 126, "embedded null byte"),
    ],
)
def test_a_command_that_cannot_start_says_so_as_a_shell_would(
    node: LocalNode, command: tuple[str, ...], code: int, words: str
) -> None:
    node.run(*command)
    rank = node.gone()
    assert rank.exit_code == code
    assert words in rank.tail
    assert words in rank.why
    assert words in node.output()


def test_a_file_that_is_no_program_cannot_be_run(node: LocalNode, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("hello")
    node.run(str(text), job="plain")
    assert node.gone("plain").exit_code == 126
    assert "Permission denied" in node.gone("plain").tail
    text.chmod(text.stat().st_mode | stat.S_IXUSR)
    node.run(str(text), job="executable")
    assert node.gone("executable").exit_code == 126
    assert "Exec format error" in node.gone("executable").tail


def test_a_directory_that_is_missing_is_named(node: LocalNode) -> None:
    node.run("true", cwd="/no/such/place")
    assert node.gone().exit_code == 126
    assert node.gone().tail == "cd: /no/such/place: No such file or directory\n"


def test_a_rank_runs_where_it_was_asked_to(node: LocalNode, tmp_path: Path) -> None:
    node.sh("pwd", job="there", cwd=str(tmp_path))
    node.sh("pwd", job="own")
    assert node.gone("there").tail == f"{tmp_path}\n"
    assert node.gone("own").tail == f"{node.run_dir('own')}\n"


def test_one_that_cannot_start_does_not_hinder_the_others(node: LocalNode) -> None:
    node.sh('[ "$RANK" = 0 ] && exit 3; exec sleep 1000', ranks=2)
    assert node.gone(rank=0).exit_code == 3
    assert node.rank(rank=1).state is RankState.RUNNING


def test_a_stop_is_polite_first(node: LocalNode) -> None:
    node.sh("trap 'echo bye; exit 5' TERM; echo up; while :; do sleep 0.02; done")
    node.says("up")
    node.stop()
    rank = node.gone()
    assert (rank.exit_code, rank.stopped, rank.why) == (5, True, "it was asked to stop")
    assert rank.tail.endswith("bye\n")


def test_a_stop_kills_whoever_does_not_listen(node: LocalNode) -> None:
    node.sh("trap '' TERM; echo up; while :; do sleep 0.02; done")
    node.says("up")
    node.stop(grace=0.3)
    rank = node.gone()
    assert (rank.exit_code, rank.stopped) == (-9, True)
    assert (rank.ended_at or 0.0) - rank.began_at >= 0.3


def test_a_frozen_rank_dies_of_a_stop_without_ever_running_again(node: LocalNode) -> None:
    node.sh("trap 'echo thawed' TERM CONT; echo up; while :; do sleep 0.02; done")
    node.says("up")
    os.killpg(node.rank().pid, signal.SIGSTOP)
    node.stop(grace=0.2)
    assert node.gone().exit_code == -9
    assert "thawed" not in node.output()


def test_a_stop_is_not_to_blame_for_a_rank_that_had_ended(node: LocalNode) -> None:
    node.sh('[ "$RANK" = 0 ] && exit 3; exec sleep 1000', ranks=2)
    node.gone(rank=0)
    node.stop()
    assert node.gone(rank=1).stopped
    assert (node.rank(rank=0).exit_code, node.rank(rank=0).stopped) == (3, False)


def test_a_stop_reaches_its_own_attempt_only(node: LocalNode) -> None:
    node.sh("exec sleep 1000", job="a")
    node.sh("exec sleep 1000", job="b")
    node.stop("a")
    assert node.gone("a").stopped
    assert node.rank("b").state is RankState.RUNNING


def test_a_start_that_comes_after_its_stop_starts_nothing(node: LocalNode, tmp_path: Path) -> None:
    stop = node.stop()
    until(lambda: node.carried_out(stop))
    node.sh(f"touch {tmp_path}/ran; exec sleep 1000")
    rank = node.gone()
    assert (rank.stopped, rank.exit_code, rank.why) == (True, None, "it was stopped before it began")
    assert not (tmp_path / "ran").exists()


def test_children_that_outlive_a_rank_are_ended_with_it(node: LocalNode) -> None:
    node.sh("sleep 1000 & echo child $!; exit 0")
    rank = node.gone()
    assert rank.exit_code == 0
    assert not alive(int(rank.tail.split()[1]))


def test_children_that_left_the_process_group_are_found_by_their_mark(node: LocalNode) -> None:
    node.sh("setsid sleep 1000 & echo up; wait")
    node.says("up")
    until(lambda: len(marked(node.rank())) >= 2)
    os.kill(node.rank().pid, signal.SIGKILL)
    assert node.gone().exit_code == -9
    assert not marked(node.rank())


def test_the_end_of_a_rank_is_no_end_for_one_of_the_same_name_in_another_cluster(tmp_path: Path) -> None:
    with LocalNode(tmp_path / "one") as one, LocalNode(tmp_path / "two") as two:
        two.sh("exec sleep 1000")
        one.sh("sleep 1000 & exit 0")
        assert one.gone().exit_code == 0
        assert two.rank().state is RankState.RUNNING
        assert alive(two.rank().pid)


def test_a_child_that_throws_its_marks_away_does_not_hold_the_rank_and_ends_with_the_node(tmp_path: Path) -> None:
    with LocalNode(tmp_path) as node:
        # The rank ends only when its child has got away: whoever is caught before that ends with it.
        away = "env -i setsid sh -c 'echo away > away; exec sleep 1000' & until [ -s away ]; do sleep 0.01; done"
        node.sh(f"echo last; {away}; exit 4")
        assert node.gone().exit_code == 4
        assert node.gone().tail == "last\n"
        known = {node.status.agent_pid}
        hidden = until(lambda: set(node.children()) - known).pop()
        assert alive(hidden)
    until(lambda: not alive(hidden))


def test_orphans_that_end_while_the_rank_lives_do_not_stay_as_zombies(node: LocalNode) -> None:
    node.sh("for i in 1 2 3 4 5; do (true &) ; done; echo up; exec sleep 1000")
    node.says("up")
    until(lambda: set(node.children()) == {node.status.agent_pid, node.rank().pid})


def test_a_hundred_thousand_lines_arrive_whole(node: LocalNode) -> None:
    node.run(sys.executable, "-c", "for i in range(100_000): print('line', i)")
    node.gone()
    text, after = "", 0
    while True:
        piece, after = read_output(node.run_dir(), after, 1 << 20)
        if not piece:
            break
        text += piece
    assert text == "".join(f"line {i}\n" for i in range(100_000))


def test_a_rank_that_floods_its_output_keeps_its_last_words_and_no_more_than_its_share_of_disk(node: LocalNode) -> None:
    node.sh(f"yes {'a' * 63} | head -c 100000000; echo last words")
    assert node.gone().exit_code == 0
    assert node.gone().tail.endswith("a\nlast words\n")
    parts = list(node.run_dir().glob("output*"))
    assert len(parts) == 4
    assert sum(part.stat().st_size for part in parts) <= 4 * 8 * 1024 * 1024
    assert end_of_output(node.run_dir()) == 100_000_011
    assert read_output(node.run_dir(), -11) == ("last words\n", 100_000_011)


def test_a_rank_that_floods_its_output_starves_nobody(node: LocalNode) -> None:
    node.run("yes", "a" * 63, ranks=2)
    for i in range(5):
        asked = time.monotonic()
        node.sh("exec sleep 1000", job=f"other{i}")
        node.stop(f"other{i}")
        node.gone(f"other{i}")
        assert time.monotonic() - asked < 3
        node.next_beat()
    node.stop()
    assert [node.gone(rank=rank).stopped for rank in (0, 1)] == [True, True]


def test_fifty_ranks_cost_no_file_handle(node: LocalNode) -> None:
    def handles() -> int:
        return len(list(Path(f"/proc/{node.supervisor.pid}/fd").iterdir()))

    node.run("true", job="first")
    node.gone("first")
    before = handles()
    for i in range(10):
        node.sh("echo $RANK; [ $RANK != 3 ] || exit 1", job=f"j{i}", ranks=4)
        node.run("no-such-command", job=f"k{i}")
    for i in range(10):
        for rank in range(4):
            node.gone(f"j{i}", rank)
        node.gone(f"k{i}")
    until(lambda: handles() <= before + 2)  # one or two may be open for a moment, then or now
