"""A plain cache: a request that does not find the value computes it, and keeps it for a period. Four are computed at a
time, as over four connections to a database.
"""

import os

import gevent
import redis

from expensive import compute

PERIOD, SECONDS = (float(os.environ[name]) for name in ("HERD_PERIOD", "HERD_SECONDS"))
pool = redis.BlockingConnectionPool.from_url("unix://" + os.environ["INGEST_SPOOL"], max_connections=64, timeout=20)
r = redis.Redis(connection_pool=pool)
gevent.get_hub().threadpool.maxsize = 4


def app(environ, start_response):
    body = r.get("cached")
    if body is None:
        r.incr("missed")
        began = gevent.get_hub().threadpool.apply(compute, (SECONDS,))
        body = b'{"poll":"cookies","total":3,"choices":{"oreo":2,"fig":1}}'
        r.set("cached", body, px=int(PERIOD * 1000))
        r.rpush("computed", began)
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return [body]
