"""The application service: all that faces may ask of a controller. A change is a fact; the engine does the rest."""

import hashlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from sickbay.engine.figures import LoopFigures
from sickbay.engine.ingest import Ingest, Together, alone
from sickbay.engine.oddities import Oddity
from sickbay.engine.reception import Reception
from sickbay.engine.view import moment
from sickbay.hosts.census import Census
from sickbay.hosts.changes import Changes
from sickbay.model.errors import BadInput, EffectError
from sickbay.model.facts import (
    AnyNews,
    ControllerStarted,
    Observed,
    Ordered,
    Submitted,
    TokenIssued,
    TokenRevoked,
    TokensUsed,
)
from sickbay.model.fleet import Capability, Cursor, JobId, Node, NodeId, Role, Token
from sickbay.model.job import Job, JobSpec
from sickbay.model.notice import LOG
from sickbay.model.parts import whole
from sickbay.model.policy import Policy
from sickbay.model.protocol import AnyOrder, Command, Poll, Reply, Report
from sickbay.model.rows import CURSOR
from sickbay.ports.breakable import Breakable
from sickbay.ports.clock import Clock
from sickbay.ports.cluster import Cluster, Log
from sickbay.ports.metrics import Metrics
from sickbay.ports.store import Store

LEARNED_WITHIN = 10.0  # seconds that a person waits until what was asked is known to the engine


