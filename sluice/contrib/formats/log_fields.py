"""Decodes logs as log libraries and shippers write them: other names of the fields, syslog, the journal's events."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable
from datetime import datetime
from functools import cache
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import msgspec

from sluice.base.override import override
from sluice.contrib.formats.format_decoder import FormatDecoder, formats_of, typed_form
from sluice.contrib.formats.lenient_json import real_or_text
from sluice.contrib.formats.register import ENVELOPES
from sluice.streams import body as bodies
from sluice.streams.body import Budget, Empty
from sluice.streams.decoder import Result
from sluice.streams.logs import NO_MESSAGE, LogsDecoder
from sluice.streams.message import Message
from sluice.streams.record import Invalid, Log
from sluice.streams.registry import Stream
from sluice.streams.times import END, SECOND, Time, nanoseconds_of

# The names that a field has in the formats of log libraries, in the order in which they are tried: OpenTelemetry and
# Elastic's ECS, pino, slog, zap, structlog, Docker, Logstash; then, each from its own documentation,
# Fluent Bit ("HTTP output": date, in seconds), GELF ("GELF Payload Specification": short_message, level of syslog),
# journald (systemd.journal-fields(7) and "Journal JSON Format": microseconds, level of syslog, arrays of bytes),
# Google ("Structured logging": timestamp with seconds and nanos), python-json-logger (asctime, levelname),
# syslog-ng and rsyslog (their macros and properties), Monolog (JsonFormatter: level_name, datetime), Serilog ("CLEF":
# @t, @m, @mt, @l; without @l it is information; JsonFormatter: RenderedMessage), .NET (JsonConsoleFormatter: Timestamp,
# LogLevel, Message), Log4j (JsonTemplateLayout: instant), VictoriaLogs (_msg, _time), Falco (output, priority),
# Kubernetes (audit.k8s.io, Event: requestReceivedTimestamp), NXLog ("Fields": EventTime, Severity), Python's LogRecord
# (created), Logflare (event_message), Wazuh (full_log),
# Logtail (dt), Particle (published_at), Pub/Sub (publishTime), Logz.io (log_level).
# In an object are the message of Rust's tracing
# (tracing_subscriber, Json: fields.message) and, as Spring Boot and Logstash write ECS, log.level and service.name;
# and all of a record in jsonPayload (Google, "LogEntry"), log (Fluent Bit's Merge_Log) or event (Splunk's HEC)
MESSAGES = (
    *("message", "msg", "log", "event", "short_message", "MESSAGE", "@m", "Message", "RenderedMessage", "_msg"),
    *("textPayload", "text", "body", "@mt", "MessageTemplate", "jsonPayload", "MSG", "output", "event_message"),
    "full_log",
)
LEVEL_FIELDS = (
    *("level_name", "levelname", "level", "severity", "log.level", "LogLevel", "@l", "Level", "PRIORITY", "loglevel"),
    *("logLevel", "lvl", "severity_text", "severityText", "LEVEL", "priority", "Severity", "log_level"),
)
SERVICES = "service", "service.name", "service_name", "SYSLOG_IDENTIFIER", "programname", "PROGRAM"
TIMES = (
    *("time", "ts", "timestamp", "@timestamp", "date", "datetime", "asctime", "@t", "Timestamp"),
    *("__REALTIME_TIMESTAMP", "instant", "_time", "eventTime", "timeMillis", "timereported", "ISODATE"),
    *("requestReceivedTimestamp", "EventTime", "created", "dt", "published_at", "publishTime"),
)
# The objects that are a time: their names of the seconds since 1970 and of the rest in nanoseconds
MOMENTS = ("seconds", "nanos"), ("epochSecond", "nanoOfSecond"), ("timestamp", "")
PARTS = "timestampSeconds", "timestampNanos"  # Google's, without an object

# The levels are those of OpenTelemetry. Each has the names and numbers that mean the same elsewhere: of syslog (0 to
# 7), of pino and Bunyan (10 to 60), of Monolog (100 to 600), of Java's and Python's libraries, of Serilog, and of zap.
# Go's slog writes WARN+1 for a level between two
LEVELS = {
    name: level
    for level, names in {
        "trace": "trace verbose finest finer silly 10",
        "debug": "debug fine 7 20 100",
        "info": "info information informational notice 5 6 30 200 250",
        "warn": "warn warning 4 40 300",
        "error": "error err severe 3 50 400",
        "fatal": "fatal critical crit alert emerg emergency panic dpanic 0 1 2 60 500 550 600",
    }.items()
    for name in names.split()
}

INNER_MESSAGES = "message", "msg", "line"  # in an object that is the message; the last one is of Docker's driver
ACTIONS = {"index", "create"}  # lines of Elasticsearch's bulk format, before each record
NAMES_OF_LEVEL = "label", "levelStr"  # in an object: loglevel's plugin remote, log4js
BETWEEN = re.compile(r"[+-][0-9]+$")
# A message of syslog (RFC 5424) behind its length (RFC 6587, 3.4.1); Heroku's Logplex omits the structured data
FRAME = re.compile(
    r"\d{1,7} <(\d{1,3})>1 (\S++) (\S++) (\S++) (\S++) (\S++) (?:- |(\[(?:[^\]\\]++|\\.)*+\]) ?)?(.*)", re.DOTALL
)
SYSLOG = "host", "procid", "msgid", "structured_data"
EVENT = b"data: {"  # of journalctl -o json-sse


def take_first(fields: dict[str, Any], names: tuple[str, ...]) -> Any:
    """Remove and return the first of these fields; None if there is none of them."""
    for name in names:
        if name in fields:
            return fields.pop(name)
    return None


def stored_level(sent: object) -> tuple[str | None, object]:
    """The level that is stored for a level as it was sent, and the latter if it is not the same text in another case.

    A text or an integer that is not in LEVELS is stored as it was sent, in lower case.
    """
    if not isinstance(sent, str | int) or isinstance(sent, bool):
        return None, sent
    text = str(sent).strip().lower()
    stored = LEVELS.get(text) or LEVELS.get(BETWEEN.sub("", text), text)
    return stored or None, sent if stored != text or isinstance(sent, int) else None


def take_time(attributes: dict[str, Any]) -> int | None:
    """Remove the first field that is understood as a time; its nanoseconds since 1970. None: there is none."""
    for name in TIMES:
        if name not in attributes:
            continue
        sent = attributes[name]
        if isinstance(sent, dict):
            for seconds, rest in MOMENTS:
                if seconds in sent:
                    sent = joined_nanoseconds(sent[seconds], sent.get(rest, 0))
                    break
            time = sent if isinstance(sent, int) else zoned_nanoseconds(sent)
        else:
            time = nanoseconds_of(time_scalar(sent))
        if time is not None or sent == "":
            del attributes[name]
        if time is not None:
            return time
    if (time := joined_nanoseconds(attributes.get(PARTS[0]), attributes.get(PARTS[1], 0))) is not None:
        for name in PARTS:
            attributes.pop(name, None)
    return time


def zoned_nanoseconds(sent: dict[str, Any]) -> int | None:
    """The nanoseconds of PHP's DateTime as JSON (Monolog 1): a date with a name of its zone. None: not understood."""
    date, zone = sent.get("date"), sent.get("timezone")
    if not isinstance(date, str) or not isinstance(zone, str):
        return None
    if zone.startswith(("+", "-")):
        return nanoseconds_of(date + zone)
    try:
        found = known_zone(zone) if zone in zone_names() else None
        return nanoseconds_of(datetime.fromisoformat(date).replace(tzinfo=found).isoformat()) if found else None
    except (ValueError, KeyError, OSError):  # no date; a zone without its file
        return None


