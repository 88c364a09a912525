"""Opens wards for scenarios. A failing scenario prints what its wards came to, with the seed."""

from collections.abc import Generator
from typing import Any

import pytest
from tests.support.wards import OpenWard, Ward

OPENED = pytest.StashKey[list[Ward]]()


@pytest.fixture
def ward(request: pytest.FixtureRequest) -> OpenWard:
    """A scenario may open several."""
    opened = request.node.stash[OPENED] = []

    def open_one(**plan: Any) -> Ward:
        opened.append(Ward(**plan))
        return opened[-1]

    return open_one


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    report: Any = yield
    if report.failed:
        for opened in item.stash.get(OPENED, []):
            report.sections.append(("the ward", opened.why()))
    return report
