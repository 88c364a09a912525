"""Linter: what a policy may say but probably should not. What must not be turned on is in `policy.refusals`."""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import NamedTuple

from sickbay.model.durations import format_duration
from sickbay.model.fault import RUNGS, SILENCE, Severity
from sickbay.model.fleet import Capability, pool_fits
from sickbay.model.policy import Limit, Mode, Policy, Trigger
from sickbay.policy.refusals import acts

_MANY_TRIES = 3


def lint(
    policy: Policy, capabilities: frozenset[Capability] | None, sizes: Mapping[str, int] | None = None
) -> list[str]:
    """One line for each doubt, beginning with the setting's path. `None`: what the cluster can do is not known.

    `sizes`: nodes by pool, where they are known; "*" stands for any pool.
    """
    found = [
        *_faults(policy),
        *_ladders(policy),
        *_checks(policy),
        *_resume(policy),
        *(line for n, limit in enumerate(policy.limits) for line in _limit(limit, f"limits[{n}]")),
        *_brakes(policy),
        *_pace(policy),
    ]
    found += _small_pools(policy, sizes or {})
    if capabilities is not None:
        found += map(str, lacking(policy, capabilities))
    return found


def _faults(policy: Policy) -> Iterator[str]:
    for n, rule in enumerate(policy.faults):
        fatal = Severity.FATAL in rule.match.severity
        if fatal and rule.mode is Mode.OBSERVE:
            yield f"faults[{n}].mode: fatal faults are observed, so nobody is told: write recommend to be notified"
        elif fatal and not acts(rule) and rule.mode is Mode.ACT:
            yield f"faults[{n}].cap: fatal faults stay in service (cap {rule.cap}): raise it, or use mode recommend"
        if rule.needs_human and rule.cap is not None and not rule.cap.disrupts:
            yield f"faults[{n}].needs_human: with cap {rule.cap} the node is never quarantined, so nobody is asked"
    for n, row in enumerate(policy.withhold):
        if row.until is None:
            yield f"withhold[{n}].until: {row.id!r} never ends: give it a time"


def _ladders(policy: Policy) -> Iterator[str]:
    for n, ladder in enumerate(policy.ladders):
        if not ladder.rungs:
            yield f"ladders[{n}].rungs: no rung, so each of these nodes waits for a person: is that meant?"
        for m, rung in enumerate(ladder.rungs):
            at = f"ladders[{n}].rungs[{m}]"
            if rung.tries > _MANY_TRIES:
                yield f"{at}.tries: {rung.tries} tries of {rung.do} keep a sick node out for long before more is done"
            if rung.deadline <= policy.pace.call_timeout:
                timeout = format_duration(policy.pace.call_timeout)
                yield f"{at}.deadline: not longer than pace.call_timeout ({timeout}): no answer could come in time"


def _checks(policy: Policy) -> Iterator[str]:
    triggers = {rule.on for rule in policy.examine}
    if Trigger.JOIN not in triggers:
        yield "examine: newcomers and spares join unchecked: add {on: join, level: 2}"
    for n, rule in enumerate(policy.examine):
        if rule.every is not None and rule.every <= rule.deadline:
            yield f"examine[{n}].every: not longer than its deadline: a node would be checked without pause"


def _resume(policy: Policy) -> Iterator[str]:
    rule = policy.resume
    if rule.faults_count and rule.max_restarts == 0:
        yield "resume.max_restarts: 0 with faults_count: no job is ever restarted, even when a node was to blame"
    if 0 in rule.exit_codes:
        yield "resume.exit_codes: 0 is success and is never restarted: remove it"
    if 0 < rule.max_interruptions < rule.max_restarts:
        yield "resume.max_interruptions: below max_restarts, which is then never reached"
    if rule.max_interruptions == 0:
        yield "resume.max_interruptions: 0: no job is ever restarted"


