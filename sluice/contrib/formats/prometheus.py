"""Decodes Prometheus remote write (its specifications 1.0 and 2.0-rc.4): a row per sample, and rows for all else.

The messages are in `prometheus.proto`. Rows have the name of the metric, the other labels as tags, and one of these
fields: `value`; `state` for a sample that is not a finite number; `count`, `sum` and `histogram` for a native
histogram; `exemplar`; `start`; `metadata`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, chain
from typing import Any

import msgspec
from google.protobuf.message import DecodeError

from sluice.contrib.formats.charges import BRACKETS, Exhausted, charge_rows, charge_work
from sluice.contrib.formats.parts import Refused, check_texts, encoded_size, finite_or_text
from sluice.contrib.formats.protobuf import Field, load_messages, parse_message, split_fields, uncompress
from sluice.streams import body as bodies
from sluice.streams.body import Budget
from sluice.streams.message import Message
from sluice.streams.metrics import typed_value
from sluice.streams.record import INT64, Invalid, Metric, Reject

messages = load_messages("prometheus")
# Series have most labels in common, and those of one source often all but the name. So what labels mean is looked up by
# their bytes: one in a third of the time that its texts take, all of a series in a tenth
Packed1 = load_messages("prometheus", "Request1.timeseries").Request1
Series1 = load_messages("prometheus", "Series1.labels").Series1
LABELS, LABEL_BYTES = 8_192, 256  # that are kept, and the bytes of one
TAG_SETS, TAG_SET_BYTES, TAG_SET_LABELS = 4_096, 1_024, 32  # the same of all labels behind the name
known_labels: dict[bytes, tuple[str, str]] = {}
known_names: dict[bytes, str] = {}  # by the field with the label
known_tags: dict[bytes, dict[str, str]] = {}  # by the fields with their labels
# How a series with one sample ends: the tags of the sample and its value, or without the latter if that is 0; then the
# tag and the six bytes of a time of today
SAMPLE, SAMPLE_BYTES = b"\x12\x10\x09", 18
ZERO, ZERO_BYTES = b"\x12\x07", 9
LABEL, NAME = 0x0A, "__name__"
sample_parts = struct.Struct("<3sd7s").unpack
VERSIONS = {"": 1, "prometheus.WriteRequest": 1, "io.prometheus.write.v2.Request": 2}
SERIES, METADATA = {1: 1, 2: 5}, {1: 3, 2: -1}  # numbers of the fields of a request
SYMBOLS = 4
STALE = struct.pack("<Q", 0x7FF0000000000002)  # the NaN that ends a series (Prometheus, model/value)
EXPONENTIAL, CUSTOM = range(-4, 9), -53  # schemas of native histograms
MAX_BUCKETS = 10_000  # of one histogram; Prometheus makes 160 unless told otherwise
BUCKET = 64  # bytes of a bucket as JSON
MILLISECOND = 1_000_000
COUNTED_BYTES = 16_384  # of a series from which its parts are counted before the library makes them


def decode(body: bytes, message: Message, budget: Budget) -> Iterator[Metric | Reject]:
    """The rows of a request, until the budget is used up. All its invalid series are rejected as one request.

    Raises, before it yields: Invalid.
    """
    version = version_of(message.field("Content-Type"))
    if not message.field("Content-Encoding") and not is_request(body, version):  # all the same, it may be compressed
        with suppress(Invalid):
            body = uncompress(body, budget)
    done, rows, request = 0, list[Metric](), None
    if len(body) <= budget.limits.record:
        done, rows, request = parse_whole(body, version, budget)
        if done < 0:
            yield from rows
            return
    symbols: list[Field] = []
    known = False
    for field in split_fields(body):  # all of them: from here on, `split_fields` does not raise
        if version == 2 and field.number == SYMBOLS:
            if len(symbols) >= budget.limits.records:
                raise Invalid(f"more than {budget.limits.records} symbols")
            symbols.append(field)
        known |= field.number in (SERIES[version], METADATA[version]) or (version == 2 and field.number == SYMBOLS)
    if body and not known:  # of the other version, or of another format
        raise Invalid("no record in it")
    head = b"".join(body[symbol.start : symbol.end] for symbol in symbols)
    if request is None:
        request = Request(version, [body[symbol.content : symbol.end].decode() for symbol in symbols])
    yield from rows
    refused = Refused[bytes]()
    for field in split_fields(body):
        if field.number not in (SERIES[version], METADATA[version]):
            continue
        if done:
            done -= 1
            continue
        if budget.left <= 0:
            refused.rest.append(body[field.start :])
            break
        try:
            rows = request.rows(field, body, budget)
        except Exhausted:
            refused.rest.append(body[field.start :])
            break
        except Invalid as error:
            refused.refuse(body[field.start : field.end], error, budget, field.end - field.start)
        else:
            yield from rows
    yield from refused.rejects(lambda parts: head + b"".join(parts))


def parse_whole(body: bytes, version: int, budget: Budget) -> tuple[int, list[Metric], Request | None]:
    """How many series of a request are done, their rows, and what they share. -1: all are done.

    Most requests have valid series only, and the class parses all of them in the time in which ten are found. From one
    on that is invalid, or that needs more than is left of the budget, a request is taken apart.
    """
    try:
        sent = (Packed1 if version == 1 else messages.Request2).FromString(body)
    except DecodeError:
        return 0, [], None
    symbols = [*sent.symbols] if version == 2 else []
    if not sent.timeseries or (version == 1 and sent.metadata) or len(symbols) > budget.limits.records:
        return 0, [], None
    request, rows, times = Request(version, symbols), list[Metric](), dict[bytes, int]()
    for done, series in enumerate(sent.timeseries[:] if version == 1 else sent.timeseries):
        left, room = budget.left, budget.room
        if len(rows) >= left:
            return done, rows, request
        if version == 1 and (row := plain_row(series, times)):
            rows.append(row)
            continue
        budget.left -= len(rows)  # who yields them charges them
        try:
            made = request.series_rows(parse_message(Series1, series) if version == 1 else series, budget, True)
        except Invalid:
            budget.left, budget.room = left, room
            return done, rows, request
        budget.left += len(rows)
        rows += made
    return -1, rows, request


def plain_row(series: bytes, times: dict[bytes, int]) -> Metric | None:
    """The row of a series of version 1 that is one finite sample behind its labels, the name first; None: it is not so.

    What a message ends with is a message, too, if what is before it is one. So the two are read apart.
    times: known ones, by their fields.
    """
    end = len(series) - SAMPLE_BYTES
    if not 0 <= end <= COUNTED_BYTES:
        return None
    head, value, stamp = sample_parts(series[end:])
    if head != SAMPLE:
        if not series.startswith(ZERO, -ZERO_BYTES):
            return None
        end, value = len(series) - ZERO_BYTES, 0.0
    behind = series[1] + 2  # the label with the name
    if behind > end or value - value:
        return None
    try:
        name = known_names.get(series[:behind]) or read_name(series[:behind])
        tags = known_tags.get(series[behind:end])
        if tags is None:
            tags = read_tags(series[behind:end])
        time = times.get(stamp) or times.setdefault(stamp, read_time(stamp))
    except (Invalid, DecodeError):
        return None
    return Metric(time=time, name=name, tags=tags, field="value", value=value, type="float")


def read_name(sent: bytes) -> str:
    """The name in a field of a series. Raises: Invalid, also if it is another field."""
    if sent[0] != LABEL or sent[1] != len(sent) - 2:
        raise Invalid("no label")
    key, name = read_label(sent[2:])
    if key != NAME or not name:
        raise Invalid("no name")
    if len(known_names) >= LABELS:
        known_names.clear()
    known_names[sent] = name
    return name


def read_tags(sent: bytes) -> dict[str, str]:
    """The tags in fields of a series. Raises: Invalid, also if they are not only labels without a name; DecodeError."""
    part = Series1.FromString(sent)
    if part.samples or part.histograms or part.exemplars:
        raise Invalid("more than labels")
    labels = read_labels(part.labels[:])
    tags = dict(labels)
    if len(tags) < len(labels) or NAME in tags:
        raise Invalid("duplicate label")
    if len(sent) <= TAG_SET_BYTES and len(tags) <= TAG_SET_LABELS:
        if len(known_tags) >= TAG_SETS:
            known_tags.clear()
        known_tags[sent] = tags
    return tags


def read_time(sent: bytes) -> int:
    """The time in a field of a sample. Raises: Invalid, also if it is another field; DecodeError."""
    sample = messages.Sample.FromString(sent)
    if not sample.timestamp or sample.SerializeToString() != sent:
        raise Invalid("no time")
    return nanoseconds(sample.timestamp)


def is_request(body: bytes, version: int) -> bool:
    """Whether a body is a request as it is, with a record."""
    try:
        return {*(field.number for field in split_fields(body))} & {SERIES[version], METADATA[version]} != set()
    except Invalid:
        return False


def version_of(content_type: str) -> int:
    """The major version of the protocol that a Content-Type names: 1 if it names none. Raises: Invalid.

    The media type says nothing: there was none before Prometheus 1.6, and libraries write any.
    """
    _, *parameters = (part.strip() for part in content_type.split(";"))
    name = next((part[6:].strip('"') for part in parameters if part.startswith("proto=")), "")
    if name not in VERSIONS:
        raise Invalid(f"not remote write: Content-Type {content_type!r:.80}")
    return VERSIONS[name]


class Request:
    """The parts of a request that its series share."""

    def __init__(self, version: int, symbols: list[str]) -> None:
        self.version = version
        self.symbols = symbols
        self.sizes = [len(msgspec.json.encode(symbol)) for symbol in symbols]
        self.described: set[tuple[Any, ...]] = set()  # metadata that has a row; version 2 repeats it with each series

    def rows(self, field: Field, body: bytes, budget: Budget) -> list[Metric]:
        """The rows of one field: a series or, in version 1, the metadata of a metric.

        They are paid for before they are made, also if that fails. Raises: Invalid, Exhausted.
        """
        limit = budget.limits.record
        if field.end - field.content > limit:
            raise Invalid(f"series larger than {limit} bytes")
        raw = body[field.content : field.end]
        if field.number == METADATA[self.version]:
            about = parse_message(messages.Metadata1, raw)
            name, _ = labelled([("__name__", about.metric_family_name)])
            return [metadata(name, about.type, about.help, about.unit)]
        if len(raw) > COUNTED_BYTES:  # an empty part has two bytes, and takes a hundred times as many
            charge_work(budget, sum(1 for _ in split_fields(raw)) // BRACKETS)
        return self.series_rows(parse_message(messages.Series1 if self.version == 1 else messages.Series2, raw), budget)

    def series_rows(self, series: Any, budget: Budget, is_whole: bool = False) -> list[Metric]:
        """The rows of a series. They are paid for as above.

        is_whole: it was parsed with the others. Raises: Invalid; Exhausted, also if its parts are to be counted first.
        """
        samples, histograms, exemplars = series.samples, series.histograms, series.exemplars
        count = len(samples) + 3 * len(histograms) + len(exemplars)
        if count > budget.limits.records:
            raise Invalid(f"series of more than {budget.limits.records} rows")
        budget.left -= count
        if self.version == 2 or histograms:
            self.charge(series, budget)
        is_undecoded = is_whole and self.version == 1
        labels = read_labels(series.labels[:]) if is_undecoded else self.labels(series)
        if is_whole and len(labels) + count > BRACKETS and series.ByteSize() > COUNTED_BYTES:
            raise Exhausted
        name, tags = labelled(labels, is_undecoded)
        created = series.created_timestamp if self.version == 2 else 0
        rows = sample_rows(name, tags, samples, created)
        for histogram in histograms:
            rows += native_histogram(name, tags, histogram, created)
        for exemplar in exemplars:
            about = {"value": plain_number(exemplar.value), "labels": dict(self.labels(exemplar))}
            rows.append(text_row(nanoseconds(exemplar.timestamp), name, tags, "exemplar", about))
        if self.version == 2:
            about = series.metadata
            key = name, about.type, about.help_ref, about.unit_ref
            if is_described := any(key[1:]) and key not in self.described:
                rows.append(metadata(name, about.type, self.symbol(about.help_ref), self.symbol(about.unit_ref)))
        if not rows:  # Prometheus takes them
            budget.left -= bodies.EMPTY_COST
        budget.left += count
        if self.version == 2 or len(rows) > 1:
            charge_rows(budget, len(rows), encoded_size(tags, name))
        if self.version == 2 and is_described:
            self.described.add(key)
        return rows

    def charge(self, series: Any, budget: Budget) -> None:
        """Pay for the texts that a series makes of references to symbols and of buckets. Raises: Invalid."""
        if self.version == 2:
            about, known = series.metadata, len(self.sizes)
            parts = [series.labels_refs, *(part.labels_refs for part in series.exemplars)]
            references = chain((about.help_ref, about.unit_ref), *parts)
            charge_work(budget, sum(map(len, parts)) // BRACKETS)
            charge_rows(budget, 1, sum(self.sizes[number] for number in references if number < known))
        for part in series.histograms:
            charge_work(budget, (len(part.negative_spans) + len(part.positive_spans)) // BRACKETS)
            counts = part.negative_deltas, part.negative_counts, part.positive_deltas, part.positive_counts
            charge_rows(budget, sum(map(len, counts)), BUCKET)

    def labels(self, part: Any) -> list[tuple[str, str]]:
        if self.version == 1:
            return [(label.name, label.value) for label in part.labels[:]]  # a list: see `otlp.attributes`
        references = [self.symbol(number) for number in part.labels_refs]
        if len(references) % 2:
            raise Invalid("label without a value")
        return list(zip(references[::2], references[1::2]))

    def symbol(self, number: int) -> str:
        """The text that a reference stands for. Raises: Invalid."""
        if number >= len(self.symbols):
            raise Invalid(f"reference to symbol {number} of {len(self.symbols)}")
        return self.symbols[number]


def read_labels(sent: list[bytes]) -> list[tuple[str, str]]:
    """The labels of a series, undecoded. Raises: Invalid."""
    return [known_labels.get(each) or read_label(each) for each in sent]


def read_label(sent: bytes) -> tuple[str, str]:
    label = parse_message(messages.Label, sent)
    check_texts(label.name, label.value)
    if len(sent) <= LABEL_BYTES:
        if len(known_labels) >= LABELS:
            known_labels.clear()
        known_labels[sent] = label.name, label.value
    return label.name, label.value


def labelled(labels: list[tuple[str, str]], is_checked: bool = False) -> tuple[str, dict[str, str]]:
    """The name of a metric, and its tags: the other labels. Raises: Invalid."""
    tags = dict(labels)
    if len(tags) < len(labels):
        raise Invalid("duplicate label")
    if not is_checked:
        check_texts(*tags, *tags.values())
    name = tags.pop("__name__", "")
    if not name:
        raise Invalid("missing: __name__")
    return name, tags


def nanoseconds(milliseconds: int) -> int:
    """Milliseconds since 1970 as nanoseconds. Raises: Invalid if these are no 64-bit integer."""
    if (time := milliseconds * MILLISECOND) not in INT64:
        raise Invalid("timestamp out of range")
    return time


def sample_rows(name: str, tags: dict[str, str], parts: Iterable[Any], created: int) -> list[Metric]:
    """The rows of samples. created: the start of those that have none of their own. Raises: Invalid."""
    last, rows = 0, []
    for part in parts:
        time, value, start = nanoseconds(part.timestamp), part.value, part.start_timestamp or created
        if start != last:
            last = start
            rows.append(
                Metric(time=time, name=name, tags=tags, field="start", value=nanoseconds(start), type="integer")
            )
        if value - value == 0:
            rows.append(Metric(time=time, name=name, tags=tags, field="value", value=value, type="float"))
        else:
            rows.append(value_row(time, name, tags, value))
    return rows


def value_row(time: int, name: str, tags: dict[str, str], value: float) -> Metric:
    """The row of a value: the field `state` with a text if it is not finite, so that `value` has numbers only."""
    field, kind = ("value", "float") if value - value == 0 else ("state", "string")
    return Metric(time=time, name=name, tags=tags, field=field, value=plain_number(value), type=kind)


def plain_number(value: float) -> float | str:
    """A finite number, or the name of one that is not."""
    return "stale" if value != value and struct.pack("<d", value) == STALE else finite_or_text(value)


def text_row(time: int | None, name: str, tags: dict[str, str], field: str, about: dict[str, Any]) -> Metric:
    """A row with several values, as JSON."""
    value = msgspec.json.encode(about).decode()
    return Metric(time=time, name=name, tags=tags, field=field, value=value, type="string")


def metadata(name: str, kind: int, about: str, unit: str) -> Metric:
    """The row of a metric's metadata, which has no time."""
    return text_row(
        None, name, {}, "metadata", {"type": enum_name(messages.MetricType, kind), "help": about, "unit": unit}
    )


