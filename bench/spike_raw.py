"""rungs/raw.py without redis-py's limit of 100 connections, beyond which its pool raises: one per user."""

import os

import redis

r = redis.Redis(unix_socket_path=os.environ["INGEST_REDIS"], max_connections=20_000)


def app(environ, start_response):
    r.rpush("testing", environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", "16")])
    return [b'{"message":"OK"}']
