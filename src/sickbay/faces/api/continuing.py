"""Shared checkpoint directories: which jobs have or had one, and how a submission into it takes up.

The directory itself is never read here. What is known is which jobs had it: a living one refuses the newcomer, ended
ones are told to rank 0 by name, which takes up from theirs and from nobody else's.
"""

from msgspec.structs import replace

from sickbay.brain.submission import followed, in_use
from sickbay.faces.api.refusal import ApiRefusal
from sickbay.faces.api.route import ApiRequest
from sickbay.hosts.backend import job_named
from sickbay.model.job import Continuation, Job, JobSpec


def mates_of(ask: ApiRequest, job: Job) -> list[Job]:
    """The other jobs that have or had its directory, the newest first."""
    others = (
        one
        for one in ask.all_of(Job, "job")
        if one.id != job.id and one.spec.cluster == job.spec.cluster and one.directory == job.directory
    )
    return sorted(others, key=lambda one: (one.submitted_at, one.id), reverse=True)


def taken_up(ask: ApiRequest, spec: JobSpec, *, anew: bool, anyones: bool) -> JobSpec:
    """A submission into a directory that ended jobs have used goes on from the newest of them, or begins anew on wish.

    Raises ApiRefusal(409) while a job that lives saves there.
    """
    if anew and anyones:
        raise ApiRefusal(400, "anew and adopt contradict each other: give one of them")
    if spec.checkpoint and (mates := mates_of(ask, _unnamed(ask, spec))):
        if wrong := in_use(_unnamed(ask, spec), mates):
            raise ApiRefusal(409, wrong)
        theirs = next((one for one in mates[:1] if one.owner not in {"", ask.by}), None)
        if theirs is not None and not (anew or anyones):
            raise ApiRefusal(
                409,
                f"{spec.checkpoint} holds the checkpoints of {theirs.id}, which belongs to {theirs.owner}: --adopt goes"
                " on from them, --anew begins beside them; or give another --checkpoint",
            )
        of = next((one.id for one in mates if not one.adopted), None)
        return replace(spec, continues=Continuation(of=of, before=followed(mates), anew=anew, anyones=anyones))
    return replace(spec, continues=Continuation(anew=anew, anyones=anyones)) if anew or anyones else spec


def _unnamed(ask: ApiRequest, spec: JobSpec) -> Job:
    return Job(id=job_named(spec.name, ask.key), spec=spec, submitted_at=ask.backend.now())
