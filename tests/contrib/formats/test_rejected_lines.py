"""Rejected lines of line protocol."""

from __future__ import annotations

from support.list_items import decode, reject_reason


def test_invalid_lines_buried_together_are_not_taken_for_a_message() -> None:
    late = b"POST /write HTTP/1.1\r\nx"
    rejects = decode("metrics", b"a v=1\n" + b"x\n" * 100 + late)[1:]
    assert (len(rejects), rejects[-1].part.strip()) == (101, late)
    assert reject_reason("metrics", rejects[-1].part) == rejects[-1].reason
