"""`sickbay run` with real processes: nothing of the training changes, and all of it is in the rank's directory."""

import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.agent_rig import TOKEN, FrontDoor
from tests.support.waiting import until

from sickbay.agent.rank_stacks import collect_stacks
from sickbay.agent.ranks.directory import NodeFile, RankFile, open_to_all, read_rank, runner_of, running
from sickbay.agent.ranks.output import read_output
from sickbay.agent.ranks.pids import in_our_numbers
from sickbay.clusters.local.files import LocalSeat
from sickbay.model.facts import Hung, Looked, RankEnded, Stepped
from sickbay.model.fleet import Incarnation, JobId, NodeId
from sickbay.model.protocol import RunLook, RunSave
from sickbay.train.errors import RESTARTED_IN_PLACE

pytestmark = pytest.mark.slow

NODE, BOOT = NodeId("train/n1"), "boot-1"


class Host:
    """A machine's /run/sickbay."""

    def __init__(self, base: Path) -> None:
        self.base = base
        open_to_all(base, NodeFile(node=NODE, cluster="train", boot_id=BOOT))
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, *words: str, options: tuple[str, ...] = ("--job", "j", "--attempt", "1"), **more: Any) -> Any:
        env = {name: value for name, value in os.environ.items() if not name.startswith(("SICKBAY_", "SLURM_", "PET_"))}
        env |= {"SICKBAY_RANKS": str(self.base), **more.pop("env", {})}
        command = [sys.executable, "-m", "sickbay", "run", *options, "--", *words]
        streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
        process = subprocess.Popen(command, env=env, **streams)
        self.started.append(process)
        return process

    def ends(self, *words: str, **more: Any) -> tuple[int, str, str]:
        process = self.start(*words, **more)
        out, err = process.communicate(timeout=60)
        return process.returncode, (out or b"").decode(), (err or b"").decode()

    def run_dir(self, name: str = "j.1.0") -> Path:
        return self.base / "ranks" / name

    def file(self, name: str = "j.1.0") -> RankFile:
        found = read_rank(self.run_dir(name))
        assert found is not None
        return found.file

    def lives(self) -> int:
        """The pid of its command, once it is there."""
        until(lambda: [rank for rank in running(self.base, BOOT) if rank.file.pid])
        (found,) = running(self.base, BOOT)
        return in_our_numbers(found).pid


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    one = Host(tmp_path / "run")
    yield one
    for process in one.started:
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def exists(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("script", "code", "kept"),
    [("exit 0", 0, 0), ("exit 7", 7, 7), ("kill -SEGV $$", 128 + 11, -11), ("kill -9 $$", 137, -9)],
)
def test_output_and_exit_code_are_the_commands_own_and_are_kept(host: Host, script: str, code: int, kept: int) -> None:
    assert host.ends("sh", "-c", f"echo out; echo err >&2; {script}") == (code, "out\n", "err\n")
    file = host.file()
    assert (file.job, file.attempt, file.rank, file.boot_id, file.exit_code) == ("j", 1, 0, BOOT, kept)
    assert not file.stopped
    assert sorted(read_output(host.run_dir())[0].split()) == ["err", "out"]


def test_streams_that_are_one_file_keep_their_order(host: Host, tmp_path: Path) -> None:
    both = "".join(f"o{n}\ne{n}\n" for n in range(200))
    script = "import os\nfor n in range(200): os.write(1, b'o%d\\n' % n); os.write(2, b'e%d\\n' % n)"
    with (tmp_path / "log").open("wb") as log:
        assert host.start(sys.executable, "-c", script, stdout=log, stderr=log).wait(60) == 0
    assert (tmp_path / "log").read_text() == read_output(host.run_dir())[0] == both


