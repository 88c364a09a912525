"""Truncation at the door: texts and lists of a fact are cut where it enters, so that no row grows with what was said.

An agent may send megabytes of log. What decides is in `kind` and `fields`; the text is evidence, and the first lines of
it tell a person enough.
"""

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import TypeVar

from msgspec.json import encode
from msgspec.structs import replace

from sickbay.brain.identity import MOST_DEVICES
from sickbay.model.checkup import STORAGE_MOST, StorageSeen, Tested
from sickbay.model.cordon import incident_of
from sickbay.model.facts import (
    AnyNews,
    Checked,
    Checkpointed,
    Fact,
    Hung,
    Inventory,
    JobSeen,
    JoinRefused,
    Looked,
    NodeSeen,
    Observed,
    Ordered,
    Outcome,
    RankEnded,
    RuleOff,
    Stepped,
    Wrote,
)
from sickbay.model.job import End, JobSpec
from sickbay.model.plain_text import plain_text

TEXT = 2_000  # characters of evidence
WORDS = 1_000  # of a reason
NAME = 200
STACKS = 64_000  # of what a node's ranks were doing
TAIL = 20_000  # the last characters of a job's log
FIELDS = 40
TESTS, FIGURES = 64, 64
CORDONS = 16
DEVICES, SERIAL = MOST_DEVICES, 64  # devices of a node, and characters of a serial number
EXITS = 256  # nodes whose exit code is kept, besides one for each further code
SPEC = 64_000  # bytes of a job that others submitted

Value = TypeVar("Value")


def cut(fact: Fact) -> Fact:
    """The fact as it is stored."""
    news = _cut(fact.news)
    return fact if news is fact.news else replace(fact, news=news)


def _cut(news: AnyNews) -> AnyNews:
    match news:
        case Observed():
            if _small(news):
                return news
            fields = {_head(k, NAME): _head(v, NAME) if isinstance(v, str) else v for k, v in _few(news.fields, FIELDS)}
            return replace(news, kind=_head(news.kind, NAME), text=_head(news.text, TEXT), fields=fields)
        case Checked():
            tests = tuple(map(_tested, news.tests[:TESTS]))
            storage = tuple(map(_seen, news.storage[:STORAGE_MOST]))
            return replace(news, because=_head(news.because, WORDS), tests=tests, storage=storage)
        case Hung():
            return replace(news, because=_head(news.because, WORDS))
        case RuleOff():
            return replace(news, rule=_head(news.rule, NAME), because=_head(news.because, WORDS))
        case Looked():
            return replace(news, text=_head(news.text, STACKS))
        case RankEnded():
            return replace(news, why=_head(news.why, WORDS), tail=plain_text(news.tail[-TAIL:]))
        case Wrote():
            return replace(news, text=plain_text(news.text[-TAIL:]))
        case JoinRefused():
            return replace(news, because=_head(news.because, WORDS))
        case Outcome():
            return replace(news, text=_head(news.text, WORDS))
        case Ordered():
            args = {_head(key, NAME): _head(value, WORDS) for key, value in _few(news.args, FIELDS)}
            reason = _head(news.reason, WORDS)
            return replace(news, reason=reason, by=_head(news.by, NAME), target=_head(news.target, WORDS), args=args)
        case Stepped():
            skipped = tuple(_head(why, WORDS) for why in news.skipped[:FIELDS])
            loss = news.loss if news.loss is None or isfinite(news.loss) else None
            return replace(news, skipped=skipped, loss=loss, resumed_of=_head(news.resumed_of, NAME))
        case Checkpointed():
            return replace(
                news,
                failed=_head(news.failed, WORDS),
                busy=_head(news.busy, NAME),
                answered=news.answered[:NAME],
                directory=_head(news.directory, WORDS),
            )
        case Inventory(devices=devices):
            return replace(news, devices=tuple(replace(d, serial=d.serial[:SERIAL]) for d in devices[:DEVICES]))
        case NodeSeen(cordons=cordons) if len(cordons) > CORDONS or any(len(owner) > NAME for owner in cordons):
            ours_first = sorted(cordons, key=lambda owner: incident_of(owner) is None)
            return replace(news, cordons=tuple(_head(owner, NAME) for owner in ours_first[:CORDONS]))
        case JobSeen():
            spec = slim(news.spec) if news.spec is not None else None
            return replace(news, spec=spec, end=_end(news.end) if news.end is not None else None)
        case _:
            return news


def _small(news: Observed) -> bool:
    """Most are: then nothing is built anew."""
    long = any(isinstance(value, str) and len(value) > NAME for value in news.fields.values())
    return len(news.text) <= TEXT and len(news.kind) <= NAME and len(news.fields) <= FIELDS and not long


def _head(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most} more characters)"


def _few(values: Mapping[str, Value], most: int) -> Iterable[tuple[str, Value]]:
    return list(values.items())[:most]


def _tested(test: Tested) -> Tested:
    figures = {_head(name, NAME): value for name, value in _few(test.figures, FIGURES) if isfinite(value)}
    seconds = test.seconds if isfinite(test.seconds) else 0.0
    return replace(
        test, name=_head(test.name, NAME), because=_head(test.because, WORDS), seconds=seconds, figures=figures
    )


def _seen(storage: StorageSeen) -> StorageSeen:
    seconds = storage.seconds if isfinite(storage.seconds) else 0.0
    return replace(storage, because=_head(storage.because, NAME), seconds=seconds)


def _end(end: End) -> End:
    """The last words of its log, and exit codes of so many nodes, each code at least once."""
    codes = end.exit_codes
    if len(codes) > EXITS:
        one_each = {code: node for node, code in codes.items()}
        codes = {**dict(_few(codes, EXITS)), **{node: code for code, node in list(one_each.items())[:EXITS]}}
    first = end.first and replace(end.first, why=_head(plain_text(end.first.why), WORDS))
    return replace(end, tail=plain_text(end.tail[-TAIL:]), exit_codes=codes, first=first)


def slim(spec: JobSpec) -> JobSpec:
    """A job that we never start, with what decides: how many nodes, and its name."""
    if len(encode(spec)) <= SPEC:
        return spec
    slimmer = replace(spec, command=(), env={}, log_rules=(), cwd="", native={}, image=_head(spec.image, NAME))
    return replace(slimmer, name=_head(spec.name, NAME), on=spec.on[:FIELDS])
