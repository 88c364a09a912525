"""What watches a real machine besides its kernel log: a list of makers, each by itself.

One that cannot be made is one clear line and a `probe.failed`; the rest keeps working.
"""

import dataclasses
import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from sickbay.agent.complaints import complain
from sickbay.agent.probes import Look, Probe
from sickbay.agent.probes.dedup import Deduplicator
from sickbay.agent.probes.remembered import Remembered, boot_in
from sickbay.agent.sampling import Sampler, Values
from sickbay.agent.settings import AgentSettings
from sickbay.model.fleet import NodeId
from sickbay.model.protocol import Item


def _nobody(why: str) -> AbstractContextManager[None]:  # noqa: ARG001 - the form of Nvml.aside
    return nullcontext()


class ProbeContext(NamedTuple):
    """What a maker is given."""

    settings: AgentSettings
    node: NodeId
    sums: Deduplicator


@dataclass(slots=True)
class Made:
    """Probes that could be made, and why others could not."""

    probes: list[Probe] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    closing: list[Callable[[], None]] = field(default_factory=list)
    values: list[Values] = field(default_factory=list)  # for charts
    aside: Callable[[str], AbstractContextManager[None]] = _nobody
    device_at: Callable[[str], int | None] | None = None
    has_links: Callable[[], bool] | None = None


Maker = Callable[[ProbeContext, Made], None]


def gpus(where: ProbeContext, made: Made) -> None:
    from sickbay.agent.probes.gpus import gpus_for

    found = gpus_for(where.settings, where.node, where.sums)
    made.probes.extend(found.probes)
    made.values.append(found.gpus.values)
    made.closing.append(found.close)
    made.aside, made.device_at, made.has_links = found.aside, found.gpus.device_at, found.gpus.has_links


def dcgm(where: ProbeContext, made: Made) -> None:
    if not where.settings.dcgm_url and shutil.which("dcgmi") is None:
        return  # before it is imported: what reads DCGM is large
    from sickbay.agent.probes.dcgm import dcgm_probe

    kept = Remembered(Path(where.settings.state) / "dcgm-counters.json", boot_in(where.settings.boot_id_file))
    found = dcgm_probe(where.node, exporter=where.settings.dcgm_url, has_links=made.has_links, remembered=kept)
    if found is not None:
        probe, watch = found
        made.probes.append(dataclasses.replace(probe, look=summed(probe.look, where.sums)))
        made.closing.append(watch.close)


def host(where: ProbeContext, made: Made) -> None:
    from sickbay.agent.probes.host import host_for

    found = host_for(where.settings, where.node, where.sums)
    made.probes.extend(found.probes)
    made.values.append(found.values)


def charts(where: ProbeContext, made: Made) -> None:
    """Last: it asks what the others have measured."""
    every = where.settings.metrics
    if not every or not made.values:
        return
    exports = []
    if where.settings.cloudwatch:
        from sickbay.agent.emf import EmfExport

        exports.append(EmfExport(where.settings.cloudwatch, where.node))
    look = Sampler(made.values, exports).look
    made.probes.append(Probe("charts", look, period=every, gap=every / 2, may_hang=True))


MAKERS: Sequence[tuple[str, Maker]] = (("GPUs", gpus), ("DCGM", dcgm), ("the machine", host), ("charts", charts))


def probes_for(where: ProbeContext, makers: Sequence[tuple[str, Maker]] = MAKERS) -> Made:
    made = Made()
    for name, make in makers:
        try:
            make(where, made)
        except Exception as error:  # noqa: BLE001 - whatever the making of one meets must not end the others
            text = f"{name} cannot be watched: {type(error).__name__}: {error}"
            complain(text)
            made.troubles.append(text)
    return made


def summed(look: Look, sums: Deduplicator) -> Look:
    """What the kernel log has told already is not told again."""

    def looked(now: float) -> list[Item]:
        return [told for item in look(now) for told in sums.add(item, now)]

    return looked
