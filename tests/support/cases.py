"""Table-driven tests: many tiny cases in one test, which names each that fails.

For hundreds of cases that share nothing but their test: pytest takes longer to set up and to tell of one than it lasts.
"""

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import pytest

SHOWN = 20


def one_by_one(names: str | tuple[str, ...], cases: Iterable[Any], ids: object = None) -> Callable[[Any], Any]:
    """In place of `pytest.mark.parametrize`: all cases are tried, whichever fail. They share the fixtures."""
    del ids
    words = tuple(name.strip() for name in names.split(",")) if isinstance(names, str) else names
    table = [dict(zip(words, case if len(words) > 1 else (case,), strict=True)) for case in cases]

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def tried(**fixtures: Any) -> None:
            wrong: list[tuple[dict[str, Any], BaseException]] = []
            for case in table:
                try:
                    test(**fixtures, **case)
                except (Exception, pytest.fail.Exception, pytest.skip.Exception) as error:  # noqa: BLE001 - told below
                    wrong.append((case, error))
            told = "\n".join(f"{case}: {error}" for case, error in wrong[:SHOWN])
            if wrong:
                raise AssertionError(f"{len(wrong)} of {len(table)} cases:\n{told}") from wrong[0][1]
            assert table, "there is no case"

        signature = inspect.signature(test)
        rest = [parameter for name, parameter in signature.parameters.items() if name not in words]
        tried.__signature__ = signature.replace(parameters=rest)  # type: ignore[attr-defined]
        return tried

    return decorate
