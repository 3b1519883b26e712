"""A stream of your own, the gateway's half: INGEST_ROUTES=$PWD/examples/my_routes.py"""

from sluice import OK, Route

ROUTES = {"/orders": Route("orders", OK)}
