"""Finding the faults in a large log: the scanner beside one regular expression per rule."""

import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bench.figure import Figure, Line, Size, percentile
from bench.rig import busy
from sickbay.agent.probes.log_file import CHUNK
from sickbay.signs import kernel_patterns as patterns
from sickbay.signs import nvidia
from sickbay.signs.kernel import parse_line
from sickbay.signs.prefixes import peel
from sickbay.signs.readers.input import BLOCK, whole_lines
from sickbay.signs.readers.stream import TextStream
from sickbay.signs.scanner import lines_of_interest

MB = 1e6
TIMES = 10.0  # the goal: so many times as fast
FAULTS = 1e-4  # of all lines
CHATTY = 5e-3  # after the boot; during it, one in six
BOOTING = 1 / 6
REPEATS = 5

# What a training node's log is made of when all is well. `%d`: a number, `%x`: a hexadecimal one.
HARMLESS = (
    "systemd[1]: Starting Daily apt download activities...",
    "systemd[1]: session-%d.scope: Deactivated successfully.",
    "systemd[1]: Started Session %d of User ubuntu.",
    "systemd-logind[%d]: New session %d of user ubuntu.",
    "systemd-networkd[%d]: eth0: DHCPv4 address 10.%d.%d.%d/20 via 10.1.0.1",
    "sshd[%d]: Accepted publickey for ubuntu from 10.%d.%d.%d port %d ssh2: ED25519 SHA256:%x",
    "sshd[%d]: pam_unix(sshd:session): session opened for user ubuntu(uid=1000) by (uid=0)",
    "sshd[%d]: Received disconnect from 10.%d.%d.%d port %d:11: disconnected by user",
    "CRON[%d]: (root) CMD (   cd / && run-parts --report /etc/cron.hourly)",
    "CRON[%d]: pam_unix(cron:session): session closed for user root",
    "dbus-daemon[%d]: [system] Successfully activated service 'org.freedesktop.timedate1'",
    "chronyd[%d]: Selected source 169.254.169.123",
    "dhclient[%d]: DHCPREQUEST for 10.%d.%d.%d on eth0 to 10.1.0.1 port 67 (xid=0x%x)",
    'containerd[%d]: time="2025-03-04T11:22:%d" level=info msg="StopPodSandbox for \\"%x\\" returns successfully"',
    'containerd[%d]: time="2025-03-04T11:22:%d" level=info msg="PullImage \\"registry.example/train:%d\\""',
    'dockerd[%d]: time="2025-03-04T11:22:%d" level=info msg="ignoring event" container=%x module=libcontainerd',
    'kubelet[%d]: I0304 11:22:%d.%d    1234 kubelet.go:2337] "SyncLoop ADD" source="api" pods=["jobs/train-%d"]',
    'kubelet[%d]: I0304 11:22:%d.%d    1234 scope.go:117] "RemoveContainer" containerID="%x"',
    'kubelet[%d]: E0304 11:22:%d.%d    1234 pod_workers.go:1298] "Error syncing pod, skipping" err="back-off 5m0s"',
    "slurmd[%d]: launch task StepId=%d.0 request from UID:1000 GID:1000 HOST:10.%d.%d.%d PORT:%d",
    "slurmd[%d]: task/affinity: task_p_slurmd_launch_request: task binding: verbose,none: auto binding off",
    "slurmstepd[%d]: done with step",
    "audit[%d]: SYSCALL arch=c000003e syscall=59 success=yes exit=0 a0=%x a1=%x items=2 ppid=%d pid=%d auid=1000",
    'rsyslogd[%d]: [origin software="rsyslogd" swVersion="8.2112.0" x-pid="%d"] rsyslogd was HUPed',
    "amazon-ssm-agent[%d]: 2025-03-04 11:22:%d INFO [HealthCheck] HealthCheck reporting agent health.",
    "nvidia-persistenced[%d]: device 0000:%x:00.0 - persistence mode enabled.",
    "nv-fabricmanager[%d]: Fabric Manager is running, all is configured",
    "python[%d]: step %d loss 2.%d lr 3.%de-05 tokens/s %d grad_norm 0.%d",
    "python[%d]: node-0:%d:%d [%d] NCCL INFO Channel %d/0 : %d[%d] -> %d[%d] via P2P/CUMEM/read",
    "python[%d]: WARNING:root:the checkpoint of step %d took %d ms, which is more than usual",
    "kernel: [%d.%d] eth0: renamed from veth%x",
    "kernel: [%d.%d] cni0: port %d(veth%x) entered forwarding state",
    "kernel: [%d.%d] IPv6: ADDRCONF(NETDEV_CHANGE): veth%x: link becomes ready",
    "kernel: [%d.%d] device veth%x left promiscuous mode",
    'kernel: [%d.%d] audit: type=1400 audit(%d.%d:%d): apparmor="STATUS" operation="profile_load" name="x" pid=%d',
    "kernel: [%d.%d] perf: interrupt took too long (%d > %d), lowering kernel.perf_event_max_sample_rate to %d",
    "kernel: [%d.%d] usb 1-%d: new high-speed USB device number %d using xhci_hcd",
    "kernel: [%d.%d] TCP: request_sock_TCP: Possible SYN flooding on port %d. Sending cookies.",
    "kernel: [%d.%d] python[%d]: unhandled signal %d at %x nip %x lr %x code 30001",
)  # fmt: skip
# Harmless too, but in the words that faults are told in: nothing but reading them through tells.
CHATTER = (
    "python[%d]: node-0:%d:%d [%d] NCCL INFO NET/OFI Selected Provider is efa (found %d nics)",
    "kernel: [%d.%d] EXT4-fs (nvme%dn1p1): mounted filesystem with ordered data mode. Quota mode: none.",
    "kernel: [%d.%d] nvme nvme%d: %d/0/0 default/read/poll queues",
    "kernel: [%d.%d] mlx5_core 0000:%x:00.0: firmware version: 28.39.%d",
    "kernel: [%d.%d] nvidia-nvlink: Nvlink Core is being initialized, major device number %d",
    "kernel: [%d.%d] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.%d.%d",
    "kernel: [%d.%d] Lustre: Mounted fsx-client",
)  # fmt: skip
FAULTY = (
    "kernel: [%d.%d] NVRM: Xid (PCI:0000:%x:00): 79, pid=%d, name=python, GPU has fallen off the bus.",
    "kernel: [%d.%d] NVRM: Xid (PCI:0000:%x:00): 48, pid=%d, name=python, An uncorrectable double bit error (DBE)",
    "kernel: [%d.%d] nvidia-nvswitch3: SXid (PCI:0000:%x:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
    "kernel: [%d.%d] Out of memory: Killed process %d (python) total-vm:%dkB, anon-rss:%dkB, file-rss:0kB",
    "kernel: [%d.%d] INFO: task kworker/u%d:1:%d blocked for more than 120 seconds.",
    "kernel: [%d.%d] EXT4-fs error (device nvme1n1): ext4_find_entry:1455: inode #2: comm python: bad entry",
    "kernel: [%d.%d] watchdog: BUG: soft lockup - CPU#%d stuck for 23s! [python:%d]",
    "kernel: [%d.%d] Buffer I/O error on dev nvme1n1, logical block %d, async page read",
)  # fmt: skip
_PLACE = re.compile("%[dx]")


