"""What senders of Elasticsearch and of Splunk's HTTP Event Collector ask before they send.

Elasticsearch's clients ask for the version at /, and refuse an answer without X-Elastic-Product (elastic.co, "Client
compatibility"). Filebeat 7 also asks for the license, and sends nothing without one (elastic/kibana#95309). HEC's
health is 200 with code 17 or 503 with code 18 (docs.splunk.com, services/collector/health).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

from sluice.contrib.formats.register import ELASTIC
from sluice.http.routes import JSON, Reply, reply

VERSION = "8.17.0"  # of the interface, for clients that compare it
ROOT = reply(
    "200 OK",
    b'{"name":"sluice","cluster_name":"sluice","cluster_uuid":"sluice","version":{"number":"%b","build_flavor":'
    b'"default","lucene_version":"9.12.0","minimum_wire_compatibility_version":"7.17.0",'
    b'"minimum_index_compatibility_version":"7.0.0"},"tagline":"You Know, for Search"}' % VERSION.encode(),
    JSON, ELASTIC,
)  # fmt: skip
LICENSED = reply(
    "200 OK",
    b'{"license":{"status":"active","uid":"sluice","type":"basic","mode":"basic"},"features":{}}',
    JSON,
    ELASTIC,
)
HEALTHY = reply("200 OK", b'{"text":"HEC is healthy","code":17}')
UNHEALTHY = reply("503 Service Unavailable", b'{"text":"HEC is unhealthy, queues are full","code":18}')
Unready = Callable[[], Optional[Reply]]  # the 503 of a gateway that takes no writes


def root(environ: dict[str, Any], unready: Unready) -> Reply | None:
    return ROOT if environ["REQUEST_METHOD"] in ("GET", "HEAD") else None


def licensed(environ: dict[str, Any], unready: Unready) -> Reply | None:
    return LICENSED if environ["REQUEST_METHOD"] in ("GET", "HEAD") else None


def hec(environ: dict[str, Any], unready: Unready) -> Reply | None:
    if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
        return None
    return UNHEALTHY if unready() else HEALTHY
