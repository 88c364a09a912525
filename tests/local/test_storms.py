"""Many nodes at once: the budget and the brake hold, and a human is told."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.up_rig import Sickbay, running

pytestmark = pytest.mark.slow


@pytest.fixture
def eight(tmp_path: Path) -> Iterator[Sickbay]:
    yield from running(tmp_path / "state", nodes=8, gpus=1)


def test_a_pool_that_breaks_at_once_is_not_rebooted_at_once(eight: Sickbay) -> None:
    nodes = [node["id"] for node in eight.nodes()]
    eight.inject(nodes[0], xid=79, cured_by="reboot")
    eight.phase(nodes[0], "QUARANTINED")
    most_out = 0

    def counting(found: object) -> object:
        nonlocal most_out
        most_out = max(most_out, sum(not node["schedulable"] for node in eight.nodes()))
        return found

    for node in nodes[1:]:
        eight.inject(node, xid=79, cured_by="reboot")
        counting(None)
    eight.until(lambda: counting(eight.get("/v1/brakes")), 30, "the brake is on")
    eight.until(lambda: counting([n for n in eight.notices() if n["event"] == "brake"]), 30, "a human is told")
    eight.until(lambda: counting(eight.incidents(nodes[0])[-1]["phase"] == "RELEASED"), 60, "releases go on")
    assert most_out <= 1  # of 8 nodes at most one: max(at least 1, 10 %)
    waiting = [node for node in eight.nodes() if node["state"] == "SUSPECT"]
    assert len(waiting) == 7
    assert all(node["because"] for node in waiting)
