"""DCGM, where it is installed: its health watches, its policy's violations, its fields; or a page of dcgm-exporter.

What DCGM does not say is unknown, and that it does not answer says nothing about the GPUs: `dcgm.unreachable`, once.
"""

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence

from sickbay.agent.dcgmi import Listener, Run, document_in, fetch, read_answer, run_dcgmi
from sickbay.agent.outbox import say
from sickbay.agent.probes import Probe
from sickbay.agent.probes.remembered import Remembered
from sickbay.knowledge.dcgm import UNREACHABLE, XID, fields, messages
from sickbay.model.facts import Observed
from sickbay.model.fleet import NodeId
from sickbay.model.gpu import GpuReading
from sickbay.model.protocol import Item
from sickbay.model.sign import Sign
from sickbay.signs.gpu_changes import GpuPast, weigh
from sickbay.signs.readers.dcgm_health import DcgmHealth, readings_from_dmon
from sickbay.signs.readers.exporter import ExporterPage, Seen, page_of, together

SOURCE = "dcgm"
PERIOD = 10.0  # seconds; DCGM's own watches look once a minute
ANSWERS_WITHIN = 8.0  # seconds; a host engine that hangs on a GPU answers nobody
TOLD = 10_000  # things that are remembered as told

WATCH = ("health", "-s", "a")
# Conditions need limits where they are not just "any". Heat: where no card is meant to work. Power: beyond every card,
# because a card at its own limit is at work, not sick.
POLICY = ("policy", "--set", "0,0", "-e", "-p", "-M", "60", "-T", "100", "-P", "3000", "-n", "-x")
HEALTH = ("health", "-c", "-j")
NVLINK = frozenset({"nvlink.down", "nvlink.errors", "dcgm.nvlink_failed"})
NO_NEWS = frozenset({"dcgm.imex", "dcgm.config", "dcgm.power_capped", "gpu.persistence_off"})


class DcgmUnanswered(Exception):  # noqa: N818 - what a look ends with, not a mistake
    """DCGM did not answer, or not as DCGM does."""


