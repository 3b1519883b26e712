"""What InfluxDB answers besides writes, because senders ask before they write: /ping, /health, /ready, some of /query.

Sluice has no databases, so what makes or changes one has no effect, and what lists something has an empty list.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Optional
from urllib.parse import parse_qsl

from sluice.http.replies import NOT_FOUND, Rejected, problem
from sluice.http.request import MAX_PARAMETERS, read_body
from sluice.http.routes import JSON, Reply, reply

PING = reply("204 No Content", b"", "", ("X-Influxdb-Version", "sluice"))  # Python's client, version 1, reads it
VERSION = reply("200 OK", b'{"version":"sluice"}', JSON, *PING.headers)  # to the boards of Arduino and Tasmota
HEALTH = reply(
    "200 OK",
    b'{"name":"influxdb","message":"ready for queries and writes","status":"pass","checks":[],"version":"sluice"}',
)
READY = reply("200 OK", b'{"status":"ready"}')  # also to Vector's and other senders' health check of Loki
NOTHING = reply("200 OK", b'{"results":[{"statement_id":0}]}')
DATABASES = reply("200 OK", b'{"results":[{"statement_id":0,"series":[{"name":"databases","columns":["name"]}]}]}')
NO_QUERIES = problem(
    "400 Bad Request",
    "Sluice answers no queries. Of statements it takes those that make databases and retention policies, and SHOW.",
)
SHOW_DATABASES = re.compile(r"\s*SHOW\s+DATABASES\b", re.IGNORECASE)
WITHOUT_EFFECT = re.compile(r"\s*(?:SHOW|CREATE\s+DATABASE|(?:CREATE|ALTER)\s+RETENTION\s+POLICY)\s", re.IGNORECASE)
MOST = 8192  # bytes of a statement
Unready = Callable[[], Optional[Reply]]  # the 503 of a gateway that takes no writes


def query(environ: dict[str, Any], unready: Unready) -> Reply | None:
    """The answer to /query of InfluxDB 1: its statement is the parameter `q` of the query string or of the form."""
    if environ["REQUEST_METHOD"] not in ("GET", "POST"):
        return NOT_FOUND
    try:
        form = read_body(environ, MOST).decode("latin-1")
        pairs = parse_qsl(f"{environ.get('QUERY_STRING', '')}&{form}", max_num_fields=MAX_PARAMETERS)
    except Rejected as rejected:
        answer: Reply = rejected.args[0]
        return answer
    except ValueError:
        return NO_QUERIES
    statement = next((value for name, value in pairs if name == "q"), "")
    if SHOW_DATABASES.match(statement):
        return DATABASES
    return NOTHING if WITHOUT_EFFECT.match(statement) else NO_QUERIES


def ping(environ: dict[str, Any], unready: Unready) -> Reply | None:
    """The answer to /ping: with `verbose`, a 200 with the version (InfluxDB 1, services/httpd/handler.go)."""
    if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
        return None
    verbose = dict(parse_qsl(environ.get("QUERY_STRING", "")[:MOST])).get("verbose", "")
    return PING if verbose in ("", "0", "false") else VERSION


def health(environ: dict[str, Any], unready: Unready) -> Reply | None:
    return HEALTH if environ["REQUEST_METHOD"] in ("GET", "HEAD") else None


def ready(environ: dict[str, Any], unready: Unready) -> Reply | None:
    return unready() or READY if environ["REQUEST_METHOD"] in ("GET", "HEAD") else None
