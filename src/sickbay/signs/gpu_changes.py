"""Edge detection for GPUs: what is new since the look before, and by how much each error counter grew.

The judge of a state is `sickbay.signs.gpu_state`, that of a counter `sickbay.signs.counting`.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from sickbay.model.gpu import GpuReading, Link
from sickbay.model.noun import Noun
from sickbay.model.sign import Sign
from sickbay.signs.counting import growth
from sickbay.signs.gpu_state import LIMITS, LINK_ERRORS, judge, sign_about
from sickbay.signs.plausible import sane, without

# Signs that a counter gives: between two looks only its growth counts.
COUNTED = frozenset({"gpu.ecc_uncorrected", "gpu.ecc_corrected", "gpu.pcie_replays", "nvlink.errors"})
# Counter → the limit of its growth between two looks, and over a gap: nobody knows how fast it was.
_LIMITS = {"corrected": ("corrected_step", "corrected"), "pcie_replays": ("replays_step", "replays")}
# From these a GPU comes back by a reset or a new driver only, and with that its counters begin at nothing.
_UNTIL_RESET = ("is lost", "requires re", "fallen off")


class GpuPast(Noun):
    """What is remembered of a GPU: how it was found last (None: an agent before us did), and what its counters said."""

    last: GpuReading | None = None
    counts: dict[str, int] = {}


def weigh(past: GpuPast | None, found: GpuReading) -> tuple[tuple[Sign, ...], GpuPast]:
    """What is new, and what to remember. All that is found where nothing is remembered."""
    now, counts, steps = _counted(past or GpuPast(), sane(found))
    signs = judge(now)
    if past is not None:
        told = () if past.last is None else {_key(sign) for sign in judge(past.last)}
        fresh = [sign for sign in signs if _key(sign) not in told and sign.kind not in COUNTED]
        signs = (*fresh, *_grown(now, steps))
    return signs, GpuPast(last=now, counts=counts)


class _Step(Noun):
    by: int
    gap: bool  # nobody could look in between


def _counted(past: GpuPast, now: GpuReading) -> tuple[GpuReading, dict[str, int], dict[str, _Step]]:
    """The reading without counters that cannot be believed, what to remember of the others, and how they grew."""
    counts, steps = dict(past.counts), dict[str, _Step]()
    if now.lost:
        known = any(words in now.lost.lower() for words in _UNTIL_RESET)
        return now, dict.fromkeys(counts, 0) if known else counts, steps
    before = dict(_counters(past.last)) if past.last is not None and not past.last.lost else {}
    absurd: set[str] = set()
    for name, value in _counters(now):
        seen = growth(counts.get(name), value, fresh=True)
        if seen.absurd:
            absurd.add(name)
        elif seen.remembered is not None:
            counts[name] = seen.remembered
        if seen.by:
            steps[name] = _Step(by=seen.by, gap=before.get(name) is None)
    return _without(now, absurd) if absurd else now, counts, steps


def _counters(one: GpuReading) -> Iterator[tuple[str, int | None]]:
    for name in ("uncorrected", "corrected", "pcie_replays"):
        yield name, getattr(one, name)
    for link in one.links or ():
        yield from ((_of_link(link, name), getattr(link, name)) for name, _, _ in LINK_ERRORS)


def _of_link(link: Link, name: str) -> str:
    return f"link {link.number} {name}"


def _without(now: GpuReading, absurd: set[str]) -> GpuReading:
    links = tuple(
        replace(link, **{name: None for name, _, _ in LINK_ERRORS if _of_link(link, name) in absurd})
        for link in now.links or ()
    )
    names = sorted("links" if name.startswith("link ") else name for name in absurd)
    return without(now, *names, links=None if now.links is None else links)


def _grown(now: GpuReading, steps: dict[str, _Step]) -> Iterator[Sign]:
    since = " since it was last read" if any(step.gap for step in steps.values()) else ""
    if more := _more(steps, "uncorrected"):
        text = f"{more} new uncorrected memory errors{since}"
        yield replace(sign_about("gpu.ecc_uncorrected", now, text), count=more)
    if more := _more(steps, "corrected"):
        yield replace(sign_about("gpu.ecc_corrected", now, f"{more} new corrected memory errors{since}"), count=more)
    if more := _more(steps, "pcie_replays"):
        yield replace(sign_about("gpu.pcie_replays", now, f"{more} new PCIe replays{since}"), count=more)
    for link in now.links or ():
        worn = [
            f"{step.by} new {words}" for name, words, limit in LINK_ERRORS
            if (step := steps.get(_of_link(link, name))) is not None and step.by >= LIMITS[limit].at
        ]  # fmt: skip
        if worn:
            yield sign_about("nvlink.errors", now, f"NVLink {link.number}: {', '.join(worn)}{since}", link=link.number)


def _more(steps: dict[str, _Step], name: str) -> int:
    """By how much it grew, where that is enough to be told."""
    step = steps.get(name)
    if step is None:
        return 0
    limit = LIMITS[_LIMITS[name][step.gap]].at if name in _LIMITS else 1
    return step.by if step.by >= limit else 0


def _key(sign: Sign) -> tuple[str, object]:
    return sign.kind, sign.fields.get("link")
