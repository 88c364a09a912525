"""Random attempts on nodes whose disks are lost now and then: nothing that was whole, near or far, is passed over."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.thorough import THOROUGH

pytestmark = pytest.mark.slow

NODES = Path(__file__).parents[1] / "support/train_nodes.py"
ROOT = Path(__file__).parents[2]
SEEDS = 40 if THOROUGH else 3


@pytest.mark.parametrize("first", [0, 1000])
def test_whatever_happens_to_ranks_and_nodes_the_newest_whole_step_is_found(first: int, quick_disk: Path) -> None:
    directory = quick_disk / f"nodes-{os.getpid()}-{first}"
    command = [sys.executable, str(NODES), str(directory), str(first), str(SEEDS)]
    ran = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False, timeout=600
    )
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert told["near"] > 0
    assert told["begun"] > 2 * SEEDS
