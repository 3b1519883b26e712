"""Reads from the database itself: one SELECT per request, a pool of 64 connections, no web framework."""

import json
import os
import queue
from urllib.parse import parse_qsl

import psycopg
from psycopg.rows import dict_row

pool: queue.LifoQueue = queue.LifoQueue()  # None: a connection that is not open yet
for _ in range(64):
    pool.put(None)

POSITIONS = "SELECT device, time, lat, lon, speed FROM gps WHERE device = %s ORDER BY time DESC LIMIT %s"


def rows(query, *values):
    connection = pool.get()
    try:
        connection = connection or psycopg.connect(os.environ["READS_POSTGRES"], autocommit=True, row_factory=dict_row)
        return connection.execute(query, values).fetchall()
    finally:
        pool.put(connection)


def latest(device):
    return rows(POSITIONS, device, 1)[0]


def trail(device, limit):
    return rows(POSITIONS, device, limit)


def tally(poll):
    choices = rows("SELECT choice, count(*) FROM votes WHERE poll = %s GROUP BY choice", poll)
    return {"poll": poll, "choices": {row["choice"]: row["count"] for row in choices}}


PATHS: dict = {"/gps/latest": latest, "/gps/trail": trail, "/votes/tally": tally}


def app(environ, start_response):
    answer = PATHS[environ["PATH_INFO"]](**dict(parse_qsl(environ["QUERY_STRING"])))
    body = json.dumps(answer, default=lambda time: time.isoformat()).encode()
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return [body]
