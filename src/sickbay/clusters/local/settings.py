"""Settings of a cluster of kind `local`, as they stand in a controller's file."""

from pathlib import Path

from sickbay.clusters.local.rack import Rack
from sickbay.model.errors import BadInput
from sickbay.model.noun import Noun

NODES, GPUS, POOL = 4, 2, "default"
MOST_NODES, MOST_GPUS = 256, 16  # of one machine's processes


class LocalSettings(Noun, forbid_unknown_fields=True):
    """None: as it was, or the default. What is there does not shrink."""

    nodes: int | None = None
    gpus: int | None = None
    boot_takes: float = 1.0  # seconds


def furnish(root: Path, cluster: str, pool: str, settings: LocalSettings) -> Rack:
    """As many nodes as asked for, or as there are, or a few. Raises BadInput where that contradicts what is there."""
    rack = Rack(root)
    for what, asked, least, most in (("nodes", settings.nodes, 1, MOST_NODES), ("gpus", settings.gpus, 0, MOST_GPUS)):
        if asked is not None and not least <= asked <= most:
            raise BadInput(f"settings.{what}: {asked} cannot be: write {least} to {most}")
    there = rack.names() if rack.exists() else ()
    gpus = settings.gpus if settings.gpus is not None else rack.seat(there[0]).gpus if there else GPUS
    nodes = settings.nodes or len(there) or NODES
    rack.create(cluster, nodes, gpus, pool or POOL, boot_takes=settings.boot_takes)
    return rack
