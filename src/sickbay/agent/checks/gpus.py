"""The GPUs of this machine: which there are, who uses them, and our own exercises on each."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sickbay.agent.checks import CouldNotRun, Exercise, Result
from sickbay.agent.checks.apart import ExerciseOutcome, apart, judged, outcome, start, together
from sickbay.agent.checks.nccl_tests import all_reduce_perf
from sickbay.agent.nvml.pci import nvidia_gpus
from sickbay.agent.nvml.watched import CannotRead, Nvml, NvmlHung
from sickbay.knowledge.load import load_tables
from sickbay.knowledge.skus import link_floor, sku_of
from sickbay.model.checkup import Verdict
from sickbay.model.fault import Severity
from sickbay.model.gpu import GpuReading
from sickbay.signs.gpu_state import signs_among
from sickbay.wire.commands import Child, finish_all

GIB = 1 << 30
UNSEEN = 2 * GIB  # memory in use that no process accounts for: somebody outside this container has the GPU
SAMPLE_EVERY = 1.0
BRAKES = frozenset({"hw_slowdown", "hw_thermal_slowdown", "hw_power_brake", "sw_thermal_slowdown"})
BRAKED = 0.1  # share of the samples under load
FULL_NODE = 8  # the expected bus bandwidth is that of eight GPUs
KEPT = 0.8  # the rate at the end over the rate at the beginning
HOST = ("h2d_gbps", "d2h_gbps")

EXTREMES: tuple[tuple[str, str, Callable[[list[float]], float]], ...] = (
    ("temperature_max", "temperature", max), ("temperature_memory_max", "temperature_memory", max),
    ("power_max", "power", max), ("sm_clock_min", "sm_clock", min),
)  # fmt: skip

Look = Callable[[float], list[GpuReading]]  # within so many seconds


@contextmanager
def looking() -> Iterator[Look]:
    nvml = Nvml()
    try:
        yield nvml.read
    finally:
        nvml.close()


def gpus_here(sysfs: Path = Path("/sys"), dev: Path = Path("/dev")) -> int:
    """As bus and device files have it, whether or not the driver answers."""
    files = [path for path in dev.glob("nvidia[0-9]*") if path.name[6:].isdigit()]
    return max(len(nvidia_gpus(sysfs)), len(files))


@dataclass(frozen=True, slots=True)
class Bench:
    """Our exercises. `expected`: how many GPUs there must be; None: as many as the bus shows."""

    expected: int | None = None
    reader: Callable[[], Any] = looking
    here: Callable[[], int] = gpus_here

    def look(self, until: float) -> list[GpuReading]:
        with self.reader() as read:
            return self._read(read, until)

    @staticmethod
    def _read(read: Look, until: float) -> list[GpuReading]:
        try:
            return read(max(0.1, until - time.monotonic()))
        except CannotRead as error:
            raise CouldNotRun(f"the GPUs cannot be read: {error}") from error

    # --- without work
    def inventory(self, until: float) -> Result:
        """As many as there should be, and each answers."""
        wanted = self.expected if self.expected is not None else self.here()
        try:
            with self.reader() as read:
                found = read(max(0.1, until - time.monotonic()))
        except NvmlHung as error:
            return Result(f"the driver does not answer: {error}")
        except CannotRead as error:
            raise CouldNotRun(f"the GPUs cannot be read: {error}") from error
        lost = [f"{_name(one)}: {one.lost}" for one in found if one.lost]
        figures = {"gpus": float(len(found) - len(lost)), "expected": float(wanted)}
        if len(found) < wanted:
            lost.insert(0, f"{len(found)} of {wanted} GPUs are there")
        return Result("; ".join(lost), figures)

    def health(self, until: float) -> Result:
        """What the driver itself knows: errors in memory, rows, links, heat, wishes."""
        found = self.look(until)
        if not found:
            raise CouldNotRun("the driver lists no GPU")
        figures = {
            f"gpu.{one.index}.{name}": float(value)
            for one in found
            for name in ("temperature", "power", "uncorrected", "corrected")
            if (value := getattr(one, name)) is not None
        }
        return Result("; ".join(_serious(found)), figures)

    # --- with work
    def each(self, job: str, wishes: Mapping[str, Any], until: float, *, at_once: bool = True) -> Result:
        """The job on every GPU that is free; those that are not could not be tested."""
        found = self.look(until)
        names, outcomes = self._on(found, job, wishes, until, at_once=at_once)
        return together(names, [self._judge(one, got) for one, got in zip(found, outcomes, strict=True)])

    def _on(
        self, found: Sequence[GpuReading], job: str, wishes: Mapping[str, Any], until: float, *, at_once: bool
    ) -> tuple[list[str], list[ExerciseOutcome]]:
        if not found:
            raise CouldNotRun("the driver lists no GPU")
        blocked = [what_keeps_from(one) for one in found]
        free = [one for one, why in zip(found, blocked, strict=True) if not why]
        jobs = [(job, {**wishes, "pci": one.pci}) for one in free]
        got = iter(apart(jobs, until) if at_once else [apart([one], until)[0] for one in jobs])
        outcomes = [ExerciseOutcome(Verdict.COULD_NOT_RUN, why) if why else next(got) for why in blocked]
        return [_name(one) for one in found], outcomes

    @staticmethod
    def _judge(one: GpuReading, got: ExerciseOutcome) -> ExerciseOutcome:
        """Against what its kind measures, else against its PCIe link."""
        if got.verdict != Verdict.PASS:
            return got
        sku = sku_of(one.name)
        link = link_floor(one.pcie_generation_max, one.pcie_width_max)
        low = []
        for figure, value in got.figures.items():
            least = sku.least(figure) if sku is not None else None
            kind = f"{one.name} in skus.csv"
            if least is None and figure in HOST:
                least, kind = link, f"PCIe gen {one.pcie_generation_max} x{one.pcie_width_max}"
            if least is not None and value < least:
                low.append(f"{figure} {value:.1f}, at least {least:.1f} expected ({kind})")
        return ExerciseOutcome(Verdict.FAIL, "; ".join(low), got.figures) if low else got

    def links(self, until: float) -> Result:
        """NVLinks are up, and what goes from each GPU to the others arrives whole and fast enough."""
        found = self.look(until)
        down = _serious(found, "nvlink.")
        up = {one.index: sum(link.up is True for link in one.links or ()) for one in found}
        figures = {f"gpu.{index}.links_up": float(count) for index, count in up.items()}
        if down:
            return Result("; ".join(down), figures)
        if len(found) < 2:
            raise CouldNotRun("a link needs two GPUs", figures)
        names, outcomes = [], []
        for one in found:
            others = [(peer.index, peer.pci) for peer in found if peer is not one and not what_keeps_from(peer)]
            (name,), (got,) = self._on([one], "gpu.peers", {"peers": others}, until, at_once=True)
            sku = sku_of(one.name)
            least = sku.least("p2p_gbps") if sku is not None and up[one.index] else None
            slow = [
                f"{figure} {value:.1f}, at least {least:.1f} expected"
                for figure, value in got.figures.items()
                if least is not None and figure.endswith("p2p_gbps") and value < least
            ]
            names.append(name)
            outcomes.append(
                ExerciseOutcome(Verdict.FAIL, "; ".join(slow), got.figures)
                if slow and got.verdict == Verdict.PASS
                else got
            )
        result = together(names, outcomes)
        return Result(result.because, {**figures, **result.figures})

    def sustained(self, seconds: float, until: float) -> Result:
        """Full load for a while: the rate stays, the bits stay, and no brake is pulled."""
        with self.reader() as read:
            found = self._read(read, until)
            if not found:
                raise CouldNotRun("the driver lists no GPU")
            blocked = [what_keeps_from(one) for one in found]
            free = [one for one, why in zip(found, blocked, strict=True) if not why]
            children: list[Child] = []
            samples: list[list[GpuReading]] = []
            began = time.monotonic()
            try:
                children.extend(start("gpu.sustained", {"pci": one.pci, "seconds": seconds}) for one in free)
                while time.monotonic() < until and not all(child.ended() for child in children):
                    samples.append(self._read(read, until))
                    time.sleep(SAMPLE_EVERY)
            except BaseException:
                finish_all(children, 0.0)
                raise
            got = iter([outcome(ended, until - began) for ended in finish_all(children, until)])
        outcomes = []
        for one, why in zip(found, blocked, strict=True):
            if why:
                outcomes.append(ExerciseOutcome(Verdict.COULD_NOT_RUN, why))
                continue
            mine = [each for look in samples for each in look if each.pci == one.pci and (each.utilization or 0) > 50]
            outcomes.append(under_load(self._judge(one, next(got)), mine))
        return together([_name(one) for one in found], outcomes)

    def nccl(self, until: float) -> Result:
        """An all-reduce over all GPUs at once."""
        found = self.look(until)
        for one in found:
            if why := what_keeps_from(one):
                raise CouldNotRun(f"{_name(one)} {why}")
        if not found:
            raise CouldNotRun("the driver lists no GPU")
        got = apart([("gpu.nccl", {"gpus": [one.pci for one in found]})], until)[0]
        if got.verdict == Verdict.COULD_NOT_RUN and time.monotonic() < until:
            got = all_reduce_perf(len(found), until) or got
        if got.verdict == Verdict.PASS and len(found) >= FULL_NODE and (sku := sku_of(found[0].name)) is not None:
            least = sku.least("busbw_gbps")
            if least is not None and got.figures["busbw_gbps"] < least:
                slow = f"bus bandwidth {got.figures['busbw_gbps']:.1f} GB/s, at least {least:.1f} expected"
                got = ExerciseOutcome(Verdict.FAIL, slow, got.figures)
        return judged(got)


def under_load(got: ExerciseOutcome, samples: Sequence[GpuReading]) -> ExerciseOutcome:
    """How the GPU behaved while it worked: brakes, heat, and whether the rate held."""
    figures = dict(got.figures)
    for name, field, best in EXTREMES:
        values = [value for one in samples if (value := getattr(one, field)) is not None]
        if values:
            figures[name] = float(best(values))
    if got.verdict != Verdict.PASS:
        return ExerciseOutcome(got.verdict, got.because, figures)
    if not samples:
        return ExerciseOutcome(Verdict.COULD_NOT_RUN, "nobody could see how it behaved under load", figures)
    bad = []
    pulled = [sorted(BRAKES & set(one.slowed_by or ())) for one in samples]
    braked = sum(bool(one) for one in pulled)
    figures["braked_share"] = braked / len(samples)
    if braked >= 2 and braked > BRAKED * len(samples):
        names = ", ".join(sorted({name for one in pulled for name in one}))
        bad.append(f"slowed down under load by {names} in {braked} of {len(samples)} looks")
    if (kept := figures.get("kept_share", 1.0)) < KEPT:
        bad.append(f"under load its rate fell to {kept:.0%} of what it began with")
    return ExerciseOutcome(Verdict.FAIL if bad else Verdict.PASS, "; ".join(bad), figures)


def _serious(found: Sequence[GpuReading], begins: str = "") -> list[str]:
    """Signs that ask for a repair. What is only worth knowing is the probes' to tell, and fails no check."""
    faults = load_tables().faults
    told = []
    for sign in signs_among(found):
        row = faults.get(sign.kind)
        if sign.kind.startswith(begins) and row is not None and row.severity in {Severity.ERROR, Severity.FATAL}:
            where = f"GPU {sign.fields['device']}: " if "device" in sign.fields else ""
            told.append(f"{where}{sign.kind}, {sign.text}")
    return told


