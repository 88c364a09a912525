"""Every order in every phase and mode, on the simulator: what is answered at once, and what comes of it in the end.

`python -m tests.support.orders_table` writes the tables of docs/orders.md anew.
"""

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.wards import DAY, HOUR, OPENS_AT_THREE, POLITE, Ward, cluster_without, in_phase, policy_with

from sickbay.faces.archive import Archive
from sickbay.faces.orders import order_answer
from sickbay.model.cordon import cordon_of
from sickbay.model.errors import Transient
from sickbay.model.fault import Remedy
from sickbay.model.fleet import NodeId
from sickbay.model.incident import Phase
from sickbay.model.order import OrderRecord, OrderVerdict, order_id
from sickbay.model.policy import FaultRule, Match, Mode
from sickbay.policy.load import digest
from sickbay.sim.context import Timings

PAGE = Path(__file__).parents[2] / "docs" / "orders.md"
BEGIN, END = "<!-- tables -->\n", "<!-- end of tables -->\n"
NODE_ORDERS = ("cordon", "uncordon", "drain", "reset", "reboot", "replace")
WITH_NOW = ("drain", "reset", "reboot", "replace")
INCIDENT_ORDERS = ("confirm", "hold", "dismiss", "escalate")
ORDERS = (*NODE_ORDERS, *(f"{verb} --now" for verb in WITH_NOW), *INCIDENT_ORDERS)
REPAIRS = {"reset": ("reset_gpu", "reboot", "replace"), "reboot": ("reboot", "replace"), "replace": ("replace",)}
OPEN = frozenset({OrderVerdict.WAITS, OrderVerdict.UNDER_WAY})

Given = tuple[Ward, NodeId]


# --- situations: a mode, and a phase that can be met in it


def _settings(**changes: Any) -> dict[str, Any]:
    return {"policy": policy_with(pace=POLITE, **changes), "rules": Timings(work_lasts=600.0)}


def _well(**more: Any) -> Given:
    w = Ward(**{**_settings(), **more})
    w.run(60)
    return w, w.nodes[0]


def _phase(phase: Phase) -> Given:
    return in_phase(Ward, phase)


def _cordoned(**more: Any) -> Given:
    w, node = _well(**more)
    w.order("cordon", node)
    w.reaches(node, Phase.HELD, HOUR)
    return w, node


def _rebooted() -> Given:
    """Cordoned by a person, and rebooted and proven for him."""
    w, node = _cordoned()
    w.order("reboot", node)
    w.until(lambda: bool(w.passed_checks(node)) and w.phase(node) == Phase.HELD, HOUR)
    return w, node


def _ladders_end() -> Given:
    """HELD because nothing that was tried has helped."""
    w = Ward(cluster=cluster_without("replace"), **_settings())
    w.sick(w.nodes[0], "xid.79", None)
    w.reaches(w.nodes[0], Phase.HELD, DAY)
    return w, w.nodes[0]


def _put_on_hold() -> Given:
    w, node = in_phase(Ward, Phase.DRAINED)
    w.order("hold", w.incident(node).id)
    w.reaches(node, Phase.HELD, HOUR)
    return w, node


def _closing() -> Given:
    from tests.scenario.test_acts import Channel  # a cluster that does not take our release yet

    w = Ward(**_settings())
    node = w.nodes[0]
    w.sick(node, "xid.48", Remedy.RESET_GPU)
    channel = Channel(w.sim.hands.sites["sim"].cluster, "uncordon", lambda _: Transient("API down"))
    w.until(lambda: bool(w.phase(node)) and w.incident(node).closing is not None, 2 * HOUR)
    w.lift = channel.works  # type: ignore[attr-defined]
    return w, node


def _paused(given: Given) -> Given:
    given[0].order("pause", "")
    given[0].run(5)
    return given


def _ruled(mode: Mode, *, sick: bool) -> Given:
    rule = FaultRule(match=Match(fault=("xid.*",)), mode=mode)
    w, node = _well(**_settings(faults=(rule,)))
    if sick:
        w.sick(node, "xid.79", Remedy.REBOOT)
        w.reaches(node, Phase.SUSPECT, HOUR)
        w.run(20)
    return w, node


