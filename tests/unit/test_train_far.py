"""The files of checkpoints in an object store: what is removed there, what stays, and what cannot be said."""

import os
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.near_gang import Gang
from tests.support.object_rigs import ENVIRONMENT, Asked, S3Rig, Service, running_service

from sickbay import train
from sickbay.train import choosing, far, layout, objects, uploads
from sickbay.train.pruning import prune

pytestmark = pytest.mark.slow

SIZE = 50_000


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service() as running:
        yield running


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SICKBAY_CHECKPOINT_DIR", "SICKBAY_ATTEMPT", "SICKBAY_LAST_STEP", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(choosing, "READ_AGAIN", ())
    monkeypatch.setattr(uploads, "AGAIN", ())
    monkeypatch.setattr("sickbay.train.objects.s3_requests.AGAIN", ())


@pytest.fixture
def rig(service: Service, monkeypatch: pytest.MonkeyPatch) -> S3Rig:
    for name, value in {**ENVIRONMENT, "AWS_ENDPOINT_URL": service.url}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sickbay.train.objects.s3_upload.PART", SIZE // 4)
    monkeypatch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", 1)
    far.store_of.cache_clear()  # its requests are signed for a service that may have ended
    return S3Rig(service)


@pytest.fixture
def bucket(tmp_path: Path) -> str:
    (tmp_path / "bucket").mkdir()
    return f"file://{tmp_path}/bucket"


def begun(where: Path, attempt: int, url: str, **more: Any) -> train.Checkpoints:
    return train.Checkpoints(where / "run", attempt=attempt, near=where / "near", far=url, **more)


def trained(where: Path, attempt: int, url: str, *steps: int, **more: Any) -> train.Checkpoints:
    """A training that is killed after its last step was uploaded: nothing of it stays near."""
    with begun(where, attempt, url, **more) as found:
        for step in steps:
            found.save(step, bytearray([step]) * SIZE)
            found.wait()
    return found


def in_bucket(where: Path) -> list[str]:
    """Of which steps the directory that serves as a bucket holds anything, as attempt/step."""
    files = (path.parent for path in (where / "bucket").rglob("*") if path.is_file())
    return sorted({f"{path.parent.name.partition('.')[0]}/{path.name}" for path in files})


# --- what is kept


@pytest.mark.slow
def test_over_thirty_restarts_the_store_never_holds_more_than_twice_keep(tmp_path: Path, bucket: str) -> None:
    for attempt in range(1, 31):
        found = begun(tmp_path, attempt, bucket, keep=2)
        assert (found.resumed and found.resumed.step) == (3 * (attempt - 1) or None)
        for step in range(3 * attempt - 2, 3 * attempt + 1):
            found.save(step, bytes(SIZE))
            found.wait()
            stored = [path for path in (tmp_path / "bucket").rglob("*") if path.is_file()]
            assert sum(path.stat().st_size for path in stored) <= 4 * SIZE
        found._saves.close(leave=attempt % 2 == 0)  # killed, or ended
    assert in_bucket(tmp_path) == [f"attempt-{number}/step-{3 * number}" for number in (28, 29)] + [
        "attempt-30/step-89",
        "attempt-30/step-90",
    ]


def test_where_a_run_file_is_damaged_its_attempts_steps_stay_and_all_else_goes_on(
    tmp_path: Path, bucket: str, caplog: pytest.LogCaptureFixture
) -> None:
    trained(tmp_path, 1, bucket, 1, 2, 3)
    (tmp_path / "run" / "attempt-1" / "RUN").write_bytes(b"rot")
    (tmp_path / "run" / "attempt-1" / "step-2" / "manifest.json").unlink()  # a save that never ended
    trained(tmp_path, 2, bucket, 4, 5, keep=1)
    assert in_bucket(tmp_path) == ["attempt-1/step-1", "attempt-1/step-2", "attempt-1/step-3", "attempt-2/step-5"]
    assert "attempt-1/step-1 was not removed: where its files are is not known, as" in caplog.text


def test_a_store_whose_library_is_gone_keeps_nothing_else_from_being_removed(
    tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "other").mkdir()
    trained(tmp_path, 1, f"file://{tmp_path}/other", 1, 2)
    connect = objects.connect

    def without_library(url: str) -> Any:
        if url.endswith("other"):
            raise train.CheckpointError("gs:// needs a library: pip install gcsfs")
        return connect(url)

    trained(tmp_path, 2, bucket, 3)
    far.store_of.cache_clear()
    monkeypatch.setattr(far, "connect", without_library)
    trained(tmp_path, 3, bucket, 4, 5, 6, keep=1)
    assert in_bucket(tmp_path) == ["attempt-2/step-3", "attempt-3/step-6"]
    assert "attempt-1/step-1 was not removed: gs:// needs a library" in caplog.text


def test_one_whose_object_is_gone_is_none_of_those_that_are_kept(tmp_path: Path, bucket: str) -> None:
    with begun(tmp_path, 1, bucket, keep=2) as found:
        for step in (1, 2, 3):
            found.save(step, bytes(SIZE))
            found.wait()
        (shard,) = (tmp_path / "bucket").rglob("step-3/*.shard")
        shard.unlink()
        found.save(4, bytes(SIZE))
    assert in_bucket(tmp_path) == ["attempt-1/step-2", "attempt-1/step-4"]


