"""Who speaks is known, or it is no fault: forged lines by every way that a machine has, and what becomes of them."""

import importlib
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.agent_rig import XID_63, XID_79
from tests.unit.test_agent_kmsg import Ring

from sickbay.agent.outbox import say
from sickbay.agent.probes.dedup import Deduplicator
from sickbay.agent.probes.hearsay import AGAIN, MOST, REMEMBERED, WAIT
from sickbay.agent.probes.journal import decoded
from sickbay.agent.probes.kernel_log import KernelLog, LogPlace, heard_name
from sickbay.agent.probes.kmsg import Kmsg, KmsgPlace
from sickbay.agent.probes.system_log import LineTrust, SystemLog, is_one_of
from sickbay.knowledge.load import load_tables
from sickbay.model.facts import Observed
from sickbay.model.fault import Remedy
from sickbay.model.fleet import NodeId
from sickbay.model.protocol import Item
from sickbay.signs.classify import classify
from sickbay.signs.kernel import heard, parse_line
from sickbay.signs.kernel_patterns import SHIPPED
from sickbay.signs.nvidia import wordings
from sickbay.signs.prefixes import peel

NODE = NodeId("c/n1")
NOW = 100_000.0
HOST = "gpu-7"
KERNEL = Path(__file__).parents[1] / "fixtures" / "kernel"
SEGFAULT = "segfault at 0 ip 000055d0c0de1139 sp 00007ffd1a2b3c40 error 6 in {}[1139,55d0c0de1000+1000] likely on CPU 1"


def stamp(ago: float = 0.0) -> str:
    return time.strftime("%b %e %H:%M:%S", time.localtime(time.time() - ago))


def news_of(items: Sequence[Item], kind: str = "xid") -> list[Observed]:
    return [item.news for item in items if isinstance(item.news, Observed) and item.news.kind == kind]


def faults(items: Sequence[Item]) -> list[str]:
    """What would be acted upon."""
    tables = load_tables()
    told = [item.news for item in items if isinstance(item.news, Observed) and not item.news.unconfirmed]
    found = [fault for news in told if (fault := classify(news, tables)) is not None]
    return [fault.code for fault in found if fault.remedy not in {Remedy.NONE, Remedy.WATCH}]


class Seen:
    """A ring and a text log, as an agent reads them."""

    def __init__(self, root: Path, reading: LineTrust | None = None) -> None:
        self.path = root / "messages"
        self.path.touch()
        (root / "kmsg").touch()
        self.ring = Ring()
        self.sums = Deduplicator()
        self.began = time.monotonic()
        reading = reading or LineTrust(hosts=(HOST,))
        text = SystemLog(self.path, LogPlace(boot_id="b"), reading, began=NOW - 86_400.0)
        ring = Kmsg(NODE, KmsgPlace(boot_id="b"), root / "kmsg", self.ring.read)
        self.log = KernelLog([ring, text], NODE, lambda _: None, self.sums)

    def writes(self, *lines: str) -> None:
        with self.path.open("a") as file:
            file.writelines(f"{line}\n" for line in lines)

    def look(self, after: float = 0.0) -> list[Item]:
        return list(self.log.look(NOW + after))


@pytest.fixture
def seen(tmp_path: Path) -> Seen:
    return Seen(tmp_path)


# --- what the kernel itself prints, of which a user has chosen a part: records of its own facility, from /dev/kmsg

