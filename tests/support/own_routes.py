"""Routes of a user's own, for INGEST_ROUTES."""

from sluice import OK, Route

ROUTES = {"/own": Route("votes", OK), "/own/whole": Route("votes", OK, keep_head=True)}
