"""The mirror of a real local cluster: what its files show, and what becomes of them while nobody leads."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.up_rig import Sickbay, running

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sickbay]:
    yield from running(tmp_path_factory.mktemp("mirror") / "state", nodes=2)


def shown(lab: Sickbay, what: str) -> dict[str, Any]:
    file = lab.state / "local" / "mirror" / f"{what}.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return found


def test_rows_are_files_from_the_first_symptom_on_and_after_a_controller_was_killed(lab: Sickbay) -> None:
    job = lab.train(10_000)
    lab.reaches(job, 3)
    running_job = lab.until(lambda: (found := shown(lab, f"jobs/{job}")).get("step") and found, 20, "its step is shown")
    assert (running_job["state"], running_job["size"]) == ("RUNNING", 2)
    assert any(line["text"] for line in running_job["lines"])
    node = running_job["nodes"][0].rpartition("/")[2]
    lab.until(lambda: shown(lab, f"nodes/{node}").get("jobs") == [job], 20, "the node shows its job")

    lab.post(f"/v1/nodes/local/{node}/cordon", reason="a bad fan")
    held = lab.until(lambda: (seen := shown(lab, f"nodes/{node}")).get("state") == "HELD" and seen, 30, "it is shown")
    assert (held["fault"], held["schedulable"]) == ("operator.cordon", False)

    lab.kill()
    directory: Path = lab.state / "local" / "mirror"
    (directory / "nodes" / f"{node}.json").write_text("{}")
    (directory / "nodes" / "left-long-ago.json").write_text("{}")
    (directory / "jobs" / "forgotten-1.json").write_text("{}")
    lab.up()
    lab.until(lambda: shown(lab, f"nodes/{node}").get("state") == "HELD", 30, "it is shown as it is again")
    left = [directory / "nodes" / "left-long-ago.json", directory / "jobs" / "forgotten-1.json"]
    lab.until(lambda: not any(file.exists() for file in left), 20, "what nobody knows any more is gone")
    assert lab.get("/healthz")["status"] == "ok"
