"""Eventually consistent view of a cluster: a log of changes, folded up to the moment that a read reaches."""

from bisect import bisect_right

from msgspec.structs import replace

from sickbay.model.facts import JobSeen, JobVanished, NodeSeen, NodeVanished
from sickbay.model.fleet import JobId, NodeId
from sickbay.model.job import RankState
from sickbay.ports.cluster import Snapshot, Told

News = NodeSeen | NodeVanished | JobSeen | JobVanished
KEPT = 100  # words that a list says again


def _subject(news: News | Told) -> tuple[str, int]:
    match news:
        case JobSeen():
            return f"job:{news.job}", news.attempt
        case Told():
            return f"told:{news.id}", 0
        case JobVanished():
            return f"gone:{news.job}", 0
        case _:
            return f"node:{news.node}", 0


class ClusterView:
    """One cluster's change log. `reach` moves forward only; nothing newer than it is ever shown.

    `keep` is how many shown changes a cursor may lie back; `retain` how long a snapshot shows an ended attempt.
    """

    def __init__(self, *, keep: int = 50_000, retain: float = 86_400.0) -> None:
        self.as_of = 0.0
        self._keep = keep
        self._retain = retain
        self._log: list[News | Told] = []
        self._told: list[Told] = []
        self._run = 0
        self._hidden: set[JobId] = set()
        self._times: list[float] = []
        self._dropped = 0  # how many entries have left the front of the log
        self._shown = 0  # absolute number of the first entry that is not shown yet
        self._nodes: dict[NodeId, NodeSeen] = {}
        self._jobs: dict[tuple[JobId, int], tuple[float, JobSeen]] = {}

    def put(self, news: News) -> None:
        """Appends what is true from `news.as_of` on."""
        self._append(news, news.as_of)

    def say(self, told: Told, at: float) -> None:
        """Appends something that the cluster says besides."""
        self._append(told, at)

    def cut(self) -> None:
        """The stream is lost to everybody: what is there must be listed."""
        self._run += 1

    def hide_once(self, job: JobId) -> None:
        """The next list does not have the job, though it is there."""
        self._hidden.add(job)

    def _append(self, news: News | Told, at: float) -> None:
        unseen = self._dropped + len(self._log) > self._shown
        if unseen and self._times[-1] == at and _subject(self._log[-1]) == _subject(news):
            self._log[-1] = news
            return
        self._log.append(news)
        self._times.append(at)

    def reach(self, moment: float) -> float:
        """Shows everything up to `moment`. It lies before now, so what happens now is never half shown."""
        self.as_of = max(self.as_of, moment)
        begin = self._shown - self._dropped
        end = bisect_right(self._times, self.as_of, lo=begin)
        for position in range(begin, end):
            self._fold(self._log[position])
        self._shown = self._dropped + end
        self._trim()
        return self.as_of

    def since(self, cursor: str) -> tuple[News | Told, ...] | None:
        """The last word on everything that changed after the cursor; None: it is too old, or none of ours."""
        run, _, place = cursor.partition("/")
        if run != str(self._run) or not place.isdigit() or not self._dropped <= int(place) <= self._shown:
            return None
        changed: dict[tuple[str, int], News | Told] = {}
        for position in range(int(place) - self._dropped, self._shown - self._dropped):
            news = self._log[position]
            if isinstance(news, JobVanished) and not news.sure:
                return None  # it was purged, and the stream with it
            subject = _subject(news)
            changed.pop(subject, None)  # in the order of the last change
            changed[subject] = news
        return tuple(self._dated(news) for news in changed.values())

    @property
    def cursor(self) -> str:
        return f"{self._run}/{self._shown}"

    def snapshot(self) -> Snapshot:
        old = [key for key, (at, seen) in self._jobs.items() if _over(seen) and at < self.as_of - self._retain]
        for key in old:
            del self._jobs[key]
        hidden, self._hidden = self._hidden, set()
        return Snapshot(
            cursor=self.cursor,
            as_of=self.as_of,
            nodes=tuple(replace(seen, as_of=self.as_of) for seen in self._nodes.values()),
            jobs=tuple(replace(s, as_of=self.as_of) for (job, _), (_, s) in self._jobs.items() if job not in hidden),
            told=tuple(self._told),
        )

    def _dated(self, news: News | Told) -> News | Told:
        if isinstance(news, Told):
            return news
        return replace(news, as_of=self.as_of)

    def _fold(self, news: News | Told) -> None:
        match news:
            case Told():
                self._told = [*self._told, news][-KEPT:]
            case NodeSeen():
                self._nodes[news.node] = news
            case NodeVanished():
                self._nodes.pop(news.node, None)
            case JobVanished():
                for key in [key for key in self._jobs if key[0] == news.job]:
                    del self._jobs[key]
            case JobSeen():
                self._jobs[news.job, news.attempt] = (news.as_of, news)
                before = self._jobs.get((news.job, news.attempt - 1))
                if before is not None and _over(before[1]):
                    del self._jobs[news.job, news.attempt - 1]

    def _trim(self) -> None:
        surplus = self._shown - self._dropped - self._keep
        if surplus > self._keep // 2:
            del self._log[:surplus]
            del self._times[:surplus]
            self._dropped += surplus


def _over(seen: JobSeen) -> bool:
    return seen.end is not None and RankState.RUNNING not in seen.ranks.values()
