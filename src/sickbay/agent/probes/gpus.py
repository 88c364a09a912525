"""The node's NVIDIA GPUs: are they all there, and what do they say of themselves?

A look that could not look raises, so that nobody takes silence for health; what it found before it failed, and what the
failure itself shows (a GPU that hangs whoever asks it), is told first, and the next look raises.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from threading import Lock

import msgspec
from msgspec.structs import replace

from sickbay.agent.nvml.pci import Address, address, nvidia_gpus
from sickbay.agent.nvml.watched import CannotRead, Mismatch, NoDriver, Nvml, NvmlHung
from sickbay.agent.nvml.wire import Happened
from sickbay.agent.outbox import say
from sickbay.agent.probes import Probe
from sickbay.agent.probes.dedup import Deduplicator
from sickbay.agent.probes.inventory import inventory_probe
from sickbay.agent.probes.remembered import Remembered, boot_in
from sickbay.agent.settings import AgentSettings
from sickbay.model.facts import Inventory, Observed
from sickbay.model.fleet import Device, NodeId
from sickbay.model.gpu import GpuReading
from sickbay.model.noun import Noun
from sickbay.model.protocol import Item
from sickbay.model.sign import Fields, Sign
from sickbay.signs.gpu_changes import GpuPast, weigh
from sickbay.signs.gpu_state import held, missing, signs_among
from sickbay.signs.plausible import plausible
from sickbay.wire.files import replace_file

GRACE = 300.0  # seconds: just after a boot or an upgrade the driver may not be there yet, and no GPU is broken
EVERY = 30.0  # seconds: a full reading of an H200 takes up to 3 ms of a core, eight of them a thousandth in all
YIELD = 3.0  # seconds that NVML's word of an event waits for the kernel's
EVENTS = 10_000  # that wait
SOURCE = "nvml"
LOOKS = 3  # in a row in which the hardware must hold a GPU down
Looked = tuple[list[Sign], CannotRead | None]  # what was found, and why it is not all there is to find


class GpuMemory(Noun):
    """What this machine has shown, kept for the next run of the agent: it must know less when it sees less."""

    most: int = 0  # GPUs seen at once
    devices: dict[str, int] = {}  # PCI address → index


class Gpus:
    """`expected`: how many the node must have; None: the most that were seen, or what the bus lists. `known`: its file.

    `machine` is the root under which `sys` and `dev` are.
    """

    def __init__(
        self,
        nvml: Nvml,
        node: NodeId,
        known: Path,
        *,
        expected: int | None = None,
        grace: float = GRACE,
        machine: Path = Path("/"),
        sums: Deduplicator | None = None,
        remembered: Remembered | None = None,
    ) -> None:
        self._nvml = nvml
        self._node = node
        self._file = known
        self._known = _read(known)
        self._wanted = expected
        self._grace = grace
        self._machine = machine
        self._since: float | None = None  # monotonic moment of the first look
        self._without_driver: float | None = None
        self._remembered = remembered or Remembered(known, boot="")
        self._past = {who: GpuPast(counts=counts) for who, counts in self._remembered.counts.items()}  # by UUID
        self._uuids: dict[int, str] = {}
        self._looks: dict[str, deque[GpuReading]] = {}
        self._told: set[tuple[object, ...]] = set()
        self._devices: dict[Address, int] = _addresses(self._known)
        there = sorted(where for gpu in nvidia_gpus(machine / "sys") if (where := address(gpu)) is not None)
        self._by_bus = {where: number for number, where in enumerate(there)}
        self._sums = sums or Deduplicator()
        self._lock = Lock()  # the events are asked for by more threads than one
        self._events: deque[tuple[float, Happened]] = deque(maxlen=EVENTS)

    # --- a witness
    def look(self, now: float) -> list[Item]:
        """What is new. Raises CannotRead where it could not look and has nothing new to tell."""
        self._since = now if self._since is None else self._since
        found, trouble = self._looked(now)
        if not found and trouble is not None:
            raise trouble
        return [say(self._observed(sign), now) for sign in found]

    def told(self, now: float) -> None:
        """What was found is in the outbox: the next run of the agent need not tell it again."""
        self._remembered.counts = {who: past.counts for who, past in self._past.items()}
        self._remembered.keep(now)

    def tell_events(self, now: float) -> list[Item]:
        """What NVML told by itself. It waits a little: the kernel's log says the same of an Xid, in many more words."""
        with self._lock:
            self._events.extend((now + YIELD, event) for event in self._nvml.events())
            due: list[Happened] = []
            while self._events and self._events[0][0] <= now:
                due.append(self._events.popleft()[1])
        return self._told_events(due, now)

    def flush(self, now: float) -> list[Item]:
        """What waits, at once."""
        with self._lock:
            due = [*(event for _, event in self._events), *self._nvml.events()]
            self._events.clear()
        return self._told_events(due, now)

    def _told_events(self, events: Iterable[Happened], now: float) -> list[Item]:
        items = [say(self._observed(_sign_of(event)), now, SOURCE) for event in events]
        return [told for item in items for told in self._sums.add(item, now)]

    def _looked(self, now: float) -> Looked:
        bus = nvidia_gpus(self._machine / "sys")
        if self._none_here(bus):
            return self._once(Sign(kind="gpus.none", text="this node has no NVIDIA GPUs")), None
        try:
            readings = self._nvml.read()
        except NvmlHung as hung:
            return [*self._judged(hung.readings), *self._once(_hang(hung))], hung
        except (NoDriver, Mismatch) as absent:
            return self._driverless(absent, bus, now), absent
        except CannotRead as other:
            return [], other
        self._without_driver = None
        self._forget("gpu.hang", "driver.failed", "driver.mismatch", "gpus.none")
        found = self._judged(readings)
        short, trouble = self._short(readings, bus, now)
        self._learn(readings)
        return [*found, *short], trouble

    def _none_here(self, bus: Sequence[str]) -> bool:
        nobody = not bus and not self._wanted and not self._known.most
        return nobody and not (self._machine / "dev/nvidiactl").exists()

    # --- what the readings mean
    def _judged(self, readings: Sequence[GpuReading]) -> list[Sign]:
        named = [self._named(reading) for reading in readings]
        links = {_key(sign): sign for sign in signs_among(named) if sign.kind == "nvlink.down"}
        found: list[Sign] = [sign for key, sign in links.items() if key not in self._told]
        self._told = {key for key in self._told if key[0] != "nvlink.down"} | links.keys()
        for reading in named:
            who = reading.uuid or f"GPU {reading.index}"
            news, self._past[who] = weigh(self._past.get(who), reading)
            found.extend(sign for sign in news if sign.kind != "nvlink.down")
            found.extend(self._held(who, self._past[who].last or reading))
        return found

    def _named(self, reading: GpuReading) -> GpuReading:
        """A GPU that is lost does not even say its name: it is the one that had this number."""
        if reading.index is None or reading.uuid:
            return reading
        last = self._last(self._uuids.get(reading.index, ""))
        if last is None:
            return reading
        return replace(reading, uuid=last.uuid, pci=reading.pci or last.pci, serial=last.serial, name=last.name)

    def _last(self, who: str) -> GpuReading | None:
        past = self._past.get(who)
        return None if past is None else past.last

    def _held(self, who: str, reading: GpuReading) -> list[Sign]:
        looks = self._looks.setdefault(who, deque(maxlen=LOOKS))
        looks.append(reading)
        sign = held(looks) if len(looks) == LOOKS else None
        if sign is None:
            self._told.discard(("gpu.throttled", who))
            return []
        return self._once(sign, "gpu.throttled", who)

    def _short(self, readings: Sequence[GpuReading], bus: Sequence[str], now: float) -> Looked:
        """Fewer than there must be. One that is lost has been told as such."""
        expected = self._expected(bus)
        sign = missing(readings, expected) if len(readings) < expected else None
        if sign is None:
            self._forget("gpu.count")
            return [], None
        if self._young(now):
            return [], CannotRead(f"{sign.text}; the driver may still be at it, so this is not judged yet")
        key = ("gpu.count", len(readings), expected)
        if key not in self._told:
            self._forget("gpu.count")
        return self._once(sign, *key), None

    def _driverless(self, trouble: CannotRead, bus: Sequence[str], now: float) -> list[Sign]:
        self._without_driver = now if self._without_driver is None else self._without_driver
        if now - self._without_driver < self._grace:
            return []
        if isinstance(trouble, Mismatch):
            return self._once(Sign(kind="driver.mismatch", text=str(trouble)))
        if not bus:  # nothing on the bus that a driver could answer for
            sign = missing((), self._expected(bus))
            return [] if sign is None else self._once(sign, "gpu.count", 0, self._expected(bus))
        return self._once(Sign(kind="driver.failed", text=f"{len(bus)} GPUs on the bus, and no driver: {trouble}"))

    def _expected(self, bus: Sequence[str]) -> int:
        return self._wanted if self._wanted is not None else max(self._known.most, len(bus))

    def _young(self, now: float) -> bool:
        return self._since is None or now - self._since < self._grace

    # --- each finding once
    def _once(self, sign: Sign, *key: object) -> list[Sign]:
        key = key or _key(sign)
        if key in self._told:
            return []
        self._told.add(key)
        return [sign]

    def _forget(self, *kinds: str) -> None:
        self._told = {key for key in self._told if key[0] not in kinds}

    # --- which device is which
    def device_at(self, pci: str) -> int | None:
        """The device at a PCI address, however it is written."""
        where = address(pci)
        if where is None:
            return None
        # The kernel's log of before we came is read before NVML is loaded: drivers number GPUs in the bus' order.
        return (self._devices or self._by_bus).get(where)

    def has_links(self) -> bool:
        """Whether any GPU here has an NVLink."""
        return any(past.last is not None and past.last.links for past in list(self._past.values()))

    def inventory(self) -> Inventory:
        """The GPUs that have answered since this agent started; one that is lost since is still in its slot."""
        named = sorted(self._uuids.copy().items())
        seen = {index: last for index, uuid in named if (last := self._last(uuid)) is not None}
        links = [one.links for one in seen.values() if one.links is not None]
        linked = any(links) if links else None
        # A card without a serial number has at least a UUID of its own.
        devices = tuple(Device(index=index, serial=one.serial or one.uuid) for index, one in seen.items())
        return Inventory(devices=devices, linked=linked)

    def values(self) -> dict[str, float]:
        """For charts; nothing where nothing can be read: `look` says why."""
        if any(key[0] == "gpus.none" for key in self._told):  # asking would start a process again and again
            return {}
        try:
            found = self._nvml.metrics()
        except CannotRead:
            return {}
        return {name: value for name, value in found.items() if plausible(name.rpartition(".")[2], value)}

    def _learn(self, readings: Sequence[GpuReading]) -> None:
        there = {one.index: one for one in readings if one.index is not None and one.uuid}
        self._uuids |= {index: one.uuid for index, one in there.items()}
        devices = {one.pci: index for index, one in there.items() if one.pci}
        # Addresses of those that do not answer now are still theirs, unless another has the number.
        older = {pci: index for pci, index in self._known.devices.items() if index not in there}
        known = GpuMemory(most=max(self._known.most, len(readings)), devices=older | devices)
        if known == self._known:
            return
        self._known, self._devices = known, _addresses(known)
        with suppress(OSError):  # a full disk: then the next run learns it again
            replace_file(self._file, msgspec.json.encode(known), durable=False)

    def _observed(self, sign: Sign) -> Observed:
        return Observed(node=self._node, kind=sign.kind, fields=sign.fields, text=sign.text, count=sign.count)


