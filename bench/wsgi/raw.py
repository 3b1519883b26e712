"""Raw WSGI + RPUSH: five lines without a web framework."""

import os

import redis

r = redis.Redis(unix_socket_path=os.environ["INGEST_SPOOL"])


def app(environ, start_response):
    r.rpush("testing", environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", "16")])
    return [b'{"message":"OK"}']
