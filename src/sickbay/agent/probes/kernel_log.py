"""The kernel log of a boot, as a text file."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from sickbay.agent.outbox import say
from sickbay.agent.probes.log_file import LogFile
from sickbay.knowledge.kernel import ParsedLine, parse_line
from sickbay.model.facts import Observed
from sickbay.model.fleet import NodeId
from sickbay.model.noun import Noun
from sickbay.model.protocol import Item

SOURCE = "kmsg"
SUM_UP = 1.0  # seconds: what repeats is told at once, and then as a number
KINDS = 1000  # different lines that are counted at a time
CHUNKS = 256  # in one look: one who writes faster than we read does not keep us here for ever
TEXT = 2000  # characters of evidence


class Place(Noun):
    """How far the log was read, for the next run of the agent. To read a little again does no harm: same ids."""

    boot_id: str
    offset: int = 0
    generation: int = 0
    inode: int = 0


@dataclass(slots=True)
class _Repeats:
    until: float
    item: Item | None = None
    count: int = 0


class KernelLog:
    """`device_at` finds the device at a PCI address."""

    def __init__(self, path: Path, node: NodeId, place: Place, device_at: Callable[[str], int | None]) -> None:
        self._file = LogFile(path, place.offset, place.generation, place.inode)
        self._node = node
        self._boot_id = place.boot_id
        self._device_at = device_at
        self._repeats: dict[tuple[object, ...], _Repeats] = {}

    @property
    def place(self) -> Place:
        file = self._file
        offset = min((r.item.source_seq for r in self._repeats.values() if r.item and r.item.source_seq is not None),
                     default=file.offset)  # fmt: skip
        return Place(boot_id=self._boot_id, offset=offset, generation=file.generation, inode=file.inode)

    def look(self, now: float) -> list[Item]:
        """All new lines that mean something. The first of a kind is told at once, its repetitions are summed up."""
        found: list[Item] = []
        try:
            for _ in range(CHUNKS):
                for at, text in self._file.lines():
                    parsed = parse_line(text)
                    if parsed is not None:
                        found.extend(self._sum_up(self._item(parsed, text, at, now), parsed, now))
                if not self._file.behind:
                    break
        except OSError:
            if not found:  # else what was read is told first; the next look meets the trouble again
                raise
        found.extend(self._over(now))
        return found

    def flush(self, now: float) -> list[Item]:  # noqa: ARG002 - a Look
        """What was held back to be summed up."""
        held = [_told(repeats) for repeats in self._repeats.values() if repeats.item is not None]
        self._repeats.clear()
        return held

    def _item(self, parsed: ParsedLine, text: str, at: int, now: float) -> Item:
        fields = dict(parsed.fields)
        device = self._device_at(str(fields.get("pci", "")))
        if device is not None and parsed.kind == "xid":
            fields["device"] = device
        news = Observed(node=self._node, kind=parsed.kind, fields=fields, text=text.strip()[:TEXT])
        # A file that began anew counts from 0 again: its lines must not take the names of others.
        source = SOURCE if not self._file.generation else f"{SOURCE}+{self._file.generation}"
        return say(news, now, source, at)

    def _sum_up(self, item: Item, parsed: ParsedLine, now: float) -> Iterator[Item]:
        key = (parsed.kind, *(pair for pair in sorted(parsed.fields.items()) if pair[0] not in {"pid", "name"}))
        repeats = self._repeats.get(key)
        if repeats is None or now >= repeats.until:
            if repeats is not None and repeats.item is not None:
                yield _told(repeats)
            if len(self._repeats) < KINDS:
                self._repeats[key] = _Repeats(until=now + SUM_UP)
            yield item
            return
        if repeats.item is None:
            repeats.item = item
        repeats.count += 1

    def _over(self, now: float) -> Iterator[Item]:
        for key, repeats in list(self._repeats.items()):
            if now < repeats.until:
                continue
            del self._repeats[key]
            if repeats.item is not None:
                self._repeats[key] = _Repeats(until=now + SUM_UP)
                yield _told(repeats)

    def close(self) -> None:
        self._file.close()


def _told(repeats: _Repeats) -> Item:
    item = repeats.item
    assert item is not None
    assert isinstance(item.news, Observed)
    return replace(item, news=replace(item.news, count=repeats.count))