ESCAPED = XID_79.replace("'", "")
CHOSEN_PARTS = [
    # A control group's name may have a carriage return, and each memory limit that is met prints it.
    rf"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),oom_memcg=/user.slice/x\x0d{ESCAPED},task=a.out,pid=42,uid=1000",
    rf"Tasks in /user.slice/x\x0a{ESCAPED} are going to be killed due to memory.oom.group set",
    # A program's file may have any name, and its crash prints that: `dmesg` and /proc/kmsg make two lines of this.
    "a.out[42]: " + SEGFAULT.format(rf"x\x0a{ESCAPED}"),
    "a.out[42]: " + SEGFAULT.format(rf"x\x0d{ESCAPED}"),
    rf"traps: a.out[42] trap divide error ip:55d0 sp:7ffd error:0 in x\x0a{ESCAPED}[1139,55d0c0de1000+1000]",
    # A process chooses its name, 15 bytes, and some messages begin with it.
    f"NVRM: Xid (PCI:[42]: {SEGFAULT.format('a.out')}",
    f"kernel[42]: {SEGFAULT.format(ESCAPED)}",
    f"> kernel[42]: {SEGFAULT.format(ESCAPED)}",
    f"BUG: KASAN: x[42]: {SEGFAULT.format('a.out')}",
    f"BUG: KFENCE: [42]: {SEGFAULT.format('a.out')}",
    f"BUG: KCSAN: [42]: {SEGFAULT.format('a.out')}",
    f"Oops: Bad[42]: {SEGFAULT.format('a.out')}",
    rf"Oops: 0\x0a\x0a[42]: {SEGFAULT.format('a.out')}",
    "Oops: 0000[42]: unhandled exception: DABT (lower EL), ESR 0x92000004, level 0 translation fault in a.out",
    f"NEURON_HW_ERR=x[42]: {SEGFAULT.format('a.out')}",
    f"LustreError: x[42]: {SEGFAULT.format('LBUG ')}",
    f"EDAC DEVICE0: [42]: {SEGFAULT.format(' UE ')}",
    "Oops: Bad invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
    "BUG: KASAN: x: page allocation failure: order:0, mode:0x40cc0(GFP_KERNEL|__GFP_COMP), nodemask=(null)",
    "Oops: Bad/42: potentially unexpected fatal signal 11.",
    "Oops: Bad (42): drop_caches: 3",
    "Oops: Bad(42): dirtied inode 7 (a.out) on sda1",
    "Oops: Bad[42] attempts to use CLI/STI, pretending it's a NOP, ip:401126 in a.out[1139,400000+1000]",
    "x 0000:3b:00.0: page allocation failure: order:0, mode:0x40cc0",
    "BUG: KASAN: x uses obsolete (PF_INET,SOCK_PACKET)",  # any user's socket()
    "BUG: KCSAN: x sent an empty control message without MSG_MORE.",  # and AF_ALG
    "Oops: Bad: potentially unexpected fatal signal 11.",
    # Words of devices and file systems that a user plugs in, mounts or names.
    f"usb 1-1: Product: {ESCAPED}",
    f"usb 1-1: SerialNumber: Kernel panic - not syncing: {ESCAPED}",
    f"input: {ESCAPED} as /devices/pci0000:00/0000:00:14.0/usb1/1-1/1-1:1.0/0003:1234:5678.0001/input/input9",
    "scsi 6:0:0:0: Direct-Access     Sense Key : Medium Error     1.00 PQ: 0 ANSI: 6",
    "BTRFS: device label NVRM: Xid devid 1 transid 7 /dev/loop0 scanned by mount (42)",
    f"[U] {ESCAPED}",  # /dev/ttyprintk
    # Without an auditd the kernel prints what programs have audited.
    f"audit: type=1112 audit(1763280000.1:9): pid=42 uid=1000 msg='op=login acct=\"{ESCAPED}\" exe=\"/usr/bin/x\"'",
    f'audit: type=1326 audit(1763280000.1:9): auid=1000 comm="NVRM: Xid (PCI:" exe="/x/{ESCAPED}" sig=31',
    f'audit: type=1400 audit(1763280000.1:9): apparmor="DENIED" operation="open" name="/tmp/{ESCAPED}"',
    # A message's own word for a process in the middle of it.
    "INFO: task NVRM: Xid (PCI::42 blocked for more than 122 seconds.",
    f"process '/tmp/{ESCAPED}' started with executable stack",
    "Memory cgroup out of memory: Killed process 42 (NVRM: Xid (PCI:) total-vm:1kB, anon-rss:1kB",
    "veth0: renamed from NVRM",
    "LustreError: 11-0: train-OST0000-osc: operation ost_setattr of /home/alice/ LBUG failed: rc = -107",
]  # fmt: skip


@pytest.mark.parametrize("text", CHOSEN_PARTS)
def test_what_a_user_makes_the_kernel_itself_print_is_no_fault(seen: Seen, text: str) -> None:
    seen.ring.say(text, prefix="6")
    items = [*seen.look(), *seen.log.rest(NOW)]
    assert not faults(items)
    assert not news_of(items)


