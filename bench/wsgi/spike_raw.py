"""raw.py with a connection to Redis per user: redis-py's pool raises beyond 100 unless max_connections is set."""

import os

import redis

r = redis.Redis(unix_socket_path=os.environ["INGEST_SPOOL"], max_connections=20_000)


def app(environ, start_response):
    r.rpush("testing", environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", "16")])
    return [b'{"message":"OK"}']
