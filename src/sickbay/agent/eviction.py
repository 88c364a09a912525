"""Load shedding: measurements go first, then steps, then all else that is no fault; faults are summed up.

Faults are never lost. Where nothing else is left, those that say the same become one with the number of all, the date
of the first and the name and words of the last; and where that is not enough, those of one kind on one device, and
those of one kind, which are as many as there are kinds.
"""

from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from sickbay.model.facts import Observed, Stepped
from sickbay.model.protocol import Item, ItemNews, Measured

MEASURED, STEPPED, OTHER, FAULT = range(4)
CHEAP = (MEASURED, STEPPED, OTHER)  # in the order in which they go
NOT_THE_FAULT = frozenset({"pid", "name"})

Key = tuple[object, ...]


def rank(news: ItemNews) -> int:
    if isinstance(news, Measured):
        return MEASURED
    if isinstance(news, Stepped):
        return STEPPED
    return FAULT if isinstance(news, Observed) else OTHER


def _whole(news: Observed) -> Key:
    return (news.kind, *(pair for pair in sorted(news.fields.items()) if pair[0] not in NOT_THE_FAULT))


def _of_device(news: Observed) -> Key:
    fields = news.fields
    return (news.kind, fields.get("number"), fields.get("pci", fields.get("device")))


def _of_kind(news: Observed) -> Key:
    return (news.kind, news.fields.get("number"))


ALIKE: Sequence[Callable[[Observed], Key]] = (_whole, _of_device, _of_kind)  # ever coarser


def folded(items: Iterable[Item], alike: Callable[[Observed], Key]) -> list[Item]:
    """Faults that are alike become the last of them: it may be sent again, while the first may be on its way now.

    What no witness tells stays apart from what one does, and what our own check provoked from what happened by itself.
    """
    kept: dict[Key, Item] = {}
    for number, item in enumerate(items):
        news = item.news
        if not isinstance(news, Observed):
            kept[number,] = item
            continue
        key = (news.last_words, news.unconfirmed, news.fields.get("check"), *alike(news))
        before = kept.pop(key, None)
        if before is not None and isinstance(before.news, Observed):
            count = news.count + before.news.count
            item = replace(item, mono=min(item.mono, before.mono), news=replace(news, count=count))  # noqa: PLW2901
        kept[key] = item
    return sorted(kept.values(), key=lambda item: item.seq)
