#!/usr/bin/env python3
"""The idea of Sluice on one screen: append, commit, claim, store, settle.

    redis-server --port 0 --unixsocket /tmp/redis.sock --appendonly yes --appendfsync always &
    python examples/mini.py /tmp/redis.sock

A post returns once its body is on a Redis list and the list is on disk. A worker stores it later, exactly once. So a
client that got no answer may post again, if its body is JSON with a "key".
"""

import sqlite3
import sys
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor, wait

from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

READY, CLAIMS, CLAIM = "mini:ready", "mini:claims", "mini:claim:"  # bodies; claim id -> end of lease; a claim's bodies
LEASE = 5  # seconds; then any worker may claim the same bodies again, under the same id
TAKE = """
local now, id = tonumber(redis.call('TIME')[1]), ARGV[1]
local expired = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, 1)[1]
if expired then
  id = expired
else
  local bodies = redis.call('LPOP', KEYS[1], 1000)
  if not bodies then return {false, {}} end
  redis.call('RPUSH', KEYS[3] .. id, unpack(bodies))
end
redis.call('ZADD', KEYS[2], now + ARGV[2], id)
return {id, redis.call('LRANGE', KEYS[3] .. id, 0, -1)}
"""


class Batch:
    def __init__(self):
        self.bodies, self.done, self.error = [], False, None


class Gateway:
    """Takes bodies from many threads: those that wait at the same moment share one round trip and one fsync."""

    def __init__(self, socket):
        # No retry: an RPUSH whose reply was lost may have been executed, and a second one would add its bodies again.
        self.redis = Redis(unix_socket_path=socket, retry=Retry(NoBackoff(), 0))
        self.open, self.entry, self.turn = Batch(), threading.Lock(), threading.Lock()

    def post(self, body):
        """Returns when the body is on disk. Raises Redis's error when it may not be."""
        self.commit(self.append(body))

    def append(self, body):
        with self.entry:  # no body may be added to a batch that is being sent
            self.open.bodies.append(body)
            return self.open

    def commit(self, batch):
        with self.turn:  # the first thread sends the batch for all its threads; the next batch fills meanwhile
            if not batch.done:
                with self.entry:
                    self.open = Batch()
                try:
                    self.redis.rpush(READY, *batch.bodies)
                except Exception as error:
                    batch.error = error
                batch.done = True
        if batch.error:
            raise batch.error


def claim(redis, lease=LEASE):
    """Takes bodies off the list, or those of an expired claim. Redis executes the script atomically."""
    id, bodies = redis.eval(TAKE, 3, READY, CLAIMS, CLAIM, uuid.uuid4().hex, lease)
    return id and id.decode(), bodies


def store(db, id, bodies):
    """Inserts the bodies and the claim's id in one transaction; nothing if the id is stored, no body whose key is."""
    with db:
        if db.execute("INSERT OR IGNORE INTO claims VALUES (?)", (id,)).rowcount:
            db.executemany("INSERT OR IGNORE INTO bodies VALUES (?, ?)", ((id, body) for body in bodies))


def settle(redis, id):
    """Deletes a claim whose bodies are stored."""
    redis.pipeline().unlink(CLAIM + id).zrem(CLAIMS, id).execute()


def work(redis, db, lease=LEASE):
    """Stores all bodies that wait. If it is killed, its claim expires, and the next worker gets the same claim."""
    while (claimed := claim(redis, lease))[0]:
        store(db, *claimed)
        settle(redis, claimed[0])


def database(path):
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE IF NOT EXISTS claims (id TEXT PRIMARY KEY)")
    db.execute("CREATE TABLE IF NOT EXISTS bodies (claim TEXT REFERENCES claims, body BLOB)")
    key = "CASE WHEN json_valid(CAST(body AS TEXT)) THEN json_extract(CAST(body AS TEXT), '$.key') END"  # or null
    db.execute(f"CREATE UNIQUE INDEX IF NOT EXISTS keys ON bodies ({key})")
    return db


def main(socket="var/run/redis.sock", path="mini.db"):
    gateway, redis, db = Gateway(socket), Redis(unix_socket_path=socket), database(path)
    clients = ThreadPoolExecutor(16)
    posts = [clients.submit(gateway.post, b'{"n":%d}' % n) for n in range(8000)]
    while wait(posts, timeout=0.01).not_done:
        work(redis, db)
    work(redis, db)
    safe = sum(post.exception() is None for post in posts)
    rows, claims = db.execute("SELECT count(*), count(DISTINCT claim) FROM bodies").fetchone()
    print(f"16 threads posted {safe:,} bodies; {path} holds {rows:,} from {claims:,} claims")


if __name__ == "__main__":
    main(*sys.argv[1:])