@pytest.mark.parametrize("text", CHOSEN_PARTS)
def test_and_none_as_journald_keeps_it(text: str) -> None:
    plain = text.replace(r"\x0a", "\n").replace(r"\x0d", "\r")
    sign, _ = heard(plain, bare=True)
    news = Observed(node=NODE, kind=sign.kind if sign else "", fields=sign.fields if sign else {})
    assert not faults([say(news, 0.0)])
    assert news.kind != "xid"


TAILS = (
    f"[42]: {SEGFAULT.format('LBUG UE :1 due to hardware memory corruption')}",
    "[42]: unhandled exception: DABT (lower EL), ESR 0x92000004",
    " invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0",
    ": page allocation failure: order:0, mode:0x40cc0(GFP_KERNEL)",
    "/42: potentially unexpected fatal signal 11.",
    ": potentially unexpected fatal signal 11.",
    " uses obsolete (PF_INET,SOCK_PACKET)",
    " sent an empty control message without MSG_MORE.",
)
BEGINNINGS = sorted({row.pattern for row in SHIPPED.rows if row.hears("kernel")})


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.sampled_from(BEGINNINGS).flatmap(lambda p: st.from_regex(p, fullmatch=False)), st.sampled_from(TAILS))
def test_no_name_that_a_process_could_choose_is_read_as_hardware(words: str, tail: str) -> None:
    name = words.encode(errors="replace")[:15].decode(errors="ignore").strip()
    sign, _ = heard(name + tail, bare=True)
    plain, _ = heard("a" + tail, bare=True)
    assert (sign.kind if sign else "") == (plain.kind if plain else "")


def test_no_act_follows_from_so_few_characters_as_a_process_has_for_its_name() -> None:
    """The kernel and its modules have more messages that begin with a name than anybody can list."""
    tables, tail = load_tables(), " does what nobody has listed"
    for row in SHIPPED.rows:
        fault = tables.faults.get(row.code)
        if fault is None or not row.hears("kernel") or fault.remedy in {Remedy.NONE, Remedy.WATCH}:
            continue
        for name in NAMES:
            sign, _ = heard(name + tail, bare=True)
            assert sign is None, (name, sign)
        assert _shortest(row.pattern) > 15, row.pattern
    assert all(_shortest(wording.pattern) > 15 for _, wording in wordings())


NAMES = (
    "BUG: KASAN: x", "BUG: KFENCE: x", "BUG: KCSAN: x", "Oops: Bad", "Oops: 0000", "Oops: kernel x", "EDAC MC0: 9 UE",
    "EDAC MC0: UE x", "EDAC MC0: UE -", "EDAC MC0: UE row", "NEURON_HW_ERR=x", "NVRM: GPU lost", "NVRM:GPU lost",
)  # fmt: skip


def _shortest(pattern: str) -> int:
    """How few characters fit; what only looks ahead does not count."""
    shortest: int = importlib.import_module("re._parser").parse(pattern).getwidth()[0]
    return shortest + (6 if pattern.startswith(r"(?=amdgpu|\[drm|kfd)") else 0)


@pytest.mark.parametrize("name", [r"x\x0aXid", r"a\x0aNVRM: Xid", r"\x0aXid 79", "x#012Xid", "x\nXid"])
def test_no_name_of_a_process_hides_the_fault_that_it_met(seen: Seen, name: str) -> None:
    for number, words in ((79, "GPU has fallen off the bus."), (48, "DBE (double bit error) ECC error"), (31, "Ch 1")):
        seen.ring.say(f"NVRM: Xid (PCI:0000:18:00): {number}, pid=42, name={name}, {words}", prefix="4")
    items = [*seen.look(), *seen.log.rest(NOW)]
    assert [news.fields["number"] for news in news_of(items)] == [79, 48, 31]


@pytest.mark.parametrize("name", [15 * r"\x01", r"a: b\x0aXid", "a]: [b:1", "x): y ("])
@pytest.mark.parametrize(
    "line",
    ["INFO: task {}:42 blocked for more than 122 seconds.",
     "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [{}:42]",
     "MCE 0x1234: Killing {}:42 due to hardware memory corruption",
     "Memory failure: 0x1234: Sending SIGBUS to {}:42 due to hardware memory corruption",
     "Out of memory: Killed process 42 ({}) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB"],
)  # fmt: skip
def test_nor_what_else_the_kernel_tells_of_it(line: str, name: str) -> None:
    (sign, _), (plain, _) = heard(line.format(name), bare=True), heard(line.format("python3"), bare=True)
    assert plain is not None
    assert sign is not None
    assert sign.kind == plain.kind


