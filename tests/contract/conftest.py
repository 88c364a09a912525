"""The API that the tests of its document call."""

from collections.abc import Iterator

import pytest
from tests.support.api_ward import Clinic, clinic

from sickbay.faces.api import nodes


@pytest.fixture(scope="module")
def calls() -> Iterator[Clinic]:
    with pytest.MonkeyPatch.context() as patch, clinic(after=1800.0) as made:
        # No agent answers here: nobody waits for one.
        patch.setattr(nodes, "ANSWERS", 0.05)
        patch.setattr(nodes, "COLLECTS", 0.05)
        yield made
