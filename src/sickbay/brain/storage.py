"""A job's shared storage, as its gate has seen it: which nodes cannot use it, and is that theirs or everybody's?

A mount that is missing on one node is that node's illness, told as a fault. A file server that is down shows itself on
all of them: then no node is blamed, and the job waits.
"""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from sickbay.model.checkup import STORAGE_NAMED, StorageSeen, StorageTally, Verdict
from sickbay.model.fleet import NodeId
from sickbay.model.intent import Intent, Verify

BLAMED = 4  # nodes of one gate at most: where more are without it, the cause is hardly theirs
_WORST_FIRST = (Verdict.FAIL, Verdict.COULD_NOT_RUN)


def verdict_of(seen: Sequence[StorageSeen], asked: Sequence[str]) -> tuple[Verdict, str]:
    """One node's answer about all directories: PASS, UNFIT, or COULD_NOT_RUN, and why."""
    answers = {one.path: one for one in seen}
    for worst in _WORST_FIRST:
        for path in asked:
            found = answers.get(path)
            verdict = found.verdict if found is not None else Verdict.COULD_NOT_RUN
            if verdict is Verdict.PASS or (verdict is Verdict.FAIL) != (worst is Verdict.FAIL):
                continue
            why = found.because if found is not None else "its agent did not look at it"
            return Verdict.UNFIT if worst is Verdict.FAIL else Verdict.COULD_NOT_RUN, f"{path}: {why}"
    return Verdict.PASS, ""


def add_to_tally(intent: Intent, node: NodeId, seen: Sequence[StorageSeen], why: str) -> Intent:
    """The gate with what one node has answered. `why`: it cannot use it; empty: it can."""
    tally = intent.storage or StorageTally()
    unfit, bare = tally.unfit, tally.bare
    if why and len(unfit) < STORAGE_NAMED:
        unfit = {**unfit, node: why}
    own = next((one.path for one in seen if one.empty and not one.remote), "")
    if own and not why and len(bare) < STORAGE_NAMED:
        bare = {**bare, node: own}
    far = {one.path for one in seen if one.remote and not one.empty and one.verdict is Verdict.PASS}
    remote = tuple(sorted({*tally.remote, *far}))
    return replace(intent, storage=StorageTally(unfit=unfit, bare=bare, remote=remote))


def without_storage(intent: Intent) -> Mapping[NodeId, str]:
    """The nodes of an answered gate that cannot use the job's storage, each with the reason as far as it is kept."""
    if not isinstance(intent.act, Verify) or not intent.act.storage:
        return {}
    tally = intent.storage or StorageTally()
    bare = {
        node: f"{path}: it is an empty directory of the node's own disk, and mounted on other nodes"
        for node, path in tally.bare.items()
        if path in tally.remote and intent.verdicts.get(node) is Verdict.PASS
    }
    unfit = {n: tally.unfit.get(n, "") for n in intent.act.nodes if intent.verdicts.get(n) is Verdict.UNFIT}
    return {**unfit, **bare}


def to_blame(intent: Intent) -> Mapping[NodeId, str]:
    """Whose own illness it is that they cannot: a few, where at least as many can at the same time."""
    lacking = without_storage(intent)
    if not isinstance(intent.act, Verify) or len(intent.verdicts) < len(intent.act.nodes):
        return {}
    can = sum(verdict is Verdict.PASS and node not in lacking for node, verdict in intent.verdicts.items())
    return lacking if 0 < len(lacking) <= min(can, BLAMED) else {}


def in_words(lacking: Mapping[NodeId, str]) -> str:
    """Some nodes with their reasons, those alike together."""
    alike: dict[str, list[NodeId]] = {}
    for node, why in sorted(lacking.items()):
        alike.setdefault(why, []).append(node)
    some = [f"{_some(nodes)} cannot use {why or 'its storage'}" for why, nodes in list(alike.items())[:3]]
    return "; ".join([*some, f"{len(alike) - 3} reasons more"] if len(alike) > 3 else some)


def _some(nodes: Sequence[NodeId]) -> str:
    more = f" and {len(nodes) - 4} more" if len(nodes) > 4 else ""
    return ", ".join(nodes[:4]) + more
