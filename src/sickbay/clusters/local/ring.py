"""Ring buffer of changes, in the order in which they were found: what a cursor is a place in."""

import secrets
from collections import deque

from sickbay.model.facts import JobSeen, NodeSeen, NodeVanished

News = NodeSeen | NodeVanished | JobSeen
KEEP = 10_000


def subject(news: News) -> str:
    return f"job {news.job} {news.attempt}" if isinstance(news, JobSeen) else f"node {news.node}"


class ChangeRing:
    """The latest changes. A cursor "<run>.<n>" of an earlier run, or one that lies too far back, is lost."""

    def __init__(self, keep: int = KEEP) -> None:
        self._run = secrets.token_hex(6)
        self._next = 0
        self._news: deque[News] = deque(maxlen=keep)

    @property
    def cursor(self) -> str:
        return f"{self._run}.{self._next}"

    def add(self, news: News) -> None:
        self._news.append(news)
        self._next += 1

    def since(self, cursor: str) -> list[News] | None:
        """The last word on everything that changed after the cursor; None: it is lost."""
        run, _, number = cursor.partition(".")
        first = self._next - len(self._news)
        if run != self._run or not number.isdecimal() or not first <= int(number) <= self._next:
            return None
        changed: dict[str, News] = {}
        for position in range(int(number) - first, len(self._news)):
            news = self._news[position]
            changed.pop(subject(news), None)  # in the order of the last change
            changed[subject(news)] = news
        return list(changed.values())
