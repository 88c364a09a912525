"""Sharding of wide rows: the nodes of a large job, intent or brake are in part rows, a thousand names in each.

Whoever plans sees the whole (`gather`); what is stored is a head of a few kilobytes and its parts (`spread`), so that
no row grows with the gang and a step of training does not write thousands of names again. A part is written only
together with its head, so the head's version stands for all.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from zlib import crc32

from msgspec.structs import replace

from sickbay.model.checkup import Verdict
from sickbay.model.fleet import Brake, NodeId, Part
from sickbay.model.intent import AnyAct, AskToSave, Intent, Look, StartJob, Verify
from sickbay.model.job import Job, RankState
from sickbay.model.rows import AnyRow, Rows, Unit, Versioned, key_of

INLINE = 250  # nodes that a row holds itself
PART = 1000  # nodes in one part: 125 kB at most where names have 45 bytes
GANG_MOST = 16_384  # nodes of one job: what fits into one unit, twice

Nodes = Mapping[NodeId, tuple[int, ...]]


def _nodes_of(act: AnyAct) -> Nodes:
    match act:
        case StartJob(nodes=nodes):
            return nodes
        case Verify(nodes=names) | Look(nodes=names) | AskToSave(nodes=names):
            return dict.fromkeys(names, ())
        case _:
            return {}


def _act_on(act: AnyAct, nodes: Nodes) -> AnyAct:
    match act:
        case StartJob():
            return replace(act, nodes=dict(nodes))
        case Verify() | Look() | AskToSave():
            return replace(act, nodes=tuple(nodes))
        case _:
            return act


def spread(row: AnyRow, now: datetime) -> tuple[AnyRow, tuple[Part, ...]]:
    """The head as it is stored, and its parts; a row of few nodes is its own head."""
    if isinstance(row, Brake):
        return _spread_brake(row, now)
    nodes, words = _fields(row)
    if len(nodes) <= INLINE and len(words) <= INLINE:
        return row, ()
    owner = row.owner if isinstance(row, Intent) else key_of(row)
    names = list(dict.fromkeys((*nodes, *words)))
    parts = tuple(
        Part(
            of=key_of(row),
            number=number,
            owner=owner,
            at=now,
            nodes={name: nodes[name] for name in some if name in nodes},
            words={name: words[name] for name in some if name in words},
        )
        for number, some in enumerate(names[at : at + PART] for at in range(0, len(names), PART))
    )
    return _head(row, len(parts)), parts


def _spread_brake(brake: Brake, now: datetime) -> tuple[Brake, tuple[Part, ...]]:
    """By a hash of the name: who comes or goes in a storm changes one part."""
    if len(brake.seen) <= INLINE:
        return brake, ()
    number = _shards(len(brake.seen))
    shards: list[dict[str, float]] = [{} for _ in range(number)]
    for name, at in brake.seen.items():
        shards[crc32(name.encode()) % number][name] = at
    key = key_of(brake)
    parts = tuple(Part(of=key, number=n, owner=key, at=now, seen=seen) for n, seen in enumerate(shards))
    return replace(brake, seen={}, parts=number), parts


def _shards(names: int) -> int:
    """A power of two, so that it seldom changes."""
    return 1 << (2 * names // PART).bit_length()


def _fields(row: AnyRow) -> tuple[Nodes, Mapping[NodeId, str]]:
    match row:
        case Job():
            return row.claim, row.ranks
        case Intent():
            return _nodes_of(row.act), row.verdicts
        case _:
            return {}, {}


def _count(row: AnyRow) -> int:
    """How many parts it is stored in; 0: it is its own head."""
    if isinstance(row, Brake):
        return _shards(len(row.seen)) if len(row.seen) > INLINE else 0
    nodes, words = _fields(row)
    if len(nodes) <= INLINE and len(words) <= INLINE:
        return 0
    return -(-len(nodes.keys() | words.keys()) // PART)


def _head(row: AnyRow, parts: int) -> AnyRow:
    match row:
        case Brake():
            return replace(row, seen={}, parts=parts)
        case Job():
            return replace(row, claim={}, ranks={}, parts=parts)
        case Intent():
            return replace(row, act=_act_on(row.act, {}), verdicts={}, parts=parts)
        case _:
            return row


def _untouched(was: AnyRow | None, row: AnyRow | None) -> bool:
    """Whether only the head has changed: then nobody looks at thousands of names."""
    match was, row:
        case Job(), Job():
            return was.claim is row.claim and was.ranks is row.ranks
        case Brake(), Brake():
            return was.seen is row.seen
        case Intent(), Intent():
            return was.act is row.act and was.verdicts is row.verdicts
        case _:
            return False


def gather(head: AnyRow | None, parts: Iterable[Part]) -> AnyRow | None:
    """The row as it is planned with."""
    nodes: dict[NodeId, tuple[int, ...]] = {}
    words: dict[NodeId, str] = {}
    seen: dict[str, float] = {}
    for part in parts:
        nodes.update(part.nodes)
        words.update(part.words)
        seen.update(part.seen)
    match head:
        case Brake():
            return replace(head, seen=seen, parts=0)
        case Job():
            return replace(head, claim=nodes, ranks={name: RankState(word) for name, word in words.items()}, parts=0)
        case Intent():
            verdicts = {name: Verdict(word) for name, word in words.items()}
            return replace(head, act=_act_on(head.act, nodes), verdicts=verdicts, parts=0)
        case _:
            return head


def whole(rows: Rows, load: Callable[[list[str]], Rows]) -> Rows:
    """Rows as they were loaded, each with its parts. A damaged part is damage to the whole."""
    wide = {key: v for key, v in rows.items() if isinstance(v.row, Job | Intent | Brake) and v.row.parts}
    if not wide:
        return rows
    keys = {key: [_key(key, n) for n in range(_parts(v.row))] for key, v in wide.items()}
    loaded = load([part for some in keys.values() for part in some])
    return {**rows, **{key: _joined(v, [loaded[part] for part in keys[key]]) for key, v in wide.items()}}


def _joined(head: Versioned, found: list[Versioned]) -> Versioned:
    damage = next((each.damage for each in found if each.damage), "")
    parts = [each.row for each in found if isinstance(each.row, Part)]
    try:
        return replace(head, row=None if damage else gather(head.row, parts), damage=damage)
    except ValueError as error:  # a word in a part that no rank and no verdict has
        return replace(head, row=None, damage=str(error))


def _parts(row: AnyRow | None) -> int:
    return row.parts if isinstance(row, Job | Intent | Brake) else 0


def _key(of: str, number: int) -> str:
    return f"part:{of}/{number}"


def stored(unit: Unit, before: Callable[[str], AnyRow | None], now: datetime) -> Unit:
    """The unit as it is stored: wide rows spread, and of their parts those that change."""
    writes: dict[str, AnyRow | None] = {}
    for key, row in unit.writes.items():
        was = before(key)
        if not isinstance(row if row is not None else was, Job | Intent | Brake):
            writes[key] = row
            continue
        if row is not None and _untouched(was, row):
            writes[key] = _head(row, _count(row)) if _count(row) else row
            continue
        old = spread(was, now)[1] if was is not None else ()
        head, new = spread(row, now) if row is not None else (None, ())
        writes[key] = head
        for number in range(max(len(old), len(new))):
            mine = new[number] if number < len(new) else None
            theirs = old[number] if number < len(old) else None
            if mine is None or theirs is None or replace(mine, at=theirs.at) != theirs:
                writes[_key(key, number)] = mine
    return replace(unit, writes=writes)