def test_what_the_store_does_not_remove_now_is_removed_later(
    tmp_path: Path, rig: S3Rig, caplog: pytest.LogCaptureFixture
) -> None:
    with begun(tmp_path, 1, rig.url, keep=1) as found:
        found.save(1, bytes(SIZE))
        found.wait()
        rig.service.trouble = lambda asked: (403, "AccessDenied") if asked.operation == "delete-many" else None
        found.save(2, bytes(SIZE))
        found.wait()
        assert "attempt-1/step-1 was not removed" in caplog.text
        rig.service.calm()
        found.save(3, bytes(SIZE))
    assert [name.partition("/")[2] for name in rig.names()] == ["step-3/rank-0.shard"]


def test_what_is_put_back_for_a_younger_attempt_still_has_its_files_in_the_store(
    tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(tmp_path, 1, bucket, 1, 2, keep=None)
    root, rename = tmp_path / "run", os.rename

    def as_a_younger_one_begins(source: Any, target: Any) -> None:
        if Path(target).name == "removed.json" and not layout.run_path(root, 2).exists():
            layout.attempt_path(root, 2).mkdir()
            layout.create_fence(root, layout.RunFile(2, "younger", 1))
        rename(source, target)

    monkeypatch.setattr(os, "rename", as_a_younger_one_begins)
    newest = layout.CheckpointName(1, 2)
    assert prune(root, newest, 1, {newest}) == []
    assert layout.run_path(root, 2).exists()
    assert in_bucket(tmp_path) == ["attempt-1/step-1", "attempt-1/step-2"]
    assert layout.read_manifest(root, layout.CheckpointName(1, 1)) is not None


# --- what must not be told


def told_by(error: BaseException) -> str:
    """All that a script that does not catch it writes into its log."""
    return "".join(traceback.format_exception(error))


def test_a_secret_in_a_url_is_not_told_where_near_is_missing(tmp_path: Path) -> None:
    url = "s3://AKIAX:hushhush@bucket/run"
    with pytest.raises(train.CheckpointError) as caught:
        train.Checkpoints(tmp_path, far=url)
    assert "hushhush" not in str(caught.value)


@pytest.mark.parametrize("address", ["http://user:hushhush@127.0.0.1:9", "https://hushhush@127.0.0.1:9/"])
def test_a_secret_in_the_address_of_a_service_is_refused_and_not_told(
    tmp_path: Path, rig: S3Rig, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", address)
    with pytest.raises(train.CheckpointError, match=r"AWS_ENDPOINT_URL .*names a user before its @") as caught:
        begun(tmp_path, 1, rig.url)
    assert "hushhush@" not in told_by(caught.value)


def test_no_secret_is_in_the_causes_of_an_error_either(rig: S3Rig) -> None:
    store = rig.connect()
    rig.service.trouble = lambda _asked: (503, "SlowDown token=hushhush")
    for act in (lambda: store.put("a/b", [b"x"]), lambda: store.list("")):
        with pytest.raises(OSError, match="SlowDown") as caught:
            act()
        assert "hushhush" not in told_by(caught.value)


# --- what cannot be looked at


@pytest.mark.parametrize("answer", [(403, "AccessDenied"), (503, "SlowDown"), (500, "InternalError")])
@pytest.mark.parametrize("operation", ["head", "get"])
def test_what_the_store_does_not_let_us_read_is_neither_absent_nor_corrupt(
    tmp_path: Path, rig: S3Rig, operation: str, answer: tuple[int, str]
) -> None:
    trained(tmp_path, 1, rig.url, 1, 2)
    before = rig.names()

    def refuse(asked: Asked) -> tuple[int, str] | None:
        return answer if asked.operation == operation and asked.path.endswith("shard") else None

    rig.service.trouble = refuse
    with pytest.raises(train.Unreadable, match="nobody knows what is in it, so nothing is begun from it"):
        begun(tmp_path, 2, rig.url)
    rig.service.calm()
    assert rig.names() == before
    assert begun(tmp_path, 3, rig.url).load() == bytearray([2]) * SIZE


def test_two_jobs_below_one_prefix_neither_overwrite_nor_remove_what_is_the_others(tmp_path: Path, rig: S3Rig) -> None:
    jobs = [tmp_path / name for name in ("one", "other")]
    for where in jobs:
        where.mkdir()
        trained(where, 1, rig.url, 1, 2, keep=None)
    trained(jobs[0], 2, rig.url, 3, 4, keep=1)
    assert len(rig.names()) == 2 + 2
    assert begun(jobs[1], 2, rig.url).load() == bytearray([2]) * SIZE


# --- uploaded behind


@pytest.mark.slow
def test_what_rots_on_one_node_is_uploaded_from_its_copy_on_another(tmp_path: Path, bucket: str) -> None:
    """As with the directory: the rotten copy is the nearer one of two."""
    more = {"SICKBAY_CHECKPOINT_FAR": bucket}
    first = Gang(tmp_path, 1, [0, 1], SICKBAY_TEST_UPLOADS="none", **more).begin()
    first.all("save", 10)
    first.kill()
    (shard,) = (tmp_path / "node-0").glob("*/attempt-1/step-10/rank-0.shard")
    shard.write_bytes(shard.read_bytes()[:-1] + b"\0")
    second = Gang(tmp_path, 2, [0, 1], **more).begin()
    try:
        assert second.resumed == "attempt-1/step-10"
        assert second.begun[0]["state"] == {"step": 10, "rank": 0, "attempt": 1}
        deadline = time.monotonic() + 60
        while train.latest_valid(tmp_path / "far") is None:
            assert time.monotonic() < deadline, "it is whole near, and never becomes durable"
            time.sleep(0.02)
    finally:
        second.kill()
    assert in_bucket(tmp_path) == ["attempt-2/step-10"]
