"""What decoders of wire formats pay for beside records and parts: see `Budget` in sluice/streams/body.py."""

from __future__ import annotations

from sluice.streams.body import ATTEMPT_COST, GROWTH, INVALID_BYTES, Budget, Remainder
from sluice.streams.encoding import inflate_body
from sluice.streams.record import Invalid

BRACKETS = 16  # of a nested element that cost one record: finding its end takes as long
FAILED_INFLATIONS = 8  # of a body: one costs as much as an eighth of what may be inflated


class Exhausted(Invalid):
    """A part needs more than is left of the budget."""

    def __init__(self) -> None:
        super().__init__(Remainder.reason)


def charge_work(budget: Budget, units: int) -> None:
    """Pay for work before it is done. Raises: Exhausted if there is not as much left; then nothing is."""
    budget.left -= units
    if budget.left < 0:
        raise Exhausted


def charge_attempt(budget: Budget, size: int) -> None:
    """Pay for another attempt at a part of so many bytes. It may be the last one."""
    budget.left -= ATTEMPT_COST + size // INVALID_BYTES


def charge_rows(budget: Budget, times: int, size: int) -> None:
    """Pay for bytes that each row of one line, point or series has, before the rows are made.

    Raises: Invalid if they are more than this may be: a part of a body is stored complete or not at all.
    """
    if times * size > budget.limits.repeated:
        raise Invalid(f"becomes more than {budget.limits.repeated} bytes of rows")
    budget.charge_bytes(times * size)


def inflate_part(budget: Budget, data: bytes, encoding: str = "", grows: bool = False) -> bytes:
    """The content of what is compressed inside of a body: the only way to it.

    grows: it takes the place of the body. Raises: Invalid.
    """
    try:
        content = inflate_body(data, encoding, budget.packed)
    except Invalid:
        budget.packed -= min(budget.packed, budget.limits.inflated // FAILED_INFLATIONS)
        raise
    budget.packed -= len(content)
    if grows:
        budget.room += GROWTH * len(content)
    budget.count_nested(content)
    return content
