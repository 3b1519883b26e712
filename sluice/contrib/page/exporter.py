"""Serve all figures in Prometheus's text format on a Unix socket; nginx passes /status/metrics to it."""

from __future__ import annotations

import os
import socketserver
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler
from itertools import accumulate
from types import SimpleNamespace
from typing import Any, Union

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from sluice import settings
from sluice.contrib.background import exit_on_signal
from sluice.ledger import Histogram, Observer, Reading, cell_sums, waiting_bodies

Family = Union[CounterMetricFamily, GaugeMetricFamily]
Labels = Sequence[str]
COUNTER, GAUGE = CounterMetricFamily, GaugeMetricFamily
LABELLED_REASONS = 20  # label values: the most frequent reasons; the others share one
REASON_CHARACTERS = 120  # of a reason

# one sample per stream: metric, help text, key in Observer.look()
COUNTERS = (
    ("sluice_accepted_bodies", "Bodies put on the list.", "accepted"),
    ("sluice_taken_bodies", "Bodies taken off the list by workers or a purge.", "taken"),
    ("sluice_stored_bodies", "Bodies stored completely.", "stored"),
    ("sluice_duplicate_bodies", "Bodies not stored again, because another one had their key.", "duplicate"),
    ("sluice_purged_bodies", "Bodies that an operator purged.", "purged"),
    ("sluice_expired_bodies", "Bodies of which the dead letters were deleted.", "expired"),
    ("sluice_deleted_rows", "Rows deleted by age (INGEST_KEEP).", "deleted"),
    ("sluice_received_bytes", "Bytes of the bodies put on the list.", "received_bytes"),
    ("sluice_store_errors", "Claims that could not be stored and were kept for another attempt.", "store_errors"),
)
GAUGES = (
    ("sluice_ready_bodies", "Bodies that no worker has claimed.", "ready"),
    ("sluice_claimed_bodies", "Bodies in open claims.", "claimed"),
    ("sluice_open_claims", "Claims that are not settled.", "open_claims"),
    ("sluice_backlog_bytes", "Approximate memory of ready and claimed bodies.", "backlog_bytes"),
    ("sluice_oldest_body_age_seconds", "Age of the oldest body that is not in the database; 0 if there is none.",
     "oldest_seconds"),
    ("sluice_dead_bodies", "Bodies of which at least a part is in dead_letters.", "dead"),
    ("sluice_unpublished_bodies", "Bodies in the database whose rows wait for their destination.", "unpublished"),
    ("sluice_unpublished_age_seconds", "For how long the first of them has waited; 0 if there is none.",
     "unpublished_seconds"),
    ("sluice_missing_bodies", "Accepted bodies that are neither in Redis nor in the database; below 0: counted twice.",
     "missing"),
)  # fmt: skip
VIEW_GAUGES = (
    ("sluice_view_lag_seconds", "How far the view may be behind; of a tally, the age of its oldest count.", "lag"),
    ("sluice_view_keys", "Keys of the view; of a tally, those asked for within two periods.", "keys"),
)
CELL_GAUGES = (
    ("sluice_cell_seen_seconds", "Age of the figures that the cell published last.", lambda cell: cell["seconds"]),
    ("sluice_cell_late", "1 if the cell should have published figures since, else 0.", lambda cell: cell["late"]),
    ("sluice_cell_waiting_bodies", "Bodies that were ready or claimed then.", waiting_bodies),
    ("sluice_cell_missing_bodies", "Bodies that were missing then.", lambda cell: cell_sums([cell])["missing"]),
)
OWN_GAUGES = (  # of this cell
    ("sluice_redis_memory_bytes", "Memory that Redis uses.", lambda own: own["memory"] and own["memory"]["used"]),
    ("sluice_redis_memory_max_bytes", "Memory limit of Redis; 0: none.",
     lambda own: own["memory"] and own["memory"]["most"]),
    ("sluice_disk_free_bytes", "Free bytes of the file system with the data.",
     lambda own: own["disk"] and own["disk"]["free"]),
    ("sluice_disk_bytes", "Size of that file system.", lambda own: own["disk"] and own["disk"]["size"]),
    ("sluice_ledger_age_seconds", "Age of the figures stored, dead and missing.", lambda own: own["ledger_seconds"]),
)  # fmt: skip
SENDERS = (
    ("sluice_sender_bodies", "Bodies in the database, by the name of their API key.", "stored", "stream"),
    ("sluice_sender_rejections", "Requests with a named API key that nginx rejected.", "rejected", "status"),
)
HISTOGRAMS = (
    ("sluice_decode_seconds", "Time to decode a body; one in 16 is timed.", "decode"),
    ("sluice_persist_seconds", "Time to decode and store a claim.", "persist"),
)


def exposition(figures: Reading) -> bytes:
    return generate_latest(SimpleNamespace(collect=lambda: metric_families(figures)))


def metric_family(
    kind: type[Family], name: str, about: str, labels: str, samples: Iterable[tuple[Labels, Any]]
) -> Metric:
    """A metric family. labels: names, separated by spaces. An unknown figure, None, has no sample."""
    made = kind(name, about, labels=labels.split())
    for values, figure in samples:
        if figure is not None:
            made.add_metric(values, figure)
    return made


