"""Agents that are heard before their cluster speaks of their machine: what they say is buffered until it does."""

from msgspec.structs import replace

from sickbay.engine.view import Draft
from sickbay.model.clock import INGEST, Deadline
from sickbay.model.facts import EarlyAgent, Fact, Inventory, Observed
from sickbay.model.fleet import Incarnation, NodeId, cluster_of
from sickbay.model.rows import WaitMark
from sickbay.signs.classify import classify

EARLY_WORDS, EARLY_TEXT = 20, 500  # observations of a machine that is not known yet, and characters of each
UNKNOWN_AFTER = 900.0  # seconds that a cluster is given to speak of a machine whose agent is heard: it may be booting


def cut_short(news: Observed) -> Observed:
    """As much of an observation as is kept."""
    fields = {k: v if isinstance(v, int) else v[:EARLY_TEXT] for k, v in list(news.fields.items())[:EARLY_WORDS]}
    return replace(news, text=news.text[:EARLY_TEXT], fields=fields)


def keep_early(draft: Draft, fact: Fact, news: Observed | Inventory, who: Incarnation) -> None:
    """Until its machine is known: then it is learned. Of inventories the last, of observations what tells most."""
    voice = hear_early(draft, news.node, who)
    said = voice.said
    if isinstance(news, Inventory):
        said = tuple(each for each in said if not isinstance(each.news, Inventory))
    draft.put(replace(voice, said=_telling(draft, (*said, replace(fact, news=news)))))


def _telling(draft: Draft, said: tuple[Fact, ...]) -> tuple[Fact, ...]:
    """As many observations as are kept. Of too many a repeated one goes, else the mildest; among equals the newest."""
    found = [(n, classify(f.news, draft.rules.tables)) for n, f in enumerate(said) if isinstance(f.news, Observed)]
    if len(found) <= EARLY_WORDS:
        return said
    first: set[tuple[str, int | None]] = set()
    worth = []
    for n, fault in found:
        sign = (fault.code, fault.device) if fault is not None else ("", None)
        news = said[n].news
        proven = not (isinstance(news, Observed) and news.unconfirmed)
        worth.append((proven, sign not in first, fault.remedy.rank if fault is not None else -1, -n))
        first.add(sign)
    least = -min(worth)[3]
    return (*said[:least], *said[least + 1 :])


def hear_early(draft: Draft, node: NodeId, who: Incarnation) -> EarlyAgent:
    """An agent speaks whose machine its cluster has not spoken of. If that lasts, a person is told."""
    key = f"voice:{node}"
    before = draft.read(EarlyAgent, key, watch=False)
    known = before is not None and before.incarnation.same_holder(who)
    if before is None or not known or not before.heard:
        # Of a cluster that is not ours nobody ever will speak: a person is told at once.
        within = UNKNOWN_AFTER if cluster_of(node) in draft.rules.can else 0.0
        soon = Deadline(clock=INGEST, at=draft.reading(INGEST) + within)
        draft.waits[key] = WaitMark(until=soon, urgency=7)
    said = before.said if before is not None and before.incarnation.same_boot(who) else ()
    told = before is not None and known and before.told
    voice = EarlyAgent(node=node, incarnation=who, said=said, at=draft.now, told=told)
    draft.put(voice)
    return voice
