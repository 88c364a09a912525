"""A simulation with its engine in another process (`tests.support.remote_engine`); the world and its time are here."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from pathlib import Path
from random import Random
from typing import Any

from tests.support.remote_engine import BROKEN, EngineBirth

from sickbay.adapters.stores.sql import open_store
from sickbay.engine.execute import Effects
from sickbay.model.errors import EffectError, StoreError
from sickbay.model.facts import AnyNews, Fact
from sickbay.model.fleet import Incarnation, NodeId
from sickbay.model.policy import Policy
from sickbay.sim.host import AGAIN, RESTART, ROUNDS, SimHost
from sickbay.sim.simulation import Plan, Simulation

PROPERTIES: Mapping[str, tuple[str, ...]] = {
    "cluster": ("id", "period", "capabilities", "blind"),
    "machines": ("capabilities", "blind"),
    "checks": ("capabilities",),
}
REPOSITORY = Path(__file__).parents[2]
LOST = (EOFError, ConnectionError)


class Nursery:
    """Starts processes quickly: one that has imported everything forks each of them."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self._control = Connection(ours.detach())
        with theirs:
            command = [sys.executable, "-m", "tests.support.remote_engine", str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=REPOSITORY)

    def bear(self, life: EngineBirth) -> "Born":
        pairs = [socket.socketpair() for _ in range(1 if life.stepped else 2)]
        self._control.send(life)
        for _, theirs in pairs:
            send_handle(self._control, theirs.fileno(), self._process.pid)
            theirs.close()
        pid: int = self._control.recv()
        return Born(self, pid, [Connection(ours.detach()) for ours, _ in pairs])

    def reap(self, pid: int) -> int:
        """Waits until the process is wholly gone, its locks too; its exit code (a signal's is negative)."""
        self._control.send(pid)
        code: int = self._control.recv()
        return code

    def close(self) -> None:
        self._control.close()
        self._process.wait()


class Born:
    """A process that lives, as its parent sees it."""

    def __init__(self, nursery: Nursery, pid: int, ends: list[Connection]) -> None:
        self._nursery = nursery
        self.pid = pid
        self.ends = ends

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def bury(self) -> int:
        for end in self.ends:
            end.close()
        return self._nursery.reap(self.pid)


def far_sites(hands: Effects) -> dict[str, dict[str, dict[str, Any]]]:
    """What the properties of each adapter say: they are told once, at birth."""
    return {
        name: {
            port: {field: getattr(getattr(site, port), field) for field in fields}
            for port, fields in PROPERTIES.items()
        }
        for name, site in hands.sites.items()
    }


def perform(hands: Effects, cluster: str, port: str, method: str, args: Any, named: Any) -> Any:
    """Carries out what an engine asks of the world; the answer, or the error that is one."""
    adapter = hands.notifiers["log"] if port == "notifier" else getattr(hands.sites[cluster], port)
    try:
        return getattr(adapter, method)(*args, **named)
    except EffectError as error:
        return error