def metric_families(figures: Reading) -> Iterator[Metric]:
    for row in figures["streams"].values():
        if row["ready"] is not None:  # then None means that no body waits
            row["oldest_seconds"] = row["oldest_seconds"] or 0
        if row["unpublished"] is not None:
            row["unpublished_seconds"] = row["unpublished_seconds"] or 0
    streams: Mapping[str, Mapping[str, Any]] = figures["streams"]
    contributed = figures["contributed"]
    for kind, table in (COUNTER, COUNTERS), (GAUGE, GAUGES):
        for name, about, key in table:
            yield metric_family(kind, name, about, "stream", [([stream], row[key]) for stream, row in streams.items()])
    for name, about, key in HISTOGRAMS:
        yield histogram(name, about, {stream: row[key] for stream, row in streams.items()})
    yield histogram("sluice_commit_seconds", "Time of a commit in Redis.", {None: figures["commit"]})
    yield histogram("sluice_commit_bodies", "Bodies per commit.", {None: figures["commit_bodies"]})
    yield metric_family(
        COUNTER, "sluice_answers",
        "Answers of the gateway itself; the route is empty for unknown paths, and nginx for those that nginx rejects.",
        "route status", (([row["route"], row["status"]], row["count"]) for row in figures["answered"]),
    )  # fmt: skip
    refused = (([row["stream"], row["reason"]], row["bodies"]) for row in figures["refused"])
    yield metric_family(COUNTER, "sluice_refused_bodies", "Bodies that got 503.", "stream reason", refused)
    without = (([row["stream"], row["kind"]], row["messages"]) for row in figures["without_rows"])
    about = "Messages that are valid and have nothing to store."
    yield metric_family(COUNTER, "sluice_messages_without_rows", about, "stream kind", without)
    unknown = contributed.get("unknown_fields", [])
    examined = {(row["stream"],): row["examined"] for row in unknown}
    fields = (([row["stream"], row["field"]], row["bodies"]) for row in unknown)
    about = "Bodies whose fields were looked at, of streams in which one had an unknown field."
    yield metric_family(COUNTER, "sluice_examined_bodies", about, "stream", examined.items())
    about = "Of these, bodies with a field that no column has."
    yield metric_family(COUNTER, "sluice_unknown_fields", about, "stream field", fields)
    for name, about, outcome, label in SENDERS:
        by_name = (([row["sender"], of], n) for row in contributed.get("senders", []) for of, n in row[outcome].items())
        yield metric_family(COUNTER, name, about, f"sender {label}", by_name)
    letters: Counter[tuple[str, str]] = Counter()
    for at, reason in enumerate(figures["dead_letters"] or ()):
        labels = reason["stream"], reason["reason"][:REASON_CHARACTERS] if at < LABELLED_REASONS else "others"
        letters[labels] += reason["letters"]
    about = "Dead letters; reasons that differ in what was sent are one, and after 20 reasons: others."
    yield metric_family(GAUGE, "sluice_dead_letters", about, "stream reason", letters.items())
    if figures["cells"]:
        for name, about, figure in CELL_GAUGES:
            yield metric_family(
                GAUGE, name, about, "cell", (([cell["cell"]], figure(cell)) for cell in figures["cells"])
            )
    if views := contributed.get("views", []):
        yield from view_metrics(views)
    processes = figures["processes"]
    roles = [process["role"] for process in processes or ()]
    counts = (([role], None if processes is None else roles.count(role)) for role in ("gateway", "worker"))
    yield metric_family(GAUGE, "sluice_processes", "Processes connected to Redis.", "role", counts)
    parts = (["redis"], figures["memory"] is not None), (["database"], figures["ledger_seconds"] is not None)
    yield metric_family(GAUGE, "sluice_up", "1 if the part answers, else 0.", "part", parts)
    for name, about, figure in OWN_GAUGES:
        yield metric_family(GAUGE, name, about, "", [([], figure(figures))])


def view_metrics(views: list[dict[str, Any]]) -> Iterator[Metric]:
    reads = (([view["path"], status], n) for view in views for status, n in (view["reads"] or {}).items())
    yield metric_family(COUNTER, "sluice_view_reads", "Answers of the reader.", "view status", reads)
    refreshes = (([view["path"]], view["refreshes"]) for view in views)
    yield metric_family(COUNTER, "sluice_view_refreshes", "Counts made for a tally.", "view", refreshes)
    served = (([view["path"]], view["state"] == "served") for view in views)
    yield metric_family(
        GAUGE, "sluice_view_served", "1 if the view is served and takes new keys, else 0.", "view", served
    )
    for name, about, key in VIEW_GAUGES:
        yield metric_family(GAUGE, name, about, "view", [([view["path"]], view[key]) for view in views])


def histogram(name: str, about: str, histograms: dict[Any, Histogram | None]) -> HistogramMetricFamily:
    """A histogram per stream, or one without labels if the key is None."""
    family = HistogramMetricFamily(name, about, labels=[] if None in histograms else ["stream"])
    for stream, figures in histograms.items():
        if figures is not None:
            names = ("+Inf" if bound is None else str(float(bound)) for bound in figures["bounds"])
            buckets = list(zip(names, accumulate(figures["buckets"]), strict=True))
            family.add_metric([] if stream is None else [stream], buckets, figures["sum"])
    return family


def main() -> None:
    """Answer requests on a Unix socket, one at a time, until a signal ends the process; each takes a reading."""
    with settings.exit_if_invalid():
        s = settings.load_settings()
        observer = Observer(s)

    class MetricsHandler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:  # noqa: N802
            body = exposition(observer.look())
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE_LATEST)
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Do not log requests."""

    exit_on_signal(at_once=True)
    path = s.home / "run/metrics.sock"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    os.umask(0o077)
    with socketserver.UnixStreamServer(str(path), MetricsHandler) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
