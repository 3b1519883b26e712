"""The views of a cell: the built-in ones, and those of the user's module."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sluice import extension, settings
from sluice.contrib.views.kinds.feed import feed
from sluice.contrib.views.kinds.latest import latest
from sluice.contrib.views.kinds.tally import tally
from sluice.contrib.views.kinds.view import View
from sluice.routes import is_reserved, load_routes

PATH = re.compile(r"(?=.{2,201}\Z)(/(?!\.\.?(/|\Z))[\w.~-]+)+/?", re.ASCII)  # as nginx passes it on
NAME = "INGEST_VIEWS"

VIEWS: dict[str, View] = {
    "/gps/latest": latest("gps", key="device"),
    "/gps/trail": feed("gps", key="device", cap=100),
    "/votes/tally": tally("votes", key="poll", by="choice", period=90),
    "/metrics/latest": latest("metrics", key="name", each=("tags", "field")),
}


def load_views(s: settings.Settings) -> dict[str, View]:
    """The built-in views and those of the user's module, which may replace them; none if INGEST_VIEWS is `off`.

    Of the built-in ones, those of a stream whose rows go elsewhere (INGEST_ROWS) are left out.

    Raises: SettingError for a module that cannot be imported, or a declaration that is invalid by itself.
    """
    if s.views == "off":
        return {}
    views = {path: view for path, view in VIEWS.items() if has_table(s, view.stream)}
    views.update(extension.load_dictionary(NAME, s.views, "VIEWS"))
    known = load_routes(s.routes)
    for path, view in views.items():
        problem = declaration_problem(path, view) or ("a route has this path" if path in known else "")
        if not problem and not has_table(s, view.stream):
            problem = f"INGEST_ROWS sends the rows of {view.stream} elsewhere, and a view follows a table"
        if problem:
            raise settings.SettingError(f"{NAME}={s.views!r} is invalid: {path!r}: {problem}.")
    return views


def has_table(s: settings.Settings, stream: str) -> bool:
    """Whether the rows of a stream are in a table: `store`, also beside a destination, as without that folder."""
    rows = getattr(s, "rows", None)
    return rows is None or (rows.for_stream(stream) or "store").startswith("store")


def are_on(s: settings.Settings) -> bool:
    return bool(s.views != "off")


def declaration_problem(path: object, view: object) -> str:
    """Why a declaration cannot be a view, or ""."""
    if not (isinstance(path, str) and PATH.fullmatch(path)):
        return "a path is / and letters, digits or / . ~ - _, without // and /../"
    if is_reserved(path):
        return "this path has another use"
    return view.problem if isinstance(view, View) else "the view is not made by a function of sluice.contrib.views"


def check_declarations(views: Mapping[str, View], streams: Mapping[str, Any]) -> None:
    """Check that the streams and fields exist. streams: as `sluice.streams.built_in.load_streams` returns them.

    Raises: SettingError for the first one that does not.
    """
    for path, view in views.items():
        known = streams[view.stream].record.__struct_fields__ if view.stream in streams else ()
        missing = [field for field in view.fields if field not in known]
        if not known:
            reason = f"there is no stream {view.stream!r}"
        elif missing:
            reason = f"the stream {view.stream!r} has no field {missing[0]!r}"
        elif view.key == "time":
            reason = "the key of a view cannot be the time"
        else:
            continue
        raise settings.SettingError(f"{NAME} is invalid: {path!r}: {reason}.")
