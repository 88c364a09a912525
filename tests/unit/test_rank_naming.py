"""Which rank this is, and where its torchrun meets the others: from options, environment and node."""

from pathlib import Path

import pytest

from sickbay.agent.ranks.directory import FoundRank, NodeFile, RankFile, name_of, ranks_dir
from sickbay.agent.ranks.naming import NamedRank, name_rank, next_attempt, no_numbers
from sickbay.agent.ranks.pids import process_of
from sickbay.agent.ranks.rendezvous import CONF, MeetingPlace, meeting_of, rendezvous, stands_alone, waits_for
from sickbay.model.fleet import JobId

NODE = NodeFile(node="train/n1", cluster="train", boot_id="b")
SLURM = {"SLURM_JOB_ID": "812", "SLURM_PROCID": "3"}


def test_a_number_that_is_none_is_named() -> None:
    env = {"SICKBAY_ATTEMPT": "abc", "RANK": "-1", "SLURM_PROCID": "3", "SICKBAY_JOB_ID": "x"}
    assert no_numbers(env) == ("SICKBAY_ATTEMPT", "RANK")
    assert no_numbers({**SLURM, "RANK": ""}) == ()


@pytest.mark.parametrize(
    ("env", "named"),
    [
        ({"SICKBAY_JOB_ID": "j", "SICKBAY_ATTEMPT": "4", "RANK": "2"}, NamedRank("j", 4, 2)),
        (SLURM, NamedRank("train-812", 1, 3)),
        ({**SLURM, "SLURM_RESTART_COUNT": "2"}, NamedRank("train-812", 3, 3)),
        ({**SLURM, "SLURM_RESTART_COUNT": "2", "SICKBAY_ATTEMPT": "9", "RANK": "0"}, NamedRank("train-812", 9, 0)),
        ({**SLURM, "SICKBAY_JOB_ID": "j"}, NamedRank("j", None, 3)),
        ({"SICKBAY_JOB_ID": "j", "PMIX_RANK": "5", "OMPI_COMM_WORLD_RANK": "6"}, NamedRank("j", None, 5)),
        ({"SICKBAY_JOB_ID": "j", "SICKBAY_ATTEMPT": "two", "RANK": "-1"}, NamedRank("j", None, 0)),
    ],
)
def test_the_surest_teller_wins(env: dict[str, str], named: NamedRank) -> None:
    assert name_rank(env, NODE) == named


def test_an_option_goes_before_all_tellers() -> None:
    env = {**SLURM, "SICKBAY_JOB_ID": "j", "SICKBAY_ATTEMPT": "4"}
    assert name_rank(env, None, job="k", attempt=7, rank=0) == NamedRank("k", 7, 0)


@pytest.mark.parametrize(("env", "why"), [({}, "set SICKBAY_JOB_ID"), (SLURM, "no agent has said which cluster")])
def test_a_job_that_nobody_names_has_no_name_and_says_what_to_write(env: dict[str, str], why: str) -> None:
    named = name_rank(env, None)
    assert not named.job
    assert why in named.because
    assert "--job" in named.because


@pytest.mark.parametrize("job", ["a/b", "../..", ".hidden", "ö job", "a.1.0"])
def test_no_job_leads_out_of_the_directory_and_no_two_share_a_name(job: str) -> None:
    name = name_of(job, 1, 0)
    assert "/" not in name
    assert not name.startswith(".")
    assert name != name_of("a", 1, 0)


# --- torchrun


def test_the_next_attempt_is_one_more_than_the_newest_whatever_else_lies_there(tmp_path: Path) -> None:
    for name in ("j.2.0", "j.10.3", "j.².0", "j.x.0", "other.99.0"):
        (ranks_dir(tmp_path) / name).mkdir(parents=True)
    assert next_attempt(tmp_path, "j") == 11


def test_torchrun_gets_defaults_and_what_its_environment_has_stays() -> None:
    meeting = MeetingPlace(4, 2, "gpu007", 23456)
    said = rendezvous({}, "j.3", meeting)
    assert said == {
        "PET_RDZV_ID": "j.3", "PET_RDZV_CONF": CONF, "PET_NNODES": "4", "PET_NODE_RANK": "2",
        "PET_MASTER_ADDR": "gpu007", "PET_MASTER_PORT": "23456",
    }  # fmt: skip
    assert rendezvous(said, "j.4", meeting) == {}
    assert "PET_MASTER_ADDR" not in rendezvous({"PET_RDZV_ENDPOINT": "h:1"}, "j.3", meeting)


