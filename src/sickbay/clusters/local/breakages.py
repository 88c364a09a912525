"""Fault injection into the local cluster's virtual hardware."""

from msgspec.structs import replace

from sickbay.clusters.local.cluster import LocalCluster
from sickbay.clusters.local.defects import named, xid
from sickbay.clusters.local.files import Break, VirtualDefect
from sickbay.model.errors import BadInput
from sickbay.model.fault import Remedy
from sickbay.model.fleet import NodeId
from sickbay.ports.breakable import Breakage

CURES = {"reset": Remedy.RESET_GPU, "reboot": Remedy.REBOOT, "replace": Remedy.REPLACE, "nothing": None}


class LocalBreakages:
    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster

    def inject(self, node: NodeId, breakage: Breakage) -> str:
        given = [what for what in (breakage.xid, breakage.line, breakage.defect) if what not in {None, ""}]
        if len(given) != 1:
            raise BadInput("give exactly one of xid, line and defect")
        if breakage.line:
            self._cluster.break_node(node, Break(boot_id="", lines=(breakage.line,)))
            return "the line was written to the kernel log"
        defect = self._defect(breakage)
        self._cluster.break_node(node, Break(boot_id="", defect=defect))
        cure = f"cured by {defect.cured_by}" if defect.cured_by is not None else "nothing cures it"
        return f"{defect.name} on {'the node' if defect.device is None else f'GPU {defect.device}'}; {cure}"

    def _defect(self, breakage: Breakage) -> VirtualDefect:
        if breakage.xid is not None:
            defect = xid(breakage.xid, breakage.device)
        else:
            defect = named(breakage.defect, breakage.device)
        if not breakage.cured_by:
            return defect
        if breakage.cured_by not in CURES:
            raise BadInput(f"{breakage.cured_by!r} cures nothing: write {', '.join(CURES)}")
        return replace(defect, cured_by=CURES[breakage.cured_by])
