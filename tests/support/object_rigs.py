"""Object stores to test against: fsspec's memory, a directory, and an S3 service over HTTP that misbehaves on wish."""

import base64
import hashlib
import io
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import parse_qs

import pytest

from sickbay.train import objects

_numbers = count(1)
ODD = "odd é 漢 %20 +&=#~ [x]* 'q' {y}"


class Rig(Protocol):
    """One bucket (or directory) of a store."""

    url: str

    def connect(self, prefix: str = "") -> objects.Objects: ...
    def write(self, name: str, content: bytes) -> None:
        """As another client of the store does it, at once."""

    def names(self) -> list[str]:
        """Everything that another client of the store can see."""


class MemoryRig:
    def __init__(self) -> None:
        self.fs: Any = import_module("fsspec").filesystem("memory")
        self.bucket = f"bucket-{os.getpid()}-{next(_numbers)}"
        self.fs.mkdir(f"/{self.bucket}")
        self.url = f"memory://{self.bucket}"

    def connect(self, prefix: str = "") -> objects.Objects:
        return objects.connect(f"{self.url}/{prefix}")

    def write(self, name: str, content: bytes) -> None:
        self.fs.pipe_file(f"/{self.bucket}/{name}", content)

    def names(self) -> list[str]:
        return sorted(name.removeprefix(f"/{self.bucket}/") for name in self.fs.find(f"/{self.bucket}"))


class DirectoryRig:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.url = f"file://{directory}"

    def connect(self, prefix: str = "") -> objects.Objects:
        (self.directory / prefix).mkdir(parents=True, exist_ok=True)
        return objects.connect(f"{self.url}/{prefix}")

    def write(self, name: str, content: bytes) -> None:
        aside = self.directory / "aside"
        aside.write_bytes(content)
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.rename(path)

    def names(self) -> list[str]:
        files = (path for path in self.directory.rglob("*") if path.is_file())
        return sorted(str(path.relative_to(self.directory)) for path in files)


class Asked(NamedTuple):
    """One request as the service sees it."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes

    @property
    def operation(self) -> str:
        if "uploadId" in self.query:
            return {"PUT": "part", "POST": "complete", "DELETE": "abort"}.get(self.method, "parts")
        if "uploads" in self.query:
            return {"POST": "create", "GET": "uploads"}[self.method]
        if self.path.strip("/").count("/") == 0:
            return {"GET": "list", "POST": "delete-many"}.get(self.method, "bucket")
        return self.method.lower()


class Cut(Exception):  # noqa: N818
    """The connection is cut here."""


Answer = tuple[int, str]  # status and code of an error
Trouble = Callable[[Asked], "Answer | Asked | None"]  # an answer, another request in its place, or as it is
Gaps = Callable[[Asked, bytes], Iterable[bytes]]  # how the body of an answer goes out


class Service:
    """An S3 service on a port of this machine: moto, behind which stands one that verifies checksums as AWS does."""

    def __init__(self) -> None:
        werkzeug: Any = import_module("werkzeug.serving")
        app: Any = import_module("moto.moto_server.werkzeug_app")
        logging.getLogger("werkzeug").setLevel(logging.CRITICAL)  # an answer that a test cuts is no error of it
        self.moto = app.DomainDispatcherApplication(app.create_backend_app)
        self.server = werkzeug.make_server(
            "127.0.0.1", 0, self.answer, threaded=True, request_handler=app.MotoRequestHandler
        )
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()
        self._client: Any = None
        self.calm()

    def client(self) -> Any:
        """One for all tests: they are slow to make."""
        if self._client is None:
            self._client = import_module("boto3").client("s3", endpoint_url=self.url)
        return self._client

    def calm(self) -> None:
        self.trouble: Trouble = lambda _asked: None
        self.gaps: Gaps | None = None
        self.after: Callable[[Asked], None] = lambda _asked: None
        self.states_checksums = True
        self.asked: list[Asked] = []

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def count(self, operation: str) -> int:
        return sum(asked.operation == operation for asked in self.asked)

    def answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        asked = _asked_of(environ)
        self.asked.append(asked)
        try:
            verdict = self.trouble(asked)
            if isinstance(verdict, tuple) and not isinstance(verdict, Asked):
                return _error(start, *verdict)
            asked = verdict or asked
            stated = asked.headers.get("X-AMZ-CHECKSUM-SHA256", "")
            ours = base64.b64encode(hashlib.sha256(asked.body).digest()).decode()
            if self.states_checksums and asked.operation in {"part", "put"} and stated not in {"", ours}:
                return _error(start, 400, "BadDigest")
            body = b"".join(self._moto(environ, asked, start))
            self.after(asked)
            return self.gaps(asked, body) if self.gaps is not None else [body]
        except KeyError:  # moto's way to say so
            return _error(start, 404, "NoSuchUpload")
        except Cut:
            cut(environ)
            return []

    def _moto(self, environ: dict[str, Any], asked: Asked, start: Callable[..., Any]) -> Iterable[bytes]:
        environ["wsgi.input"] = io.BytesIO(asked.body)

        def started(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
            if not self.states_checksums:
                headers = [(name, value) for name, value in headers if not name.lower().startswith("x-amz-checksum")]
            return start(status, headers, *more)

        whole: Iterable[bytes] = self.moto(environ, started)
        return whole


def cut(environ: dict[str, Any]) -> None:
    environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)


def _asked_of(environ: dict[str, Any]) -> Asked:
    headers = {name[5:].replace("_", "-"): value for name, value in environ.items() if name.startswith("HTTP_")}
    size = int(environ.get("CONTENT_LENGTH") or 0)
    body = environ["wsgi.input"].read(size) if size else b""
    query = parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True)
    return Asked(environ["REQUEST_METHOD"], environ["PATH_INFO"], query, headers, body)


def _error(start: Callable[..., Any], status: int, code: str) -> list[bytes]:
    text = f"<Error><Code>{code}</Code><Message>as the test wants it</Message></Error>".encode()
    start(f"{status} {code}", [("Content-Type", "application/xml"), ("Content-Length", str(len(text)))])
    return [text]


@contextmanager
def running_service() -> Iterator[Service]:
    """Clients read the description of AWS (megabytes of JSON) once, and not each of them anew."""
    sessions: Any = import_module("botocore.session")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sessions, "create_loader", cache(sessions.create_loader))
        service = Service()
        yield service
        service.stop()


ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "AKIATESTTESTTESTTEST",
    "AWS_SECRET_ACCESS_KEY": "not-to-be-seen",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    "AWS_EC2_METADATA_DISABLED": "true",
    "NO_PROXY": "127.0.0.1",
}


class S3Rig:
    def __init__(self, service: Service) -> None:
        self.service = service
        self.client = service.client()
        self.bucket = f"bucket-{next(_numbers)}"
        service.calm()
        self.client.create_bucket(Bucket=self.bucket)
        self.url = f"s3://{self.bucket}"

    def connect(self, prefix: str = "") -> objects.Objects:
        return objects.connect(f"{self.url}/{prefix}")

    def write(self, name: str, content: bytes) -> None:
        self.client.put_object(Bucket=self.bucket, Key=name, Body=content)

    def names(self) -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket)
        return sorted(one["Key"] for page in pages for one in page.get("Contents", ()))

    def uploads(self) -> list[str]:
        found = self.client.list_multipart_uploads(Bucket=self.bucket)
        return [one["Key"] for one in found.get("Uploads", ())]