@pytest.mark.parametrize(
    ("number", "name", "words"),
    [(94, "a,RST: Yes", "Contained: SM (0x1). RST: No, D-RST: No"),
     (94, "a, RST: Yes", "Contained: SM (0x1)."),
     (119, "a,GSP_INIT_DONE", "Timeout after 6s of waiting for RPC response from GPU0 GSP!"),
     (74, "a, link 3", "NVLink: fatal error detected on link 6(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"),
     (145, "a, (0x1 0x2)", "RLW_RXPIPE Nonfatal XC0 i0 Link 11 (0x00000004 0x00000001 0 0 0 0)")],
)  # fmt: skip
def test_no_name_of_a_process_says_what_is_to_be_done(number: int, name: str, words: str) -> None:
    line = "NVRM: Xid (PCI:0000:18:00): {}, pid=42, name={}, {}"
    forged, _ = heard(line.format(number, name, words), bare=True)
    plain, _ = heard(line.format(number, "python3", words), bare=True)
    assert forged is not None
    assert plain is not None
    assert {**forged.fields, "name": ""} == {**plain.fields, "name": ""}


def test_what_the_kernel_says_of_hardware_is_read_without_any_prefix_as_with_one() -> None:
    samples = [line.split("\t") for line in (KERNEL / "sick.txt").read_text().splitlines() if line.count("\t") == 2]
    bodies = [body for _, speaker, body in samples if speaker == "kernel"]
    bodies += (KERNEL / "nvidia-words.txt").read_text().splitlines()
    bodies += (KERNEL.parent / "h200" / "dmesg-xid.txt").read_text().splitlines()
    assert len(bodies) > 600
    for body in bodies:
        bare, pasted = heard(peel(body).body, bare=True)[0], parse_line(body)
        assert (bare and (bare.kind, bare.fields)) == (pasted and (pasted.kind, pasted.fields)), body


def test_the_name_of_a_process_is_still_told() -> None:
    sign, _ = heard(f"python3[42]: {SEGFAULT.format('libc.so.6')}", bare=True)
    assert sign is not None
    assert (sign.kind, sign.fields["name"], sign.fields["pid"]) == ("os.app_crash", "python3", 42)


@pytest.mark.parametrize("prefix", ["12", "11", "30", "86", "190"])
def test_what_a_program_writes_into_the_ring_waits_for_a_witness(seen: Seen, prefix: str) -> None:
    seen.ring.say(XID_79, f"kernel: {XID_79}", f"<0>NVRM: Xid (PCI:0000:18:00): 48, x\\x0d{XID_79}", prefix=prefix)
    items = [*seen.look(), *seen.look(WAIT)]
    assert not faults(items)
    assert {(news.unconfirmed, news.fields["said_by"]) for news in news_of(items)} == {
        (True, "a program that writes to /dev/kmsg")
    }


# --- what stands in a text log

FORGED = [
    f"{HOST} kernel: {XID_79}",  # logger -t kernel
    f"{HOST} NVRM: {XID_79.removeprefix('NVRM: ')}",  # logger -t NVRM
    f"{HOST} kernel[1]: {XID_79}",
    f"{HOST} kernel: [ 1234.567890] {XID_79}",  # and as rsyslog splits a program's file name, by the kernel's own hand
    f"{HOST} klogd: {XID_79}",
    f"{HOST} fluent-bit[7]: {XID_79}",
    f"{HOST} kernel: BUG: KASAN: x",
    f"{HOST} rasdaemon[3]: 1 2026-11-16 08:00:00 +0000 1 Uncorrected error(s): x",
]
NOT_EVEN_HEARD = [
    f"other-host kernel: {XID_79}",  # forwarded
    f"gpu-70 kernel: {XID_79}",
    f"{HOST}.elsewhere.example kernel: {XID_79}",
    f"{HOST} app[1]: progress 10%\r{XID_79}",
    f"{HOST} app[1]: x#012{XID_79}",
    f"{HOST} app[1]: x#015{XID_79}",
    f"{HOST} app[1]: x\\n{XID_79}",
    f"{HOST} app[1]: kernel: {XID_79}",
    f"{HOST} dockerd[1]: \x1b[2K\r{stamp()} {HOST} kernel: {XID_79}",
    f"{HOST} sshd[1]: Invalid user {XID_79} from 10.0.0.1",
    f"{HOST} sudo: alice : TTY=pts/0 ; COMMAND=/bin/echo {XID_79}",
    f'{HOST} audit[9]: USER_LOGIN pid=1 acct="{XID_79}"',
]  # fmt: skip


