"""What a worker does beside storing, in small steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sluice.store.store import Store


@dataclass
class Chore:
    """step: one step, a few milliseconds; whether there may be more to do. pause: seconds until the next one if not."""

    name: str
    step: Callable[[Store[Any]], bool]
    pause: float
    due: float = 0.0  # monotonic
