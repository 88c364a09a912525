"""The agent in a container: what it reads of the machine is below the host's root, as it is mounted there."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sickbay.agent.bundle import parts_of
from sickbay.agent.commands import Refuse
from sickbay.agent.node import sources_for
from sickbay.agent.node_orders import NodeOrders, own_pids, tools_of
from sickbay.agent.outbox import Outbox
from sickbay.agent.places import Places
from sickbay.agent.probes import Probe
from sickbay.agent.probes.host import HostGauges
from sickbay.agent.probes.journal import JournalEntry
from sickbay.agent.probes.mounts import Mounts
from sickbay.agent.settings import AgentSettings, load
from sickbay.agent.spool import AgentIdentity
from sickbay.agent.watermark import Watermarks
from sickbay.model.fleet import Incarnation, NodeId
from sickbay.model.protocol import RunReboot, RunReset

NODE = NodeId("c/n1")
ME = Incarnation(uid="i-1", instance_id="i-1", boot_id="b")
LATER = 1e12
BOARD = "4c4c4544-0051-3610-8052-b4c04f4d3132"


class HostTree:
    """A machine as a container sees it: its root, mounted somewhere."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.put("proc/1/mounts", "")
        (root / "proc/42").mkdir()
        (root / "proc/self").symlink_to("42")
        self.put("proc/sys/kernel/random/boot_id", "boot-of-the-host")
        self.put("sys/class/dmi/id/product_uuid", BOARD.upper())
        self.put("etc/machine-id", "0123abcd" * 4)
        self.put("etc/hostname", "gpu-7.example.com")
        self.put("var/log/syslog", "")
        (root / "state").mkdir()
        self.kmsg = self.put("kmsg", "")

    def put(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n" if text else "")
        return path

    def process(self, pid: int, name: str, device: str) -> None:
        self.put(f"proc/{pid}/comm", name)
        fd = self.root / "proc" / str(pid) / "fd"
        fd.mkdir()
        (fd / "3").symlink_to(device)

    def settings(self, **more: Any) -> AgentSettings:
        known = {"host_root": str(self.root), "kmsg": str(self.kmsg), "state": str(self.root / "state"), **more}
        return load(Path("/dev/null"), {}, known, alone=True)

    def orders(self, **more: Any) -> dict[type, Any]:
        outbox = Outbox(self.root / "spool", AgentIdentity(node=NODE, incarnation=ME, agent_run="r"))
        senses = Watermarks([Probe("log", lambda _: [], period=1.0, witness=True)], outbox)
        return NodeOrders(tools_of(self.settings(**more), node=NODE, me=ME, tests=list), senses).carry


@pytest.fixture
def host(tmp_path: Path) -> HostTree:
    return HostTree(tmp_path)


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_the_machine_is_known_by_its_own_ids_and_not_by_the_containers(host: HostTree) -> None:
    found = host.settings()
    assert (found.instance_id, found.node) == (BOARD, "default/gpu-7")
    assert Path(found.boot_id_file).read_text() == "boot-of-the-host\n"


def test_the_logs_are_those_of_the_machine(host: HostTree) -> None:
    settings = host.settings()
    named = [source.name for source in sources_for(settings, Places(host.root / "state"), NODE, "b")]
    assert named == ["devkmsg", f"text:{host.root}/var/log/syslog"]
    bundle = parts_of(settings)
    assert bundle.commands["journal.txt"][-1] == f"--root={host.root}"
    assert bundle.files["files/proc/version"] == host.root / "proc/version"
    entry = JournalEntry(boot="b1", machine="0123abcd" * 4, transport="kernel", facility="0")
    assert (entry.by_kernel({"b1"}, "0123abcd" * 4), entry.by_kernel({"b1"}, "f" * 32)) == (True, False)


def test_no_gpu_is_reset_that_a_process_of_the_machine_holds(host: HostTree) -> None:
    host.put("proc/driver/nvidia/gpus/0000:10:00.0/information", "Device Minor: \t 3")
    host.process(77, "python3", "/dev/nvidia3")
    smi = script(host.root / "smi", f'echo "$@" >> {host.root}/called')
    carry = host.orders(reset_command=[smi, "--gpu-reset"])
    with pytest.raises(Refuse, match=r"held by python3 \(pid 77\) has /dev/nvidia3"):
        carry[RunReset](RunReset(key="k", devices=(0,)), LATER)
    assert not (host.root / "called").exists()
    (host.root / "proc/77/fd/3").unlink()
    carry[RunReset](RunReset(key="k", devices=(0,)), LATER)
    assert (host.root / "called").read_text() == "--gpu-reset -i 0\n"


def test_where_the_machines_processes_are_not_seen_nothing_is_reset(host: HostTree) -> None:
    (host.root / "proc/1/mounts").unlink()
    (host.root / "proc/1").rmdir()
    carry = host.orders(reset_command=[script(host.root / "smi", "true")])
    with pytest.raises(Refuse, match="nobody knows who has the GPU"):
        carry[RunReset](RunReset(key="k", devices=(0,)), LATER)


def test_it_reboots_by_the_words_that_it_was_given_and_by_no_others(host: HostTree) -> None:
    words = [script(host.root / "nsenter", f'echo "$@" >> {host.root}/called'), "-t", "1", "--", "systemctl", "reboot"]
    done = host.orders(allow="reboot", reboot_command=words)[RunReboot](RunReboot(key="k"), LATER)
    done.leave()
    assert (host.root / "called").read_text() == "-t 1 -- systemctl reboot\n"
    missing = host.orders(allow="reboot", reboot_command=["/nonexistent/nsenter", "reboot"])
    with pytest.raises(Refuse, match=r"there is no /nonexistent/nsenter here: write reboot_command"):
        missing[RunReboot](RunReboot(key="k"), LATER)


def test_commands_come_through_the_environment_as_a_list(host: HostTree) -> None:
    words = {"SICKBAY_REBOOT_COMMAND": '["nsenter", "-t", "1", "--", "reboot"]', "SICKBAY_HOST_ROOT": str(host.root)}
    assert load(Path("/dev/null"), words, {}, alone=True).reboot_command == ("nsenter", "-t", "1", "--", "reboot")


def test_a_file_system_of_the_machine_that_the_container_does_not_see_is_no_healthy_one(host: HostTree) -> None:
    host.put("proc/1/mounts", "fs:/x /fsx nfs4 rw 0 0")
    (host.root / "fsx").mkdir()
    (sign,) = Mounts(root=str(host.root)).look(0.0)
    assert (sign.kind, sign.fields) == ("probe.failed", {"mount": "/fsx"})
    assert "mountPropagation" in sign.text
    named = Mounts(("/gone",), root=str(host.root))
    assert [sign.kind for sign in named.look(0.0)] == ["probe.failed"]
    named.settle(5.0)
    found = {sign.kind: sign.fields["mount"] for sign in named.look(10.0)}
    assert found == {"probe.failed": "/fsx", "fs.io_error": "/gone"}
    named.settle(5.0)


def test_places_have_the_names_that_they_have_on_the_machine(host: HostTree) -> None:
    values = HostGauges(host.settings(), NODE).values()
    assert "disk.root.used_percent" in values
    assert not [name for name in values if host.root.name in name]


def test_its_own_process_has_the_machines_number(host: HostTree) -> None:
    assert own_pids(host.root / "proc") == (42,)


# --- a real container, as far as this machine allows one

SEEN_FROM_INSIDE = """
import json, sys
from pathlib import Path
from sickbay.agent.node_orders import holders, own_pids
from sickbay.agent.settings import load
root = Path(sys.argv[1])
settings = load(Path("/dev/null"), {}, {"host_root": str(root)}, alone=True)
inside = sorted(int(one.name) for one in Path("/proc").glob("[0-9]*"))
print(json.dumps({"held": holders((), root / "proc", own_pids(root / "proc")), "inside": inside,
                  "blind": holders((), Path("/proc")), "boot": Path(settings.boot_id_file).read_text().strip(),
                  "own": own_pids(root / "proc")}))
"""
# The machine: a file system for devices, a process that has one open, and a container with processes of its own.
MACHINE = """
mount -t tmpfs none "$1/dev" && touch "$1/dev/nvidia3" "$1/dev/null" && mkdir "$1/host" || exit 99
mount --bind /dev/null "$1/dev/null" && mount --rbind "$1/dev" /dev || exit 99
sleep 60 3</dev/nvidia3 &
echo $! > "$1/pid"
mount --rbind / "$1/host" || exit 99
unshare --pid --fork --mount-proc "$2" -c "$3" "$1/host"
code=$?
kill $!
exit $code
"""


@pytest.mark.slow
def test_a_real_container_sees_who_holds_a_gpu_outside_it(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    words = ["unshare", "--mount", "sh", "-c", MACHINE, "machine", str(tmp_path), sys.executable, SEEN_FROM_INSIDE]
    try:
        ran = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    except FileNotFoundError:
        pytest.skip("there is no unshare here")
    if ran.returncode == 99 or "Operation not permitted" in ran.stderr:
        pytest.skip(f"no namespaces here: {ran.stderr.strip()[-200:]}")
    assert ran.returncode == 0, ran.stderr
    seen = json.loads(ran.stdout)
    pid = int((tmp_path / "pid").read_text())
    assert seen["held"] == [f"sleep (pid {pid}) has /dev/nvidia3"]
    assert seen["blind"] == []  # without the host's root it would have reset the GPU under that process
    assert pid not in seen["inside"]
    assert seen["own"] != [1]
    assert seen["boot"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
