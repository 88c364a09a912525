"""S3 when things go wrong: requests that are refused, cut, slow, throttled or falsified on their way."""

import base64
import errno
import hashlib
import logging
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tests.support.object_rigs import ENVIRONMENT, Asked, Cut, S3Rig, Service, running_service

from sickbay.train import disk, objects
from sickbay.train.choosing import COMES_BACK
from sickbay.train.errors import CheckpointError, SourceDamaged

pytestmark = pytest.mark.slow

MB = 1024 * 1024
KEY = "step-1/rank-0.shard"
ONE, MANY = b"one part", hashlib.shake_128(b"many").digest(4 * MB + 99)
BOTH = pytest.mark.parametrize("content", [ONE, MANY], ids=["one", "many"])


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service() as running:
        yield running


@pytest.fixture
def rig(service: Service, monkeypatch: pytest.MonkeyPatch) -> S3Rig:
    for name, value in {**ENVIRONMENT, "AWS_ENDPOINT_URL": service.url}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sickbay.train.objects.s3_upload.PART", MB)
    monkeypatch.setattr("sickbay.train.objects.s3_requests.AGAIN", (0.001, 0.001, 0.001))
    monkeypatch.setattr("sickbay.train.objects.ahead.CHUNK", MB)
    monkeypatch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", 1)
    return S3Rig(service)


def sum_of(content: bytes) -> disk.Sum:
    return disk.Sum(len(content), hashlib.sha256(content).hexdigest())


def read(store: objects.Objects) -> bytes:
    with store.open(KEY) as file:
        return file.read()


def nothing_is_left_in(rig: S3Rig) -> bool:
    rig.service.calm()
    return (rig.names(), rig.uploads()) == ([], [])


class Times:
    """The first so many requests of an operation come to grief."""

    def __init__(self, operation: str, times: int, answer: tuple[int, str] | type[Exception]) -> None:
        self.operation, self.left, self.answer = operation, times, answer
        self.lock = threading.Lock()

    def __call__(self, asked: Asked) -> tuple[int, str] | None:
        with self.lock:
            if asked.operation != self.operation or not self.left:
                return None
            self.left -= 1
        if isinstance(self.answer, tuple):
            return self.answer
        raise self.answer()


PASSING: list[Any] = [
    (503, "SlowDown"),
    (500, "InternalError"),
    (400, "RequestTimeout"),
    (429, "TooManyRequests"),
    (400, "BadDigest"),
    (504, "GatewayTimeout"),
    Cut,
]


@BOTH
def test_what_passes_is_outlived(rig: S3Rig, content: bytes) -> None:
    store = rig.connect()
    for answer in PASSING:
        silent = () if answer in {(400, "RequestTimeout"), (400, "BadDigest")} else ("head",)  # a HEAD has no words
        for operation in ("create", "part", "complete", "put", *silent):
            rig.service.trouble = Times(operation, 2, answer)
            store.put(KEY, [content])
        for operation in (*silent, "get", "list"):
            rig.service.trouble = Times(operation, 2, answer)
            assert (store.size_of(KEY), read(store), store.list("")) == (len(content), content, [KEY])
        for operation in ("uploads", "list", "delete-many"):
            rig.service.trouble = Times(operation, 2, answer)
            store.remove_all("step-1")
        assert nothing_is_left_in(rig)


STAYING: list[tuple[Any, int]] = [
    ((403, "AccessDenied"), errno.EACCES),
    ((403, "InvalidAccessKeyId"), errno.EACCES),
    ((400, "ExpiredToken"), errno.EACCES),
    ((404, "NoSuchBucket"), errno.ENODEV),
    ((400, "EntityTooLarge"), errno.EFBIG),
    ((507, "XMinioStorageFull"), errno.ENOSPC),
    ((501, "NotImplemented"), errno.EOPNOTSUPP),
    ((400, "InvalidArgument"), errno.EINVAL),
    ((503, "SlowDown"), errno.EIO),
    ((400, "RequestTimeout"), errno.ETIMEDOUT),
    (Cut, errno.EIO),
]


