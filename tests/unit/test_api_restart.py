"""Restarting ended jobs, and submitting into a directory that others have used: what is refused, and what is told."""

from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest
from msgspec.structs import replace
from tests.support.api_ward import Clinic, clinic
from tests.support.waiting import until

from sickbay.brain.submission import followed
from sickbay.faces import answers
from sickbay.model.fleet import JobId
from sickbay.model.job import Continuation, Job, JobSpec, plain_path

BODY: dict[str, Any] = {"nodes": 1, "command": ["python", "train.py"]}


@pytest.fixture(scope="module")
def calls() -> Iterator[Clinic]:
    with clinic() as made:
        yield made


def job_of(calls: Clinic, job: str) -> Job:
    return next(one for one in calls.ward.sim.jobs() if one.id == job)


def submitted(calls: Clinic, name: str, **more: Any) -> str:
    answer = calls.operator.post("/v1/jobs", {**BODY, "name": name, **more})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def stop(calls: Clinic, job: str) -> None:
    assert calls.operator.post(f"/v1/jobs/{job}/stop", {"reason": "enough"}).status_code == 200
    until(lambda: not job_of(calls, job).open)


def ended(calls: Clinic, name: str, **more: Any) -> str:
    job = submitted(calls, name, **more)
    stop(calls, job)
    return job


def line(answer: httpx.Response, status: int) -> str:
    assert answer.status_code == status, answer.text
    said = str(answer.json()["error"])
    assert "\n" not in said
    return said


def restart(calls: Clinic, job: str, **body: Any) -> httpx.Response:
    return calls.operator.post(f"/v1/jobs/{job}/restart", body)


def test_an_ended_job_goes_on_as_a_new_one_with_what_was_changed(calls: Clinic) -> None:
    old = ended(calls, "llama", checkpoint="/shared/llama", nodes=2, min_nodes=1, cwd="/home/ann", max_restarts=7)
    answer = restart(calls, old, nodes=3, min_nodes=2, command=["python", "other.py"], step=40, reason="lr")
    assert answer.status_code == 201, answer.text
    told = msgspec.convert(answer.json(), answers.JobAnswer)
    assert (told.name, told.continues, told.restarts) == ("llama", old, 0)
    spec, before = job_of(calls, told.id).spec, job_of(calls, old).spec
    goes_on = Continuation(of=JobId(old), before=(f"{old}/{job_of(calls, old).attempt}",), step=40)
    changed = {"nodes": 3, "min_nodes": 2, "command": ("python", "other.py"), "continues": goes_on}
    assert spec == replace(before, **changed)
    assert calls.operator.get(f"/v1/jobs/{old}").json()["continued_by"] == told.id
    story = [one["text"] for one in calls.operator.get("/v1/explain", name=old).json()["story"]]
    assert f"continued by {told.id}: lr" in story
    stop(calls, told.id)


def test_what_lives_is_not_restarted_and_says_what_to_do(calls: Clinic) -> None:
    job = submitted(calls, "alive")
    assert f"sickbay stop {job} first" in line(restart(calls, job), 409)
    stop(calls, job)


def test_what_is_continued_already_names_the_one_that_continues_it(calls: Clinic) -> None:
    old = ended(calls, "chain")
    new = restart(calls, old).json()["id"]
    assert f"{old} is continued already, by {new}" in line(restart(calls, old), 409)
    stop(calls, new)
    assert f"sickbay restart {new} goes on from there" in line(restart(calls, old), 409)
    newest = restart(calls, old, step=10)
    assert newest.status_code == 201, "from a step of its own it may"
    told = job_of(calls, newest.json()["id"]).spec.continues
    assert told is not None
    assert [name.rpartition("/")[0] for name in told.before] == [old, new], "whoever began there last is known"
    assert told.home == old
    stop(calls, newest.json()["id"])


def test_the_same_key_restarts_once_whatever_has_become_of_it(calls: Clinic) -> None:
    old = ended(calls, "keyed")
    made = [calls.operator.post(f"/v1/jobs/{old}/restart", {}, key="again") for _ in range(2)]
    assert [one.status_code for one in made] == [201, 201]
    assert made[0].json()["id"] == made[1].json()["id"]
    stop(calls, made[0].json()["id"])
    assert calls.operator.post(f"/v1/jobs/{old}/restart", {}, key="again").json()["id"] == made[0].json()["id"]
    other = ended(calls, "keyed")
    assert "choose a new one" in line(calls.operator.post(f"/v1/jobs/{other}/restart", {}, key="again"), 409)


