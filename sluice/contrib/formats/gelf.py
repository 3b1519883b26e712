"""Decodes GELF 1.1, Graylog's format (go2docs.graylog.org, "GELF Payload Specification"), as it comes over HTTP.

A message is a row of `logs`. Additional fields lose their underscore. Unlike UDP and TCP, HTTP has no chunks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sluice.contrib.formats.charges import inflate_part
from sluice.contrib.formats.json_objects import object_records
from sluice.contrib.formats.log_fields import SCALARS, build_log, stored_level, take_first
from sluice.streams.body import Budget
from sluice.streams.decoder import Result
from sluice.streams.message import Message
from sluice.streams.record import Invalid, Log
from sluice.streams.times import nanoseconds_of

ZLIB = b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda"  # how it begins, by its level
SHORT = "short_message", "message"  # Graylog takes both (GelfCodec, validateGELFMessage)
# `facility` is of GELF 1.0
SERVICES = "_service", "_service_name", "_application_name", "_app_name", "_app", "facility"


def decode(body: bytes, message: Message, budget: Budget) -> Iterable[Result]:
    """The messages of a body. Raises: Invalid."""
    if body.startswith(ZLIB):
        body = inflate_part(budget, body, "deflate", grows=True)
    if b"\0" in body:  # it ends a message over TCP, and no JSON has one
        body = body.replace(b"\0", b"\n")
    return object_records(body, budget, lambda sent: (gelf_log(sent),))


def gelf_log(sent: dict[str, Any]) -> Log:
    """The row of a message. Raises: Invalid, msgspec's errors."""
    sent.pop("version", None)
    short, full = take_first(sent, SHORT), sent.pop("full_message", None)
    if short is None and full is None:
        raise Invalid("missing: short_message")
    message, level = full if short is None else short, sent.pop("level", None)
    service, when = take_first(sent, SERVICES), sent.pop("timestamp", None)
    attributes: dict[str, Any] = {}
    for name, value in sent.items():
        if value is not None:
            plain = name.removeprefix("_")
            attributes[name if plain in sent and plain != name else plain] = value
    if full not in (None, message):
        attributes["full_message"] = full
    if message.__class__ is str and type(when) in SCALARS and (service is None or service.__class__ is str):
        time, (stored, as_sent) = nanoseconds_of(when), stored_level(level)
        if time is not None and not isinstance(level, dict) and "level" not in attributes:
            about = {} if as_sent is None else {"level": as_sent}
            return Log(time=time, level=stored, service=service, message=message, attributes=about | attributes)
    known = {"message": message, "level": level, "service": service, "time": when}
    return build_log(known | {"attributes": attributes})
