"""What InfluxDB answers besides writes, because senders ask before they write: /ping, /health, /ready, some of /query.

Sluice has no databases, so what makes or changes one has no effect, and what lists something has an empty list.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qsl

from sluice.http.replies import Rejected, problem
from sluice.http.request import MAX_PARAMETERS, START, OwnAnswer, read
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


def query(environ: dict[str, Any]) -> Reply:
    """The answer to /query of InfluxDB 1: its statement is the parameter `q` of the query string or of the form."""
    try:
        item = read(environ, False, MOST)
        form = (START.match(item) and item.partition(b"\r\n\r\n")[2] or item).decode("latin-1")
        pairs = parse_qsl(f"{environ.get('QUERY_STRING', '')}&{form}", max_num_fields=MAX_PARAMETERS)
    except Rejected as rejected:
        answer: Reply = rejected.args[0]
        return answer
    except (ValueError, OwnAnswer):
        return NO_QUERIES
    statement = next((value for name, value in pairs if name == "q"), "")
    if SHOW_DATABASES.match(statement):
        return DATABASES
    return NOTHING if WITHOUT_EFFECT.match(statement) else NO_QUERIES


def ping(environ: dict[str, Any]) -> Reply:
    """The answer to /ping: with `verbose`, a 200 with the version (InfluxDB 1, services/httpd/handler.go)."""
    verbose = dict(parse_qsl(environ.get("QUERY_STRING", "")[:MOST])).get("verbose", "")
    return PING if verbose in ("", "0", "false") else VERSION
