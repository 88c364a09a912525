"""A few seconds of the soak: rotation, a mad controller, a full disk, kill -9. `make soak-agent` runs it for longer."""

from pathlib import Path

import pytest
from tests.support.agent_soak import soak

pytestmark = pytest.mark.slow


def test_every_line_of_every_log_is_at_the_controller_once(tmp_path: Path) -> None:
    with soak(tmp_path, seed=3) as one:
        result = one.run(8.0)
        assert result.exact, result.report + one.complaints
