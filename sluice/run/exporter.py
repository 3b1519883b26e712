"""Serve all figures in Prometheus's text format on a Unix socket; nginx passes /status/metrics to it."""

from __future__ import annotations

import contextlib
import os
import signal
import socketserver
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from sluice import settings
from sluice.account import Figures, sums
from sluice.ledger import Observer, waiting

LABELLED_REASONS = 20  # label values: the most frequent reasons; the others share one
REASON_CHARACTERS = 120  # of a reason

# one sample per stream: metric, help text, key in Observer.look()
COUNTERS = (
    ("sluice_accepted_bodies", "Bodies put on the list.", "accepted"),
    ("sluice_taken_bodies", "Bodies taken off the list by workers or a purge.", "taken"),
    ("sluice_stored_bodies", "Bodies stored completely.", "stored"),
    ("sluice_purged_bodies", "Bodies that an operator purged.", "purged"),
    ("sluice_expired_bodies", "Bodies of which the dead letters were deleted by age.", "expired"),
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
    ("sluice_missing_bodies", "Accepted bodies that are neither in Redis nor in the database.", "missing"),
)  # fmt: skip
VIEW_GAUGES = (
    ("sluice_view_lag_seconds", "How far the view may be behind; of a tally, the age of its oldest count.",
     "lag"),
    ("sluice_view_keys", "Keys of the view; of a tally, those asked for within two periods.", "keys"),
)  # fmt: skip
HISTOGRAMS = (
    ("sluice_decode_seconds", "Time to decode a body; one in 16 is timed.", "decode"),
    ("sluice_persist_seconds", "Time to decode and store a claim.", "persist"),
)


def text(figures: Figures) -> bytes:
    families = list(metrics(figures))

    class Found:
        """The part of a registry that generate_latest uses."""

        @staticmethod
        def collect() -> list[Metric]:
            return families

    return generate_latest(Found)


def metrics(figures: Figures) -> Iterator[Metric]:
    """The metric families. An unknown figure has no sample."""
    streams: dict[str, Figures] = figures["streams"]
    for name, about, key in COUNTERS:
        counter = CounterMetricFamily(name, about, labels=["stream"])
        for stream, row in streams.items():
            if row[key] is not None:
                counter.add_metric([stream], row[key])
        yield counter
    for name, about, key in GAUGES:
        gauge = GaugeMetricFamily(name, about, labels=["stream"])
        for stream, row in streams.items():
            # None means that no body waits if `ready` is known
            value = row[key] if key != "oldest_seconds" or row[key] is not None or row["ready"] is None else 0
            if value is not None:
                gauge.add_metric([stream], value)
        yield gauge
    for name, about, key in HISTOGRAMS:
        yield histogram(name, about, {stream: row[key] for stream, row in streams.items()})
    yield histogram("sluice_commit_seconds", "Time of a commit in Redis.", {None: figures["commit"]})
    yield histogram("sluice_commit_bodies", "Bodies per commit.", {None: figures["commit_bodies"]})

    answers = CounterMetricFamily(
        "sluice_answers",
        "Answers of the gateway itself; the route is empty for unknown paths.",
        labels=["route", "status"],
    )
    for row in figures["answered"]:
        answers.add_metric([row["route"], row["status"]], row["count"])
    yield answers
    refused = CounterMetricFamily("sluice_refused_bodies", "Bodies that got 503.", labels=["stream", "reason"])
    for row in figures["refused"]:
        refused.add_metric([row["stream"], row["reason"]], row["bodies"])
    yield refused
    letters = GaugeMetricFamily(
        "sluice_dead_letters", "Dead letters; after 20 reasons: others.", labels=["stream", "reason"]
    )
    others: dict[tuple[str, str], int] = {}
    for at, row in enumerate(figures["dead_letters"] or ()):
        labels = row["stream"], row["reason"][:REASON_CHARACTERS] if at < LABELLED_REASONS else "others"
        others[labels] = others.get(labels, 0) + row["letters"]
    for labels, number in others.items():
        letters.add_metric(labels, number)
    yield letters

    if figures["cells"]:
        yield from cell_metrics(figures["cells"])
    if figures["views"]:
        yield from view_metrics(figures["views"])

    processes = GaugeMetricFamily("sluice_processes", "Processes connected to Redis.", labels=["role"])
    for role in ("gateway", "worker"):
        if figures["processes"] is not None:
            processes.add_metric([role], sum(process["role"] == role for process in figures["processes"]))
    yield processes
    up = GaugeMetricFamily("sluice_up", "1 if the part answers, else 0.", labels=["part"])
    up.add_metric(["redis"], figures["memory"] is not None)
    up.add_metric(["database"], figures["ledger_seconds"] is not None)
    yield up
    if figures["memory"] is not None:
        yield GaugeMetricFamily("sluice_redis_memory_bytes", "Memory that Redis uses.", figures["memory"]["used"])
        yield GaugeMetricFamily(
            "sluice_redis_memory_max_bytes", "Memory limit of Redis; 0: none.", figures["memory"]["most"]
        )
    if figures["disk"] is not None:
        yield GaugeMetricFamily(
            "sluice_disk_free_bytes", "Free bytes of the file system with the data.", figures["disk"]["free"]
        )
        yield GaugeMetricFamily("sluice_disk_bytes", "Size of that file system.", figures["disk"]["size"])
    if figures["ledger_seconds"] is not None:
        yield GaugeMetricFamily(
            "sluice_ledger_age_seconds", "Age of the figures stored, dead and missing.", figures["ledger_seconds"]
        )