def enum_name(enum: Any, value: int) -> str:
    """The name of a value; its digits if this version of the messages has none."""
    return enum.Name(value) if value in enum.values() else str(value)


def native_histogram(name: str, tags: dict[str, str], part: Any, created: int) -> list[Metric]:
    """The rows of a native histogram: the numbers that a chart needs, and the whole as JSON.

    created: as above. Raises: Invalid.
    """
    time, total = nanoseconds(part.timestamp), plain_number(part.sum)
    if total == "stale":
        return [value_row(time, name, tags, part.sum)]
    count, kind = typed_value(part.count_float if part.WhichOneof("count") == "count_float" else part.count_int)
    if isinstance(count, float):
        check_finite([count])
    about: dict[str, Any] = {"count": count, "sum": total, "schema": part.schema, "zero_threshold": part.zero_threshold}
    about |= {
        "reset_hint": enum_name(part.ResetHint, part.reset_hint),
        "start": nanoseconds(part.start_timestamp or created),
    }
    about["buckets"] = native_buckets(part)
    rows = [Metric(time=time, name=name, tags=tags, field="count", value=count, type=kind)]
    if isinstance(total, float):
        rows.append(Metric(time=time, name=name, tags=tags, field="sum", value=total, type="float"))
    return [*rows, text_row(time, name, tags, "histogram", about)]


