"""Decodes objects in which log libraries and shippers wrap records: an array of records, or one, in a member.

`events` is of Serilog.Sinks.Http before 8 (its README) and, as `Events`, of Seq's raw format; `logs` of pino-http-send;
`logEvents` of CloudWatch (its subscription filters); `records` of Azure Monitor (diagnostic logs); `entries` of
Google's Logging API; `params` of winston 2 (transports/http.js: {"method":"collect","params":{…}}); `items` of
Kubernetes's audit webhook (audit.k8s.io, EventList). What stands beside an array belongs to each of its records that
does not have it. A control message of CloudWatch, with which it tests its destination, has no row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from sluice.contrib.formats import faro
from sluice.contrib.formats.log_fields import NO_MESSAGE, build_log, build_loose
from sluice.contrib.formats.parts import decode_parts, encoded_size
from sluice.contrib.formats.register import ENVELOPES
from sluice.streams import body as bodies
from sluice.streams.body import Budget, Empty
from sluice.streams.decoder import NUL, Result, check_text
from sluice.streams.message import Message
from sluice.streams.record import Invalid, Log

read = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
read_known: Callable[[bytes], Any] = msgspec.json.Decoder(
    msgspec.defstruct("Known", [(name, msgspec.Raw | msgspec.UnsetType, msgspec.UNSET) for name in ENVELOPES])
).decode
read_object = msgspec.json.Decoder(dict[str, Any]).decode


def decode(part: bytes, message: Message | None, budget: Budget) -> Iterable[Result]:
    """The records in an object. An invalid one is rejected in an object of its own. Raises: Invalid, msgspec's."""
    limit = budget.limits.record
    if len(part) <= limit:
        try:
            return (member_log(part, limit),)
        except Invalid as error:
            if str(error) != NO_MESSAGE:
                raise
    known = read_known(part)
    inside = next(value for name in ENVELOPES if (value := getattr(known, name)) is not msgspec.UNSET)
    if len(part) - len(bytes(inside)) > limit // 4:  # each name takes 300 bytes of memory
        raise Invalid(f"more than {limit // 4} bytes beside the records")
    sent = read(part)
    if bytes(sent.get("messageType", b"")) == b'"CONTROL_MESSAGE"':
        raise Empty("connectivity")
    if faro.META.search(bytes(sent.get("meta", b""))):
        return faro.decode(part, message, budget)
    if bytes(common := sent.pop("common", msgspec.Raw(b""))).startswith(b"{"):
        sent = shared_fields(common) | sent
    name = next(name for name in ENVELOPES if name in sent)
    inside = bytes(sent.pop(name))
    if inside.startswith(b"{"):
        return decode_parts((inside,), lambda one: (member_log(one, limit),), budget, b'{"%b":' % name.encode(), b"}")
    if not inside.startswith(b"["):
        raise Invalid(NO_MESSAGE)
    beside = b"".join(b"%b:%b," % (msgspec.json.encode(key), bytes(value)) for key, value in sent.items())
    shared = member_log(b'{%b"message":""}' % beside, limit)
    size = max(len(beside), encoded_size(shared.attributes))

    def one(element: bytes) -> tuple[Log]:
        made = member_log(element, limit)
        budget.charge_bytes(size)
        made.time = shared.time if made.time is None else made.time
        made.level, made.service = made.level or shared.level, made.service or shared.service
        made.attributes = shared.attributes | made.attributes
        return (made,)

    return decode_parts(
        bodies.split_elements(inside, budget), one, budget, b'{%b"%b":[' % (beside, name.encode()), b"]}"
    )


def shared_fields(common: msgspec.Raw) -> dict[str, msgspec.Raw]:
    """What New Relic's logs share ("Log API"): `common` has a time, and attributes."""
    found = read(common)
    own = bytes(found.pop("attributes", b""))
    return found | (read(own) if own.startswith(b"{") else {})


def member_log(part: bytes, limit: int) -> Log:
    """The record of an object. Raises: any exception."""
    if not part.startswith(b"{"):
        raise Invalid("not a JSON object")
    if len(part) > limit:
        raise Invalid(f"record larger than {limit} bytes")
    try:
        made = build_log(read_object(part))
    except msgspec.ValidationError:
        made = build_loose(part)
    if NUL in part:
        check_text(made)
    return made
