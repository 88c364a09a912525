"""The engine in a process of its own, which may be killed, while the simulated world lives on in another.

This is the engine's side. `python -m tests.support.remote_engine FD` is a nursery: it has imported everything, and
forks a process for each life that it is asked for over the connection FD. The other side is `apart_simulation`.
"""

import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle
from threading import Lock
from time import monotonic, sleep, time
from typing import Any, cast

from sqlalchemy import event
from sqlalchemy.engine import Engine as SqlEngine

from sickbay.adapters.executors.threads import ThreadExecutor
from sickbay.adapters.stores.sql import open_store
from sickbay.engine.execute import Effects, Site
from sickbay.engine.ingest import Ingest, Watcher
from sickbay.engine.lead import Engine, Setup
from sickbay.engine.view import Rules
from sickbay.knowledge.load import load_tables
from sickbay.model.errors import EffectError, StoreError
from sickbay.model.facts import Outcome
from sickbay.model.noun import Noun
from sickbay.model.policy import Policy
from sickbay.policy.load import digest
from sickbay.ports.checks import Checks
from sickbay.ports.cluster import Cluster
from sickbay.ports.executor import Executor
from sickbay.ports.machines import Machines
from sickbay.ports.notifier import Notifier
from sickbay.sim.host import InlineExecutor

READS = frozenset({"watch", "snapshot"})
TURN = 0.05  # seconds between two looks of an engine in real time
BROKEN = 70  # the exit code of a life that ended by a defect (EX_SOFTWARE)


class EngineBirth(Noun):
    """What a process is born with."""

    holder: str
    url: str
    policy: Policy
    lease_ttl: float
    period: float  # of reports
    sites: dict[str, dict[str, dict[str, Any]]]  # cluster → port → what its properties say
    halt_at: int | str = 0  # the number of a point, or the name of one; 0 and "": never
    halt_by: int = signal.SIGKILL
    ahead: float = 0.0  # of the real wall clock: where the world's time stands
    stepped: bool = True  # time and turns are given by the other side; else both are real


class Points:
    """The places where this process can end: each commit and each effect, before and after.

    It happens below everything that we wrote, and to the whole process at once.
    """

    def __init__(self, halt_at: int | str, halt_by: int) -> None:
        self.halt_at = halt_at
        self._halt_by = halt_by
        self.passed = 0

    def pass_by(self, name: str) -> None:
        self.passed += 1
        if self.halt_at in {self.passed, name}:
            self.halt_at = 0
            os.kill(os.getpid(), self._halt_by)
            sleep(0.1)  # the signal may reach another thread first: this one waits for it

    def watch_commits(self) -> None:
        """SQLite's commits are statements; PostgreSQL's are the driver's."""

        def before(*args: Any) -> None:
            if args[2] == "COMMIT":
                self.pass_by("commit")

        def after(*args: Any) -> None:
            if args[2] == "COMMIT":
                self.pass_by("committed")

        event.listen(SqlEngine, "before_cursor_execute", before)
        event.listen(SqlEngine, "after_cursor_execute", after)
        event.listen(SqlEngine, "commit", lambda _: self.pass_by("commit"))


class Wire:
    """Asks the other side, one question at a time."""

    def __init__(self, connection: Connection, points: Points) -> None:
        self._connection = connection
        self._points = points
        self._lock = Lock()

    def ask(self, *question: Any) -> Any:
        effect = question[2] not in READS
        with self._lock:
            if effect:
                self._points.pass_by(f"call:{question[2]}")
            self._connection.send(("call", *question))
            answer = self._connection.recv()
            if effect:
                self._points.pass_by(f"called:{question[2]}")
        if isinstance(answer, EffectError):
            raise answer
        return answer


class FarPort:
    """A port whose adapter is on the other side: properties are known, methods are asked."""

    def __init__(self, wire: Wire, cluster: str, port: str, known: Mapping[str, Any]) -> None:
        self._wire = wire
        self._name = (cluster, port)
        self.__dict__.update(known)

    def __getattr__(self, method: str) -> Callable[..., Any]:
        cluster, port = self._name
        return lambda *args, **named: self._wire.ask(cluster, port, method, args, named)


class GivenClock:
    """Time as the other side tells it."""

    def __init__(self) -> None:
        self.now = (0.0, 0.0)

    def mono(self) -> float:
        return self.now[0]

    def wall(self) -> float:
        return self.now[1]


class RealClock:
    def __init__(self, ahead: float) -> None:
        self._ahead = ahead

    def mono(self) -> float:
        return monotonic()

    def wall(self) -> float:
        return time() + self._ahead


