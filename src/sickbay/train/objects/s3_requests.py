"""Requests to S3, with their retries and time limits, and what goes wrong with them as OSErrors."""

import errno
import logging
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from sickbay.train.errors import CheckpointError
from sickbay.train.objects import Location
from sickbay.train.objects.faults import COMES_BACK, cause_of, fault, number_of_status, one_line
from sickbay.train.objects.payload import Body

# Here, so that who lacks them learns it when he connects.
boto3: Any = import_module("boto3")
Config: Any = import_module("botocore.config").Config
botocore: Any = import_module("botocore.exceptions")
urllib3: Any = import_module("urllib3.exceptions")

log = logging.getLogger("sickbay.train")
CONNECT, ANSWER = 15.0, 60.0  # seconds for a connection, and between two signs of life on it
PATIENCE = 180.0  # seconds for one request and its repetitions, besides what its bytes may take
SLOWEST = 0.5e6  # bytes a second on one connection that is not given up
AGAIN = (0.5, 1.0, 2.0, 4.0, 8.0)  # seconds, more or less, after which a request that may come back is sent again
CONNECTIONS = 16
OLDEST = (1, 36)  # of boto3: it can say how large a multipart upload must be
ADDRESS = "AWS_ENDPOINT_URL (or endpoint_url in ~/.aws/config)"
NAME = re.compile(r"[A-Za-z0-9._-]{3,255}")

FAILURES = (botocore.BotoCoreError, botocore.ClientError, urllib3.HTTPError)
TIMEOUTS = (botocore.ConnectTimeoutError, botocore.ReadTimeoutError, urllib3.TimeoutError)
UNREACHABLE = (botocore.EndpointConnectionError, botocore.ProxyConnectionError)
NO_CREDENTIALS = (botocore.NoCredentialsError, botocore.PartialCredentialsError)
CODES = {
    "NoSuchKey": errno.ENOENT,
    "NoSuchBucket": errno.ENODEV,
    "NoSuchUpload": errno.ESTALE,
    "PreconditionFailed": errno.ESTALE,
    "BadDigest": errno.EIO,  # what arrived was not what was sent
    "XAmzContentSHA256Mismatch": errno.EIO,
    "XAmzContentChecksumMismatch": errno.EIO,
    "IncompleteBody": errno.EIO,
    "RequestTimeout": errno.ETIMEDOUT,
    "RequestTimeTooSkewed": errno.EACCES,
    "ExpiredToken": errno.EACCES,
    "InvalidToken": errno.EACCES,
    "TokenRefreshRequired": errno.EACCES,
    "Throttling": errno.EIO,
    "ThrottlingException": errno.EIO,
    "RequestLimitExceeded": errno.EIO,
    "BandwidthLimitExceeded": errno.EIO,
    "SlowDown": errno.EIO,
    "EntityTooLarge": errno.EFBIG,
    "QuotaExceeded": errno.ENOSPC,
    "InvalidRange": errno.ESTALE,  # it was longer a moment ago
    "NotImplemented": errno.EOPNOTSUPP,
}
TEXTS = {
    errno.ENOENT: "there is no such object",
    errno.ENODEV: "there is no such bucket: create it, or correct its name",
}
HINTS = {errno.EACCES: "see that the credentials of this process may do that, and that its clock is right"}
UPLOADS = frozenset({"PutObject", "CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload"})
WITHOUT = "a service that refuses checksums may need AWS_REQUEST_CHECKSUM_CALCULATION=when_required"


