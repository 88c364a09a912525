"""Two `sickbay controller` processes on one PostgreSQL: both serve; the leader is killed -9 and the other goes on."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.support.controller_rig import Controlled
from tests.support.shared_kind import READS, install

from sickbay.clusters.local.rack import Rack

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


class RepairAsked(NamedTuple):
    pid: int
    what: str
    key: str


class ControllerPair:
    """Both work on the same store and the same nodes; `leads` began first, `other` has the agents."""

    def __init__(self, root: Path, url: str) -> None:
        self.room = root / "room"
        install(root / "site")
        path = (root / "site", ROOT)
        settings = f"room: {self.room}, nodes: 2, gpus: 1, boot_takes: 1.0"
        config = "store: '{url}'\nclusters:\n  c: {{kind: shared, settings: {{{settings}, powers: {powers}}}}}\n"
        self.leads = Controlled(
            root / "one", config.format(url=url, settings=settings, powers="false"), nodes=2, path=path
        )
        self.other = Controlled(
            root / "two", config.format(url=url, settings=settings, powers="true"), nodes=2, path=path
        )

    def asked(self) -> list[RepairAsked]:
        lines = [line.split() for line in (self.room / "asked").read_text().splitlines()]
        return [RepairAsked(int(pid), what, key) for pid, what, key in lines]

    def boots(self, node: str) -> set[str]:
        seat = self.room / "seats" / node.partition("/")[2]
        return {path.name for path in seat.glob("instances/*/boots/*")}

    def up(self) -> None:
        self.leads.up()
        self.leads.until(lambda: self.leads.get("/healthz")["leads"], 60, "the first one leads")
        self.other.up()
        self.other.trust((self.leads.state / "operator.token").read_text())
        self.other.ready()

    def down(self) -> None:
        for rig in (self.leads, self.other):
            rig.down()
        if Rack(self.room).exists():
            Rack(self.room).down()


@pytest.fixture
def pair(tmp_path: Path, postgres_url: str) -> Iterator[ControllerPair]:
    made = ControllerPair(tmp_path, postgres_url)
    try:
        made.up()
        yield made
    finally:
        made.down()


def test_the_leader_is_killed_amid_a_repair_and_the_other_ends_it(pair: ControllerPair) -> None:
    first, second = pair.leads, pair.other
    assert not second.get("/healthz")["leads"]
    assert "the store has an administrator already; --new-token makes another" in second.said()
    # What the one that does not lead takes in, the leader acts on: an agent's report, a submission.
    job = second.train(400, nodes=1, name="told-to-the-other")
    second.reaches(job, 2)
    sick = next(node["id"] for node in second.nodes() if node["id"] not in second.job(job)["nodes"])
    before = second.node(sick)["boot_id"]
    second.inject(sick, xid=79)
    second.phase(sick, "REPAIRING")
    assert {asked.pid for asked in pair.asked()} == {first.pid}, "only the leader asks the cluster anything"
    first.kill()
    killed = len(pair.asked())
    second.until(lambda: second.get("/healthz")["leads"], 60, "the other leads")
    second.phase(sick, "RELEASED", seconds=120)
    after = pair.asked()[killed:]
    assert {asked.pid for asked in after} == {second.pid}
    assert [asked.what for asked in after].count("snapshot") == 1
    # What was in doubt when the first one died the other may ask for again, under the same key: it has one effect.
    acts = Counter(asked for asked in pair.asked() if asked.what not in READS)
    assert {asked.what for asked in acts} >= {"cordon", "uncordon", "reboot", "start"}
    assert [act for act, times in acts.items() if times > 1] == [], "nobody asks twice"
    assert len({asked.key for asked in acts if asked.what == "reboot"}) == 1, "one repair"
    assert len(pair.boots(sick)) == 2, "one boot, and the one before it"
    assert second.node(sick)["boot_id"] != before
    assert second.ends(job)["restarts"] == 0
