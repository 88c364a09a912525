"""A job that is over for us, or waits, and what its own controller, its owner and its cluster do with it meanwhile."""

import pytest
from msgspec.structs import replace
from tests.support.wards import HOUR, MINUTE, Ward, cluster_without, warm_and_cold

from sickbay.model.errors import Gone
from sickbay.model.facts import JobVanished
from sickbay.model.fault import Remedy
from sickbay.model.fleet import Capability, JobId
from sickbay.model.job import JobState
from sickbay.ports.cluster import Accepted

THEIR_CHOICE = cluster_without(Capability.PLACE, Capability.RESET_GPU)  # the cluster chooses nodes and runs jobs again


def is_not_repaired_under(h: Ward, job: JobId) -> None:
    """A fault of its node stops it before the repair: an invariant breaks otherwise."""
    h.until(lambda: bool(h.world.running(job)), HOUR)
    ((_, nodes),) = h.world.running(job)
    h.sick(nodes[0], "xid.79", Remedy.REBOOT, kills_ranks=False)
    h.until(lambda: bool(h.events("reboot")), HOUR)


@warm_and_cold
def test_a_job_that_was_stopped_and_that_its_owner_runs_again_is_known_to_run(cold: bool) -> None:
    h = Ward(nodes=3, cluster=THEIR_CHOICE, cold=cold)
    job = h.training(steps=10**6)
    h.order("stop", job)
    h.job_reaches(job, JobState.STOPPED, most=HOUR)
    h.world.owner_resumes(job)
    h.until(lambda: h.job(job).state is JobState.RUNNING, 5 * MINUTE)
    assert h.job(job).attempt == 2
    assert h.job(job).claim
    is_not_repaired_under(h, job)


def test_a_stop_that_crosses_the_next_attempt_stops_that_too(monkeypatch: pytest.MonkeyPatch) -> None:
    h = Ward(nodes=3, cluster=THEIR_CHOICE)
    job = h.training(steps=10**6)
    cluster = h.sim.hands.sites["sim"].cluster
    stops = cluster.stop

    def stop(job: JobId, attempt: int, *, final: bool, key: str) -> Accepted:
        last = h.true_job(job).last
        if last is not None and last.number > attempt and not last.waiting:
            raise Gone(f"attempt {attempt} has ended")
        return stops(job, attempt, final=final, key=key)

    monkeypatch.setattr(cluster, "stop", stop)
    h.world.preempt(job)
    h.until(lambda: len(h.starts(job)) == 2, HOUR)
    h.order("stop", job)  # nothing is left of the attempt that we know of
    h.until(lambda: h.job(job).state is JobState.STOPPED, HOUR)
    h.run(2 * MINUTE)
    assert not h.world.running(job)
    assert h.job(job).attempt == 2


def test_a_rerun_that_is_refused_since_its_owner_was_faster_is_waited_for() -> None:
    h = Ward(nodes=3, cluster=replace(THEIR_CHOICE, lag=40.0))
    job = h.training(steps=10**6)
    h.world.preempt(job)
    h.until(lambda: h.job(job).state is JobState.QUEUED and h.job(job).deadline is not None, HOUR)
    deadline = h.job(job).deadline
    assert deadline is not None

    def left() -> float:
        (clock,) = h.sim.store.load(["clock:sim"]).values()
        return deadline.at - getattr(clock.row, "reading", 0.0)

    h.until(lambda: left() < 7, HOUR)
    h.world.owner_resumes(job)
    h.until(lambda: h.job(job).attempt == 2, HOUR)
    assert not h.notices("job_failed")
    is_not_repaired_under(h, job)


def test_a_job_that_is_deleted_in_the_read_of_its_last_word_is_known_to_be_gone() -> None:
    h = Ward(nodes=3, cluster=THEIR_CHOICE)
    job = h.submitted_elsewhere(steps=10**6)
    found, view, now = h.true_job(job), h.world.ground.views["sim"], h.sim.scheduler.now
    last = found.last
    assert last is not None
    view.put(found.seen(last, now))  # it runs; and then it is deleted with its ranks
    view.put(JobVanished(job=job, as_of=now))
    found.purged = True
    h.ends(job, JobState.STOPPED, most=HOUR)


@warm_and_cold
def test_a_job_that_is_deleted_while_it_waits_to_be_run_again_is_made_anew(cold: bool) -> None:
    h = Ward(nodes=3, cluster=THEIR_CHOICE, cold=cold)
    job = h.training(steps=10**6, nodes=3)
    h.world.operator_cordons(h.nodes[2])
    h.world.preempt(job)
    h.until(lambda: "rerun_job" in {told.act for told in h.world.chronicle.told}, HOUR)
    h.run(MINUTE)
    found = h.true_job(job)
    assert found.last is not None
    found.purged, found.last.waiting = True, False
    h.world.ground.views["sim"].put(JobVanished(job=job, as_of=h.sim.scheduler.now))
    h.run(MINUTE)
    assert h.job(job).state is JobState.GATING
    h.world.operator_uncordons(h.nodes[2])
    h.until(lambda: bool(h.world.running(job)), HOUR)
