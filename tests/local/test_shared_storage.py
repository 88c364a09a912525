"""Shared storage before a start, on real agents: a directory that is missing, that hangs, and that is back."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.up_rig import Sickbay, running

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sickbay]:
    yield from running(tmp_path_factory.mktemp("storage") / "state", nodes=2)


def test_a_job_waits_for_its_storage_says_why_and_starts_when_it_is_there(lab: Sickbay, tmp_path: Path) -> None:
    shared, pipe = tmp_path / "shared", tmp_path / "pipe"
    os.mkfifo(pipe)  # whoever opens it hangs, as with a server that is down
    lab.ready()
    hangs = lab.submit("true", name="hangs", nodes=1, precheck=0, storage=[str(pipe)])
    waits = lab.submit("true", name="waits", nodes=1, precheck=0, storage=[str(shared)])
    for job, says in ((hangs, f"{pipe}: it does not answer within 5 s"), (waits, f"{shared}: it does not exist")):
        lab.until(lambda job=job, says=says: says in lab.job(job)["because"], 60, says)  # type: ignore[misc]
        assert lab.job(job)["state"] in {"QUEUED", "GATING"}
    assert lab.incidents() == [], "nobody is ill"
    assert {node["state"] for node in lab.nodes()} == {"READY"}
    told = [notice["text"] for notice in lab.notices() if notice["event"] == "job_waits"]
    assert any(str(shared) in text for text in told)

    shared.mkdir()
    lab.ends(waits, seconds=150)
    assert lab.job(hangs)["attempt"] == 0
    assert list(shared.iterdir()) == []
    lab.post(f"/v1/jobs/{hangs}/stop", reason="it never comes")
    lab.ends(hangs, "STOPPED")
