"""Shared storage that a job names is looked at before each start; a server that is down cordons no fleet."""

import pytest
from msgspec.structs import replace
from tests.support.wards import HOUR, MINUTE, Ward, policy_of, warm_and_cold

from sickbay.brain.gate import STORAGE_LATEST
from sickbay.faces.explain import explain
from sickbay.model.fault import Remedy
from sickbay.model.fleet import JobId
from sickbay.model.incident import Phase
from sickbay.model.job import JobState
from sickbay.model.policy import FaultRule, Match
from sickbay.policy.load import load_policy

FSX = ("/fsx",)


def cordons(w: Ward) -> int:
    return len(w.events("cordon"))


def starts_on(w: Ward, job: JobId) -> set[str]:
    return {str(node) for _, nodes in w.starts(job) for node in nodes}


@warm_and_cold
@pytest.mark.parametrize("precheck", [0, 1])
def test_a_node_without_the_mount_is_told_and_avoided_and_stays_in_service(cold: bool, precheck: int) -> None:
    w = Ward(nodes=4, cold=cold)
    w.world.seats[w.nodes[0]].unmounted.add("/fsx")
    job = w.training(nodes=3, storage=FSX, precheck=precheck)
    assert starts_on(w, job) == set(w.nodes[1:])
    assert w.job(job).gates == 0
    found = w.incidents(w.nodes[0])[-1]
    assert found.fault.code == "fs.missing"
    assert "/fsx: it does not exist: is it mounted?" in found.evidence[0]
    assert cordons(w) == 0, "other jobs may not need it"
    assert any("cannot use /fsx" in line.text for line in w.sim.store.story(f"job:{job}"))
    w.ends(job)
    w.rests()


@warm_and_cold
def test_a_server_that_is_down_for_all_blames_nobody_and_the_job_waits_and_says_why(cold: bool) -> None:
    w = Ward(nodes=4, cold=cold)
    w.world.ground.storage_down.add("/fsx")
    job = w.submit(nodes=2, storage=FSX)
    w.until(lambda: w.known(job) and w.job(job).storage_trouble is not None, HOUR)
    w.run(2 * HOUR)
    waiting = w.job(job)
    assert waiting.state in {JobState.QUEUED, JobState.GATING}
    assert waiting.gates == 0, "it is no fault of the job's"
    assert w.incidents() == []
    assert cordons(w) == 0
    assert w.starts(job) == []
    told = w.told("job_waits")
    assert told
    assert all("/fsx: it does not answer within 30 s; no node of it can use its storage" in text for text in told)
    assert len(told) <= 3, "a person is reminded, not flooded"
    w.until(lambda: (wait := w.job(job).wait) is not None and "/fsx" in wait.because, HOUR)
    waits = explain(w.sim.store, job).waits_for
    assert waits is not None
    assert waits.changed_by[0] == "the mount, or the file server, is mended"
    assert [way.command for way in waits.ways_out] == ["", f'sickbay stop {job} --reason "WHY"']
    w.world.ground.storage_down.clear()
    w.ends(job)
    assert w.job(job).storage_trouble is None
    w.rests()


def test_other_nodes_are_tried_first_after_all_of_a_gate_lacked_it() -> None:
    """Of one node alone nobody can tell whose trouble it is: the next try tells."""
    w = Ward(nodes=3)
    for node in w.nodes[:2]:
        w.world.seats[node].unmounted.add("/fsx")
    job = w.submit(nodes=1, storage=FSX)
    w.ends(job, most=12 * HOUR)
    assert starts_on(w, job) == {w.nodes[2]}
    assert w.job(job).gates == 0


def test_a_policy_that_reboots_for_a_missing_mount_never_cordons_a_fleet_whose_server_is_down() -> None:
    strict = FaultRule(match=Match(fault="fs.missing"), floor=Remedy.REBOOT)
    default = load_policy("default")
    w = Ward(nodes=20, policy=replace(default, faults=(strict, *default.faults)))
    w.world.ground.storage_down.add("/fsx")
    for number in range(6):
        w.submit(f"j{number}", nodes=3, storage=FSX)
    w.run(HOUR)
    assert w.incidents() == []
    w.world.ground.storage_down.clear()
    for node in w.nodes[3:]:  # and where most have lost it, the few that have it do not make it the others' illness
        w.world.seats[node].unmounted.add("/fsx")
    w.run(HOUR)
    assert cordons(w) <= 2
    assert sum(w.phase(node) in {Phase.QUARANTINED, Phase.REPAIRING, Phase.HELD} for node in w.nodes) <= 2


def test_without_a_precheck_only_the_storage_is_looked_at() -> None:
    w = Ward(nodes=2)
    w.spoil(w.nodes[0])
    job = w.training(nodes=2, storage=FSX, precheck=0)
    assert w.job(job).gates == 0
    plain = w.ends(job)
    assert plain.attempt == 1
    assert len(w.events("check.pass")) == 2
    other = w.submit("plain", nodes=2, precheck=0)
    w.job_reaches(other, JobState.RUNNING)
    assert len(w.events("check.pass")) == 2, "a job that names nothing is not looked at"


def test_an_empty_mount_point_among_nodes_that_have_it_mounted_is_found() -> None:
    w = Ward(nodes=4)
    w.world.seats[w.nodes[0]].bare.add("/fsx")
    job = w.training(nodes=3, storage=FSX)
    assert starts_on(w, job) == set(w.nodes[1:])
    assert "empty directory of the node's own disk" in w.incidents(w.nodes[0])[-1].evidence[0]


def test_a_node_that_could_not_look_is_no_pass_and_nobodys_illness() -> None:
    w = Ward(nodes=3)
    agents = w.world.examinations
    honest = agents._storage
    blind = w.nodes[0]
    agents._storage = lambda seat, path: (  # type: ignore[method-assign]
        replace(honest(seat, path), path="/another") if seat.id == blind else honest(seat, path)
    )
    job = w.training(nodes=2, storage=FSX)
    assert starts_on(w, job) == set(w.nodes[1:])
    assert w.job(job).gates == 1
    assert w.incidents(blind) == []
    assert any("its agent did not look at it" in line.text for line in w.sim.store.story(f"job:{job}"))


def test_named_nodes_wait_for_the_mount_and_go_on_when_it_is_back() -> None:
    w = Ward(nodes=2, policy=policy_of(max_gates=3))
    w.world.ground.storage_down.add("/fsx")
    job = w.submit(on=tuple(w.nodes), storage=FSX)
    w.run(20 * MINUTE)
    assert w.job(job).open
    w.world.ground.storage_down.clear()
    w.until(lambda: bool(w.starts(job)), STORAGE_LATEST.total_seconds() + 5 * MINUTE)
    w.ends(job)


@pytest.mark.parametrize("named", [False, True])
def test_a_job_whose_storage_nobody_can_use_keeps_no_node_from_the_jobs_behind_it(named: bool) -> None:
    w = Ward(nodes=1)
    w.world.ground.storage_down.add("/typo")
    stuck = w.submit(nodes=1, storage=("/typo",), on=tuple(w.nodes) if named else ())
    w.until(lambda: w.known(stuck) and w.job(stuck).storage_trouble is not None, HOUR)
    w.ends(w.submit("behind", steps=100, nodes=1))
    assert w.job(stuck).state in {JobState.QUEUED, JobState.GATING}
    w.world.ground.storage_down.clear()
    w.ends(stuck)
