"""How quick a mass failure is quarantined: many nodes fail at once, on SQLite, with the daemon's own workers."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench.far_side import far_hands
from bench.figure import Figure, Line, Size
from bench.rig import LEASE, Bench, RealClock, open_policy, rules_of, store_of, xid
from sickbay.adapters.executors.threads import ThreadExecutor
from sickbay.engine.lead import Engine, Setup
from sickbay.hosts.controller import AT_LEAST, Waking
from sickbay.model.intent import Intent, IntentState
from sickbay.ports.store import Store

WORKERS = 16  # in each lane, as the service has them
GOAL = 5.0
PATIENCE = 600.0
SLOW = 0.005  # seconds that a sync takes at least on a slow disk: a network volume, or one that others use


def _slowed(store: Any, sync: float) -> None:
    """As if the disk took so much longer to sync; nobody writes meanwhile."""
    writing, one = store._db.writing, threading.Lock()  # noqa: SLF001  # nothing else is below every write

    @contextmanager
    def slowly(*, durable: bool = True, **more: bool) -> Iterator[Any]:
        with one:
            with writing(durable=durable, **more) as connection:
                yield connection
            time.sleep(sync if durable else 0.0)

    store._db.writing = slowly  # noqa: SLF001


def measure(nodes: int, group: int, sync: float = 0.0) -> float:
    """Nodes per second from their faults' facts to the answer of each Quarantine."""
    with store_of("sqlite") as store:
        _slowed(store, sync)
        Bench.over(store, RealClock()).populate(nodes)
        store.resign("bench")
        awake = threading.Event()
        executor = Waking(ThreadExecutor(workers_per_lane=WORKERS), awake.set)
        setup = Setup(holder="mass", lease_ttl=LEASE, group=group, strict=True)
        hands = far_hands()
        engine = Engine(store, hands, rules_of(open_policy(), hands), executor, RealClock(), setup)
        bench = Bench(store, RealClock(), engine, Bench.over(store, RealClock()).ingest, nodes)
        bench.settle()
        bench.ingest.take([xid(number, 79, number, at=time.time()) for number in range(nodes)])
        start = time.perf_counter()
        while True:
            awake.clear()
            if not engine.round():
                if _answered(store, nodes) == nodes:
                    break
                awake.wait(AT_LEAST)
            if time.perf_counter() - start > PATIENCE:
                raise RuntimeError(f"{_answered(store, nodes)} of {nodes} were quarantined in {PATIENCE:.0f} s")
        return nodes / (time.perf_counter() - start)


def _answered(store: Store, nodes: int) -> int:
    """How many calls were answered; looked at only when none is left to be sent."""
    if store.tags("planned:"):
        return 0
    rows = store.load(store.keys("intent", limit=2 * nodes)).values()
    return sum(isinstance(row.row, Intent) and row.row.state is IntentState.ACCEPTED for row in rows)


def run(size: Size) -> Figure:
    nodes = size.pick(full=500, quick=300, tiny=20)
    lines = []
    for disk, sync in (("this disk", 0.0), (f"a sync takes {SLOW * 1000:.0f} ms more", SLOW)):
        alone = measure(nodes, 1, sync)
        together = measure(nodes, Setup(holder="").group, sync)
        again = measure(nodes, 1, sync)
        ratio = together / max(alone, again)
        goal = (f"≥ {GOAL:.0f}", ratio >= GOAL) if sync else ("", None)
        lines += [
            Line(f"{disk}, each unit by itself: nodes quarantined", f"{alone:,.0f}/s and {again:,.0f}/s"),
            Line(f"{disk}, together: nodes quarantined", f"{together:,.0f}/s"),
            Line(f"{disk}, together ÷ by itself (the better one)", f"{ratio:.1f}", *goal),
        ]
    return Figure(
        title="Mass failure on SQLite",
        about=(
            f"{nodes:,} nodes fail at once (Xid 79), limits and brakes are open, {WORKERS} workers in a lane call a far"
            " side that answers at once. From the facts to the answer of the last Quarantine. Each unit by itself: one"
            " transaction for each, each SENT and each outcome waits for the disk. Together: what is due is one group,"
            " all SENT of a round share one sync, outcomes that arrive meanwhile share the next. What is saved is"
            " waiting for the disk, so it is measured again as if each sync took longer."
        ),
        lines=tuple(lines),
    )