class Bucket:
    """One bucket, below one prefix, and how it is asked."""

    def __init__(self, place: Location, client: Any) -> None:
        self.url = str(place)
        self.name, self.below = place.container, f"{place.prefix}/" if place.prefix else ""
        self.client = client

    @classmethod
    def connect(cls, place: Location) -> "Bucket":
        if not NAME.fullmatch(place.container):
            raise CheckpointError(f"{place} names no bucket: write s3://BUCKET/PREFIX")
        if tuple(int(number) for number in boto3.__version__.split(".")[:2]) < OLDEST:
            needed = ".".join(map(str, OLDEST))
            raise CheckpointError(
                f"s3:// needs boto3 {needed} or newer, this is {boto3.__version__}: pip install 'sickbay[s3]'"
            )
        client = _client(place)
        if "@" in urlsplit(client.meta.endpoint_url).netloc:  # boto3 would never send it, and show it in errors
            raise CheckpointError(
                f"cannot use {place}: {ADDRESS} names a user before its @: leave that out, credentials come from"
                " elsewhere"
            )
        return cls(place, client)

    @property
    def checksums(self) -> bool:
        """Whether the user lets us send any."""
        return bool(getattr(self.client.meta.config, "request_checksum_calculation", "") != "when_required")

    def path(self, key: str | None) -> str:
        return self.url if key is None else f"{self.url}/{key}"

    def ask(
        self,
        operation: str,
        key: str | None = None,
        *,
        body: Callable[[float], Body] | None = None,
        size: int = 0,
        patience: float | None = None,
        unwanted: threading.Event | None = None,
        **parameters: Any,
    ) -> dict[str, Any]:
        """Ask until there is an answer, as long as another try may help and the time limit is not over."""
        trying = Trying(size, patience, unwanted)
        if key is not None:
            parameters["Key"] = self.below + key
        while True:
            sent = body(trying.ends) if body is not None else None
            if sent is not None:
                parameters["Body"] = sent
            try:
                answer: dict[str, Any] = getattr(self.client, operation)(Bucket=self.name, **parameters)
            except FAILURES as error:
                if sent is not None and isinstance(sent.failure, TimeoutError):
                    raise fault(errno.ETIMEDOUT, str(sent.failure.strerror), self.path(key)) from cause_of(error)
                if sent is not None and sent.failure is not None:
                    raise sent.failure from cause_of(error)
                trying.once_more(self.fault_of(error, key), error)
            else:
                return answer

    def fault_of(self, error: Exception, key: str | None) -> OSError:
        """What a failure of boto3 is, in the words of a disk."""
        where = self.path(key)
        if isinstance(error, botocore.ClientError):
            return self._refusal(str(error.operation_name), error.response, where)
        if isinstance(error, TIMEOUTS):
            return fault(errno.ETIMEDOUT, f"no answer within {ANSWER:g} s", where)
        if isinstance(error, botocore.SSLError):
            return fault(errno.EIO, f"no secure connection: {error}", where)
        if isinstance(error, UNREACHABLE):
            return fault(errno.EHOSTUNREACH, "the service cannot be reached", where)
        if isinstance(error, NO_CREDENTIALS):
            text = "there are no credentials: give this machine a role, or set AWS_PROFILE"
            return fault(errno.EACCES, text, where)
        if isinstance(error, botocore.HTTPClientError | botocore.IncompleteReadError | urllib3.HTTPError):
            return fault(errno.EIO, f"the connection broke ({type(error).__name__})", where)
        if isinstance(error, botocore.CredentialRetrievalError | botocore.MetadataRetrievalError):
            return fault(errno.EIO, "whoever hands out credentials does not answer", where)
        return fault(errno.EINVAL, f"{type(error).__name__}: {error}", where)

    @staticmethod
    def _refusal(operation: str, answer: dict[str, Any], where: str) -> OSError:
        stated: dict[str, Any] = answer.get("Error", {})
        code, status = str(stated.get("Code", "")), int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode") or 0)
        number = CODES.get(code) or number_of_status(status)
        if code == "400" and operation.startswith("Head"):  # an answer to HEAD has no words
            number = errno.EACCES
        if code == "PreconditionFailed":  # of reading, as nothing else has one
            return fault(number, "was replaced while it was read", where)
        refused = number in {errno.EINVAL, errno.EOPNOTSUPP} and operation in UPLOADS
        hint = WITHOUT if refused else HINTS.get(number)
        text = TEXTS.get(number) or f"{code} ({status}): {stated.get('Message', '')}"
        return fault(number, f"{text}; {hint}" if hint else text, where)

    def remove(self, keys: list[str]) -> None:
        """At most a thousand at once. It is an answer like any other if some of them were refused."""
        objects = [{"Key": self.below + key} for key in keys]
        answer = self.ask("delete_objects", Delete={"Objects": objects, "Quiet": True})
        for one in answer.get("Errors", ()):
            if one.get("Code") != "NoSuchKey":
                number = CODES.get(one.get("Code"), errno.EACCES if one.get("Code") == "AccessDenied" else errno.EIO)
                raise fault(number, f"was not removed: {one.get('Code')}", f"s3://{self.name}/{one.get('Key')}")

    def pages(self, operation: str, below: str) -> Iterator[dict[str, Any]]:
        """All pages of a listing."""
        more = dict[str, Any]()
        while True:
            page = self.ask(operation, Prefix=below, **more)
            yield page
            if not page.get("IsTruncated"):
                return
            if "NextContinuationToken" in page:
                more = {"ContinuationToken": page["NextContinuationToken"]}
            elif "NextKeyMarker" in page:
                more = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}
            else:
                raise fault(errno.EIO, "has a listing that goes on without saying where", f"{self.url}/{below}")


def _client(place: Location) -> Any:
    config = Config(
        connect_timeout=CONNECT,
        read_timeout=ANSWER,
        retries={"total_max_attempts": 1},  # they are counted here, against one time limit
        max_pool_connections=CONNECTIONS,
        tcp_keepalive=True,
    )
    try:
        return boto3.session.Session().client("s3", config=config)
    except FAILURES as error:
        raise CheckpointError(f"cannot use {place}: {one_line(str(error))}") from None
    except ValueError:  # its text holds the address, which may hold a password
        raise CheckpointError(f"cannot use {place}: {ADDRESS} is no http(s):// address") from None


class Trying:
    """The repetitions of one request: a few, further and further apart, within one time limit."""

    def __init__(self, size: int, patience: float | None, unwanted: threading.Event | None) -> None:
        self.ends = time.monotonic() + (PATIENCE if patience is None else patience) + size / SLOWEST
        self._pauses = iter(AGAIN)
        self._unwanted = unwanted or threading.Event()

    def once_more(self, found: OSError, cause: Exception) -> None:
        """Wait; or raise what was found, if it does not come back or not in time."""
        pause = next(self._pauses, None) if found.errno in COMES_BACK else None
        if pause is None or time.monotonic() + pause > self.ends:
            raise found from cause_of(cause)
        pause *= random.uniform(0.5, 1.5)  # noqa: S311 - so that ranks do not come back together
        log.info("%s; tried again in %.1f s", found, pause)
        if self._unwanted.wait(pause):
            raise found from cause_of(cause)

    def go_on(self, where: str) -> None:
        """Raises if it takes too long, or is not wanted any more."""
        if self._unwanted.is_set() or time.monotonic() > self.ends:
            raise fault(errno.ETIMEDOUT, "comes too slowly", where)