class Watched:
    """The GPUs of a machine as an agent has them."""

    def __init__(self, settings: AgentSettings, node: NodeId, sums: Deduplicator, nvml: Nvml | None = None) -> None:
        self._nvml = nvml or Nvml()
        state = Path(settings.state)
        remembered = Remembered(state / "gpu-counters.json", boot_in(settings.boot_id_file))
        self.gpus = gpus = Gpus(
            self._nvml, node, state / "gpus.json", expected=settings.gpus, machine=Path(settings.host_root), sums=sums,
            remembered=remembered,
        )  # fmt: skip
        # In a thread of its own: NVML on a sick GPU answers after seconds, and the kernel log does not wait for it.
        self.probes = [
            Probe(
                "gpus", gpus.look, period=EVERY, gap=1.0, witness=True, flush=gpus.flush, told=gpus.told, may_hang=True
            ),
            Probe("gpu_events", gpus.tell_events, period=1.0),
            inventory_probe(node, gpus.inventory),
        ]

    def aside(self, why: str) -> AbstractContextManager[None]:
        return self._nvml.aside(why)

    def close(self) -> None:
        self._nvml.close()


def gpus_for(settings: AgentSettings, node: NodeId, sums: Deduplicator) -> Watched:
    return Watched(settings, node, sums)


