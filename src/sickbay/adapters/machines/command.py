"""Machines of kind `command`: a site's own programs power, fence and replace nodes, bounded in time, without a shell.

What an exit code means is in `docs/controller.md`: 0 accepted, 75 (EX_TEMPFAIL) not now and nothing was done, 74
(EX_IOERR) nobody knows, any other refused and nothing was done. One that is ended at `within`, or by a signal, is
unknown: the node's own evidence decides.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from threading import Lock

from sickbay.model.errors import Rejected, Transient, Unknown
from sickbay.model.fleet import Capability, Incarnation, NodeId
from sickbay.model.mistakes import SettingsMistake
from sickbay.model.noun import Noun
from sickbay.ports.cluster import Accepted
from sickbay.wire.commands import ChildEnd, run_bounded
from sickbay.wire.secret_files import redacted

NOT_NOW, NOBODY_KNOWS = 75, 74  # EX_TEMPFAIL, EX_IOERR of sysexits.h
NOT_FENCED = 1  # of `fenced`: the machine may still write
LONGEST = timedelta(minutes=30)
SAID = 200  # characters of what a command says that are kept
PASSED = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY")  # of our environment
PLACEHOLDERS = ("name", "node", "instance_id", "key")
_PLACEHOLDER = re.compile(r"\{(\w*)\}")
_DOES = {
    "restart_service": Capability.RESTART_SERVICE,
    "reboot": Capability.REBOOT,
    "replace": Capability.REPLACE,
    "fence": Capability.FENCE,
}


class CommandMachineSettings(Noun, forbid_unknown_fields=True):
    """Each command is a list of words. One that is left out is a rung that this channel does not do."""

    kind: str
    restart_service: tuple[str, ...] = ()
    reboot: tuple[str, ...] = ()
    replace: tuple[str, ...] = ()
    fence: tuple[str, ...] = ()
    fenced: tuple[str, ...] = ()  # whether a fence holds: 0 surely, 1 not yet, any other: cannot tell
    within: timedelta = timedelta(seconds=60)

    def mistakes(self) -> Iterator[SettingsMistake]:
        given = {name: getattr(self, name) for name in (*_DOES, "fenced")}
        for name, argv in given.items():
            if argv and not argv[0]:
                yield SettingsMistake(name, "names no program: write [power, cycle, '{name}']; no shell reads it")
            for word in argv:
                for said in _PLACEHOLDER.findall(word):
                    if said not in PLACEHOLDERS:
                        known = ", ".join(f"{{{one}}}" for one in PLACEHOLDERS)
                        yield SettingsMistake(name, f"unknown placeholder {{{said}}}: known: {known}")
        if not any(given[name] for name in _DOES):
            yield SettingsMistake("kind", f"it does nothing: write at least one of {', '.join(_DOES)}")
        if self.fenced and not self.fence:
            yield SettingsMistake("fenced", "without 'fence' nothing asks it: add 'fence', or leave both out")
        if not timedelta(0) < self.within <= LONGEST:
            yield SettingsMistake("within", "must be more than nothing and at most 30m")


class CommandMachines:
    """One effect per key where the command is given {key} and keeps that promise; else the rung is blind.

    `holder_of` says who holds a seat as far as is known here: a command that is meant for another is not run. At most
    one command at a time runs for a node: one that outlives its call is waited for by the next.
    """

    def __init__(self, settings: CommandMachineSettings, holder_of: Callable[[NodeId], Incarnation | None]) -> None:
        self._settings = settings
        self._holder_of = holder_of
        self._lock = Lock()
        self._busy: set[NodeId] = set()

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset(capability for name, capability in _DOES.items() if getattr(self._settings, name))

    @property
    def blind(self) -> frozenset[str]:
        commands: Mapping[str, tuple[str, ...]] = {name: getattr(self._settings, name) for name in _DOES}
        # A fence is asked for until it holds: switching off twice is switching off.
        return frozenset(
            name for name, argv in commands.items() if argv and name != "fence" and not any("{key}" in w for w in argv)
        )

    def restart_service(self, node: NodeId, *, key: str, expect: Incarnation) -> Accepted:
        return self._act("restart_service", node, key, expect)

    def reset(self, node: NodeId, devices: tuple[int, ...], *, key: str, expect: Incarnation) -> Accepted:
        del devices, key, expect
        raise Rejected(f"node {node}: devices are reset by its agent, not by a command")

    def reboot(self, node: NodeId, *, key: str, expect: Incarnation) -> Accepted:
        return self._act("reboot", node, key, expect)

    def replace(self, node: NodeId, *, key: str, expect: Incarnation) -> Accepted:
        return self._act("replace", node, key, expect)

    def fence(self, node: NodeId, *, key: str, expect: Incarnation | None) -> Accepted:
        """Done when `fenced` says so; without `fenced`, when the fence's own command ends well."""
        holder = self._holder_of(node)
        if expect is not None and holder is not None and not expect.agrees(holder):
            if expect.same_holder(holder):
                return Accepted(done=True, said="it has booted since: nothing of the boot that was meant runs any more")
            if not self._by_instance():
                raise Rejected(f"node {node} is held by another machine, and these commands name no {{instance_id}}")
        meant = _meant(expect, holder)
        with self._alone(node):
            if self._fenced(node, key, meant):
                return Accepted(done=True, said=f"{self._settings.fenced[0]} says that it is off")
            said = self._run("fence", node, key, meant)
            if self._settings.fenced and not self._fenced(node, key, meant):
                raise Transient(f"{self._settings.fence[0]} was accepted, {self._settings.fenced[0]} says: not off yet")
            return Accepted(done=True, said=said)

    def _by_instance(self) -> bool:
        """Whether a fence goes to the machine that was meant, whoever holds its seat by now."""
        asked = (self._settings.fence, self._settings.fenced)
        return all(any("{instance_id}" in word for word in argv) for argv in asked if argv)

    def _act(self, what: str, node: NodeId, key: str, expect: Incarnation) -> Accepted:
        holder = self._holder_of(node)
        if holder is not None and not expect.agrees(holder):
            raise Rejected(f"node {node} is held by another than was meant, or has booted since")
        with self._alone(node):
            return Accepted(said=self._run(what, node, key, _meant(expect, holder)))

    @contextmanager
    def _alone(self, node: NodeId) -> Iterator[None]:
        with self._lock:
            if node in self._busy:
                raise Transient(f"node {node}: an earlier command for it still runs")
            self._busy.add(node)
        try:
            yield
        finally:
            with self._lock:
                self._busy.discard(node)

    def _run(self, what: str, node: NodeId, key: str, expect: Incarnation | None) -> str:
        """What it said. Raises what its end means."""
        argv: tuple[str, ...] = getattr(self._settings, what)
        if not argv:
            raise Rejected(f"no command is configured to {what} a node")
        end = self._end_of(argv, node, key, expect)
        last = redacted(end.last)[:SAID]
        if end.code is None:
            raise Unknown(f"{argv[0]} was ended after {end.seconds:.0f} s: {last or 'it had said nothing'}")
        if end.code == 0:
            return last
        text = f"{argv[0]} ended with {end.code}: {last or 'it said nothing'}"
        if end.code < 0 or end.code == NOBODY_KNOWS:
            raise Unknown(text)
        raise (Transient if end.code == NOT_NOW else Rejected)(text)

    def _fenced(self, node: NodeId, key: str, expect: Incarnation | None) -> bool:
        """Whether it surely holds. Who cannot tell is asked again: that is never taken for either answer."""
        argv = self._settings.fenced
        if not argv:
            return False
        end = self._end_of(argv, node, key, expect)
        if end.code in {0, NOT_FENCED}:
            return end.code == 0
        raise Transient(f"{argv[0]} cannot tell whether {node} is off (it ended with {end.code}: {redacted(end.last)})")

    def _end_of(self, argv: tuple[str, ...], node: NodeId, key: str, expect: Incarnation | None) -> ChildEnd:
        instance = expect.instance_id if expect is not None else ""
        if not instance and any("{instance_id}" in word for word in argv):  # an empty word may mean all of them
            raise Rejected(f"{argv[0]} is to be told the {{instance_id}} of {node}, which nobody knows")
        said = {"name": node.partition("/")[2], "node": node, "instance_id": instance, "key": key}
        words = [_PLACEHOLDER.sub(lambda found: said[found[1]], word) for word in argv]
        env = {name: os.environ[name] for name in PASSED if name in os.environ}
        try:
            return run_bounded(words, self._settings.within.total_seconds(), env=env)
        except FileNotFoundError:
            raise Rejected(f"{argv[0]}: no such program") from None
        except PermissionError:
            raise Rejected(f"{argv[0]} may not be run") from None
        except ValueError as error:  # a NUL in a name
            raise Rejected(f"{argv[0]} cannot be told of {node!r} ({error})") from None
        except OSError as error:
            raise Transient(f"{argv[0]} could not be started: {error.strerror}") from None


def _meant(expect: Incarnation | None, holder: Incarnation | None) -> Incarnation | None:
    """With all that is known of it: what the holder's row has beyond `expect` is of the same machine if they agree."""
    if expect is None or holder is None:
        return expect or holder
    return holder.told(expect) if expect.agrees(holder) else expect