def _braked(*, sick: bool) -> Given:
    w = Ward(nodes=8, **_settings())
    struck = w.nodes[0:4] if sick else w.nodes[1:5]
    for node in struck:
        w.sick(node, "xid.79", Remedy.REBOOT)
    w.run(60)
    assert any(w.phase(node) == Phase.SUSPECT for node in struck), w.why()
    suspect = next((node for node in reversed(struck) if w.phase(node) == Phase.SUSPECT), w.nodes[0])
    return w, suspect if sick else w.nodes[0]


def _outside(*, wish: bool = False) -> Given:
    """A well node outside the maintenance window, perhaps with a reboot that waits for it."""
    w, node = _well(**_settings(windows=OPENS_AT_THREE))
    if wish:
        w.order("reboot", node)
        w.reaches(node, Phase.SUSPECT, HOUR)
        w.run(20)
    return w, node


def _spent(*, sick: bool) -> Given:
    """Another node is held: the pool of four may lack no further one."""
    w = Ward(nodes=4, cluster=cluster_without("replace"), **_settings())
    w.sick(w.nodes[3], "xid.79", None)
    w.reaches(w.nodes[3], Phase.HELD, DAY)
    node = w.nodes[0]
    if sick:
        w.sick(node, "xid.79", Remedy.REBOOT)
        w.reaches(node, Phase.SUSPECT, HOUR)
        w.run(20)
    return w, node


def _unable() -> Given:
    return in_phase(Ward, Phase.HELD)  # of a cluster that can repair nothing


SITUATIONS: dict[str, dict[str, Callable[[], Given]]] = {
    "mode act": {
        "well": _well,
        "WATCHED": lambda: _phase(Phase.WATCHED),
        "QUARANTINED": lambda: _phase(Phase.QUARANTINED),
        "DRAINING": lambda: _phase(Phase.DRAINING),
        "REPAIRING": lambda: _phase(Phase.REPAIRING),
        "VERIFYING": lambda: _phase(Phase.VERIFYING),
        "closing": _closing,
    },
    "HELD": {
        "cordoned": _cordoned,
        "cordoned, rebooted": _rebooted,
        "ladder's end": _ladders_end,
        "on hold": _put_on_hold,
        "nothing can repair it": _unable,
    },
    "mode recommend": {
        "well": lambda: _ruled(Mode.RECOMMEND, sick=False),
        "SUSPECT": lambda: _ruled(Mode.RECOMMEND, sick=True),
    },
    "mode observe": {
        "well": lambda: _ruled(Mode.OBSERVE, sick=False),
        "SUSPECT": lambda: _ruled(Mode.OBSERVE, sick=True),
    },
    "brake on": {"well": lambda: _braked(sick=False), "SUSPECT": lambda: _braked(sick=True)},
    "paused": {
        "well": lambda: _paused(_well()),
        "SUSPECT": lambda: _phase(Phase.SUSPECT),
        "cordoned": lambda: _paused(_cordoned()),
    },
    "window closed": {
        "well": _outside,
        "SUSPECT (a wish waits)": lambda: _outside(wish=True),
        "DRAINED": lambda: _phase(Phase.DRAINED),
        "cordoned": lambda: _cordoned(**_settings(windows=OPENS_AT_THREE)),
    },
    "budget spent": {"well": lambda: _spent(sick=False), "SUSPECT": lambda: _spent(sick=True)},
}


# --- one cell


@dataclass(frozen=True)
class Cell:
    first: OrderVerdict
    last: OrderVerdict
    phase: str  # of the node's newest incident at rest
    because: str  # of the first answer
    in_the_end: str
    ended_by: bool  # whether its wait said until when, or what would end it

    @property
    def text(self) -> str:
        first = self.first.replace("_", " ")
        if self.first not in OPEN:
            return first
        return f"{first} → {self.last.replace('_', ' ')}{f' ({self.phase})' if self.phase else ''}"


