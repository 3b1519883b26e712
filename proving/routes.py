"""What a private drill names in INGEST_ROUTES: a path for the bodies of the fault `bomb`."""

from sluice.http.routes import OK, Route

ROUTES = {"/crumbs": Route("crumbs", OK)}
