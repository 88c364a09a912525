"""Outcome of an attempt, a pure function of what its nodes say: no I/O, what is read is given."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from msgspec.structs import replace

from sickbay.clusters.local.attempts import GangRecord, NodePart, Over
from sickbay.clusters.local.files import Rank
from sickbay.clusters.local.seat_state import SeatState
from sickbay.model.fleet import NodeId
from sickbay.model.job import End, EndReason, RankEnd, RankState

TAIL = 16_384


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a verdict is made of."""

    sights: Mapping[str, SeatState]  # by seat
    pending: frozenset[NodeId]  # nodes that have not taken up their start yet; looked at before the sights
    haunted: Callable[[GangRecord, NodePart], bool]  # processes of this part live on, though its boot has ended
    now: float  # wall


def judge(attempt: GangRecord, evidence: Evidence) -> tuple[GangRecord, dict[NodeId, RankState]]:
    """The attempt with what is known now, and what its ranks do where; a part that was never asked is not listed.

    What is over stays over, and an end stays as it was first seen.
    """
    states: dict[NodeId, RankState] = {}
    over = dict(attempt.over)
    for part in attempt.parts:
        state = RankState.GONE if part.node in over else _state(attempt, part, evidence)
        if state is RankState.GONE and part.node not in over:
            over[part.node] = _over(attempt, part, evidence)
        if state:
            states[part.node] = state
    after = replace(attempt, over=over) if over != attempt.over else attempt
    if after.end is None and (end := _end(after, evidence)) is not None:
        after = replace(after, end=end)
    if after.closed_at is None and not after.open:
        after = replace(after, closed_at=evidence.now)
    return after, states


def _state(attempt: GangRecord, part: NodePart, evidence: Evidence) -> RankState | None:
    sight = evidence.sights.get(part.seat)
    if sight is None:
        return RankState.GONE
    if not boot_lasts(part, sight):
        return RankState.RUNNING if evidence.haunted(attempt, part) else RankState.GONE
    ranks = sight.ranks(attempt.job, attempt.attempt, part.boot_id)
    if any(rank.state is RankState.RUNNING for rank in ranks):
        return RankState.RUNNING
    if part.node in evidence.pending:
        return RankState.RUNNING  # the order lies before a node that lives; it cannot be taken back, only stopped
    if len(ranks) == len(part.ranks) or attempt.stop:
        return RankState.GONE
    return None


def boot_lasts(part: NodePart, sight: SeatState | None) -> bool:
    """The node is still in the boot in which it was asked."""
    return sight is not None and sight.alive and sight.seat.boot_id == part.boot_id


def _over(attempt: GangRecord, part: NodePart, evidence: Evidence) -> Over:
    sight = evidence.sights.get(part.seat)
    ranks = sight.ranks(attempt.job, attempt.attempt, part.boot_id) if sight else ()
    whole = len(ranks) == len(part.ranks) and all(rank.exit_code is not None for rank in ranks)
    stopped = any(rank.stopped for rank in ranks) and not attempt.stop  # by its node, which was shut down
    return Over(ranks=ranks, lost=not boot_lasts(part, sight) and (not whole or stopped))


def _end(attempt: GangRecord, evidence: Evidence) -> End | None:
    """As soon as one rank has ended badly or one node was lost; otherwise when nothing is left."""
    ranks = list(_known(attempt, evidence))
    bad = sorted(
        ((rank.ended_at or evidence.now, node, rank) for node, rank in ranks if _bad(rank)),
        key=lambda each: each[0],
    )
    lost = next((part for part in attempt.parts if (over := attempt.over.get(part.node)) and over.lost), None)
    codes: dict[str, int] = {}
    for _, node, rank in bad:
        if rank.exit_code is not None:
            codes.setdefault(str(node), rank.exit_code)
    tail = _any_tail([(node, rank) for _, node, rank in bad]) or _any_tail(ranks)
    first = _first_end(bad)
    if codes:
        return End(reason=EndReason.FAILED, at=_moment(bad[0][0]), first=first, exit_codes=codes, tail=tail)
    if lost is not None and not attempt.stop:
        gone = RankEnd(rank=lost.ranks[0].rank, node=lost.node, why="its node was lost", at=_moment(evidence.now))
        return End(reason=EndReason.NODE_LOST, at=_moment(evidence.now), first=gone, tail=tail)
    if bad and not attempt.stop:  # nobody knows how it ended, but not that it ended well
        return End(reason=EndReason.UNKNOWN, at=_moment(bad[0][0]), first=first, tail=tail)
    if attempt.open:
        return None
    last = _moment(max((rank.ended_at or 0.0 for _, rank in ranks), default=0.0) or evidence.now)
    planned = sum(len(part.ranks) for part in attempt.parts)
    if len(ranks) == planned and all(rank.exit_code == 0 and not rank.stopped for _, rank in ranks):
        return End(reason=EndReason.COMPLETED, at=last, tail=_any_tail(ranks))
    # An attempt that was stopped did not complete; that we stopped it the engine knows itself.
    reason = EndReason.FAILED if attempt.stop else EndReason.UNKNOWN
    return End(reason=reason, at=last, tail=_any_tail(ranks))


def _first_end(bad: list[tuple[float, NodeId, Rank]]) -> RankEnd | None:
    """The rank that ended badly first; of those whose end is known, if there are any: the others follow a node."""
    known = [each for each in bad if each[2].exit_code is not None] or bad
    if not known:
        return None
    at, node, rank = known[0]
    return RankEnd(rank=rank.rank, node=node, exit_code=rank.exit_code, why=rank.why, at=_moment(at))


def _known(attempt: GangRecord, evidence: Evidence) -> Iterator[tuple[NodeId, Rank]]:
    """All ranks that were ever seen."""
    for part in attempt.parts:
        over = attempt.over.get(part.node)
        sight = evidence.sights.get(part.seat)
        there = sight.ranks(attempt.job, attempt.attempt, part.boot_id) if sight else ()
        for rank in over.ranks if over else there:
            yield part.node, rank


def _bad(rank: Rank) -> bool:
    return rank.state is RankState.GONE and not rank.stopped and rank.exit_code != 0


def _any_tail(ranks: list[tuple[NodeId, Rank]]) -> str:
    return next((rank.tail for _, rank in ranks if rank.tail), "")[-TAIL:]


def _moment(wall: float) -> datetime:
    return datetime.fromtimestamp(wall, UTC)
