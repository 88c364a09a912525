"""Pairwise bisection of a collective: which node spoils it, in two rounds of pairs.

Round one pairs all. Nodes of a pair that passes are good: it takes two good ones to pass. Round two pairs each of the
others with a good one; who fails again is bad. Where nobody passed, nobody can vouch for another, and nobody is blamed.
With fewer bad nodes than half a pair always passes, so every bad node is named and no other. DLRover tries nodes in
this way before a job starts.
"""

from collections.abc import Generator, Sequence

from sickbay.model.errors import BadInput
from sickbay.model.noun import Noun

Pair = tuple[str, str]


class Round(Noun):
    """Pairs in waves: within one wave no node occurs twice, so its pairs can run at the same time."""

    waves: tuple[tuple[Pair, ...], ...] = ()

    @property
    def pairs(self) -> tuple[Pair, ...]:
        return tuple(pair for wave in self.waves for pair in wave)


class PairTried(Noun):
    """What a pair did, each time that it was tried; nothing: it could not be tried."""

    pair: Pair
    passed: tuple[bool, ...] = ()

    @property
    def good(self) -> bool:
        return bool(self.passed) and all(self.passed)

    @property
    def failed(self) -> bool:
        return bool(self.passed) and not any(self.passed)


class PairwiseVerdict(Noun):
    """Every node is in one of the three. `unknown` says why nothing can be said of it."""

    bad: tuple[str, ...] = ()
    good: tuple[str, ...] = ()
    unknown: dict[str, str] = {}

    @property
    def because(self) -> str:
        if self.bad:
            return f"{', '.join(self.bad)} failed with two partners, one of whom works with others"
        if self.unknown:
            return f"cannot tell: {next(iter(self.unknown.values()))}"
        return "every node works with another"


def rounds(nodes: Sequence[str]) -> Generator[Round, Sequence[PairTried], PairwiseVerdict]:
    """Yields what to try, is sent what came of it, and returns the verdict."""
    opening = first_round(nodes)
    first = (yield opening) if opening.waves else []
    closing = second_round(nodes, first)
    second = (yield closing) if closing.waves else []
    return verdict(nodes, first, second)


def first_round(nodes: Sequence[str]) -> Round:
    """All in pairs; of an odd number the last three each with each, so that one bad node leaves a pair that passes."""
    if len(set(nodes)) != len(nodes):
        raise BadInput("a node is named twice: name each once")
    if len(nodes) < 2:
        return Round()
    paired = len(nodes) if len(nodes) % 2 == 0 else len(nodes) - 3
    pairs = [(nodes[at], nodes[at + 1]) for at in range(0, paired, 2)]
    if paired == len(nodes):
        return Round(waves=(tuple(pairs),))
    one, other, third = nodes[paired:]
    return Round(waves=((*pairs, (one, other)), ((other, third),), ((third, one),)))


def second_round(nodes: Sequence[str], first: Sequence[PairTried]) -> Round:
    """Each suspect with a good one; as many waves as there are suspects for each good node."""
    good = _good(nodes, first)
    suspects = [node for node in nodes if node not in set(good)]
    if not good:
        return Round()
    waves = [
        tuple((suspect, good[at]) for at, suspect in enumerate(suspects[begin : begin + len(good)]))
        for begin in range(0, len(suspects), len(good))
    ]
    return Round(waves=tuple(waves))


def verdict(nodes: Sequence[str], first: Sequence[PairTried], second: Sequence[PairTried]) -> PairwiseVerdict:
    good = _good(nodes, first)
    if not good:
        why = "no pair passed, so nobody vouches for anybody; look for what they share"
        return PairwiseVerdict(
            unknown=dict.fromkeys(nodes, why if len(nodes) > 1 else "it has no partner to be tried with")
        )
    sound, bad, unknown = list(good), [], {}
    again = {node: tried for tried in second for node in tried.pair if node not in set(good)}
    for node in nodes:
        if node in set(good):
            continue
        tried = again.get(node)
        if tried is None or not tried.passed:
            unknown[node] = "it was not tried with a good partner"
        elif tried.good:
            sound.append(node)
        elif tried.failed and _failed_before(node, first):
            bad.append(node)
        else:
            unknown[node] = "it passes at one time and fails at another"
    return PairwiseVerdict(bad=tuple(bad), good=tuple(sound), unknown=unknown)


def _failed_before(node: str, first: Sequence[PairTried]) -> bool:
    """Blame takes two partners: once is a coincidence."""
    return any(tried.failed for tried in first if node in tried.pair)


def _good(nodes: Sequence[str], first: Sequence[PairTried]) -> list[str]:
    vouched = {node for tried in first if tried.good for node in tried.pair}
    return [node for node in nodes if node in vouched]
