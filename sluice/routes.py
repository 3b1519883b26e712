"""The gateway's routes: the built-in ones, those of wire formats, and those of the user's module."""

from __future__ import annotations

import re

from sluice import extension, registry
from sluice.http.routes import OK, Route, varies
from sluice.settings import SettingError

BATCHED = "metrics", "logs", "spans"  # the streams whose senders collect records
ROUTES = {
    f"/{stream}": Route(stream, OK, batch=stream in BATCHED, get=True) for stream in ("metrics", "gps", "votes", "logs")
} | {
    path: Route(
        known.stream, answer, json=known.json, batch=known.stream in BATCHED, empty=known.empty, fields=known.fields,
        get=known.get, methods=known.methods,
    )
    for known in registry.listed("formats")
    for path, answer in known.paths.items()
} | registry.declared_entries("routes")  # fmt: skip


STREAM = r"[A-Za-z_]\w*"
PATH = r"(?:/(?:[\w.~!$&'()*+,;=:@-]|\{[A-Za-z_]\w*\})*)+"
OWN = r"/healthz|/readyz|/_sluice_.*"  # of gateway and nginx


def is_reserved(path: str) -> bool:
    """Whether a path is one that Sluice, or a contribution, answers itself."""
    patterns = OWN, *registry.listed("paths")
    return path in registry.declared_entries("probes") or any(re.fullmatch(pattern, path) for pattern in patterns)


METHODS = {"GET", "PUT", "PATCH", "DELETE"}  # that may be a POST


def load_routes(module: str) -> dict[str, Route]:
    """The built-in routes and those of the user's module, which may replace them. module: INGEST_ROUTES.

    Raises: SettingError if it cannot be imported, has no ROUTES, or one that no request could reach.
    """
    own = extension.load_dictionary("INGEST_ROUTES", module, "ROUTES")
    for path, route in own.items():
        if not isinstance(route, Route) or not re.fullmatch(STREAM, str(route.stream), re.ASCII):
            problem = "is no sluice.Route to a stream whose name has letters, digits and _ only"
        elif not re.fullmatch(PATH, str(path)) or is_reserved(path):
            problem = "is no path such as /orders, or one that Sluice uses itself"
        elif route.json and (route.signed or varies(path)):
            problem = "has `json`, and `signed` or a path that varies"
        elif not METHODS.issuperset(route.methods):
            problem = f"has another method than {', '.join(sorted(METHODS))}"
        else:
            continue
        raise SettingError(f"INGEST_ROUTES={module!r} is invalid: ROUTES[{path!r}] {problem}.")
    return ROUTES | own
