"""A training that uploads to S3 and is killed with -9 at one of its requests, before or after the service has heard it.

Whichever it was: the next attempt goes on from something whole, and nothing stays in the bucket that no manifest names.
"""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from shutil import rmtree

import pytest
from tests.support.object_rigs import ENVIRONMENT, Asked, Cut, S3Rig, Service, running_service
from tests.support.thorough import THOROUGH

from sickbay.train import disk, layout
from sickbay.train.far import key_of

pytestmark = pytest.mark.slow

EVERY = 1 if THOROUGH else 9  # of the requests at which it dies
LIFE = """
import sys
from sickbay import train
from sickbay.train import uploads
from sickbay.train.objects import s3_upload

uploads.AGAIN, s3_upload.PART = (0.01,), 1 << 20
where, url, attempt, *steps = sys.argv[1:]
with train.Checkpoints(f"{where}/run", attempt=int(attempt), keep=1, near=f"{where}/near", far=url) as found:
    state = found.load()
    assert state == (found.resumed and bytearray([found.resumed.step]) * (5 << 19))
    for step in map(int, steps):
        found.save(step, bytearray([step]) * (5 << 19))
        found.wait()
    print(found.resumed and found.resumed.step, flush=True)
"""


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    with running_service() as running:
        for name, value in {**ENVIRONMENT, "AWS_ENDPOINT_URL": running.url}.items():
            monkeypatch.setenv(name, value)
        for name in ("SICKBAY_ATTEMPT", "SICKBAY_LAST_STEP", "RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", 1)
        yield running


def life(where: Path, url: str, *numbers: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", LIFE, str(where), url, *map(str, numbers)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def killed_at(rig: S3Rig, where: Path, number: int, *, after: bool) -> bool:
    """A training of three steps that dies at its so-manieth request. False: it had ended before."""
    seen, started = count(1), threading.Event()
    lock = threading.Lock()

    def strike(_asked: Asked) -> None:
        with lock:
            ours = next(seen) == number
        if ours:
            started.wait()
            process.send_signal(signal.SIGKILL)
            process.wait()
            raise Cut

    if after:
        rig.service.after = strike
    else:
        rig.service.trouble = strike
    process = life(where, f"{rig.url}/pre", 1, 1, 2, 3)
    started.set()
    process.communicate(timeout=60)
    rig.service.calm()
    return process.returncode == -signal.SIGKILL


def named(where: Path) -> list[str]:
    """Everything that the manifests name, as keys."""
    found = [layout.manifest_from(disk.read(path) or {}) for path in (where / "run").rglob("manifest.json")]
    return sorted(f"pre/{key_of(one.place, one.run, name)}" for one in found for name in one.files)


@pytest.mark.parametrize(
    ("after", "near_is_lost"), [(False, True), (True, False)], ids=["before, and its node is lost", "after"]
)
def test_whichever_request_it_dies_at_what_stays_in_the_bucket_is_what_manifests_name(
    service: Service, tmp_path: Path, after: bool, near_is_lost: bool
) -> None:
    died = 0
    for number in count(1 + 4 * after % EVERY, EVERY):
        rig, where = S3Rig(service), tmp_path / str(number)
        where.mkdir()
        if not killed_at(rig, where, number, after=after):
            break
        died += 1
        if near_is_lost:
            rmtree(where / "near", ignore_errors=True)
        again = life(where, f"{rig.url}/pre", 2, 9)
        told, wrong = again.communicate(timeout=60)
        assert again.returncode == 0, wrong
        assert told.strip() in {"None", "1", "2", "3"}
        assert (rig.names(), rig.uploads()) == (named(where), []), f"killed at request {number}"
    assert died >= 2
