"""Where NVML cannot be loaded: `nvidia-smi -q -x`, with the same deadline."""

import re
from collections.abc import Callable, Sequence

from sickbay.agent.nvml.pipes import PipeEnded, Process
from sickbay.model.gpu import GpuReading

SMI = ("nvidia-smi", "-q", "-x")
SAID = 200  # characters of what it prints instead of XML


def read_xml(command: Sequence[str], until: float, give_up: Callable[[Process], None]) -> list[GpuReading]:
    """Raises Late, FileNotFoundError, or Ended with its own words where it prints no XML."""
    process = Process(command)
    try:
        text = process.everything(until).decode("utf-8", "replace")
    finally:
        give_up(process)
    if "<nvidia_smi_log" not in text:
        words = re.sub(r"\s+", " ", text).strip()[:SAID]
        raise PipeEnded(words or process.how)
    from sickbay.signs.readers.smi_xml import readings_from_xml

    readings: list[GpuReading] = list(readings_from_xml(text))
    return readings