def native_buckets(part: Any) -> list[list[float | None]]:
    """The populated buckets, from the lowest: lower bound, upper bound, count. None: infinite. Raises: Invalid."""
    schema, custom = part.schema, part.custom_values
    below = counted_buckets(part.negative_spans, part.negative_deltas, part.negative_counts)
    above = counted_buckets(part.positive_spans, part.positive_deltas, part.positive_counts)
    check_finite([part.zero_threshold, *custom])
    if schema == CUSTOM:
        if below or any(not 0 <= index <= len(custom) for index, _ in above):
            raise Invalid("histogram: bucket without a bound")
        bounds = [None, *custom, None]
        return [[bounds[index], bounds[index + 1], count] for index, count in above]
    if schema not in EXPONENTIAL:
        raise Invalid(f"histogram: unknown schema {schema}")
    filled = [
        [negated(bucket_bound(schema, index)), negated(bucket_bound(schema, index - 1)), count]
        for index, count in reversed(below)
    ]
    zero = part.zero_count_float if part.WhichOneof("zero_count") == "zero_count_float" else part.zero_count_int
    if zero:
        check_finite([zero])
        filled.append([-part.zero_threshold, part.zero_threshold, zero])
    return filled + [[bucket_bound(schema, index - 1), bucket_bound(schema, index), count] for index, count in above]


