"""How many incidents are decided in a second: from a fault's fact to the committed Quarantine."""

import time

from bench.figure import Figure, Line, Size
from bench.rig import Bench, store_of, xid
from sickbay.model.incident import Incident, Phase


def measure(kind: str, faults: int) -> float:
    """Incidents per second, over as many nodes as there are faults."""
    with store_of(kind) as store:
        bench = Bench.over(store)
        bench.populate(faults)
        bench.ingest.take([xid(number, 79, number, at=bench.clock.wall()) for number in range(faults)])
        start = time.perf_counter()
        bench.settle()
        seconds = time.perf_counter() - start
        decided = sum(
            isinstance(row.row, Incident) and row.row.phase is Phase.QUARANTINED
            for row in store.load(store.keys("incident", limit=faults)).values()
        )
        if decided != faults:
            raise RuntimeError(f"{decided} of {faults} faults were quarantined")
    return faults / seconds


def run(size: Size) -> Figure:
    faults = size.pick(full=5_000, quick=1_000, tiny=20)
    return Figure(
        title="Decisions per second",
        about=(
            f"{faults:,} nodes fail at once (Xid 79), limits and brakes are open. For each the fact is learned, the"
            " incident opened and planned, its Quarantine written down, marked as sent before the call, sent, and the"
            " call's outcome taken in and learned: four commits and an append for each incident."
        ),
        lines=tuple(Line(f"{kind}: incidents from fact to sent Quarantine", f"{measure(kind, faults):,.0f}/s")
                    for kind in ("memory", "sqlite")),
    )  # fmt: skip
