"""A cluster kind of another package, whose nodes several controllers may serve; it writes down who asks for what."""

import importlib
import os
from pathlib import Path
from typing import Any

from sickbay.clusters.local.settings import LocalSettings
from sickbay.wiring import ClusterGround, ClusterKind, WiredCluster, cluster_kind

READS = frozenset({"watch", "snapshot"})
NOTED = READS | {"cordon", "uncordon", "drain", "start", "stop", "rerun", "reboot", "replace", "fence"}
METADATA = "Metadata-Version: 2.1\nName: shared-kind\nVersion: 1.0\n"
ENTRY_POINTS = f"[sickbay.clusters]\nshared = {__name__}:KIND\n"


class SharedSettings(LocalSettings, kw_only=True):
    room: str  # the directory of the nodes
    powers: bool = False  # whether this controller switches them on


class Noted:
    """Passes everything on, and writes down who asked for what, under which key."""

    def __init__(self, inner: Any, log: Path) -> None:
        self._inner = inner
        self._log = log

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in NOTED:
            return found

        def noted(*args: Any, **named: Any) -> Any:
            with self._log.open("a") as log:
                log.write(f"{os.getpid()} {name} {named.get('key', '-')}\n")
            return found(*args, **named)

        return noted


def build(ground: ClusterGround) -> WiredCluster:
    settings = ground.settings
    local = cluster_kind("local").build(ground._replace(state=Path(settings.room)))
    log = Path(settings.room) / "asked"
    return local._replace(
        cluster=Noted(local.cluster, log),
        machines={name: Noted(each, log) for name, each in local.machines.items()},
        own_nodes=local.own_nodes if settings.powers else None,
    )


KIND = ClusterKind(SharedSettings, build, channels=("local",))


def install(site: Path) -> None:
    """As pip would: a distribution with an entry point, in a directory that a controller has in its path."""
    package = site / "shared_kind-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text(METADATA)
    (package / "entry_points.txt").write_text(ENTRY_POINTS)
    assert importlib.import_module(__name__)