def _key(sign: Sign) -> tuple[object, ...]:
    """The GPU is its UUID: another may have got its number."""
    who = sign.fields.get("uuid") or sign.fields.get("device")
    return (sign.kind, who, sign.fields.get("link"))


def _hang(hung: NvmlHung) -> Sign:
    fields: Fields = {} if hung.device is None else {"device": hung.device}
    return Sign(kind="gpu.hang", fields=fields | ({"pci": hung.pci} if hung.pci else {}), text=str(hung))


def _sign_of(event: Happened) -> Sign:
    """A second witness: the kernel's log says the same, in more words."""
    given = {"number": event.number, "device": event.device, "mig": event.mig}
    fields: Fields = {name: value for name, value in given.items() if value is not None}
    names: Fields = {name: value for name, value in (("pci", event.pci), ("uuid", event.uuid)) if value}
    what = "an uncorrectable memory error" if event.number is None else f"Xid {event.number}"
    where = "a GPU" if event.device is None else f"GPU {event.device} at {event.pci}"
    text = f"NVML tells {what} of {where}"
    return Sign(kind=event.kind, fields={**fields, **names, "source": "nvml"}, text=text, count=event.count)


def _addresses(known: GpuMemory) -> dict[Address, int]:
    pairs: Iterable[tuple[Address | None, int]] = ((address(pci), index) for pci, index in known.devices.items())
    return {where: index for where, index in pairs if where is not None}


def _read(path: Path) -> GpuMemory:
    try:
        return msgspec.json.decode(path.read_bytes(), type=GpuMemory)
    except (OSError, msgspec.MsgspecError):
        return GpuMemory()