@pytest.mark.parametrize("line", FORGED)
def test_what_any_user_can_have_a_log_daemon_write_is_evidence_and_no_fault(seen: Seen, line: str) -> None:
    seen.writes(f"{stamp()} {line}")
    assert not seen.look()
    items = seen.look(WAIT)
    assert not faults(items)
    told = [item.news for item in items if isinstance(item.news, Observed)]
    assert [(news.unconfirmed, news.fields["said_by"]) for news in told] in ([], [(True, str(seen.path))])


@pytest.mark.parametrize("line", NOT_EVEN_HEARD)
def test_what_is_of_others_is_nothing_about_this_node(tmp_path: Path, line: str) -> None:
    seen = Seen(tmp_path, LineTrust(trusted=True, own_zone=True, hosts=("gpu-7.cluster.example",)))
    seen.writes(f"{stamp()} {line}")
    items = [*seen.look(), *seen.look(WAIT)]
    assert not news_of(items)
    assert not faults(items)


@pytest.mark.parametrize(
    ("host", "ours"),
    [("gpu-7", True), ("GPU-7", True), ("gpu-7.cluster.example", True), ("gpu-7.Cluster.Example.", True),
     ("localhost", True), ("gpu-7.other.example", False), ("gpu-70", False), ("gpu", False), ("10.0.0.7", False)],
)  # fmt: skip
def test_a_host_is_this_one_whatever_its_case_and_whether_its_domain_is_said(host: str, ours: bool) -> None:
    assert is_one_of(host, ("gpu-7.cluster.example", "n1")) is ours


def test_that_others_forward_their_lines_is_told_once_with_their_number(seen: Seen) -> None:
    seen.writes(*(f"{stamp()} other kernel: {XID_79}" for _ in range(25)))
    told = news_of([*seen.look(), *seen.look(WAIT)], "agent.forwarded")
    assert [("(1 so far" in one.text, "(10 so far" in one.text) for one in told] == [(True, False), (False, True)]
    assert all("other" in one.text and HOST in one.text for one in told)


def test_where_the_operator_trusts_the_logs_they_count_at_once(tmp_path: Path) -> None:
    seen = Seen(tmp_path, LineTrust(trusted=True, hosts=(HOST,)))
    seen.writes(f"{stamp()} {HOST} kernel: {XID_79}")
    (news,) = news_of(seen.look())
    assert not news.unconfirmed
    assert not seen.look(WAIT)


# --- a witness, in either order


def test_a_line_that_the_ring_has_told_is_an_echo(seen: Seen) -> None:
    seen.ring.say(XID_79, prefix="4")
    assert len(news_of(seen.look())) == 1
    seen.writes(f"{stamp()} {HOST} kernel: {XID_79}")
    assert not [*seen.look(1.0), *seen.look(WAIT + 1.0), *seen.log.rest(NOW + 60)]


def test_a_line_that_was_first_is_an_echo_of_the_witness_that_comes_while_it_waits(seen: Seen) -> None:
    seen.writes(*(100 * [f"{stamp()} {HOST} kernel: {XID_79}"]))
    assert not seen.look()
    seen.ring.say(XID_79, prefix="4")
    (news,) = news_of([*seen.look(WAIT - 1.0), *seen.look(WAIT + 1.0), *seen.look(3 * WAIT)])
    assert (news.unconfirmed, news.count) == (False, 1)


def test_nvml_is_a_witness_too(seen: Seen) -> None:
    seen.writes(f"{stamp()} {HOST} kernel: {XID_79}")
    assert not seen.look()
    fields: dict[str, str | int] = {"number": 79, "pci": "00000000:18:00.0", "device": 0}
    assert seen.sums.add(say(Observed(node=NODE, kind="xid", fields=fields), NOW + 2), NOW + 2)
    assert not seen.look(WAIT + 1)