def log(size: int, chatty: float = CHATTY, seed: int = 5) -> bytes:
    """About so many bytes, the same each time."""
    chance = random.Random(seed)
    out: list[str] = []
    written = 0
    while written < size:
        drawn = chance.random()
        some = FAULTY if drawn < FAULTS or not out else CHATTER if drawn < FAULTS + chatty else HARMLESS
        said = _PLACE.sub(lambda place: _number(place[0], chance), chance.choice(some))
        line = f"Mar  4 11:{len(out) % 60:02d}:{chance.randrange(60):02d} node-0 {said}\n"
        out.append(line)
        written += len(line)
    return "".join(out).encode()


def _number(mark: str, chance: random.Random) -> str:
    return f"{chance.randrange(16, 256):02x}" if mark == "%x" else str(chance.randrange(60))


def scanned(text: bytes) -> list[int]:
    """As the agent reads a file: a chunk at a time, and only lines with an anchor are parsed."""
    found: list[int] = []
    for begin, chunk in _chunks(text):
        for start, stop in lines_of_interest(chunk):
            if parse_line(chunk[start:stop].decode(errors="replace")) is not None:
                found.append(begin + start)
    return found


def _chunks(text: bytes) -> Iterator[tuple[int, bytes]]:
    begin = 0
    while begin < len(text):
        end = text.rfind(b"\n", begin, begin + CHUNK) + 1 or len(text)
        yield begin, text[begin:end]
        begin = end


def one_by_one(text: bytes) -> list[int]:
    """Every line without its prefix to every rule, until one fits its beginning."""
    rows = [(row, re.compile(row.pattern, re.ASCII)) for row in patterns.SHIPPED.rows]
    found: list[int] = []
    for start, line in _lines(text):
        peeled = peel(line)
        body, speaker = peeled.body.strip(), peeled.speaker.partition("[")[0]
        if peeled.by_kernel and nvidia.match(body) is not None:
            found.append(start)
            continue
        for row, pattern in rows:
            if pattern.match(body) and row.hears(speaker) and not (row.unless and row.unless in body):
                if row.code != patterns.NOTHING:
                    found.append(start)
                break
    return found


