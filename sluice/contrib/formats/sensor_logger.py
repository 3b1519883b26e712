"""Decodes Sensor Logger's HTTP push (its README): readings in `payload`, each with a name, a time and some values.

{"deviceId":"d","sessionId":"s","payload":[{"name":"accelerometer","time":1698501144401000000,"values":{"x":1}}]}
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from sluice.contrib.formats.lenient_json import struct_reader
from sluice.contrib.formats.parts import decode_parts, json_array
from sluice.contrib.formats.telegraf import LoosePoint, decode_loose_point
from sluice.streams import body as bodies
from sluice.streams.body import Budget
from sluice.streams.decoder import Result
from sluice.streams.message import Message


class Push(msgspec.Struct):
    payload: msgspec.Raw
    deviceId: str = ""
    sessionId: str = ""


class Reading(LoosePoint):
    fields: dict[str, msgspec.Raw] = msgspec.field(name="values")


read_push = struct_reader(Push)
read_reading = struct_reader(Reading)


def decode(part: bytes, message: Message | None, budget: Budget) -> Iterator[Result]:
    """The values of all readings. An invalid reading is one reject. Raises: Invalid, msgspec's errors."""
    push = read_push(part, budget)
    readings = json_array(push.payload, "payload")
    sender = {name: value for name, value in (("deviceId", push.deviceId), ("sessionId", push.sessionId)) if value}
    head = msgspec.json.encode(sender)[:-1] + b"," * bool(sender) + b'"payload":['

    def decode_reading(reading: bytes) -> list[Result]:
        point = read_reading(reading, budget)
        budget.charge_bytes(len(head))
        point.tags = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in sender.items()}
        return decode_loose_point(point, reading, budget)

    return decode_parts(bodies.split_elements(readings, budget), decode_reading, budget, head, b"]}")
