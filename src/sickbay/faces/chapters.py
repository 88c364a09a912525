"""Paging of a story: its last chapter (the present or last incident or interruption), all of it, or what is newer."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from sickbay.faces.answers import EarlierStory
from sickbay.faces.archive import Archive, iso
from sickbay.faces.story import weave
from sickbay.model.durations import parse_duration
from sickbay.model.errors import BadInput
from sickbay.model.fleet import Node
from sickbay.model.incident import Incident
from sickbay.model.job import Interruption, Job
from sickbay.model.noun import Noun
from sickbay.model.rows import Line, kind_of

MOST_INCIDENTS = 100  # whose stories are told beside a node's own: of more, the newest


class StorySpan(Noun):
    """What is asked for. Neither: the last chapter."""

    all: bool = False
    since: datetime | None = None


LAST_CHAPTER = StorySpan()


def span_of(since: str, now: datetime | None, *, everything: bool = False) -> StorySpan:
    """`since`: a time, or so long before now; empty for none. Raises BadInput."""
    if everything and since:
        raise BadInput("all and since exclude each other: give one of them")
    if not since:
        return StorySpan(all=everything)
    how = f"--since {since!r}: write a time such as 2026-03-01T12:30, or how long ago, such as 2h or 30m"
    dated = "-" in since or ":" in since
    try:
        at = datetime.fromisoformat(since) if dated else (now or datetime.now(UTC)) - parse_duration(since)
    except ValueError:
        raise BadInput(how) from None
    return StorySpan(since=at if at.tzinfo is not None else at.replace(tzinfo=UTC))


class TellingOf(Noun):
    """The lines that were asked for, what they are, and what they leave out."""

    lines: tuple[Line, ...]
    chapter: str
    earlier: EarlierStory


def node_story(archive: Archive, node: Node, span: StorySpan) -> TellingOf:
    own = archive.story(f"node:{node.id}")
    last = archive.incident(node.incident) if node.incident else _last_incident(archive, own)
    begin = last.opened_at if last is not None else None
    title = f"incident {last.id}" if last is not None else ""
    mine, title, begin = _of_span(own, span, begin, title)
    incidents = _incidents(mine)
    stories = {key: _since(archive.story(key), begin) for key in incidents[-MOST_INCIDENTS:]}
    return _telling({f"node:{node.id}": mine, **stories}, own, mine, title)


def job_story(archive: Archive, job: Job, span: StorySpan) -> TellingOf:
    own = archive.story(f"job:{job.id}")
    last = job.interruptions[-1] if job.interruptions else None
    begin = _chapter_begin(archive, last) if last is not None else None
    title = f"the interruption of attempt {last.attempt}" if last is not None and begin is not None else ""
    mine, title, begin = _of_span(own, span, begin, title)
    within = [one for one in job.interruptions if begin is None or (_begin(one) or begin) >= begin]
    incidents = dict.fromkeys(i for one in within for i in one.incidents)
    incidents |= dict.fromkeys(call.incident for call in job.calls if call.incident)
    beside = {f"incident:{i}": archive.story(f"incident:{i}") for i in list(incidents)[-MOST_INCIDENTS:]}
    return _telling({f"job:{job.id}": mine, **beside}, own, mine, title)


def incident_story(archive: Archive, incident: Incident, span: StorySpan) -> TellingOf:
    """With what befell its node and the jobs that it interrupted meanwhile: one chapter, from symptom to first step."""
    jobs = [archive.job(job) for job in incident.jobs]
    back = [i.stages["first_step"] for job in jobs if job for i in job.interruptions if _ends(i, incident)]
    until = max([incident.closed_at, *back]) if incident.closed_at is not None else None

    def meanwhile(subject: str) -> list[Line]:
        lines = archive.story(subject)
        return [x for x in lines if x.at >= incident.opened_at and (until is None or x.at <= until)]

    around = {f"node:{incident.node}", *(f"job:{job}" for job in incident.jobs)}
    own = archive.story(f"incident:{incident.id}")
    mine = _since(own, span.since)
    beside = {subject: _since(meanwhile(subject), span.since) for subject in sorted(around)}
    title = f"since {iso(span.since)}" if span.since is not None else "all of it"
    return _telling({f"incident:{incident.id}": mine, **beside}, own, mine, title)


def _of_span(
    own: Sequence[Line], span: StorySpan, begin: datetime | None, title: str
) -> tuple[list[Line], str, datetime | None]:
    """The own lines that were asked for, what they are, and from when on others' lines belong to them."""
    if span.all:
        return list(own), "all of it", None
    if span.since is not None:
        return _since(own, span.since), f"since {iso(span.since)}", span.since
    mine = _since(own, begin)
    return mine, title if len(mine) < len(own) else "all of it", begin


def _telling(stories: Mapping[str, Sequence[Line]], own: Sequence[Line], mine: Sequence[Line], title: str) -> TellingOf:
    left = own[: len(own) - len(mine)]
    older = set(_incidents(left)) - set(_incidents(mine))
    earlier = EarlierStory(lines=len(left), incidents=len(older), since=iso(left[0].at) if left else None)
    return TellingOf(lines=tuple(weave(stories)), chapter=title, earlier=earlier)


def _since(lines: Sequence[Line], begin: datetime | None) -> list[Line]:
    """From the first line that is so new on: the order is the story's own."""
    if begin is None:
        return list(lines)
    return list(lines[next((n for n, line in enumerate(lines) if line.at >= begin), len(lines)) :])


def _incidents(lines: Sequence[Line]) -> list[str]:
    return list(dict.fromkeys(s for line in lines for s in line.subjects if kind_of(s) == "incident"))


def _last_incident(archive: Archive, own: Sequence[Line]) -> Incident | None:
    """The one that was opened last, if it is still known."""
    for key in reversed(_incidents(own)):
        if (found := archive.incident(key.partition(":")[2])) is not None:
            return found
    return None


def _begin(one: Interruption) -> datetime | None:
    return min(one.stages.values(), default=None)


def _chapter_begin(archive: Archive, one: Interruption) -> datetime | None:
    """From the first symptom on: before a planned stop the job was asked to save, and nothing of it had stopped yet."""
    begin = _begin(one)
    known = [incident for i in one.incidents if (incident := archive.incident(i)) is not None]
    return min([begin, *(incident.opened_at for incident in known)]) if begin is not None else None


def _ends(interruption: Interruption, incident: Incident) -> bool:
    return incident.id in interruption.incidents and "first_step" in interruption.stages
