"""Show all figures as Prometheus reads them; nginx serves the same at /status/metrics.

Rates are for Prometheus to take: the drain rate is rate(sluice_drained_bodies_total[1m]).
"""

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
from sluice.ledger import Figures, Observer

REASONS = 20  # label values: the most frequent; the others are one
LONGEST = 120  # characters of a reason

# of each stream: the name, what it is, the figure
COUNTERS = (
    ("sluice_accepted_bodies", "Bodies put on the list.", "accepted"),
    ("sluice_drained_bodies", "Bodies that workers took off the list.", "drained"),
    ("sluice_stored_bodies", "Bodies of which all is in the stream's table.", "stored"),
    ("sluice_purged_bodies", "Bodies that an operator threw away.", "purged"),
    ("sluice_received_bytes", "Bytes of the bodies put on the list by gateways.", "received_bytes"),
    ("sluice_sink_errors", "Claims that could not be stored and were kept for another try.", "sink_errors"),
)
GAUGES = (
    ("sluice_ready_bodies", "Bodies on the list.", "ready"),
    ("sluice_claimed_bodies", "Bodies that workers hold.", "claimed"),
    ("sluice_open_claims", "Claims that are not settled.", "open_claims"),
    ("sluice_backlog_bytes", "Memory that ready and claimed bodies take, roughly.", "backlog_bytes"),
    ("sluice_oldest_body_age_seconds", "How long the oldest body has waited that is not stored; 0: none waits.",
     "oldest_seconds"),
    ("sluice_dead_bodies", "Bodies of which anything is in dead_letters.", "dead"),
    ("sluice_missing_bodies", "Accepted bodies that are nowhere. Below 0: Redis's counters went back.", "missing"),
)  # fmt: skip
HISTOGRAMS = (
    ("sluice_decode_seconds", "Time to decode a body; every 16th is timed.", "decode"),
    ("sluice_persist_seconds", "Time to store a claim, decoding included.", "persist"),
)


def text(figures: Figures) -> bytes:
    """The figures in Prometheus's text format."""
    families = list(metrics(figures))

    class Found:
        """What generate_latest takes for a registry."""

        @staticmethod
        def collect() -> list[Metric]:
            return families

    return generate_latest(Found)


def metrics(figures: Figures) -> Iterator[Metric]:
    """The families of metrics. A figure that is not known is left out."""
    streams: dict[str, Figures] = figures["streams"]
    for name, about, key in COUNTERS:
        counter = CounterMetricFamily(name, about, labels=["stream"])
        for stream, one in streams.items():
            if one[key] is not None:
                counter.add_metric([stream], one[key])
        yield counter
    for name, about, key in GAUGES:
        gauge = GaugeMetricFamily(name, about, labels=["stream"])
        for stream, one in streams.items():
            # no body waits, or it is not known whether one does
            value = one[key] if key != "oldest_seconds" or one[key] is not None or one["ready"] is None else 0
            if value is not None:
                gauge.add_metric([stream], value)
        yield gauge
    for name, about, key in HISTOGRAMS:
        yield histogram(name, about, {stream: one[key] for stream, one in streams.items()})
    yield histogram("sluice_commit_seconds", "Time for Redis to take a commit.", {None: figures["commit"]})
    yield histogram("sluice_commit_bodies", "Bodies that shared a commit.", {None: figures["batch"]})

    answers = CounterMetricFamily(
        "sluice_answers", "Answers of the gateway; no route: unknown paths.", labels=["route", "status"]
    )
    for one in figures["answered"]:
        answers.add_metric([one["route"], one["status"]], one["count"])
    yield answers
    refused = CounterMetricFamily("sluice_refused_bodies", "Bodies that got 503.", labels=["stream", "reason"])
    for one in figures["refused"]:
        refused.add_metric([one["stream"], one["reason"]], one["bodies"])
    yield refused
    letters = GaugeMetricFamily("sluice_dead_letters", "Dead letters.", labels=["stream", "reason"])
    others: dict[tuple[str, str], int] = {}
    for at, one in enumerate(figures["dead_letters"] or ()):
        labels = one["stream"], one["reason"][:LONGEST] if at < REASONS else "others"
        others[labels] = others.get(labels, 0) + one["letters"]
    for labels, number in others.items():
        letters.add_metric(labels, number)
    yield letters

    processes = GaugeMetricFamily("sluice_processes", "Processes connected to Redis.", labels=["role"])
    for role in ("gateway", "worker"):
        if figures["processes"] is not None:
            processes.add_metric([role], sum(one["role"] == role for one in figures["processes"]))
    yield processes
    up = GaugeMetricFamily("sluice_up", "Whether it answers.", labels=["part"])
    up.add_metric(["redis"], figures["memory"] is not None)
    up.add_metric(["database"], figures["ledger_seconds"] is not None)
    yield up
    if figures["memory"] is not None:
        yield GaugeMetricFamily("sluice_redis_memory_bytes", "Memory that Redis uses.", figures["memory"]["used"])
        yield GaugeMetricFamily(
            "sluice_redis_memory_max_bytes", "Memory that Redis may use; 0: any.", figures["memory"]["most"]
        )
    if figures["ledger_seconds"] is not None:
        yield GaugeMetricFamily(
            "sluice_ledger_age_seconds", "How old stored, dead and missing are.", figures["ledger_seconds"]
        )


def histogram(name: str, about: str, found: dict[Any, Figures | None]) -> HistogramMetricFamily:
    """A family of histograms by stream, or the one without."""
    family = HistogramMetricFamily(name, about, labels=[] if None in found else ["stream"])
    for stream, one in found.items():
        if one is not None:
            total, buckets = 0, []
            for bound, n in zip(one["bounds"], one["buckets"], strict=True):
                total += n
                buckets.append(("+Inf" if bound is None else str(float(bound)), total))
            family.add_metric([] if stream is None else [stream], buckets, one["sum"])
    return family


def serve(observer: Observer, path: Path) -> int:
    """Answer on a Unix socket, one after the other, until a signal ends it: a look at each question, none without."""

    class Handler(BaseHTTPRequestHandler):
        """Whatever is asked for, it is the metrics."""

        timeout = 10

        def do_GET(self) -> None:  # noqa: N802
            body = text(observer.look())
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE_LATEST)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Not a line each time."""

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
    """What nginx asks, a program of bin/up. It starts without the other verbs, in two thirds of the time."""
    s = settings.load_or_exit()
    try:
        return serve(Observer(s), s.home / "run" / "metrics.sock")
    except settings.SettingError as error:
        return settings.complain(error)


if __name__ == "__main__":
    sys.exit(main())
