"""Decodes what Amazon Data Firehose delivers: an object with records in base64, each of which is a body by itself."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from sluice.contrib.formats.charges import inflate_part
from sluice.contrib.formats.parts import array_reader, decode_parts
from sluice.streams import body as bodies
from sluice.streams.body import Budget
from sluice.streams.decoder import Decoder, Result
from sluice.streams.encoding import compressed_beginnings
from sluice.streams.message import Message
from sluice.streams.record import Invalid


class Delivered(msgspec.Struct):
    data: bytes


read = array_reader("records")
read_record = msgspec.json.Decoder(Delivered).decode


def open_delivery(decoder: Decoder, body: bytes, message: Message, budget: Budget) -> Iterable[Result]:
    """The results of a delivery; of the body itself if it is none, as is the dead letter of a record.

    Raises: Invalid.
    """
    try:
        records = read(body)
    except (Invalid, msgspec.MsgspecError):
        return decoder.decode_contents(body, message, budget)

    def one(element: bytes) -> Iterable[Result]:
        data = read_record(element).data
        if data.startswith(compressed_beginnings()):  # as CloudWatch's
            data = inflate_part(budget, data)
        else:
            budget.count_nested(data)
        if budget.nested < 0:
            budget.charge_nested(data)
        return decoder.decode_contents(data, message, budget)

    return decode_parts(bodies.split_elements(records, budget), one, budget, b'{"records":[', b"]}")
