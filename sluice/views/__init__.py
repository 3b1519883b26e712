"""Views: read structures that follow the rows in the database. Data only; standard library only.

A module that INGEST_VIEWS names declares views of its own:

    from sluice.views import feed

    VIEWS = {"/orders/recent": feed("orders", key="customer", cap=20)}
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, Union

from sluice import extension, settings
from sluice.formats.registry import load_routes
from sluice.views.contract import MAX_CAP

PATH = re.compile(r"(?=.{2,201}\Z)(/(?!\.\.?(/|\Z))[\w.~-]+)+/?", re.ASCII)  # as nginx passes it on
TAKEN = re.compile(r"/(healthz|readyz|ping|_sluice_problem|status(/.*)?)")  # by gateway and nginx
NAME = "INGEST_VIEWS"


class Latest(NamedTuple):
    """The newest record of a key, by its time, then by its sequence number; with `each`, of each of these values."""

    stream: str
    key: str
    each: tuple[str, ...]


class Feed(NamedTuple):
    """The last records of a key, at most `cap`; two are one item if their `member` fields (none: all) are equal."""

    stream: str
    key: str
    cap: int
    member: tuple[str, ...]


class Tally(NamedTuple):
    """How many rows of a key have each value of `by`; counted every `period` seconds while clients ask for it."""

    stream: str
    key: str
    by: str
    period: float


View = Union[Latest, Feed, Tally]


def latest(stream: str, key: str, each: Collection[str] = ()) -> Latest:
    """A view with the newest record of a key, such as the position of a device.

    each: fields; the view then has the newest record for each of their values, such as each series of a name.
    """
    return Latest(stream, key, tuple(each))


def feed(stream: str, key: str, cap: int = 100, member: Collection[str] = ()) -> Feed:
    """A view with the last records of a key, newest first, such as a user's notifications.

    cap: records, 1 to 1000.
    member: fields; records in which they are equal are one item, and the newest is it. Without `member`, records
        that are equal in all fields and the time are one item.
    """
    return Feed(stream, key, cap, tuple(member))


def tally(stream: str, key: str, by: str, period: float = 90) -> Tally:
    """A view with counts, such as the votes of a poll for each choice.

    period: seconds between two counts, at least 1.
    """
    return Tally(stream, key, by, period)


VIEWS: dict[str, View] = {
    "/gps/latest": latest("gps", key="device"),
    "/gps/trail": feed("gps", key="device", cap=100),
    "/votes/tally": tally("votes", key="poll", by="choice", period=90),
    "/metrics/latest": latest("metrics", key="name", each=("tags", "field")),
}


def load(s: settings.Settings) -> dict[str, View]:
    """The built-in views and those of the user's module, which may replace them; none if INGEST_VIEWS is `off`.

    Of the built-in ones, those of a stream whose rows go elsewhere (INGEST_ROWS) are left out.

    Raises: SettingError for a module that cannot be imported, or a declaration that is invalid by itself.
    """
    if s.views == "off":
        return {}
    views = {path: view for path, view in VIEWS.items() if s.rows.of(view.stream) is None}
    views.update(extension.dictionary(NAME, s.views, "VIEWS"))
    known = load_routes(s.routes)
    for path, view in views.items():
        problem = invalid(path, view) or ("a route has this path" if path in known else "")
        if not problem and s.rows.of(view.stream) is not None:
            problem = f"INGEST_ROWS sends the rows of {view.stream} elsewhere, and a view follows a table"
        if problem:
            raise settings.SettingError(f"{NAME}={s.views!r} is invalid: {path!r}: {problem}.")
    return views


def invalid(path: object, view: object) -> str:
    """Why a declaration cannot be a view, or ""."""
    if not (isinstance(path, str) and PATH.fullmatch(path)):
        return "a path is / and letters, digits or / . ~ - _, without // and /../"
    if TAKEN.fullmatch(path):
        return "this path has another use"
    if not isinstance(view, (Latest, Feed, Tally)):
        return "the view is not made by latest, feed or tally of sluice.views"
    if isinstance(view, Feed) and not (type(view.cap) is int and 1 <= view.cap <= MAX_CAP):
        return f"cap is an integer from 1 to {MAX_CAP}"
    if isinstance(view, Tally) and not (type(view.period) in (int, float) and 1 <= view.period <= 86_400):
        return "period is a number of seconds from 1 to 86400"
    return ""


def verify(views: Mapping[str, View], streams: Mapping[str, Any]) -> None:
    """Check that the streams and fields exist. streams: as `sluice.formats.streams.load_streams` returns them.

    Raises: SettingError for the first one that does not.
    """
    for path, view in views.items():
        why = ""
        if view.stream not in streams:
            why = f"there is no stream {view.stream!r}"
        else:
            known = streams[view.stream].record.__struct_fields__
            missing = [field for field in fields(view) if field not in known]
            if missing:
                why = f"the stream {view.stream!r} has no field {missing[0]!r}"
            elif "time" in fields(view)[:1]:
                why = "the key of a view cannot be the time"
        if why:
            raise settings.SettingError(f"{NAME} is invalid: {path!r}: {why}.")


def fields(view: View) -> tuple[str, ...]:
    """The fields that a view names, the key first."""
    if isinstance(view, Latest):
        return view.key, *view.each
    return (view.key, *view.member) if isinstance(view, Feed) else (view.key, view.by)
