"""An agent on a real machine: which sources and probes it has, who carries its orders out, whom it reports to."""

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec

from sickbay.agent.checks import Exercise
from sickbay.agent.commands import NO_BOOT
from sickbay.agent.complaints import complain
from sickbay.agent.deadline import BoundedCalls
from sickbay.agent.drill import Drills
from sickbay.agent.join import NodeJoiner
from sickbay.agent.loop import HANGS_AFTER
from sickbay.agent.node_orders import NodeOrders, tools_of
from sickbay.agent.node_probes import ProbeContext, probes_for
from sickbay.agent.outbox import Outbox, say
from sickbay.agent.places import Places
from sickbay.agent.probes import Probe
from sickbay.agent.probes.begins import begin_in_boot, begin_in_file
from sickbay.agent.probes.dedup import Deduplicator
from sickbay.agent.probes.journal import MUTE, JournalFollower, JournalPlace, available, own_machine
from sickbay.agent.probes.journal import NAME as JOURNAL
from sickbay.agent.probes.kernel_log import DeviceAt, KernelLog, LineSource, LogLine, LogPlace, item_of
from sickbay.agent.probes.kmsg import NAME as RING
from sickbay.agent.probes.kmsg import Kmsg, KmsgPlace
from sickbay.agent.probes.last_words import LastWords, last_words
from sickbay.agent.probes.system_log import LineTrust, SystemLog, name_of, own_names, usual
from sickbay.agent.ranks.directory import NodeFile, open_to_all, ranks_dir
from sickbay.agent.ranks.retention import EVERY, tidy
from sickbay.agent.ranks.watch import RankWatch
from sickbay.agent.runtime import AgentRuntime, NodeKit, alone, clock_zero, keep, kept, machine_boot
from sickbay.agent.settings import AgentSettings, host_name
from sickbay.agent.spool import AgentIdentity, Spool
from sickbay.agent.transport import Address
from sickbay.agent.watchdog import Watchdog
from sickbay.agent.watches import CLOSED, CREATED, MOVED_TO
from sickbay.model.errors import BadInput
from sickbay.model.facts import Observed
from sickbay.model.fleet import Incarnation, NodeId
from sickbay.model.noun import Noun
from sickbay.model.protocol import Item
from sickbay.signs.kernel import heard

FEW = 500  # last words of a boot, so many at most


class Boot(Noun):
    """Which boot the state directory was written under."""

    boot_id: str
    instance_id: str
    zero: float = 0.0


def run(settings: AgentSettings) -> None:
    """Until SIGTERM. Raises BadInput."""
    state = Path(settings.state)
    try:
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise BadInput(
            f"state: {state} cannot be made ({error.strerror}): write a directory that may be written"
        ) from None
    with alone(state):
        NodeAgent(settings).run()


