"""Tables of cases: one test checks each row, and lists the rows that fail."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def check_each_row(names: str | tuple[str, ...], rows: Iterable[Any]) -> Callable[[Callable[..., None]], Any]:
    """As `pytest.mark.parametrize`, but all rows are one test, and fixtures are set up once for all of them.

    Raises, from the test: AssertionError that lists each row that failed with its error; its cause is the first error.
    """
    listed = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    table = [dict(zip(listed, row if len(listed) > 1 else [row])) for row in rows]
    assert all(len(row) == len(listed) for row in table)

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(*args: Any, **fixtures: Any) -> None:
            assert table, "the table has no rows"
            failed: list[tuple[dict[str, Any], BaseException]] = []
            for row in table:
                try:
                    function(*args, **fixtures, **row)
                except (Exception, pytest.fail.Exception) as error:
                    failed.append((row, error))
            if failed:
                text = "\n\n".join(f"{row}\n{type(error).__name__}: {error}" for row, error in failed)
                raise AssertionError(f"{len(failed)} of {len(table)} rows:\n\n{text}") from failed[0][1]

        given = inspect.signature(function)
        left = [parameter for name, parameter in given.parameters.items() if name not in listed]
        run.__signature__ = given.replace(parameters=left)  # type: ignore[attr-defined]
        return run

    return decorate
