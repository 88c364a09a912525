"""Effects: thin calls outside the round, each behind an intent that was committed as SENT before."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from sickbay.model.errors import EffectError, Gone, Impossible, Rejected, Transient
from sickbay.model.facts import CallResult, Outcome
from sickbay.model.fault import Remedy
from sickbay.model.fleet import Capability, Incarnation, NodeId
from sickbay.model.intent import (
    AskToSave,
    Drain,
    Fence,
    Intent,
    Look,
    Notify,
    Quarantine,
    Release,
    Repair,
    RerunJob,
    StartJob,
    StopJob,
    Strike,
    Verify,
)
from sickbay.model.job import Job
from sickbay.ports.checks import Checks
from sickbay.ports.cluster import Accepted, Cluster
from sickbay.ports.machines import Machines
from sickbay.ports.notifier import Notifier

Holders = Mapping[NodeId, Incarnation | None]  # who holds the seats that a check of several nodes is meant for


@dataclass(frozen=True, slots=True)
class Site:
    """A cluster with the machines and checks that go with it; its capabilities are their union."""

    cluster: Cluster
    machines: Machines
    checks: Checks

    @property
    def capabilities(self) -> frozenset[Capability]:
        return self.cluster.capabilities | self.machines.capabilities | self.checks.capabilities

    @property
    def blind(self) -> frozenset[str]:
        return self.cluster.blind | self.machines.blind


@dataclass(frozen=True, slots=True)
class Effects:
    """All that effects are carried out with."""

    sites: Mapping[str, Site]
    notifiers: Mapping[str, Notifier]

    def perform(self, intent: Intent, job: Job | None, holders: Holders) -> Outcome:
        """Make the call and say what came of it. Never raises what an adapter may raise; never retries.

        `job`: whose attempt is started, with the spec for that.
        """
        outcome = partial(Outcome, key=intent.key, sends=intent.sends)
        try:
            accepted = self._call(intent, job, holders)
        except Transient as error:
            return outcome(result=CallResult.TRANSIENT, text=str(error), again_after=error.after)
        except Gone as error:
            return outcome(result=CallResult.GONE, text=str(error))
        except Rejected as error:
            hopeless = isinstance(error, Impossible)
            return outcome(result=CallResult.REJECTED, text=str(error), hopeless=hopeless)
        except EffectError as error:
            return outcome(result=CallResult.UNKNOWN, text=str(error))
        result = CallResult.DONE if accepted.done else CallResult.ACCEPTED
        return outcome(result=result, visible_from=accepted.visible_from, text=accepted.said)

    def _call(self, intent: Intent, job: Job | None, holders: Holders) -> Accepted:
        act, key, expect = intent.act, intent.key, intent.expect
        if isinstance(act, Notify):
            return self._tell(act, key)
        site = self.sites.get(intent.cluster)
        if site is None:
            raise Rejected(f"no cluster {intent.cluster!r} is configured")
        match act:
            case Quarantine(node=node, owner=owner, reason=reason):
                return site.cluster.cordon(node, owner=owner, reason=reason, key=key, expect=expect)
            case Release(node=node, owner=owner):
                return site.cluster.uncordon(node, owner=owner, key=key, expect=expect)
            case Drain(node=node, how=how):
                return site.cluster.drain(node, how=how, key=key, expect=expect)
            case Repair():
                return self._repair(site, intent, act)
            case Verify(nodes=nodes, level=level, profile=profile, storage=storage):
                expected = {node: expect or holders.get(node) for node in nodes}
                return site.checks.start(key, expected, level=level, profile=profile, storage=storage)
            case Look(nodes=nodes, stacks_of=stacks_of):
                return site.checks.look(key, nodes, stacks_of=stacks_of)
            case AskToSave(job=job_id, attempt=attempt, nodes=nodes):
                return site.checks.ask_to_save(key, nodes, job=job_id, attempt=attempt)
            case Fence(node=node):
                return site.machines.fence(node, key=key, expect=expect)
            case StopJob(job=job_id, attempt=attempt, final=final):
                return site.cluster.stop(job_id, attempt, final=final, key=key)
            case StartJob(job=job_id, attempt=attempt, nodes=nodes, avoid=avoid):
                if job is None:
                    raise Rejected(f"job {job_id} is not known")
                if wrong := site.cluster.wrong(job.spec):
                    raise Impossible(wrong)
                return site.cluster.start(job_id, attempt, spec=job.spec, nodes=nodes, avoid=avoid, key=key)
            case Strike():
                raise Rejected("the mail is the store's: the engine strikes it itself")
            case RerunJob(job=job_id, attempt=attempt, avoid=avoid):
                return site.cluster.rerun(job_id, attempt, avoid=avoid, key=key)

    def _repair(self, site: Site, intent: Intent, act: Repair) -> Accepted:
        if intent.expect is None:
            raise Rejected("the seat has no holder")
        machines, key, expect = site.machines, intent.key, intent.expect
        match act.rung:
            case Remedy.RESTART_SERVICE:
                return machines.restart_service(act.node, key=key, expect=expect)
            case Remedy.RESET_GPU:
                return machines.reset(act.node, act.devices, key=key, expect=expect)
            case Remedy.REBOOT:
                return machines.reboot(act.node, key=key, expect=expect)
            case Remedy.REPLACE:
                return machines.replace(act.node, key=key, expect=expect)
            case Remedy.NONE | Remedy.WATCH | Remedy.RESTART_JOB:
                raise Rejected(f"{act.rung} is not a repair")

    def _tell(self, notice: Notify, key: str) -> Accepted:
        notifier = self.notifiers.get(notice.to)
        if notifier is None:
            raise Rejected(f"no notifier {notice.to!r} is configured")
        return Accepted(done=True, said=notifier.tell(notice, key=key))
