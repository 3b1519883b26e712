"""No body takes more work than its budget has: what is counted are lines of Python, and bytes that are inflated.

The figures of a machine are those of bench/strangers, which posts some of these bodies.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from sluice.contrib.formats import charges
from sluice.routes import ROUTES
from sluice.streams import encoding
from sluice.streams.built_in import STREAMS
from sluice.streams.record import Limits
from support import peak_memory
from support.hostile_bodies import HOSTILE
from support.list_items import kept

SIZE = 1 << 19
LIMITS = Limits(SIZE, SIZE // 128, SIZE // 8, room=2 * SIZE, repeated=SIZE // 2)  # a sixteenth of the default ones
LINES = 320  # for a record of the budget; a plain log takes 220
PEAK = 20  # times the body; of the largest one, which has less beside it, 12 are the 100 MB of bench/strangers


def item(name: str, size: int) -> tuple[str, bytes]:
    path, fields, make = HOSTILE[name]
    return ROUTES[path.partition("?")[0]].stream, kept(make(size), path, *fields)


class TooMuch(BaseException):
    """No decoder takes it for an error of its own."""


def lines(function: Callable[[], object], most: int) -> int:
    """How many lines of Python a function runs. Raises: TooMuch once they are more than `most`."""
    count = 0

    def trace(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        if count > most:
            raise TooMuch(most)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return count


def check_work(name: str, limits: Limits) -> None:
    stream, sent = item(name, limits.inflated)
    decode = STREAMS[stream].decode
    decode(item(name, 4_000)[1], limits)  # imports what it needs
    lines(lambda: decode(sent, limits), LINES * limits.records)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_small_body_takes_no_more_work_than_its_budget(name: str) -> None:
    check_work(name, LIMITS._replace(inflated=SIZE // 8, records=LIMITS.records // 8, record=LIMITS.record // 8))


@pytest.mark.nightly
@pytest.mark.parametrize("name", HOSTILE)
def test_a_body_takes_no_more_work_than_its_budget(name: str) -> None:
    check_work(name, LIMITS)


@pytest.mark.parametrize("name", [name for name in HOSTILE if "firehose" in name and "nested" not in name])
def test_what_cannot_be_inflated_is_paid_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inflated, made = encoding.inflate_body, 0

    def counted(data: bytes, coding: str, limit: int) -> bytes:
        nonlocal made
        made += limit
        return inflated(data, coding, limit)

    monkeypatch.setattr(charges, "inflate_body", counted)
    stream, sent = item(name, SIZE)
    STREAMS[stream].decode(sent, LIMITS)
    assert 0 < made < 5 * SIZE


def decoded(stream: str, sent: bytes, limits: Limits) -> int:
    found = STREAMS[stream].decode(sent, limits)
    return len(found.records) + len(found.rejects)


@pytest.mark.nightly
@pytest.mark.parametrize("name", HOSTILE)
def test_a_body_takes_bounded_memory(name: str) -> None:
    stream, sent = item(name, SIZE)
    peak_memory.peak(decoded, *item(name, 4_000), LIMITS)  # imports what it needs
    assert peak_memory.peak(decoded, stream, sent, LIMITS)[1] < PEAK * SIZE