def test_what_is_kept_of_an_endless_output_is_its_beginning_and_its_end(host: Host) -> None:
    code, out, _ = host.ends(sys.executable, "-c", "print('first'); print(('x' * 99 + '\\n') * 120_000); print('last')")
    assert (code, len(out)) == (0, 6 + 12_000_001 + 5)
    size = sum(path.stat().st_size for path in host.run_dir().glob("output*"))
    assert size <= 5 << 20
    assert read_output(host.run_dir(), 0, 100)[0].startswith("first")
    assert read_output(host.run_dir(), -100, final=True)[0].endswith("last\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP])
def test_a_signal_reaches_the_command_and_one_that_asks_it_to_end_makes_its_exit_count_for_nothing(
    host: Host, number: signal.Signals
) -> None:
    script = "import signal, sys\n"
    script += f"signal.signal({int(number)}, lambda n, f: sys.exit(40))\nprint('ready', flush=True)\nsignal.pause()"
    process = host.start(sys.executable, "-c", script)
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(number)
    assert process.wait(60) == 40
    assert host.file().stopped is (number is not signal.SIGUSR1)


def test_a_signal_that_was_ignored_before_is_ignored_by_the_command_too(host: Host) -> None:
    script = "import signal, sys\nprint(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN, flush=True)\nsignal.pause()"
    process = host.start(sys.executable, "-c", script, preexec_fn=ignoring_hangups)
    assert process.stdout.readline() == b"True\n"
    process.send_signal(signal.SIGHUP)
    process.terminate()
    assert process.wait(60) == 128 + signal.SIGTERM


def test_whoever_reads_no_output_keeps_nobody_from_ending_it(host: Host) -> None:
    reader, writer = os.pipe()
    process = host.start("sh", "-c", "echo begun >&2; exec yes", stdout=writer)
    try:
        process.stderr.readline()
        until(lambda: select.select([], [writer], [], 0)[1] == [])
        process.terminate()
        assert process.wait(20) == 128 + signal.SIGTERM
    finally:
        os.close(reader)
        os.close(writer)


def test_where_standard_output_is_closed_no_file_of_the_rank_gets_it(host: Host) -> None:
    code, _, err = host.ends("sh", "-c", "echo out; echo err >&2", stdout=None, preexec_fn=lambda: os.close(1))
    assert (code, err) == (0, "err\n")
    assert sorted(read_output(host.run_dir())[0].split()) == ["err", "out"]
    assert (host.run_dir() / "alive").read_bytes() == b""


def ignoring_hangups() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


@pytest.mark.parametrize("how", ["kill -9 of whoever runs it", "kill -9 of the command", "its own end"])
def test_nothing_of_a_rank_outlives_whoever_runs_it_or_its_own_end(host: Host, how: str) -> None:
    """torchrun starts each of its workers in a session of its own, as the second one is here."""
    held = f"{sys.executable} -c 'import time; time.sleep(1000)'"
    end = "sleep 1000" if how.startswith("kill") else "read line; exit 3"
    script = f"{held} & echo $!; exec 3>&1; echo $(setsid {held} >&3 & echo $!); {end}"
    process = host.start("sh", "-c", script, stdin=subprocess.PIPE)
    children = [int(process.stdout.readline()) for _ in range(2)]
    if how == "kill -9 of whoever runs it":
        host.lives()
        process.kill()
    elif how == "kill -9 of the command":
        os.kill(host.lives(), signal.SIGKILL)
    process.communicate(b"go on\n", timeout=60)
    until(lambda: not any(map(exists, children)))
    assert runner_of(host.run_dir()) is None
    assert process.returncode == {"its own end": 3, "kill -9 of the command": 137}.get(how, -9)


@pytest.fixture
def door(host: Host, tmp_path: Path) -> Iterator[FrontDoor]:
    """A controller's front door, and a real agent that reports to it and watches this machine's /run/sickbay."""
    front = FrontDoor()
    front.open()
    (tmp_path / "boot").write_text(BOOT)
    (tmp_path / "log").touch()
    settings = {
        "url": f"http://127.0.0.1:{front.port}", "node": NODE, "instance_id": "i-1", "state": tmp_path / "agent",
        "boot_id_file": tmp_path / "boot", "sources": tmp_path / "log", "gpus": 0, "metrics": "off", "token": TOKEN,
        "ranks": host.base,
    }  # fmt: skip
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    env = {name: value for name, value in os.environ.items() if not name.startswith("SICKBAY_")}
    with (tmp_path / "agent.log").open("wb") as log:
        agent = subprocess.Popen([sys.executable, "-m", "sickbay", "agent", *words], env=env, stderr=log)
    host.started.append(agent)
    until(lambda: front.polls)
    yield front
    agent.terminate()
    agent.wait(30)
    front.shut()


def test_a_real_agent_tells_steps_a_hang_its_stacks_and_the_end_of_a_rank(host: Host, door: FrontDoor) -> None:
    script = (
        "from sickbay import train\nimport time\n"
        "train.heartbeat(41, loss=0.5)\n"
        "def waits_for_nobody():\n    print('hangs', flush=True)\n    time.sleep(1000)\n"
        "waits_for_nobody()\n"
    )
    options = ("--job", "j", "--attempt", "1", "--stall-after", "1s")
    process = host.start(sys.executable, "-c", script, options=options)
    (stepped,) = until(lambda: door.news(Stepped))
    assert (stepped.job, stepped.attempt, stepped.step) == ("j", 1, 41)
    (hung,) = until(lambda: door.news(Hung))[:1]
    assert hung.because == f"rank 0 on {NODE}: no step after 41 for 1 s"
    me = LocalSeat(name="n1", cluster="train", pool="p", gpus=0, instance_id="i-1", boot_id=BOOT)
    me_too = Incarnation(instance_id="i-1", boot_id=BOOT)
    door.command(me, RunLook(look="l", stacks_of=JobId("j")), expect=me_too)
    (looked,) = until(lambda: door.news(Looked))
    assert "waits_for_nobody" in looked.text
    door.command(me, RunSave(save="s", job=JobId("j"), attempt=1), "c2", expect=me_too)
    until((host.run_dir() / "save.asked").exists)
    process.kill()
    (ended,) = until(lambda: door.news(RankEnded))
    assert (ended.job, ended.attempt, ended.rank, ended.node) == ("j", 1, 0, NODE)
    assert (ended.exit_code, ended.stopped, ended.tail) == (None, False, "hangs\n")
    assert ended.why == "whoever ran it was killed, and it with him"


def test_a_rank_is_never_started_twice_under_one_attempt(host: Host) -> None:
    process = host.start("sleep", "1000")
    host.lives()
    for alive in (True, False):
        code, out, err = host.ends("echo", "trained twice")
        assert (code, out, err.count("\n")) == (RESTARTED_IN_PLACE, "", 1)
        assert "rank 0 of attempt 1 of j has run on this node before" in err
        if alive:
            process.terminate()
            process.wait(60)
    assert host.ends("echo", "on", options=("--job", "j", "--attempt", "2"))[:2] == (0, "on\n")


def test_where_nobody_counts_attempts_the_next_free_number_is_taken_and_said(host: Host) -> None:
    for number in (1, 2):
        _, out, err = host.ends("sh", "-c", "echo $SICKBAY_ATTEMPT", options=("--job", "a.b"))
        assert out == f"{number}\n"
        assert f"this is {number}, the next free number" in err
    host.ends("true", options=("--job", "a.b", "--attempt", "9"))
    assert host.ends("sh", "-c", "echo $SICKBAY_ATTEMPT", options=("--job", "a.b"))[1] == "10\n"


def nowhere(host: Host) -> None:
    host.base = host.base / "node.json"  # a file is no directory


def anothers(host: Host) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    host.run_dir().mkdir()
    os.chown(host.run_dir(), 65534, 65534)


def full(host: Host) -> None:
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k,nr_inodes=3", "x", host.base],
                                           capture_output=True, check=False).returncode:  # fmt: skip
        pytest.skip("no small disk can be mounted here")
    (host.base / "ranks").mkdir()


