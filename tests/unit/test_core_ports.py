"""What clusters, ranks and agents say late, twice or out of order, learned by the real engine's own functions."""

from datetime import UTC, datetime
from typing import Any

import pytest
from tests.unit.test_reception import NODE, Door, report

from sickbay.adapters.stores.memory import MemoryStore
from sickbay.engine.apply import learn
from sickbay.engine.view import Draft, Rules, View
from sickbay.knowledge.load import load_tables
from sickbay.model.facts import AnyNews, CallResult, Fact, JobSeen, JobVanished, Outcome
from sickbay.model.fleet import AgentState, Capability, Incarnation, JobId, Node, NodeId
from sickbay.model.intent import Intent, IntentState, StopJob
from sickbay.model.job import Job, JobSpec, JobState, RankState
from sickbay.model.protocol import Answered, CommandResult, RunReset
from sickbay.policy.load import load_policy

NOW = datetime(2026, 1, 1, tzinfo=UTC)
A, B = NodeId("c/a"), NodeId("c/b")
TRAIN = JobId("train")
STOP = Intent(
    key="train.1", owner="job:train", cluster="c", pool="c/p", act=StopJob(job=TRAIN, attempt=1), because="",
    planned_at=NOW, clock="c", call_timeout=10.0, patience=60.0, state=IntentState.ACCEPTED, sends=1,
)  # fmt: skip


def draft(**job: Any) -> Draft:
    """A job on two nodes, one of which nobody reaches."""
    rules = Rules(
        policy=load_policy("default"), tables=load_tables(), policy_digest="",
        can={"c": frozenset({Capability.RERUN, Capability.HOLDS})}, blind={},
    )  # fmt: skip
    made = Draft(View(MemoryStore()), rules, {}, NOW)
    boot = Incarnation(boot_id="b")
    made.put(Node(id=A, cluster="c", pool="c/p", incarnation=boot))
    made.put(Node(id=B, cluster="c", pool="c/p", incarnation=boot, ready=False, agent=AgentState.SILENT))
    made.put(STOP)
    fields: dict[str, Any] = {
        "state": JobState.STOPPING, "attempt": 1, "ranks": dict.fromkeys((A, B), RankState.RUNNING),
        "claim": {A: (), B: ()},
        "ranks_as_of": 10.0, "intent": STOP.key,
    }  # fmt: skip
    spec = JobSpec(name="train", cluster="c", pool="p", nodes=2)
    made.put(Job(id=TRAIN, spec=spec, submitted_at=NOW, **{**fields, **job}))
    return made


def told(on: Draft, news: AnyNews) -> Job:
    learn(on, Fact(id="f", at=NOW, news=news))
    job = on.job(TRAIN)
    assert job is not None
    return job


def pending(attempt: int = 2, as_of: float = 20.0) -> JobSeen:
    return JobSeen(job=TRAIN, attempt=attempt, as_of=as_of, native=True)


@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.STOPPING, JobState.DIAGNOSING, JobState.QUEUED])
def test_a_number_without_nodes_is_no_attempt_and_proves_nothing_about_the_last_one(state: JobState) -> None:
    """Slurm has a job in its queue again before the processes of the old allocation are gone."""
    on = draft(state=state)
    before = on.job(TRAIN)
    assert told(on, pending()) == before


@pytest.mark.parametrize(
    ("first", "second", "gone"),
    [
        (JobVanished(job=TRAIN, as_of=20.0, sure=False), None, False),
        (JobVanished(job=TRAIN, as_of=20.0, sure=False), JobVanished(job=TRAIN, as_of=20.0, sure=False), False),
        (JobVanished(job=TRAIN, as_of=20.0, sure=False), JobVanished(job=TRAIN, as_of=25.0, sure=False), True),
        (JobVanished(job=TRAIN, as_of=5.0), None, False),
        (JobVanished(job=TRAIN, as_of=20.0), None, True),
    ],
    ids=["once", "the same list twice", "two lists", "an older read", "its cluster says so"],
)
def test_a_job_has_vanished_when_two_lists_or_its_cluster_say_so(
    first: JobVanished, second: JobVanished | None, gone: bool
) -> None:
    on = draft(state=JobState.RUNNING)
    after = told(on, first)
    after = told(on, second) if second is not None else after
    assert (after.end is not None) is gone
    assert after.ranks[B] == RankState.RUNNING, "nobody reaches it"


@pytest.mark.parametrize("waiting", [20, 60, 300])
def test_an_answer_to_a_later_command_counts_however_many_wait_before_it(waiting: int) -> None:
    door = Door()
    for number in range(waiting):
        door.post(RunReset(key=f"k{number}"), name=f"c{number:04d}")
    door.reception.receive(report(Answered(command=f"c{waiting - 1:04d}", result=CommandResult.REFUSED, text="busy")))
    assert [fact.news for fact in door.facts()] == [
        Outcome(key=f"k{waiting - 1}", result=CallResult.REJECTED, sends=0, text="busy", node=NODE)
    ]
    assert f"c{waiting - 1:04d}" not in [command.id for command in door.store.mail(NODE, limit=1000)]