class NodeAgent:
    def __init__(self, settings: AgentSettings, watchdog: Watchdog | None = None) -> None:
        self._settings = settings
        self._state = Path(settings.state)
        self._watchdog = watchdog or Watchdog()
        boot_id = machine_boot(Path(settings.boot_id_file)) or f"{NO_BOOT}{os.urandom(6).hex()}"
        me = Incarnation(instance_id=settings.instance_id, boot_id=boot_id)
        node = NodeId(settings.node)
        self._voice = AgentIdentity(
            node=node, incarnation=me, agent_run=os.urandom(6).hex(), machine_boot=boot_id, zero=clock_zero()
        )
        places = Places(self._state)
        trouble = self._last_words(me, places)
        self._outbox = Outbox(self._state / "spool", self._voice, places)
        self.sums = Deduplicator()
        drills = Drills(self._state / "drills.json")
        sources = sources_for(settings, places, node, boot_id, drills)
        made = probes_for(ProbeContext(settings, node, self.sums))
        self._log = KernelLog(sources, node, made.device_at or device_index(settings), self.sums)
        for text in filter(None, (trouble, *made.troubles)):
            self._tell("probe.failed", text)
        tests = tests_for(settings)
        text_log = next((Path(s.name.partition(":")[2]) for s in sources if isinstance(s, SystemLog)), None)
        hands = tools_of(settings, node=node, me=me, tests=tests, text_log=text_log, drills=drills, aside=made.aside)
        self._fence = None
        if settings.self_fence is not None:
            from sickbay.agent.fence import FenceKeeper

            self._fence = FenceKeeper(settings.self_fence, self._state, boot_id, self._tell)
        self._closing = made.closing
        self._joiner = NodeJoiner(settings) if settings.join_token_file else None
        self._ranks = RankWatch(Path(settings.ranks), node, boot_id)
        self._open_ranks(NodeFile(node=node, cluster=node.partition("/")[0], boot_id=boot_id))
        self._life = AgentRuntime(
            NodeKit(
                outbox=self._outbox,
                state=self._state,
                log=self._log,
                address=self._address,
                refused=self._joiner.refuse if self._joiner is not None else lambda _: None,
                orders=lambda senses: NodeOrders(hands, senses).carry,
                witnesses=[probe for probe in made.probes if probe.witness],
                probes=[*(probe for probe in made.probes if not probe.witness), *self._rank_probes],
                wanted=self._wanted,
                asleep=self._ranks.restart,
                each_second=self._each_second,
                ready=lambda: self._watchdog.ready(f"watching {settings.node}"),
                ending=self._ending,
            )
        )

    def run(self) -> None:
        self._life.run()

    # --- the ranks that run here
    def _open_ranks(self, me: NodeFile) -> None:
        try:
            open_to_all(Path(self._settings.ranks), me)
        except OSError as error:
            complain(f"ranks: {self._settings.ranks} cannot be used ({error.strerror or error}): no rank is watched")

    @property
    def _rank_probes(self) -> list[Probe]:
        def tidy_up(now: float) -> list[Item]:  # noqa: ARG001 - a probe's look
            tidy(Path(self._settings.ranks))
            return []

        watch = Probe("ranks", self._ranks.look, period=1.0, gap=0.05, restless=lambda: self._ranks.restless)
        return [watch, Probe("old_ranks", tidy_up, period=EVERY, may_hang=True)]

    def _wanted(self) -> dict[Path, tuple[str, int]]:
        there = ranks_dir(Path(self._settings.ranks))
        wanted = dict.fromkeys(self._ranks.directories, ("ranks", MOVED_TO | CLOSED))
        return {**wanted, there: ("ranks", CREATED)} if there.is_dir() else wanted

    def _tell(self, kind: str, text: str) -> None:
        self._outbox.put([say(Observed(node=self._voice.node, kind=kind, text=text[:500]))])

    def _each_second(self, now: float) -> None:
        if self._life.well(now):
            self._watchdog.alive(now)
        if self._fence is not None:
            self._fence.turn(now, heard=self._life.reporter.heard.is_set())

    def _ending(self) -> None:
        self._watchdog.ending()
        for close in self._closing:
            close()

    def _address(self) -> Address:
        token = self._settings.token
        if self._joiner is not None:
            token = self._joiner.token()
        elif self._settings.token_file:
            try:
                token = Path(self._settings.token_file).read_text(encoding="ascii").strip()
            except OSError as error:
                raise OSError(f"token_file {self._settings.token_file}: {error.strerror}") from None
        return Address(url=self._settings.url, token=token, ca=self._settings.ca)

    # --- what the kernel said when nobody listened any more
    def _last_words(self, me: Incarnation, places: Places) -> str:
        """Into the spool, under the boot that has ended, before anything of this boot. Returns what was in the way."""
        trouble = ""
        file = self._state / "boot.json"
        before = kept(file, Boot)
        now = Boot(boot_id=me.boot_id, instance_id=me.instance_id, zero=self._voice.zero)
        if before is not None and before.boot_id != me.boot_id and before.instance_id == me.instance_id and available():
            ended = Incarnation(instance_id=before.instance_id, boot_id=before.boot_id)
            ring, journal = places.of(RING, KmsgPlace), places.of(JOURNAL, JournalPlace)
            cursor = journal.cursor if journal is not None and journal.boot_id == before.boot_id else ""
            stamp = ring.stamp if ring is not None and ring.boot_id == before.boot_id else 0.0
            if cursor or stamp:  # else no agent listened then, and nobody knows what was told already
                try:
                    machine = own_machine(self._settings.on_host("/etc/machine-id"))
                    command = journalctl(self._settings)
                    found = last_words(before.boot_id, cursor=cursor, stamp=stamp, command=command, machine=machine)
                    self._spooled(found, ended, found.zero or before.zero)
                except OSError as error:
                    trouble = f"the last words of boot {before.boot_id} are not known: {error}"
                    complain(trouble)
        if before is None or before.boot_id != now.boot_id:
            keep_boot(file, now)
        return trouble

    def _spooled(self, found: LastWords, ended: Incarnation, zero: float) -> None:
        spooled(found.lines, self._state / "spool", self._voice, ended, zero, device_index(self._settings))


