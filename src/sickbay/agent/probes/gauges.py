"""What the machine is doing, in numbers, for charts: processors, memory, disks, network."""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from sickbay.agent.probes.machine import digits, load, meminfo, name_on_host, word

SEARCH_EVERY = 60.0  # seconds
FASTEST = 1e13  # bytes in a second: what is counted faster is a card that does not answer
SECTOR = 512  # bytes, whatever the disk's own are
IB_WORD = 4  # bytes that one count of port_xmit_data stands for


class _There(NamedTuple):
    since: float
    disks: tuple[str, ...]
    lines: tuple[tuple[str, str, str, int], ...]  # a name, files of what came and what went, bytes of one count


class Gauges:
    """Rates are since the call before: the first call has none."""

    def __init__(
        self,
        sys: Path = Path("/sys"),
        proc: Path = Path("/proc"),
        places: tuple[str, ...] = ("/",),
        root: str = "/",
    ) -> None:
        self._sys = sys
        self._proc = proc
        self._places = places
        self._root = root
        self._before: dict[str, tuple[float, float]] = {}
        self._cpu: tuple[int, int] | None = None
        self._found: _There | None = None

    def values(self, now: float | None = None) -> Mapping[str, float]:
        now = time.monotonic() if now is None else now
        return {**self._processors(), **self._memory(), **self._space(), **self._disks(now), **self._network(now)}

    def _processors(self) -> dict[str, float]:
        found: dict[str, float] = {}
        fields = word(self._proc / "stat").partition("\n")[0].split()[1:]
        numbers = [number for field in fields[:8] if (number := digits(field)) is not None]
        if len(fields) >= 5 and len(numbers) == len(fields[:8]):
            total, idle = sum(numbers), numbers[3] + numbers[4]
            if self._cpu is not None and 0 <= idle - self._cpu[1] <= total - self._cpu[0] > 0:
                found["cpu.busy"] = 100 * (1 - (idle - self._cpu[1]) / (total - self._cpu[0]))
            self._cpu = (total, idle)
        if (average := load(self._proc)) is not None:
            found["cpu.load"] = average
        return found

    def _memory(self) -> dict[str, float]:
        table = meminfo(self._proc)
        total, left = table.get("MemTotal", 0), table.get("MemAvailable")
        if left is None or not 0 <= left <= total or not total:
            return {}
        swap = max(0, table.get("SwapTotal", 0) - table.get("SwapFree", 0))
        return {"memory.used_percent": 100 * (1 - left / total), "memory.swap_mib": swap / 1024}

    def _space(self) -> dict[str, float]:
        found = {}
        for place in self._places:
            with suppress(OSError):
                there = os.statvfs(place)
                if there.f_blocks:
                    name = name_on_host(place, self._root).strip("/").replace("/", "_").replace(".", "_") or "root"
                    found[f"disk.{name}.used_percent"] = 100 * (1 - there.f_bavail / there.f_blocks)
        return found

    def _disks(self, now: float) -> dict[str, float]:
        read = written = 0.0
        for path in self._there(now).disks:
            fields = word(path).split()
            if len(fields) > 6:
                read += (digits(fields[2]) or 0) * SECTOR
                written += (digits(fields[6]) or 0) * SECTOR
        return {
            **self._rate("disk.read_bytes_per_second", read, now),
            **self._rate("disk.write_bytes_per_second", written, now),
        }

    def _network(self, now: float) -> dict[str, float]:
        found: dict[str, float] = {}
        for name, received, sent, unit in self._there(now).lines:
            found |= self._both(name, received, sent, now, unit)
        return found

    def _there(self, now: float) -> "_There":
        """Walking through /sys costs more than all that is read there: devices come and go rarely."""
        if self._found is None or now - self._found.since >= SEARCH_EVERY:
            self._found = _There(now, tuple(self._find_disks()), tuple(self._find_lines()))
        return self._found

    def _find_disks(self) -> Iterator[str]:
        for path in self._sys.glob("block/*/stat"):
            if (path.parent / "device").exists():  # what is behind mappers is counted there already
                yield str(path)

    def _find_lines(self) -> Iterator[tuple[str, str, str, int]]:
        for path in self._sys.glob("class/net/*/statistics"):
            if (path.parent / "device").exists():
                yield f"net.{_plain(path.parent.name)}", f"{path}/rx_bytes", f"{path}/tx_bytes", 1
        for path in self._sys.glob("class/infiniband/*/ports/*"):
            name = f"ib.{_plain(path.parts[-3])}"
            inside = path / "counters"
            if (inside / "port_rcv_data").exists():
                yield name, f"{inside}/port_rcv_data", f"{inside}/port_xmit_data", IB_WORD
            else:
                yield name, f"{path}/hw_counters/rx_bytes", f"{path}/hw_counters/tx_bytes", 1

    def _both(self, name: str, received: str, sent: str, now: float, unit: int) -> dict[str, float]:
        found: dict[str, float] = {}
        for way, path in (("rx", received), ("tx", sent)):
            if (number := digits(word(path))) is not None:
                found |= self._rate(f"{name}.{way}_bytes_per_second", float(number * unit), now)
        return found

    def _rate(self, name: str, total: float, now: float) -> dict[str, float]:
        before = self._before.get(name)
        self._before[name] = (now, total)
        if before is None or now <= before[0] or total < before[1]:
            return {}
        rate = (total - before[1]) / (now - before[0])
        return {name: rate} if rate <= FASTEST else {}


def _plain(name: str) -> str:
    return name.replace(".", "_")
