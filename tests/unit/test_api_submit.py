"""Submitting a job: what can run is taken up, what never could is refused with a line that says what to write."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from tests.support.api_ward import Clinic, clinic

from sickbay.faces import answers
from sickbay.model.job import JobSpec, LogRule


@pytest.fixture(scope="module")
def calls() -> Iterator[Clinic]:
    with clinic() as made:
        yield made


def spec_of(calls: Clinic, job: str) -> JobSpec:
    return next(one.spec for one in calls.ward.sim.jobs() if one.id == job)


def test_a_job_is_taken_up_with_all_that_was_said_of_it(calls: Clinic) -> None:
    body = {
        "name": "mixtral",
        "nodes": 2,
        "min_nodes": 1,
        "gpus_per_node": 4,
        "command": ["python", "train.py", "--lr", "1e-4"],
        "checkpoint": "/shared/mixtral",
        "cwd": "/home/ann",
        "env": {"NCCL_DEBUG": "INFO"},
        "max_restarts": 5,
        "precheck": 0,
        "ranks_per_node": 4,
        "stall_after": 120,
        "image": "ghcr.io/lab/train:1.2@sha256:00",
        "native": {"spec": {"tolerations": [{"key": "gpu"}], "priority": 3, "hostIPC": True}},
        "log_rules": [{"name": "steps", "pattern": r"^step \d+", "starts_within": 60, "recurs_within": 300}],
    }
    response = calls.operator.post("/v1/jobs", body)
    assert response.status_code == 201, response.text
    msgspec.convert(response.json(), answers.JobAnswer)
    assert spec_of(calls, response.json()["id"]) == JobSpec(
        name="mixtral",
        cluster="sim",
        pool="train",
        nodes=2,
        min_nodes=1,
        gpus_per_node=4,
        command=("python", "train.py", "--lr", "1e-4"),
        checkpoint="/shared/mixtral",
        cwd="/home/ann",
        env={"NCCL_DEBUG": "INFO"},
        max_restarts=5,
        precheck=0,
        ranks_per_node=4,
        stall_after=120.0,
        image="ghcr.io/lab/train:1.2@sha256:00",
        native={"spec": {"tolerations": [{"key": "gpu"}], "priority": 3, "hostIPC": True}},
        log_rules=(LogRule(name="steps", pattern=r"^step \d+", starts_within=60.0, recurs_within=300.0),),
    )


def test_nodes_may_be_named_with_or_without_their_cluster(calls: Clinic) -> None:
    body = {"name": "named", "on": ["train-0006", "sim/train-0007"], "command": ["true"]}
    response = calls.operator.post("/v1/jobs", body)
    assert response.status_code == 201, response.text
    assert spec_of(calls, response.json()["id"]).on == ("sim/train-0006", "sim/train-0007")


def test_the_same_key_twice_is_one_job(calls: Clinic) -> None:
    body = {"name": "once", "nodes": 1, "command": ["true"]}
    first = calls.operator.post("/v1/jobs", body, key="once")
    again = calls.operator.post("/v1/jobs", body, key="once")
    assert first.json()["id"] == again.json()["id"]
    assert (first.status_code, again.status_code) == (201, 201)
    assert sum(job.spec.name == "once" for job in calls.ward.sim.jobs()) == 1


def test_another_job_under_a_used_key_is_refused_even_by_a_controller_that_has_forgotten_the_key(calls: Clinic) -> None:
    body = {"name": "keyed", "nodes": 1, "command": ["true"]}
    assert calls.operator.post("/v1/jobs", body, key="keyed").status_code == 201
    from tests.support.api_ward import TOKENS, Caller

    from sickbay.faces.api.app import app
    from sickbay.hosts.server import served

    with served(app(calls.ward.desk)) as restarted:
        caller = Caller(restarted.url, TOKENS["operator"])
        response = caller.post("/v1/jobs", {**body, "command": ["false"]}, key="keyed")
        caller.http.close()
    assert response.status_code == 409
    assert "has already made the job keyed-" in response.json()["error"]


def test_jobs_of_one_name_are_different_jobs(calls: Clinic) -> None:
    body = {"name": "many", "nodes": 1, "command": ["true"]}
    ids = {calls.operator.post("/v1/jobs", body).json()["id"] for _ in range(5)}
    assert len(ids) == 5


def nested(levels: int) -> dict[str, Any]:
    return {"spec": nested(levels - 1)} if levels else {}


GOOD: dict[str, Any] = {"name": "job", "nodes": 1, "command": ["true"]}


@pytest.mark.parametrize(
    ("change", "status", "says"),
    [
        ({"nodes": 0}, 400, "nodes"),
        ({"nodes": -3}, 400, "nodes"),
        ({"nodes": 1.5}, 400, "nodes"),
        ({"nodes": "2"}, 400, "nodes"),
        ({"nodes": None}, 400, "say where: nodes (how many) or on (which)"),
        ({"nodes": 9}, 400, "9 nodes are asked for, but pool sim/train has 8"),
        ({"nodes": 10**30}, 400, "nodes"),
        ({"min_nodes": 2}, 400, "min_nodes is 2: write 1 to 1"),
        ({"min_nodes": 0}, 400, "min_nodes"),
        ({"name": ""}, 400, "name"),
        ({"name": "-rf"}, 400, "name"),
        ({"name": "a/b"}, 400, "name"),
        ({"name": "a\n"}, 400, "name"),
        ({"name": "x" * 64}, 400, "name"),
        ({"name": 7}, 400, "name"),
        ({"command": []}, 400, "command"),
        ({"command": [""]}, 400, "the command is empty"),
        ({"command": "python train.py"}, 400, "command"),
        ({"command": ["a\x00b"]}, 400, "NUL"),
        ({"gpus_per_node": 9}, 400, "gpus_per_node 9 is more than there are: a node has 8;"),
        ({"gpus_per_node": -1}, 400, "gpus_per_node"),
        ({"precheck": 5}, 400, "precheck"),
        ({"max_restarts": -1}, 400, "max_restarts"),
        ({"ranks_per_node": 0}, 400, "ranks_per_node"),
        ({"stall_after": -1}, 400, "stall_after"),
        ({"checkpoint": "here"}, 400, "checkpoint 'here' must be an absolute path"),
        ({"cwd": "."}, 400, "cwd '.' must be an absolute path"),
        ({"env": {"A=B": "c"}}, 400, "'A=B' is no name of a variable"),
        ({"env": {"SICKBAY_JOB_ID": "x"}}, 400, "is set by Sickbay itself"),
        ({"env": {"A": 1}}, 400, "env"),
        ({"pool": "trian"}, 404, "did you mean train?"),
        ({"cluster": "sum"}, 404, "there is no cluster 'sum'"),
        ({"on": ["train-0001"], "nodes": 2}, 400, "contradict each other"),
        ({"on": ["train-0001", "sim/train-0001"], "nodes": None}, 400, "named twice"),
        ({"on": ["train-0001"], "nodes": None, "min_nodes": 2}, 400, "leave it out"),
        ({"on": ["train-0001"], "nodes": None, "pool": "other"}, 400, "belong to pool sim/train"),
        ({"on": ["nowhere-1"], "nodes": None}, 404, "there is no node 'nowhere-1'"),
        ({"on": ["sim/train-00001"], "nodes": None}, 404, "did you mean train-0001"),
        ({"log_rules": [{"name": "r", "pattern": "(", "starts_within": 1}]}, 400, "is not a regular expression"),
        ({"log_rules": [{"name": "r", "pattern": "x"}]}, 400, "say starts_within or recurs_within"),
        ({"log_rules": [{"name": "r", "pattern": "x", "starts_within": 0}]}, 400, "starts_within"),
        ({"log_rules": [{"name": "r", "patern": "x"}]}, 400, "'patern' in log_rules[0]: did you mean pattern?"),
        ({"log_rules": [{"name": "r", "pattern": "x", "starts_within": 1}] * 2}, 400, "the same name"),
        ({"image": "two words"}, 400, "image 'two words' is no name of an image"),
        ({"native": ["spec"]}, 400, "native"),
        ({"native": {"kind": "Pod"}}, 400, "native: sim knows no 'kind': write metadata or spec"),
        ({"native": {"spec": "x" * 40_000}}, 400, "native has 40011 bytes, at most 32000 fit"),
        ({"native": nested(30)}, 400, "native is nested deeper than 20 levels"),
        ({"node": 2}, 400, "there is no field 'node': did you mean nodes?"),
        ({"reason": "x"}, 400, "there is no field 'reason'"),
        ({"env": {f"A{n}": "x" * 32_000 for n in range(10)}}, 400, "put long texts into files"),
    ],
)
def test_a_job_that_could_never_run_is_refused(calls: Clinic, change: dict[str, Any], status: int, says: str) -> None:
    before = len(calls.ward.sim.jobs())
    body = {name: value for name, value in {**GOOD, **change}.items() if value is not None}
    response = calls.operator.post("/v1/jobs", body)
    assert response.status_code == status, response.text
    assert says in response.json()["error"]
    assert "\n" not in response.json()["error"]
    assert len(calls.ward.sim.jobs()) == before


def test_a_cluster_that_cannot_be_asked_now_refuses_nobody(calls: Clinic) -> None:
    """The start asks again, and ends the job with that line."""
    calls.ward.cluster.away = True
    try:
        response = calls.operator.post("/v1/jobs", {**GOOD, "name": "unasked", "native": {"kind": "Pod"}})
    finally:
        calls.ward.cluster.away = False
    assert response.status_code == 201, response.text


def test_a_body_that_lacks_everything_names_what_is_missing(calls: Clinic) -> None:
    response = calls.operator.post("/v1/jobs", {})
    assert (response.status_code, response.json()["error"]) == (400, "the field 'name' is missing")


@pytest.mark.slow
def test_a_job_that_the_engine_does_not_take_up_is_503_and_shows_later(calls: Clinic) -> None:
    calls.ward.asleep = True
    try:
        response = calls.operator.post("/v1/jobs", {**GOOD, "name": "late"})
        assert response.status_code == 503
        assert "the job is noted" in response.json()["error"]
    finally:
        calls.ward.asleep = False
    calls.ward.pass_time(1.0)
    assert any(job["name"] == "late" for job in calls.viewer.get("/v1/jobs").json())
