"""The examples run by what their heads say, on real processes."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.manual import Reader, at_the_head, reading

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    with reading(tmp_path / "home") as one:
        yield one


def follow(reader: Reader, example: str) -> list[str]:
    commands = at_the_head(EXAMPLES / example)
    assert len(commands) >= 2, f"{example} does not say how to run it"
    return [reader.follow(command) for command in commands]


def test_01_any_script_runs_on_two_nodes_to_its_end(reader: Reader) -> None:
    said = follow(reader, "01_first_job.py")
    assert reader.job("first")["state"] == "COMPLETE"
    assert reader.job("first")["attempt"] == 1
    assert "rank 1 of 2 begins, attempt 1" in said[-1]
    assert "rank 1 is done" in said[-1]


def test_02_a_killed_rank_goes_on_at_the_checkpoint(reader: Reader) -> None:
    said = follow(reader, "02_checkpoint_and_resume.py")
    job = reader.job("resume")
    assert (job["state"], job["attempt"], job["resumed_from"]) == ("COMPLETE", 2, 30)
    reader.until(lambda: reader.job("resume")["step"] == 60, 10)  # the last steps may be told after the end
    assert "resumes at step 30" in said[-1]
    assert not reader.ask("incidents")  # a rank's death is no node's illness
    first, second = (reader.follow(f"sickbay logs {job['id']} --rank 1 --attempt {n}") for n in (1, 2))
    assert "begins after step 0" in first
    assert "begins after step 30" in second
    assert "done, weight" in second


def test_03_a_broken_node_is_healed_and_its_job_goes_on_elsewhere(reader: Reader) -> None:
    said = follow(reader, "03_break_a_node.sh")
    job = reader.job("watch")
    assert (job["state"], job["attempt"]) == ("COMPLETE", 2)
    assert job["resumed_from"] >= 20
    assert "RELEASED: proven well" in said[-1]
    assert "training again after" in said[-1]


def test_04_an_own_policy_only_recommends_for_one_fault_and_repairs_another(reader: Reader) -> None:
    follow(reader, "04_own_policy.yaml")
    reader.until(lambda: reader.incident("node-1")["phase"] == "RELEASED")
    left_alone = reader.incident("node-0")
    assert left_alone["phase"] == "SUSPECT"
    assert "the policy only recommends what to do about xid.74" in left_alone["because"]
    assert "cordon local/node-0, move its jobs off, " in reader.follow("sickbay explain node-0")
    assert [one["rung"] for one in reader.incident("node-1")["tries"]] == ["reboot"]


needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed: pip install torch"
)


@needs_torch
def test_05_torchrun_trains_across_two_nodes(reader: Reader) -> None:
    follow(reader, "05_torchrun.py")
    job = reader.job("torch")
    assert (job["state"], job["attempt"]) == ("COMPLETE", 1)
    reader.until(lambda: reader.job("torch")["step"] == 60, 10)
    assert "world 2" in reader.follow(f"sickbay logs {job['id']}")


@needs_torch
def test_05_torchrun_goes_on_at_its_checkpoint_when_a_node_breaks(reader: Reader) -> None:
    up, submit, *_ = at_the_head(EXAMPLES / "05_torchrun.py")
    reader.follow(up)
    reader.follow(submit.replace("--wait ", ""))
    reader.until(lambda: (reader.job("torch")["step"] or 0) >= 25, 90)
    reader.follow(f"sickbay inject {reader.job('torch')['nodes'][0]} --xid 79 --cured-by reboot")
    reader.until(lambda: reader.job("torch")["state"] in {"COMPLETE", "FAILED"}, 120)
    job = reader.job("torch")
    assert (job["state"], job["attempt"]) == ("COMPLETE", 2), reader.follow(f"sickbay explain {job['id']}")
    assert job["resumed_from"] >= 10
    assert job["resumed_from"] % 10 == 0


def test_every_example_has_its_line_in_the_list_and_is_numbered_without_gaps() -> None:
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for example in EXAMPLES.iterdir():
        if example.suffix in {".py", ".yaml"} or example.name.startswith("03"):
            assert f"({example.name})" in listed, f"{example.name} is not in examples/README.md"
    numbers = sorted({example.name[:2] for example in EXAMPLES.iterdir() if example.name[:2].isdigit()})
    assert numbers == [f"{n:02}" for n in range(1, len(numbers) + 1)]
