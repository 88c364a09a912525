"""What chaos needs: a nursery that bears processes quickly."""

from collections.abc import Iterator

import pytest

from sickbay.sim.apart import Nursery


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()
