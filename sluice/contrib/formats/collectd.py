"""Decodes what collectd's plugin write_http posts: its JSON, and its plain-text protocol (collectd.conf(5), `Format`).

A value is a row of `metrics`: `name` is the plugin, `field` the name of the data source, and the tags are the host, the
plugin's instance, the type and its instance. A value that collectd does not know is a row `state_field` with NaN.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from sluice.contrib.formats.charges import charge_rows
from sluice.contrib.formats.json_objects import object_records
from sluice.contrib.formats.parts import check_texts, decode_parts, encoded_size, finite_or_text
from sluice.streams import body as bodies
from sluice.streams.body import Budget, Empty
from sluice.streams.decoder import Result
from sluice.streams.message import Message
from sluice.streams.metrics import state_field, typed_value
from sluice.streams.record import Invalid, Metric
from sluice.streams.times import nanoseconds

TAGS = "host", "plugin_instance", "type", "type_instance"
PUTVAL = re.compile(r'PUTVAL +(?:"([^"]++)"|([^"\s]++))((?: ++\w++=(?:"[^"]*+"|[^"\s]++))*) ++([^"\s]++)')
PART = re.compile(r"([^/-]+)(?:-(.*))?", re.DOTALL)


def decode(body: bytes, message: Message, budget: Budget) -> Iterable[Result]:
    """The values of a body, or of a line as if it were sent alone. Raises: Invalid if it is neither JSON nor lines."""

    def decode_line(line: bytes) -> Iterable[Result]:
        return decode_command(line.decode(), budget) if line[:1] not in (b"[", b"{") else decode(line, message, budget)

    body = body.strip()
    if body[:1] in (b"[", b"{") and (b"\n" not in body or bodies.is_json(body)):
        return object_records(body, budget, lambda sent: value_list(sent, budget))
    return decode_parts(bodies.split_lines(body, budget), decode_line, budget)


def value_list(sent: dict[str, Any], budget: Budget) -> list[Metric]:
    """The rows of an element of the JSON. Raises: Invalid."""
    values, names = sent.get("values"), sent.get("dsnames")
    if "values" not in sent and "severity" in sent:  # as `Notifications true` sends
        raise Empty("notification")
    if not isinstance(values, list) or not isinstance(names, list) or len(names) != len(values):
        raise Invalid("values and dsnames are not arrays of the same length")
    plugin, time = sent.get("plugin"), sent.get("time")
    if not isinstance(plugin, str) or not plugin:
        raise Invalid("missing: plugin")
    tags = {name: value for name in TAGS if isinstance(value := sent.get(name), str) and value}
    stamp = nanoseconds(time) if isinstance(time, (int, float)) and not isinstance(time, bool) else None
    return value_rows(plugin, tags, stamp, list(map(str, names)), values, budget)


def decode_command(line: str, budget: Budget) -> list[Metric]:
    """The rows of a line: PUTVAL host/plugin-instance/type-instance interval=10 TIME:VALUE…. Raises: Invalid."""
    if len(line) > budget.limits.record // 4:
        raise Invalid(f"line longer than {budget.limits.record // 4} bytes")
    found = PUTVAL.fullmatch(line)
    parts = (found[1] or found[2]).split("/", 2) if found else []
    if not found or len(parts) != 3 or not all(parts):
        raise Invalid(f"not a PUTVAL of collectd: {line!r:.60}")
    (plugin, instance), (kind, of_kind) = (part.groups() if (part := PART.fullmatch(x)) else (x, "") for x in parts[1:])
    tags = {name: value for name, value in zip(TAGS, (parts[0], instance, kind, of_kind)) if value}
    check_texts(line)
    time, *texts = found[4].split(":")
    values = [None if text == "U" else parse_number(text) for text in texts]
    names = ["value"] if len(values) == 1 else [f"value{n}" for n in range(len(values))]
    return value_rows(plugin, tags, None if time == "N" else nanoseconds(time), names, values, budget)


def parse_number(text: str) -> float | int:
    """Raises: Invalid."""
    try:
        return float(text) if set(text) & set(".eEnN") else int(text)
    except ValueError:
        raise Invalid(f"not a number: {text!r:.40}") from None


def value_rows(
    plugin: str, tags: dict[str, str], time: int | None, names: Sequence[str], values: Sequence[Any], budget: Budget
) -> list[Metric]:
    """The rows of values at one time. Raises: Invalid."""
    if not values:
        raise Invalid("no value")
    charge_rows(budget, len(values), encoded_size(tags, plugin))
    made = []
    for field, sent in zip(names, values):
        if sent is not None and type(sent) not in (int, float):
            raise Invalid(f"not a number: {sent!r:.40}")
        value, kind = typed_value("NaN" if sent is None else finite_or_text(sent) if type(sent) is float else sent)
        if kind == "string":
            field = state_field(field)
        made.append(Metric(time=time, name=plugin, tags=tags, field=field, value=value, type=kind))
    return made