def keep_boot(file: Path, boot: Boot) -> None:
    try:
        keep(file, boot)
    except OSError as error:
        complain(f"{file} cannot be written: {error.strerror}")


def spooled(
    lines: Sequence[LogLine],
    directory: Path,
    voice: AgentIdentity,
    ended: Incarnation,
    zero: float,
    device_at: DeviceAt | None = None,
) -> int:
    """What these lines mean, as that boot's own words. How many there were."""
    sums, device_at = Deduplicator(), device_at or device_index()
    items: list[Item] = []
    for line in lines:
        sign, _ = heard(line.text, bare=line.bare)
        if sign is None or not line.proven:
            continue
        items.extend(sums.add(item_of(sign, line, voice.node, device_at, last_words=True), 0.0, line.text))
    items.extend(sums.flush())
    items = items[-FEW:]
    if items:
        then = AgentIdentity(
            node=voice.node, incarnation=ended, agent_run=f"{voice.agent_run}-before", machine_boot=ended.boot_id,
            zero=zero,
        )  # fmt: skip
        spool = Spool(directory, then)
        for number, item in enumerate(items, 1):
            spool.append([encoded(item, number)], number, number)
        spool.close()
    return len(items)


def encoded(item: Item, seq: int) -> bytes:
    return msgspec.json.encode(msgspec.structs.replace(item, seq=seq))


# --- what there is on this machine


def sources_for(
    settings: AgentSettings, places: Places, node: NodeId, boot_id: str, drills: Drills | None = None
) -> list[LineSource]:
    """Those that the settings name. `auto`: the ring, or the journal where the ring may not be read, and text files."""
    named = list(dict.fromkeys(settings.sources))
    if "auto" in named:
        own = ["kmsg"] if may_read(Path(settings.kmsg)) or not available() else ["journal"]
        at = named.index("auto")
        named[at : at + 1] = [*own, *(str(path) for path in usual(settings.host_root))]
    found: list[LineSource] = []
    for name in dict.fromkeys(named):
        if name == "kmsg":
            records = begin_in_boot(places, RING, KmsgPlace(boot_id=boot_id))
            ring = Kmsg(node, records.told, Path(settings.kmsg), trusted=settings.trust_logs, heard=records.heard)
            found.append(ring)
        elif name == "journal":
            journal = begin_in_boot(places, JOURNAL, JournalPlace(boot_id=boot_id))
            machine = own_machine(settings.on_host("/etc/machine-id"))
            command, boots = journalctl(settings), (machine_boot(),)
            found.append(JournalFollower(journal.heard, command, boots, told=journal.told, machine=machine))
        else:
            # Across boots: the file is one and the same, and what is dated before this boot means nothing.
            text = begin_in_file(places, name_of(Path(name)), LogPlace(boot_id=boot_id))
            hosts = own_names(node, host_name(settings.host_root))
            reading = LineTrust(trusted=settings.trust_logs, hosts=hosts)
            found.append(SystemLog(Path(name), text.heard, reading, drills=drills, told=text.told))
    return found