def test_tasks_of_one_step_meet_at_one_place_and_a_batch_script_at_none() -> None:
    step = {**SLURM, "SLURM_STEP_ID": "0", "SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "gpu[007-009,12]"}
    met = [meeting_of({**step, "SLURM_NODEID": str(n)}, "j.1") for n in (0, 1)]
    assert [(one.nodes, one.node_rank, one.host) for one in met] == [(2, 0, "gpu007"), (2, 1, "gpu007")]
    assert met[0].port == met[1].port
    assert met[0].port != meeting_of({**step, "SLURM_NODEID": "0"}, "j.2").port
    batch = {name: value for name, value in step.items() if name != "SLURM_STEP_ID"}
    assert meeting_of({**batch, "SLURM_NODEID": "0"}, "j.1") is None


@pytest.mark.parametrize(
    ("command", "seconds"),
    [
        ("python train.py --rdzv-conf=timeout=5", None),
        ("torchrun train.py", 1800.0),
        ("/opt/bin/torchrun --rdzv-conf timeout=300 train.py", 300.0),
        ("torchrun --rdzv_conf=timeout=300 --nproc-per-node 8 train.py --rdzv-conf=timeout=7", 300.0),
        ("python -m torch.distributed.run --rdzv-backend=c10d --rdzv-conf=join_timeout=60,timeout=9 t.py", 60.0),
        ("torchrun --rdzv-backend c10d --rdzv-conf timeout=300 train.py", 600.0),
        ("torchrun --rdzv-conf timeout=soon train.py", 600.0),
    ],
)
def test_how_long_a_torchrun_waits_is_read_off_its_command(command: str, seconds: float | None) -> None:
    assert waits_for(command.split(), rendezvous({}, "j.1", None)) == seconds


@pytest.mark.parametrize(
    ("command", "alone"),
    [("torchrun --standalone --nproc-per-node 8 train.py", True), ("torchrun train.py --standalone", False),
     ("python train.py --standalone", False), ("torchrun train.py", False)],
)  # fmt: skip
def test_a_torchrun_that_stands_alone_is_told_of_no_other_nodes(command: str, alone: bool) -> None:
    assert stands_alone(command.split(), {}) is alone


# --- pids


def fake(proc: Path, pid: int, parent: int, numbers: str, space: str, uid: int = 7) -> None:
    own = proc / str(pid)
    (own / "ns").mkdir(parents=True)
    (own / "ns" / "pid").symlink_to(proc / space)
    (proc / space).touch()
    (own / "status").write_text(f"Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nNSpid:\t{numbers}\n")
    for one in (pid, parent):
        task = proc / str(one) / "task" / str(one)
        task.mkdir(parents=True, exist_ok=True)
        if not (task / "children").exists():
            (task / "children").write_text("")
    children = proc / str(parent) / "task" / str(parent) / "children"
    children.write_text(f"{children.read_text()}{pid} ")


def test_a_rank_in_a_container_is_the_process_with_its_number_in_that_namespace_below_its_runner(
    tmp_path: Path,
) -> None:
    fake(tmp_path, 100, 1, "100", "host")
    fake(tmp_path, 200, 100, "200 1", "inner")
    fake(tmp_path, 300, 200, "300 8", "inner")
    fake(tmp_path, 8, 1, "8", "host")  # the same number outside
    fake(tmp_path, 310, 200, "310 9", "inner", uid=0)
    inner = (tmp_path / "inner").stat().st_ino

    def claimed(pid: int, space: int, owner: int = 7) -> int:
        file = RankFile(job=JobId("j"), attempt=1, rank=0, pid=pid, pid_space=space)
        return process_of(FoundRank(tmp_path, file, owner), 200, tmp_path)

    assert claimed(8, inner) == 300
    assert claimed(8, (tmp_path / "host").stat().st_ino) == 0, "the same number in another namespace"
    assert claimed(9, inner) == 0, "a process of another user"
    assert claimed(8, inner, owner=5) == 0, "a directory of another user"