@cache
def zone_names() -> set[str]:
    """The zones that there are. To look for a file for each name that is sent takes 0.2 ms."""
    return available_timezones()


known_zone = cache(ZoneInfo)  # there are 600; `ZoneInfo` keeps eight


def joined_nanoseconds(seconds: object, rest: object) -> int | None:
    """The nanoseconds of a time in two parts. None: it is not understood."""
    whole, more = nanoseconds_of(time_scalar(seconds)), time_scalar(rest)
    return whole + more if whole and type(more) is int and 0 <= more < SECOND else None


def time_scalar(sent: object) -> Time:
    """A number or a text; None for anything else."""
    return sent if isinstance(sent, int | float | str) and not isinstance(sent, bool) else None


def decode_byte_array(value: Any) -> Any:
    """A value of journald: what is not UTF-8 is an array of its bytes."""
    if isinstance(value, list) and value and all(type(byte) is int and 0 <= byte < 256 for byte in value):
        return bytes(value).decode("utf-8", "replace").replace("\0", "\ufffd")
    return value


def inner_value(attributes: dict[str, Any], name: str, key: str) -> Any:
    """What an attribute that is an object has under a key. None: it has nothing there, or is none."""
    return about.get(key) if isinstance(about := attributes.get(name), dict) else None


# Names with which a record needs more than one look at each name
SCALARS = {int, float, str}
UNUSUAL = {"attributes", "@t", "MESSAGE", "record", *PARTS}
SHAPES, SHAPE_NAMES, SHAPE_BYTES = 1_000, 50, 1_000  # of records whose places are kept; and of each the most
places: dict[tuple[str, ...], tuple[str, str, str, str] | None] = {}


