"""Commands that wait for other transactions."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from sluice.store.types import Unavailable

F = TypeVar("F", bound=Callable[..., Any])
ATTEMPTS = 6  # of a command, over about two seconds in addition to the waits for locks


class Conflict(Unavailable):
    """Another transaction was in the way, for now: a deadlock, a lock that did not come in time, and the like."""


def retry_conflicts(method: F) -> F:
    """Do a method that is one transaction again, if another transaction was in its way.

    For commands; a worker does its other work meanwhile.
    """

    @wraps(method)
    def attempt(*given: Any, **named: Any) -> Any:
        for wait in range(1, ATTEMPTS):
            with contextlib.suppress(Conflict):
                return method(*given, **named)
            time.sleep(wait * random.uniform(0.05, 0.2))  # noqa: S311  # two that meet must not meet again
        return method(*given, **named)

    return cast("F", attempt)