def carry_out(mode: str, phase: str, order: str) -> Cell:
    w, node = SITUATIONS[mode][phase]()
    verb, _, now = order.partition(" ")
    incident = w.node(node).incident
    began = {act: len(w.happened(act, node)) for act in REPAIRS["reset"]}
    w.order(verb, (incident or "i0") if verb in INCIDENT_ORDERS else node, now=bool(now))
    ident = order_id(f"order/{w.sim.orders}")
    w.run(2)
    w.until(lambda: _record(w, ident) is not None, 10)
    first = _answer(w, ident)
    _lift(w, mode, phase)
    last = _answer(w, ident)
    for hours in (1, 1, 2, 4, 16):
        w.run(hours * HOUR)
        if (last := _answer(w, ident)).verdict not in OPEN:
            break
    cell = Cell(
        first=first.verdict,
        last=last.verdict,
        phase=w.phase(node),
        because=first.because,
        in_the_end=last.because,
        ended_by=first.until is not None or bool(first.changed_by),
    )
    _holds(cell, w, node, verb, began)
    return cell


def _record(w: Ward, ident: str) -> OrderRecord | None:
    row = w.sim.store.load([f"order:{ident}"])[f"order:{ident}"].row
    return row if isinstance(row, OrderRecord) else None


def _answer(w: Ward, ident: str) -> Any:
    record = _record(w, ident)
    assert record is not None, w.why()
    return order_answer(Archive(w.sim.store, {digest(w.sim.policy): w.sim.policy}), record)


def _lift(w: Ward, mode: str, phase: str) -> None:
    """What held it back ends: as it would by itself, or by a person."""
    if mode == "paused":
        w.order("unpause", "")
    elif phase == "closing":
        w.lift()  # type: ignore[attr-defined]
    elif mode == "window closed":
        w.run(4 * HOUR)
    elif mode == "budget spent":
        w.order("dismiss", w.incident(w.nodes[3]).id)


def _holds(cell: Cell, w: Ward, node: NodeId, verb: str, began: dict[str, int]) -> None:
    """What must be true of every cell, whatever it says."""
    assert cell.because, "an answer says why"
    assert cell.last not in OPEN, f"accepted, and nothing ever happens: {cell.in_the_end}\n{w.why()}"
    if cell.first in OPEN and cell.last is OrderVerdict.REFUSED:
        assert cell.in_the_end, "what did not come about says why"
    if cell.first is OrderVerdict.WAITS:
        assert cell.ended_by, f"a wait says what ends it: {cell.because}"
    if cell.last is not OrderVerdict.DONE:
        return
    incident = w.node(node).incident
    ours = incident is not None and cordon_of(incident) in w.world.seat(node).cordons
    if verb in {"cordon", "drain"}:
        assert ours, f"done, and no cordon is there\n{w.why()}"
        assert cell.phase == Phase.HELD
    if verb in {"dismiss", "uncordon"}:
        assert not ours, f"done, and our cordon is there\n{w.why()}"
    if verb in REPAIRS:
        made = sum(len(w.happened(act, node)) - began[act] for act in REPAIRS[verb])
        assert made or cell.because.startswith("reset"), f"done, and nothing was repaired\n{w.why()}"


# --- the page


def cells() -> Iterable[tuple[str, str, str]]:
    return ((mode, phase, order) for mode, phases in SITUATIONS.items() for phase in phases for order in ORDERS)


def published() -> dict[tuple[str, str, str], str]:
    """What the page says of each cell."""
    said: dict[tuple[str, str, str], str] = {}
    mode, phases = "", []
    for line in PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].splitlines():
        row = [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        if line.startswith("### "):
            mode = line[4:].strip()
        elif line.startswith("| order"):
            phases = row[1:]
        elif line.startswith("| `"):
            said |= {(mode, phase, row[0]): text for phase, text in zip(phases, row[1:], strict=True)}
    return said


def write() -> None:
    tables = []
    for mode, phases in SITUATIONS.items():
        lines = [f"### {mode}\n", f"| order | {' | '.join(phases)} |", f"|---|{'---|' * len(phases)}"]
        for order in ORDERS:
            found = [carry_out(mode, phase, order).text for phase in phases]
            lines.append(f"| `{order}` | {' | '.join(found)} |")
            sys.stderr.write(f"{mode}: {order}: {found}\n")
        tables.append("\n".join(lines))
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n" + "\n\n".join(tables) + f"\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    write()
