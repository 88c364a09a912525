"""Dotenv files: variables of a job that are not to be stored, such as secrets, read where and when its ranks start.

One `NAME=value` in a line; `export` in front, quotes around the value, empty lines and lines that begin with # are
fine. Nothing is expanded.
"""

import os
import re
import stat
from pathlib import Path

from sickbay.model.errors import BadInput

MOST = 256 * 1024  # bytes
_LINE = re.compile(r"(?:export\s+)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)\s*=\s*(?P<value>.*)")


def read_env_file(path: str) -> dict[str, str]:
    """Raises BadInput: one line with the file, what is wrong, and what to write. A value is never in it."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            _check(os.fstat(handle), path)
            text = os.read(handle, MOST + 1)
        finally:
            os.close(handle)
    except OSError as error:
        raise BadInput(f"env file {path}: {error.strerror or error}") from None
    if len(text) > MOST:
        raise BadInput(f"env file {path} has more than {MOST} bytes: put less into it")
    try:
        return dict(_variables(text.decode(), path))
    except UnicodeDecodeError:
        raise BadInput(f"env file {path} is no text: write NAME=value lines in UTF-8") from None


def _check(found: os.stat_result, path: str) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise BadInput(f"env file {path} is no file")
    if found.st_mode & (stat.S_IROTH | stat.S_IWOTH):
        raise BadInput(f"env file {path} can be read or written by everybody: chmod o-rw {path}")


def _variables(text: str, path: str) -> list[tuple[str, str]]:
    found = []
    # Not splitlines: a form feed or U+2028 within a value would end it, and begin another variable.
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        bare = line.strip(" \t\r")
        if not bare or bare.startswith("#"):
            continue
        match = _LINE.fullmatch(bare)
        if match is None:
            raise BadInput(f"env file {path}, line {number} is no NAME=value")
        name, value = match["name"], match["value"]
        if name.startswith("SICKBAY_"):
            raise BadInput(f"env file {path}, line {number}: {name} is set by Sickbay itself: choose another name")
        if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        if "\0" in value:
            raise BadInput(f"env file {path}, line {number} has a zero byte")
        found.append((name, value))
    return found


def check_here(path: Path) -> str:
    """For whoever submits: empty, or why it could not be checked, as it is not on this machine. Raises BadInput."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return f"env file {path} is not on this machine: each node reads its own when the ranks start there"
    except OSError:
        pass  # whoever reads it says why
    read_env_file(str(path))
    return ""
