"""Amazon S3 and services that speak its API, through boto3.

*Checksums.* Every part goes with its SHA-256, which the service computes again before it accepts the part. (boto3
sends a CRC32 by itself since 1.36; CRC32C and CRC64NVME need the C library `awscrt`. SHA-256 is in the standard
library, keeps up with the network on CPUs that have instructions for it, and is what manifests hold.) After the write
the service is asked for size and checksum of the object; of one in parts that is the SHA-256 over the digests of its
parts. A service that states none has ignored ours: then `verifies` turns False, and everything is read back.
AWS_REQUEST_CHECKSUM_CALCULATION=when_required sends none, for services that refuse them.

*Whole or not at all.* A multipart upload is visible when it is completed, and aborted if anything fails before. One
whose process was killed stays invisible but is paid for: `unfinished` names it, `remove_all` ends it, and so does a
lifecycle rule (AbortIncompleteMultipartUpload). In a bucket with versions, what is removed or replaced stays as
an older version until a lifecycle rule takes it.
"""

import errno
import logging
import threading
from collections.abc import Callable, Iterable
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

from sickbay.train import disk
from sickbay.train.objects import Keys, Location, checked
from sickbay.train.objects.ahead import AHEAD, Quota, ReadAhead, Threads
from sickbay.train.objects.faults import fault
from sickbay.train.objects.payload import Part, Payload, file_of, of_memory
from sickbay.train.objects.s3_requests import FAILURES, Bucket, Trying
from sickbay.train.objects.s3_upload import Progress, Stored, abort, store

log = logging.getLogger("sickbay.train")
WIDTH = 8  # requests at once
AT_ONCE = 1000  # objects that S3 removes by one request
BLOCK = 256 * 1024  # bytes that are read between two looks at the clock
Uploads = list[tuple[str, str]]  # here, as `list` is another thing within the class
Works = list[Callable[[], Any]]


