"""HTTP errors: why a request is refused, a status and one line that says what to do."""

from collections.abc import Iterable

from sickbay.faces.archive import unknown_name
from sickbay.model.errors import (
    BadInput,
    EffectError,
    Gone,
    Rejected,
    StoreError,
    StoreUnknown,
    Transient,
    Unknown,
    UnusableStore,
)

AGAIN = "try again in a moment"


class ApiRefusal(Exception):  # noqa: N818 - the house names errors by what happened
    def __init__(self, status: int, line: str, **headers: str) -> None:
        super().__init__(line)
        self.status = status
        self.line = line
        self.headers = headers


def refused(error: Exception) -> ApiRefusal | None:
    """What the caller is told of an error that was foreseen; None: it was not."""
    match error:
        case ApiRefusal():
            return error
        case BadInput():
            return ApiRefusal(400, str(error))
        case Gone():
            return ApiRefusal(404, str(error))
        case Rejected():
            return ApiRefusal(409, str(error))
        case Transient() | Unknown() | EffectError():
            return ApiRefusal(503, f"the cluster did not answer ({error}): {AGAIN}")
        case UnusableStore():
            return ApiRefusal(503, f"the store cannot be used: {error}")
        case StoreUnknown():
            return ApiRefusal(503, f"whether it was stored is not known ({error}): send it again with the same key")
        case StoreError():
            return ApiRefusal(503, f"the store is not available ({error}): {AGAIN}")
        case TimeoutError():
            return ApiRefusal(503, str(error) or f"it took too long: {AGAIN}")
        case _:
            return None


def missing(what: str, name: str, known: Iterable[str]) -> ApiRefusal:
    """404, with what was probably meant."""
    return ApiRefusal(404, unknown_name(what, name, known))