def test_a_fault_is_counted_in_full_though_its_line_was_forged_before(seen: Seen) -> None:
    seen.writes(*(100 * [f"{stamp()} {HOST} kernel: {XID_79}"]))
    (forged,) = news_of([*seen.look(), *seen.look(WAIT)])
    assert (forged.unconfirmed, forged.count) == (True, 100)
    seen.ring.say(XID_79, XID_79, prefix="4")
    items = [*seen.look(WAIT + 5.0), *seen.log.rest(NOW + 30)]
    assert [(news.unconfirmed, news.count) for news in news_of(items)] == [(False, 1), (False, 1)]


@pytest.mark.parametrize("late", [70.0, 5 * 3600.0])
def test_a_log_daemon_that_lags_is_an_echo_however_late(tmp_path: Path, late: float) -> None:
    for trusted in (False, True):
        root = tmp_path / str(trusted)
        root.mkdir()
        seen = Seen(root, LineTrust(trusted=trusted, own_zone=True))
        seen.ring.say(XID_79, prefix="4", stamp=NOW - late)
        assert len(news_of(seen.look(-late))) == 1
        seen.writes(f"{stamp(late)} {HOST} kernel: {XID_79}")
        assert not [*seen.look(), *seen.look(WAIT), *seen.log.rest(NOW + 60)]


def test_a_line_that_waits_is_told_though_its_source_cannot_be_read_any_more(tmp_path: Path) -> None:
    path = tmp_path / "messages"
    path.write_text("")
    log = KernelLog([SystemLog(path, LogPlace(boot_id="b"), LineTrust(own_zone=True))], NODE, lambda _: None)
    log.look(NOW)
    path.write_text(f"{stamp()} {HOST} kernel: {XID_79}\n")
    assert not news_of(log.look(NOW + 1))
    path.unlink()
    path.mkdir()
    told: list[Item] = []
    for after in (2.0, WAIT + 2.0):
        with suppress(OSError):
            told += log.look(NOW + after)
    assert [news.unconfirmed for news in news_of(told)] == [True]
    log.close()


def test_what_is_said_again_and_again_is_counted_though_a_flood_of_others_follows(seen: Seen) -> None:
    again = f"{stamp()} {HOST} kernel: {XID_79}"
    seen.writes(again)
    told = [*seen.look(), *seen.look(WAIT)]
    seen.writes(*(again for _ in range(50)))
    told += [*seen.look(WAIT + 1), *seen.look(2 * WAIT + 1)]
    for turn in range(3):
        seen.writes(*(again.replace("18:00", f"{turn:02x}:{n:02x}") for n in range(REMEMBERED)))
        told += [*seen.look((3 + 2 * turn) * WAIT), *seen.look((4 + 2 * turn) * WAIT + 1)]
    told += seen.look(AGAIN + 1)
    told += seen.look(2 * AGAIN + 2)
    everything = [item.news for item in told if isinstance(item.news, Observed)]
    assert sum(news.count for news in everything) == 51 + 3 * REMEMBERED


def test_whoever_looks_once_is_told_how_many_more_lines_there_were(seen: Seen) -> None:
    line = f"{stamp()} {HOST} kernel: {XID_79}"
    seen.writes(*(line.replace("18:00", f"00:{n:02x}") for n in range(100)))
    told = [item.news for item in [*seen.look(), *seen.log.rest(NOW)] if isinstance(item.news, Observed)]
    assert sum(news.count for news in told) == 100
    assert len(told) == MOST + 1


def test_what_the_ring_told_an_earlier_run_is_still_known_to_the_next(tmp_path: Path) -> None:
    seen = Seen(tmp_path)
    seen.ring.say(XID_79, prefix="4", stamp=NOW)
    place = KmsgPlace(boot_id="b", seq=0, stamp=NOW)
    ring = Kmsg(NODE, place, tmp_path / "kmsg", seen.ring.read)
    text = SystemLog(seen.path, LogPlace(boot_id="b"), LineTrust(own_zone=True))
    log = KernelLog([ring, text], NODE, lambda _: None)
    seen.writes(f"{stamp()} {HOST} kernel: {XID_79}")
    assert not [*log.look(NOW), *log.look(NOW + WAIT), *log.rest(NOW + 60)]
    log.close()


