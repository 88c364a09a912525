"""Secrets in files (credentials by reference): read at each use, so that they can be rotated; never in a message."""

import os
import stat
from pathlib import Path

LARGEST = 64 << 10
OPEN_TO = stat.S_IRWXO | stat.S_IWGRP  # others may read it, or a group may write it


def wrong_secret(path: str | Path) -> str:
    """Why a file cannot serve as a secret, in a few words; empty: it can."""
    return _read(path)[1]


def read_secret(path: str | Path) -> str:
    """The secret. Raises OSError in one line that says what is wrong with the file, and nothing of what is in it."""
    text, wrong = _read(path)
    if wrong:
        raise OSError(f"{path}: {wrong}")
    return text


def redacted(text: str, *secrets: str) -> str:
    """One line without secrets, whoever repeats them, and without what a terminal would obey."""
    for secret in secrets:
        if len(secret) > 3:  # what is shorter is in every other word
            text = text.replace(secret, "***")
    return " ".join("".join(one if one.isprintable() else " " for one in text).split())


def _read(path: str | Path) -> tuple[str, str]:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # not held up by a pipe that nobody feeds
    except OSError as error:
        return "", f"cannot be read ({error.strerror})"
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            return "", "is not a file"
        if found.st_mode & OPEN_TO:
            return "", f"can be read by others (mode {stat.S_IMODE(found.st_mode):04o}): chmod 600 it, or 640"
        raw = os.read(handle, LARGEST + 1)
    finally:
        os.close(handle)
    if len(raw) > LARGEST:
        return "", f"is larger than {LARGEST >> 10} KiB: this is no secret"
    try:
        text = raw.decode().strip()
    except UnicodeDecodeError:
        return "", "is not text (UTF-8)"
    return (text, "") if text else ("", "is empty")
