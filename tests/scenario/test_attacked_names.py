"""Names that two things have: nobody is taken for another."""

from msgspec.structs import replace
from tests.support.wards import HOUR, OpenWard, Ward, cluster_without

from sickbay.model.facts import JobSeen, JobVanished
from sickbay.model.fleet import JobId
from sickbay.model.incident import Phase
from sickbay.model.intent import Intent
from sickbay.model.job import JobSpec, JobState, RankState
from sickbay.sim.job_behaviour import Programme
from sickbay.sim.simulation import Quarter

THEIRS = JobId("1001")


def begins(w: Ward, nodes: int, **spec: object) -> None:
    """A job that others submit."""
    asked = JobSpec(name="theirs", cluster="sim", pool="train", nodes=nodes, **spec)  # type: ignore[arg-type]
    w.world.submit_to_cluster(THEIRS, asked, Programme(steps=200_000))


def twins(ward: OpenWard) -> tuple[Ward, JobId]:
    """Two clusters that count their jobs from one."""
    rules = cluster_without("place")
    w = ward(cluster=rules, nodes=2, also=(Quarter(cluster=replace(rules, id="b"), nodes=2),), strict=False)
    begins(w, nodes=2)
    w.until(lambda: w.state(THEIRS) == JobState.RUNNING, HOUR)
    return w, THEIRS


def test_a_job_of_another_cluster_with_the_same_id_is_not_taken_for_this_one(ward: OpenWard) -> None:
    w, job = twins(ward)
    view, claim = w.world.ground.views["b"], w.job(job).claim
    ranks = dict.fromkeys(w.nodes[2:], RankState.RUNNING)
    spec = JobSpec(name="x", cluster="b", pool="train", nodes=2)
    for attempt in (1, 2):
        now = w.sim.scheduler.now
        view.put(JobSeen(job=job, attempt=attempt, as_of=now, ranks=ranks, native=True, spec=spec, cluster="b"))
        w.run(30)
    view.put(JobVanished(job=job, as_of=w.sim.scheduler.now))
    w.run(30)
    assert (w.state(job), w.job(job).attempt, w.job(job).claim) == (JobState.RUNNING, 1, claim)
    assert len([text for text in w.told("set_aside") if f"b has a job {job}, too" in text]) == 1


def test_a_job_that_is_called_as_an_incident_is_gets_none_of_its_intents(ward: OpenWard) -> None:
    w = ward(nodes=3, cluster=cluster_without("place", "reset_gpu"))
    begins(w, nodes=1, on=(w.nodes[1],))
    w.says(w.nodes[0], 79)
    w.reaches(w.nodes[0], Phase.REPAIRING, HOUR)
    treated = w.incident(w.nodes[0])
    namesake = JobId(treated.id)
    spec = JobSpec(name="x", cluster="sim", pool="train", nodes=1, on=(w.nodes[2],))
    w.world.submit_to_cluster(namesake, spec, Programme(steps=200_000))
    w.until(lambda: w.state(namesake) == JobState.RUNNING, HOUR)
    w.order("stop", namesake)
    w.until(lambda: w.state(namesake) == JobState.STOPPED, HOUR)
    rows = w.sim.store.load(keys := [f"intent:{treated.id}.{n}" for n in range(1, treated.acts + 1)])
    owners = {row.owner for key in keys if isinstance(row := rows[key].row, Intent)}
    assert owners == {f"incident:{treated.id}"}