class S3Objects:
    """One bucket, below one prefix."""

    def __init__(self, place: Location) -> None:
        self._bucket = Bucket.connect(place)
        self.url = self._bucket.url
        self.verifies = self._bucket.checksums
        self._threads = Threads(WIDTH, "sickbay-s3")
        self._quota = Quota(AHEAD)
        self._removes_many = True

    def put(self, key: str, parts: Iterable[Part], expected: disk.Sum | None = None) -> disk.Sum:
        return self._store(checked(key), of_memory(parts, expected, self._bucket.path(key)), expected, None)

    def put_file(
        self, key: str, source: Path, expected: disk.Sum, progress: Callable[[int], None] | None = None
    ) -> None:
        with file_of(source, expected) as payload:
            self._store(checked(key), payload, expected, progress)

    def _store(self, key: str, payload: Payload, expected: disk.Sum | None, progress: Progress) -> disk.Sum:
        stored = store(self._bucket, self._threads, key, payload, expected, progress)
        self._confirm(key, stored)
        return stored.sum

    def _confirm(self, key: str, stored: Stored) -> None:
        """The object is there, and is what was written, as the service says or as it reads."""
        where, head = self._bucket.path(key), self._look(key, ChecksumMode="ENABLED")
        if head is None:
            raise fault(errno.EIO, "is not there after it was written", where)
        if stored.etag is not None and head["ETag"] != stored.etag:
            raise fault(errno.EIO, "was replaced by another writer right after it was written", where)
        if head["ContentLength"] != stored.sum.size:
            text = f"has {head['ContentLength']} bytes after {stored.sum.size} were written"
            raise fault(errno.EIO, text, where)
        stated = head.get("ChecksumSHA256")
        if stated is not None and self._bucket.checksums:
            if stated not in {stored.digest, stored.digest.partition("-")[0]}:  # not all write how many parts it had
                raise fault(errno.EIO, "has another checksum than what was written", where)
            return
        if self.verifies:
            log.info("%s states no checksums: what is written there is read back", self.url)
            self.verifies = False
        with self._opened(key, head) as back:
            if disk.Hashing(back).finish() == stored.sum:
                return
        if stored.etag is not None:  # it is certainly ours
            self._bucket.ask("delete_object", key)
        raise fault(errno.EIO, "does not hold what was written into it", where)

    # --- read

    def _look(self, key: str, **parameters: Any) -> dict[str, Any] | None:
        """What the service says of an object; None: it is surely not there."""
        try:
            found = self._bucket.ask("head_object", key, **parameters)
        except FileNotFoundError:
            pass
        else:
            if "ETag" not in found:
                text = "no answer of an object store: is there a proxy in between?"
                raise fault(errno.EIO, text, self._bucket.path(key))
            return found
        try:
            self._bucket.ask("head_bucket")  # an answer to HEAD has no words: a bucket that is gone looks the same
        except FileNotFoundError as error:
            raise fault(errno.ENODEV, f"there is no bucket {self._bucket.name}", self.url) from error
        return None

    def size_of(self, key: str) -> int | None:
        head = self._look(checked(key))
        return None if head is None else int(head["ContentLength"])

    def open(self, key: str) -> BinaryIO:
        head = self._look(checked(key))
        if head is None:
            raise fault(errno.ENOENT, "there is no such object", self._bucket.path(key))
        return self._opened(key, head)

    def _opened(self, key: str, head: dict[str, Any]) -> BufferedReader:
        fetch = partial(self._fetch, key, head["ETag"])
        return BufferedReader(ReadAhead(int(head["ContentLength"]), fetch, self._threads, self._quota, width=WIDTH))

    def _fetch(self, key: str, etag: str, start: int, size: int, unwanted: threading.Event) -> bytearray:
        """One range of the object with this ETag. After a connection was cut it goes on where it was."""
        trying, where = Trying(size, None, unwanted), self._bucket.path(key)
        whole, done = bytearray(size), 0
        while done < size:
            span = f"bytes={start + done}-{start + size - 1}"
            answer = self._bucket.ask("get_object", key, unwanted=unwanted, Range=span, IfMatch=etag)
            body = answer["Body"]
            try:
                if answer.get("ETag") != etag:
                    raise fault(errno.ESTALE, "was replaced while it was read", where)
                if answer["ContentLength"] != size - done:
                    raise fault(errno.EOPNOTSUPP, "is not served in ranges", where)
                while done < size and (block := body.read(min(BLOCK, size - done))):
                    whole[done : done + len(block)] = block
                    done += len(block)
                    trying.go_on(where)
            except FAILURES as error:
                trying.once_more(self._bucket.fault_of(error, key), error)
            finally:
                body.close()
        return whole

    def list(self, prefix: str) -> Keys:
        return sorted(key for key in self._keys(prefix) if not key.endswith("/"))

    def _keys(self, prefix: str) -> Keys:
        pages = self._bucket.pages("list_objects_v2", self._directory(prefix))
        return [one["Key"].removeprefix(self._bucket.below) for page in pages for one in page.get("Contents", ())]

    def _directory(self, prefix: str) -> str:
        return f"{self._bucket.below}{checked(prefix)}/" if prefix else self._bucket.below

    # --- remove

    def unfinished(self, prefix: str) -> Uploads:
        """Uploads that have not ended, most of them of processes that were killed: key and upload id."""
        pages = self._bucket.pages("list_multipart_uploads", self._directory(prefix))
        uploads = (one for page in pages for one in page.get("Uploads", ()))
        return [(one["Key"].removeprefix(self._bucket.below), one["UploadId"]) for one in uploads]

    def remove_all(self, prefix: str) -> None:
        checked(prefix)
        try:  # before the objects: none of them is completed any more
            self._each([partial(abort, self._bucket, *upload) for upload in self.unfinished(prefix)])
        except OSError as error:
            if error.errno not in {errno.EACCES, errno.EOPNOTSUPP}:
                raise
            log.warning("%s; unfinished uploads stay there until a lifecycle rule ends them", error)
        keys = self._keys(prefix)
        for start in range(0, len(keys), AT_ONCE):
            self._remove(keys[start : start + AT_ONCE])

    def _remove(self, keys: Keys) -> None:
        if self._removes_many:
            try:
                self._bucket.remove(keys)
            except OSError as error:
                if error.errno not in {errno.EINVAL, errno.EOPNOTSUPP}:
                    raise
                self._removes_many = False  # a service that knows no such request, or wants it with an MD5
            else:
                return
        self._each([partial(self._bucket.ask, "delete_object", key) for key in keys])

    def _each(self, work: Works) -> None:
        for future in [self._threads.submit(one) for one in work]:
            future.result()