class Backend:
    def __init__(
        self,
        store: Store,
        policy: Policy,
        policies: Mapping[str, Policy],
        clusters: Mapping[str, Cluster],
        clock: Clock,
        wake: Callable[[], None],
        changes: Changes,
        breakable: Breakable | None = None,
        metrics: Metrics | None = None,
        leads: Callable[[], bool] = alone,
        notifiers: tuple[str, ...] = (LOG,),
    ) -> None:
        self.store = store
        self.policy = policy
        self.policies = dict(policies)  # by digest, for `explain`
        self.clusters = clusters
        self.breakable = breakable
        self.metrics = metrics
        self.notifiers = notifiers  # the names of the channels that are configured
        self.changes = changes
        self.codes: frozenset[str] = frozenset()  # of faults, by the tables in force; empty: the shipped ones
        self.census = Census()  # for metrics; who runs the engine feeds it, and says what its loop does
        self.loop = LoopFigures()
        self._clock = clock
        self._wake = wake
        self._ingest = Ingest(store, clock)
        self._many = Together(store, clock)
        # Six reports may be missed before an agent counts as silent.
        self._reception = Reception(
            store, clock, report_every=policy.silence.agent.total_seconds() / 6, metrics=metrics, leads=leads
        )

    def take(self, policy: Policy, digest: str) -> None:
        """Another policy is in force from now on."""
        self.policies[digest] = policy
        self.policy = policy
        self._reception.hear_every(policy.silence.agent.total_seconds() / 6)

    # --- commands of people
    def _tell(self, key: str, news: AnyNews) -> None:
        self._ingest.tell(key, news)
        self._wake()

    def note(self, key: str, news: AnyNews) -> None:
        """A fact of which many may come at once: they share commits. Nobody waits here until it is learned."""
        self._many.tell(key, news)
        self._wake()

    def order(self, news: Ordered, key: str) -> str:
        """An operator's command; `key` makes a second sending of it harmless. Its id, when the engine knows of it."""
        ident = f"order/{key}"
        self._tell(ident, news)
        self.learned()
        return ident

    def wrong(self, spec: JobSpec) -> str:
        """Why its cluster could never run a job. One that cannot be asked now refuses nobody: the start asks again."""
        try:
            return self.clusters[spec.cluster].wrong(spec)
        except EffectError:
            return ""

    def submit(self, spec: JobSpec, key: str, by: str = "", reason: str = "", owner: str = "") -> Job:
        job = job_named(spec.name, key)
        self._tell(f"submit/{key}", Submitted(job=job, spec=spec, by=by, owner=owner, reason=reason))
        self.changes.wait(lambda: self._job(job) is not None, LEARNED_WITHIN)
        found = self._job(job)
        if found is None:
            raise TimeoutError("the job is noted, but the engine has not taken it up yet; 'sickbay jobs' will show it")
        return found

    def _job(self, job: JobId) -> Job | None:
        row = whole(self.store.load([key := f"job:{job}"]), self.store.load)[key].row
        return row if isinstance(row, Job) else None

    def learned(self) -> bool:
        """Wait until every fact that is stored now has been learned. False: the engine is busy, or away."""
        last = self._read_up_to()
        while page := self.store.facts(after=last):
            last = page[-1].seq
        return self.changes.wait(lambda: self._read_up_to() >= last, LEARNED_WITHIN)

    def _read_up_to(self) -> int:
        row = self.store.load([CURSOR])[CURSOR].row
        return row.at if isinstance(row, Cursor) else 0

    def lag(self) -> timedelta:
        """How old the oldest fact is that is stored and has not been learned; nothing: none waits."""
        waiting = self.store.facts(after=self._read_up_to(), limit=1)
        return max(timedelta(), self.now() - waiting[0].at) if waiting else timedelta()

    # --- agents
    def receive_all(self, reports: Sequence[Report]) -> list[Reply | Exception]:
        """Reports of different nodes, stored in one commit; what each of them is answered, or why it was not stored."""
        answers = self._reception.receive_all(reports)
        if any(report.items for report in reports):
            self._wake()
        return answers

    def oddities(self) -> list[Oddity]:
        """Agents whose clock or protocol differs from ours, of those that report to this replica."""
        return self._reception.oddities.all()

    def commands(self, poll: Poll) -> Reply:
        """At once: what waits for this agent that it does not have yet. Whoever holds the poll asks again."""
        return self._reception.commands(poll)

    def ask_agent(
        self, node: Node, order: AnyOrder, *, key: str, within: float, notify: Callable[[], None]
    ) -> Observed | None:
        """Have a node's agent do something for a person, and wait for its answer. None: it has not answered in time."""
        posted = moment(self._clock.wall())
        command = Command(
            id=key, node=node.id, order=order, posted_at=posted, expires_after=within, expect=node.incarnation
        )
        last = self._read_up_to()
        self.store.post([command])
        notify()
        found: list[Observed] = []

        def answered() -> bool:
            nonlocal last
            while page := self.store.facts(after=last):
                last = page[-1].seq
                told = [fact.news for fact in page if fact.id == f"answered/{key}"]
                found.extend(news for news in told if isinstance(news, Observed))
            return bool(found)

        self.changes.wait(answered, within)
        return found[0] if found else None

    # --- credentials
    def issue(
        self,
        name: str,
        role: Role,
        by: str,
        node: NodeId | None = None,
        secret: str = "",
        *,
        seconds: float | None = None,
        anew: bool = False,
        reason: str = "",
        cluster: str = "",
    ) -> str:
        """A new token; its secret is told here once and stored nowhere. `anew`: any other of its name is revoked.

        `cluster`: of a join token, the only one that it is good for.
        """
        secret = secret or secrets.token_urlsafe(24)
        digest = hash_of(secret)
        news = TokenIssued(
            hash=digest, name=name, role=role, by=by, node=node, cluster=cluster, seconds=seconds, anew=anew,
            reason=reason,
        )  # fmt: skip
        # Each time another fact: one that was revoked since and is issued again is no second delivery of the first.
        self._tell(f"token/{digest}/{secrets.token_hex(8)}", news)
        self.changes.wait(lambda: self._holds(secret, role), LEARNED_WITHIN)
        return secret

    def _holds(self, secret: str, role: Role) -> bool:
        token = self.who(secret)
        return token is not None and token.role == role

    def revoke(self, name: str, by: str, reason: str = "") -> None:
        self._tell(f"revoke/{name}/{secrets.token_hex(8)}", TokenRevoked(name=name, by=by, reason=reason))
        self.learned()

    def used(self, hashes: Sequence[str]) -> None:
        """These tokens were used lately. Nobody waits for it."""
        self._ingest.tell(f"used/{secrets.token_hex(8)}", TokensUsed(hashes=tuple(hashes)))

    def started(self, by: str, policy: str, source: str, knowledge: str) -> None:
        """Somebody has started this controller."""
        news = ControllerStarted(by=by, policy=policy, name=self.policy.name, source=source, knowledge=knowledge)
        self._tell(f"started/{secrets.token_hex(8)}", news)

    def who(self, secret: str) -> Token | None:
        return self.tokens([hash_of(secret)])[0]

    def tokens(self, hashes: Sequence[str]) -> list[Token | None]:
        """The tokens of these hashes, in their order, with one read."""
        rows = self.store.load(f"token:{each}" for each in hashes)
        found = (rows[f"token:{each}"].row for each in hashes)
        return [row if isinstance(row, Token) else None for row in found]

    # --- what ranks wrote
    def logs(self, job: Job, attempt: int, rank: int, *, after: str, last: int, limit: int) -> Log:
        cluster = self.clusters.get(job.spec.cluster)
        if cluster is None or Capability.LOGS not in cluster.capabilities:
            raise BadInput(f"the logs of {job.spec.cluster} cannot be read from here")
        return cluster.logs(job.id, attempt, rank, after=after, last=last, limit=limit)

    def now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.wall(), UTC)


def job_named(name: str, key: str) -> JobId:
    """The id of the job that is submitted under a key, the same each time."""
    return JobId(f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:8]}")


def hash_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
