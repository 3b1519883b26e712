"""What InfluxDB answers besides writes, because senders ask before they write: /ping, /health, and CREATE DATABASE."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qsl

from sluice.http.replies import Rejected, problem
from sluice.http.request import MAX_PARAMETERS, START, OwnAnswer, read
from sluice.http.routes import Reply, reply

PING = reply("204 No Content", b"", "", ("X-Influxdb-Version", "sluice"))  # Python's client, version 1, reads it
HEALTH = reply(
    "200 OK",
    b'{"name":"influxdb","message":"ready for queries and writes","status":"pass","checks":[],"version":"sluice"}',
)
CREATED = reply("200 OK", b'{"results":[{"statement_id":0}]}')
NO_QUERIES = problem(
    "400 Bad Request",
    "Sluice answers no queries; the only statement that it takes is CREATE DATABASE.",
)
CREATE = re.compile(r"\s*CREATE\s+DATABASE\s", re.IGNORECASE)
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
    return CREATED if any(name == "q" and CREATE.match(value) for name, value in pairs) else NO_QUERIES
