"""Every card of the fabric: EFA by libfabric's own ping-pong, InfiniBand by that of rdma-core, over the card to itself.

A machine without such cards has no such tests; one with cards and without the tools could not be tested.
"""

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from sickbay.agent.checks import Exercise, Result
from sickbay.agent.checks.apart import ExerciseOutcome, run_tool, start_child, together
from sickbay.model.checkup import Verdict

TOOLS = ("/opt/amazon/efa/bin", "/usr/bin", "/usr/local/bin")
ONE_CARD = 40.0  # seconds
FIRST_PORT = 47_592
READY = 0.5  # seconds until a server listens; a client that comes too early tries again
TRIES = 4


class NetworkCard(NamedTuple):
    name: str  # rdmap16s27, mlx5_0
    driver: str  # efa, mlx5_core …
    state: str  # ACTIVE, DOWN …; empty: it does not say
    ethernet: bool = False


def cards(sysfs: Path = Path("/sys")) -> tuple[NetworkCard, ...]:
    found = []
    for path in sorted((sysfs / "class/infiniband").glob("*")):
        port = path / "ports/1"
        found.append(
            NetworkCard(
                name=path.name,
                driver=(path / "device/driver").resolve().name,
                state=_word(port / "state").rpartition(":")[2].strip(),
                ethernet=_word(port / "link_layer") == "Ethernet",
            )
        )
    return tuple(found)


def network_tests(sysfs: Path = Path("/sys"), places: Sequence[str] = TOOLS) -> list[Exercise]:
    here = cards(sysfs)
    tests: list[Exercise] = []
    for name, kind in (("efa_loopback", "efa"), ("ib_loopback", "")):
        mine = [card for card in here if (card.driver == "efa") == (kind == "efa")]
        if mine:
            tests.append(Exercise(name, 3, _testing(mine, kind, places), 10.0 + ONE_CARD * len(mine), ("network",)))
    return tests


def _testing(mine: Sequence[NetworkCard], kind: str, places: Sequence[str]) -> Callable[[float], Result]:
    def run(until: float) -> Result:
        # One after the other: they share ports, and a machine with 32 cards has other things to do as well.
        return together([card.name for card in mine], [_one(card, kind, until, places) for card in mine])

    return run


def _one(card: NetworkCard, kind: str, until: float, places: Sequence[str]) -> ExerciseOutcome:
    if card.state and card.state != "ACTIVE":
        return ExerciseOutcome(Verdict.FAIL, f"its link is {card.state}")
    if kind == "efa":
        tool, needs = "fi_pingpong", "libfabric (the EFA installer brings it)"
    else:
        tool, needs = "ibv_rc_pingpong", "the package ibverbs-utils or rdma-core"
    path = find(tool, places)
    if not path:
        return ExerciseOutcome(Verdict.COULD_NOT_RUN, f"{tool} is not installed: it comes with {needs}")
    limit = min(until, time.monotonic() + ONE_CARD)
    if kind == "efa":
        return _efa(card, path, limit, places)
    argv = [path, "-d", card.name, "-n", "1000", "-s", "65536", "-p", str(FIRST_PORT)]
    if card.ethernet:
        argv += ["-g", "0"]
    return _pingpong(argv, limit)


def _efa(card: NetworkCard, path: str, until: float, places: Sequence[str]) -> ExerciseOutcome:
    """A card that libfabric does not list is silent, and fails."""
    info = find("fi_info", places)
    if info:
        listed = run_tool([info, "-p", "efa", "-d", f"{card.name}-rdm"], until)
        if listed.code is None:
            return ExerciseOutcome(Verdict.COULD_NOT_RUN, "fi_info did not come back")
        if listed.code:
            return ExerciseOutcome(Verdict.FAIL, f"libfabric does not see it: {listed.last}")
    return _pingpong([path, "-p", "efa", "-e", "rdm", "-d", f"{card.name}-rdm", "-I", "1000", "-S", "65536"], until)


def _pingpong(argv: Sequence[str], until: float) -> ExerciseOutcome:
    """A server and a client of one tool. The server is there first; a client that finds nobody tries again."""
    server = start_child(argv)
    said = ""
    try:
        for _ in range(TRIES):
            time.sleep(READY)
            if server.ended() or time.monotonic() >= until:
                break
            client = run_tool([*argv, "localhost"], until)
            if client.code == 0:
                return ExerciseOutcome(Verdict.PASS, "", {"seconds": round(client.seconds, 3)})
            if client.code is None:
                return ExerciseOutcome(
                    Verdict.FAIL, f"no answer came over the card itself within {client.seconds:.0f} s"
                )
            said = client.last
    finally:
        heard = server.finish(0.0)
    return ExerciseOutcome(
        Verdict.FAIL, f"nothing came back over the card itself: {said or heard.last or 'no word from the tool'}"
    )


def find(tool: str, places: Sequence[str] = TOOLS) -> str:
    return next((str(path) for place in places if (path := Path(place, tool)).exists()), "") or shutil.which(tool) or ""


def _word(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
