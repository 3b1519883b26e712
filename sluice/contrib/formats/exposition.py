"""Decodes Prometheus' text format (prometheus.io, "Exposition formats") and OpenMetrics: a sample a line.

A sample is a row of `metrics`, as with remote write. The labels in the path of the Pushgateway belong to each sample:
/metrics/job/JOB/LABEL/VALUE, where `LABEL@base64` has its value in base64url (its README, "URL"). VictoriaMetrics has
them in the parameters `extra_label`. The types and helps of comments are not stored.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from math import isfinite
from urllib.parse import parse_qsl, unquote

from sluice.contrib.formats.parts import check_texts, decode_parts, encoded_size, finite_or_text
from sluice.streams import body as bodies
from sluice.streams.body import Budget, Empty
from sluice.streams.decoder import Result
from sluice.streams.message import Message
from sluice.streams.metrics import state_field
from sluice.streams.record import INT64, Invalid, Metric

PROTOBUF = "application/vnd.google.protobuf"  # of Go's client, unless it is told otherwise
PUSH, ENCODED = "/metrics/job", "@base64"
SAMPLE = re.compile(
    r"[ \t]*+(?P<name>[a-zA-Z_:][a-zA-Z0-9_:.]*+)[ \t]*+(?P<labels>\{(?:[^\"}]|\"(?:[^\"\\]|\\.)*+\")*+\})?+"
    r"[ \t]*+(?P<value>[^ \t#{]++)(?:[ \t]++(?P<time>-?[0-9.]++))?+[ \t]*+(?:#.*)?"
)
LABEL = re.compile(r"[ \t]*+([a-zA-Z_][a-zA-Z0-9_.]*+)[ \t]*+=[ \t]*+\"((?:[^\"\\]|\\.)*+)\"[ \t]*+(?:,|$)")
ESCAPED = re.compile(r"\\(.)")
MEANT = {"n": "\n"}
MILLISECOND = 1_000_000
OPEN = "application/openmetrics-text"  # its times are seconds


def decode(body: bytes, message: Message | None, budget: Budget) -> Iterator[Result]:
    """The samples of a body; each invalid line is one reject. Raises: Invalid."""
    kind = message.field("Content-Type").lower() if message else ""
    if kind.startswith(PROTOBUF):
        raise Invalid("protobuf: send the text format (Go: push.New(…).Format(expfmt.NewFormat(expfmt.TypeTextPlain)))")
    shared = labels_of(message) if message else {}
    size = encoded_size(shared)
    unit = 1_000_000_000 if kind.startswith(OPEN) else MILLISECOND

    def line(part: bytes) -> tuple[Metric]:
        if len(part) > budget.limits.record // 4:
            raise Invalid(f"line longer than {budget.limits.record // 4} bytes")
        if part.lstrip().startswith(b"#"):
            raise Empty("comment")
        budget.charge_bytes(size)
        return (sample(part.decode(), shared, unit),)

    return decode_parts(bodies.split_lines(body, budget), line, budget)


def sample(line: str, shared: dict[str, str], unit: int) -> Metric:
    """The row of a line. shared: labels that it has besides. unit: nanoseconds of its time. Raises: Invalid."""
    check_texts(line)
    match = SAMPLE.fullmatch(line)
    if match is None:
        raise Invalid('not a sample: expected NAME{LABEL="VALUE"} NUMBER')
    name, labels, sent, time = match.group("name", "labels", "value", "time")
    try:
        value = float(sent)
        at = None if time is None else int(float(time) * unit)
    except (ValueError, OverflowError):
        raise Invalid("not a sample: the value or its time is no number") from None
    if at is not None and at not in INT64:
        raise Invalid("a time is out of range")
    tags = {**pairs(labels[1:-1] if labels else ""), **shared}
    number = isfinite(value)
    return Metric(
        time=at,
        name=name,
        tags=tags,
        field="value" if number else state_field("value"),
        value=finite_or_text(value),
        type="float" if number else "string",
    )


def pairs(text: str) -> dict[str, str]:
    """Labels. Raises: Invalid."""
    found, at, end = {}, 0, len(text.rstrip(" \t"))
    while at < end:
        match = LABEL.match(text, at)
        if match is None:
            raise Invalid("invalid labels")
        found[match[1]] = ESCAPED.sub(lambda escape: MEANT.get(escape[1], escape[1]), match[2])
        at = match.end()
    return found


def labels_of(message: Message) -> dict[str, str]:
    """The labels in the path, or in `extra_label`. Raises: Invalid."""
    if PUSH not in message.path:
        given = [value for name, value in parse_qsl(message.query.decode("latin-1")) if name == "extra_label"]
        parts = [part for pair in given for part in pair.partition("=")[::2]]
    else:
        path = message.path[message.path.index(PUSH) + len("/metrics/") :]
        parts = [unquote(part) for part in path.split("/")]
    if len(parts) % 2:
        raise Invalid("the path has a label without a value")
    return dict(label(name, value) for name, value in zip(parts[::2], parts[1::2]))


def label(name: str, value: str) -> tuple[str, str]:
    """Raises: Invalid."""
    if not name.endswith(ENCODED):
        return name, value
    try:
        decoded = base64.urlsafe_b64decode(value.rstrip("=") + "=" * (-len(value.rstrip("=")) % 4)).decode()
    except (binascii.Error, ValueError):
        raise Invalid("the path has a label that is not base64") from None
    return name.removesuffix(ENCODED), decoded