def cell_metrics(cells: list[Figures]) -> Iterator[Metric]:
    """The metric families of the cells that store in this database."""
    for name, about, figure in (
        ("sluice_cell_seen_seconds", "Age of the figures that the cell published last.", lambda cell: cell["seconds"]),
        ("sluice_cell_late", "1 if the cell should have published figures since, else 0.", lambda cell: cell["late"]),
        ("sluice_cell_waiting_bodies", "Bodies that were ready or claimed then.", waiting),
        ("sluice_cell_missing_bodies", "Bodies that were missing then.", lambda cell: sums([cell])["missing"]),
    ):
        gauge = GaugeMetricFamily(name, about, labels=["cell"])
        for cell in cells:
            gauge.add_metric([cell["cell"]], figure(cell))
        yield gauge


def view_metrics(views: list[Figures]) -> Iterator[Metric]:
    """The metric families of the views. An unknown figure has no sample."""
    reads = CounterMetricFamily("sluice_view_reads", "Answers of the reader.", labels=["view", "status"])
    refreshes = CounterMetricFamily("sluice_view_refreshes", "Counts made for a tally.", labels=["view"])
    served = GaugeMetricFamily("sluice_view_served", "1 if the view is served, else 0.", labels=["view"])
    gauges = {key: GaugeMetricFamily(name, about, labels=["view"]) for name, about, key in VIEW_GAUGES}
    for view in views:
        path = view["path"]
        for status, n in (view["reads"] or {}).items():
            reads.add_metric([path, status], n)
        if view["refreshes"] is not None:
            refreshes.add_metric([path], view["refreshes"])
        served.add_metric([path], view["state"] == "served")
        for key, gauge in gauges.items():
            if view[key] is not None:
                gauge.add_metric([path], view[key])
    yield from (reads, refreshes, served, *gauges.values())


def histogram(name: str, about: str, histograms: dict[Any, Figures | None]) -> HistogramMetricFamily:
    """A histogram per stream, or one without labels if the key is None."""
    family = HistogramMetricFamily(name, about, labels=[] if None in histograms else ["stream"])
    for stream, figures in histograms.items():
        if figures is not None:
            total, buckets = 0, []
            for bound, n in zip(figures["bounds"], figures["buckets"], strict=True):
                total += n
                buckets.append(("+Inf" if bound is None else str(float(bound)), total))
            family.add_metric([] if stream is None else [stream], buckets, figures["sum"])
    return family


def serve(observer: Observer, path: Path) -> int:
    """Answer requests on a Unix socket, one at a time, until a signal ends the process; each takes a reading."""

    class Handler(BaseHTTPRequestHandler):
        """Answers every GET with the metrics."""

        timeout = 10

        def do_GET(self) -> None:  # noqa: N802
            body = text(observer.look())
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE_LATEST)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Do not log requests."""

    for number in signal.SIGTERM, signal.SIGINT:
        signal.signal(number, lambda number, frame: sys.exit(0))
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    os.umask(0o077)
    with socketserver.UnixStreamServer(str(path), Handler) as server:
        server.serve_forever()
    return 0


def main() -> int:
    """A program of bin/up."""
    s = settings.load_or_exit()
    try:
        return serve(Observer(s), s.home / "run" / "metrics.sock")
    except settings.SettingError as error:
        return settings.complain(error)


if __name__ == "__main__":
    sys.exit(main())
