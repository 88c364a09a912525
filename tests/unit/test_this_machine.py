"""This machine as a node: what is its identity, what it promises, and which start is refused."""

import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.support.rank_rig import holder
from tests.unit.test_agent_in_a_container import BOARD, HostTree

from sickbay.clusters.local.files import ClusterFile, Status, write
from sickbay.clusters.local.here.cluster import HereCluster, HereMachines
from sickbay.clusters.local.here.machine import ThisMachine, promises, this_machine
from sickbay.clusters.local.here.settings import furnish
from sickbay.faces.cli.main import main
from sickbay.model.errors import BadInput, Rejected
from sickbay.model.fleet import Device, Incarnation, NodeId

NODE = NodeId("here/gpu-7")


@pytest.fixture
def host(tmp_path: Path) -> HostTree:
    return HostTree(tmp_path / "host")


def machine(host: HostTree, *, allow_reboot: bool = False, **more: Any) -> ThisMachine:
    words = {"host_root": host.root, "kmsg": host.kmsg, "gpus": 2, **more}
    file = host.put("agent.yaml", "\n".join(f"{name}: {value}" for name, value in words.items()))
    return this_machine(host.root / "state", file, allow_reboot=allow_reboot)


def test_it_is_known_by_the_ids_of_the_machine_whoever_is_started_again(host: HostTree) -> None:
    here = machine(host)
    assert here.name == "gpu-7"
    assert here.incarnation == Incarnation(uid=BOARD, instance_id=BOARD, boot_id="boot-of-the-host")
    for _ in range(2):
        rack = furnish(host.root / "c", "here", "", here)
        (seen,) = HereCluster(rack.root, here).snapshot().nodes
        assert (seen.node, seen.incarnation, seen.ready) == (NODE, here.incarnation, False)
        assert [device.index for device in seen.devices] == [0, 1]


def test_acts_that_mean_another_boot_are_refused(host: HostTree) -> None:
    here = machine(host)
    cluster = HereCluster(furnish(host.root / "c", "here", "", here).root, here)
    cluster.cordon(NODE, owner="o", reason="r", key="k1", expect=here.incarnation)
    before = Incarnation(instance_id=BOARD, boot_id="the-one-before")
    with pytest.raises(Rejected, match="is boot boot-of-the-host"):
        cluster.cordon(NODE, owner="o", reason="r", key="k2", expect=before)


def test_nothing_but_its_agent_is_started_again_from_outside(host: HostTree) -> None:
    here = machine(host)
    machines = HereMachines(furnish(host.root / "c", "here", "", here).root, here)
    assert [capability.value for capability in machines.capabilities] == ["restart_service"]
    for act in (machines.reboot, machines.replace, machines.fence):
        with pytest.raises(Rejected, match="this machine"):
            act(NODE, key="k", expect=here.incarnation)


@pytest.mark.parametrize("allow", ["[reset, check]", "[reset, check, reboot]"])
def test_it_may_reboot_only_where_the_command_line_says_so(host: HostTree, allow: str) -> None:
    assert "reboot" not in machine(host, allow=allow).settings.allow
    assert "reboot" in machine(host, allow=allow, allow_reboot=True).settings.allow


def test_an_agent_that_may_reboot_outlives_no_start_without_that_leave(
    host: HostTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sickbay.clusters.local.here.settings.ENDS_WITHIN", 0.2)
    root = host.root / "state/clusters/here"
    paths = furnish(root, "here", "", machine(host, allow_reboot=True)).paths("gpu-7")
    holder().ask("hold", paths.alive)
    write(paths.status, Status(boot_id="b", instance_id="i", pid=1, mono=0.0, agent_pid=os.getpid()))
    try:
        furnish(root, "here", "", machine(host, allow_reboot=True))  # as before: it may stay
        with pytest.raises(BadInput, match=r"sickbay down --state .*state'"):
            furnish(root, "here", "", machine(host))
    finally:
        holder().ask("free", paths.alive)


def test_it_says_what_it_does_here_and_what_it_does_not(host: HostTree) -> None:
    smi = host.put("bin/smi", "#!/bin/sh")
    smi.chmod(0o755)
    told = promises(machine(host, reset_command=f"[{smi}]"), NODE)
    assert told[0] == f"this machine is {NODE}: 2 GPUs, boot boot-of-"
    assert told[1] == f"it watches {host.kmsg}, {host.root}/var/log/syslog"
    assert told[2] == "it restarts jobs, and resets a GPU when nobody else's process has it open"
    assert told[3].startswith("it never reboots or replaces this machine")
    assert "cannot reset a GPU: there is no /none" in promises(machine(host, reset_command="[/none]"), NODE)[2]
    assert "it reboots this machine" in promises(machine(host, allow_reboot=True), NODE)[3]
    cpu = promises(machine(host, gpus=0), NODE)
    assert (cpu[0].split(": ")[1].startswith("no GPU"), cpu[2]) == (True, "it restarts jobs")


def test_gpus_that_cannot_be_read_now_are_those_that_were_known_before(host: HostTree) -> None:
    root = host.root / "c"
    furnish(root, "here", "", machine(host))
    unread = machine(host)._replace(devices=None, trouble="the driver hangs")
    (seen,) = HereCluster(furnish(root, "here", "", unread).root, unread).snapshot().nodes
    assert seen.devices == (Device(index=0), Device(index=1))
    assert "cannot be read now (the driver hangs)" in promises(unread, NODE)[0]


def test_a_machine_without_a_boot_id_is_refused_in_one_line(host: HostTree) -> None:
    empty = host.put("no-boot", "")
    with pytest.raises(BadInput, match="needs Linux"):
        machine(host, boot_id_file=empty)


@pytest.mark.parametrize(
    ("made", "words", "says"),
    [
        ("local", ["--here"], "go on with 'sickbay up'"),
        ("clusters/here", [], "go on with 'sickbay up --here'"),
        ("", ["--allow-reboot"], "--allow-reboot goes with --here"),
        ("", ["--here", "--nodes", "2"], "--here has one node"),
        ("", ["--here", "--demo"], "--here has one node"),
    ],
)
def test_a_start_that_fits_nothing_is_refused_in_one_line(
    tmp_path: Path, made: str, words: list[str], says: str
) -> None:
    if made:
        write(tmp_path / made / "cluster.json", ClusterFile(id="x", seats=("x",)))
    ran = CliRunner().invoke(main, ["up", "--state", str(tmp_path), *words])
    assert ran.exit_code == 2
    assert says in ran.output + str(ran.exception)
    assert not (tmp_path / "sickbay.db").exists()
