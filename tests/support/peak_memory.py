"""Measures the memory of a function in a process without other threads.

tracemalloc of CPython 3.11 crashes if another thread allocates memory without the GIL while tracing is stopped
(python/cpython#128679), and tests leave threads behind: of servers, and of clients of brokers and databases.
"""

from __future__ import annotations

import multiprocessing
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


@cache
def other_process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))


def traced(function: Callable[..., T], *args: Any) -> tuple[T, int]:
    tracemalloc.start()
    try:
        return function(*args), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def peak(function: Callable[..., T], *args: Any) -> tuple[T, int]:
    """What a module's function returns, and its peak of Python's memory, bytes."""
    return other_process().submit(traced, function, *args).result()
