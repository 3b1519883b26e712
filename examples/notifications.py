"""Notifications: for each user the last 100 different ones. One module for the route, the record and the view:

    M=$PWD/examples/notifications.py
    INGEST_ROUTES=$M INGEST_RECORDS=$M INGEST_VIEWS=$M bin/up
    curl -d '{"user":"jane","kind":"like","actor":"joe","object":"photo 7"}' localhost:8080/notifications
    curl 'localhost:8080/notifications/feed?user=jane&limit=20'

If joe likes photo 7 again, the feed has that once, with the later time.
"""

import contextlib

from sluice import OK, Route
from sluice.contrib.views import feed

ROUTES = {"/notifications": Route("notifications", OK)}
VIEWS = {"/notifications/feed": feed("notifications", key="user", cap=100, member=("kind", "actor", "object"))}

with contextlib.suppress(ImportError):  # PyPy has no msgspec; the gateway and the reader need no record types
    from sluice import Record, stream

    class Notification(Record):
        user: str
        kind: str
        actor: str
        object: str

    STREAMS = {"notifications": stream("notifications", Notification)}