def places_of(names: tuple[str, ...]) -> tuple[str, str, str, str] | None:
    """Under which of its names a record has its message, level, service and time; "" for none. None: not known so."""
    if len(names) > SHAPE_NAMES or sum(map(len, names)) > SHAPE_BYTES:
        return None
    known = {*names}
    message, level, service, time = (
        next((name for name in wanted if name in known), "") for wanted in (MESSAGES, LEVEL_FIELDS, SERVICES, TIMES)
    )
    is_known = message and (level or message == "log" or "log" not in known) and known.isdisjoint(UNUSUAL)
    if len(places) >= SHAPES:
        places.clear()
    return places.setdefault(names, (message, level, service, time) if is_known else None)


def build_log(wire: dict[str, Any]) -> Log:
    """The record of a JSON object. Whatever is not a field of the record becomes an attribute. Raises: Invalid.

    wire: becomes the attributes.
    """
    names = (*wire,)
    try:
        found = places[names]
    except KeyError:
        found = places_of(names)
    if found is None:
        return build_any(wire)
    # as `build_any`, for what most records are
    in_message, in_level, in_service, in_time = found
    level = sent = service = time = None
    message = wire[in_message]
    if in_level:
        sent = wire[in_level]
        if sent.__class__ is not str:
            return build_any(wire)
        level = LEVELS.get(sent)
        level, sent = (level, sent if level != sent else None) if level else stored_level(sent)
    if in_service:
        service = wire[in_service]
    if in_time:
        when = wire[in_time]
        if when.__class__ is int and 0 < when < END:  # as `nanoseconds_of`, without the call
            time = when * SECOND
        elif type(when) in SCALARS:
            time = nanoseconds_of(when)
    if message.__class__ is not str or (in_service and service.__class__ is not str) or (in_time and time is None):
        return build_any(wire)
    del wire[in_message]
    if in_level:
        del wire[in_level]
    if in_service:
        del wire[in_service]
    if in_time:
        del wire[in_time]
    if None in wire.values():
        wire = {name: value for name, value in wire.items() if value is not None}
    if sent is not None:
        wire.setdefault("level", sent)
    return Log(time=time, level=level, service=service, message=message, attributes=wire)


