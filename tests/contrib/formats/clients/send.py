"""A client by other authors sends what it is told to: send.py NAME URL; each line of standard input is a number.

Each number is answered with a line: ok, or the class of the exception that the program of its user would get. A client
that sends in a thread of its own has sent, or dropped, the number before the answer.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any
from urllib.parse import urlsplit

Send = Callable[[int], object]


def prometheus(url: str) -> Send:
    from prometheus_client import CollectorRegistry, Gauge, push_to_gateway

    registry = CollectorRegistry()
    gauge = Gauge("given", "Given.", registry=registry)

    def send(number: int) -> None:
        gauge.set(number)
        push_to_gateway(url, job="given", registry=registry)

    return send


def elasticsearch(url: str) -> Send:
    from elasticsearch import Elasticsearch, helpers

    client = Elasticsearch(url)

    def send(number: int) -> None:
        now = datetime.now(timezone.utc).isoformat()
        helpers.bulk(client, [{"_index": "logs", "@timestamp": now, "message": f"n={number}"}])

    return send


def splunk(url: str) -> Send:
    from splunk_handler import SplunkHandler

    where = urlsplit(url)
    handler = SplunkHandler(
        host=where.hostname, port=where.port, token="t", index="main", protocol="http", flush_interval=0.1,
        retry_count=2, retry_backoff=0.1, verify=False,
    )  # fmt: skip

    def send(number: int) -> None:
        handler.emit(record(number))
        handler.force_flush()

    return send


def zipkin(url: str) -> Send:
    from py_zipkin import Encoding
    from py_zipkin.transport import SimpleHTTPTransport
    from py_zipkin.zipkin import zipkin_span

    where = urlsplit(url)
    transport = SimpleHTTPTransport(str(where.hostname), where.port or 80)

    def send(number: int) -> None:
        name, encoding = f"n={number}", Encoding.V2_JSON
        with zipkin_span("given", name, transport_handler=transport, sample_rate=100.0, encoding=encoding):
            pass

    return send


def seqlog(url: str) -> Send:
    from seqlog.structured_logging import SeqLogHandler, StructuredLogRecord

    handler = SeqLogHandler(url, batch_size=1, auto_flush_timeout=0.1)

    def send(number: int) -> None:
        handler.publish_log_batch([StructuredLogRecord("given", logging.INFO, "", 1, f"n={number}", (), None)])

    return send


def logtail(url: str) -> Send:
    from logtail import LogtailHandler

    handler = LogtailHandler("token", host=f"{url}/logs", flush_interval=0.1, raise_exceptions=True)

    def send(number: int) -> None:
        handler.emit(record(number))
        handler.flush()
        handler.pipe.join()

    return send


def segment(url: str) -> Send:
    from segment.analytics.client import Client

    client = Client("key", host=f"{url}/hooks/segment", max_retries=2, gzip=True)

    def send(number: int) -> None:
        client.track("user", "Given", {"n": f"n={number}"})
        client.flush()

    return send


def record(number: int) -> logging.LogRecord:
    return logging.LogRecord("given", logging.INFO, "a.py", 1, f"n={number}", (), None)


CLIENTS: dict[str, Callable[[str], Send]] = {
    each.__name__: each for each in (prometheus, elasticsearch, splunk, zipkin, seqlog, logtail, segment)
}


def main(name: str, url: str) -> None:
    answers, sys.stdout = sys.stdout, sys.stderr  # some clients print
    send: Any = CLIENTS[name](url)
    for line in sys.stdin:
        try:
            send(int(line))
            answer = "ok"
        except Exception as error:
            answer = type(error).__name__
        print(answer, file=answers, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