class NoticedExecutor:
    """Lets a process halt between the commit of SENT and the call."""

    def __init__(self, inner: Executor, points: Points) -> None:
        self._inner = inner
        self._points = points

    def room(self, lane: str) -> int:
        return self._inner.room(lane)

    def submit(
        self, lane: str, call: Callable[[], Outcome], timeout: float, done: Callable[[Outcome], None], key: str
    ) -> None:
        self._points.pass_by(f"submit:{lane.rsplit('/', maxsplit=1)[-1]}")
        self._inner.submit(lane, call, timeout, done, key)


class Living:
    """One process with the real engine on the real store."""

    def __init__(self, life: EngineBirth, calls: Connection) -> None:
        self._life = life
        self.points = Points(life.halt_at, life.halt_by)
        self.points.watch_commits()
        self.clock = GivenClock() if life.stepped else RealClock(life.ahead)
        wire = Wire(calls, self.points)
        hands = Effects(
            sites={name: _site(wire, name, ports) for name, ports in life.sites.items()},
            notifiers={"log": cast("Notifier", FarPort(wire, "", "notifier", {}))},
        )
        rules = Rules(
            policy=life.policy,
            tables=load_tables(),
            policy_digest=digest(life.policy),
            can={name: site.capabilities for name, site in hands.sites.items()},
            blind={name: site.blind for name, site in hands.sites.items()},
        )
        executor: Executor = InlineExecutor() if life.stepped else NoticedExecutor(ThreadExecutor(), self.points)
        self.store = open_store(life.url)
        setup = Setup(holder=life.holder, lease_ttl=life.lease_ttl, strict=True)
        self.engine = Engine(self.store, hands, rules, executor, self.clock, setup)
        self.watchers = [Watcher(self.store, site.cluster, self.clock, self._leads) for site in hands.sites.values()]

    def _leads(self) -> bool:
        return self.engine.leads

    def do(self, what: str, *args: Any) -> Any:
        match what:
            case "hear":
                return Ingest(self.store, self.clock, self._life.period, self._leads).take(*args)
            case "tell":
                return Ingest(self.store, self.clock).tell(*args)
            case "watch":
                self.engine.lead()  # the lease is kept as often as the cluster is read
                return sum(watcher.read() for watcher in self.watchers)
            case "round":
                return self.engine.round()
            case "arm":
                (self.points.halt_at,) = args
                return None
            case _:
                raise ValueError(what)


def _site(wire: Wire, name: str, ports: Mapping[str, Mapping[str, Any]]) -> Site:
    far = {port: FarPort(wire, name, port, known) for port, known in ports.items()}
    return Site(cast("Cluster", far["cluster"]), cast("Machines", far["machines"]), cast("Checks", far["checks"]))


def stepped(life: EngineBirth, orders: Connection) -> None:
    """Does one thing for each order, in the time that comes with it."""
    living = Living(life, orders)
    assert isinstance(living.clock, GivenClock)
    orders.send(("done", 0, living.points.passed))
    while True:
        living.clock.now, *order = orders.recv()
        try:
            result = living.do(*order)
        except StoreError as error:
            result = error
        orders.send(("done", result, living.points.passed))


def at_large(life: EngineBirth, orders: Connection, calls: Connection) -> None:
    """Goes its own way in real time: watches, plans, sends, and takes what it is handed meanwhile."""
    living = Living(life, calls)
    while True:
        try:
            living.do("watch")
            while living.do("round"):
                pass
        except StoreError as error:
            print(f"{life.holder}: {type(error).__name__}: {error}", file=sys.stderr)
        while wait([orders], TURN):
            try:
                orders.send(living.do(*orders.recv()))
            except StoreError as error:
                orders.send(error)


def _live(life: EngineBirth, ends: list[Connection]) -> None:
    code = BROKEN
    try:
        if life.stepped:
            stepped(life, *ends)
        else:
            at_large(life, *ends)
    except (EOFError, ConnectionError):
        code = 0  # the other side has finished
    except BaseException:  # noqa: BLE001 - whatever it is, the nursery must not go on in the child
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def nursery(control: Connection) -> None:
    load_tables()
    while True:
        try:
            asked = control.recv()
        except EOFError:
            return
        if isinstance(asked, int):
            control.send(os.waitstatus_to_exitcode(os.waitpid(asked, 0)[1]))
            continue
        ends = [Connection(recv_handle(control)) for _ in range(1 if asked.stepped else 2)]
        pid = os.fork()
        if pid == 0:
            control.close()
            _live(asked, ends)
        for end in ends:
            end.close()
        control.send(pid)


if __name__ == "__main__":
    nursery(Connection(int(sys.argv[1])))
