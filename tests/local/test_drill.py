"""A fire drill as an operator runs it: the real command line, the real API, the node's own agent, real repairs."""

import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.local.test_node_agent import LONG_AGO, append
from tests.support.up_rig import QUICK, Sickbay, running

pytestmark = pytest.mark.slow

HYPERPOD = QUICK.replace("extends: default", "extends: hyperpod")
DRILL = "NVRM: Xid (PCI:0000:ff:1f): {}, pid='<unknown>', name=<unknown>, written by an operator as a drill"
CONTAINED = "NVRM: Xid (PCI:0000:b9:00): 94, pid=7, name=x, Contained: SM (0x1). RST: No, D-RST: No"


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Sickbay]:
    yield from running(tmp_path / "state", nodes=2, policy=HYPERPOD)


def sickbay(pod: Sickbay, *words: str, token: str | None = None) -> "subprocess.CompletedProcess[str]":
    given = token if token is not None else (pod.state / "operator.token").read_text().strip()
    env = {**os.environ, "XDG_CONFIG_HOME": str(pod.state / "config"), "SICKBAY_URL": pod.url, "SICKBAY_TOKEN": given}
    return subprocess.run(
        [sys.executable, "-m", "sickbay", *words], env=env, capture_output=True, text=True, timeout=120, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


def refused(said: "subprocess.CompletedProcess[str]") -> str:
    """Its one line; what is under way is said before it is known how it ends."""
    assert said.returncode != 0
    lines = [line for line in said.stderr.strip().splitlines() if not line.endswith("…")]
    assert len(lines) == 1, said.stderr
    assert "Traceback" not in said.stderr
    return lines[0]


def audit(pod: Sickbay, verb: str) -> list[str]:
    return [row["text"] for row in pod.get("/v1/audit") if f" {verb}" in row["text"]]


@pytest.mark.parametrize(("xid", "rung"), [(73, "reboot"), (74, "replace")])
def test_a_drill_leads_to_the_repair_that_the_policy_wants_and_is_audited(pod: Sickbay, xid: int, rung: str) -> None:
    node = pod.nodes()[0]
    said = sickbay(pod, "inject", node["id"], "--xid", str(xid), "--log", "--yes", "--reason", f"drill {xid}")
    assert said.returncode == 0, said.stderr
    assert DRILL.format(xid) in said.stdout
    incident = pod.phase(node["id"], "RELEASED", 120)
    assert incident["fault"]["code"] == f"xid.{xid}"
    assert "written by an operator as a drill" in " ".join(incident["fault"]["evidence"])
    assert [one["rung"] for one in incident["tries"]] == [rung]
    after = pod.node(node["id"])
    assert after["boot_id"] != node["boot_id"]
    assert (after["instance_id"] == node["instance_id"]) is (rung == "reboot")
    (audited,) = audit(pod, "inject")
    assert "operator" in audited
    assert f"drill {xid}" in audited


def test_who_may_not_or_does_not_say_why_is_refused_in_one_line_and_nothing_is_written(pod: Sickbay) -> None:
    node = pod.nodes()[0]["id"]
    words = ("inject", node, "--xid", "73", "--log", "--yes")
    assert "--reason" in refused(sickbay(pod, *words))
    assert "--reason" in refused(sickbay(pod, "node", node, "--collect"))
    made = sickbay(pod, "token", "create", "watcher", "--role", "viewer", "--json")
    viewer = json.loads(made.stdout)["token"]
    for asked in ((*words, "--reason", "drill"), ("node", node, "--collect", "--reason", "x")):
        line = refused(sickbay(pod, *asked, token=viewer))
        assert "operator" in line
    assert "token" in refused(sickbay(pod, *words, "--reason", "drill", token="wrong"))
    # Who is asked first and gives no answer has not agreed.
    assert sickbay(pod, "inject", node, "--xid", "73", "--log", "--reason", "drill").returncode != 0
    assert not pod.incidents(node)
    assert not audit(pod, "inject")
    assert not audit(pod, "collect")


def test_a_line_that_is_older_than_the_boot_or_than_what_was_proven_since_does_nothing(pod: Sickbay) -> None:
    node = pod.nodes()[0]["id"]
    append(pod, node, DRILL.format(74), LONG_AGO)  # before the boot
    said = sickbay(pod, "inject", node, "--xid", "73", "--log", "--yes", "--reason", "drill")
    assert said.returncode == 0, said.stderr
    began = time.time()
    first = pod.phase(node, "RELEASED", 120)
    assert [one["fault"]["code"] for one in pod.incidents(node)] == ["xid.73"]
    append(pod, node, DRILL.format(73), time.time() - began + 2)  # of the handled incident itself
    append(pod, node, DRILL.format(74), time.time() - began)  # before its proof
    append(pod, node, CONTAINED)  # and this one shows that they have been read
    pod.until(lambda: len(pod.incidents(node)) == 2, 60, "the new line is heard")
    assert [one["fault"]["code"] for one in pod.incidents(node)] == ["xid.73", "xid.94"]
    assert pod.incidents(node)[0]["id"] == first["id"]


def test_a_bundle_is_gathered_by_the_nodes_own_agent(pod: Sickbay) -> None:
    node = pod.nodes()[1]["id"]
    append(pod, node, "usb 1-1: new high-speed USB device number 2")
    said = sickbay(pod, "node", node, "--collect", "--reason", "for support", "--json")
    assert said.returncode == 0, said.stderr
    done = json.loads(said.stdout)["done"]
    path = next(Path(word) for word in done.split() if word.startswith("/"))
    with tarfile.open(path) as tar:
        parts = {name.partition("/")[2] for name in tar.getnames()}
    assert {"kmsg.txt", "messages.txt", "versions.json"} <= parts
    (audited,) = audit(pod, "collect")
    assert "for support" in audited
    assert pod.node(node)["state"] == "READY"


@pytest.mark.parametrize(
    ("words", "says"),
    [(("--line", "hello"), "the kernel says no such thing"), (("--defect", "list"), ""),
     (("--xid", "73", "--device", "1"), "leave --defect, --device")],
)  # fmt: skip
def test_a_drill_that_makes_no_sense_is_one_line(pod: Sickbay, words: tuple[str, ...], says: str) -> None:
    node = pod.nodes()[0]["id"]
    said = sickbay(pod, "inject", node, *words, "--log", "--yes", "--reason", "drill")
    if not says:
        assert said.returncode == 0
    else:
        assert says in refused(said)
    assert not pod.incidents(node)
