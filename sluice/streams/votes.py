"""Decodes votes: plain JSON objects and forms."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sluice.base.override import override
from sluice.streams.body import Budget, Form
from sluice.streams.decoder import JsonDecoder
from sluice.streams.message import Message
from sluice.streams.record import Record, Text, Vote
from sluice.streams.times import Time, nanoseconds_of


class Plain(msgspec.Struct, gc=False):
    poll: Text
    choice: Text
    voter: str | None = None
    time: Time = None
    ts: Time = None
    timestamp: Time = None


def build_vote(wire: Plain) -> Vote:
    return Vote(
        time=nanoseconds_of(wire.time, wire.ts, wire.timestamp), poll=wire.poll, choice=wire.choice, voter=wire.voter
    )


class VotesDecoder(JsonDecoder):
    @override
    def form_records(self, fields: Form, message: Message | None, budget: Budget) -> Sequence[Record]:
        """A vote for each choice: so a form has checkboxes."""
        choices = [value for name, value in fields.pairs if name == "choice"] or [""]
        return [
            self.decode_form(fields | {"choice": choice} if choice else fields, message, budget) for choice in choices
        ]
