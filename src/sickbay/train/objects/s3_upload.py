"""Multipart upload: parts of one object, sent by several threads, each with the SHA-256 that the service verifies."""

import base64
import errno
import hashlib
import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for_all
from functools import partial
from typing import Any, NamedTuple

from sickbay.train import disk
from sickbay.train.objects.ahead import Threads
from sickbay.train.objects.faults import fault
from sickbay.train.objects.payload import Body, Payload, Piece, StreamPayload
from sickbay.train.objects.s3_requests import ANSWER, Bucket

log = logging.getLogger("sickbay.train")
MB = 1024 * 1024
PART = 16 * MB  # the smallest part; what is no larger goes in one request
MOST_PARTS = 10_000
IN_FLIGHT = 10  # parts that are being sent or wait for a thread
COPIED = 96 * MB  # bytes in flight of a generator, whose parts are copied; files and lists are sent from where they lie
COMPLETES = 600.0  # seconds for the service to put the parts together

Progress = Callable[[int], None] | None


class Stored(NamedTuple):
    """What was stored, as the service must now see it."""

    sum: disk.Sum
    digest: str  # as S3 writes it: of the whole, or "-" and the number of parts behind the one over their digests
    etag: str | None  # None: the answer was lost


def part_size(size: int | None, number: int) -> int:
    """Equal parts where the size is known, as some services want them; growing ones (440 GB in all) where it is not."""
    if size is None:
        return PART << min(2, number * 4 // MOST_PARTS)
    return max(PART, -(-size // (MOST_PARTS * MB)) * MB)


def store(
    bucket: Bucket, threads: Threads, key: str, payload: Payload, expected: disk.Sum | None, progress: Progress
) -> Stored:
    """All of it in one request, if it is small; nothing is visible before `expected` was found."""
    first, second = payload.piece(part_size(payload.size, 0)), payload.piece(part_size(payload.size, 1))
    if first is None:
        raise AssertionError("what is empty has one part, too")
    if second is not None:
        return _Multipart(bucket, threads, key, payload, progress).send([first, second], expected)
    payload.check(expected)
    body = partial(Body, first, payload.name, threading.Event())
    answer = bucket.ask("put_object", key, body=body, size=first.size, ContentLength=first.size, **_sums(bucket, first))
    if progress is not None:
        progress(first.size)
    return Stored(payload.sum(), _base64(first.sha256), answer.get("ETag"))


def _sums(bucket: Bucket, piece: Piece) -> dict[str, Any]:
    """Both: AWS goes by the checksum, some others by the name of the algorithm."""
    return {"ChecksumAlgorithm": "SHA256", "ChecksumSHA256": _base64(piece.sha256)} if bucket.checksums else {}


def _base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


class _Sent(NamedTuple):
    answer: "Future[dict[str, Any]]"
    number: int
    piece: Piece


class _Multipart:
    def __init__(self, bucket: Bucket, threads: Threads, key: str, payload: Payload, progress: Progress) -> None:
        self.bucket, self.threads, self.key, self.payload, self.progress = bucket, threads, key, payload, progress
        self.upload = ""
        self.unwanted = threading.Event()
        self.sent: deque[_Sent] = deque()
        self.done: list[dict[str, Any]] = []
        self.digests = hashlib.sha256()

    def send(self, begun: list[Piece], expected: disk.Sum | None) -> Stored:
        sums: dict[str, Any] = {"ChecksumAlgorithm": "SHA256"} if self.bucket.checksums else {}
        self.upload = self.bucket.ask("create_multipart_upload", self.key, **sums)["UploadId"]
        try:
            self._send_parts(begun)
            self.payload.check(expected)
            etag = self._complete()
        except BaseException:
            self._abort()
            raise
        return Stored(self.payload.sum(), f"{_base64(self.digests.digest())}-{len(self.done)}", etag)

    def _send_parts(self, begun: list[Piece]) -> None:
        number = 0
        while piece := begun.pop(0) if begun else self.payload.piece(part_size(self.payload.size, number)):
            number += 1
            if number > MOST_PARTS:
                text = f"has more than {MOST_PARTS} parts: say with `expected` how large it is"
                raise fault(errno.EFBIG, text, self.bucket.path(self.key))
            while self._full(piece.size):
                self._take()
            self.sent.append(_Sent(self.threads.submit(partial(self._send, number, piece)), number, piece))
        while self.sent:
            self._take()

    def _full(self, more: int) -> bool:
        held = sum(one.piece.size for one in self.sent) if isinstance(self.payload, StreamPayload) else 0
        return len(self.sent) >= IN_FLIGHT or (bool(self.sent) and held + more > COPIED)

    def _send(self, number: int, piece: Piece) -> dict[str, Any]:
        sums = _sums(self.bucket, piece)
        answer = self.bucket.ask(
            "upload_part",
            self.key,
            body=partial(Body, piece, self.payload.name, self.unwanted),
            size=piece.size,
            unwanted=self.unwanted,
            UploadId=self.upload,
            PartNumber=number,
            ContentLength=piece.size,
            **sums,
        )
        part = {"PartNumber": number, "ETag": answer["ETag"]}
        return part | {"ChecksumSHA256": sums["ChecksumSHA256"]} if sums else part

    def _take(self) -> None:
        one = self.sent[0]
        self.done.append(one.answer.result())
        self.sent.popleft()
        self.digests.update(one.piece.sha256)
        if self.progress is not None:
            self.progress(one.piece.size)

    def _complete(self) -> str | None:
        try:
            answer = self.bucket.ask(
                "complete_multipart_upload",
                self.key,
                patience=COMPLETES,
                UploadId=self.upload,
                MultipartUpload={"Parts": self.done},
                MpuObjectSize=self.payload.sum().size,
            )
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            return None  # the upload is gone: the answer of a first try was lost, or someone ended it; the object tells
        return str(answer["ETag"])

    def _abort(self) -> None:
        """Nothing of it stays, once no part is on its way any more: one that arrives later would stay for ever."""
        self.unwanted.set()
        for one in self.sent:
            one.answer.cancel()
        wait_for_all([one.answer for one in self.sent], timeout=2 * ANSWER)
        try:
            abort(self.bucket, self.key, self.upload)
        except OSError as error:
            log.warning("%s; its unfinished upload stays there, invisible, until remove_all or a lifecycle rule", error)


def abort(bucket: Bucket, key: str, upload: str) -> None:
    try:
        bucket.ask("abort_multipart_upload", key, UploadId=upload)
    except OSError as error:
        if error.errno != errno.ESTALE:  # else it has ended meanwhile
            raise
