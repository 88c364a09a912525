"""What the kernel says, from wherever it can be read: its own ring, the journal, text files."""

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from sickbay.agent.complaints import complain
from sickbay.agent.outbox import say
from sickbay.agent.probes.dedup import Deduplicator
from sickbay.agent.probes.hearsay import Hearsay
from sickbay.agent.probes.log_file import FilePlace, LogFile
from sickbay.agent.watches import CREATED, MODIFIED, MOVED_TO
from sickbay.model.facts import Observed
from sickbay.model.fleet import NodeId
from sickbay.model.noun import Noun
from sickbay.model.protocol import Item
from sickbay.model.sign import Sign
from sickbay.signs.kernel import heard
from sickbay.signs.prefixes import Peeled
from sickbay.signs.scanner import lines_of_interest

SOURCE = "kmsg"
CHUNKS = 256  # in one look: one who writes faster than we read does not keep us here for ever
TEXT = 2000  # characters of evidence
ALIKE = 128  # different lines that need not be read twice
TAKES = 0.5  # seconds that one look reads; what is behind waits for the next
AGAIN = 5.0  # seconds after which a source that failed is tried again

Watched = tuple[Path, int]  # and which of its changes
DeviceAt = Callable[[str], int | None]  # the GPU at a PCI address


class LogLine(NamedTuple):
    """One line of a source: what it says, when it happened by our monotonic clock, and its name there."""

    text: str
    mono: float
    source: str
    seq: int | None
    proven: bool = False  # the kernel of this machine said it; else any program may have, and it waits for a witness
    bare: bool = False  # nothing stands before the kernel's own words
    told: bool = False  # by an earlier run of this agent: it is only remembered
    by: str = ""  # who says it, where that is not proven
    undated: str = ""  # why nobody can tell when it was said


class LineSource(Protocol):
    """Where lines come from. `lines` gives what is new and returns; it raises OSError where it cannot be read."""

    @property
    def name(self) -> str: ...

    @property
    def behind(self) -> bool:
        """There is more to read at once."""
        ...

    def lines(self, now: float) -> Iterator[LogLine | Observed]:
        """An `Observed` is the source's own word: lines were lost."""
        ...

    @property
    def witness(self) -> bool:
        """What it says counts by itself, as only the kernel can have said it."""
        ...

    def judged(self, line: LogLine, peeled: Peeled, now: float) -> LogLine | Observed | None:
        """The line with its moment and who speaks, by what stood before it; None: it means nothing here and now."""
        ...

    def place(self) -> Noun | None:
        """Behind all that was handed out, by this run or an earlier one. None: that cannot be said yet."""
        ...

    @property
    def rereading(self) -> bool:
        """What an earlier run has told is being read again: whoever comes next has to do so, too."""
        ...

    @property
    def handle(self) -> int | None:
        """A descriptor that can be read when there is something new."""
        ...

    @property
    def watched(self) -> Watched | None:
        """A file or directory in which something changes when there is something new."""
        ...

    def close(self) -> None: ...


class LogPlace(FilePlace):
    """How far a file was read, for the next run of the agent."""

    boot_id: str = ""
    trusted: bool = False  # every line up to here counted


_STAMP = re.compile(r"\[ *(\d{1,12}\.\d{1,9})\]")


