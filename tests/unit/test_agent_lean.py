"""What an agent does not load, as its memory is mostly the code of modules, and what it does not look at."""

import subprocess
import sys
from pathlib import Path

import pytest

from sickbay.agent.probes.gauges import SEARCH_EVERY, Gauges
from sickbay.agent.probes.machine import HUNG_FOR, Machine

WATCHING = """
import sys
import sickbay.agent.node, sickbay.agent.reporter, sickbay.agent.probes.gpus, sickbay.agent.probes.host
from sickbay.knowledge.counters import counter_rules
from sickbay.signs.kernel import parse_line
from sickbay.knowledge.load import _shipped
from sickbay.signs.scanner import lines_of_interest
line = "Mar  4 11:22:33 node-0 kernel: NVRM: Xid (PCI:0000:b9:00): 79, pid=1, name=python, GPU has fallen off the bus."
assert [parse_line(line[a:b]).kind for a, b in lines_of_interest(line.encode())] == ["xid"]
assert counter_rules()
print(*sorted(sys.modules), "tables" if _shipped.cache_info().currsize else "")
"""


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    done = subprocess.run([sys.executable, "-c", WATCHING], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "name",
    ["yaml", "click", "sqlalchemy", "starlette", "http.client", "email", "ssl", "_hashlib", "zipfile", "tempfile",
     "importlib.resources", "urllib.request", "asyncio", "logging", "sickbay.engine", "sickbay.faces", "tables"],
)  # fmt: skip
def test_an_agent_that_watches_never_loads(loaded: set[str], name: str) -> None:
    assert "sickbay.agent.node" in loaded
    assert name not in loaded


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(("load", "told"), [("0.79 0.1 0.1 1/400 9\n", 0), ("0.86 0.3 0.1 1/400 9\n", 1)])
def test_processes_are_looked_at_only_where_one_of_them_could_hang(tmp_path: Path, load: str, told: int) -> None:
    put(tmp_path / "proc/loadavg", load)
    put(tmp_path / "proc/77/stat", "77 (cp) D " + " ".join(str(n) for n in range(30)))
    put(tmp_path / "proc/77/wchan", "nfs_wait_bit_killable")
    machine = Machine(tmp_path / "sys", tmp_path / "proc")
    assert list(machine.hung(0.0)) == []
    assert len(list(machine.hung(HUNG_FOR))) == told


def test_a_disk_that_is_plugged_in_is_on_the_charts_after_a_minute(tmp_path: Path) -> None:
    gauges = Gauges(tmp_path / "sys", tmp_path / "proc", ())
    name = "disk.read_bytes_per_second"
    gauges.values(0.0)
    put(tmp_path / "sys/block/nvme0n1/device/model", "x")
    for now, sectors in ((10.0, 10), (SEARCH_EVERY, 100), (SEARCH_EVERY + 10.0, 300)):
        put(tmp_path / "sys/block/nvme0n1/stat", f"0 0 {sectors} 0 0 0 0 0\n")
        last = gauges.values(now).get(name)
    assert last == pytest.approx(200 * 512 / 10.0)
