"""NVML worker process: loads NVML, answers, and pushes the events that NVML tells by itself.

Three threads, because any call of NVML may never return: one listens to the agent and calls nothing, one answers, one
waits for events. When the agent ends, for whatever reason, stdin ends, and with it this process.
"""

import importlib
import os
import sys
import time
import traceback
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any

import msgspec

from sickbay.agent.nvml.readings import DeviceLost, NvmlDevice, pci_of, reading_of, values_of
from sickbay.agent.nvml.wire import (
    Alive,
    At,
    Done,
    Failed,
    Happened,
    Lack,
    NvmlAbsent,
    NvmlMessage,
    NvmlRequest,
    NvmlWish,
    Read,
    Ready,
    Values,
)

LACKS = {9: Lack.DRIVER, 12: Lack.LIBRARY, 18: Lack.MISMATCH}  # nvmlReturn_t
TIMEOUT = 10
XID, DOUBLE_BIT = 0x8, 0x2  # nvmlEventType…
EVENTS_EVERY = 2000  # milliseconds that one wait for events lasts
NO_INSTANCE = 0xFFFFFFFF
MOST_DEVICES = 256  # of one machine: a number beyond is none


class LineWriter:
    """Whole lines, from any thread. Nobody listens any more: then there is nothing left to do."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._lock = Lock()

    def say(self, said: NvmlMessage) -> None:
        line = msgspec.json.encode(said) + b"\n"
        with self._lock:
            try:
                while line:
                    line = line[os.write(self._handle, line) :]
            except OSError:
                os._exit(0)


class Worker:
    """Answers one after the other. `busy_since`: when it went into NVML, for the thread that listens."""

    def __init__(self, voice: LineWriter) -> None:
        self._voice = voice
        self.asks: SimpleQueue[NvmlRequest] = SimpleQueue()
        self.busy_since: float | None = time.monotonic()
        self._driver = ""
        self._pci: dict[int, str] = {}
        self._fixed: dict[str, Any] = {}

    def run(self) -> None:
        nvml = self._load()
        Thread(target=_watch_events, args=(nvml, self._voice), name="events", daemon=True).start()
        while True:
            self.busy_since = None
            ask = self.asks.get()
            self.busy_since = time.monotonic()
            try:
                self._answer(nvml, ask)
            except nvml.NVMLError as error:
                self._voice.say(Failed(number=ask.number, why=str(error)))
            else:
                self._voice.say(Done(number=ask.number))

    def _load(self) -> Any:
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError as error:
            self._end(Lack.MODULE, f"nvidia-ml-py is not installed ({error})")
        try:
            nvml.nvmlInit()
            driver = nvml.nvmlSystemGetDriverVersion()
        except nvml.NVMLError as error:
            self._end(LACKS.get(int(error.value), Lack.OTHER), str(error))
        self._driver = driver.decode() if isinstance(driver, bytes) else driver
        self._voice.say(Ready(driver=self._driver))
        return nvml

    def _end(self, lack: Lack, why: str) -> None:
        self._voice.say(NvmlAbsent(lack=lack, why=why))
        os._exit(0)

    def _answer(self, nvml: Any, ask: NvmlRequest) -> None:
        count = int(nvml.nvmlDeviceGetCount())
        if not 0 <= count <= MOST_DEVICES:
            self._voice.say(Failed(number=ask.number, why=f"it counts {count} devices"))
            return
        for device in range(count):
            self._voice.say(At(device=device, pci=self._pci.get(device, "")))
            if ask.wish is NvmlWish.METRICS:
                self._voice.say(Values(values=values_of(nvml, device)))
                continue
            reading = reading_of(nvml, device, self._driver, self._fixed)
            if reading.pci:
                self._pci[device] = reading.pci
            self._voice.say(Read(reading=reading))


def main() -> None:
    # Whatever a library prints goes to stderr: stdout is the agent's.
    voice = LineWriter(os.dup(1))
    os.dup2(2, 1)
    worker = Worker(voice)
    Thread(target=_or_end, args=(worker,), name="worker", daemon=True).start()
    for line in sys.stdin.buffer:
        ask = msgspec.json.decode(line, type=NvmlRequest)
        if ask.wish is not NvmlWish.ALIVE:
            worker.asks.put(ask)
            continue
        since = worker.busy_since
        voice.say(Alive(number=ask.number, since=0.0 if since is None else time.monotonic() - since))
    os._exit(0)


def _or_end(worker: Worker) -> None:
    """A defect of ours ends the child, and the agent hears of it; silence would look like a GPU that hangs."""
    try:
        worker.run()
    finally:
        traceback.print_exc(file=sys.stderr)
        os._exit(70)


def _watch_events(nvml: Any, voice: LineWriter) -> None:
    """A second witness of what the kernel log says. Where events cannot be had there is still the other one."""
    try:
        heard = nvml.nvmlEventSetCreate()
        known = _register(nvml, heard)
        while known:
            try:
                event = nvml.nvmlEventSetWait_v2(heard, EVENTS_EVERY)
            except nvml.NVMLError as error:
                if int(error.value) == TIMEOUT:
                    continue
                raise
            happened = _happened(nvml, event, known)
            if happened is not None:
                voice.say(happened)
    except nvml.NVMLError as error:
        print(f"nvml: no events: {error}", file=sys.stderr, flush=True)


def _register(nvml: Any, heard: Any) -> dict[str, tuple[int, str]]:
    """The devices that tell events, by UUID. Clock events are left out: what slows a GPU down is in its readings."""
    known: dict[str, tuple[int, str]] = {}
    for index in range(min(int(nvml.nvmlDeviceGetCount()), MOST_DEVICES)):
        try:
            card = NvmlDevice(nvml, index)
            wanted = (card.ask("nvmlDeviceGetSupportedEventTypes") or 0) & (XID | DOUBLE_BIT)
            uuid = _text(card.ask("nvmlDeviceGetUUID"))
            pci = pci_of(card)
        except DeviceLost:
            continue
        if wanted and uuid:
            card.ask("nvmlDeviceRegisterEvents", wanted, heard)
            known[uuid] = (index, pci)
    return known


def _happened(nvml: Any, event: Any, known: dict[str, tuple[int, str]]) -> Happened | None:
    try:
        uuid = _text(nvml.nvmlDeviceGetUUID(event.device))
    except nvml.NVMLError:  # it has gone with its last word
        uuid = ""
    index, pci = known.get(uuid, (None, ""))
    if not uuid and len(known) == 1:
        uuid, (index, pci) = next(iter(known.items()))
    mig = None if event.gpuInstanceId == NO_INSTANCE else int(event.gpuInstanceId)
    if event.eventType == XID:
        return Happened(kind="xid", number=int(event.eventData), device=index, pci=pci, uuid=uuid, mig=mig)
    if event.eventType == DOUBLE_BIT:
        return Happened(kind="gpu.ecc_uncorrected", device=index, pci=pci, uuid=uuid, mig=mig)
    return None


def _text(value: str | bytes | None) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value or ""
