"""Records what a real NVIDIA machine says: `PYTHONPATH=src python tests/gpu/record.py DIRECTORY [--reset]`.

What it writes is made anonymous: `tests/fixtures/h200` was made with it. `--reset` also tries to reset the GPU.
"""

import contextlib
import ctypes
import importlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from sickbay.agent.nvml.readings import reading_of, values_of
from sickbay.agent.nvml.watched import Nvml

BAD = Path(__file__).with_name("bad_kernels.py")
COMMANDS = {
    "nvidia-smi.txt": "nvidia-smi",
    "nvidia-smi-q.txt": "nvidia-smi -q",
    "nvidia-smi-q.xml": "nvidia-smi -q -x",
    "nvidia-smi-L.txt": "nvidia-smi -L",
    "nvidia-smi-topo.txt": "nvidia-smi topo -m",
    "nvidia-smi-nvlink-s.txt": "nvidia-smi nvlink -s",
    "nvidia-smi-nvlink-e.txt": "nvidia-smi nvlink -e",
    "nvidia-smi-gpu.csv": (
        "nvidia-smi --query-gpu=index,uuid,serial,pci.bus_id,name,driver_version,temperature.gpu,temperature.memory,"
        "power.draw,power.limit,clocks.sm,clocks.mem,utilization.gpu,utilization.memory,memory.used,memory.total,"
        "ecc.mode.current,ecc.errors.corrected.volatile.total,ecc.errors.uncorrected.volatile.total,"
        "ecc.errors.uncorrected.aggregate.total,pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current,"
        "pcie.link.width.max,persistence_mode,mig.mode.current,clocks_event_reasons.active --format=csv"
    ),
    "nvidia-smi-remapped.csv": (
        "nvidia-smi --query-remapped-rows=gpu_bus_id,gpu_uuid,remapped_rows.correctable,remapped_rows.uncorrectable,"
        "remapped_rows.pending,remapped_rows.failure --format=csv"
    ),
    "nvidia-smi-apps.csv": "nvidia-smi --query-compute-apps=gpu_uuid,pid,process_name,used_memory --format=csv",
    "dmesg-boot.txt": "dmesg | grep -E 'NVRM|nvidia'",
    "lspci-sysfs.txt": "grep -H . /sys/bus/pci/devices/*/vendor /sys/bus/pci/devices/*/class",
}