def _limit(limit: Limit, at: str) -> Iterator[str]:
    # Without a size, judge a pool that is large enough for the percentage to decide.
    size = limit.size or max(1000, 2 * limit.out_at_least, 2 * limit.repairing_at_least)
    if limit.out(size) >= size:
        yield f"{at}: lets the whole pool out of service at once: lower out_percent or set out_absolute"
    if limit.out(limit.size or 1) == 0:
        yield f"{at}: a small pool can never have a node out, so nothing is repaired there: set out_at_least: 1"
    if limit.repairing(limit.size or 1) == 0:
        yield f"{at}: a small pool can never have a node in repair: set repairing_at_least: 1"


def _small_pools(policy: Policy, sizes: Mapping[str, int]) -> Iterator[str]:
    for pool, seats in sizes.items():
        n, limit = next(
            ((n, limit) for n, limit in enumerate(policy.limits) if pool == "*" or pool_fits(pool, limit.pool)),
            (0, Limit()),
        )
        size = limit.size or seats
        named = f"a pool of {size} nodes" if pool == "*" else f"pool {pool} ({size} nodes)"
        if limit.out(size) == 1 < size:
            yield (
                f"limits[{n}].out_at_least: {named} may lack one node, so one that is HELD for a person turns healing "
                "off for all the others until he decides: write out_at_least: 2, or see that `held` reaches somebody"
            )


def _brakes(policy: Policy) -> Iterator[str]:
    if not policy.brakes:
        yield "brakes: none, so one bad driver roll-out can take a node after the other: add {signature: '*'}"
    elif not any(fnmatchcase(SILENCE, brake.signature) for brake in policy.brakes):
        yield "brakes: none for silence, so a network cut looks like many lost nodes: add {signature: silence}"
    for n, brake in enumerate(policy.brakes):
        if brake.nodes == 1:
            yield f"brakes[{n}].nodes: 1 trips on the first sick node: nothing would be repaired without a person"


def _pace(policy: Policy) -> Iterator[str]:
    pace = policy.pace
    if pace.cordon_deadline <= pace.call_timeout:
        yield "pace.cordon_deadline: not longer than call_timeout: no answer could come in time"
    if pace.drain_every <= pace.call_timeout:
        yield "pace.drain_every: not longer than call_timeout: work would be asked again before it was asked"
    if policy.silence.agent < timedelta(seconds=10):
        yield "silence.agent: under 10s a busy node or a slow network is taken for a dead agent"


class Shortfall(NamedTuple):
    """What a policy asks for in one place and a cluster cannot do, and what follows from that."""

    at: str
    text: str
    needs: Capability | None = None  # None: of several none is there

    def __str__(self) -> str:
        return f"{self.at}: {self.text}"


def lacking(policy: Policy, capabilities: frozenset[Capability]) -> Iterator[Shortfall]:
    for n, ladder in enumerate(policy.ladders):
        able = [rung for rung in ladder.rungs if RUNGS[rung.do].needs in capabilities]
        for m, rung in enumerate(ladder.rungs):
            if rung not in able:
                text = f"this cluster cannot {rung.do}: the rung is skipped"
                yield Shortfall(f"ladders[{n}].rungs[{m}].do", text, RUNGS[rung.do].needs)
        if ladder.rungs and not able:
            text = "this cluster can do none of them: each of these nodes waits for a person"
            yield Shortfall(f"ladders[{n}].rungs", text)
    if Capability.CHECK not in capabilities:
        text = "this cluster has no checks (check): no repair can be proved, so nodes are held for a person"
        yield Shortfall("ladders", text, Capability.CHECK)
    elif Capability.CHECK_CORDONED not in capabilities:
        text = "checks cannot start on a cordoned node (check_cordoned): no repair can be proved"
        yield Shortfall("ladders", text, Capability.CHECK_CORDONED)
    if Capability.LOOK not in capabilities:
        text = "nodes cannot be looked at (look): a job restarts without asking them first"
        yield Shortfall("resume.look_deadline", text, Capability.LOOK)
    if Capability.FENCE not in capabilities:
        text = "a lost node cannot be fenced (fence): its jobs wait for the cluster's proof that it is gone"
        yield Shortfall("ladders", text, Capability.FENCE)