@pytest.mark.parametrize(("content", "operation"), [(ONE, "put"), (MANY, "create"), (MANY, "part"), (MANY, "complete")])
def test_what_stays_is_an_error_with_its_number_and_nothing_is_visible(
    rig: S3Rig, content: bytes, operation: str
) -> None:
    store = rig.connect()
    for answer, number in STAYING:
        rig.service.trouble = Times(operation, 99, answer)
        with pytest.raises(OSError, match=r"\[Errno") as caught:
            store.put(KEY, [content])
        error = caught.value
        assert (error.errno, error.filename, "\n" in str(error)) == (number, f"{rig.url}/{KEY}", False)
        assert (error.errno in COMES_BACK) == (answer is Cut or answer[1] in {"SlowDown", "RequestTimeout"})
        assert isinstance(error, PermissionError) == (number == errno.EACCES)
        tries = rig.service.count(operation)
        assert tries <= (4 if number in COMES_BACK else 1) * (10 if operation == "part" else 1)
        assert nothing_is_left_in(rig)


def test_a_refusal_of_a_head_is_taken_for_credentials_that_ran_out(rig: S3Rig) -> None:
    rig.service.trouble = Times("head", 9, (400, "ExpiredToken"))
    with pytest.raises(PermissionError, match="credentials"):
        rig.connect().size_of(KEY)


def test_what_cannot_be_looked_at_is_an_error_too(rig: S3Rig) -> None:
    store = rig.connect()
    store.put(KEY, [ONE])
    troubles: list[tuple[Any, int]] = [
        ((403, "AccessDenied"), errno.EACCES),
        ((503, "SlowDown"), errno.EIO),
        (Cut, errno.EIO),
    ]
    looks: dict[str, Callable[[], object]] = {
        "head": partial(store.size_of, KEY),
        "get": partial(read, store),
        "list": partial(store.list, ""),
    }
    for operation, look in looks.items():
        for answer, number in troubles:
            rig.service.trouble = Times(operation, 99, answer)
            with pytest.raises(OSError, match=r"\[Errno") as caught:
                look()
            assert caught.value.errno == number