def test_a_line_that_waits_is_where_the_next_run_begins(seen: Seen) -> None:
    seen.look()
    seen.writes(f"{stamp()} {HOST} kernel: {XID_63}", f"{stamp()} {HOST} kernel: {XID_79}")
    seen.look()
    place = seen.log.places[heard_name(f"text:{seen.path}")]
    assert isinstance(place, LogPlace)
    assert place.offset == 0
    seen.look(WAIT)
    assert seen.log.places[heard_name(f"text:{seen.path}")] is None
    place = seen.log.places[f"text:{seen.path}"]
    assert isinstance(place, LogPlace)
    assert place.offset == seen.path.stat().st_size


def test_a_line_that_nobody_tells_is_not_taken_for_the_echo_of_one_before_it(seen: Seen) -> None:
    seen.ring.say(XID_79, prefix="4", stamp=NOW - 7200.0)
    assert len(news_of(seen.look(-7200.0))) == 1
    seen.writes(f"{stamp(7200.0)} {HOST} kernel: {XID_79}", f"{stamp()} {HOST} kernel: {XID_79}")
    (news,) = news_of([*seen.look(), *seen.look(WAIT)])
    assert (news.unconfirmed, news.count) == (True, 1)


# --- whoever floods the log


def test_a_flood_of_forged_lines_is_a_handful_of_observations_and_hides_nothing(seen: Seen) -> None:
    lines = [f"{stamp()} {HOST} kernel: NVRM: Xid (PCI:{n:04x}:18:00): 79, x" for n in range(1500)]
    seen.writes(*lines)
    items = [*seen.look(), *seen.look(WAIT)]
    assert len(items) == MOST
    assert all(news.unconfirmed for news in news_of(items))
    hearsay = seen.log._hearsay
    assert len(hearsay._early) + len(hearsay._late) + len(hearsay._shown) <= REMEMBERED
    seen.ring.say(XID_79, prefix="4")
    assert [news.unconfirmed for news in news_of(seen.look(WAIT + 1))] == [False]
    (rest,) = news_of(seen.look(AGAIN + WAIT), "agent.unconfirmed")
    assert rest.count == len(lines) - MOST


def test_the_same_forged_line_again_and_again_is_told_once_an_hour_with_its_number(seen: Seen) -> None:
    told: list[Observed] = []
    for second in range(0, int(AGAIN + 2 * WAIT), 10):
        seen.writes(f"{stamp()} {HOST} kernel: {XID_79}")
        told += news_of(seen.look(float(second)))
    assert len(told) == 2
    assert sum(news.count for news in told) in range(360, 363)


# --- when nobody can witness


def test_that_no_source_is_a_witness_is_told_once_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "messages"
    path.touch()
    log = KernelLog([SystemLog(path, LogPlace(boot_id="b"))], NODE, lambda _: None)
    (news,) = (item.news for item in [*log.look(NOW), *log.look(NOW + 10)])
    assert isinstance(news, Observed)
    assert news.kind == "probe.failed"
    assert "CAP_SYSLOG" in news.text
    assert "trust_logs: true" in news.text
    log.close()
    trusted = KernelLog([SystemLog(path, LogPlace(boot_id="b"), LineTrust(trusted=True))], NODE, lambda _: None)
    assert not trusted.look(NOW)
    trusted.close()


# --- when it was said


class Zones(Seen):
    """The log of a daemon whose zone is not ours: `ahead` seconds east of it."""

    def __init__(self, root: Path, ahead: float, *, before: bool = True) -> None:
        self.ahead = ahead
        root.joinpath("messages").touch()
        if before:
            root.joinpath("messages").write_text(f"{stamp(-ahead)} {HOST} systemd[1]: Started a unit.\n")
        super().__init__(root, LineTrust(trusted=True, hosts=(HOST,)))
        self.text = SystemLog(
            self.path, LogPlace(boot_id="b"), LineTrust(trusted=True, hosts=(HOST,)), began=NOW - 3 * 3600.0
        )
        self.log = KernelLog([self.text], NODE, lambda _: None)

    def says(self, ago: float) -> None:
        self.writes(f"{stamp(ago - self.ahead)} {HOST} kernel: {XID_79}", f"{stamp(-self.ahead)} {HOST} cron[1]: x")


