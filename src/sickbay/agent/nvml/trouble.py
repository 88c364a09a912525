"""Exceptions of a reader of GPUs: why they could not be read.

CannotRead
├── NoDriver
├── Mismatch
└── Unanswered
    ├── Slow
    └── Hung
"""

from collections.abc import Sequence

from sickbay.agent.nvml.wire import At
from sickbay.model.gpu import GpuReading


class CannotRead(Exception):  # noqa: N818 - it says what happened
    """Nobody knows how the GPUs are. Neither healthy nor sick."""


class NoDriver(CannotRead):
    """No driver answers: there is none, or it is not loaded (yet)."""


class Mismatch(CannotRead):
    """The driver's library and its kernel module are of different versions."""


class NvmlUnanswered(CannotRead):
    """No answer in time. `device`: the one that was being asked; `readings`: those that had answered before it."""

    def __init__(self, text: str, at: At | None, readings: Sequence[GpuReading] = ()) -> None:
        super().__init__(text)
        self.device = None if at is None else at.device
        self.pci = "" if at is None else at.pci
        self.readings = tuple(readings)


class Slow(NvmlUnanswered):
    """Once, and perhaps no GPU's fault: the machine may have been too busy to let the child run."""


class NvmlHung(NvmlUnanswered):
    """A call of NVML does not return."""