def test_a_service_that_cannot_be_reached_may_come_back(rig: S3Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(OSError, match="cannot be reached") as caught:
        rig.connect().size_of(KEY)
    assert caught.value.errno == errno.EHOSTUNREACH


def test_a_handshake_that_fails_may_come_back(rig: S3Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"https://127.0.0.1:{server.getsockname()[1]}")

        def no_tls() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        connection.recv(1)
                        connection.sendall(b"HTTP/1.1 503 Busy\r\n\r\n")

        thread = threading.Thread(target=no_tls, daemon=True)
        thread.start()
        with pytest.raises(OSError, match="no secure connection") as caught:
            rig.connect().size_of(KEY)
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert caught.value.errno == errno.EIO


@pytest.mark.parametrize("operation", ["head", "get"])
def test_an_answer_that_no_object_store_gives_is_neither_an_object_nor_a_crash(rig: S3Rig, operation: str) -> None:
    """As of a proxy that shows its own page."""
    store = rig.connect()
    store.put(KEY, [MANY])
    rig.service.trouble = Times(operation, 99, (200, "page"))
    with pytest.raises(OSError, match=r"no answer of an object store|was replaced") as caught:
        read(store)
    assert caught.value.errno in COMES_BACK


def test_a_listing_that_ends_amid_is_an_error(rig: S3Rig) -> None:
    store = rig.connect()
    page = b"<ListBucketResult><IsTruncated>true</IsTruncated><Contents><Key>a</Key></Contents></ListBucketResult>"
    rig.service.gaps = lambda _asked, _body: [page]
    with pytest.raises(OSError, match="a listing that goes on without saying where"):
        store.list("")


def test_missing_credentials_are_told(rig: S3Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(PermissionError, match="there are no credentials: give this machine a role"):
        rig.connect().put(KEY, [ONE])


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [("AWS_PROFILE", "nobody", "nobody"), ("AWS_ENDPOINT_URL", "user:hushhush@here", "no http")],
)
def test_settings_that_cannot_be_are_told_when_it_connects(
    rig: S3Rig, monkeypatch: pytest.MonkeyPatch, name: str, value: str, why: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(CheckpointError, match=why) as caught:
        rig.connect()
    assert "hushhush" not in str(caught.value)


def test_a_boto3_that_is_too_old_is_told_when_it_connects_not_after_the_first_upload(
    rig: S3Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("boto3.__version__", "1.35.99")
    with pytest.raises(CheckpointError, match=r"boto3 1\.36 or newer, this is 1\.35\.99: pip install 'sickbay\[s3\]'"):
        rig.connect()


def test_no_credential_is_in_what_is_told(rig: S3Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "sickbay")
    store = rig.connect()
    key = ENVIRONMENT["AWS_ACCESS_KEY_ID"]
    for answer in ((403, f"Denied {key}"), (503, f"SlowDown token=hushhush {key}"), Cut):
        rig.service.trouble = Times("put", 99, answer)
        with pytest.raises(OSError, match=r"\[Errno") as caught:
            store.put(KEY, [ONE])
        told = f"{caught.value} {store.url} {store!r} {caplog.text}"
        assert not any(secret in told for secret in (key, "hushhush", ENVIRONMENT["AWS_SECRET_ACCESS_KEY"]))


# --- slow


@pytest.fixture
def hanging(rig: S3Rig, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    monkeypatch.setattr("sickbay.train.objects.s3_requests.ANSWER", 0.2)
    monkeypatch.setattr("sickbay.train.objects.s3_requests.AGAIN", ())
    done = threading.Event()
    yield done
    done.set()
    rig.service.calm()


@pytest.mark.parametrize(("content", "operation"), [(ONE, "put"), (MANY, "part"), (MANY, "complete")])
def test_a_service_that_does_not_answer_is_given_up(
    rig: S3Rig, hanging: threading.Event, content: bytes, operation: str
) -> None:
    store = rig.connect()

    def hang(asked: Asked) -> None:
        if asked.operation == operation:
            hanging.wait(30)
            raise Cut

    rig.service.trouble = hang
    with pytest.raises(TimeoutError) as caught:
        store.put(KEY, [content])
    assert caught.value.errno == errno.ETIMEDOUT
    assert caught.value.errno in COMES_BACK
    hanging.set()
    assert nothing_is_left_in(rig)


def test_an_answer_that_stops_amid_is_given_up(rig: S3Rig, request: pytest.FixtureRequest) -> None:
    rig.connect().put(KEY, [MANY])  # before answers have to come soon
    hanging: threading.Event = request.getfixturevalue("hanging")
    store = rig.connect()

    def half(asked: Asked, body: bytes) -> Iterator[bytes]:
        yield body[:1000]
        if asked.operation == "get":
            hanging.wait(30)

    rig.service.gaps = half
    with pytest.raises(TimeoutError):
        read(store)


def test_one_that_trickles_is_given_up_when_its_time_is_over(
    rig: S3Rig, hanging: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sickbay.train.objects.s3_requests.ANSWER", 5.0)
    store = rig.connect()
    store.put(KEY, [MANY])
    monkeypatch.setattr("sickbay.train.objects.s3_requests.PATIENCE", 0.3)
    monkeypatch.setattr("sickbay.train.objects.s3_requests.SLOWEST", 1e12)
    monkeypatch.setattr("sickbay.train.objects.s3.BLOCK", 100)

    def trickle(_asked: Asked, body: bytes) -> Iterator[bytes]:
        for start in range(0, len(body), 100):
            yield body[start : start + 100]
            hanging.wait(0.02)

    rig.service.gaps = trickle
    with pytest.raises(TimeoutError, match="too slowly"):
        read(store)


def test_a_part_that_goes_too_slowly_is_given_up(rig: S3Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    store = rig.connect()
    monkeypatch.setattr("sickbay.train.objects.s3_requests.PATIENCE", -1.0)
    with pytest.raises(TimeoutError, match="too slowly"):
        store.put(KEY, [ONE])


# --- cut, falsified, replaced


def test_a_get_that_is_cut_goes_on_where_it_was_with_the_same_object(rig: S3Rig) -> None:
    store = rig.connect()
    store.put(KEY, [MANY])
    cuts = Counter[str]()  # of each range by its last byte: in which order they are asked for is nobody's promise

    def torn(asked: Asked, body: bytes) -> Iterator[bytes]:
        if asked.operation == "get":
            cuts[last := asked.headers["RANGE"].partition("-")[2]] += 1
            if cuts[last] <= 2:
                yield body[: len(body) // 2]
                raise Cut  # the server closes the connection in the middle of a body
        yield body

    rig.service.gaps = torn
    assert read(store) == MANY
    gets = [asked.headers for asked in rig.service.asked if asked.operation == "get"]
    assert len(cuts) == 5
    assert min(cuts.values()) >= 3  # more on a busy machine: a connection that breaks by itself is tried again, too
    assert len({headers["IF-MATCH"] for headers in gets}) == 1
    starts = [int(headers["RANGE"].removeprefix("bytes=").partition("-")[0]) for headers in gets]
    assert any(start % MB for start in starts)


def test_bytes_that_change_on_their_way_are_sent_again(rig: S3Rig) -> None:
    store = rig.connect()
    left = [3]

    def flip(asked: Asked) -> Asked | None:
        if asked.operation not in {"put", "part"} or not left[0]:
            return None
        left[0] -= 1
        return asked._replace(body=bytes([asked.body[0] ^ 1]) + asked.body[1:])

    rig.service.trouble = flip
    store.put(KEY, [MANY])
    assert (read(store), left) == (MANY, [0])
    left[0] = 3
    store.put(KEY, [ONE])
    assert (read(store), left) == (ONE, [0])
    left[0] = 999
    for content in (ONE, MANY):
        store.remove_all("step-1")
        with pytest.raises(OSError, match="BadDigest"):
            store.put(KEY, [content])
        rig.service.trouble, before = lambda _asked: None, rig.service.trouble
        assert (rig.names(), rig.uploads()) == ([], [])
        rig.service.trouble = before


@BOTH
def test_a_service_that_ignores_checksums_is_read_back(rig: S3Rig, content: bytes) -> None:
    rig.service.states_checksums = False
    store = rig.connect()
    assert store.verifies
    store.put(KEY, [content])
    assert not store.verifies
    assert rig.service.count("get") >= 1
    assert read(store) == content

    def flip(asked: Asked) -> Asked | None:
        if asked.operation not in {"put", "part"}:
            return None
        return asked._replace(body=asked.body[:-1] + bytes([asked.body[-1] ^ 1]))

    rig.service.trouble = flip
    with pytest.raises(OSError, match="does not hold what was written into it") as caught:
        store.put(KEY, [content])
    assert caught.value.errno == errno.EIO
    assert nothing_is_left_in(rig)


@BOTH
def test_a_service_that_refuses_checksums_can_be_used_without(
    rig: S3Rig, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(asked: Asked) -> tuple[int, str] | None:
        sums = any(name.startswith(("X-AMZ-CHECKSUM", "X-AMZ-SDK-CHECKSUM")) for name in asked.headers)
        return (400, "InvalidArgument") if sums and asked.operation in {"put", "part", "create"} else None

    rig.service.trouble = refuse
    with pytest.raises(OSError, match="AWS_REQUEST_CHECKSUM_CALCULATION=when_required"):
        rig.connect().put(KEY, [content])
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
    store = rig.connect()
    assert not store.verifies
    store.put(KEY, [content])
    assert read(store) == content
    assert rig.service.count("get") >= 2


def test_every_part_goes_with_its_own_checksum_and_the_whole_with_its_size(rig: S3Rig) -> None:
    rig.connect().put(KEY, [MANY])
    parts = [asked for asked in rig.service.asked if asked.operation == "part"]
    assert sorted(len(asked.body) for asked in parts) == [99, MB, MB, MB, MB]
    assert all(asked.headers["X-AMZ-CHECKSUM-SHA256"] for asked in parts)
    (complete,) = (asked for asked in rig.service.asked if asked.operation == "complete")
    assert complete.headers["X-AMZ-MP-OBJECT-SIZE"] == str(len(MANY))
    assert rig.service.count("get") == 0


@BOTH
def test_an_object_that_the_service_sums_otherwise_is_not_taken_for_stored(rig: S3Rig, content: bytes) -> None:
    backend: Any = import_module("moto.s3.models").s3_backends["123456789012"]["aws"]

    def sum_otherwise(asked: Asked) -> None:
        if asked.operation in {"put", "complete"}:
            stored = backend.get_object(rig.bucket, KEY)
            assert stored.checksum_value
            stored.checksum_value = base64.b64encode(bytes(32)).decode()

    rig.service.after = sum_otherwise
    with pytest.raises(OSError, match="has another checksum than what was written") as caught:
        rig.connect().put(KEY, [content])
    assert caught.value.errno == errno.EIO


@BOTH
def test_an_answer_that_is_lost_is_no_failure(rig: S3Rig, content: bytes) -> None:
    store = rig.connect()
    lost = {"put", "part", "complete"}

    def lose(asked: Asked) -> None:
        if asked.operation in lost:
            lost.discard(asked.operation)
            raise Cut

    rig.service.after = lose
    assert store.put(KEY, [content]) == sum_of(content)
    assert lost == ({"part", "complete"} if content == ONE else {"put"})
    assert read(store) == content
    rig.service.calm()
    assert rig.uploads() == []


def test_an_upload_that_another_process_ended_is_an_error_and_the_older_object_stays(rig: S3Rig) -> None:
    store, other = rig.connect(), rig.connect()
    store.put(KEY, [b"before"])

    def end(asked: Asked) -> None:
        if asked.operation == "complete":
            rig.service.trouble = lambda _asked: None
            for upload in rig.client.list_multipart_uploads(Bucket=rig.bucket)["Uploads"]:
                rig.client.abort_multipart_upload(Bucket=rig.bucket, Key=KEY, UploadId=upload["UploadId"])

    rig.service.trouble = end
    with pytest.raises(OSError, match="has 6 bytes after"):
        store.put(KEY, [MANY])
    assert (read(other), rig.uploads()) == (b"before", [])


def test_another_writer_right_after_us_is_told(rig: S3Rig) -> None:
    store = rig.connect()

    def overwrite(asked: Asked) -> None:
        if asked.operation == "put":
            rig.service.after = lambda _asked: None
            rig.write(KEY, b"of another")

    rig.service.after = overwrite
    with pytest.raises(OSError, match="replaced by another writer"):
        store.put(KEY, [ONE])
    assert read(store) == b"of another"


def test_a_file_that_changes_between_hash_and_sending_is_not_stored(rig: S3Rig, tmp_path: Path) -> None:
    source = tmp_path / "shard"
    for what, why in (("flip", "BadDigest|IncompleteBody"), ("cut", "became shorter")):
        source.write_bytes(MANY)

        def change(asked: Asked, what: str = what) -> None:
            if asked.operation == "create":  # its first two parts are hashed, and not sent
                with source.open("r+b") as file:
                    file.truncate(MB + 10) if what == "cut" else file.write(b"x")

        rig.service.trouble = change
        with pytest.raises((OSError, SourceDamaged), match=rf"{why}|{source}"):
            rig.connect().put_file(KEY, source, sum_of(MANY))
        assert nothing_is_left_in(rig)


def test_an_upload_is_aborted_only_when_no_part_of_it_is_on_its_way(rig: S3Rig) -> None:
    """One that arrived after the abort would stay for ever."""
    on_its_way, aborted, before = threading.Event(), threading.Event(), list[bool]()

    def trouble(asked: Asked) -> tuple[int, str] | None:
        if asked.operation == "abort":
            aborted.set()
        elif asked.operation == "part" and asked.query["partNumber"] == [
            "2"
        ]:  # what fails is the first, which is waited for first
            on_its_way.set()
            before.append(aborted.wait(0.3))
        elif asked.operation == "part":
            on_its_way.wait(30)
            return 403, "AccessDenied"
        return None

    rig.service.trouble = trouble
    with pytest.raises(PermissionError):
        rig.connect().put(KEY, [MANY])
    assert (before, aborted.is_set()) == ([False], True)
    assert nothing_is_left_in(rig)


# --- removing


def test_a_service_that_removes_one_by_one_only(rig: S3Rig) -> None:
    store = rig.connect()
    for number in range(5):
        store.put(f"step-1/rank-{number}", [b"x"])
    rig.service.trouble = lambda asked: (400, "MissingContentMD5") if asked.operation == "delete-many" else None
    store.remove_all("step-1")
    assert rig.names() == []


def test_all_pages_of_unfinished_uploads_are_ended(rig: S3Rig) -> None:
    begun = {rig.client.create_multipart_upload(Bucket=rig.bucket, Key=KEY)["UploadId"] for _ in range(3)}
    order = sorted(begun)

    def one_by_one(asked: Asked, body: bytes) -> Iterable[bytes]:
        if asked.operation != "uploads":
            return [body]
        marker = asked.query.get("upload-id-marker", [""])[0]
        number = order.index(marker) + 1 if marker else 0
        more = number + 1 < len(order)
        upload = f"<Upload><Key>{KEY}</Key><UploadId>{order[number]}</UploadId></Upload>"
        upto = f"<NextKeyMarker>{KEY}</NextKeyMarker><NextUploadIdMarker>{order[number]}</NextUploadIdMarker>"
        text = f"<IsTruncated>{str(more).lower()}</IsTruncated>{upto if more else ''}{upload}"
        return [f"<ListMultipartUploadsResult>{text}</ListMultipartUploadsResult>".encode()]

    rig.service.gaps = one_by_one
    rig.connect().remove_all("step-1")
    rig.service.calm()
    assert rig.uploads() == []


def test_uploads_that_cannot_be_listed_do_not_keep_objects_from_being_removed(
    rig: S3Rig, caplog: pytest.LogCaptureFixture
) -> None:
    store = rig.connect()
    store.put(KEY, [ONE])
    rig.service.trouble = Times("uploads", 99, (403, "AccessDenied"))
    store.remove_all("step-1")
    assert "unfinished uploads stay there until a lifecycle rule ends them" in caplog.text
    assert rig.names() == []


def test_what_is_refused_when_many_are_removed_is_told(rig: S3Rig) -> None:
    store = rig.connect()
    store.put(KEY, [ONE])
    rig.service.trouble = lambda asked: (403, "AccessDenied") if asked.operation == "delete-many" else None
    with pytest.raises(PermissionError):
        store.remove_all("step-1")


@pytest.mark.parametrize(("code", "number"), [("AccessDenied", errno.EACCES), ("InternalError", errno.EIO)])
def test_one_of_many_that_was_not_removed_is_told(rig: S3Rig, code: str, number: int) -> None:
    store = rig.connect()
    store.put(KEY, [ONE])
    refused = f"<DeleteResult><Error><Key>{KEY}</Key><Code>{code}</Code></Error></DeleteResult>".encode()
    rig.service.gaps = lambda asked, body: [refused if asked.operation == "delete-many" else body]
    with pytest.raises(OSError, match=f"was not removed: {code}") as caught:
        store.remove_all("step-1")
    assert caught.value.errno == number


# --- bounds


@pytest.mark.parametrize(
    ("size", "least"), [(0, 16), (16 * MB, 16), (100 << 30, 16), (500 << 30, 52), (5 << 40, 525), (48 << 40, 5034)]
)
def test_parts_follow_the_size(size: int, least: int) -> None:
    from sickbay.train.objects import s3_upload

    part = s3_upload.part_size(size, 0)
    assert part == least * MB
    assert part * s3_upload.MOST_PARTS >= size
    assert part <= 5 << 30


def test_parts_of_what_has_no_known_size_grow() -> None:
    from sickbay.train.objects import s3_upload

    sizes = [s3_upload.part_size(None, number) for number in range(s3_upload.MOST_PARTS)]
    assert sizes == sorted(sizes)
    assert (sizes[0], sizes[-1]) == (16 * MB, 64 * MB)
    assert sum(sizes) > 400 << 30


def test_a_generator_is_not_asked_for_more_than_may_be_held(rig: S3Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sickbay.train.objects.s3_upload.COPIED", 3 * MB)
    gate, pulled = threading.Event(), [0]
    arrived = threading.Semaphore(0)

    def hold(asked: Asked) -> None:
        if asked.operation == "part":
            arrived.release()
            gate.wait(30)

    def parts() -> Iterable[bytes]:
        for _ in range(20):
            pulled[0] += 1
            yield bytes(MB)

    rig.service.trouble = hold
    thread = threading.Thread(target=rig.connect().put, args=(KEY, parts()))
    thread.start()
    for _ in range(3):
        assert arrived.acquire(timeout=30)
    held = pulled[0]
    gate.set()
    thread.join()
    assert held <= 3 + 2
    assert rig.connect().size_of(KEY) == 20 * MB


def test_memory_of_a_file_that_is_sent_does_not_follow_its_size(rig: S3Rig, tmp_path: Path) -> None:
    import tracemalloc

    source = tmp_path / "shard"
    source.write_bytes(bytes(24 * MB))
    expected = sum_of(bytes(24 * MB))
    store = rig.connect()
    rig.service.trouble = lambda asked: (403, "AccessDenied") if asked.operation == "part" else None
    tracemalloc.start()
    with pytest.raises(PermissionError):
        store.put_file(KEY, source, expected)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60 * MB  # most of it the service's, which is in this process
