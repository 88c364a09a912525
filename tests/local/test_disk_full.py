"""The disk of the store is full while a GPU breaks: nothing is decided wrongly, and with room all goes on by itself."""

import contextlib
import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import httpx
import psutil
import pytest
from tests.support.up_rig import Sickbay

from sickbay.clusters.local.files import Paths

pytestmark = pytest.mark.slow

SIZE = 24 << 20
# As it comes: agents are silent after half a minute, so that a short outage of the store is nobody's silence.
POLICY = "extends: default\n"
LARGE = "x" * 32_000  # something small might just fit in


class Disk(Protocol):
    def fill(self, controller: int) -> None: ...
    def free(self, controller: int) -> None: ...


class Mounted:
    """A small file system of its own, which is really full."""

    def __init__(self, place: Path) -> None:
        self._ballast = place / "ballast"

    def fill(self, controller: int) -> None:
        del controller
        handle = os.open(self._ballast, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            with contextlib.suppress(OSError):
                while True:
                    os.write(handle, b"\0" * 4096)
        finally:
            os.close(handle)

    def free(self, controller: int) -> None:
        del controller
        self._ballast.unlink()


class Limited:
    """For who may not mount: the controller may write no file further than where its database begins."""

    def fill(self, controller: int) -> None:
        self._limit(controller, 64 << 10)

    def free(self, controller: int) -> None:
        self._limit(controller, resource.RLIM_INFINITY)

    def _limit(self, controller: int, most: int) -> None:
        _, hard = psutil.Process(controller).rlimit(psutil.RLIMIT_FSIZE)
        psutil.Process(controller).rlimit(psutil.RLIMIT_FSIZE, (most, hard))


@contextlib.contextmanager
def small(place: Path) -> Iterator[Disk]:
    place.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "sickbay-test", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        yield Limited()
        return
    try:
        yield Mounted(place)
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.fixture
def ward(tmp_path: Path) -> Iterator[tuple[Sickbay, Disk]]:
    rig = Sickbay(tmp_path / "state", nodes=3, policy=POLICY)
    with small(tmp_path / "small") as disk:
        # Its neighbours, the log of commits above all, follow it there.
        (rig.state / "sickbay.db").symlink_to(tmp_path / "small" / "sickbay.db")
        try:
            rig.up()
            rig.ready()
            yield rig, disk
        finally:
            rig.down()
    assert not rig.processes()


def boots(rig: Sickbay) -> dict[str, int]:
    seats = [Paths(rig.state / "local", name) for name in ("node-0", "node-1", "node-2")]
    return {paths.seat.name: len(list(paths.seat.glob("instances/*/boots/*"))) for paths in seats}


def said(rig: Sickbay) -> str:
    return (rig.state / "up.out").read_text()


def test_a_store_without_room_decides_nothing_and_goes_on_when_there_is_room(ward: tuple[Sickbay, Disk]) -> None:
    rig, disk = ward
    job = rig.train(450)
    where = rig.reaches(job, 12)["nodes"]
    had = boots(rig)

    disk.fill(rig.pid)
    refused = use_up(rig)
    assert refused.status_code == 503
    assert list(refused.json()) == ["error"]
    rig.until(lambda: rig.get("/healthz")["status"] == "in trouble", 60, "the controller notices")
    rig.until(lambda: "in trouble: " in said(rig), 10, "it says so")
    assert rig.job(job)["state"] == "RUNNING"
    # People can look, and are told why they cannot act.
    assert len(rig.nodes()) == 3
    asked = types(rig, "submit", "--name", "late", "--nodes", "1", "--", "true", *[LARGE] * 3)
    assert (asked.returncode, asked.stdout, len(asked.stderr.splitlines())) == (3, "", 1), asked
    # The job does not know of it.
    before = steps(rig, job)
    rig.until(lambda: steps(rig, job) > before + 20, 30, "the job goes on")

    sick = where[-1]
    rig.inject(sick, xid=79, cured_by="reboot")
    rig.until(lambda: not rig.ranks(sick, job), 30, "its rank on the sick GPU has died")
    spool = Paths(rig.state / "local", sick.rpartition("/")[2]).seat
    rig.until(lambda: any(b"fallen off" in f.read_bytes() for f in spool.glob("instances/*/agent/**/*") if f.is_file()),
              30, "its agent keeps what it saw")  # fmt: skip
    assert not rig.incidents()
    assert boots(rig) == had
    assert all(node["schedulable"] for node in rig.nodes())

    disk.free(rig.pid)
    rig.until(lambda: rig.get("/healthz")["status"] == "ok", 30, "the controller is well again")
    rig.phase(sick, "RELEASED", 90)
    done = rig.ends(job)
    assert [i["fault"]["code"] for i in rig.incidents()] == ["xid.79"]  # nobody was called silent for our own trouble
    assert boots(rig) == {**had, sick.rpartition("/")[2]: had[sick.rpartition("/")[2]] + 1}
    assert done["attempt"] == 2
    assert len(done["interruptions"]) == 1
    assert done["resumed_from"] >= before // 10 * 10
    assert [one["name"] for one in rig.get("/v1/jobs")] == ["train"]
    assert said(rig).count("in trouble") == said(rig).count("well again")


def test_a_state_directory_without_room_ends_neither_jobs_nor_the_controller(tmp_path: Path) -> None:
    """Everything is on the full disk: what the nodes say of themselves, the logs, and the controller's own output."""
    rig = Sickbay(tmp_path / "state", nodes=2, policy=POLICY)
    with small(rig.state) as disk:
        if not isinstance(disk, Mounted):
            pytest.skip("needs a file system of its own: mounting one takes root")
        (rig.state / "policy.yaml").write_text(POLICY)
        try:
            rig.up()
            rig.ready()
            checkpoints = tmp_path / "checkpoints"
            job = rig.train(300, checkpoint=str(checkpoints))
            rig.reaches(job, 12)
            had = [node["boot_id"] for node in rig.nodes()]
            disk.fill(rig.pid)
            rig.until(lambda: rig.get("/healthz")["status"] == "in trouble", 60, "the controller notices")
            before = newest(checkpoints)
            rig.until(lambda: newest(checkpoints) > before + 40, 30, "the job goes on")
            assert rig.job(job)["state"] == "RUNNING"
            asked = types(rig, "inject", "node-0", "--xid", "79")
            assert (asked.returncode, asked.stdout, len(asked.stderr.splitlines())) == (3, "", 1), asked
            assert "No space left" in asked.stderr
            disk.free(rig.pid)
            rig.until(lambda: rig.get("/healthz")["status"] == "ok", 30, "the controller is well again")
            done = rig.ends(job)
            assert (done["attempt"], done["interruptions"]) == (1, [])
            assert [node["boot_id"] for node in rig.nodes()] == had
            # A node that could not write how it is was wondered about, at most; nothing was done to it.
            assert {i["fault"]["code"] for i in rig.incidents()} <= {"cluster.partition"}
            rig.until(lambda: not rig.get("/v1/incidents", which="open"), 30, "no doubt is left")
            rig.until(lambda: "well again" in said(rig), 10, "it says so")
        finally:
            rig.down()
        assert not rig.processes()


def newest(checkpoints: Path) -> int:
    return max((int(one.parent.name[5:]) for one in checkpoints.glob("attempt-1/step-*/manifest.json")), default=0)


def address(rig: Sickbay) -> str:
    return str(json.loads((rig.state / "controller.json").read_text())["url"])


def use_up(rig: Sickbay) -> httpx.Response:
    """Write what does no harm until the room that the store's own files still have is used up; the refusal."""
    secret = (rig.state / "operator.token").read_text()
    with httpx.Client(base_url=address(rig), headers={"Authorization": f"Bearer {secret}"}, timeout=30) as http:
        names = (f"onlooker-{n}" for n in range(2000))
        return next(
            answer
            for name in names
            if (answer := http.post("/v1/tokens", json={"name": name, "role": "viewer"})).status_code != 201
        )


def types(rig: Sickbay, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "XDG_CONFIG_HOME": str(rig.state / "config"), "SICKBAY_URL": address(rig)}
    command = [sys.executable, "-m", "sickbay", *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


def steps(rig: Sickbay, job: str) -> int:
    """By what rank 0 writes: the store hears of nothing now."""
    found = re.findall(r"step (\d+)", rig.get(f"/v1/jobs/{job}/logs", rank=0, last=4000)["text"])
    return int(found[-1]) if found else 0
