"""The documented fire drill of HyperPod: a dated line in the system log leads to the repair that the policy wants."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.up_rig import QUICK, Sickbay, running

from sickbay.clusters.local.files import LocalSeat, Paths, read

pytestmark = pytest.mark.slow

HYPERPOD = QUICK.replace("extends: default", "extends: hyperpod")
# As the service's own documentation writes them: with a PCI address that the node does not have.
XID_74 = (
    "NVRM: Xid (PCI:0000:b9:00): 74, pid=<unknown>, name=<unknown>, NVLink: fatal error detected on link 6"
    "(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"
)
XID_73 = XID_74.replace("): 74,", "): 73,")
LONG_AGO = 3600.0


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Sickbay]:
    yield from running(tmp_path / "state", nodes=2, policy=HYPERPOD)


def append(pod: Sickbay, node: str, line: str, ago: float = 0.0) -> None:
    """As people do: `sudo sh -c 'echo "$(date "+%b %d %H:%M:%S") host kernel: …" >> /var/log/messages'`."""
    paths = Paths(pod.state / "local", node.rpartition("/")[2])
    seat = read(paths.seat_file, LocalSeat)
    assert seat is not None
    date = time.strftime("%b %e %H:%M:%S", time.localtime(time.time() - ago))
    with paths.messages(seat.instance_id).open("a") as log:
        log.write(f"{date} ip-10-0-0-7 kernel: {line}\n")


def test_xid_74_in_the_system_log_leads_to_replacement(pod: Sickbay) -> None:
    node = pod.nodes()[0]
    append(pod, node["id"], XID_74)
    incident = pod.phase(node["id"], "RELEASED", 120)
    assert incident["fault"]["code"] == "xid.74"
    assert [one["rung"] for one in incident["tries"]] == ["replace"]
    assert pod.node(node["id"])["instance_id"] != node["instance_id"]


def test_xid_73_in_the_system_log_leads_to_a_reboot(pod: Sickbay) -> None:
    node = pod.nodes()[1]
    append(pod, node["id"], XID_73)
    incident = pod.phase(node["id"], "RELEASED", 120)
    assert incident["fault"]["code"] == "xid.73"
    assert [one["rung"] for one in incident["tries"]] == ["reboot"]
    after = pod.node(node["id"])
    assert (after["instance_id"], after["boot_id"] != node["boot_id"]) == (node["instance_id"], True)


def test_a_line_dated_before_the_boot_does_nothing_and_the_next_one_is_heard(pod: Sickbay) -> None:
    node = pod.nodes()[0]["id"]
    append(pod, node, XID_74, LONG_AGO)
    append(pod, node, XID_73)
    incident = pod.phase(node, "RELEASED", 120)
    assert [one["fault"]["code"] for one in pod.incidents(node)] == ["xid.73"]
    assert not any("xid.74" in line for line in pod.story(incident["id"]))


def test_the_reboot_that_a_line_led_to_does_not_make_it_count_again(pod: Sickbay) -> None:
    node = pod.nodes()[0]["id"]
    append(pod, node, XID_73)
    first = pod.phase(node, "RELEASED", 120)
    append(pod, node, XID_74, LONG_AGO)  # it is read after the old line, and neither means anything
    append(pod, node, "NVRM: Xid (PCI:0000:b9:00): 94, pid=7, name=x, Contained: SM (0x1). RST: No, D-RST: No")
    pod.until(lambda: len(pod.incidents(node)) == 2, 60, "the new line is heard")
    assert [one["fault"]["code"] for one in pod.incidents(node)] == ["xid.73", "xid.94"]
    assert pod.incidents(node)[0]["id"] == first["id"]
