"""Views: read structures that follow the rows in the database. Standard library only, for the reader on PyPy.

A module that INGEST_VIEWS names declares views of its own:

    from sluice.contrib.views import feed

    VIEWS = {"/orders/recent": feed("orders", key="customer", cap=20)}
"""

from sluice.contrib.views.declared import VIEWS, load, verify
from sluice.contrib.views.kinds.feed import Feed, feed
from sluice.contrib.views.kinds.latest import Latest, latest
from sluice.contrib.views.kinds.tally import Tally, tally
from sluice.contrib.views.kinds.view import View

__all__ = ["VIEWS", "Feed", "Latest", "Tally", "View", "feed", "latest", "load", "tally", "verify"]