class BootLog:
    """The kernel log of one boot as a text file of its own, which is what a node of the local cluster has."""

    name = SOURCE
    witness = True  # nobody but the node's own supervisor writes it
    rereading = False

    def __init__(self, path: Path, place: LogPlace, began: float = 0.0) -> None:
        """`began`: the boot's begin on our monotonic clock, from which its lines count; 0: it is not known."""
        self._path = path
        self._boot_id = place.boot_id
        self._began = began
        self._file = LogFile(path, place, worth=lines_of_interest)

    @property
    def behind(self) -> bool:
        return self._file.behind

    def lines(self, now: float) -> Iterator[LogLine | Observed]:
        for line in lines_of(self._file, LogLine("", now, SOURCE, None, proven=True)):
            yield line if isinstance(line, Observed) else line._replace(mono=self._when(line.text, now))

    def _when(self, text: str, now: float) -> float:
        """Its own stamp: an agent that was away reads it late."""
        stamp = _STAMP.match(text) if self._began else None
        return min(now, self._began + float(stamp[1])) if stamp is not None else now

    def judged(self, line: LogLine, peeled: Peeled, now: float) -> LogLine:  # noqa: ARG002 - a Source's
        return line

    def place(self) -> LogPlace:
        return place_in(self._file, self._boot_id)

    handle = None

    @property
    def watched(self) -> Watched:
        return self._path.parent, MODIFIED | CREATED | MOVED_TO

    def close(self) -> None:
        self._file.close()


def place_in(file: LogFile, boot_id: str, *, trusted: bool = False) -> LogPlace:
    place = file.place
    spots = {name: getattr(place, name) for name in FilePlace.__struct_fields__}
    return LogPlace(boot_id=boot_id, trusted=trusted, **spots)


def lines_of(file: LogFile, every: LogLine) -> Iterator[LogLine | Observed]:
    """`every`: what they have in common."""
    for at, text in file.lines():
        # A file that began anew counts from 0 again: its lines must not take the names of others.
        name = f"{every.source}+{file.generation}" if file.generation else every.source
        yield every._replace(text=text, source=name, seq=at, told=file.was_told(at))
    while file.lost:
        yield Observed(node=NodeId(""), kind="agent.lines_lost", text=file.lost.pop(0))


def heard_name(source: str) -> str:
    """Under which name it is kept how far a source was read with nothing before it that waits for a witness."""
    return f"heard/{source}"


@lru_cache(maxsize=ALIKE)
def understood(text: str, bare: bool) -> tuple[Sign | None, Peeled]:
    """What it means and what stood before it. A flood is the same few lines again and again."""
    return heard(text, bare=bare)


def item_of(sign: Sign, line: LogLine, node: NodeId, device_at: DeviceAt, *, last_words: bool = False) -> Item:
    fields = dict(sign.fields)
    device = device_at(str(fields["pci"])) if "pci" in fields else None
    if device is not None and sign.kind != "sxid":
        fields["device"] = device
    text = line.text.strip()[:TEXT]
    news = Observed(node=node, kind=sign.kind, fields=fields, text=text, count=sign.count, last_words=last_words)
    return say(news, line.mono, line.source, line.seq)


