"""Views: read structures that follow the rows in the database. Standard library only, for the reader on PyPy.

A module that INGEST_VIEWS names declares views of its own:

    from sluice.contrib.views import feed

    VIEWS = {"/orders/recent": feed("orders", key="customer", cap=20)}

Each name is imported on first use: what reads the register needs none of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sluice.contrib.views.declared import VIEWS, check_declarations, load_views
    from sluice.contrib.views.kinds.feed import Feed, feed
    from sluice.contrib.views.kinds.latest import Latest, latest
    from sluice.contrib.views.kinds.tally import Tally, tally
    from sluice.contrib.views.kinds.view import View

__all__ = ["VIEWS", "Feed", "Latest", "Tally", "View", "feed", "latest", "load_views", "tally", "check_declarations"]
_EXPORTS = {
    "declared": ("VIEWS", "load_views", "check_declarations"),
    "kinds.feed": ("Feed", "feed"),
    "kinds.latest": ("Latest", "latest"),
    "kinds.tally": ("Tally", "tally"),
    "kinds.view": ("View",),
}
_MODULES = {name: f"{__name__}.{module}" for module, names in _EXPORTS.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