def searched(text: bytes) -> list[int]:
    """Every line as it is to every rule, wherever in the line it fits: what monitors with a list of rules do."""
    rules = [re.compile(row.pattern, re.ASCII) for row in patterns.SHIPPED.rows if row.code != patterns.NOTHING]
    rules += [pattern for _, pattern in nvidia.wordings()]
    rules += [re.compile(r"NVRM: Xid \([^)]+\): \d+"), re.compile(r"SXid \([^)]+\): \d+")]
    return [start for start, line in _lines(text) if any(rule.search(line) for rule in rules)]


def _lines(text: bytes) -> Iterator[tuple[int, str]]:
    start = 0
    for line in text.split(b"\n")[:-1]:
        yield start, line.decode(errors="replace")
        start += len(line) + 1


def streamed(text: bytes) -> list[int]:
    """The whole of `sickbay diagnose`, its output left out: the numbers of lines that mean something."""
    blocks = (text[at : at + BLOCK] for at in range(0, len(text), BLOCK))
    return [sign.line for sign in TextStream().read(whole_lines(blocks)) if sign.kind != "boot"]


@dataclass(frozen=True, slots=True)
class Took:
    seconds: float
    found: Sequence[int]

    def rate(self, text: bytes) -> float:
        return len(text) / MB / self.seconds


def timed(way: Callable[[bytes], Sequence[int]], text: bytes, repeats: int = 1) -> Took:
    """The median of so many runs; whatever is loaded on first use has been."""
    way(text[: text.index(b"\n") + 1])
    seconds: list[float] = []
    found: Sequence[int] = ()
    for _ in range(repeats):
        begun = time.process_time()
        found = way(text)
        seconds.append(time.process_time() - begun)
    return Took(percentile(seconds, 0.5), found)


@dataclass(frozen=True, slots=True)
class Beside:
    """One text in four ways."""

    text: bytes
    ours: Took
    stream: Took
    rules: Took
    loose: Took

    @property
    def plain(self) -> float:
        return min(self.rules.seconds, self.loose.seconds)


def beside(text: bytes) -> Beside:
    """Raises RuntimeError where the ways do not find the same."""
    found = Beside(
        text, timed(scanned, text, REPEATS), timed(streamed, text, REPEATS), timed(one_by_one, text),
        timed(searched, text),
    )  # fmt: skip
    ours, rules = set(found.ours.found), set(found.rules.found)
    if ours != rules or not ours <= set(found.loose.found):
        raise RuntimeError(f"the ways differ, first in the lines at {sorted(ours ^ rules)[:5]}")
    numbers = {start: number for number, (start, _) in enumerate(_lines(text), 1)}
    if missed := {numbers[start] for start in ours} - set(found.stream.found):
        raise RuntimeError(f"diagnose does not name what the agent names: lines {sorted(missed)[:5]}")
    return found


def run(size: Size) -> Figure:
    then = busy()
    usual = beside(log(size.pick(full=4 * MB, quick=2 * MB, tiny=2e4)))
    boot = beside(log(size.pick(full=MB, quick=MB / 2, tiny=2e4), BOOTING))
    ratio, whole = usual.plain / usual.ours.seconds, usual.plain / usual.stream.seconds
    return Figure(
        title="Faults in a large log: the scanner beside one regex per rule",
        about=(
            f"A system log of {len(usual.text) / MB:.1f} MB: {len(HARMLESS)} kinds of lines of a healthy node with"
            f" numbers that change; one line in {1 / CHATTY:,.0f} is a driver's that means nothing, and"
            f" {len(usual.ours.found)} lines are faults. The scanner with the kernel's reader, as the agent reads a"
            " file, beside two plain ways on the same bytes in the same run: each line without its prefix to each rule"
            " from its beginning, and each line as it is to each rule wherever it may fit."
            f" {len(patterns.SHIPPED.rows)} rules and those of the driver. All of it on one core."
        ),
        lines=(
            Line("the scanner and the kernel's reader", f"{usual.ours.rate(usual.text):,.0f} MB/s"),
            Line("each line to each rule, from its beginning", f"{usual.rules.rate(usual.text):,.2f} MB/s"),
            Line("each line to each rule, anywhere", f"{usual.loose.rate(usual.text):,.2f} MB/s"),
            Line("the scanner ÷ the quicker of these", f"{ratio:,.0f}", f"≥ {TIMES:.0f}", met=ratio >= TIMES),
            Line("where one line in six is a driver's", f"{boot.plain / boot.ours.seconds:,.0f}"),
            Line("the whole stream of `sickbay diagnose`", f"{usual.stream.rate(usual.text):,.1f} MB/s"),
            Line("the whole stream ÷ the quicker of these", f"{whole:,.1f}"),
        ),
        notes=(
            then,
            (
                "That the scanner and each rule from its beginning name the same lines, and diagnose all of them, is"
                " part of the run. A generated log repeats itself more than a real one: the stream, which remembers"
                " lines that differ in digits only, gains from that, the scanner does not."
            ),
        ),
    )
