"""The Mirror port over files: one JSON file for each node and job, replaced as a whole, for tools that read files."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, unquote

import msgspec

from sickbay.model.errors import Rejected, Transient
from sickbay.model.shown import AnyShown
from sickbay.wire.files import replace_file

# Another name or another place is needed; anything else may come right by itself (a disk that is full).
_NEVER_COMES_RIGHT = frozenset({errno.ENAMETOOLONG, errno.EISDIR, errno.EINVAL, errno.ELOOP})


class LocalMirror:
    """`<root>/mirror/nodes/<name>.json`, `<root>/mirror/jobs/<id>.json`. Other files there are let alone."""

    period = 0.5

    def __init__(self, root: Path | str, cluster: str) -> None:
        self._root = Path(root) / "mirror"
        self._cluster = cluster

    def show(self, value: AnyShown) -> None:
        whole = {"shows": value.__struct_config__.tag, **msgspec.structs.asdict(value)}
        with _writing():
            replace_file(self._path(value.subject), _pretty(whole), durable=False)

    def remove(self, subject: str) -> None:
        with _writing():
            self._path(subject).unlink(missing_ok=True)

    def shown(self) -> list[str]:
        with _writing():
            nodes = [f"node:{self._cluster}/{name}" for name in _names(self._root / "nodes")]
            return nodes + [f"job:{name}" for name in _names(self._root / "jobs")]

    def _path(self, subject: str) -> Path:
        kind, _, name = subject.partition(":")
        if kind == "node":
            cluster, _, name = name.partition("/")
            if cluster != self._cluster:
                raise Rejected(f"{subject} is not of cluster {self._cluster}")
        return self._root / f"{kind}s" / f"{_as_file(name)}.json"


def _as_file(name: str) -> str:
    """One path component for any name; a dot in front is for files that are being written."""
    plain = quote(name, safe="")
    return f"%2E{plain[1:]}" if plain.startswith(".") else plain


def _names(directory: Path) -> list[str]:
    try:
        files = list(directory.iterdir())
    except FileNotFoundError:
        return []
    for file in files:
        if file.name.startswith("."):  # a writer was killed beside its file; none that lives is older than this call
            file.unlink(missing_ok=True)
    return [unquote(file.name[:-5]) for file in files if file.suffix == ".json" and not file.name.startswith(".")]


def _pretty(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        wrong = Rejected if error.errno in _NEVER_COMES_RIGHT else Transient
        raise wrong(f"the mirror's files: {error.strerror or error}") from error