def unheard_of(host: Host) -> None:
    (host.base / "node.json").unlink()


@pytest.mark.parametrize("trouble", [nowhere, anothers, full, unheard_of])
def test_what_keeps_a_rank_from_being_watched_keeps_it_from_nothing_else(
    host: Host, trouble: Callable[[Host], None]
) -> None:
    base = host.base
    trouble(host)
    try:
        code, out, err = host.ends("sh", "-c", "echo trains; exit 5")
    finally:
        subprocess.run(["umount", base], capture_output=True, check=False)
    assert (code, out) == (5, "trains\n")
    assert err.startswith("sickbay run: ")
    assert err.count("\n") == 1


def test_a_command_that_is_not_there_is_told_as_a_shell_would(host: Host) -> None:
    code, _, err = host.ends("no-such-command")
    assert (code, err) == (127, "sickbay run: no-such-command: command not found\n")
    assert host.file().exit_code == 127


def test_a_rank_that_is_watched_already_is_not_wrapped_a_second_time(host: Host) -> None:
    inner = [sys.executable, "-m", "sickbay", "run", "--", "sh", "-c", "echo $SICKBAY_HEARTBEAT"]
    code, out, err = host.ends(*inner)
    assert (code, out, err) == (0, f"{host.run_dir() / 'heartbeat.json'}\n", "")


