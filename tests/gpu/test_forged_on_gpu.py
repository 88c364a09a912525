"""On a real NVIDIA machine (`make gpu-test`): a user without rights forges faults by every way that the machine has.

The agent runs as on any node: it trusts no text log. With SICKBAY_RECORD=DIR the kernel's records are kept there
(tests/fixtures/h200/forged-kmsg.json was made so).
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.gpu.agent_machine import BAD, FOREIGN, RING, Machine, Ring, own_address, recorded, write
from tests.support.waiting import until

from sickbay.knowledge.load import load_tables
from sickbay.model.facts import Observed
from sickbay.model.fault import Remedy
from sickbay.model.protocol import RunLook
from sickbay.signs.classify import classify

NOBODY = 65534
GROUPS = Path("/sys/fs/cgroup")
WAITS = 10.0  # as long as a line waits for its witness
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="this machine has no NVIDIA driver"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become nobody"),
    pytest.mark.skipif(not os.access(RING, os.R_OK | os.W_OK), reason=f"{RING} may not be read and written here"),
]
# At most 15 characters are a process's name.
NAMES = (
    "NVRM: Xid (PCI:", "x\nNVRM: Xid", "x\rNVRM: Xid", "Oops: Bad", "BUG: KASAN: x", "kernel", "> kernel",
    "79, GPU has", "), 79, pid='1'", "name=x\nXid: 79", "EDAC DEVICE0: ", "LustreError: x", "NEURON_HW_ERR=x",
)  # fmt: skip


class Forger:
    """Somebody who may log in and run programs, on GPUs too, and nothing else."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.worked: dict[str, int] = {}
        self.refused: dict[str, str] = {}
        for file in (BAD, BAD.with_name("forger.py")):
            shutil.copy(file, place / file.name)
        place.chmod(0o777)  # that user writes programs there
        self.group = self._group()

    def _group(self) -> Path | None:
        """A control group that is the user's own, as systemd gives one to everybody who logs in."""
        made = GROUPS / "sickbay-forger"
        try:
            with (GROUPS / "cgroup.subtree_control").open("w") as control:
                control.write("+memory")
            made.mkdir(exist_ok=True)
            (made / "cgroup.subtree_control").write_text("+memory")
            for path in (made, made / "cgroup.procs", made / "cgroup.subtree_control"):
                os.chown(path, NOBODY, NOBODY)
            (GROUPS / "cgroup.procs").chmod(0o666)  # moving between groups needs the common parent's
        except OSError:
            return None
        return made

    def forge(self, way: str, *words: str) -> None:
        done = subprocess.run(
            [sys.executable, str(self.place / "forger.py"), way, *words], cwd=self.place, capture_output=True,
            text=True, timeout=60, check=False, user=NOBODY, group=NOBODY, extra_groups=[],
            env={"PATH": os.environ["PATH"]},
        )  # fmt: skip
        # One that crashes, as it wanted, ends by a signal.
        if done.returncode <= 0:
            self.worked[way] = self.worked.get(way, 0) + 1
        else:
            self.refused[way] = (done.stderr.strip().splitlines() or ["refused"])[-1]

    def close(self) -> None:
        shutil.rmtree(self.place)
        if self.group is not None:
            (GROUPS / "cgroup.procs").chmod(0o644)
            for inner in self.group.iterdir():
                if inner.is_dir():
                    inner.rmdir()
            self.group.rmdir()


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    made = Machine(tmp_path_factory.mktemp("agent"), trust_logs=False)
    made.start()
    yield made
    made.close()


@pytest.fixture(scope="module")
def forger() -> Iterator[Forger]:
    made = Forger(Path(tempfile.mkdtemp(prefix="forger-", dir="/tmp")))
    yield made
    made.close()


def acts(news: list[Observed]) -> list[str]:
    """What would take the node out of service."""
    tables = load_tables()
    faults = [classify(one, tables) for one in news if not one.unconfirmed]
    return [f"{fault.code}: {fault.evidence}" for fault in faults if fault is not None and fault.remedy.disrupts]


def test_no_forged_line_causes_an_act_and_the_drivers_own_words_still_count(machine: Machine, forger: Forger) -> None:
    own = f"NVRM: Xid (PCI:{own_address()}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    mark, ring = machine.mark(), Ring()
    for text in (own, f"x\r{own}", f"x\n{own}", "Kernel panic - not syncing: Fatal machine check"):
        for way in ("ring", "terminals", "logs", "syslog", "mount", "terminal"):
            forger.forge(way, text)
        flat = text.replace("/", "_")
        forger.forge("crash_in", flat)
        forger.forge("crash_in", f"{flat} ", "executable stack")
        if forger.group is not None and "\n" not in text:
            forger.forge("memory", flat, str(forger.group))
    for name in NAMES:
        for way in ("crash", "trap", "packets", "cipher", "interface"):
            forger.forge(way, name)
        forger.forge("on_gpu", name, "illegal")
        forger.forge("on_gpu", name, "misaligned")
    until(lambda: any(one.fields.get("number") == 31 for one in machine.since(mark)), 30, machine.complaints)
    time.sleep(2 * WAITS)  # what waits for a witness has waited
    machine.ask(RunLook(look="forged", settle=0.0), "look-forged")
    ring.close()
    told = machine.since(mark)
    recorded("forged-kmsg.json", {"pci": own_address(), "records": ring.records, "worked": forger.worked})
    print("worked:", forger.worked, "\nrefused:", forger.refused, "\nrecords:", len(ring.records))
    for one in told:
        print("unconfirmed" if one.unconfirmed else "told", one.kind, one.fields, one.count, one.text[:200])
    assert acts(told) == []
    assert all(one.unconfirmed for one in told if one.fields.get("number") == 79)
    # What the user really did to the GPU is told with its true number, and blamed on the program.
    tables = load_tables()
    own_faults = [one for one in told if one.kind == "xid" and not one.unconfirmed]
    assert {one.fields["number"] for one in own_faults} <= {13, 31, 43, 45}
    assert {13, 31} <= {one.fields["number"] for one in own_faults}
    assert {fault.remedy for one in own_faults if (fault := classify(one, tables))} <= {Remedy.RESTART_JOB, Remedy.NONE}
    # And it did get its words into the kernel's records: otherwise this test shows nothing.
    assert {"crash", "trap", "crash_in", "on_gpu"} <= forger.worked.keys()
    assert sum("NVRM: Xid" in record or "Xid" in record for record in ring.records) > len(NAMES)
    assert any("segfault at" in record and "Xid" in record for record in ring.records)


def test_what_root_writes_into_the_ring_is_no_fault_either_unless_a_site_says_so(machine: Machine) -> None:
    """The kernel marks what programs write there: it is another facility than its own."""
    mark = machine.mark()
    line = f"NVRM: Xid (PCI:{FOREIGN.format(bus=7)}): 79, pid=1, name=x, written by root"
    write(f"<0>{line}")
    until(lambda: any("written by root" in one.text for one in machine.since(mark)), 3 * WAITS, machine.complaints)
    assert acts(machine.since(mark)) == []
    assert all(one.unconfirmed for one in machine.since(mark) if "written by root" in one.text)