class Dcgm:
    """One look says what is new since the last.

    `has_links`: does any GPU here have an NVLink? DCGM calls those of a card that has none down.
    """

    def __init__(
        self,
        node: NodeId,
        run: Run = run_dcgmi,
        *,
        exporter: str = "",
        listener: Listener | None = None,
        has_links: Callable[[], bool] | None = None,
        seconds: float = ANSWERS_WITHIN,
        remembered: Remembered | None = None,
    ) -> None:
        self._node = node
        self._run = run
        self._exporter = exporter
        self._listener = listener
        self._has_links = has_links
        self._seconds = seconds
        self._set = False  # watches and policy
        self._away = False
        self._remembered = remembered
        kept = {} if remembered is None else remembered.counts
        self._past = {who: GpuPast(counts=counts) for who, counts in kept.items()}
        self._xids: dict[str, int] | None = None  # the last of each GPU; None: not looked yet
        self._counted: dict[Seen, int] = {}
        self._standing: set[tuple[object, ...]] = set()  # what holds and has been told

    def look(self, now: float) -> list[Item]:
        found: list[Sign] = []
        trouble: list[Item] = []
        try:
            for sign in self._scraped() if self._exporter else self._asked(now):
                found.append(sign)  # noqa: PERF402 - what was found before a trouble is told in spite of it
        except (DcgmUnanswered, OSError, ValueError) as error:
            trouble = self._gone(str(error), now)
        else:
            self._away = False
        told = set[tuple[object, ...]]()
        items: list[Item] = []
        for sign in found:
            key = (sign.kind, sign.fields.get("device"), sign.fields.get("number"), sign.fields.get("switch"))
            if key not in told and self._matters(sign):
                told.add(key)
                items.append(self._item(sign, now))
        return [*items, *trouble]

    def told(self, now: float) -> None:
        if self._remembered is not None:
            self._remembered.counts = {who: past.counts for who, past in self._past.items()}
            self._remembered.keep(now)

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()

    def _gone(self, why: str, now: float) -> list[Item]:
        self._set = False  # whoever comes back may have forgotten what it was to watch
        if self._away:
            return []
        self._away = True
        return [self._item(Sign(kind=UNREACHABLE, text=f"DCGM does not answer: {why}"[:500]), now)]

    def _matters(self, sign: Sign) -> bool:
        if sign.kind in NVLINK and self._has_links is not None and not self._has_links():
            return False
        return sign.kind not in NO_NEWS

    def _item(self, sign: Sign, now: float) -> Item:
        news = Observed(node=self._node, kind=sign.kind, fields=sign.fields, text=sign.text, count=sign.count)
        return say(news, now, SOURCE)

    # With dcgmi

    def _asked(self, now: float) -> Iterator[Sign]:
        if not self._set:
            self._ask(WATCH)
            # A GPU that knows no policies is no reason not to look at its health.
            self._run(POLICY, self._seconds)
            self._set = True
        yield from self._fresh(self._health())
        wanted = ",".join(str(number) for number in sorted({field.id for field in fields() if field.id}))
        shown = readings_from_dmon(self._ask(("dmon", "-e", wanted, "-c", "1")))
        readings = {str(gpu): reading for gpu, (reading, _) in shown.items()}
        yield from self._changed(readings)
        yield from self._last({str(gpu): xid for gpu, (_, xid) in shown.items()}, readings)
        if self._listener is not None:
            yield from self._listener.look(now)

    def _ask(self, arguments: Sequence[str]) -> str:
        ran = self._run(arguments, self._seconds)
        words = " ".join(ran.text.split())[:300]
        if ran.code is None:
            raise DcgmUnanswered(f"dcgmi {arguments[0]} gave no answer within {self._seconds:g} s")
        if any(told.kind == UNREACHABLE for told in messages(words)):
            raise DcgmUnanswered(words)
        if ran.code != 0 or words.startswith("Error:"):
            raise DcgmUnanswered(f"dcgmi {arguments[0]} ended with code {ran.code}: {words}")
        return ran.text

    def _health(self) -> list[Sign]:
        text = self._ask(HEALTH)
        # As text: of a DCGM that did not know `-j` for this yet.
        if document_in(text) is None and "Overall Health" not in text:
            raise DcgmUnanswered(f"dcgmi health says something else than its report: {' '.join(text.split())[:200]}")
        return read_answer(DcgmHealth(), text)

    def _fresh(self, found: Iterable[Sign]) -> Iterator[Sign]:
        """What holds now and did not before; what is over may be news again."""
        standing = set[tuple[object, ...]]()
        for sign in found:
            key = (sign.kind, *sorted((name, str(value)) for name, value in sign.fields.items()))
            if len(standing) < TOLD:
                standing.add(key)
            if key not in self._standing:
                yield sign
        self._standing = standing

    def _changed(self, readings: dict[str, GpuReading]) -> Iterator[Sign]:
        by_name = {reading.uuid or gpu: reading for gpu, reading in readings.items()}
        if len(self._past) > TOLD:
            self._past = {who: past for who, past in self._past.items() if who in by_name}
        for who, reading in by_name.items():
            news, self._past[who] = weigh(self._past.get(who), reading)
            yield from map(together, news)

    def _last(self, xids: dict[str, int], readings: dict[str, GpuReading]) -> Iterator[Sign]:
        """DCGM keeps the last Xid until it starts again: one that was there at our first look may be a month old."""
        before, self._xids = self._xids, xids
        for gpu, number in xids.items():
            if before is not None and number and number != before.get(gpu, 0):
                where = readings[gpu]
                fields = {
                    name: value
                    for name, value in (("device", where.index), ("uuid", where.uuid), ("pci", where.pci))
                    if value not in (None, "")
                }
                yield Sign(
                    kind=XID, fields={"number": number, **fields}, text=f"DCGM's last Xid of GPU {gpu} is {number}"
                )

    # With an exporter

    def _scraped(self) -> Iterator[Sign]:
        page = page_of(fetch(self._exporter, self._seconds))
        readings = page.readings
        if not readings:
            raise DcgmUnanswered(f"{self._exporter} shows no GPU")
        yield from self._changed(readings)
        yield from self._counts(page)
        latched = {seen.gpu: seen.number for seen in page.xids if seen.latched}
        counted = {(seen.gpu, seen.number) for seen in page.xids if not seen.latched}
        fresh = list(self._last({gpu: latched.get(gpu, 0) for gpu in readings}, readings))
        yield from (sign for sign, gpu in _with_gpu(fresh, readings) if (gpu, sign.fields["number"]) not in counted)

    def _counts(self, page: ExporterPage) -> Iterator[Sign]:
        """Xids of the last minutes: one more than before is a new one; a number that falls has only grown old."""
        before, self._counted = self._counted, {}
        for seen, (count, where, _, line) in page.xids.items():
            if not seen.latched:
                self._counted[seen] = count
                if (more := count - before.get(seen, 0)) > 0:
                    yield Sign(kind=XID, fields={"number": seen.number, **where}, text=line[:500], count=more)


def _with_gpu(signs: Iterable[Sign], readings: dict[str, GpuReading]) -> Iterator[tuple[Sign, str]]:
    for sign in signs:
        gpu = next((gpu for gpu, one in readings.items() if one.index == sign.fields.get("device")), "")
        yield sign, gpu


def dcgm_probe(
    node: NodeId,
    *,
    exporter: str = "",
    listen: bool = True,
    has_links: Callable[[], bool] | None = None,
    remembered: Remembered | None = None,
) -> tuple[Probe, Dcgm] | None:
    """The probe, and what is to be closed with the agent; None where there is neither dcgmi nor an exporter."""
    if not exporter and shutil.which("dcgmi") is None:
        return None
    listener = None if exporter or not listen else Listener()
    watch = Dcgm(node, exporter=exporter, listener=listener, has_links=has_links, remembered=remembered)
    return Probe("dcgm", watch.look, PERIOD, told=watch.told, may_hang=True), watch
