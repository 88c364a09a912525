"""Object stores for the data of checkpoints: `s3://bucket/prefix` by boto3, every other scheme by fsspec.

Only shards lie there. Fence, lineage, parts and manifests stay in the shared directory, so nothing here needs an
exclusive creation or a rename: an object counts from the moment at which a manifest names it, with its size and
SHA-256. What all stores promise is in `Objects`; what one cannot promise is in the docstring of its module.
"""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

from sickbay.train import disk
from sickbay.train.errors import CheckpointError

_URL = re.compile(r"([a-z][a-z0-9+.-]*)://([^/]*)/?(.*)", re.DOTALL | re.IGNORECASE)
Keys = list[str]
_ALSO_S3 = {"s3a", "s3n"}  # as Hadoop writes it
_CONTAINER_AT = {"abfs", "abfss", "wasb", "wasbs"}  # container@account is how these name a place, not a user


class Objects(Protocol):
    """An object store below one url. Several threads may use it at once.

    Keys are like `attempt-2/step-50/rank-0.shard`; prefixes end at a slash, so `step-5` is not one of `step-50`.
    What the store does not do is an OSError with the url in it: FileNotFoundError (the object is surely not there),
    PermissionError, ENODEV (the bucket is not there), ESTALE (it changed meanwhile), and EIO, ETIMEDOUT or
    EHOSTUNREACH for what may come back, after it was tried again for a while.
    """

    url: str  # without credentials, so that it can be recorded
    verifies: bool  # the store itself confirms a checksum after a write; else what was written is read back

    def put(
        self, key: str, parts: Iterable[bytes | bytearray | memoryview], expected: disk.Sum | None = None
    ) -> disk.Sum:
        """Store one object, whole or not at all; what was there before is replaced. What is in `parts` must not change
        until it returns. When it returns the store has confirmed size and content. SourceDamaged: it was not what was
        expected, and is not there.
        """

    def put_file(
        self, key: str, source: Path, expected: disk.Sum, progress: Callable[[int], None] | None = None
    ) -> None:
        """The same of a file, which is hashed while it is read. SourceDamaged: it is not what was written there once.

        `progress` is called in this thread, with the number of bytes that have arrived since.
        """

    def size_of(self, key: str) -> int | None:
        """None: it is surely not there. What cannot be looked at is an OSError."""

    def open(self, key: str) -> BinaryIO:
        """To be read from its beginning, as it is now: one that changes meanwhile is an ESTALE, never a mixture."""

    def list(self, prefix: str) -> Keys:
        """All keys below the prefix ("" for all), sorted, as the other methods take them."""

    def remove_all(self, prefix: str) -> None:
        """Everything below the prefix, and what was left there by uploads that never ended. May be called again."""


class Location(NamedTuple):
    """What a url names."""

    scheme: str
    container: str  # a bucket, a host, or empty
    prefix: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.container}/{self.prefix}".rstrip("/")


def connect(url: str) -> Objects:
    """The store below a url. CheckpointError says in one line what is wrong with it, or what to install."""
    place = parse(url)
    if place.scheme == "s3":
        try:
            from sickbay.train.objects.s3 import S3Objects
        except ImportError as missing:
            raise CheckpointError(f"s3:// needs boto3 ({missing}): pip install 'sickbay[s3]'") from None
        return S3Objects(place)
    try:
        from sickbay.train.objects.filesystems import FilesystemObjects
    except ImportError as missing:
        raise CheckpointError(f"{place.scheme}:// needs fsspec ({missing}): pip install 'sickbay[objects]'") from None
    return FilesystemObjects(place)


def parse(url: str) -> Location:
    """Nothing of a url that may be a secret comes back, not in an error either."""
    found = _URL.fullmatch(url.strip())
    if found is None or found[1].lower() in {"http", "https"}:
        address = "" if found is None else ", with AWS_ENDPOINT_URL where it is not Amazon's"
        raise CheckpointError(f"an object store is written as s3://BUCKET/PREFIX (or gs://, az://, file:// …){address}")
    place = Location(found[1].lower(), found[2], found[3].strip("/"))
    user, at, _ = place.container.rpartition("@")
    if at and (":" in user or place.scheme not in _CONTAINER_AT):
        raise CheckpointError(
            f"the {place.scheme}:// url names a user before its @: leave that out, credentials come from elsewhere"
        )
    if "?" in url:
        raise CheckpointError(
            f"the {place.scheme}:// url has a ?query: leave it out, credentials and options come from elsewhere"
        )
    if any(ord(letter) < ord(" ") or letter == "\x7f" for letter in url) or ".." in place.prefix.split("/"):
        raise CheckpointError(f"the {place.scheme}:// url must not hold '..' or control characters")
    if place.scheme in _ALSO_S3:
        raise CheckpointError(f"{place.scheme}:// is not known here: write {place._replace(scheme='s3')}")
    return place


def checked(key: str) -> str:
    """A key as this package builds them: it leads nowhere else."""
    if not key or any(part in {"", ".", ".."} for part in key.split("/")):
        raise ValueError(f"{key!r} is no key of an object")
    return key
