"""stub"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO, Protocol
from contextlib import AbstractContextManager
from sickbay.train import disk


class Objects(Protocol):
    url: str

    def put(
        self, key: str, parts: Iterable[bytes | bytearray | memoryview], expected: disk.Sum | None = None
    ) -> disk.Sum: ...
    def put_file(
        self, key: str, source: Path, expected: disk.Sum, progress: Callable[[int], None] | None = None
    ) -> None: ...
    def size_of(self, key: str) -> int | None: ...
    def open(self, key: str) -> AbstractContextManager[BinaryIO]: ...
    def list(self, prefix: str) -> list[str]: ...
    def remove_all(self, prefix: str) -> None: ...


def connect(url: str) -> Objects:
    raise NotImplementedError
