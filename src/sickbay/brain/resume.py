"""What a job does next: one move, one act or one wait. Each state is one function; `resume` is the table of contents.

It alone stops and starts managed attempts.
"""

from sickbay.brain.attempt import running, stopping
from sickbay.brain.blame import diagnosing
from sickbay.brain.decision import JobDecision, Stay
from sickbay.brain.gate import gating, queued
from sickbay.brain.job_input import JobInput
from sickbay.model.incident import Wait
from sickbay.model.job import JobState
from sickbay.model.policy import Policy


def resume(s: JobInput, policy: Policy) -> JobDecision:
    match s.job.state:
        case JobState.QUEUED:
            return queued(s, policy)
        case JobState.GATING:
            return gating(s, policy)
        case JobState.RUNNING:
            return running(s, policy)
        case JobState.STOPPING:
            return stopping(s, policy)
        case JobState.DIAGNOSING:
            return diagnosing(s, policy)
        case JobState.COMPLETE | JobState.FAILED | JobState.STOPPED:
            return Stay(Wait(because="over"))
