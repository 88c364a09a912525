"""What the API shows is what `faces.explain` says, in the shapes that the table promises."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from tests.support.api_ward import Clinic, clinic

from sickbay.faces import answers, fleet_answers
from sickbay.faces.archive import Archive
from sickbay.faces.explain import explain, job_answer, node_answer
from sickbay.faces.turns import Turns
from sickbay.model.fleet import NodeId


@pytest.fixture(scope="module")
def calls() -> Iterator[Clinic]:
    with clinic() as made:
        yield made


def ok(calls: Clinic, path: str, kind: Any, **query: Any) -> Any:
    response = calls.viewer.get(path, **query)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    msgspec.convert(response.json(), kind)  # raises where a promised key is missing or of another kind
    return response.json()


def test_nodes_are_told_in_the_words_of_explain(calls: Clinic) -> None:
    archive = Archive(calls.ward.sim.store, calls.ward.desk.policies)
    shown = ok(calls, "/v1/nodes", list[answers.NodeAnswer])
    assert shown == msgspec.to_builtins([node_answer(archive, node) for node in archive.nodes()])
    assert [node["state"] for node in shown] == ["HELD", *["READY"] * 7]


def test_nodes_of_one_pool_are_those_of_that_pool(calls: Clinic) -> None:
    assert len(ok(calls, "/v1/nodes", list[answers.NodeAnswer], pool="train")) == 8
    response = calls.viewer.get("/v1/nodes", pool="trian")
    assert response.status_code == 404
    assert response.json() == {"error": "there is no pool 'trian': did you mean train?"}


def test_a_node_is_found_with_its_cluster_and_without(calls: Clinic) -> None:
    with_cluster = ok(calls, "/v1/nodes/sim/train-0003", answers.NodeAnswer)
    assert with_cluster == ok(calls, "/v1/nodes/-/train-0003", answers.NodeAnswer)
    assert with_cluster["id"] == "sim/train-0003"


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/v1/nodes/-/train-003", "did you mean train-0003"),
        ("/v1/nodes/sim/train-003", "did you mean train-0003"),
        ("/v1/nodes/sum/train-0003", "there is no node 'sum/train-0003': did you mean train-0003"),
        ("/v1/jobs/lama", "did you mean llama?"),
        ("/v1/incidents/zzz", "there is no incident 'zzz'"),
        ("/v1/checks/check-1", "there is no check 'check-1': there is none at all"),
        ("/v1/explain?name=train-003", "did you mean"),
        ("/v1/jobs/%F0%9F%92%A5/logs", "there is no job"),
        ("/v1/nodez", "there is nothing at /v1/nodez"),
        ("/v1/nodes/", "there is nothing at /v1/nodes/"),
        ("/v1/nodes/a/b/c/d", "there is nothing at"),
    ],
)
def test_what_is_not_there_is_404_with_a_line_that_helps(calls: Clinic, path: str, says: str) -> None:
    response = calls.operator.http.get(path)
    assert response.status_code == 404
    assert says in response.json()["error"]


@pytest.mark.parametrize("path", ["/v1/nodes/-/a%00b", "/v1/jobs/%00", "/v1/explain?name=a%00", "/v1/nodes?pool=%00"])
def test_a_nul_in_a_name_is_bad_input(calls: Clinic, path: str) -> None:
    response = calls.operator.http.get(path)
    assert response.status_code == 400
    assert "NUL" in response.json()["error"]


def test_jobs_are_listed_newest_first_and_by_state(calls: Clinic) -> None:
    shown = ok(calls, "/v1/jobs", list[answers.JobAnswer])
    rows = sorted(calls.ward.sim.jobs(), key=lambda job: (job.submitted_at, job.id), reverse=True)
    assert shown == msgspec.to_builtins([job_answer(job, Turns([job])) for job in rows])
    assert {job["id"] for job in ok(calls, "/v1/jobs", list[answers.JobAnswer], state="RUNNING")} == {"llama", "qwen"}
    assert {job["id"] for job in ok(calls, "/v1/jobs", list[answers.JobAnswer], state="open")} == {"llama", "qwen"}
    assert [job["id"] for job in ok(calls, "/v1/jobs", list[answers.JobAnswer], state="COMPLETE")] == ["short"]
    assert len(ok(calls, "/v1/jobs", list[answers.JobAnswer], limit=1)) == 1


def test_a_job_that_was_interrupted_says_how_long_it_took(calls: Clinic) -> None:
    job = ok(calls, "/v1/jobs/llama", answers.JobAnswer)
    assert job["attempt"] == 2
    (interruption,) = job["interruptions"]
    assert interruption["training_again_after"] > 0


def test_incidents_are_those_open_and_those_of_the_last_day(calls: Clinic) -> None:
    (held,) = ok(calls, "/v1/incidents", list[answers.IncidentAnswer])
    assert (held["node"], held["phase"]) == ("sim/train-0000", "HELD")
    assert ok(calls, "/v1/incidents", list[answers.IncidentAnswer], which="open") == [held]
    assert held in ok(calls, "/v1/incidents", list[answers.IncidentAnswer], which="all")
    assert ok(calls, f"/v1/incidents/{held['id']}", answers.IncidentAnswer) == held


@pytest.mark.parametrize("name", ["train-0000", "sim/train-0000", "llama", "job:qwen"])
def test_explain_answers_as_the_command_line_does(calls: Clinic, name: str) -> None:
    explained = msgspec.json.encode(explain(calls.ward.sim.store, name, calls.ward.desk.policies))
    assert ok(calls, "/v1/explain", answers.ExplainAnswer, name=name) == msgspec.json.decode(explained)


def test_the_fleet_is_everything_at_once(calls: Clinic) -> None:
    fleet = ok(calls, "/v1/fleet", fleet_answers.FleetAnswer)
    assert fleet["nodes"] == ok(calls, "/v1/nodes", list[answers.NodeAnswer])
    assert {job["id"] for job in fleet["jobs"]} == {"llama", "qwen"}  # the short one ended long ago
    assert [one["phase"] for one in fleet["incidents"]] == ["HELD"]
    assert fleet["budgets"][0]["held"] == 1
    assert fleet["as_of"].startswith("2026-01-01T02:")


def test_people_were_told_once_that_a_node_is_held(calls: Clinic) -> None:
    notices = ok(calls, "/v1/notices", list[fleet_answers.Notice])
    assert [(one["event"], one["to"], one["state"]) for one in notices] == [("held", "log", "SEEN")]


def test_the_policy_in_force_can_be_read(calls: Clinic) -> None:
    policy = ok(calls, "/v1/policy", fleet_answers.PolicyShown)
    assert policy["name"] == "default"
    assert policy["digest"] in calls.ward.desk.policies
    assert policy["yaml"].startswith("name: default\n")


def test_health_says_whether_it_leads(calls: Clinic) -> None:
    assert calls.nobody.get("/healthz").json()["leads"] is True


def test_the_index_names_every_route(calls: Clinic) -> None:
    index = calls.nobody.get("/").json()
    msgspec.convert(index, answers.Index)
    assert "POST /v1/agent/report" in index["routes"]


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/v1/jobs?state=running", "state"),
        ("/v1/jobs?limit=0", "limit"),
        ("/v1/jobs?limit=many", "limit"),
        ("/v1/jobs?limit=1&limit=2", "limit is given twice"),
        ("/v1/jobs?sate=RUNNING", "there is no parameter 'sate': did you mean state? It takes state, limit, after"),
        ("/v1/incidents?which=closed", "which"),
        ("/v1/explain", "the parameter 'name' is missing"),
        ("/v1/explain?name=", "name"),
        ("/v1/fleet?x=1", "there is no parameter 'x': this takes none"),
        ("/v1/jobs/llama/logs?rank=-1", "rank"),
        ("/v1/jobs/llama/logs?wait=21", "wait"),
        ("/v1/jobs/llama/logs?wait=nan", "wait"),
        ("/v1/jobs/llama/logs?limit=99999999", "limit"),
        ("/v1/jobs/llama/logs?last=99999999999999999999999", "last"),
        ("/v1/jobs/llama/logs?last=-1", "last"),
    ],
)
def test_a_query_that_makes_no_sense_is_400_with_a_line_that_names_it(calls: Clinic, path: str, says: str) -> None:
    response = calls.operator.http.get(path)
    assert response.status_code == 400, response.text
    assert says in response.json()["error"]
    assert "\n" not in response.json()["error"]


def test_a_method_that_a_path_does_not_take_is_405_and_says_which_it_takes(calls: Clinic) -> None:
    response = calls.operator.http.put("/v1/jobs", json={})
    assert response.status_code == 405
    assert response.headers["allow"] == "GET, HEAD, POST"
    assert response.json()["error"] == "PUT is not for this path: it takes GET, HEAD, POST"


def test_head_is_answered_like_get_without_the_body(calls: Clinic) -> None:
    response = calls.viewer.http.head("/v1/nodes")
    assert (response.status_code, response.content) == (200, b"")


@pytest.mark.slow
def test_a_list_of_many_nodes_and_jobs_reads_each_row_once() -> None:
    from tests.support.api_ward import counted

    with counted() as (ask, loads):
        from sickbay.faces.api.nodes import listed
        from sickbay.faces.api.requests import OfPool

        assert len(listed(ask, OfPool())) == 8
        rows = [key for keys in loads for key in keys]
        assert len(rows) == len(set(rows))
        assert len(loads) < 20
        assert NodeId("sim/train-0000") in {key.partition(":")[2] for key in rows}


def test_what_was_measured_is_listed_and_drawn(calls: Clinic) -> None:
    kept = calls.ward.desk.metrics
    assert kept is not None
    now = datetime.now(UTC)
    kept.record(NodeId("sim/train-0003"), now, {"gpu.0.temperature": 61.0, "cpu.busy": 12.5})
    shown = ok(calls, "/v1/nodes/-/train-0003/metrics", answers.Series)
    assert (shown["node"], shown["series"], shown["points"]) == (
        "sim/train-0003", ["cpu.busy", "gpu.0.temperature"], [],
    )  # fmt: skip


def test_prometheus_reads_the_newest_values_and_how_the_fleet_is(calls: Clinic) -> None:
    kept = calls.ward.desk.metrics
    assert kept is not None
    kept.record(NodeId("sim/train-0003"), datetime.now(UTC), {"gpu.0.temperature": 61.0, "cpu.busy": 12.5})
    response = calls.viewer.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = response.text.splitlines()
    assert 'sickbay_gpu_temperature{node="sim/train-0003",gpu="0"} 61' in lines
    assert 'sickbay_cpu_busy{node="sim/train-0003"} 12.5' in lines
    assert 'sickbay_nodes{pool="sim/train",state="READY"} 7' in lines
    assert any(line.startswith("sickbay_incidents_open{") and 'class="' in line for line in lines)


@pytest.mark.parametrize("path", ["/v1/nodes", "/v1/jobs", "/v1/incidents"])
def test_pages_together_are_the_whole_list(calls: Clinic, path: str) -> None:
    which = {"which": "all"} if path.endswith("incidents") else {}
    whole = [row["id"] for row in calls.viewer.get(path, **which).json()]
    assert whole
    paged: list[str] = []
    while page := [
        row["id"] for row in calls.viewer.get(path, **which, limit=1, after=paged[-1] if paged else "").json()
    ]:
        paged += page
    assert paged == whole