class RemoteHost(SimHost):
    """A host whose engine is in another process. `halts` gives each life, from the first, the point where it ends."""

    def __init__(self, sim: "ApartSimulation", life: EngineBirth, halts: list[int]) -> None:
        self.name = life.holder
        self.life = 0
        self.up = True
        self.crashes = 0
        self.rounds = 0
        self.points = 0  # passed by the present life
        self.paused_until = 0.0
        self._stalled_until = -60.0
        self.before_each: Callable[[str], bool] = lambda _what: False  # whether it is killed now
        self.during_each: Callable[[str], bool] = lambda _what: False
        self.after_each: Callable[[str], bool] = lambda _what: False
        self._sim = sim
        self._scheduler = sim.scheduler
        self._born_with = life
        self._halts = halts
        self._woken = False
        self._busy = (0.0, 0)
        self._process: Born | None = None
        self._asking = False

    # --- the process
    def _begin(self) -> Born | None:
        """The process, born if need be; None if it did not outlive its birth."""
        if self._process is None:
            halt_at = self._halts.pop(0) if self._halts else 0
            born_with = EngineBirth(
                **{f: getattr(self._born_with, f) for f in EngineBirth.__struct_fields__} | {"halt_at": halt_at}
            )
            self._process = self._sim.nursery.bear(born_with)
            if self._listen(self._process) is None:
                return None
        return self._process

    def ask(self, what: str, *args: Any) -> Any:
        """What the engine answers; None if its process died over it."""
        process = self._begin() if self.up else None
        if process is None:
            return None
        self._asking = True
        try:
            return self._ask(process, what, args)
        finally:
            self._asking = False

    def _ask(self, process: Born, what: str, args: tuple[Any, ...]) -> Any:
        if self.before_each(what):
            process.kill()
        clock = self._sim.clock
        try:
            process.ends[0].send(((clock.mono(), clock.wall()), what, *args))
        except LOST:
            self._died()
            return None
        if self.during_each(what):
            process.kill()
        result = self._listen(process)
        if result is not None and self.after_each(what):
            process.kill()
            self._died()
        return result

    def _listen(self, process: Born) -> Any:
        end = process.ends[0]
        try:
            while True:
                kind, *said = end.recv()
                if kind == "done":
                    result, self.points = said
                    return result if result is not None else 0
                end.send(perform(self._sim.hands, *said))
        except LOST:
            self._died()
            return None

    def _died(self) -> None:
        assert self._process is not None
        code = self._process.bury()
        self._process = None
        if code == BROKEN:
            raise AssertionError(f"{self.name} ended by a defect of its own: its last words are on stderr")
        assert code == -signal.SIGKILL, f"{self.name} ended with {code}"
        self.crash()

    def kill(self, *halts: int) -> None:
        """The present life ends now, between two requests; `halts` are for those that follow."""
        self._halts.extend(halts)
        process = self._begin()
        if process is not None:
            process.kill()
            self._died()

    def end(self) -> None:
        if self._process is not None:
            self._process.bury()
            self._process = None

    def crash(self, down_for: float = RESTART) -> None:
        self.life += 1
        self.crashes += 1
        self.up = False
        self._woken = False
        life = self.life
        self._scheduler.after(down_for, lambda: self._start(life))

    def _start(self, life: int) -> None:
        if self.life == life:
            self.up = True
            self.wake()

    # --- what it does
    def _done(self, what: str, *args: Any) -> bool:
        answer = self.ask(what, *args)
        if isinstance(answer, StoreError):
            self.wake(AGAIN)
            return False
        if answer is not None:
            self.wake()
        return answer is not None

    def hear(self, facts: list[Fact], pulses: dict[NodeId, Incarnation]) -> bool:
        if self._asking:  # an effect of this very moment has something to say: it waits until the engine listens
            self._scheduler.after(0.0, self._sim.pour)
            return False
        return self._done("hear", facts, pulses)

    def tell(self, key: str, news: AnyNews) -> bool:
        return self._done("tell", key, news)

    def watch(self, cluster: str = "") -> None:
        del cluster  # it has one
        self._done("watch")

    def _round(self) -> None:
        self._woken = False
        self.rounds += 1
        answer = self.ask("round")
        if isinstance(answer, StoreError):
            self.wake(AGAIN)
        elif answer:
            now = self._scheduler.now
            self._busy = (now, self._busy[1] + 1 if self._busy[0] == now else 1)
            assert self._busy[1] <= ROUNDS, f"{self.name} does not come to rest at t={now}"
            self.wake()

    def later(self, seconds: float, act: Callable[[], object]) -> None:
        life = self.life
        self._scheduler.after(seconds, lambda: act() if self.life == life else None)


class ApartSimulation(Simulation):
    """A simulation whose engine is a real process on a real SQLite file. This side only reads the file."""

    def __init__(
        self,
        plan: Plan,
        *,
        nursery: Nursery,
        url: str,
        seed: int = 0,
        policy: Policy | None = None,
        halts: list[int] | None = None,
    ) -> None:
        self.nursery = nursery
        self._url = url
        self._halts = halts or []
        open_store(url).close()  # makes the schema: whoever only reads makes none
        super().__init__(plan, seed=seed, policy=policy, store=open_store(url, readonly=True))

    def _host(self, name: str, rng: Random) -> RemoteHost:
        del rng
        life = EngineBirth(
            holder=name,
            url=self._url,
            policy=self.policy,
            lease_ttl=2 * self.policy.pace.call_timeout.total_seconds() + 10.0,
            period=max(self.plan.rules.pulse, self.plan.cluster.period),
            sites=far_sites(self.hands),
        )
        return RemoteHost(self, life, self._halts)

    def _tick(self) -> None:
        if not self._unheard and not self.world.agents.deaf:
            # A canary goes after what agents have to say, and is not kept: else an engine that dies often would hear
            # that it can be reached, and not the agents that prove it.
            self.far.hear([], {})
        self._pour()
        self.far.watch()

    def pour(self) -> None:
        self._pour()

    @property
    def far(self) -> RemoteHost:
        host = self.hosts[0]
        assert isinstance(host, RemoteHost)
        return host

    def close(self) -> None:
        self.far.end()
        self.store.close()
