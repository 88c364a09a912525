"""When things break behind the API: one line, the right status, and no secret in any log."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pytest
from tests.support.api_ward import TOKENS, Clinic, HeardStore, clinic

from sickbay.model.errors import StoreUnavailable, StoreUnknown, UnusableStore
from sickbay.model.facts import Fact, Mark
from sickbay.model.fleet import NodeId
from sickbay.model.rows import Rows
from sickbay.ports.store import Pulse

broken: list[Exception] = []


class BrokenStore(HeardStore):
    """Fails while a test says so; the engine's own thread is spared."""

    def load(self, keys: Iterable[str]) -> Rows:
        wanted = list(keys)
        if broken and any(key.startswith(("token:", "job:", "incident:", "cursor:")) for key in wanted):
            raise broken[0]
        return super().load(wanted)

    def append(
        self, facts: Sequence[Fact], marks: Sequence[Mark] = (), told: Mapping[NodeId, Pulse | None] | None = None
    ) -> int:
        if broken and facts:
            raise broken[0]
        return super().append(facts, marks, told)


@pytest.fixture(scope="module")
def calls() -> Iterator[Clinic]:
    with clinic(after=300.0, store=BrokenStore) as made:
        yield made


@pytest.fixture
def breaking() -> Iterator[list[Exception]]:
    yield broken
    broken.clear()


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (StoreUnavailable("the disk is full"), "the store is not available (the disk is full): try again"),
        (UnusableStore("another process has it"), "the store cannot be used: another process has it"),
        (StoreUnknown("the answer was lost"), "whether it was stored is not known"),
    ],
)
def test_a_store_that_fails_is_503_with_what_to_do(
    calls: Clinic, breaking: list[Exception], error: Exception, says: str
) -> None:
    breaking.append(error)
    response = calls.viewer.get("/v1/jobs/llama")
    assert response.status_code == 503
    assert says in response.json()["error"]


def test_what_nobody_foresaw_is_500_with_one_line_and_no_secret_is_logged(
    calls: Clinic, breaking: list[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    assert calls.operator.get("/v1/nodes").status_code == 200
    breaking.append(RuntimeError("a bug\nin two lines"))
    with caplog.at_level(logging.DEBUG):
        response = calls.operator.get("/v1/jobs/llama")
    assert response.status_code == 500
    assert response.json() == {"error": "something went wrong here; the controller's log says what"}
    assert "a bug" in caplog.text
    assert not any(secret in caplog.text for secret in TOKENS.values())


def test_it_goes_on_when_the_store_is_back(calls: Clinic, breaking: list[Exception]) -> None:
    breaking.append(StoreUnavailable("gone"))
    assert calls.viewer.get("/v1/jobs/llama").status_code == 503
    breaking.clear()
    assert calls.viewer.get("/v1/jobs/llama").status_code == 200


def test_a_report_that_could_not_be_stored_is_not_acknowledged(calls: Clinic, breaking: list[Exception]) -> None:
    who = {"proto": 1, "node": "sim/train-0000", "uid": "u", "instance_id": "i", "boot_id": "b", "agent_run": "r"}
    times = {"first_seq": 1, "mono_now": 1.0, "wall_now": 1.0, "watermark": 1.0}
    items = [{"seq": 1, "mono": 0.5, "news": {"news": "observed", "node": "sim/train-0000", "kind": "full"}}]
    assert calls.agent.post("/v1/agent/report", {**who, **times}).status_code == 200
    breaking.append(StoreUnavailable("the disk is full"))
    response = calls.agent.post("/v1/agent/report", {**who, **times, "items": items})
    assert response.status_code == 503
    assert "ack" not in response.json()
    breaking.clear()
    assert calls.agent.post("/v1/agent/report", {**who, **times, "items": items}).json()["ack"] == 1


def test_every_answer_to_a_person_says_that_the_controller_is_in_trouble(calls: Clinic) -> None:
    calls.ward.trouble = "the engine: the disk is full"
    try:
        for path in ("/v1/nodes", "/v1/jobs", "/v1/incidents"):
            assert calls.viewer.get(path).headers["sickbay-trouble"] == "the engine: the disk is full"
        assert calls.viewer.get("/v1/fleet").json()["trouble"] == "the engine: the disk is full"
        for path in ("/", "/healthz", "/v1/nodes"):  # what it is names files of this machine
            assert "sickbay-trouble" not in calls.nobody.get(path).headers
        assert calls.nobody.get("/healthz").json()["status"] == "in trouble"
    finally:
        calls.ward.trouble = ""
    assert "sickbay-trouble" not in calls.viewer.get("/v1/nodes").headers
