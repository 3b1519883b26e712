"""Decodes OTLP's metrics to rows: docs/INTEGRATIONS.md has the fields and tags of each kind of data point."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import msgspec
from msgspec.structs import replace
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1 import metrics_pb2 as messages

from sluice.contrib.formats import otlp
from sluice.contrib.formats.charges import charge_rows
from sluice.contrib.formats.otlp import (
    LATEST,
    OUT_OF_RANGE,
    Context,
    Node,
    Tags,
    any_text,
    attributes,
    checked_text,
    checked_time,
    identity,
    scope_context,
)
from sluice.contrib.formats.parts import MANY_PAIRS, encoded_size, finite_or_text
from sluice.contrib.formats.prometheus import BUCKET, bucket_bound, negated
from sluice.streams.metrics import state_field, typed_value
from sluice.streams.record import Invalid, Metric

NO_RECORDED_VALUE = messages.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK
TEMPORALITIES: dict[int, str] = {
    messages.AGGREGATION_TEMPORALITY_DELTA: "delta",
    messages.AGGREGATION_TEMPORALITY_CUMULATIVE: "cumulative",
}
SCALE = 64  # SDKs use -10 to 20; beyond 64 a bound is less than a float can tell
NUMBERS = {"as_double": "float", "as_int": "integer"}
INFINITY = float("inf")
PARTS = 10_000  # buckets, quantiles or exemplars of one data point; SDKs send up to 160 buckets


class PointRows(list[Metric]):
    def __init__(self, point: Any, context: Context) -> None:
        self.context = context
        self.tags = context.merged(attributes(point.attributes, any_text))
        self.time = checked_time(point.time_unix_nano)

    def add(self, field: str, value: float | int | str, **more: str) -> None:
        """Add a row. more: tags of this row only."""
        self.append(self.row(field, value, self.tags | more if more else self.tags, self.time))

    def row(self, field: str, value: float | int | str, tags: Tags, time: int | None) -> Metric:
        """A row. A number that is not finite has a field of its own, so that the others hold numbers only."""
        stored, kind = typed_value(finite_or_text(value) if isinstance(value, float) else value)
        if kind == "string" and isinstance(value, float):
            field = state_field(field)
        return Metric(time=time, name=self.context.name, tags=tags, field=field, value=stored, type=kind)

    def bounded(self, parts: Any) -> Any:
        """Parts of the data point, each of which becomes a row.

        Raises: Invalid if there are too many: each takes 30 times its bytes in memory, and has all attributes.
        """
        if len(parts) > PARTS:
            raise Invalid(f"data point with more than {PARTS} parts")
        if parts:
            own = encoded_size(self.tags) - self.context.size
            charge_rows(self.context.budget, len(parts), max(own, BUCKET))
        return parts

    def finish(self, point: Any) -> PointRows:
        """Add what all kinds of data points have. Raises: Invalid if the data point has no value."""
        if point.flags & NO_RECORDED_VALUE:
            self.add("state", "stale")
        if not self:
            raise Invalid("data point without a value")
        if point.flags & ~NO_RECORDED_VALUE:
            self.add("flags", point.flags)
        if point.start_time_unix_nano:
            self.add("start", point.start_time_unix_nano)
        for exemplar in self.bounded(getattr(point, "exemplars", ())):
            labels = attributes(exemplar.filtered_attributes, any_text)
            for name in "trace_id", "span_id":
                if given := getattr(exemplar, name):
                    labels[name] = identity(given)
            value = getattr(exemplar, exemplar.WhichOneof("value") or "as_double")
            about = as_json({"value": finite_or_text(value), "labels": labels})
            self.append(self.row("exemplar", about, self.tags, checked_time(exemplar.time_unix_nano)))
        return self

    def summarize(self, point: Any) -> None:
        """Add count, sum, min and max, as far as they are known."""
        self.add("count", point.count)
        for name in "sum", "min", "max":
            if point.HasField(name):
                self.add(name, getattr(point, name))


def number_rows(point: Any, context: Context) -> Sequence[Metric]:
    """Of a gauge or sum."""
    kind = NUMBERS.get(point.WhichOneof("value"))
    if kind is None or point.flags or point.exemplars:
        return other_number(point, context)
    value = point.as_double if kind == "float" else point.as_int
    if value - value:  # not finite
        return other_number(point, context)
    own, inherited, name = attributes(point.attributes, any_text), context.tags, context.name
    tags = {**inherited, **own}
    if len(tags) < len(inherited) + len(own):
        tags = context.merged(own)
    time, start = point.time_unix_nano, point.start_time_unix_nano
    if time > LATEST:
        raise Invalid(OUT_OF_RANGE)
    row = Metric(time=time or None, name=name, tags=tags, field="value", value=value, type=kind)
    if not start:
        return (row,)
    if start > LATEST:
        return row, Metric(time=time or None, name=name, tags=tags, field="start", value=str(start), type="unsigned")
    return row, Metric(time=time or None, name=name, tags=tags, field="start", value=start, type="integer")


def other_number(point: Any, context: Context) -> PointRows:
    rows = PointRows(point, context)
    if kind := point.WhichOneof("value"):
        rows.add("value", getattr(point, kind))
    return rows.finish(point)


def histogram(point: Any, context: Context) -> PointRows:
    """The rows of a point of a histogram. A bucket counts all values up to its bound, as Prometheus's do.

    Some senders have as many bounds as buckets: Swift's SDK adds infinity to the bounds (swift-otel, issue 386), others
    leave out the last bucket. Buckets that do not fit their bounds otherwise are kept as they were sent, as JSON.
    """
    rows = PointRows(point, context)
    rows.summarize(point)
    counts, bounds = list(rows.bounded(point.bucket_counts)), list(point.explicit_bounds)
    if counts and len(counts) == len(bounds):
        if bounds[-1] == INFINITY:
            bounds.pop()
        else:
            counts.append(max(0, point.count - sum(counts)))
    if counts and len(counts) != len(bounds) + 1:
        about = {"bounds": [finite_or_text(bound) for bound in rows.bounded(bounds)], "counts": counts}
        rows.add("histogram", as_json(about))
        return rows.finish(point)
    for upper, count in zip([*bounds, INFINITY], accumulate(counts)):
        rows.add("bucket", count, le=str(finite_or_text(upper)))
    return rows.finish(point)


def exponential(point: Any, context: Context) -> PointRows:
    """The rows of a point of an exponential histogram: as Prometheus's native histograms, one of them is JSON.

    Raises: Invalid.
    """
    rows = PointRows(point, context)
    rows.summarize(point)
    scale = point.scale
    if not -SCALE <= scale <= SCALE:
        raise Invalid(f"exponential histogram with a scale of {scale}")
    negative, positive = (
        [(n, count) for n, count in enumerate(rows.bounded(side.bucket_counts), side.offset) if count]
        for side in (point.negative, point.positive)
    )
    buckets = [
        [negated(bucket_bound(scale, n + 1)), negated(bucket_bound(scale, n)), count] for n, count in reversed(negative)
    ]
    if point.zero_count:
        buckets.append([-point.zero_threshold, point.zero_threshold, point.zero_count])
    buckets += [[bucket_bound(scale, n), bucket_bound(scale, n + 1), count] for n, count in positive]
    about: dict[str, Any] = {"count": point.count, "sum": finite_or_text(point.sum) if point.HasField("sum") else None}
    about |= {"schema": scale, "zero_threshold": finite_or_text(point.zero_threshold), "buckets": buckets}
    rows.add("histogram", as_json(about))
    return rows.finish(point)


def as_json(about: dict[str, Any]) -> str:
    return msgspec.json.encode(about).decode()


def summary_rows(point: Any, context: Context) -> PointRows:
    rows = PointRows(point, context)
    rows.add("count", point.count)
    rows.add("sum", point.sum)
    for quantile in rows.bounded(point.quantile_values):
        rows.add("quantile", quantile.value, quantile=str(finite_or_text(quantile.quantile)))
    return rows.finish(point)


def resource(message: Any, context: Context) -> Context:
    return replace(context, tags=attributes(message.resource.attributes, any_text))


def metric_context(message: Any, context: Context) -> Context:
    name = checked_text(message.name)
    if not name:
        raise Invalid("missing: name")
    unit, more = message.unit, message.metadata
    tags = context.kept.get(unit) if not more else None
    if tags is None:
        own = {f"otel.metadata.{name}": value for name, value in attributes(more, any_text).items()}
        if unit:
            own["otel.unit"] = checked_text(unit)
        tags = context.merged(own)
        if not more and len(tags) <= MANY_PAIRS:
            context.keep(unit, tags)
    return Context(context.budget, tags, context.scope, name, None, 0, context.kept)


def data_points(has_temporality: bool, is_sum: bool) -> Callable[[Any, Context], Context]:
    """What makes the context of the data points of a kind of metric."""

    def read(message: Any, context: Context) -> Context:
        number = message.aggregation_temporality if has_temporality else 0
        monotonic = message.is_monotonic if is_sum else None
        # most metrics of a scope have the same of all this; the tags are those of a unit, unless there are metadata
        same = id(context.tags), number, monotonic
        if (known := context.kept.get(same)) is None:
            own = {}
            if temporality := TEMPORALITIES.get(number, ""):
                own["otel.temporality"] = temporality
            if is_sum:
                own["otel.monotonic"] = "true" if monotonic else "false"
            tags = context.merged(own)
            # the other dictionary is kept, too, so that no third one gets its id
            known = tags, encoded_size(tags, "", None), context.tags
            if len(tags) <= MANY_PAIRS:
                context.keep(same, known)
        tags, size, _ = known
        size += len(msgspec.json.encode(context.name)) - len('""')
        return Context(context.budget, tags, context.scope, context.name, None, size, context.kept)

    return read


KINDS: dict[str, tuple[Any, Any, Any]] = {
    "gauge": (messages.Gauge, messages.NumberDataPoint, number_rows),
    "sum": (messages.Sum, messages.NumberDataPoint, number_rows),
    "histogram": (messages.Histogram, messages.HistogramDataPoint, histogram),
    "exponentialHistogram": (messages.ExponentialHistogram, messages.ExponentialHistogramDataPoint, exponential),
    "summary": (messages.Summary, messages.SummaryDataPoint, summary_rows),
}
DATA = {
    name: Node(
        kind,
        data_points("aggregation_temporality" in kind.DESCRIPTOR.fields_by_name, name == "sum"),
        {"dataPoints": Node(point, read)},
    )
    for name, (kind, point, read) in KINDS.items()
}
METRIC = Node(messages.Metric, metric_context, DATA)
SCOPE = Node(messages.ScopeMetrics, partial(scope_context, any_text), {"metrics": METRIC})
RESOURCE = Node(messages.ResourceMetrics, resource, {"scopeMetrics": SCOPE})
REQUEST = Node(ExportMetricsServiceRequest, lambda _, context: context, {"resourceMetrics": RESOURCE})
decode = partial(otlp.decode, REQUEST)
