"""The follower of Sluice, whose counts take some seconds of CPU."""

import os

import redis

from expensive import compute
from sluice.contrib.views import Tally, follow

r = redis.Redis(unix_socket_path=os.environ["INGEST_SPOOL"])
count = Tally.count


def expensive_count(*arguments):
    r.rpush("computed", compute(float(os.environ["HERD_SECONDS"])))
    return count(*arguments)


Tally.count = expensive_count  # type: ignore[method-assign]
follow.main()
