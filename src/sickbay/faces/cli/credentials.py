"""The credentials file: this user's tokens, by the server that each is for. Only their owner can read it."""

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sickbay.model.errors import BadInput
from sickbay.wire.files import replace_file

FILE = "credentials.json"


def file() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(home) if home.startswith("/") else Path.home() / ".config") / "sickbay" / FILE


def lookup(url: str) -> str | None:
    """Raises BadInput for a file that cannot be used."""
    return _read(file()).get(_same(url))


def remember(url: str, token: str) -> None:
    _change(lambda known: {**known, _same(url): token})


def forget(url: str) -> None:
    """What is not there is forgotten already."""
    _change(lambda known: {one: token for one, token in known.items() if one != _same(url)})


def _same(url: str) -> str:
    return url.rstrip("/").lower()


def _read(path: Path) -> dict[str, str]:
    try:
        known = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}: make it readable, or set SICKBAY_TOKEN") from None
    except ValueError:
        known = None
    if not isinstance(known, dict) or not all(isinstance(token, str) for token in known.values()):
        raise BadInput(f"{path} is not a list of tokens: remove it, or set SICKBAY_TOKEN")
    return known


def _change(change: Callable[[dict[str, str]], dict[str, str]]) -> None:
    path = file()
    try:
        with _alone(path):
            try:
                before = _read(path)
            except BadInput:
                before = {}  # nobody can use what is in it, and a new token must have its place
            after = change(before)
            if after != before or not path.exists():
                replace_file(path, json.dumps(after, indent=2).encode())
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}: set XDG_CONFIG_HOME elsewhere") from None


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Two that start at once must not lose each other's token."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
