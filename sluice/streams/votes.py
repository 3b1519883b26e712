"""Decodes votes: plain JSON objects and forms."""

from __future__ import annotations

from typing import Annotated

import msgspec

from sluice.streams.record import Vote
from sluice.streams.times import Time, first

Text = Annotated[str, msgspec.Meta(min_length=1)]


class Plain(msgspec.Struct, gc=False):
    poll: Text
    choice: Text
    voter: str | None = None
    time: Time = None
    ts: Time = None
    timestamp: Time = None


def build(wire: Plain) -> Vote:
    return Vote(time=first(wire.time, wire.ts, wire.timestamp), poll=wire.poll, choice=wire.choice, voter=wire.voter)
