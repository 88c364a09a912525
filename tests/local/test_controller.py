"""`sickbay controller` with real processes: two clusters that share a pool's name, a policy that changes, an end."""

import json
import signal
import socket
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.controller_rig import Controlled, controlled
from tests.support.up_rig import QUICK

from sickbay.adapters.stores.schema import NEWEST
from sickbay.model.fleet import InForce
from sickbay.model.rows import IN_FORCE
from sickbay.wiring import open_store

pytestmark = pytest.mark.slow

# In pool a/gpu reboots are a program's business; it has the local cluster do them, and writes down that it was asked.
TWO = """\
machines:
  bmc: {{kind: command, reboot: [{power}, "{{node}}", "{{instance_id}}", "{{key}}"]}}
clusters:
  a: {{kind: local, pool: gpu, settings: {{nodes: 2, gpus: 1}}, machines: {{gpu: [bmc, agent], "*": [local, agent]}}}}
  b: {{kind: local, pool: gpu, settings: {{nodes: 2, gpus: 1}}}}
"""
POWER = f"""\
#!{sys.executable}
import sys
from pathlib import Path
from sickbay.clusters.local.machines import LocalMachines
from sickbay.model.fleet import Incarnation
here = Path(__file__).parent
with (here / "asked").open("a") as log:
    log.write(" ".join(sys.argv[1:]) + "\\n")
node, instance, key = sys.argv[1:]
LocalMachines(here / "state" / "clusters" / "a").reboot(node, key=key, expect=Incarnation(instance_id=instance))
"""


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controlled]:
    root = tmp_path_factory.mktemp("two")
    power = root / "power"
    power.write_text(POWER)
    power.chmod(0o755)
    with controlled(root, TWO.format(power=power), nodes=4) as made:
        yield made


def test_two_clusters_that_share_a_pools_name_are_two(rig: Controlled) -> None:
    here = rig.train(60, cluster="a", name="here")
    there = rig.train(60, cluster="b", name="there")
    for job, cluster in ((here, "a"), (there, "b")):
        assert {node.partition("/")[0] for node in rig.reaches(job, 2)["nodes"]} == {cluster}
    third = rig.submit("true", cluster="a", name="third")
    rig.until(lambda: rig.job(third)["queue"], 20, "it waits in the queue of a/gpu alone")
    rig.post("/v1/nodes/a/node-0/inject", defect="ecc_uncorrectable")
    rig.until(lambda: rig.incidents("a/node-0"), 30, "an incident")
    assert {incident["node"] for incident in rig.incidents()} == {"a/node-0"}
    budgets = {pool["pool"]: (pool["size"], pool["out"]) for pool in rig.get("/v1/fleet")["budgets"]}
    assert budgets == {"a/gpu": (2, 1), "b/gpu": (2, 0)}
    assert rig.ends(there)["restarts"] == 0
    assert rig.ends(here)["attempt"] == 2
    rig.phase("a/node-0", "RELEASED")
    rig.ends(third)


def test_a_pools_own_program_reboots_its_node_once(rig: Controlled) -> None:
    before = rig.get("/v1/nodes/a/node-1")
    rig.post("/v1/nodes/a/node-1/inject", xid=79)
    rig.phase("a/node-1", "RELEASED")
    after = rig.get("/v1/nodes/a/node-1")
    assert after["boot_id"] != before["boot_id"]
    asked = (rig.file.parent / "asked").read_text().splitlines()
    assert [line.split()[:2] for line in asked] == [["a/node-1", before["instance_id"]]]


