"""A store as one answer reads it: every row once, and those of a page together."""

from collections.abc import Iterable, Sequence

from sickbay.model.rows import Line, Rows, Versioned
from sickbay.ports.store import STORY, Store


class RequestReads:
    """Keeps what it has read for as long as one answer takes: a list of nodes asks for the same jobs again and again.

    It has the reading half of a store only, which is all that an Archive uses.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rows: dict[str, Versioned] = {}
        self._found: dict[tuple[str, int | None], Sequence[str]] = {}

    def load(self, keys: Iterable[str]) -> Rows:
        wanted = list(keys)
        unread = [key for key in wanted if key not in self._rows]
        if unread:
            self._rows.update(self._store.load(unread))
        return {key: self._rows[key] for key in wanted}

    def find(self, tag: str, limit: int | None = None) -> Sequence[str]:
        if (tag, limit) not in self._found:
            self._found[tag, limit] = self._store.find(tag, limit)
            self.load(self._found[tag, limit])
        return self._found[tag, limit]

    def keys(self, kind: str, after: str = "", limit: int = 1000) -> Sequence[str]:
        page = self._store.keys(kind, after=after, limit=limit)
        self.load(page)
        return page

    def story(self, subject: str, limit: int = STORY) -> Sequence[Line]:
        return self._store.story(subject, limit)