def journalctl(settings: AgentSettings) -> tuple[str, ...]:
    """The machine's own journal, also from a container."""
    return ("journalctl", f"--root={settings.host_root}") if settings.contained else ("journalctl",)


def may_read(path: Path) -> bool:
    try:
        with path.open("rb", buffering=0):
            return True
    except OSError:
        return False


def device_index(settings: AgentSettings | None = None) -> DeviceAt:
    """The index of the GPU at a PCI address: drivers number GPUs in the order of their addresses."""
    try:
        from sickbay.agent.nvml.pci import address, nvidia_gpus
    except ImportError:
        return lambda _: None
    bus = settings.on_host("/sys") if settings is not None else Path("/sys")
    there = sorted(where for gpu in nvidia_gpus(bus) if (where := address(gpu)) is not None)
    order = {where: number for number, where in enumerate(there)}

    def at(text: str) -> int | None:
        where = address(text)
        return None if where is None else order.get(where)

    return at


def tests_for(settings: AgentSettings) -> Callable[[], Sequence[Exercise]]:
    """Made when a check is asked for: what exercises GPUs is large, and most agents never need it."""

    def tests() -> Sequence[Exercise]:
        from sickbay.agent.checks.node import node_tests

        return node_tests(expected_gpus=settings.gpus, state_dir=Path(settings.state), root=Path(settings.host_root))

    return tests


def look_once(settings: AgentSettings) -> list[Item]:
    """All that can be seen now, without a controller and without leaving anything behind."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="sickbay-") as aside:
        return _look_once(msgspec.structs.replace(settings, state=aside))


def look_in_time(probe: Probe, seconds: float = HANGS_AFTER) -> Sequence[Item]:
    """One look, for somebody who waits for it: nobody waits for a card that hangs. Raises TimeoutError."""
    look = partial(probe.look, time.monotonic())
    return BoundedCalls(f"the devices of {probe.name}", seconds).call(look) if probe.may_hang else look()


def _look_once(settings: AgentSettings) -> list[Item]:
    node, sums = NodeId(settings.node), Deduplicator()
    made = probes_for(ProbeContext(settings, node, sums))
    sources = sources_for(settings, Places(Path(settings.state)), node, machine_boot(Path(settings.boot_id_file)))
    log = KernelLog(sources, node, made.device_at or device_index(settings), sums)
    found = [say(Observed(node=node, kind="probe.failed", text=text)) for text in made.troubles]
    try:
        found.extend(_read_whole(log))
        for probe in made.probes:
            try:
                found.extend(look_in_time(probe))
            except Exception as error:  # noqa: BLE001 - one that cannot look says so; the others look
                text = f"the probe {probe.name} cannot look: {error}"
                found.append(say(Observed(node=node, kind="probe.failed", text=text[:500])))
        found.extend(log.rest(time.monotonic()))
    finally:
        log.close()
        for close in made.closing:
            close()
    return found


def _read_whole(log: KernelLog) -> list[Item]:
    """What is there now."""
    found: list[Item] = []
    try:
        while True:
            found.extend(log.look(time.monotonic()))
            if not log.behind:
                # Nobody looks again: a journal that has not said a word by now will say none.
                return [*found, *log.look(time.monotonic() + 2 * MUTE)]
            time.sleep(0.01)
    except OSError as error:
        text = f"the kernel log cannot be read: {error}"
        return [*found, say(Observed(node=NodeId(""), kind="probe.failed", text=text[:500]))]
