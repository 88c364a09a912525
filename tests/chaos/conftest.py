"""What chaos needs: a nursery that bears processes quickly, and a quick disk."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.apart_simulation import Nursery


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture(scope="session")
def quick_disk() -> Iterator[Path]:
    """In memory where there is such a place: kill -9 takes nothing back that was written, so fsync may cost nothing."""
    memory = Path("/dev/shm")
    directory = Path(tempfile.mkdtemp(prefix="sickbay-", dir=memory if memory.is_dir() else None))
    yield directory
    shutil.rmtree(directory)
