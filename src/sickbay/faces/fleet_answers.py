"""The response schema of what is asked about all: fleet, policy, brakes, tokens, notices, audit, checks, doctor."""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from sickbay.faces.answers import IncidentAnswer, JobAnswer, NodeAnswer, PoolBudget, Seconds, Time
from sickbay.model.checkup import Verdict
from sickbay.model.finding import FindingLevel
from sickbay.model.fleet import Role
from sickbay.model.intent import IntentState
from sickbay.model.notice import NoticeSeverity
from sickbay.model.noun import Noun


class TrippedBrake(Noun):
    scope: str
    signature: str
    tripped_at: Time
    nodes: list[str]
    goes_off: Annotated[Time | None, Meta(description="about when, if no more nodes show it; null: nobody can tell")]


class Withheld(Noun):
    id: str
    fault: str
    pool: str
    node: str
    until: Time | None
    by: str
    because: str


class FleetAnswer(Noun):
    nodes: list[NodeAnswer]
    jobs: list[JobAnswer]
    incidents: list[IncidentAnswer]
    budgets: list[PoolBudget]
    brakes: list[TrippedBrake]
    withheld: list[Withheld]
    trouble: Annotated[str, Meta(description="why the controller decides little or nothing now; empty: all is well")]
    as_of: Time | None


class PolicyShown(Noun):
    name: str
    digest: str
    yaml: str


class FindingShown(Noun):
    level: FindingLevel
    subject: str
    text: str
    way_out: Annotated[str, Meta(description="what to write or do; may be empty")]


class TokenShown(Noun):
    name: str
    role: Role
    node: str | None
    cluster: Annotated[str | None, Meta(description="a join token's")]
    by: str
    issued_at: Time
    expires_at: Time | None
    expired: bool
    used_at: Annotated[Time | None, Meta(description="its last use, up to an hour ago; null: never used")]


class TokenMade(Noun):
    name: str
    role: Role
    node: str | None
    cluster: Annotated[str | None, Meta(description="a join token's")]
    expires_at: Time | None
    token: Annotated[str, Meta(description="the secret; it is shown here once and stored nowhere")]


class TokenGone(Noun):
    name: str
    revoked: bool


class NoticeOutcome(StrEnum):
    OPEN = "open"
    DELIVERED = "delivered"
    REFUSED = "refused"
    GIVEN_UP = "given_up"
    LEFT_OUT = "left_out"


class Notice(Noun):
    key: Annotated[str, Meta(description="its name for ever: the Idempotency-Key of every sending")]
    at: Time
    event: str
    severity: NoticeSeverity
    subject: str
    node: Annotated[str, Meta(description="empty where it is about none; so are job, incident and pool")]
    job: str
    incident: str
    pool: str
    text: str
    to: Annotated[str, Meta(description="the channel")]
    state: IntentState
    outcome: Annotated[
        NoticeOutcome,
        Meta(description="open: under way; left_out: in a digest, or its incident closed before it could be sent"),
    ]
    tries: Annotated[int, Meta(description="how often it was sent")]
    answer: Annotated[str, Meta(description="what the far side said the last time, if it said anything")]
    settled_at: Annotated[Time | None, Meta(description="when it was delivered, or given up")]


class Audited(Noun):
    at: Time
    by: Annotated[str, Meta(description="the name of whose token it was; empty in lines of older versions")]
    verb: str
    target: str
    reason: str
    text: str
    about: Annotated[list[str], Meta(description="what it was done to: node:…, incident:…, job:…")]


class SkippedAnswer(Noun):
    node: str
    because: str


class CheckBegun(Noun):
    check: str
    nodes: list[str]
    skipped: list[SkippedAnswer]


class CheckTest(Noun):
    name: str
    verdict: Verdict
    seconds: Seconds
    because: str


class CheckResult(Noun):
    node: str
    level: int
    verdict: Verdict
    tests: list[CheckTest]
    because: str


class CheckShown(Noun):
    check: str
    level: int
    over: bool
    results: list[CheckResult]