@pytest.mark.parametrize("directory", ["/shared/one", "/shared/./one/", "/shared/x/../one", "//shared//one"])
def test_two_living_jobs_never_share_a_directory_however_it_is_written(calls: Clinic, directory: str) -> None:
    first = submitted(calls, "first", checkpoint="/shared/one")
    said = line(calls.operator.post("/v1/jobs", {**BODY, "name": "second", "checkpoint": directory}), 409)
    assert f"sickbay stop {first}" in said
    assert "another --checkpoint" in said
    stop(calls, first)


def test_the_same_submission_once_more_is_not_refused_for_the_sake_of_itself(calls: Clinic) -> None:
    body = {**BODY, "name": "twice", "checkpoint": "/shared/twice"}
    first, again = (calls.operator.post("/v1/jobs", body, key="twice") for _ in range(2))
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json()["id"] == again.json()["id"]
    stop(calls, first.json()["id"])


def test_the_engine_refuses_what_was_submitted_at_one_moment_as_well(calls: Clinic) -> None:
    spec = JobSpec(name="race", cluster="sim", pool="train", command=("true",), checkpoint="/shared/race")
    one = calls.ward.desk.submit(spec, "one")
    other = calls.ward.desk.submit(replace(spec, checkpoint="/shared/y/../race"), "other")
    assert (one.open, other.state) == (True, "FAILED")
    assert f"{one.id} is" in other.diagnosis
    stop(calls, one.id)


def test_a_submission_into_the_directory_of_an_ended_job_goes_on_from_it(calls: Clinic) -> None:
    first = ended(calls, "a", checkpoint="/shared/again")
    second = submitted(calls, "b", checkpoint="/shared/again/")
    told = job_of(calls, second).spec.continues
    assert told is not None
    assert (told.of, told.last_step, told.anew) == (first, None, False)
    assert job_of(calls, first).continued_by == second
    stop(calls, second)
    third = submitted(calls, "b", checkpoint="/shared/again", anew=True)
    told = job_of(calls, third).spec.continues
    assert told is not None
    assert (told.of, told.anew, len(told.before)) == (second, True, 2)
    stop(calls, third)


def test_another_persons_checkpoints_are_taken_on_wish_only(calls: Clinic) -> None:
    ended(calls, "ottos", checkpoint="/shared/ottos")
    body = {**BODY, "name": "susis", "checkpoint": "/shared/ottos"}
    said = line(calls.submitter.post("/v1/jobs", body), 409)
    assert "belongs to" in said
    assert "--adopt" in said
    made = calls.submitter.post("/v1/jobs", {**body, "adopt": True})
    assert made.status_code == 201
    assert calls.submitter.post(f"/v1/jobs/{made.json()['id']}/stop", {"reason": "x"}).status_code == 200
    until(lambda: not job_of(calls, made.json()["id"]).open)
    ottos = ended(calls, "ottos")
    assert "only its owner" in line(calls.submitter.post(f"/v1/jobs/{ottos}/restart", {}), 403)


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"step": 5, "anew": True}, 400, "step and anew contradict each other"),
        ({"nodes": 4000}, 400, "4000 nodes are asked for"),
        ({"min_nodes": 7}, 400, "min_nodes is 7"),
        ({"lr": 1}, 400, "lr"),
    ],
)
def test_nonsense_is_refused_in_a_line(calls: Clinic, body: dict[str, Any], status: int, said: str) -> None:
    old = ended(calls, "plain")
    assert said in line(restart(calls, old, **body), status)
    assert job_of(calls, old).continued_by is None


def test_a_job_that_is_not_there_is_refused_with_those_that_are(calls: Clinic) -> None:
    assert "there is no job 'nope'" in line(restart(calls, "nope"), 404)


def test_a_chain_of_jobs_does_not_grow_for_ever(calls: Clinic) -> None:
    old = job_of(calls, ended(calls, "long"))
    for number in range(40):
        told = Continuation(of=old.id, before=followed([old]))
        old = replace(old, id=JobId(f"j{number}"), spec=replace(old.spec, continues=told))
    names = followed([old])
    assert len(names) == 16
    assert names[0].startswith("j39/")
    assert names[-1].startswith("j24/")


def test_paths_say_the_same_without_what_says_nothing() -> None:
    for path in ("/a/b", "/a//b/", "/a/./b", "/a/c/../b", "/../a/b"):
        assert plain_path(path) == "/a/b"


def test_one_that_is_being_stopped_is_restarted_once_it_is_over(calls: Clinic) -> None:
    old = submitted(calls, "pasted")
    calls.operator.post(f"/v1/jobs/{old}/stop", {"reason": "stop and restart are pasted together"})
    made = restart(calls, old)
    assert made.status_code == 201, made.text
    stop(calls, made.json()["id"])