def anonymous(text: str) -> str:
    text = re.sub(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", "GPU-00000000-0000-0000-0000-000000000001", text)
    text = re.sub(r"((?i:serial[\w ]*)[^0-9\n]{1,50})\d{10,14}", r"\g<1>1650000000001", text)
    text = re.sub(r"\b16[0-9]{11}\b", "1650000000001", text)
    text = re.sub(r"((?i:PDI)\W[^0-9\n]*)0x[0-9a-f]{16}", r"\g<1>0x0000000000000001", text)
    return re.sub(rf"(?<![\w-]){re.escape(os.uname().nodename)}\b", "node-0", text)


class Recorder:
    """Stands before pynvml and writes down each call with its answer, for the stand-in to replay."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self.calls: dict[str, Any] = {}
        self.took: dict[str, float] = {}  # milliseconds

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._module, name)
        if not name.startswith("nvml") or not callable(found) or isinstance(found, type):
            return found
        return lambda *args: self._call(name, found, args)

    def _call(self, name: str, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        key = f"{name}{plain_arguments(args)}"
        began = time.perf_counter()
        try:
            value = function(*args)
            self.took[key] = (time.perf_counter() - began) * 1e3
        except self._module.NVMLError as error:
            self.calls[key] = {"error": int(error.value)}
            raise
        filled = [getattr(arg, "_obj", None) for arg in args]
        self.calls[key] = {"value": plain(next((one for one in filled if one is not None), value))}
        return value


def plain_arguments(args: tuple[Any, ...]) -> str:
    return json.dumps([arg for arg in args if isinstance(arg, int | str | list | tuple)])


def plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, ctypes.Structure | ctypes.Union):
        return {field[0]: plain(getattr(value, field[0])) for field in value._fields_}
    if isinstance(value, ctypes.Array | list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, int | float | str | None):
        return value
    return {name: plain(one) for name, one in vars(value).items()} if hasattr(value, "__dict__") else None


def run(command: str, seconds: float = 60) -> str:
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=seconds, check=False)
    return done.stdout + done.stderr + (f"[exit {done.returncode}]\n" if done.returncode else "")


def kmsg() -> int:
    handle = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    os.lseek(handle, 0, os.SEEK_END)
    return handle


def records(handle: int, seconds: float) -> Iterator[bytes]:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            yield os.read(handle, 8192)
        except BlockingIOError:
            time.sleep(0.002)


def bad(kind: str, nvml: Nvml) -> dict[str, Any]:
    """One bad kernel: what it printed, the kernel's records, NVML's events."""
    handle = kmsg()
    nvml.events()
    process = subprocess.Popen(
        [sys.executable, str(BAD), kind], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if kind == "spin":
        assert process.stdout is not None
        said = process.stdout.readline()
        time.sleep(1.5)
        busy = nvml.read()
        process.send_signal(signal.SIGKILL)
        rest = process.communicate(timeout=60)[0]
        said += rest + msgspec.json.encode(busy).decode()
    else:
        said = process.communicate(timeout=120)[0]
    found = [record.decode("utf-8", "replace") for record in records(handle, 1.5)]
    os.close(handle)
    nvml.read()
    events = [msgspec.to_builtins(event) for event in nvml.events()]
    return {"said": said, "exit": process.returncode, "kmsg": found, "events": events}


def written() -> dict[str, Any]:
    """Lines of our own in the kernel's log: how they read, and how soon. The address is none of this machine's."""
    lines = [
        "NVRM: Xid (PCI:0000:b9:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n",
        "<4>NVRM: Xid (PCI:0000:b9:00): 48, pid=<unknown>, name=<unknown>, An uncorrectable double bit error (DBE)\n",
        "<6>NVRM: Xid (PCI:0000:b9:00): 95, pid=1, name=python, Uncontained: FBHUB. RST: Yes, D-RST: No\n",
        # Without its end: the kernel holds it back until another message follows, as it may be continued.
        "NVRM: Xid (PCI:0000:b9:00): 63, pid=1, name=python, Row Remapper: New row marked for remapping",
        "NVRM: Xid (PCI:0000:b9:00): 94, pid=1, name=python, Contained: FBHUB. RST: No, D-RST: No\n",
    ]
    handle = kmsg()
    out = os.open("/dev/kmsg", os.O_WRONLY)
    found: list[dict[str, Any]] = []
    for line in lines:
        began = time.monotonic()
        os.write(out, line.encode())
        read = [(time.monotonic() - began, record.decode()) for record in records(handle, 0.5)]
        found.append({"written": line, "read": [{"after_s": after, "record": record} for after, record in read]})
    os.close(out)
    os.close(handle)
    return {"lines": found}


def costs(nvml: Any, driver: str) -> dict[str, Any]:
    def each(call: Callable[[], object], times: int) -> tuple[float, float]:
        call()
        began, cpu = time.perf_counter(), time.process_time()
        for _ in range(times):
            call()
        return (time.perf_counter() - began) / times * 1e3, (time.process_time() - cpu) / times * 1e3

    recorder = Recorder(nvml)
    reading_of(recorder, 0, driver)
    slow = dict(sorted(recorder.took.items(), key=lambda pair: -pair[1])[:12])
    full, full_cpu = each(lambda: reading_of(nvml, 0, driver), 30)
    few, few_cpu = each(lambda: values_of(nvml, 0), 100)
    return {"read_ms": full, "read_cpu_ms": full_cpu, "metrics_ms": few, "metrics_cpu_ms": few_cpu, "slowest_ms": slow}


def memory(pid: int | str) -> int:
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(re.search(r"VmRSS:\s+(\d+) kB", text)[1])  # type: ignore[index]


def reset(out: Path) -> None:
    with contextlib.ExitStack() as stack:
        nvml = Nvml()
        nvml.read(60)
        text = "# while our own NVML child has it open\n" + run("nvidia-smi -r")
        with nvml.aside("a reset"):
            holder = stack.enter_context(
                subprocess.Popen([sys.executable, str(BAD), "hold"], stdout=subprocess.PIPE, text=True)
            )
            holder.stdout.readline()
            text += (
                "# while a process holds it\n"
                + run("nvidia-smi -r")
                + run("nvidia-smi --query-compute-apps=pid --format=csv")
            )
            holder.kill()
            holder.wait()
            handle = kmsg()
            began = time.monotonic()
            text += "# idle\n" + run("nvidia-smi -r", 120) + f"# {time.monotonic() - began:.1f} s\n"
            text += "# kernel log\n" + "".join(record.decode() for record in records(handle, 2))
        text += "# after it\n" + run("nvidia-smi -L") + f"{len(nvml.read(60))} GPUs read\n"
        nvml.close()
    (out / "nvidia-smi-r.txt").write_text(anonymous(text), encoding="utf-8")


def main() -> None:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)

    def keep(name: str, what: Any) -> None:
        text = what if isinstance(what, str) else json.dumps(what, indent=1) + "\n"
        (out / name).write_text(anonymous(text), encoding="utf-8")
        print("recorded", name, flush=True)

    pynvml: Any = importlib.import_module("pynvml")

    pynvml.nvmlInit()
    recorder = Recorder(pynvml)
    driver = recorder.nvmlSystemGetDriverVersion()
    for name, command in COMMANDS.items():
        keep(name, run(command))
        if name == "nvidia-smi-q.xml":  # at the same moment
            recorder.nvmlDeviceGetCount()
            keep("nvml-reading.json", msgspec.to_builtins([reading_of(recorder, 0, driver)]))
            values_of(recorder, 0)
            card = recorder.nvmlDeviceGetHandleByIndex(0)
            recorder.nvmlDeviceGetSupportedEventTypes(card)
            keep("nvml-calls.json", recorder.calls)
    keep("nvml-costs.json", costs(pynvml, driver))
    pynvml.nvmlShutdown()

    nvml = Nvml()
    began = time.monotonic()
    nvml.read(60)
    first = time.monotonic() - began
    began = time.monotonic()
    for _ in range(20):
        nvml.read()
    through = (time.monotonic() - began) / 20
    own = resource.getrusage(resource.RUSAGE_SELF)
    figures = SimpleNamespace(
        first_read_s=first, read_through_child_ms=through * 1e3, child_rss_kib=memory(nvml.pid or 0),
        parent_rss_kib=memory("self"), parent_most_kib=own.ru_maxrss,
    )  # fmt: skip
    keep("nvml-child.json", vars(figures))
    for kind in ("none", "misaligned", "illegal", "trap", "spin"):
        keep(f"xid-{kind}.json", bad(kind, nvml))
    nvml.close()
    keep("kmsg-written.json", written())
    if "--reset" in sys.argv:
        reset(out)


if __name__ == "__main__":
    main()
