"""What is wrong as long as it lasts: told when it begins, and again only after it was well in between."""

from collections.abc import Callable, Iterable

from sickbay.agent.outbox import say
from sickbay.model.facts import Observed
from sickbay.model.fleet import NodeId
from sickbay.model.protocol import Item
from sickbay.model.sign import Sign

Look = Callable[[float], Iterable[Sign]]


class EdgeTriggered:
    """`looks` say what is wrong now. One that raises keeps what it said before: not to see is not to be well."""

    def __init__(self, node: NodeId, looks: Iterable[Look]) -> None:
        self._node = node
        self._looks = tuple(looks)
        self._wrong: dict[int, set[tuple[object, ...]]] = {}

    def look(self, now: float) -> list[Item]:
        found: list[Item] = []
        failed: Exception | None = None
        for number, look in enumerate(self._looks):
            try:
                signs = list(look(now))
            except Exception as error:  # noqa: BLE001 - told below, after the others have looked
                failed = error
                continue
            before = self._wrong.get(number, set())
            self._wrong[number] = {_key(sign) for sign in signs}
            found.extend(self._item(sign, now) for sign in signs if _key(sign) not in before)
        if failed is not None and not found:
            raise failed
        return found

    def _item(self, sign: Sign, now: float) -> Item:
        news = Observed(node=self._node, kind=sign.kind, fields=dict(sign.fields), text=sign.text, count=sign.count)
        return say(news, now)


def _key(sign: Sign) -> tuple[object, ...]:
    return (sign.kind, *sorted(sign.fields.items()))
