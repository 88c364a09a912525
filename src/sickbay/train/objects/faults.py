"""Errors of object stores as OSErrors: a caller that waits for a disk to come back waits for a store as well."""

import errno
import re

# What may be over in a minute. Callers know these from disks.
COMES_BACK = frozenset({errno.EIO, errno.ETIMEDOUT, errno.EHOSTUNREACH})
_SECRET = re.compile(
    r"\b(?:AKIA|ASIA)[A-Z0-9]{8,}|(?<=://)[^\s/@]+@"
    r"|(?i:(?:signature|credential|security-token|sig|key|token|secret|password)\s*[=:]\s*)\S+"
)
_LONGEST = 300


def fault(number: int, text: str, where: str) -> OSError:
    """The OSError of this number; its class follows from it (FileNotFoundError, PermissionError, TimeoutError …)."""
    return OSError(number, one_line(text), where)


def one_line(text: str) -> str:
    """What a store says, without what it must not say."""
    line = _SECRET.sub("…", " ".join(text.split()))
    return line if len(line) <= _LONGEST else line[:_LONGEST] + " …"


def cause_of(error: BaseException) -> BaseException | None:
    """It, as what another error came from; None if it would show a secret in the log of a script that fails."""
    told: BaseException | None = error
    while told is not None:
        if _SECRET.search(str(told)):
            return None
        told = told.__cause__ or told.__context__
    return error


def number_of_status(status: int) -> int:
    """What an HTTP status means for a caller."""
    known = {
        401: errno.EACCES,
        403: errno.EACCES,
        404: errno.ENOENT,
        405: errno.EOPNOTSUPP,
        408: errno.ETIMEDOUT,
        409: errno.EIO,
        412: errno.ESTALE,
        413: errno.EFBIG,
        429: errno.EIO,
        501: errno.EOPNOTSUPP,
        504: errno.ETIMEDOUT,
        507: errno.ENOSPC,
    }
    return known.get(status, errno.EIO if status >= 500 or status < 400 else errno.EINVAL)
