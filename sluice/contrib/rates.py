"""Rates of reads, from what the processes that answer them have counted, and shares."""

from __future__ import annotations

from collections.abc import Mapping


def read_rates(
    before: Mapping[str, int] | None, now: Mapping[str, int] | None, seconds: float
) -> tuple[float | None, float | None]:
    """Reads per second between two looks, and the hit rate: of the answers 200 and 404, the share of 200.

    None: unknown, as after a restart of the Redis that has them; without such an answer there is no hit rate.
    """
    if before is None or now is None or seconds <= 0:
        return None, None
    new = {status: n - before.get(status, 0) for status, n in now.items()}
    if min(new.values(), default=0) < 0 or before.keys() - now.keys():
        return None, None
    valid = new.get("200", 0) + new.get("404", 0)
    return sum(new.values()) / seconds, new.get("200", 0) / valid if valid else None


def format_percent(share: float | None) -> str:
    """A share with a tenth of a percent, rounded down: 100 % means all. Empty if there is none."""
    return "" if share is None else f"{int(share * 1000 + 1e-9) / 10:g} %"
