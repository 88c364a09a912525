"""Real processes: a controller with nodes of its own for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.up_rig import Sickbay, running


@pytest.fixture
def four(tmp_path: Path) -> Iterator[Sickbay]:
    yield from running(tmp_path / "state", nodes=4)


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Sickbay]:
    yield from running(tmp_path / "state", nodes=2)
