"""Weather: how often what breaks, as others have measured it.

Rates and shares are data with their sources. What a share looks like to a node (its code, its cure) is our reading of
it, since nobody publishes that.
"""

from datetime import timedelta
from random import Random
from typing import Literal, NamedTuple

from sickbay.model.fault import Remedy
from sickbay.sim.job_behaviour import NCCL_TAIL
from sickbay.sim.timeline import JobAct, LoseNode, Moment, StrikeDevice

# Failures per 1,000 node-days: 2.3 and 6.5 on Meta's two research clusters of A100 (Kokolis et al., "Revisiting
# Reliability in Large-Scale Machine Learning Research Clusters", 2024). Llama 3's 419 in 54 days on 2,048 nodes are
# 3.8, in between.
TYPICAL = 4.4


class FailureRate(NamedTuple):
    """One row of the mix: how many of Llama 3's interruptions, and what it looks like here."""

    name: str
    cases: int
    looks: tuple[str, ...]  # codes; `lost`, `hang` and `bug` are no codes
    cured_by: Remedy = Remedy.REBOOT


# The 419 unexpected interruptions of Llama 3 405B by root cause ("The Llama 3 Herd of Models", 2024, table 5).
LLAMA_3 = (
    FailureRate("faulty GPU", 148, ("xid.79", "xid.74", "xid.119"), Remedy.REPLACE),
    FailureRate("HBM3 memory", 72, ("xid.48", "xid.64", "xid.95"), Remedy.RESET_GPU),
    FailureRate("software bug", 54, ("bug",)),
    FailureRate("network switch or cable", 35, ("lost", "hang")),
    FailureRate("host maintenance", 32, ("lost",)),
    FailureRate("GPU SRAM", 19, ("xid.48", "xid.95"), Remedy.RESET_GPU),
    FailureRate("GPU system processor", 17, ("xid.119",)),
    FailureRate("NIC", 7, ("hang",)),
    FailureRate("NCCL watchdog", 7, ("hang",)),
    FailureRate("silent data corruption", 6, ("xid.64",), Remedy.REPLACE),
    FailureRate("GPU thermal interface", 6, ("xid.79",), Remedy.REPLACE),
    FailureRate("SSD", 3, ("lost",), Remedy.REPLACE),
    FailureRate("power supply", 3, ("lost",), Remedy.REPLACE),
    FailureRate("server chassis", 2, ("lost",), Remedy.REPLACE),
    FailureRate("IO expansion board", 2, ("xid.79",), Remedy.REPLACE),
    FailureRate("dependency", 2, ("bug",)),
    FailureRate("CPU", 2, ("lost",), Remedy.REPLACE),
    FailureRate("system memory", 2, ("lost",), Remedy.REPLACE),
)
CURED_SHARE = 0.7  # of GPU faults that a reset or a reboot clears, at least for a while: ours, nobody publishes it


def weather(
    seed: int,
    *,
    nodes: list[str],
    jobs: list[str],
    days: float,
    rate: float = TYPICAL,
    mix: tuple[FailureRate, ...] = LLAMA_3,
) -> tuple[Moment, ...]:
    """Faults over so many days, `rate` per 1,000 node-days, in the order in which they come."""
    rng = Random(seed)
    per_second = rate * len(nodes) / 1000 / 86_400
    found: list[Moment] = []
    at = rng.expovariate(per_second) if per_second > 0 else days * 86_400
    while at < days * 86_400:
        cause = rng.choices(mix, weights=[row.cases for row in mix])[0]
        found.append(_what(rng, cause, timedelta(seconds=round(at, 1)), nodes, jobs))
        at += rng.expovariate(per_second)
    return tuple(found)


def _what(rng: Random, cause: FailureRate, at: timedelta, nodes: list[str], jobs: list[str]) -> Moment:
    look, node = rng.choice(cause.looks), rng.choice(nodes)
    match look:
        case "lost":
            return LoseNode(at=at, node=node, zombie=rng.random() < 0.2, back_by=cause.cured_by)
        case "hang" | "bug" if jobs:
            # A bug that strikes now and then: its log does not forbid to start the job again.
            do: Literal["hang_job", "crash_job"] = "hang_job" if look == "hang" else "crash_job"
            return JobAct(at=at, do=do, job=rng.choice(jobs), log=NCCL_TAIL)
        case "hang" | "bug":
            return StrikeDevice(at=at, node=node, code="xid.31", cured_by=Remedy.RESTART_JOB)
        case code:
            cures = (Remedy.RESET_GPU, Remedy.REBOOT)
            mild = cause.cured_by is not Remedy.REPLACE or rng.random() < CURED_SHARE
            cured_by = rng.choice(cures) if mild else Remedy.REPLACE
            return StrikeDevice(at=at, node=node, code=code, device=rng.randrange(8), cured_by=cured_by)