def test_slurm_says_job_attempt_rank_and_where_torchrun_meets(host: Host) -> None:
    slurm = {
        "SLURM_JOB_ID": "812", "SLURM_RESTART_COUNT": "2", "SLURM_PROCID": "1", "SLURM_STEP_ID": "0",
        "SLURM_NNODES": "2", "SLURM_NODEID": "1", "SLURM_STEP_NODELIST": "gpu[007,9]", "PET_RDZV_ID": "my own",
    }  # fmt: skip
    code, out, _ = host.ends("sh", "-c", "env | grep -E '^(PET|SICKBAY)' | sort", options=(), env=slurm)
    said = dict(line.split("=", 1) for line in out.splitlines())
    assert (code, said["SICKBAY_JOB_ID"], said["SICKBAY_ATTEMPT"]) == (0, "train-812", "3")
    assert said["SICKBAY_HEARTBEAT"] == str(host.run_dir("train-812.3.1") / "heartbeat.json")
    assert (said["PET_NNODES"], said["PET_NODE_RANK"], said["PET_MASTER_ADDR"]) == ("2", "1", "gpu007")
    assert (said["PET_RDZV_ID"], "join_timeout=1800" in said["PET_RDZV_CONF"]) == ("my own", True)
    torchrun = host.base / "torchrun"
    torchrun.write_text("#!/bin/sh\nenv | cut -d= -f1\n")
    torchrun.chmod(0o755)
    code, out, _ = host.ends(str(torchrun), "--standalone", "train.py", options=("--attempt", "4"), env=slurm)
    assert (code, "PET_RDZV_CONF" in out, "PET_NNODES" in out, "PET_MASTER" in out) == (0, True, False, False)


def test_a_job_that_is_submitted_from_within_a_job_is_another_and_is_not_killed_with_it(host: Host) -> None:
    """sbatch hands the whole environment on."""
    env = {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_NNODES": "2", "SLURM_NODEID": "0"}
    env |= {"SLURM_STEP_NODELIST": "a,b"}
    shown = "echo $SICKBAY_JOB_ID $SICKBAY_ATTEMPT n$PET_NNODES $$; sleep 1000"
    inner = f"{sys.executable} -m sickbay run -- sh -c '{shown}'"
    sbatch = f"export SLURM_JOB_ID=2 SLURM_NNODES=3; setsid {inner} </dev/null & exec head -1"
    process = host.start("sh", "-c", sbatch, options=(), env=env, stdin=subprocess.PIPE)
    said = process.stdout.readline().split()
    try:
        assert said[:3] == [b"train-2", b"1", b"n3"]
        process.communicate(b"\n", timeout=60)
        assert process.returncode == 0
        assert exists(int(said[3]))
    finally:
        os.kill(int(said[3]), signal.SIGKILL)


def test_a_rank_in_a_pid_namespace_of_its_own_is_found_by_whoever_looks_from_outside(host: Host) -> None:
    space = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if subprocess.run([*space, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no pid namespace can be made here")
    env = {name: value for name, value in os.environ.items() if not name.startswith("SICKBAY_")}
    env |= {"SICKBAY_RANKS": str(host.base)}
    script = "import signal; some = {signal.SIGUSR1}; signal.pthread_sigmask(signal.SIG_BLOCK, some); "
    script += "print('in', flush=True); signal.sigwait(some)"
    words = [*space, sys.executable, "-m", "sickbay", "run", "--job", "j", "--attempt", "1", "--", sys.executable, "-c"]
    process = subprocess.Popen([*words, script], env=env, stdout=subprocess.PIPE)
    host.started.append(process)
    assert process.stdout.readline() == b"in\n"
    pid = host.lives()
    assert host.file().pid != pid
    assert script in Path(f"/proc/{pid}/cmdline").read_text()
    os.kill(pid, signal.SIGUSR1)
    assert process.wait(60) == 0
    assert host.file().exit_code == 0


def test_nobody_has_the_agent_signal_a_process_that_is_not_his(host: Host) -> None:
    """A rank.json may name any process; only what descends from whoever holds its lock is believed."""
    with subprocess.Popen(["sleep", "1000"]) as stranger:
        host.start("sleep", "1000")
        host.lives()
        claimed = msgspec.structs.replace(host.file(), pid=stranger.pid)
        (host.run_dir() / "rank.json").write_bytes(msgspec.json.encode(claimed))
        (found,) = running(host.base, BOOT)
        assert in_our_numbers(found).pid == 0
        assert "cannot be seen" in collect_stacks([in_our_numbers(found)], time.monotonic() + 1)
        stranger.kill()


def test_on_a_terminal_it_is_interrupted_as_the_command_itself_would_be(host: Host) -> None:
    ours, its = pty.openpty()

    def own_terminal() -> None:
        os.setsid()
        fcntl.ioctl(its, 0x540E, 0)  # TIOCSCTTY

    process = host.start("sleep", "1000", stdin=its, stdout=its, stderr=its, preexec_fn=own_terminal)
    os.close(its)
    host.lives()
    os.write(ours, b"\x03")
    assert process.wait(60) == 128 + signal.SIGINT
    os.close(ours)
