"""Decodes votes whose voter is a number."""

from __future__ import annotations

import msgspec

from sluice.base.override import override
from sluice.contrib.formats.format_decoder import FormatDecoder, formats_of
from sluice.contrib.formats.lenient_json import struct_reader
from sluice.streams import votes
from sluice.streams.body import Budget
from sluice.streams.message import Message
from sluice.streams.record import Vote
from sluice.streams.registry import Stream


class Loose(votes.Plain):
    voter: str | int | float | None = None  # type: ignore[assignment]


read_loose = struct_reader(Loose)


class LooseVotesDecoder(votes.VotesDecoder, FormatDecoder):
    @override
    def loose_object(self, part: bytes, message: Message | None, budget: Budget, error: Exception) -> Vote:
        wire = read_loose(part, budget)
        return votes.build_vote(wire if wire.voter is None else msgspec.structs.replace(wire, voter=str(wire.voter)))


DECODER = LooseVotesDecoder(votes.Plain, votes.build_vote, formats_of("votes"))
VOTES = Stream("votes", Vote, DECODER.fast_path(Vote), decoder=DECODER)