def _name(one: GpuReading) -> str:
    return f"GPU {one.index}"


def what_keeps_from(one: GpuReading) -> str:
    """Why it cannot be exercised now, if it cannot."""
    if one.lost:
        return f"nothing can be read from it: {one.lost}"
    if one.mig:
        return "MIG is on: switch it off (nvidia-smi -mig 0) to test the whole GPU"
    users = [held for held in one.processes or () if held.pid != os.getpid()]
    if users:
        who = ", ".join(f"pid {held.pid} ({_program(held.pid, held.name)})" for held in users[:3])
        more = f" and {len(users) - 3} more" if len(users) > 3 else ""
        return f"is used by {who}{more}: stop it first"
    if (one.memory_used or 0) > UNSEEN:
        return f"{(one.memory_used or 0) / GIB:.1f} GiB of it are in use by somebody who cannot be seen from here"
    return ""


def _program(pid: int, name: str) -> str:
    if name:
        return Path(name.split(maxsplit=1)[0]).name or name
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return "not to be seen from here"


def gpu_tests(bench: Bench, count: int) -> list[Exercise]:
    def on(job: str, *, at_once: bool = True, **wishes: Any) -> Callable[[float], Result]:
        return lambda until: bench.each(job, wishes, until, at_once=at_once)

    def load(seconds: float) -> Callable[[float], Result]:
        return lambda until: bench.sustained(seconds, until)

    compute, memory = ("compute",), ("memory",)
    return [
        Exercise("gpu_inventory", 1, bench.inventory, 60.0),
        Exercise("gpu_health", 1, bench.health, 60.0),
        Exercise("gpu_kernel", 1, on("gpu.kernel"), 60.0, compute),
        Exercise("gpu_memory_quick", 1, on("gpu.memory_some", gib=4), 60.0, memory),
        Exercise("gpu_matrix", 2, on("gpu.matrix", seconds=10.0), 90.0, compute),
        Exercise("gpu_memory", 2, on("gpu.memory", share=0.6), 120.0, memory),
        # One after the other: GPUs behind one switch share its way to the host.
        Exercise("gpu_bandwidth", 2, on("gpu.bandwidth", at_once=False), 180.0, ("pcie", "memory")),
        *([Exercise("gpu_nvlink", 2, bench.links, 180.0, ("nvlink",))] if count > 1 else ()),
        Exercise("gpu_memory_all", 3, on("gpu.memory", share=0.97, seconds=20.0), 300.0, memory, ("gpu_memory",)),
        Exercise("gpu_load", 3, load(60.0), 180.0, ("thermal", "compute")),
        Exercise("gpu_nccl", 3, bench.nccl, 180.0, ("nvlink",)),
        Exercise("gpu_memory_long", 4, on("gpu.memory", share=0.97, seconds=300.0), 900.0, memory, ("gpu_memory_all",)),
        Exercise("gpu_matrix_long", 4, on("gpu.matrix", seconds=120.0), 300.0, compute, ("gpu_matrix",)),
        Exercise("gpu_burn", 4, load(600.0), 900.0, ("thermal", "compute"), ("gpu_load",)),
    ]
