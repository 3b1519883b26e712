"""Reads by the usual service: one command to Redis per request, a pool of 64 connections, no web framework."""

import os
from typing import Any
from urllib.parse import parse_qsl

import redis

pool = redis.BlockingConnectionPool.from_url("unix://" + os.environ["INGEST_SPOOL"], max_connections=64, timeout=20)
r: Any = redis.Redis(connection_pool=pool)


def trail(device, limit):
    items = r.zrange("feed:" + device, 0, int(limit) - 1, desc=True)
    return b"[%b]" % b",".join(items) if items else None


PATHS: dict = {
    "/gps/latest": lambda device: r.get("latest:" + device),
    "/gps/trail": trail,
    "/votes/tally": lambda poll: r.get("tally:" + poll),
}


def app(environ, start_response):
    body = PATHS[environ["PATH_INFO"]](**dict(parse_qsl(environ["QUERY_STRING"])))
    status = "404 Not Found" if body is None else "200 OK"
    body = body or b"{}"
    start_response(status, [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return [body]