class KernelLog:
    """A probe over all sources. `device_at` finds the device at a PCI address.

    A source that cannot be read is told once and tried again later; the others go on. Only when none can be read there
    has been no look.
    """

    def __init__(
        self,
        sources: Sequence[LineSource],
        node: NodeId,
        device_at: DeviceAt,
        sums: Deduplicator | None = None,
    ) -> None:
        self._sources = tuple(sources)
        self._node = node
        self._device_at = device_at
        self._sums = sums or Deduplicator()
        self._hearsay = Hearsay(self._sums)
        self._blind = False  # that there is no witness has been told
        self._troubles: dict[str, str] = {}
        self._again: dict[str, float] = {}
        self.places: Mapping[str, Noun | None] = {}  # for the next run, behind what has been told
        self._heard: Mapping[str, Noun] = {}  # places with nothing before them that waits for a witness
        self._cut: Mapping[str, Noun] = {}  # the next of these
        self._settle()

    def _settle(self) -> None:
        """While something is counted and not told yet, whoever comes next has to begin before it.

        What waits for a witness holds nothing up: it has places of its own, of which the next run reads it again.
        """
        if self._sums.holding:
            return
        here = {source.name: place for source in self._sources if (place := source.place()) is not None}
        read = {
            source.name: here[source.name] for source in self._sources if source.name in here and not source.rereading
        }
        if self._hearsay.decided:
            self._heard, self._cut = self._cut, read
            self._hearsay.cut()
        if self._hearsay.decided:  # still: nothing waits at all
            self._heard = read
        heard = {name: None if place == here.get(name) else place for name, place in self._heard.items()}
        self.places = {**here, **{heard_name(name): place for name, place in heard.items()}}

    @property
    def handles(self) -> list[int]:
        return [source.handle for source in self._sources if source.handle is not None]

    @property
    def watched(self) -> dict[Path, int]:
        return dict(source.watched for source in self._sources if source.watched is not None)

    @property
    def behind(self) -> bool:
        return any(source.behind for source in self._sources)

    def look(self, now: float) -> list[Item]:
        """All new lines that mean something. The first of a kind is told at once, its repetitions are summed up."""
        # Before anything new is counted: in a flood that is the only moment in which nothing is held back.
        found = self._sums.over(now)
        self._settle()
        errors: list[OSError] = []
        for source in self._sources:
            if now < self._again.get(source.name, 0.0):
                errors.append(OSError(self._troubles[source.name]))
                continue
            try:
                for item in self._read(source, now):
                    found.append(item)  # what was read before an error counts
                self._troubles.pop(source.name, None)
            except OSError as error:
                errors.append(error)
                found.extend(self._failed(source, error, now))
        found.extend(self._hearsay.over(now))
        if errors and len(errors) == len(self._sources) and not found:
            raise errors[0]  # else what was read is told first; the next look meets the trouble again
        found.extend(self._without_witness(now))
        self._settle()
        return found

    def rest(self, now: float) -> list[Item]:
        """All that waits: nobody will look again."""
        return [*self._sums.flush(), *self._hearsay.flush(now)]

    def flush(self, now: float) -> list[Item]:  # noqa: ARG002 - a Look
        """What was held back to be summed up."""
        found = self._sums.flush()
        self._settle()
        return found

    def _read(self, source: LineSource, now: float) -> Iterator[Item]:
        until = time.monotonic() + TAKES
        for _ in range(CHUNKS):
            for line in source.lines(now):
                if isinstance(line, Observed):
                    yield say(replace(line, node=self._node), now)
                    continue
                yield from self._meant(source, line, now)
            if not source.behind or time.monotonic() > until:
                return

    def _meant(self, source: LineSource, line: LogLine, now: float) -> Iterator[Item]:
        sign, peeled = understood(line.text, line.bare)
        if sign is None:
            return
        said = source.judged(line, peeled, now)
        if isinstance(said, Observed):
            yield say(said, now)
        elif said is not None:
            item = item_of(sign, said, self._node, self._device_at)
            if not said.proven:
                self._hearsay.add(item, now, said.by or source.name, said.undated)
            elif said.told:
                self._sums.recall(item, now, peeled.body)
            else:
                yield from self._sums.add(item, now, peeled.body)

    def _without_witness(self, now: float) -> Iterator[Item]:
        """Not to hear the kernel itself is not to hear nothing: who must act is told, once."""
        blind = not any(source.witness and source.name not in self._troubles for source in self._sources)
        if blind and not self._blind:
            why = "".join(f"; {name}: {why}" for name, why in self._troubles.items())
            text = (
                "no source of the kernel's own words can be read, and what text logs say is shown as unconfirmed only: "
                "run the agent as root or with CAP_SYSLOG, or let it read the journal, or, where every line of these "
                f"logs is to count, set trust_logs: true{why}"
            )
            yield say(Observed(node=self._node, kind="probe.failed", text=text[:500]), now)
        self._blind = blind

    def _failed(self, source: LineSource, error: OSError, now: float) -> Iterator[Item]:
        why = str(error)
        if len(self._sources) > 1:
            self._again[source.name] = now + AGAIN
        if self._troubles.get(source.name) != why:
            self._troubles[source.name] = why
            if len(self._sources) > 1:
                text = f"{source.name} cannot be read: {why}"
                complain(text)
                yield say(Observed(node=self._node, kind="probe.failed", text=text[:500]), now)

    def close(self) -> None:
        for source in self._sources:
            source.close()
