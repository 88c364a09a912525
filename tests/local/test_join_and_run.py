"""One controller, two clusters of another package's kind that share a pool's name, agents that joined by token, and
jobs under `sickbay run` that the clusters' own controllers run: from a line in a log to the first step elsewhere.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support import tiny_kind
from tests.support.controller_rig import Controlled

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
NODES = tuple(f"{cluster}/{name}" for cluster in "ab" for name in ("n0", "n1"))
SECRETS = {"a": "the-join-token-of-cluster-a", "b": "the-join-token-of-cluster-b"}
XID_79 = "NVRM: Xid (PCI:0000:b9:00): 79, pid=4242, name=python, GPU has fallen off the bus."
# It trains until it is told to stand still, and does so once.
SCRIPT = """\
import sys, time
from pathlib import Path
from sickbay import train
still = Path(sys.argv[1])
for step in range(1, 100_000):
    train.heartbeat(step)
    if still.exists():
        still.unlink()
        time.sleep(3600)
    time.sleep(0.1)
"""


class JoinedRig(Controlled):
    """The controller, the clusters' own controllers, and a real agent for each node."""

    def __init__(self, root: Path) -> None:
        rooms = {cluster: root / cluster for cluster in "ab"}
        clusters = "".join(f"  {c}: {{kind: tiny, pool: gpu, settings: {{room: {rooms[c]}}}}}\n" for c in rooms)
        joins = "".join(f"    {c}: {{token_file: {root / f'join-{c}'}}}\n" for c in rooms)
        config = f"clusters:\n{clusters}agents:\n  join:\n{joins}"
        super().__init__(root, config, nodes=len(NODES), path=(root / "site", ROOT))
        self.root, self.rooms = root, rooms
        tiny_kind.install(root / "site")
        self.files = {cluster: tiny_kind.TinyFile(room) for cluster, room in rooms.items()}
        self.natives = {cluster: tiny_kind.TinyController(room, cluster) for cluster, room in rooms.items()}
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        for cluster, secret in SECRETS.items():
            self.secret(f"join-{cluster}", secret)
        for node in NODES:
            cluster, _, name = node.partition("/")
            self.place(node).mkdir(parents=True)
            (self.place(node) / "boot_id").write_text(f"boot-{cluster}-{name}\n")
            (self.place(node) / "messages").touch()
            self.files[cluster].add_node(name, f"i-{cluster}-{name}", f"boot-{cluster}-{name}")
        (root / "train.py").write_text(SCRIPT)

    def secret(self, name: str, text: str) -> Path:
        file = self.root / name
        file.write_text(text)
        file.chmod(0o600)
        return file

    def place(self, node: str) -> Path:
        cluster, _, name = node.partition("/")
        return self.rooms[cluster] / name

    def agent(self, name: str, *, node: str = "", **other: str) -> Path:
        """A real agent, with everything of a node of its own. Where its words on stderr go."""
        node = node or name
        place = self.root / "agents" / name.replace("/", "-")
        place.mkdir(parents=True)
        cluster = node.partition("/")[0]
        settings = {
            "url": self.url, "node": node, "instance_id": f"i-{node.replace('/', '-')}", "state": f"{place}/state",
            "join_token_file": f"{self.root}/join-{cluster}", "boot_id_file": f"{self.place(node)}/boot_id",
            "sources": f"[{self.place(node)}/messages]", "trust_logs": "true", "ranks": f"{self.place(node)}/run",
            "gpus": "0", "metrics": "'off'", **other,
        }  # fmt: skip
        file = place / "agent.yaml"
        file.write_text("".join(f"{key}: {value}\n" for key, value in settings.items()))
        words = [sys.executable, "-m", "sickbay", "agent", "--config", str(file)]
        env = {key: value for key, value in self.env.items() if not key.startswith("SICKBAY_")}
        with (place / "out").open("ab") as out:
            self.agents[name] = subprocess.Popen(words, env=env, stdout=out, stderr=out, start_new_session=True)
        return place / "out"

    def end_agent(self, name: str) -> None:
        agent = self.agents.pop(name)
        agent.send_signal(signal.SIGTERM)
        agent.wait(20)

    def submit_to(self, cluster: str, job: str) -> Path:
        """As its users do. The file that makes it stand still."""
        still = self.root / f"{job}.still"
        training = [sys.executable, str(self.root / "train.py"), str(still)]
        words = [sys.executable, "-m", "sickbay", "run", "--stall-after", "3s", "--", *training]
        self.files[cluster].submit(job, words)
        return still

    def kernel_says(self, node: str, line: str) -> None:
        date = time.strftime("%b %e %H:%M:%S")
        with (self.place(node) / "messages").open("a") as log:
            log.write(f"{date} {node.partition('/')[2]} kernel: {line}\n")

    def running(self, job: str, attempt: int) -> dict[str, Any]:
        """Once it trains in this attempt."""

        def trains() -> dict[str, Any] | None:
            known = {one["id"] for one in self.get("/v1/jobs")}
            found = self.job(job) if job in known else None
            if found is None or (found["attempt"], found["state"]) != (attempt, "RUNNING"):
                return None
            return found if found["step"] else None

        found: dict[str, Any] = self.until(trains, 60, f"{job} trains in attempt {attempt}")
        return found

    def close(self) -> None:
        for name in list(self.agents):
            self.end_agent(name)
        for native in self.natives.values():
            native.stop()
        self.down()


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JoinedRig]:
    made = JoinedRig(tmp_path_factory.mktemp("joined"))
    try:
        made.up()
        for native in made.natives.values():
            native.start()
        for node in NODES:
            made.agent(node)
        made.ready()
        made.until(lambda: str(made.get("/v1/doctor")).count("all 2 are heard") == 2, 60, "all agents are heard")
        yield made
    finally:
        made.close()


