"""Protocol between the agent and its NVML child: one JSON object a line, each way."""

from enum import StrEnum

from sickbay.model.gpu import GpuReading
from sickbay.model.noun import Noun


class NvmlWish(StrEnum):
    READ = "read"  # everything
    METRICS = "metrics"  # the few values that are worth a chart
    ALIVE = "alive"  # answered by a thread that never calls NVML


class NvmlRequest(Noun):
    wish: NvmlWish
    number: int


class Lack(StrEnum):
    """Why NVML cannot be had."""

    MODULE = "module"  # nvidia-ml-py is not installed here
    LIBRARY = "library"  # libnvidia-ml.so.1 is not there
    DRIVER = "driver"  # the kernel module is not loaded, or does not answer
    MISMATCH = "mismatch"  # library and kernel module are of different versions
    OTHER = "other"


class NvmlMessage(Noun, tag_field="said"):
    """What the child says."""


class Ready(NvmlMessage, tag="ready"):
    driver: str


class NvmlAbsent(NvmlMessage, tag="absent"):
    """NVML could not be had; the child ends."""

    lack: Lack
    why: str


class At(NvmlMessage, tag="at"):
    """The device that is asked next: if nothing follows, it is the one that hangs."""

    device: int
    pci: str = ""


class Read(NvmlMessage, tag="read"):
    reading: GpuReading


class Values(NvmlMessage, tag="values"):
    values: dict[str, float]


class Done(NvmlMessage, tag="done"):
    """All of `number` has been said."""

    number: int


class Failed(NvmlMessage, tag="failed"):
    """NVML as a whole refused (not one device)."""

    number: int
    why: str


class Alive(NvmlMessage, tag="alive"):
    number: int
    since: float  # seconds for which one call of NVML has not returned


class Happened(NvmlMessage, tag="happened"):
    """An event that NVML told by itself. `kind` as a Sign has it: xid, gpu.ecc_uncorrected."""

    kind: str
    number: int | None = None
    device: int | None = None
    pci: str = ""
    uuid: str = ""
    mig: int | None = None
    count: int = 1


AnySaid = Ready | NvmlAbsent | At | Read | Values | Done | Failed | Alive | Happened