def test_names_say_which_cluster_where_one_name_is_two_nodes(rig: Controlled) -> None:
    def refused(*words: str) -> str:
        done = rig.types(*words)
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done
        return done.stderr

    assert "is more than one node: write a/node-0 or b/node-0" in refused("node", "node-0")
    assert "say which cluster: a, b" in refused("submit", "--name", "x", "--nodes", "1", "--pool", "gpu", "--", "true")
    large = ("submit", "--name", "x", "--nodes", "3", "--cluster", "b", "--", "true")
    assert "3 nodes are asked for, but pool b/gpu has 2" in refused(*large)
    done = rig.types("submit", "--name", "one", "--nodes", "1", "--cluster", "b", "--json", "--wait", "--", "true")
    assert json.loads(done.stdout)["pool"] == "b/gpu", done
    rig.submit("true", name="theirs", nodes=1, cluster="a")
    listed = rig.types("jobs").stdout
    assert "a/gpu" in listed
    assert "b/gpu" in listed
    assert {node["id"] for node in json.loads(rig.types("nodes", "--pool", "b/gpu", "--json").stdout)} == {
        "b/node-0", "b/node-1",
    }  # fmt: skip


def test_a_hangup_takes_the_policy_and_names_what_needs_a_restart(rig: Controlled) -> None:
    before = in_force(rig)
    rig.policy.write_text(QUICK + "limits: [{out_at_least: 2}]\n")
    assert rig.hears("in force now").startswith("in force now: policy ")
    after = rig.until(lambda: in_force(rig) != before and in_force(rig), 20, "the engine goes by it")
    rig.policy.write_text(QUICK + "limit: []\n")
    assert "unknown key 'limit': did you mean 'limits'?" in rig.hears("still in force")
    rig.policy.write_text(QUICK)
    rig.write("  c: {kind: local}\n", policy="recommend")
    assert "clusters, listen have changed: that needs a restart" in rig.hears("needs a restart")
    rig.until(lambda: in_force(rig) not in {before, after}, 20, "the engine goes by it")
    assert rig.get("/v1/policy")["name"] == "recommend"
    rig.write()
    rig.hears("in force now")
    rig.until(lambda: in_force(rig) == before, 20, "as at first")
    assert {node["state"] for node in rig.nodes()} == {"READY"}


def in_force(rig: Controlled) -> str:
    """The digest of the policy that the engine goes by: the row, not what the process was handed."""
    store = open_store(f"sqlite:///{rig.state / 'sickbay.db'}", readonly=True)
    try:
        row = store.load([IN_FORCE])[IN_FORCE].row
        return row.policy if isinstance(row, InForce) else ""
    finally:
        store.close()


def test_a_termination_leaves_jobs_running_and_the_next_one_goes_on(rig: Controlled, tmp_path: Path) -> None:
    job = rig.train(200, cluster="b", name="long")
    rig.reaches(job, 2)
    assert rig.ended_by(signal.SIGTERM) == 0
    assert rig.said()[-1] == "the controller ends; nodes and jobs go on"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(60)
        rig.env["NOTIFY_SOCKET"] = str(tmp_path / "notify")
        rig.up()
        assert systemd.recv(200).startswith(b"READY=1")
    assert rig.ends(job)["restarts"] == 0
    assert "found the nodes that were running" in rig.said()


def test_what_cannot_be_served_is_one_line(rig: Controlled, tmp_path: Path) -> None:
    other = Controlled(tmp_path, "clusters:\n  a: {kind: local}\n", nodes=1)

    def refused(words: str, *more: str, port: int | None = None) -> None:
        other.write(*more, port=port)
        command = other.words()[3:]
        done = other.types(*command)
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done
        assert words in done.stderr

    refused("controller.yaml:6:13: clusters.b.kind: unknown kind 'locl': did you mean 'local'?", "  b: {kind: locl}\n")
    refused(f"port {rig.url.rpartition(':')[2]} is in use", port=int(rig.url.rpartition(":")[2]))
    refused("clusters.b: a local cluster has its own nodes and jobs only", "  b: {kind: local, adopt: all}\n")
    store = tmp_path / "state" / "sickbay.db"
    with sqlite3.connect(store) as database:
        database.execute(f"UPDATE meta SET schema_version = {NEWEST + 1}")
    refused("was written by a newer Sickbay")
    with sqlite3.connect(store) as database:
        assert database.execute("SELECT schema_version FROM meta").fetchone() == (NEWEST + 1,)
    done = other.types(*other.words()[3:], "--check")
    assert "cluster a (local); policy quick (" in done.stdout
    assert done.returncode == 0