def counted_buckets(spans: Sequence[Any], deltas: Iterable[int], counts: Iterable[float]) -> list[tuple[int, float]]:
    """The index and the count of each bucket. Raises: Invalid."""
    if len(spans) > MAX_BUCKETS:
        raise Invalid(f"histogram with more than {MAX_BUCKETS} spans")
    absolute = [*counts, *accumulate(deltas)]
    check_finite(absolute)
    if any(not -(2**63) <= count < 2**63 for count in absolute):
        raise Invalid("histogram: a count is out of range")
    if len(absolute) > MAX_BUCKETS:
        raise Invalid(f"histogram with more than {MAX_BUCKETS} buckets")
    if sum(span.length for span in spans) != len(absolute):
        raise Invalid("histogram: the spans do not fit the buckets")
    filled: list[tuple[int, float]] = []
    index = 0
    for span in spans:
        index += span.offset
        filled += [(index + n, absolute[len(filled) + n]) for n in range(span.length)]
        index += span.length
    return filled


def bucket_bound(schema: int, index: int) -> float | None:
    """The upper bound of a bucket of an exponential histogram: 2^(index · 2^-schema); None: infinite."""
    exponent = index * 2.0**-schema
    return 2.0**exponent if exponent < 1024 else None


def negated(value: float | None) -> float | None:
    return None if value is None else -value


def check_finite(values: Iterable[float]) -> None:
    """Check numbers of a histogram, which JSON could not hold. Raises: Invalid."""
    if any(value - value != 0 for value in values):
        raise Invalid("histogram: a number is not finite")