@pytest.mark.parametrize("ahead", [-8 * 3600.0, 8 * 3600.0, 5.75 * 3600.0, 0.0])
@pytest.mark.parametrize(("ago", "counts"), [(0.0, True), (3600.0, True), (7 * 3600.0, False)])
def test_a_line_without_a_zone_is_dated_by_the_logs_own(tmp_path: Path, ahead: float, ago: float, counts: bool) -> None:
    seen = Zones(tmp_path, ahead)
    seen.says(ago)
    found = [item for item in seen.look() if isinstance(item.news, Observed) and item.news.kind == "xid"]
    assert [item.mono for item in found] == ([pytest.approx(NOW - ago, abs=3.0)] if counts else [])
    assert not any(news.unconfirmed for news in news_of(found))


def test_the_dates_of_other_machines_say_nothing_about_our_zone(tmp_path: Path) -> None:
    seen = Zones(tmp_path, 0.0)
    seen.writes(f"{stamp()} {HOST} kernel: {XID_79}", f"{stamp(8 * 3600.0)} other cron[1]: of a zone far west")
    (item,) = seen.look()
    assert item.mono == pytest.approx(NOW, abs=3.0)


def test_a_line_whose_zone_nobody_can_tell_is_told_and_not_acted_upon(tmp_path: Path) -> None:
    seen = Zones(tmp_path, -8 * 3600.0, before=False)
    seen.writes(f"{stamp(8 * 3600.0)} {HOST} kernel: {XID_79}")  # alone: eight hours old, or of a zone west of ours
    (news,) = news_of([*seen.look(), *seen.look(WAIT)])
    assert news.unconfirmed
    assert "time zone" in str(news.fields["undated"])


def test_a_line_from_before_the_clock_was_set_after_the_boot_is_told(tmp_path: Path) -> None:
    """A machine whose clock was hours behind until the network came: its first lines are dated before its boot."""
    path = tmp_path / "messages"
    path.write_text(
        f"{stamp(9 * 3600.0)} {HOST} kernel: {XID_63}\n{stamp(6 * 3600.0)} {HOST} kernel: Linux version 6.8.0 (x@y)\n"
        f"{stamp(6 * 3600.0)} {HOST} kernel: {XID_79}\n{stamp()} {HOST} chronyd[1]: System clock was stepped\n"
    )
    log = KernelLog([SystemLog(path, LogPlace(boot_id="b"), began=NOW - 600.0)], NODE, lambda _: None)
    (news,) = news_of([*log.look(NOW), *log.look(NOW + WAIT)])
    assert (news.fields["number"], news.unconfirmed) == (79, True)
    assert "the clock was set since" in str(news.fields["undated"])
    log.close()


# --- what is pasted is read as before


def test_a_progress_bar_in_what_was_pasted_is_still_overwritten() -> None:
    sign = parse_line(f"10%\r20%\r{XID_79}")
    assert sign is not None
    assert sign.kind == "xid"


ENTRY = {"MESSAGE": XID_79, "__CURSOR": "s=1;i=1", "_TRANSPORT": "kernel", "SYSLOG_FACILITY": "0", "_BOOT_ID": "b1"}


@pytest.mark.parametrize(
    "change",
    [{"_TRANSPORT": "syslog"}, {"_TRANSPORT": "journal"}, {"_TRANSPORT": "stdout"}, {"_TRANSPORT": ""},
     {"SYSLOG_FACILITY": "1"}, {"SYSLOG_FACILITY": "3"}, {"SYSLOG_FACILITY": ""}, {"_BOOT_ID": "b2"},
     {"_BOOT_ID": ""}, {"_MACHINE_ID": "0123456789abcdef0123456789abcdef"}],
)  # fmt: skip
def test_an_entry_of_the_journal_counts_by_the_fields_that_journald_writes(change: dict[str, str]) -> None:
    proven, forged = (decoded(msgspec.json.encode(ENTRY | some)) for some in ({}, change))
    assert proven is not None
    assert forged is not None
    assert (proven.by_kernel({"b1"}), forged.by_kernel({"b1"})) == (True, False)
