"""Decodes what is posted to Splunk's HTTP Event Collector (docs.splunk.com, "Format events for HTTP Event Collector").

Objects follow each other, with or without a line between them. `event` is a text, or an object as logs are; `time`,
`host`, `source`, `sourcetype` and `index` belong to it, and `fields` are attributes, too. Docker's driver has the text
in `event.line`. At /raw each line is a text, and the parameters say the rest.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sluice.contrib.formats.json_objects import object_records
from sluice.contrib.formats.log_fields import build_log
from sluice.contrib.formats.parts import check_texts, decode_parts
from sluice.streams import body as bodies
from sluice.streams.body import Budget, Empty
from sluice.streams.decoder import Result
from sluice.streams.message import Message
from sluice.streams.record import Invalid, Log

BESIDE = "host", "source", "sourcetype", "index"
LINE = "line"  # of Docker's driver ("Splunk logging driver")


def decode(body: bytes, message: Message, budget: Budget) -> Iterable[Result]:
    """The events of a body. Raises: Invalid."""
    if "/raw" in message.path:
        beside = {name: value for name in BESIDE if (value := message.parameter(name))}

        def line(part: bytes) -> tuple[Log]:
            text = part.decode()
            check_texts(text)
            budget.charge_bytes(len(message.query))
            return (Log(message=text, attributes={**beside}),)

        return decode_parts(bodies.split_lines(body, budget), line, budget)
    return object_records(body, budget, lambda sent: (row(sent),))


def row(sent: dict[str, Any]) -> Log:
    """Raises: Invalid, Empty."""
    if "event" not in sent:
        raise Invalid("missing: event")
    event = sent.pop("event")
    if event in ("", None):
        raise Invalid("event is blank")
    own: dict[str, Any] = {**event} if isinstance(event, dict) else {"message": event}
    if isinstance(own.get(LINE), str | dict) and "message" not in own:
        inner = own.pop(LINE)
        own |= inner if isinstance(inner, dict) else {"message": inner}
    fields = sent.pop("fields", None)
    if isinstance(fields, dict):
        own = fields | own
    for name in BESIDE:
        if name in sent:
            own.setdefault(name, sent[name])
    if sent.get("time") not in (None, ""):
        own = {"time": sent["time"]} | {name: value for name, value in own.items() if name != "time"}
    try:
        return build_log(own)
    except Empty:
        raise
    except Invalid:
        return build_log({"message": "", **own})