def build_any(wire: dict[str, Any]) -> Log:
    """`build_log` of any object."""
    attributes = {name: value for name, value in wire.items() if value is not None}
    own = attributes.pop("attributes", None)
    if "@t" in attributes and "@l" not in attributes:
        attributes["@l"] = "Information"
    if "MESSAGE" in attributes:
        attributes = {name: decode_byte_array(value) for name, value in attributes.items()}
    message, sent, service = (take_first(attributes, names) for names in (MESSAGES, LEVEL_FIELDS, SERVICES))
    if sent is None and "log" in attributes:
        sent = inner_value(attributes, "log", "level")
    record = attributes.get("record") if "text" in wire else None  # loguru (`serialize`)
    if sent is None and isinstance(record, dict):
        sent = inner_value(record, "level", "name")
    if message is None:
        message = inner_value(attributes, "fields", "message")
    if message is None:
        if not may_lack_message(wire, attributes, sent):
            raise Invalid(NO_MESSAGE)
        message = ""
    if isinstance(message, dict) and isinstance(message.get("data"), str) and "messageId" in message:
        attributes["message"] = message = {**message}  # Pub/Sub's push
        attributes |= {"publishTime": message.pop("publishTime", None)}
        message = from_base64(message.pop("data"))
    if not isinstance(message, str):
        if isinstance(message, dict) and isinstance(text := take_first(inside := {**message}, INNER_MESSAGES), str):
            name = next(name for name in MESSAGES if wire.get(name) is message)
            attributes[name], message = inside, text
            sent = take_first(inside, LEVEL_FIELDS) if sent is None else sent
        else:
            message = msgspec.json.encode(message).decode()
    time = take_time(attributes)
    if time is None and isinstance(record, dict):
        time = take_time({**record})
    stored, sent = stored_level(sent)
    if sent is not None:
        if isinstance(sent, dict):
            stored, _ = stored_level(next((sent[name] for name in NAMES_OF_LEVEL if name in sent), None))
        attributes.setdefault("level", sent)
    if service is not None and not isinstance(service, str):
        attributes["service"] = service
        name = inner_value(attributes, "service", "name")
        service = name if isinstance(name, str) else None
    if isinstance(own, dict) and own.keys().isdisjoint(attributes):
        attributes |= own
    elif own is not None:
        attributes["attributes"] = own
    return Log(time=time, level=stored, service=service, message=message, attributes=attributes)


def from_base64(sent: str) -> str:
    """The text in base64; as it was sent, if it is none."""
    try:
        text = base64.b64decode(sent, validate=True).decode()
    except ValueError:
        return sent
    return sent if "\0" in text else text


def may_lack_message(wire: dict[str, Any], attributes: dict[str, Any], sent: object) -> bool:
    """Whether a record without a message has an empty one. attributes: what else it has; sent: its level.

    pino and others write some with a level and a time, Fluent Bit the figures of its inputs with a time, loggers whose
    message is undefined null; journald has null for one above 4 KiB. Raises: Empty.
    """
    if not attributes.keys().isdisjoint(TIMES):
        return sent is not None or (len(attributes) > 1 and attributes.keys().isdisjoint(ENVELOPES))
    if len(wire) == 1 and ACTIONS.issuperset(wire):
        raise Empty("action")
    is_null = not wire.keys().isdisjoint(MESSAGES)
    return "__CURSOR" in attributes or (is_null and (sent is not None or bool(attributes)))


def parse_syslog(line: str) -> Log | None:
    """The record of a message of syslog with its length; None: the line is none."""
    if not (match := FRAME.fullmatch(line)):
        return None
    priority, time, host, app, *others, message = match.groups()
    attributes = {name: value for name, value in zip(SYSLOG, (host, *others)) if value not in (None, "-")}
    stored, sent = stored_level(int(priority) & 7)
    service = app if app != "-" else None
    return Log(
        time=nanoseconds_of(time),
        level=stored,
        service=service,
        message=message,
        attributes={**attributes, "level": sent},
    )


def build_loose(part: bytes) -> Log:
    """The record of a JSON object with a number that no database holds, as a text. Raises: any exception."""
    log = build_log(json.loads(part, parse_float=real_or_text))
    msgspec.json.encode(log)  # raises for half of a surrogate pair
    return log


class ShippedLogsDecoder(LogsDecoder, FormatDecoder):
    @override
    def loose_object(self, part: bytes, message: Message | None, budget: Budget, error: Exception) -> Log:
        if not isinstance(error, msgspec.ValidationError):
            raise error
        return build_loose(part)

    @override
    def decode_text(self, body: bytes, message: Message | None, budget: Budget) -> Iterable[Result]:
        if body.startswith(EVENT) and b"\n" not in body:
            event = body.removeprefix(b"data:").strip()
            if bodies.is_json(event):
                return self.decode_json(event, message, budget)
        if form := typed_form(body, message, budget, MESSAGES):
            return (self.decode_form(form, message, budget),)
        return super().decode_text(body, message, budget)

    @override
    def decode_line(self, text: str) -> Log:
        return (parse_syslog(text) if text[:1].isdigit() else None) or super().decode_line(text)


LOGS = Stream("logs", Log, ShippedLogsDecoder(dict, build_log, formats_of("logs")).fast_path(), content=True)