def test_agents_join_with_one_secret_for_each_cluster_and_each_has_its_own_token(rig: JoinedRig) -> None:
    tokens = {token["node"]: token["by"] for token in rig.get("/v1/tokens") if token["role"] == "agent"}
    assert tokens == {node: f"join-{node.partition('/')[0]}" for node in NODES}
    boots = {node["id"]: node["boot_id"] for node in rig.nodes()}
    assert boots == {node: f"boot-{node.replace('/', '-')}" for node in NODES}
    for node in NODES:
        kept = rig.root / "agents" / node.replace("/", "-") / "state" / "node.token"
        assert kept.stat().st_mode & 0o777 == 0o600


def test_a_line_in_an_agents_log_leads_to_the_first_step_on_another_node(rig: JoinedRig) -> None:
    rig.submit_to("a", "a-1")
    rig.submit_to("b", "b-1")
    here, there = rig.running("a-1", 1), rig.running("b-1", 1)
    assert (here["nodes"], there["nodes"]) == (["a/n0"], ["b/n0"])
    rig.kernel_says("a/n0", XID_79)
    rig.until(lambda: rig.incidents("a/n0"), 20, "an incident")
    after = rig.running("a-1", 2)
    assert after["nodes"] == ["a/n1"]
    told = rig.until(lambda: rig.job("a-1")["interruptions"][-1]["stages"]["first_step"], 20, "its first step is told")
    assert told
    (interruption,) = rig.job("a-1")["interruptions"]
    assert interruption["incidents"] == [rig.incidents("a/n0")[0]["id"]]
    # The other cluster's job, on a node of the same name in a pool of the same name, was never touched.
    other = rig.job("b-1")
    assert (other["attempt"], other["interruptions"], other["nodes"]) == (1, [], ["b/n0"])
    assert {incident["node"] for incident in rig.incidents()} == {"a/n0"}


def test_a_rank_that_stands_still_is_hung_its_stacks_are_kept_and_it_trains_again(rig: JoinedRig) -> None:
    still = rig.root / "b-1.still"
    rig.running("b-1", 1)
    still.touch()
    after = rig.running("b-1", 2)
    story = "\n".join(rig.story("b-1"))
    assert "<module> (train.py:9)" in story
    assert "STOPPING: hung: rank 0 on b/n0: no step after" in story
    assert len(after["interruptions"]) == 1
    assert rig.job("a-1")["attempt"] == 2


@pytest.mark.parametrize(
    ("name", "other", "says"),
    [
        (
            "wrong-token",
            {"join_token_file": "{root}/wrong"},
            "does not accept the join token in {root}/wrong",
        ),
        ("wrong-cluster", {"join_token_file": "{root}/join-b"}, "join token 'join-b' is for the cluster b"),
        ("wrong-url", {"url": "http://127.0.0.1:9"}, "the controller cannot be reached"),
        ("taken", {}, "the name a/n1 is taken by i-a-n1, whose agent is heard"),
    ],
)
def test_an_agent_that_cannot_join_says_why_in_one_line_and_disturbs_nobody(
    rig: JoinedRig, name: str, other: dict[str, str], says: str
) -> None:
    rig.secret("wrong", "somebody-elses-secret")
    given = {key: value.format(root=rig.root) for key, value in other.items()}
    out = rig.agent(name, node="a/n1", **{"instance_id": "i-stranger", "ranks": str(rig.root / name), **given})
    wanted = says.format(root=rig.root)
    rig.until(lambda: wanted in out.read_text(), 30, wanted)
    rig.end_agent(name)
    assert [line for line in out.read_text().splitlines() if wanted in line] == out.read_text().splitlines()
    assert {node["id"]: node["instance_id"] for node in rig.nodes()}["a/n1"] == "i-a-n1"
    assert len([token for token in rig.get("/v1/tokens") if token["node"] == "a/n1"]) == 1


def test_an_agent_whose_token_was_revoked_joins_anew_and_loses_nothing(rig: JoinedRig) -> None:
    before = rig.types("token", "list", "--json").stdout
    assert rig.types("token", "revoke", "agent of b/n1").returncode == 0
    rig.kernel_says("b/n1", XID_79)

    def joined() -> bool:
        mine = [token for token in rig.get("/v1/tokens") if token["node"] == "b/n1"]
        return len(mine) == 1 and not mine[0]["expired"]

    rig.until(joined, 30, "it has another token")
    rig.until(lambda: rig.incidents("b/n1"), 30, "what it saw meanwhile")
    assert "agent of b/n1" in before
    assert os.path.lexists(rig.root / "agents" / "b-n1" / "state" / "node.token")
